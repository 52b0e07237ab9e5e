"""Each behaviour of the handle, as Spark shows it and as Bedload does, in both forms; see ``small``."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import bedload as bl
from tests.spark.drop_in.engines import ENGINES, PANDAS, ROWS, SPARK, Seen, run
from tests.spark.drop_in.everything import SMALL
from tests.spark.drop_in.small import Small, program

pytestmark = pytest.mark.spark

_seen: dict[tuple[str, str, str], Seen] = {}


def seen(session: SparkSession, engine: str, mode: str, form: str, factory: pytest.TempPathFactory) -> Seen:
    """What the one query of all cases of a time mode showed, run when it is first asked for."""
    found = _seen.get((engine, mode, form))
    if found is None:
        found = run(session, engine, program(SMALL, mode, form), factory.mktemp("small"))
        _seen[engine, mode, form] = found
    assert found.error is None, str(found.error)
    return found


def outputs(found: Seen, case: Small) -> dict[str, list[list[str]]]:
    """By key and batch; of exceptions the class."""
    return {
        key: [
            [
                text.partition(":")[0] if text.startswith("raises ") else text
                for name, k, text in found.epochs[batch]
                if (name, k) == (case.name, key)
            ]
            for batch in range(len(batches))
        ]
        for key, batches in case.expected.items()
    }


@pytest.mark.parametrize("form", [ROWS, PANDAS])
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_behaviour(
    engine: str,
    case: Small,
    form: str,
    session: SparkSession,
    bedload: bl.Cluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    found = seen(session, engine, case.mode, form, tmp_path_factory)
    assert outputs(found, case) == (case.expected if engine == SPARK else case.bedload)
