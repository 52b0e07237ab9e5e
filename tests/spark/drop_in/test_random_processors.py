"""Random programs over the handle, with restarts and replays, give the same on both engines.

A few in every run, the same ones; ``make conformance EXAMPLES=200 SEED=7`` runs others.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from pyspark.sql import SparkSession

import bedload as bl
from tests.spark.drop_in.engines import BEDLOAD, SPARK, Program, run
from tests.spark.drop_in.programs import programs
from tests.thorough import TIMES

pytestmark = pytest.mark.spark

EXAMPLES = int(os.environ.get("EXAMPLES") or 3 * TIMES)
SEED, SHRINK = os.environ.get("SEED"), os.environ.get("SHRINK")


def _chosen(test: Any) -> Any:
    """The same examples in every run, or those of a seed."""
    chosen = settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=not SEED,
        database=None,
        phases=(Phase.generate, Phase.shrink) if SHRINK else (Phase.generate,),
        print_blob=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )(test)
    return seed(int(SEED))(chosen) if SEED else chosen


@_chosen
@given(program=programs())
def test_random_processors(program: Program, session: SparkSession, bedload: bl.Cluster) -> None:
    seen = {}
    for engine in (SPARK, BEDLOAD):
        with tempfile.TemporaryDirectory() as place:
            seen[engine] = run(session, engine, program, Path(place))
        found = seen[engine].error
        if found is not None:
            raise found
    assert sorted(seen[SPARK].epochs) == list(range(len(program.batches)))
    assert seen[BEDLOAD].by_key == seen[SPARK].by_key
