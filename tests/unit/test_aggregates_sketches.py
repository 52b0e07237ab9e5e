"""Approximate aggregates on a table: results and their errors, aborts, partial rows, and what is refused."""

from __future__ import annotations

import datetime
import io
import math
import pickle
import sys
from decimal import Decimal
from typing import Any

import datasketches
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bedload.core.errors import DataError, DefinitionError, SchemaError
from bedload.core.ids import Epoch, WorkerId
from bedload.operators import aggregates as agg
from bedload.operators.aggregates import sketches
from bedload.operators.aggregates.kll_runs import sketch_of
from bedload.store.columns import ColumnTable
from bedload.worker.operator import Context

CTX = Context("Trip", WorkerId(0), Epoch(0))
NAN = math.nan
UTC = datetime.UTC
ALL = {"n": agg.approx_distinct("x"), "q": agg.approx_quantile("x", 0.5), "top": agg.approx_top_k("x")}


class Running:
    """Aggregates and their table, fed with values of x for keys."""

    def __init__(self, kind: pa.DataType, **functions: agg.Function) -> None:
        self.schema = pa.schema([("key", pa.string()), ("x", kind)])
        self.logic = agg.Aggregates(functions, self.schema, [0], ["key"])
        self.table = ColumnTable([pa.string()], self.logic.columns, 1)

    def batch(self, keys: Any, values: Any) -> pa.RecordBatch:
        values = values if isinstance(values, pa.Array) else pa.array(values, self.schema.field("x").type)
        return pa.RecordBatch.from_arrays([pa.array(keys, pa.string()), values], schema=self.schema)

    def partial(self, keys: Any, values: Any) -> pa.RecordBatch:
        made = self.logic.partial(self.batch(keys, values), at_most=1.0)
        assert made is not None
        return made

    def take(self, keys: Any, values: Any) -> Running:
        batch = self.batch(keys, values)
        self.logic.update(self.table, self.locate(batch), batch, CTX)
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
        found.validate(full=True)
        return {row["key"]: tuple(row.values())[1:] for row in found.to_pylist()}

    def of(self, *values: Any) -> tuple[Any, ...]:
        """The results of one key with these values."""
        return self.take(["a"] * len(values), list(values)).results()["a"]

    def state(self) -> dict[str, Any]:
        """The committed state columns of the key a."""
        slots = self.table.find([pa.array(["a"])], np.zeros(1, np.int16))
        row: dict[str, Any] = self.table.committed(slots).to_pylist()[0]
        return row


# --- results ---


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [1, -1, 0]),
        (pa.int64(), [2**63 - 1, -(2**63), 0]),
        (pa.float32(), [0.5, NAN, math.inf]),
        (pa.float64(), [0.1, NAN, -math.inf]),
        (pa.bool_(), [True, False]),
        (pa.string(), ["", "é\U0001f697", "a\x00b"]),
        (pa.large_string(), ["", "b"]),
        (pa.date32(), [datetime.date(1, 1, 1), datetime.date(2024, 2, 29)]),
        (pa.timestamp("us"), [datetime.datetime(2024, 1, 1, 1, 2, 3, 456789), datetime.datetime(1960, 1, 1)]),
        (pa.timestamp("us", "UTC"), [datetime.datetime(2024, 1, 1, tzinfo=UTC)]),
        (pa.time64("us"), [datetime.time(1, 2, 3, 4), datetime.time(0)]),
        (pa.decimal128(5, 2), [Decimal("1.50"), Decimal("-0.01")]),
        (pa.decimal128(38, 10), [Decimal("12345678901234567890.0000000001"), Decimal("0E-10")]),
    ],
    ids=str,
)
def test_a_few_values_of_every_type_are_counted_exactly_and_come_back_as_they_were(kind, values):
    rows = [value for times, value in enumerate(values, 1) for _ in range(times)] + [None]
    n, top = Running(kind, n=agg.approx_distinct("x"), top=agg.approx_top_k("x")).of(*rows)
    assert n == len(values)
    assert [pair["count"] for pair in top] == list(range(len(values), 0, -1))
    for found, value in zip([pair["item"] for pair in top], values[::-1], strict=True):
        assert found == value or (found != found and value != value)


@pytest.mark.parametrize(
    ("kind", "values"),
    [(pa.binary(), [b"", b"\xff", b"\xff", None]), (pa.duration("us"), [1, 2, 2, None])],
    ids=str,
)
def test_binary_and_intervals_can_be_counted(kind, values):
    assert Running(kind, n=agg.approx_distinct("x")).of(*values) == (2,)


def test_zero_is_zero_whatever_its_sign_and_nan_is_one_value():
    both = {"n": agg.approx_distinct("x"), "top": agg.approx_top_k("x")}
    other_nan = np.frombuffer(np.uint64(0xFFF8_0000_0000_0001).tobytes())[0]
    n, top = Running(pa.float64(), **both).of(0.0, -0.0, 0.0, NAN, float(other_nan))
    assert n == 2
    assert str(top) == "[{'item': 0.0, 'count': 3}, {'item': nan, 'count': 2}]"


def test_a_key_with_nothing_but_nulls_has_no_values():
    assert Running(pa.int32(), **ALL).of(None, None) == (0, None, [])
    assert Running(pa.float64(), q=agg.approx_quantile("x", [0.1, 0.9])).of(None, NAN) == (None,)


def test_quantiles_of_a_few_values_are_exact():
    values = [5.0, 1.0, 4.0, None, 2.0, 3.0, NAN]
    function = agg.approx_quantile("x", [0.0, 0.2, 0.21, 0.5, 1.0])
    assert Running(pa.float64(), q=function).of(*values) == ([1.0, 1.0, 2.0, 3.0, 5.0],)
    assert Running(pa.float64(), q=agg.approx_quantile("x", 0.5)).of(*values) == (3.0,)
    assert Running(pa.int16(), q=agg.approx_quantile("x", 1)).of(3, 7) == (7.0,)
    assert Running(pa.decimal128(5, 2), q=agg.approx_quantile("x", 0)).of(Decimal("1.25"), Decimal(3)) == (1.25,)


def test_one_value_of_many_equal_counts_is_chosen_by_its_text():
    assert Running(pa.string(), top=agg.approx_top_k("x", 2)).of(*"dbca")[0] == [
        {"item": "a", "count": 1},
        {"item": "b", "count": 1},
    ]


@pytest.mark.parametrize("ahead", [False, True], ids=["rows", "partial rows"])
@pytest.mark.parametrize("rse", [0.2, 0.05, 0.01])
def test_many_different_values_are_counted_within_the_error(rse, ahead):
    running = Running(pa.int64(), n=agg.approx_distinct("x", rse=rse))
    for begin in range(0, 100_000, 12_500):
        keys, values = ["a"] * 20_000, pa.array(np.arange(begin, begin + 20_000))
        if ahead:
            running.take_partial(running.partial(keys, values))
        else:
            running.take(keys, values)
    # Hashes are fixed, so this never fails by chance.
    assert running.results()["a"][0] == pytest.approx(107_500, rel=3 * rse)


@pytest.mark.parametrize("ahead", [False, True], ids=["rows", "partial rows"])
def test_quantiles_of_many_values_are_within_the_error(ahead):
    ranks = [0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0]
    running = Running(pa.float64(), q=agg.approx_quantile("x", ranks, rank_error=0.01))
    values = np.random.default_rng(1).lognormal(size=80_000)
    for part in np.split(values, 8):
        if ahead:
            running.take_partial(running.partial(["a"] * len(part), pa.array(part)))
        else:
            running.take(["a"] * len(part), pa.array(part))
    (found,) = running.results()["a"]
    values.sort()
    assert (found[0], found[-1]) == (values[0], values[-1])
    # Twice the error, which is one of 99 %: beyond five standard deviations.
    assert np.searchsorted(values, found) / len(values) == pytest.approx(ranks, abs=0.02)


@pytest.mark.parametrize("ahead", [False, True], ids=["rows", "partial rows"])
def test_frequent_values_among_many_rare_ones_are_found_within_the_error(ahead):
    tracked, rows = 64, 60_000
    running = Running(pa.int64(), top=agg.approx_top_k("x", 3, max_items_tracked=tracked))
    rng = np.random.default_rng(2)
    values = rng.integers(1000, 2**60, rows)
    for item, share in ((7, 0.30), (8, 0.20), (9, 0.15)):
        values[rng.random(rows) < share] = item
    for part in np.split(values, 6):
        if ahead:
            running.take_partial(running.partial(["a"] * len(part), pa.array(part)))
        else:
            running.take(["a"] * len(part), pa.array(part))
    (found,) = running.results()["a"]
    assert [pair["item"] for pair in found] == [7, 8, 9]
    for pair in found:
        assert pair["count"] == pytest.approx(np.sum(values == pair["item"]), abs=2.7 / tracked * rows)


def test_values_that_are_no_more_frequent_than_the_error_are_not_said_to_be():
    running = Running(pa.int64(), top=agg.approx_top_k("x", 3, max_items_tracked=8))
    assert running.take(["a"] * 5000, pa.array(np.arange(5000))).results()["a"] == ([],)


def test_a_string_that_is_not_utf_8_is_named_by_its_column():
    broken = pa.array([b"\xff"]).view(pa.string())
    with pytest.raises(DataError, match="column 'x' holds a string that is not valid UTF-8"):
        Running(pa.string(), top=agg.approx_top_k("x")).take(["a"], broken)
    assert Running(pa.string(), n=agg.approx_distinct("x")).take(["a"], broken).results()["a"] == (1,)


# --- state ---


def test_an_abort_puts_the_sketches_back_and_leaves_none_for_new_keys():
    running = Running(pa.int64(), **ALL)
    running.take(["a"] * 500, np.arange(500)).table.commit()
    committed, results = running.state(), running.results()
    running.take(["a"] * 500 + ["b"], np.arange(501) + 1000)
    running.take_partial(running.partial(["a"] * 500 + ["c"], np.arange(501) + 2000))
    assert running.results() != results
    assert running.state() == committed
    running.table.abort()
    assert running.results() == results
    assert running.state() == committed
    running.table.check()


def test_sketches_move_with_their_keys_and_go_on_elsewhere():
    running = Running(pa.int64(), **ALL)
    running.take(["a"] * 300 + ["b"], [*range(300), None]).table.commit()
    moved = Running(pa.int64(), **ALL)
    extracted = running.table.extract(running.table.committed_slots())
    moved.table.put(extracted.columns[:1], np.zeros(2, np.int16), extracted)
    assert moved.results() == running.results()
    assert moved.take(["b"], [3]).results()["b"] == (1, 3.0, [{"item": 3, "count": 1}])


def test_state_is_written_to_parquet_and_opened_by_the_library():
    running = Running(pa.float64(), **ALL)
    running.take(["a"] * 5000, np.arange(5000.0)).table.commit()
    file = io.BytesIO()
    pq.write_table(pa.Table.from_batches([running.table.extract(running.table.committed_slots())]), file)
    (row,) = pq.read_table(file).to_pylist()
    assert list(row) == ["key0", "hll(x, 9)", "kll(x, 269)", "frequent_items(x, 9)"]
    assert datasketches.hll_sketch.deserialize(row["hll(x, 9)"]).get_estimate() == pytest.approx(5000, rel=0.15)
    assert datasketches.kll_doubles_sketch.deserialize(row["kll(x, 269)"]).n == 5000
    assert datasketches.frequent_strings_sketch.deserialize(row["frequent_items(x, 9)"]).total_weight == 5000


@pytest.mark.parametrize("distinct", [1, 7, 30, 100, 5000])
def test_values_that_were_met_before_do_not_change_a_distinct_count(distinct):
    running = Running(pa.int64(), n=agg.approx_distinct("x"))
    running.take(["a"] * distinct, np.arange(distinct)).table.commit()
    running.take(["a"] * distinct, np.arange(distinct)[::-1])
    assert not len(running.table.changed())
    running.take(["a"] * 5000, np.arange(5000) + distinct)
    assert len(running.table.changed()) == 1


def test_the_first_sketch_of_a_key_does_not_depend_on_chance():
    # A feeder that is run again must send the same bytes, or the worker refuses them.
    rng = np.random.default_rng(3)
    keys, values = rng.choice(list("abc"), 9000), pa.array(rng.standard_normal(9000))
    running = Running(pa.float64(), **ALL)
    first = running.partial(keys, values).serialize()
    for _ in range(5):
        assert running.partial(keys, values).serialize() == first


def test_aggregates_that_can_share_a_sketch_do():
    logic = Running(
        pa.float64(),
        low=agg.approx_quantile("x", 0.1),
        high=agg.approx_quantile("x", [0.9, 0.99]),
        fine=agg.approx_quantile("x", 0.5, rank_error=0.005),
        one=agg.approx_top_k("x", 1),
        five=agg.approx_top_k("x", 5),
        n=agg.approx_distinct("x"),
    ).logic
    assert [spec.name for spec in logic.columns] == [
        "kll(x, 269)",
        "kll(x, 547)",
        "frequent_items(x, 9)",
        "hll(x, 9)",
    ]
    assert all(spec.type == pa.binary() for spec in logic.columns)
    assert logic.mergeable


def test_memory_counts_the_bytes_of_sketches_and_of_their_before_images():
    running = Running(pa.float64(), **ALL)
    table = running.table
    running.take(["a"] * 5000, [None] * 5000).table.commit()
    empty = table.nbytes
    running.take(["a"] * 5000, np.arange(5000.0)).table.commit()
    old = sum(map(sys.getsizeof, running.state().values()))
    assert old > 5000
    assert table.nbytes - empty == old
    running.take(["a"] * 5000, np.arange(5000.0) + 9000)
    new = sum(sys.getsizeof(table.values(spec.name)[table.index.all_slots()[0]]) for spec in table.columns)
    places = table.nbytes - empty - old - new
    assert 0 <= places < old
    table.abort()
    assert table.nbytes - empty == old


def test_logic_with_sketches_pickles():
    logic = pickle.loads(pickle.dumps(Running(pa.int64(), **ALL).logic))
    running = Running(pa.int64(), **ALL)
    running.logic = logic
    assert running.of(3, 3) == (1, 3.0, [{"item": 3, "count": 2}])


# --- a sketch of sorted runs ---


@pytest.mark.parametrize("k", [8, 50, 269])
@pytest.mark.parametrize("more", [1, 2, 77, 1000, 54_321])
def test_a_sketch_of_runs_is_one_that_the_library_reads_and_goes_on_with(k, more):
    count = k + more
    values = np.random.default_rng(count).permutation(count).astype(float)
    sketch = datasketches.kll_doubles_sketch.deserialize(sketch_of(values, k))
    assert (sketch.n, sketch.k, sketch.get_min_value(), sketch.get_max_value()) == (count, k, 0.0, count - 1.0)
    ranks = [sketch.get_rank(float(value), True) for value in range(0, count, 1 + count // 100)]
    assert ranks == pytest.approx([(value + 1) / count for value in range(0, count, 1 + count // 100)], abs=1 / k)
    # The library trusts the weights: had they another sum, the last rank were not 1.
    assert sketch.get_rank(count - 1.0, True) == 1.0
    sketch.update(np.arange(count, 3 * count, dtype=float))
    again = datasketches.kll_doubles_sketch.deserialize(sketch.serialize())
    assert again.n == 3 * count
    assert again.get_rank(3 * count - 1.0, True) == 1.0


# --- what is refused, and types ---


def test_a_missing_package_is_said_when_the_query_is_defined(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketches", None)
    sketches.library.cache_clear()
    try:
        for function in ALL.values():
            with pytest.raises(DefinitionError, match=r"pip install bedload\[sketches\]"):
                Running(pa.int64(), out=function)
    finally:
        sketches.library.cache_clear()


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (agg.approx_quantile("x", 0.5), pa.string()),
        (agg.approx_quantile("x", 0.5), pa.date32()),
        (agg.approx_quantile("x", 0.5), pa.bool_()),
        (agg.approx_distinct("x"), pa.list_(pa.int64())),
        (agg.approx_top_k("x"), pa.list_(pa.int64())),
        (agg.approx_top_k("x"), pa.binary()),
        (agg.approx_top_k("x"), pa.duration("us")),
    ],
    ids=str,
)
def test_a_type_that_the_function_does_not_take_is_refused_by_name(function, kind):
    with pytest.raises(SchemaError, match=r"aggregate out=.*column 'x' is a .*Cast it"):
        Running(kind, out=function)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: agg.approx_distinct("x", rse=0),
        lambda: agg.approx_distinct("x", rse=1.5),
        lambda: agg.approx_distinct("x", rse=0.0001),
        lambda: agg.approx_distinct("x", rse="0.1"),  # type: ignore[arg-type]
        lambda: agg.approx_distinct(3),  # type: ignore[arg-type]
        lambda: agg.approx_quantile("x", 1.1),
        lambda: agg.approx_quantile("x", NAN),
        lambda: agg.approx_quantile("x", []),
        lambda: agg.approx_quantile("x", [0.5, -0.1]),
        lambda: agg.approx_quantile("x", "0.5"),  # type: ignore[arg-type]
        lambda: agg.approx_quantile("x", True),
        lambda: agg.approx_quantile("x", 0.5, rank_error=0),
        lambda: agg.approx_quantile("x", 0.5, rank_error=0.00001),
        lambda: agg.approx_top_k("x", 0),
        lambda: agg.approx_top_k("x", 2.5),  # type: ignore[arg-type]
        lambda: agg.approx_top_k("x", 300),
        lambda: agg.approx_top_k("x", max_items_tracked=2_000_000),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_is_written(wrong):
    with pytest.raises(DefinitionError, match=r"bl\.agg\.approx_"):
        wrong()


def test_descriptions_of_the_same_meaning_are_equal_and_read_as_calls():
    assert agg.approx_quantile("x", [0.5, 1]) == agg.approx_quantile("x", (0.5, 1.0))
    assert agg.approx_quantile("x", [0.5]) != agg.approx_quantile("x", 0.5)
    assert repr(agg.approx_quantile("x", [0.5])) == "approx_quantile('x', q=(0.5,), rank_error=0.01)"
    assert repr(agg.approx_top_k("x", 3)) == "approx_top_k('x', k=3, max_items_tracked=256)"


def test_the_sizes_of_sketches_follow_from_the_errors():
    assert [sketches.lg_k_for(rse) for rse in (0.9, 0.05, 0.01, 0.001)] == [4, 9, 14, 21]
    assert [sketches.k_for(error) for error in (0.5, 0.0133, 0.01)] == [8, 200, 269]
    error = datasketches.kll_doubles_sketch.get_normalized_rank_error
    assert error(sketches.k_for(0.0001), False) <= 0.0001
