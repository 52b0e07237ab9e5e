"""The operator harness: epochs, state, keys, and what it refuses."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from bedload import state as bl
from bedload.core.errors import DefinitionError, EpochError, KeyColumnError, NullKey, SchemaError
from bedload.testing import OperatorHarness
from bedload.worker.operator import Context, Operator
from bedload.worker.rows import Rows

OUT = pa.schema([("car", pa.string()), ("n", pa.int64())])


class Count(Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        self.n += len(rows)
        return key, self.n


def cars(*names: str) -> list[dict[str, Any]]:
    return [{"car": name, "speed": 1.0} for name in names]


@pytest.fixture
def harness() -> OperatorHarness:
    return OperatorHarness(Count, schema=OUT, key="car")


def test_an_epoch_is_fed_and_committed(harness: OperatorHarness) -> None:
    assert harness.run_epoch(cars("a", "a"), cars("b")) == [{"car": "a", "n": 2}, {"car": "b", "n": 1}]
    assert harness.state("a") == {"n": 2}
    assert harness.snapshot() == {"a": {"n": 2}, "b": {"n": 1}}


def test_the_time_of_an_epoch_is_what_the_test_says() -> None:
    class Clocked(Operator):
        last: int = bl.value(0)

        def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
            self.last = ctx.now - ctx.watermark

    harness = OperatorHarness(Clocked, schema={"k": pa.string()}, key="k")
    harness.now, harness.watermark = 1_000, 400
    harness.run_epoch([{"k": "a"}])
    assert harness.state("a") == {"last": 600}


def test_reads_within_an_epoch_see_the_last_commit(harness: OperatorHarness) -> None:
    harness.run_epoch(cars("a"))
    harness.feed(cars("a", "b"))
    assert harness.state("a") == {"n": 1}
    assert harness.state("b") is None


def test_an_aborted_epoch_leaves_nothing_and_is_run_again_under_its_number(harness: OperatorHarness) -> None:
    harness.run_epoch(cars("a"))
    harness.feed(cars("a"))
    assert harness.current_epoch == 1
    harness.abort()
    harness.feed(cars("a"))
    assert harness.current_epoch == 1
    harness.commit()
    assert harness.state("a") == {"n": 2}


def test_a_block_that_raises_rolls_back(harness: OperatorHarness) -> None:
    def block() -> None:
        with harness.epoch() as epoch:
            epoch.feed(cars("a"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        block()
    assert harness.snapshot() == {}


def test_changes_are_what_a_backup_would_write(harness: OperatorHarness) -> None:
    harness.run_epoch(cars("a"))
    harness.feed(cars("a", "b"))
    (old,) = [change for change in harness.changes() if "a" in change.entries]
    (new,) = [change for change in harness.changes() if "b" in change.entries]
    assert old.entries["a"] == {"n": 2}
    assert "a" not in old.created
    assert new.created == {"b"}


def test_rows_may_be_a_table_and_keys_may_be_composite() -> None:
    harness = OperatorHarness(Count, schema={"key": pa.list_(pa.string()), "n": pa.int64()}, key=["car", "day"])
    table = pa.table({"car": ["a", "a", "a"], "day": [1, 1, 2]})
    with pytest.raises(Exception, match="key"):
        harness.feed(table)
    harness = OperatorHarness(Silent, schema={"n": pa.int64()}, key=["car", "day"])
    harness.run_epoch(table)
    assert harness.state(("a", 1)) == {"n": 2}
    assert harness.state(("a", 2)) == {"n": 1}


class Silent(Count):
    def process(self, key: Any, rows: Rows, ctx: Context) -> None:
        self.n += len(rows)


def test_an_epoch_without_rows_can_be_run_once_the_columns_are_known() -> None:
    harness = OperatorHarness(Count, schema=OUT, key="car", input={"car": pa.string()})
    assert harness.run_epoch() == []
    assert harness.run_epoch([]) == []
    assert harness.current_epoch == 1


def test_columns_of_no_rows_are_not_known(harness: OperatorHarness) -> None:
    with pytest.raises(SchemaError, match="input="):
        harness.feed([])


def test_feeding_after_the_seal_is_refused(harness: OperatorHarness) -> None:
    harness.feed(cars("a"))
    harness.seal()
    with pytest.raises(EpochError, match="sealed"):
        harness.feed(cars("a"))


@pytest.mark.parametrize("call", ["seal", "commit", "abort", "changes"])
def test_without_an_epoch_there_is_nothing_to_end(harness: OperatorHarness, call: str) -> None:
    with pytest.raises(EpochError, match="no epoch is open"):
        getattr(harness, call)()


def test_null_keys_are_refused(harness: OperatorHarness) -> None:
    with pytest.raises(NullKey, match="car"):
        harness.feed([{"car": "a"}, {"car": None}])


def test_definitions_are_checked_as_on_spark() -> None:
    with pytest.raises(KeyColumnError, match="color"):
        OperatorHarness(Count, schema=OUT, key="color", input={"car": pa.string()})
    with pytest.raises(SchemaError, match=r"schema='car' is not a DDL string .*: the type of column 'car' is missing"):
        OperatorHarness(Count, schema="car", key="car")
    with pytest.raises(SchemaError, match=r"input='car strng' is not a DDL string"):
        OperatorHarness(Count, schema=OUT, key="car", input="car strng")
    with pytest.raises(SchemaError, match="no columns"):
        OperatorHarness(Count, schema={}, key="car")
    with pytest.raises(DefinitionError, match="key groups"):
        OperatorHarness(Count, schema=OUT, key="car", key_groups=0)
    with pytest.raises(DefinitionError, match="not a subclass"):
        OperatorHarness(int, schema=OUT, key="car")  # type: ignore[arg-type]


def test_the_limits_are_printed(harness: OperatorHarness) -> None:
    assert "limits: " in repr(harness)
    assert "no retries" in repr(harness)
