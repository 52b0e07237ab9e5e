"""Every aggregate function against a plain one in Python, over random rows, epochs and aborts.

The oracle keeps all rows of each key and computes from scratch. It shares nothing with the code under test but the
names of the functions.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from bedload.core.ids import Epoch, WorkerId
from bedload.operators import aggregates as agg
from bedload.store.columns import ColumnTable
from bedload.worker.operator import Context as CallContext

CTX = CallContext("Trip", WorkerId(0), Epoch(0))
UTC = datetime.UTC
GROUPS = 3

# --- input ---

FLOATS = st.one_of(st.floats(-1e4, 1e4, width=32), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0]))
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**55), 2**55),
    pa.float32(): FLOATS,
    pa.float64(): FLOATS,
    pa.bool_(): st.booleans(),
    pa.string(): st.text("aéz\U0001f697", max_size=3),
    pa.large_string(): st.text("ab", max_size=2),
    pa.binary(): st.binary(max_size=2),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)),
    pa.duration("us"): st.timedeltas(datetime.timedelta(-1000), datetime.timedelta(1000)),
    pa.decimal128(5, 2): st.decimals(-999, 999, places=2),
    pa.decimal128(9, 3): st.decimals(-999999, 999999, places=3),
    pa.decimal128(18, 6): st.decimals(-(10**12) + 1, 10**12 - 1, places=6),
    pa.decimal128(30, 10): st.decimals(-(10**19), 10**19, places=10),
    pa.decimal128(38, 4): st.decimals(-(10**29), 10**29, places=4),
}
KINDS = list(VALUES)
BYS = [pa.int32(), pa.float64(), pa.bool_(), pa.string(), pa.decimal128(5, 2), pa.decimal128(38, 4), pa.timestamp("us")]

Row = tuple[str, Any, Any]


def is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


@st.composite
def histories(draw: st.DrawFn) -> tuple[pa.DataType, pa.DataType, list[tuple[bool, list[list[Row]]]]]:
    """Types of the columns x and by; then epochs: whether each commits, and its batches."""
    kind, by = draw(st.sampled_from(KINDS)), draw(st.sampled_from(BYS))
    row = st.tuples(st.sampled_from("abc"), st.none() | VALUES[kind], st.none() | VALUES[by])
    batches = st.lists(st.lists(row, min_size=1, max_size=12), max_size=3)
    return kind, by, draw(st.lists(st.tuples(st.booleans(), batches), min_size=1, max_size=4))


def functions_of(kind: pa.DataType) -> dict[str, agg.Function]:
    found = {"rows": agg.count(), "count": agg.count("x"), "min": agg.min("x"), "max": agg.max("x")}
    found |= {"first": agg.first("x"), "first_value": agg.first("x", ignore_nulls=True)}
    found |= {"last": agg.last("x"), "last_value": agg.last("x", ignore_nulls=True)}
    found |= {"arg_min": agg.arg_min("x", "by"), "arg_max": agg.arg_max("x", "by")}
    found |= {"collect_list": agg.collect_list("x", 3), "collect_set": agg.collect_set("x", 3)}
    return found | _by_type(kind)


def mergeable_functions_of(kind: pa.DataType) -> dict[str, agg.Function]:
    found = {"rows": agg.count(), "count": agg.count("x"), "min": agg.min("x"), "max": agg.max("x")}
    return found | _by_type(kind)


def _by_type(kind: pa.DataType) -> dict[str, agg.Function]:
    if pa.types.is_boolean(kind):
        return {"any": agg.any("x"), "all": agg.all("x")}
    if not is_number(kind):
        return {}
    found = {"sum": agg.sum("x"), "mean": agg.mean("x")}
    found |= {"var": agg.var("x"), "std": agg.std("x"), "var_pop": agg.var_pop("x"), "std_pop": agg.std_pop("x")}
    return found


# --- the oracle ---


def larger(a: Any, b: Any) -> bool:
    if isinstance(a, float):
        return (math.isnan(a) and not math.isnan(b)) or a > b
    return bool(a > b)


def extreme(values: list[Any], wins: Callable[[Any, Any], bool]) -> Any:
    best = values[0] if values else None
    for value in values[1:]:
        if wins(value, best):
            best = value
    return best


def arg(rows: list[tuple[Any, Any]], wins: Callable[[Any, Any], bool]) -> Any:
    best: tuple[Any, Any] | None = None
    for value, by in rows:
        if by is not None and (best is None or not wins(best[1], by)):
            best = (value, by)
    return None if best is None else best[0]


def different(values: list[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if not any(value == other or (value != value and other != other) for other in found):
            found.append(value)
    return found


def total(values: list[Any], kind: pa.DataType) -> Any:
    if not values:
        return None
    if pa.types.is_decimal(kind):
        return Decimal(sum(int(v.scaleb(kind.scale, Context(prec=60))) for v in values)).scaleb(
            -kind.scale, Context(prec=60)
        )
    return sum(values)


def mean(values: list[Any], kind: pa.DataType) -> Any:
    if not values:
        return None
    if pa.types.is_decimal(kind):
        exact = sum(map(Fraction, values), Fraction(0)) / len(values)
        context = Context(prec=90, rounding=ROUND_HALF_UP)
        places = Decimal(1).scaleb(-min(kind.scale + 4, 38))
        return context.divide(Decimal(exact.numerator), Decimal(exact.denominator)).quantize(places, context=context)
    return sum(map(float, values)) / len(values)


def variance(values: list[Any], degrees: int) -> float | None:
    if degrees <= 0:
        return None
    if any(not math.isfinite(value) for value in values):
        return math.nan
    exact = [Fraction(value) for value in values]
    center = sum(exact, Fraction(0)) / len(exact)
    return float(sum(((value - center) ** 2 for value in exact), Fraction(0)) / degrees)


def root(value: float | None) -> float | None:
    return None if value is None else math.sqrt(value)


def expected(rows: list[Row], kind: pa.DataType, names: list[str]) -> dict[str, Any]:
    every = [x for _, x, _ in rows]
    known = [x for x in every if x is not None]
    pairs = [(x, by) for _, x, by in rows]
    oracle: dict[str, Callable[[], Any]] = {
        "rows": lambda: len(rows),
        "count": lambda: len(known),
        "min": lambda: extreme(known, lambda a, b: larger(b, a)),
        "max": lambda: extreme(known, larger),
        "first": lambda: every[0],
        "first_value": lambda: known[0] if known else None,
        "last": lambda: every[-1],
        "last_value": lambda: known[-1] if known else None,
        "arg_min": lambda: arg(pairs, lambda a, b: larger(b, a)),
        "arg_max": lambda: arg(pairs, larger),
        "collect_list": lambda: known[:3],
        "collect_set": lambda: different(known)[:3],
        "any": lambda: any(known) if known else None,
        "all": lambda: all(known) if known else None,
        "sum": lambda: total(known, kind),
        "mean": lambda: mean(known, kind),
        "var": lambda: variance(known, len(known) - 1),
        "std": lambda: root(variance(known, len(known) - 1)),
        "var_pop": lambda: variance(known, len(known)),
        "std_pop": lambda: root(variance(known, len(known))),
    }
    return {name: oracle[name]() for name in names}


def same(found: Any, wanted: Any, scale: float) -> bool:
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(same(f, w, scale) for f, w in zip(found, wanted, strict=True))
    if isinstance(wanted, float) and isinstance(found, float):
        if math.isnan(wanted) or math.isinf(wanted):
            return found == wanted or (math.isnan(found) and math.isnan(wanted))
        return math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9 * scale)
    return bool(found == wanted)


def check(found: dict[str, dict[str, Any]], rows: list[Row], kind: pa.DataType, names: list[str]) -> None:
    by_key: dict[str, list[Row]] = {}
    for row in rows:
        by_key.setdefault(row[0], []).append(row)
    assert set(found) == set(by_key)
    for key, of_key in by_key.items():
        wanted = expected(of_key, kind, names)
        sizes = [abs(float(x)) for _, x, _ in of_key if isinstance(x, (int, float, Decimal)) and math.isfinite(x)]
        largest = max(sizes, default=0.0)
        for name in names:
            # Squares of large numbers that nearly cancel out lose digits, in Spark as here.
            scale = {"var": largest**2, "std": 1e3 * largest}.get(name[:3], largest)
            assert same(found[key][name], wanted[name], scale), (key, name, found[key][name], wanted[name])


# --- running it ---


class Running:
    def __init__(self, kind: pa.DataType, by: pa.DataType, functions: dict[str, agg.Function]) -> None:
        self.schema = pa.schema([("by", by), ("key", pa.string()), ("x", kind)])
        self.logic = agg.Aggregates(functions, self.schema, [1], ["key"])
        self.table = ColumnTable([pa.string()], self.logic.columns, GROUPS)

    def batch(self, rows: list[Row]) -> pa.RecordBatch:
        # Sliced out of a longer one: columns of Spark's batches have offsets, too.
        padded = [rows[0], *rows]
        columns = [[by for _, _, by in padded], [key for key, _, _ in padded], [x for _, x, _ in padded]]
        arrays = [pa.array(c, type=t).slice(1) for c, t in zip(columns, self.schema.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def update(self, rows: list[Row]) -> None:
        batch = self.batch(rows)
        slots = self.table.locate([batch.column("key")], groups_of(rows))
        assert self.logic.update(self.table, slots, batch, CTX) is None

    def update_ahead(self, rows: list[Row]) -> None:
        partial = self.logic.partial(self.batch(rows), at_most=1.0)
        assert partial is not None
        assert partial.num_rows == len({key for key, _, _ in rows})
        # What travels is bytes.
        sent = pa.ipc.read_record_batch(partial.serialize(), partial.schema)
        slots = self.table.locate([sent.column("key")], groups_of([(key, 0, 0) for key in sent["key"].to_pylist()]))
        self.logic.update_partial(self.table, slots, sent, CTX)

    def results(self) -> dict[str, dict[str, Any]]:
        found = self.logic.result(self.table, self.table.committed_slots(), CTX)
        if found is None:
            return {}
        found.validate(full=True)
        return {row["key"]: row for row in found.to_pylist()}

    def moved(self) -> ColumnTable:
        """The committed state in another table, by way of Arrow."""
        slots = self.table.committed_slots()
        other = ColumnTable([pa.string()], self.logic.columns, GROUPS)
        if len(slots):
            groups = self.table.index.group_of(slots)
            other.put(self.table.keys(slots), groups.astype(np.int16), self.table.committed(slots))
        return other


def groups_of(rows: list[Row]) -> Any:
    return np.array(["abc".index(key) % GROUPS for key, _, _ in rows], np.int16)


@given(histories(), st.booleans())
def test_every_function_gives_what_python_gives_over_epochs_and_aborts(history, move):
    kind, by, epochs = history
    functions = functions_of(kind)
    running = Running(kind, by, functions)
    committed: list[Row] = []
    for commits, batches in epochs:
        for rows in batches:
            running.update(rows)
        if commits:
            running.table.commit()
            committed += [row for rows in batches for row in rows]
        else:
            running.table.abort()
        if move:
            running.table = running.moved()
        check(running.results(), committed, kind, list(functions))


@given(histories(), st.lists(st.booleans(), min_size=12, max_size=12))
def test_aggregating_ahead_gives_what_taking_the_rows_gives(history, ahead):
    kind, by, epochs = history
    functions = mergeable_functions_of(kind)
    running = Running(kind, by, functions)
    assert running.logic.mergeable
    rows = [batch for _, batches in epochs for batch in batches]
    for batch, whether in zip(rows, ahead, strict=False):
        (running.update_ahead if whether else running.update)(batch)
    running.table.commit()
    check(running.results(), [row for batch in rows for row in batch], kind, list(functions))


@given(histories())
def test_what_changed_is_found_by_the_state_alone(history):
    kind, by, epochs = history
    running = Running(kind, by, functions_of(kind))
    for _, batches in epochs:
        for rows in batches:
            running.update(rows)
        met = {key for rows in batches for key, _, _ in rows}
        changed = running.table.changed()
        # The count of rows changes with every row, so what was met is what changed.
        assert (set(running.table.keys(changed)[0].to_pylist()) if len(changed) else set()) == met
        running.table.commit()


_TOTAL = agg.reduce("x", init=(0, 0.0), update=lambda s, x: (s[0] + 1, s[1] + x), result=lambda s: s[1] / max(s[0], 1))
_REDUCERS = Running(
    pa.float32(), pa.int32(), {"mean": _TOTAL, "latest": agg.reduce("x", init=0.0, update=lambda s, x: x)}
)


@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.none() | FLOATS, st.none()), min_size=1), max_size=3))
def test_a_reducer_is_called_once_for_each_row_that_has_its_columns(batches):
    running = _REDUCERS  # one for all examples: its functions are compiled once
    for rows in batches:
        running.update(rows)
    running.table.commit()
    found = running.results()
    running.table.discard(running.table.committed_slots())
    for key in {key for rows in batches for key, _, _ in rows}:
        known = [x for rows in batches for k, x, _ in rows if k == key and x is not None]
        assert same(found[key]["mean"], mean(known, pa.float32()) or 0.0, 1e4)
        assert same(found[key]["latest"], known[-1] if known else 0.0, 0.0)
