"""Aggregates on a table: edge values, what is shared, partial rows, and errors in the data."""

from __future__ import annotations

import datetime
import math
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bedload.core.errors import DataError, DefinitionError
from bedload.core.ids import Epoch, WorkerId
from bedload.operators import aggregates as agg
from bedload.store.columns import ColumnTable
from bedload.worker.operator import Context

CTX = Context("Trip", WorkerId(0), Epoch(0))
NAN = math.nan


class Running:
    """Aggregates and their table, fed with rows of (key, x, by)."""

    def __init__(self, kind: pa.DataType, by: pa.DataType | None = None, **functions: agg.Function) -> None:
        fields = [("key", pa.string()), ("x", kind)] + ([("by", by)] if by is not None else [])
        self.schema = pa.schema(fields)
        self.logic = agg.Aggregates(functions, self.schema, [0], ["key"])
        self.table = ColumnTable([pa.string()], self.logic.columns, 1)

    def batch(self, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        columns = [pa.array(list(c), type=t) for c, t in zip(zip(*rows, strict=True), self.schema.types, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def take(self, *rows: tuple[Any, ...]) -> Running:
        batch = self.batch(list(rows))
        assert self.logic.update(self.table, self.locate(batch), batch, CTX) is None
        return self

    def take_partial(self, partial: pa.RecordBatch) -> Running:
        self.logic.update_partial(self.table, self.locate(partial), partial, CTX)
        return self

    def locate(self, batch: pa.RecordBatch) -> Any:
        return self.table.locate([batch.column(0)], np.zeros(batch.num_rows, np.int16))

    def results(self) -> dict[str, tuple[Any, ...]]:
        found = self.logic.result(self.table, self.table.index.all_slots(), CTX)
        assert found is not None
        assert found.schema == self.logic.output
        return {row["key"]: tuple(row.values())[1:] for row in found.to_pylist()}

    def of(self, *values: Any) -> tuple[Any, ...]:
        """The results of one key with these values."""
        return self.take(*(("a", value) for value in values)).results()["a"]


# --- edge values ---


def test_variance_of_one_row_is_null_for_samples_and_zero_for_populations():
    spread = {"a": agg.var("x"), "b": agg.std("x"), "c": agg.var_pop("x"), "d": agg.std_pop("x")}
    assert Running(pa.float64(), **spread).of(7.5) == (None, None, 0.0, 0.0)
    assert Running(pa.float64(), **spread).of(None) == (None, None, None, None)
    assert Running(pa.float64(), **spread).of(1.0, 5.0) == (8.0, math.sqrt(8.0), 4.0, 2.0)


def test_variance_keeps_its_digits_far_from_zero():
    (found,) = Running(pa.float64(), v=agg.var_pop("x")).of(*(1e9 + d for d in (4.0, 7.0, 13.0, 16.0)))
    assert found == pytest.approx(22.5, rel=1e-9)


def test_nan_is_larger_than_any_number():
    both = {"low": agg.min("x"), "high": agg.max("x")}
    assert Running(pa.float64(), **both).of(NAN, 1.0, math.inf)[0] == 1.0
    assert math.isnan(Running(pa.float64(), **both).of(1.0, NAN, math.inf)[1])
    assert math.isnan(Running(pa.float64(), **both).of(NAN, NAN)[0])
    best = Running(pa.string(), pa.float64(), low=agg.arg_min("x", "by"), high=agg.arg_max("x", "by"))
    assert best.take(("a", "nan", NAN), ("a", "one", 1.0), ("a", "inf", math.inf)).results()["a"] == ("one", "nan")


def test_nulls_count_for_nothing():
    functions = {"n": agg.count(), "m": agg.count("x"), "s": agg.sum("x"), "a": agg.mean("x"), "l": agg.min("x")}
    assert Running(pa.int32(), **functions).of(None, None) == (2, 0, None, None, None)
    assert Running(pa.int32(), **functions).of(None, 3, None) == (3, 1, 3, 3.0, 3)


def test_first_and_last_take_nulls_unless_told_not_to():
    ends = {
        "first": agg.first("x"),
        "first_value": agg.first("x", ignore_nulls=True),
        "last": agg.last("x"),
        "last_value": agg.last("x", ignore_nulls=True),
    }
    for kind, one, two in ((pa.int64(), 1, 2), (pa.string(), "b", "a"), (pa.bool_(), False, True)):
        assert Running(kind, **ends).of(None, one, two, None) == (None, one, None, two)
        running = Running(kind, **ends)
        running.take(("a", one))
        assert running.take(("a", two)).results()["a"] == (one, one, two, two)


def test_any_and_all_are_null_without_values():
    both = {"any": agg.any("x"), "all": agg.all("x")}
    assert Running(pa.bool_(), **both).of(None) == (None, None)
    assert Running(pa.bool_(), **both).of(None, False) == (False, False)
    assert Running(pa.bool_(), **both).of(True, None, False) == (True, False)
    assert Running(pa.bool_(), **both).of(True, None) == (True, True)


def test_of_rows_that_draw_the_last_one_is_taken():
    for kind, tie in ((pa.int64(), 5), (pa.string(), "z"), (pa.decimal128(5, 1), Decimal("1.5"))):
        running = Running(pa.int64(), kind, low=agg.arg_min("x", "by"), high=agg.arg_max("x", "by"))
        assert running.take(("a", 1, tie), ("a", 2, tie)).results()["a"] == (2, 2)
        assert running.take(("a", 3, tie), ("a", 4, None)).results()["a"] == (3, 3)
        assert running.take(("a", None, tie)).results()["a"] == (None, None)


def test_strings_are_ordered_by_their_bytes():
    assert Running(pa.string(), low=agg.min("x"), high=agg.max("x")).of("é", "z", "Z", "") == ("", "é")


def test_times_come_back_as_they_were():
    early = datetime.datetime(1900, 1, 1, tzinfo=datetime.UTC)
    late = datetime.datetime(2262, 1, 1, 0, 0, 0, 7, tzinfo=datetime.UTC)
    functions = {"low": agg.min("x"), "high": agg.max("x"), "last": agg.last("x")}
    assert Running(pa.timestamp("us", "UTC"), **functions).of(late, early, None) == (early, late, None)
    day = datetime.date(1, 1, 1)
    assert Running(pa.date32(), **functions).of(day) == (day, day, day)


def test_collected_values_stop_at_the_limit_in_order_of_arrival():
    both = {"all": agg.collect_list("x", 3), "different": agg.collect_set("x", 3)}
    running = Running(pa.string(), **both)
    assert running.of(None) == ([], [])
    assert running.of("b", None, "b") == (["b", "b"], ["b"])
    assert running.of("a", "b", "c", "d") == (["b", "b", "a"], ["b", "a", "c"])
    assert running.of("e") == (["b", "b", "a"], ["b", "a", "c"])
    assert len(Running(pa.float64(), s=agg.collect_set("x", 9)).of(NAN, NAN, 0.0, -0.0)[0]) == 2


def test_means_of_decimals_are_rounded_half_up():
    mean = {"m": agg.mean("x")}
    assert Running(pa.decimal128(10, 2), **mean).of(Decimal("0.01"), Decimal("0"), None) == (Decimal("0.005000"),)
    thirds = Running(pa.decimal128(10, 0), **mean).of(Decimal(2), Decimal(0), Decimal(0))
    assert thirds == (Decimal("0.6667"),)
    assert Running(pa.decimal128(38, 37), **mean).of(Decimal("0." + "3" * 37)) == (Decimal("0." + "3" * 37 + "0"),)


def test_decimals_are_added_without_rounding():
    large = Decimal("9" * 28)
    assert Running(pa.decimal128(28, 0), s=agg.sum("x")).of(*[large] * 3) == (Decimal(3 * (10**28 - 1)),)
    assert Running(pa.decimal128(38, 0), s=agg.sum("x")).of(Decimal(10**37), Decimal(1)) == (Decimal(10**37 + 1),)


# --- errors in the data ---


@pytest.mark.parametrize(
    ("kind", "largest"), [(pa.int64(), 2**63 - 1), (pa.decimal128(38, 0), Decimal("9" * 38))], ids=["bigint", "decimal"]
)
def test_a_sum_that_does_not_fit_names_aggregate_and_key(kind, largest):
    running = Running(kind, n=agg.count(), total=agg.sum("x")).take(("b", largest), ("a", largest))
    with pytest.raises(DataError, match=r"operator Trip, key 'a': .*total=sum\('x'\).*ARITHMETIC_OVERFLOW.*cast\("):
        running.take(("b", largest - largest), ("a", largest - largest), ("a", largest))


def test_a_sum_of_a_batch_that_does_not_fit_is_no_smaller_number():
    with pytest.raises(DataError, match="ARITHMETIC_OVERFLOW"):
        Running(pa.decimal128(38, 0), s=agg.sum("x")).of(*[Decimal("9" * 38)] * 10)
    with pytest.raises(DataError, match="ARITHMETIC_OVERFLOW"):
        Running(pa.int64(), s=agg.sum("x")).of(-(2**63), -1)


def test_the_mean_of_large_bigints_does_not_overflow():
    assert Running(pa.int64(), m=agg.mean("x")).of(2**63 - 1, 2**63 - 1) == (float(2**63),)


def test_a_decimal_mean_that_does_not_fit_its_type_is_an_error():
    with pytest.raises(DataError, match=r"m=mean\('x'\).*does not fit decimal128\(38, 4\)"):
        Running(pa.decimal128(38, 0), m=agg.mean("x")).of(Decimal("9" * 38))


def test_a_string_that_is_no_utf8_is_an_error_that_names_the_column():
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")]
    )
    running = Running(pa.string(), m=agg.max("x"))
    batch = pa.RecordBatch.from_arrays([pa.array(["a"]), broken], schema=running.schema)
    with pytest.raises(DataError, match="column 'x' holds a string that is not valid UTF-8"):
        running.logic.update(running.table, running.locate(batch), batch, CTX)


# --- what is kept ---


def test_aggregates_of_one_column_share_their_state():
    functions = {"m": agg.mean("x"), "s": agg.sum("x"), "n": agg.count("x"), "v": agg.var("x"), "d": agg.std_pop("x")}
    running = Running(pa.float64(), **functions)
    assert [spec.name for spec in running.logic.columns] == ["sum(x)", "count(x)", "center(x)", "squares(x)"]
    assert running.of(1.0, None, 3.0) == (2.0, 4.0, 2, 2.0, 1.0)


def test_the_state_of_an_aggregate_does_not_depend_on_those_beside_it():
    functions = {
        "n": agg.count(),
        "m": agg.mean("x"),
        "s": agg.sum("x"),
        "v": agg.var("x"),
        "f": agg.first("x"),
        "a": agg.arg_max("x", "x"),
    }
    together = set(Running(pa.int64(), **functions).logic.columns)
    alone = {spec for name, f in functions.items() for spec in Running(pa.int64(), **{name: f}).logic.columns}
    assert together == alone


def test_numbers_are_kept_as_numbers():
    functions = {"n": agg.count(), "l": agg.min("x"), "f": agg.first("x"), "a": agg.arg_max("x", "x")}
    for kind in (pa.int8(), pa.float32(), pa.bool_(), pa.date32(), pa.timestamp("us"), pa.duration("us")):
        assert all(spec.fixed for spec in Running(kind, **functions).logic.columns)


def test_logic_that_was_pickled_goes_on_with_the_state():
    functions = {"n": agg.count(), "x": agg.max("x"), "s": agg.sum("x"), "l": agg.collect_list("x", 2)}
    running = Running(pa.decimal128(4, 1), **functions).take(("a", Decimal("1.5")))
    running.logic = pickle.loads(pickle.dumps(running.logic))
    assert running.of(Decimal(1)) == (2, Decimal("1.5"), Decimal("2.5"), [Decimal("1.5"), Decimal("1.0")])


def test_nothing_changed_means_no_output():
    running = Running(pa.int64(), n=agg.count())
    assert running.logic.result(running.table, np.empty(0, np.int64), CTX) is None


def _half(state: float, x: float) -> float:
    return (state + x) / 2


def test_a_reducer_takes_rows_in_order_and_leaves_out_nulls():
    running = Running(pa.int32(), pa.float64(), r=agg.reduce(["by"], init=1.0, update=_half))
    assert running.take(("a", 1, 3.0), ("b", 1, None), ("a", 1, None), ("a", 1, 6.0)).results() == {
        "a": (4.0,),
        "b": (1.0,),
    }


def test_a_reducer_may_keep_several_numbers_and_survives_pickling():
    weighted = agg.reduce(
        ["x", "by"],
        init=(0, 0.0, False),
        update=_weigh,
        result=_weighted,
    )
    running = Running(pa.int32(), pa.float64(), r=weighted).take(("a", 2, 1.5))
    running.logic = pickle.loads(pickle.dumps(running.logic))
    assert running.take(("a", 4, 1.0)).results()["a"] == (pytest.approx(7.0 / 6),)
    assert [spec.name for spec in running.logic.columns] == ["reduce(r).0", "reduce(r).1", "reduce(r).2"]


def _weigh(state: Any, x: Any, w: Any) -> Any:
    return state[0] + x, state[1] + x * w, True


def _weighted(state: Any) -> Any:
    return state[1] / state[0] if state[2] else 0.0


# --- partial rows ---

MERGEABLE = {"n": agg.count(), "m": agg.mean("x"), "l": agg.min("x"), "v": agg.var("x")}


def test_partial_rows_are_key_columns_then_state():
    running = Running(pa.int32(), **MERGEABLE)
    batch = running.batch([("a", 1), ("b", None), ("a", 3)])
    partial = running.logic.partial(batch, at_most=1.0)
    assert partial is not None
    assert partial.schema.names == ["key", "__p0", "__p1", "__p2", "__p3", "__p4", "__p5"]
    assert partial.schema == running.logic.partial_schema
    assert [spec.name for spec in running.logic.columns] == [
        "count()",
        "sum(x)",
        "min(x)",
        "count(x)",
        "center(x)",
        "squares(x)",
    ]
    assert partial.to_pylist() == [
        {"key": "a", "__p0": 2, "__p1": 4, "__p2": 1, "__p3": 2, "__p4": 2.0, "__p5": 2.0},
        {"key": "b", "__p0": 1, "__p1": None, "__p2": None, "__p3": 0, "__p4": 0.0, "__p5": 0.0},
    ]
    assert running.take_partial(partial).results() == {"a": (2, 2.0, 1, 2.0), "b": (1, None, None, None)}


def test_a_batch_with_hardly_a_key_twice_is_not_worth_it():
    running = Running(pa.int32(), **MERGEABLE)
    rows = [("a", 1), ("b", 1), ("c", 1), ("c", 1)]
    assert running.logic.partial(running.batch(rows)) is None
    assert running.logic.partial(running.batch(rows), at_most=0.75) is not None


def test_composite_keys_with_nulls_are_told_apart_in_partial_rows():
    schema = pa.schema([("a", pa.string()), ("b", pa.int32()), ("x", pa.int64())])
    logic = agg.Aggregates({"n": agg.count(), "s": agg.sum("x")}, schema, [0, 1], ["a", "b"])
    rows = [("p", 1), ("p", None), (None, 1), (None, None), ("p", 1), (None, None)]
    columns = [pa.array([a for a, _ in rows]), pa.array([b for _, b in rows], pa.int32()), pa.array(range(6))]
    partial = logic.partial(pa.RecordBatch.from_arrays(columns, schema=schema), at_most=1.0)
    assert partial is not None
    assert [tuple(row.values()) for row in partial.to_pylist()] == [
        ("p", 1, 2, 4),
        ("p", None, 1, 1),
        (None, 1, 1, 2),
        (None, None, 2, 8),
    ]


def test_moments_of_huge_numbers_are_merged_as_they_are():
    running = Running(pa.float64(), v=agg.var_pop("x"))
    partial = running.logic.partial(running.batch([("a", 1e200), ("a", 1e200)]))
    assert partial is not None
    assert running.take_partial(partial).results() == {"a": (0.0,)}


def test_a_batch_without_rows_changes_nothing():
    running = Running(
        pa.string(), pa.float64(), n=agg.count(), m=agg.max("x"), f=agg.last("x"), a=agg.arg_min("x", "by")
    )
    empty = running.batch([("a", "b", 1.0)]).slice(1)
    assert running.logic.update(running.table, running.locate(empty), empty, CTX) is None
    assert len(running.table.changed()) == 0


def test_what_depends_on_the_order_of_rows_is_not_computed_ahead():
    running = Running(pa.int64(), n=agg.count(), f=agg.first("x"), l=agg.collect_list("x", 2))
    assert not running.logic.mergeable
    with pytest.raises(DefinitionError, match=r"f=first\('x', ignore_nulls=False\), l=collect_list"):
        running.logic.partial(running.batch([("a", 1)]))


def test_a_reducer_is_computed_ahead_if_it_says_how_to_merge():
    total = agg.reduce("x", init=0, update=_add, merge=_add)
    running = Running(pa.int64(), r=total)
    assert running.logic.mergeable
    assert not Running(pa.int64(), r=agg.reduce("x", init=0, update=_add)).logic.mergeable
    partial = running.logic.partial(running.batch([("a", 1), ("a", 2), ("a", None)]))
    assert partial is not None
    assert running.take(("a", 10)).take_partial(partial).results()["a"] == (13,)


def _add(a: int, b: int) -> int:
    return a + b


def test_sums_that_overflow_when_they_are_merged_name_aggregate_and_key():
    running = Running(pa.int64(), total=agg.sum("x")).take(("a", 2**63 - 1))
    partial = running.logic.partial(running.batch([("a", 1), ("a", 0)]))
    assert partial is not None
    with pytest.raises(DataError, match=r"operator Trip, key 'a': .*total=sum\('x'\)"):
        running.take_partial(partial)
    with pytest.raises(DataError, match=r"^key 'a': .*total=sum\('x'\)"):
        running.logic.partial(running.batch([("a", 2**63 - 1), ("a", 1)]))
