"""An initial state that says when something expires: what an operator goes on with, and what is refused."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.checkpoint_states import OPERATOR, read_part, schema_of
from tests.unit.test_source_bootstrap import TURN, run, task

import bedload as bl
from bedload.checkpoint import paths
from bedload.checkpoint.storage import open_storage
from bedload.core.errors import from_wire
from bedload.spark.bootstrap_task import Start, starts_of_columns, starts_of_rows
from bedload.state.arrow import arrow_type
from bedload.store.deltas import GROUP
from bedload.testing.applied import an_operator
from bedload.testing.input import InputFormat, as_schema
from bedload.worker.operator import state_of

NAN = float("nan")
HOUR: Any = {"ttl": "1 hour"}


@dataclasses.dataclass(frozen=True)
class Place:
    x: int = 0


def becomes(folder: Path, starts: list[Start], given: dict[str, pa.Array]) -> Any:
    """The stored state of keys with these columns, column by column, or the error."""
    columns = {name: f"bedload_value_{i}" for i, name in enumerate(given)}
    starts = [replace(start, column=columns.get(start.name)) for start in starts]
    schema = schema_of({"car": pa.int64()}, {start.name: start.type for start in starts}, groups=1, kind="value")
    count = len(next(iter(given.values())))
    rows = pa.RecordBatch.from_arrays(
        [pa.array([0] * count, pa.int16()), pa.array(range(count), pa.int64()), *given.values()],
        [GROUP, "bedload_key_0", *columns.values()],
    )
    result = run(task(folder, *starts, schema=schema), [rows])
    if result.error is not None:
        return str(from_wire(*result.error))
    (part,) = result.parts
    state = read_part(open_storage(str(folder)), paths.snapshot(OPERATOR, TURN), schema, part, part.groups)
    return {start.name: state.column(start.name).to_pylist() for start in starts}


def of_rows(folder: Path, kind: Any, declared: Any, value: Any, ends: Any) -> Any:
    """What becomes of the expiries of one variable of one key."""
    operator = type(bl.Operator)(
        "Op", (bl.Operator,), {"__annotations__": {"v": kind}, "v": declared, "process": lambda *_: None}
    )
    specs = state_of(operator)
    kinds = {spec.name: arrow_type(spec.type) for spec in specs}
    given = {"v": pa.array([value], kinds["v"]), "bedload_ttl_v": pa.array([ends], kinds["bedload_ttl_v"])}
    found = becomes(folder, starts_of_rows(specs), given)
    return found if isinstance(found, str) else found["bedload_ttl_v"][0]


@pytest.mark.parametrize(
    ("kind", "declared", "value", "ends", "left"),
    [
        (dict[str, int], bl.map(**HOUR), [("a", 1), ("b", 2)], [("a", 5), ("b", 0)], [("a", 5)]),
        (dict[str, int], bl.map(**HOUR), [("a", 1)], [("b", 5)], []),
        (dict[str, int], bl.map(**HOUR), [("a", 1)], [("a", 5)], [("a", 5)]),
        (dict[float, int], bl.map(**HOUR), [(NAN, 1), (2.0, 1)], [(NAN, 5), (3.0, 5)], [(NAN, 5)]),
        (
            dict[str | None, int],
            bl.map(**HOUR),
            [{"key": None, "value": 1}],
            [{"key": None, "value": 5}, {"key": "b", "value": 6}],
            [{"key": None, "value": 5}],
        ),
        (set[str], bl.set(**HOUR), ["a"], [("a", 0), ("b", 5)], []),
        (set[Place], bl.set(**HOUR), [{"x": 1}], [({"x": 1}, 5), ({"x": 2}, 5)], [({"x": 1}, 5)]),
        (set[int | None], bl.set(**HOUR), [None], [{"key": None, "value": 5}], [{"key": None, "value": 5}]),
        (list[int], bl.list(**HOUR), [1, 2], [0, 5], [0, 5]),
        (int, bl.value(0, **HOUR), 7, 0, 0),
    ],
)
def test_times_are_of_entries_that_are_there_and_0_is_none(
    tmp_path: Path, kind: Any, declared: Any, value: Any, ends: Any, left: Any
) -> None:
    assert repr(of_rows(tmp_path, kind, declared, value, ends)) == repr(left)


@pytest.mark.parametrize(
    ("kind", "declared", "value", "ends"),
    [
        (dict[str, int], bl.map(**HOUR), [("a", 1)], [("a", -1)]),
        (dict[str | None, int], bl.map(**HOUR), [{"key": "a", "value": 1}], [{"key": "a", "value": -1}]),
        (list[int], bl.list(**HOUR), [1], [-1]),
        (int, bl.value(0, **HOUR), 1, -1),
    ],
)
def test_times_before_1970_are_refused(tmp_path: Path, kind: Any, declared: Any, value: Any, ends: Any) -> None:
    assert "'bedload_ttl_v' has times before 1970" in of_rows(tmp_path, kind, declared, value, ends)


class Lasting(bl.VectorOperator):
    n: int = bl.value(3, **HOUR)
    last: float | None = bl.value(**HOUR)

    def process(self, batch: Any, state: Any, ctx: Any) -> Any: ...


def test_of_columns_what_has_its_default_has_no_time_and_what_has_not_starts_to_count(tmp_path: Path) -> None:
    """The table of such a state has null, and is an initial state as it is."""
    form = InputFormat(as_schema("car long", "input"), "car", 8)
    starts = starts_of_columns(an_operator(Lasting, "car long", "1 day").apply(form).deployment.state_columns)
    ends = pa.array([None, None, 9], pa.int64())
    given = {
        "n": pa.array([3, 4, 5], pa.int64()),
        "last": pa.array([None, 1.5, None], pa.float64()),
        "bedload_ttl_n": ends,
        "bedload_ttl_last": ends,
        "bedload_ttl": pa.array([1, 2, 0], pa.int64()),
    }
    found = becomes(tmp_path, starts, given)
    assert (found["bedload_ttl_n"], found["bedload_ttl_last"]) == ([None, 0, 9], [None, 0, 9])
    assert found["bedload_ttl"] == [1, 2, 0]
    given["bedload_ttl"] = ends
    assert "'bedload_ttl' is null for 2 of 3 keys" in becomes(tmp_path, starts, given)
