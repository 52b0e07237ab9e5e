"""Every declared type comes back from Arrow exactly as it went in."""

import datetime as dt
import zoneinfo
from collections import Counter, deque
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bedload.state import build_specs, codec, specs
from bedload.state.kinds import VariableKind
from bedload.state.specs import Declaration

FAST = settings(max_examples=40, deadline=None)

INT64 = st.integers(-(2**63), 2**63 - 1)
ZONES = st.sampled_from(
    [
        None,
        dt.UTC,
        dt.timezone(dt.timedelta(hours=-3, minutes=-30)),
        dt.timezone(dt.timedelta(seconds=3723, microseconds=5)),
        zoneinfo.ZoneInfo("Europe/Paris"),
        zoneinfo.ZoneInfo("UTC"),
    ]
)
MOMENTS = st.builds(lambda at, zone, fold: at.replace(tzinfo=zone, fold=fold), st.datetimes(), ZONES, st.integers(0, 1))


@dataclass
class Point:
    x: int
    label: str | None
    at: dt.datetime


@dataclass(frozen=True)
class Pair:
    left: int
    right: str


@dataclass
class Shape:
    points: list[Point]
    names: dict[str, set[int]] = field(default_factory=dict)


@dataclass
class Empty:
    pass


POINTS = st.builds(Point, INT64, st.none() | st.text(), MOMENTS)
PAIRS = st.builds(Pair, INT64, st.text())


class Case(NamedTuple):
    annotation: Any
    declaration: Declaration
    values: st.SearchStrategy[Any]


VALUE = Declaration(VariableKind.VALUE)


def optional(annotation: Any, values: Any) -> Case:
    return Case(annotation | None, VALUE, st.none() | values)


CASES: dict[str, Case] = {
    "bool": Case(bool, specs.value(False), st.booleans()),
    "int": Case(int, specs.value(0), INT64),
    "float": Case(float, specs.value(0.0), st.floats(allow_nan=False)),
    "str": Case(str, specs.value(""), st.text()),
    "bytes": Case(bytes, specs.value(b""), st.binary()),
    "date": Case(dt.date, specs.value(dt.date(2000, 1, 1)), st.dates()),
    "datetime": Case(dt.datetime, specs.value(dt.datetime(2000, 1, 1)), MOMENTS),
    "timedelta": Case(
        dt.timedelta,
        specs.value(dt.timedelta(0)),
        st.timedeltas(dt.timedelta(days=-106_000_000), dt.timedelta(days=106_000_000)),
    ),
    "decimal": Case(Decimal, specs.value(Decimal(0)), st.decimals(allow_nan=False)),
    "optional": optional(int, INT64),
    "tuple": Case(
        tuple[int, str | None, tuple[()]],
        specs.value((0, None, ())),
        st.tuples(INT64, st.none() | st.text(), st.just(())),
    ),
    "repeated tuple": Case(tuple[Decimal, ...], specs.value(()), st.lists(st.decimals(allow_nan=False)).map(tuple)),
    "frozen dataclass": Case(Pair, specs.value(Pair(0, "")), PAIRS),
    "dataclass": optional(Point, POINTS),
    "nested dataclass": optional(
        Shape, st.builds(Shape, st.lists(POINTS, max_size=3), st.dictionaries(st.text(), st.sets(INT64)))
    ),
    "empty dataclass": optional(Empty, st.builds(Empty)),
    "list": Case(list[float], specs.list_(), st.lists(st.floats(allow_nan=False))),
    "list of optional": Case(list[int | None], specs.list_(), st.lists(st.none() | INT64)),
    "list of datetime": Case(list[dt.datetime], specs.list_(), st.lists(MOMENTS, max_size=4)),
    "set": Case(set[str], specs.set_(), st.sets(st.text())),
    "set of tuples": Case(set[tuple[int, str]], specs.set_(), st.sets(st.tuples(INT64, st.text()))),
    "map": Case(dict[str, int], specs.map_(), st.dictionaries(st.text(), INT64)),
    "map by frozen dataclass": Case(dict[Pair, float | None], specs.map_(), st.dictionaries(PAIRS, st.none())),
    "map by optional": Case(
        dict[int | None, list[int]], specs.map_(), st.dictionaries(st.none() | INT64, st.lists(INT64))
    ),
    "counter": Case(Counter[str], specs.counter(), st.dictionaries(st.text(), INT64).map(Counter)),
    "deque": Case(deque[int], specs.deque(4), st.lists(INT64).map(lambda v: deque(v, 4))),
    "map of deques": Case(
        dict[str, deque[int]],
        specs.map_(),
        st.dictionaries(st.text(), st.builds(deque, st.lists(INT64), st.none() | st.integers(0, 5)), max_size=3),
    ),
    "array": Case(
        np.ndarray,
        specs.array((2, 3), "float32"),
        st.lists(st.floats(width=32), min_size=6, max_size=6).map(lambda v: np.array(v, "float32").reshape(2, 3)),
    ),
    "array of bools": Case(np.ndarray, specs.array(3, bool), st.tuples(*[st.booleans()] * 3).map(np.array)),
    "array of large integers": Case(
        np.ndarray,
        specs.array(1, "uint64"),
        st.integers(0, 2**64 - 1).map(lambda v: np.array([v], "uint64")),
    ),
    "msgspec": Case(
        dict[str, list[int | str]],
        specs.value({}, codec="msgspec"),
        st.dictionaries(st.text(), st.lists(st.integers(0, 99) | st.text())),
    ),
    "pickle": Case(object, specs.value(None, codec="pickle"), st.complex_numbers(allow_nan=False)),
}


def exactly(value: Any) -> Any:
    """A form in which all that equality forgives is told apart: types, order, zones, bounds, digits."""
    kind = type(value)
    if kind is np.ndarray:
        return value.dtype, value.shape, value.tobytes()
    if kind is dt.datetime:
        return value.replace(tzinfo=None), value.fold, repr(value.tzinfo)
    if kind in (dict, Counter):
        return kind, [(exactly(k), exactly(v)) for k, v in value.items()]
    if kind is deque:
        return kind, value.maxlen, [exactly(v) for v in value]
    if kind in (list, tuple):
        return kind, [exactly(v) for v in value]
    if kind is set:
        return kind, {(type(v), v) for v in value}
    if kind in (Point, Pair, Shape, Empty):
        return kind, [exactly(v) for v in vars(value).values()]
    return kind, repr(value)


@pytest.mark.parametrize("name", list(CASES))
def test_values_come_back_exactly(name: str) -> None:
    case = CASES[name]
    built = build_specs("Op", {"x": case.annotation}, {"x": case.declaration})

    @FAST
    @given(st.lists(case.values, max_size=4))
    def check(values: list[Any]) -> None:
        rows = [{"x": value} for value in values]
        batch = codec.encode(built, rows)
        assert batch.schema.equals(codec.arrow_schema(built))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        (read,) = pa.ipc.open_stream(sink.getvalue())
        back = codec.decode(built, read)
        assert [exactly(row["x"]) for row in back] == [exactly(value) for value in values]

    check()
