"""A changed operator takes stored state over as far as nothing is lost, and everything else is refused by name."""

import dataclasses
import datetime as dt
import types
from collections import Counter, deque
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from tests.checkpoint_states import ME, OPERATOR, QUERY, evolve, schema_of, state
from tests.evolving import GROUPS, Evolving, column_of, operator, schema_for

import bedload as bl
from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.compaction import compact, restore_at
from bedload.checkpoint.evolution import Evolution, check_change, check_stored, differences, path_between
from bedload.checkpoint.history import History
from bedload.checkpoint.orders import decode_order
from bedload.checkpoint.records import (
    OperatorSchema,
    SnapshotPart,
    TurnRecord,
    Variable,
    decode,
    encode,
    manifest_of,
    pack_schema,
)
from bedload.checkpoint.restore import Restore
from bedload.checkpoint.shapes import pack_value
from bedload.checkpoint.snapshots import write_parts
from bedload.checkpoint.storage import Storage, open_storage
from bedload.control.compaction import Compaction, Retention
from bedload.control.instructions import ToWorker, WriteManifest
from bedload.control.lineage import Lineage
from bedload.control.members import Members, workers_at
from bedload.control.standing import Standing
from bedload.core.clock import SystemClock
from bedload.core.errors import (
    CheckpointDamaged,
    DefinitionError,
    KeyGroupsChanged,
    SchemaChanged,
    StateDropped,
    StateTypeError,
)
from bedload.core.ids import Epoch, Generation, OperatorName, Turn, WorkerId
from bedload.keys import RoutingTable
from bedload.operators.aggregates import Aggregates
from bedload.protocol import messages as m
from bedload.spark.keeper import Keeper
from bedload.state import codec
from bedload.store.columns import ColumnSpec
from bedload.worker.column_runtime import ColumnDeployment
from bedload.worker.operator import state_of
from bedload.worker.state_schema import state_schema
from bedload.worker.vector import VectorLogic


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Wider:
    x: float
    y: int | None = 0
    tags: list[str] = dataclasses.field(default_factory=lambda: ["new"])


@dataclasses.dataclass
class Renamed:
    y: int = 0
    across: int = dataclasses.field(default=7, metadata={"renamed_from": "x"})


@dataclasses.dataclass(frozen=True)
class Place:
    name: str


@dataclasses.dataclass(frozen=True)
class Town:
    name: str
    size: int = 1


@dataclasses.dataclass
class Nothing:
    pass


@dataclasses.dataclass
class Something:
    n: int = 3


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path))


def one(annotation: Any, declaration: Any, **more: Any) -> type[bl.Operator]:
    return operator(v=(annotation, declaration), **more)


def plain(value: Any) -> Any:
    """Two arrays cannot be compared."""
    return (value.dtype, value.tolist()) if isinstance(value, np.ndarray) else value


def converted(old: type[bl.Operator], new: type[bl.Operator], values: list[Any]) -> list[Any]:
    """Values of a variable v under one definition, as those of another."""
    batch = column_of(old, [{"v": value} for value in values])
    # Some rows of a larger batch, as a key group of a part is.
    sliced = column_of(old, [{"v": value} for value in [*values[:1], *values, *values[:1]]]).slice(1, len(values))
    found = []
    for given in (batch, sliced):
        made = evolve(given, schema_for(old), schema_for(new, 2))
        made.validate(full=True)
        found.append([row["v"] for row in codec.decode(state_of(new), made.select(["v"]))])
    assert [plain(value) for value in found[0]] == [plain(value) for value in found[1]]
    return found[0]


BIG = 2**60
POINTS = [Point(1, 2), Point(3)]
WIDER = [Wider(1.0, 2, ["new"]), Wider(3.0, 0, ["new"])]
RENAMED = [Renamed(2, 1), Renamed(0, 3)]

WIDENED: dict[str, Any] = {
    "int to float": (int, bl.value(0), float, bl.value(0.0), [1, -2, BIG], [1.0, -2.0, float(BIG)]),
    "to optional": (int, bl.value(0), int | None, bl.value(), [1, 2], [1, 2]),
    "to optional float": (int, bl.value(0), float | None, bl.value(), [1, 2], [1.0, 2.0]),
    "optional int to float": (int | None, bl.value(), float | None, bl.value(), [1, None], [1.0, None]),
    "list": (list[int], bl.list(), list[float], bl.list(), [[1, 2], [], [3]], [[1.0, 2.0], [], [3.0]]),
    "list of optional": (list[int], bl.list(), list[float | None], bl.list(), [[1], []], [[1.0], []]),
    "nested lists": (list[list[int]], bl.list(), list[list[float]], bl.list(), [[[1], []], []], [[[1.0], []], []]),
    "set": (set[int], bl.set(), set[float], bl.set(), [{1, 2}, set()], [{1.0, 2.0}, set()]),
    "deque": (deque[int], bl.deque(), deque[float], bl.deque(), [deque([1])], [deque([1.0])]),
    "dict values": (dict[str, int], bl.map(), dict[str, float], bl.map(), [{"a": 1}, {}], [{"a": 1.0}, {}]),
    "dict keys": (dict[int, str], bl.map(), dict[float, str], bl.map(), [{}, {1: "a"}], [{}, {1.0: "a"}]),
    "dict keys to optional": (
        dict[int, int],
        bl.map(),
        dict[int | None, float],
        bl.map(),
        [{1: 2}, {}],
        [{1: 2.0}, {}],
    ),
    "optional dict keys": (
        dict[int | None, int],
        bl.map(),
        dict[int | None, float],
        bl.map(),
        [{None: 1, 2: 3}, {}],
        [{None: 1.0, 2: 3.0}, {}],
    ),
    "counter": (Counter[int], bl.counter(), Counter[float], bl.counter(), [Counter({1: 2})], [Counter({1.0: 2})]),
    "tuple": (
        tuple[int, str],
        bl.value((0, "")),
        tuple[float, str | None],
        bl.value((0.0, "")),
        [(1, "a")],
        [(1.0, "a")],
    ),
    "open tuple": (tuple[int, ...], bl.value(()), tuple[float, ...], bl.value(()), [(1, 2), ()], [(1.0, 2.0), ()]),
    "free deque": (
        list[deque[int]],
        bl.list(),
        list[deque[float]],
        bl.list(),
        [[deque([1, 2], 5), deque()], []],
        [[deque([1.0, 2.0], 5), deque()], []],
    ),
    "field added": (Point, bl.value(Point(0)), Wider, bl.value(Wider(0.0)), POINTS, WIDER),
    "fields in lists": (list[Point], bl.list(), list[Wider], bl.list(), [POINTS, []], [WIDER, []]),
    "fields in dicts": (dict[str, Point], bl.map(), dict[str, Wider], bl.map(), [{"a": POINTS[0]}], [{"a": WIDER[0]}]),
    "fields deep down": (
        dict[str, list[Point | None]],
        bl.map(),
        dict[str, list[Wider | None]],
        bl.map(),
        [{"a": [*POINTS, None], "b": []}],
        [{"a": [*WIDER, None], "b": []}],
    ),
    "optional dataclass": (Point | None, bl.value(), Wider | None, bl.value(), [None, *POINTS], [None, *WIDER]),
    "field renamed and moved": (Point, bl.value(Point(0)), Renamed, bl.value(Renamed()), POINTS, RENAMED),
    "renamed fields in lists": (list[Point], bl.list(), list[Renamed], bl.list(), [POINTS], [RENAMED]),
    "dataclass as a key": (dict[Place, int], bl.map(), dict[Town, int], bl.map(), [{Place("a"): 1}], [{Town("a"): 1}]),
    "dataclass in a set": (
        set[Place],
        bl.set(),
        set[Town],
        bl.set(),
        [{Place("a"), Place("b")}],
        [{Town("a"), Town("b")}],
    ),
    "first field": (Nothing, bl.value(Nothing()), Something, bl.value(Something()), [Nothing()], [Something(3)]),
    "list cut": (list[int], bl.list(), list[int], bl.list(maxlen=2), [[1, 2, 3], [], [4]], [[2, 3], [], [4]]),
    "list cut and widened": (list[int], bl.list(9), list[float], bl.list(1), [[1, 2], []], [[2.0], []]),
    "list let grow": (list[int], bl.list(maxlen=2), list[int], bl.list(maxlen=3), [[1, 2]], [[1, 2]]),
    "deque cut": (deque[int], bl.deque(3), deque[int], bl.deque(2), [deque([1, 2, 3], 3)], [deque([2, 3], 2)]),
}


@pytest.mark.parametrize("case", WIDENED)
def test_values_are_taken_over_without_loss(case: str) -> None:
    was, old, now, new, values, expected = WIDENED[case]
    found = converted(one(was, old), one(now, new), values)
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]
    assert [getattr(value, "maxlen", 0) for value in found] == [getattr(value, "maxlen", 0) for value in expected]


@pytest.mark.parametrize(
    ("was", "now"),
    [
        *(("float32", "float64"), ("int8", "int64"), ("uint8", "int16"), ("bool", "uint8"), ("int32", "float64")),
        *(("int64", "float64"), ("uint64", "float64"), ("uint16", "float32"), ("float16", "float32")),
        ("bool", "float16"),
    ],
)
def test_an_array_gets_a_dtype_that_has_its_values(was: str, now: str) -> None:
    values = [np.array([[0, 1], [1, 0]], was), np.array([[1, 1], [1, 1]], was)]
    old, new = one(np.ndarray, bl.array((2, 2), was)), one(np.ndarray, bl.array((2, 2), now))
    found = converted(old, new, values)
    assert [(value.dtype.name, value.tolist()) for value in found] == [(now, value.tolist()) for value in values]


def test_an_integer_of_an_array_that_no_float_equals_is_not_rounded() -> None:
    old, new = one(np.ndarray, bl.array(2, "int64")), one(np.ndarray, bl.array(2))
    assert converted(old, new, [np.array([2**53, 2**60])])[0].tolist() == [2.0**53, 2.0**60]
    with pytest.raises(SchemaChanged, match="it holds 9007199254740993, which no float equals"):
        converted(old, new, [np.array([1, 2**53 + 1])])


REFUSED: dict[str, Any] = {
    "array of another shape": (
        np.ndarray,
        bl.array((2, 3)),
        np.ndarray,
        bl.array((3, 2)),
        r"float64\[2, 3\] → float64\[3, 2\]: an array keeps its shape; keep it, or add a variable",
    ),
    "array of fewer bits": (
        np.ndarray,
        bl.array(3),
        np.ndarray,
        bl.array(3, "float32"),
        "not every float64 is a float32; keep the dtype, or add a variable",
    ),
    "array to list": (np.ndarray, bl.array(3), list[float], bl.list(), r"float64\[3\] does not become list\[float\]"),
    "float to int": (float, bl.value(0.0), int, bl.value(0), "float → int: float does not become int"),
    "int to str": (int, bl.value(0), str, bl.value(""), "int does not become str; keep the type, or add a variable"),
    "str to Decimal": (str, bl.value(""), Decimal, bl.value(Decimal(0)), "str does not become Decimal"),
    "optional to not": (int | None, bl.value(), int, bl.value(0), "stored values may be None"),
    "list to set": (list[int], bl.list(), set[int], bl.set(), r"list\[int\] does not become set\[int\]"),
    "dict to counter": (dict[str, int], bl.map(), Counter[str], bl.counter(), "does not become Counter"),
    "inside a list": (
        list[str],
        bl.list(),
        list[int],
        bl.list(),
        r"list\[str\] → list\[int\]: str does not become int",
    ),
    "keys of a dict": (dict[int | None, int], bl.map(), dict[int, int], bl.map(), "keys: stored values may be None"),
    "tuple length": (
        tuple[int, int],
        bl.value((0, 0)),
        tuple[int],
        bl.value((0,)),
        "a tuple of 2 does not become one of 1",
    ),
    "date to datetime": (
        dt.date,
        bl.value(dt.date(2020, 1, 1)),
        dt.datetime,
        bl.value(dt.datetime(2020, 1, 1)),
        "date",
    ),
    "other codec": (Any, bl.value(0, codec="pickle"), Any, bl.value(0, codec="msgspec"), "only its codec"),
    "opaque to bytes": (Any, bl.value(0, codec="pickle"), bytes, bl.value(b""), "by pickle does not become bytes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_lose_something_is_refused_with_both_types(case: str) -> None:
    was, old, now, new, says = REFUSED[case]
    before, after = schema_for(one(was, old)), schema_for(one(now, new), 2)
    with pytest.raises(SchemaChanged, match=rf"(?s)operator Trip.*\n  v: .*{says}.*What can change"):
        check_change(OPERATOR, before, after)


@dataclasses.dataclass
class NoDefault:
    x: int
    y: int
    z: int


@dataclasses.dataclass
class BadDefault:
    x: int
    y: int = 0
    z: int = None  # type: ignore[assignment]


@dataclasses.dataclass
class Less:
    x: int


@dataclasses.dataclass
class Text:
    x: str
    y: int = 0


@dataclasses.dataclass
class Doubtful:
    x: int
    y: int = dataclasses.field(default=0, metadata={"renamed_from": "x"})


FIELDS = {
    NoDefault: "field 'z' of NoDefault is new, and has no default",
    BadDefault: "field 'z' of BadDefault is new, and has no default that fits",
    Less: "field 'y' of Point is stored, and Less does not have it; keep it",
    Text: "field 'x' of Text: int → str: int does not become str",
    Doubtful: "field 'y' of Doubtful: renamed_from='x', but 'y' is stored as well as 'x'",
}


@pytest.mark.parametrize("kind", FIELDS)
def test_a_field_that_cannot_be_taken_over_is_named_wherever_it_is(kind: Any) -> None:
    before, after = one(list[Point], bl.list()), one(list[kind], bl.list())
    assert len(differences(schema_for(before), schema_for(after))) == 1
    with pytest.raises(SchemaChanged, match=FIELDS[kind]):
        check_change(OPERATOR, schema_for(before), schema_for(after))


def test_all_differences_are_listed_at_once() -> None:
    before = schema_for(operator(a=(int, bl.value(0)), b=(list[int], bl.list()), c=(int, bl.value(0))))
    after = schema_for(operator(a=(str, bl.value("")), b=(list[str], bl.list()), c=(float, bl.value(0.0))))
    keyed = msgspec.structs.replace(after, key_types=pack_schema(pa.schema([("id", pa.string())])), key_groups=4)
    lines = differences(before, keyed)
    assert [line.split(":")[0] for line in lines] == ["key_groups", "key", "a", "b"]
    assert "key: car int64 → id string" in lines[1]
    columns = schema_of({"car": pa.int64()}, {"a": pa.int64()}, groups=GROUPS)
    assert differences(before, columns) == [
        "layout: rows → columns: state of an Operator (rows) and of a VectorOperator or of aggregates (columns) do not "
        "become each other"
    ]


def test_the_number_of_key_groups_alone_is_its_own_error() -> None:
    schema = schema_for(one(int, bl.value(0)))
    with pytest.raises(KeyGroupsChanged, match="8 key groups, but 16"):
        check_stored(OPERATOR, schema, msgspec.structs.replace(schema, key_groups=16))


# --- variables ---


def names_after(old: type[bl.Operator], new: type[bl.Operator], values: dict[str, Any]) -> dict[str, Any]:
    made = evolve(column_of(old, [values]), schema_for(old), schema_for(new, 2))
    return codec.decode(state_of(new), made.select([spec.name for spec in state_of(new)]))[0]


def ints(**former: str | None) -> type[bl.Operator]:
    defaults = {name: i for i, name in enumerate(sorted(former))}
    return operator(**{n: (int, bl.value(100 + defaults[n], renamed_from=was)) for n, was in former.items()})


def test_variables_come_with_their_default_and_go() -> None:
    old = operator(a=(int, bl.value(0)), b=(str, bl.value("")))
    new = operator(
        b=(str, bl.value("")),
        point=(Point, bl.value(Point(4, 5))),
        recent=(list[int], bl.list()),
        when=(dt.datetime | None, bl.value()),
        own=(Any, bl.value({"a": 1}, codec="pickle")),
    )
    found = names_after(old, new, {"a": 1, "b": "kept"})
    assert found == {"b": "kept", "point": Point(4, 5), "recent": [], "when": None, "own": {"a": 1}}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": None}, {"b": "a"}, {"b": 0}),
        ({"a": None}, {"a": None, "b": "a"}, {"a": 100, "b": 0}),
        ({"a": None, "b": None}, {"a": "b", "b": "a"}, {"a": 1, "b": 0}),
        ({"a": "b", "b": "a"}, {"a": "b", "b": "a"}, {"a": 0, "b": 1}),
        ({"a": "b", "b": "a"}, {"a": "b", "b": "a", "c": None}, {"a": 0, "b": 1, "c": 102}),
        ({"a": None, "b": "a"}, {"a": None, "b": "a", "c": None}, {"a": 0, "b": 1, "c": 102}),
        ({"b": "a"}, {"b": "a"}, {"b": 0}),
        ({"a": None, "b": "a"}, {"a": None, "b": "a"}, {"a": 0, "b": 1}),
        ({"a": None, "b": None}, {"b": None, "c": "a"}, {"b": 1, "c": 0}),
        ({"c": None}, {"b": "a"}, {"b": 100}),
        ({"a": None, "b": None}, {"b": "a", "c": "b"}, {"b": 0, "c": 1}),
    ],
)
def test_a_declared_rename_is_made_once(old: Any, new: Any, expected: dict[str, int]) -> None:
    stored = {name: i for i, name in enumerate(sorted(old))}
    assert names_after(ints(**old), ints(**new), stored) == expected


def test_a_rename_onto_a_stored_variable_is_refused() -> None:
    lines = differences(schema_for(ints(a=None, b=None)), schema_for(ints(b="a")))
    assert lines == ["b: renamed_from='a', but 'b' is stored as well as 'a': remove one of them first"]


def test_a_renamed_variable_is_named_with_its_former_name() -> None:
    lines = differences(schema_for(ints(a=None)), schema_for(operator(b=(str, bl.value("", renamed_from="a")))))
    assert len(lines) == 1
    assert lines[0].startswith("b (was a): int → str: ")


def test_an_int_that_no_float_equals_is_an_error_and_not_rounded() -> None:
    old, new = one(int, bl.value(0)), one(float, bl.value(0.0))
    assert converted(old, new, [2**53, 2**53 + 2]) == [float(2**53), float(2**53 + 2)]
    for number in (2**53 + 1, 2**63 - 1):
        with pytest.raises(SchemaChanged, match=f"variable 'v'.*it holds {number}, which no float equals"):
            converted(old, new, [1, number])


@pytest.mark.parametrize("bad", ["", "v", 7])
def test_a_former_name_that_cannot_be_is_refused_at_definition(bad: Any) -> None:
    with pytest.raises(StateTypeError, match=r"Op: renamed_from=.* of 'v'"):
        one(int, bl.value(0, renamed_from=bad))
    wrong: Any = dataclasses.make_dataclass("Wrong", [("v", int, dataclasses.field(metadata={"renamed_from": bad}))])
    with pytest.raises(StateTypeError, match=r"dataclass Wrong: renamed_from=.* of 'v'"):
        operator(w=(list[wrong], bl.list()))


def test_one_former_name_has_one_heir() -> None:
    with pytest.raises(StateTypeError, match="'a' and 'b' are both renamed_from='old'"):
        ints(a="old", b="old")


@pytest.mark.parametrize("declare", [bl.list, bl.map, bl.set, bl.counter, bl.deque])
def test_containers_are_renamed_too(declare: Any) -> None:
    kinds = {
        bl.list: list[int],
        bl.map: dict[int, int],
        bl.set: set[int],
        bl.counter: Counter[int],
        bl.deque: deque[int],
    }
    made = operator(new=(kinds[declare], declare(renamed_from="old")))
    assert state_of(made)[0].renamed_from == "old"


# --- columns ---


def column(name: str, kind: pa.DataType, initial: Any = None) -> Variable:
    default = pack_value(initial, kind)
    return Variable(
        name=name, type=str(kind), arrow=pack_schema(pa.schema([(name, kind)])), kind="column", default=default
    )


def columns(*variables: Variable, number: int = 1) -> OperatorSchema:
    empty = schema_of({"car": pa.int64()}, {}, groups=GROUPS)
    return msgspec.structs.replace(empty, number=number, variables=variables)


def test_columns_come_go_and_widen() -> None:
    old = columns(column("n", pa.int64(), 0), column("small", pa.int32()), column("gone", pa.string()))
    new = columns(
        column("n", pa.float64(), 0.0),
        column("small", pa.int64()),
        column("new", pa.int64(), 7),
        column("none", pa.date32()),
    )
    batch = state(old, {1: {"n": 5, "small": 6, "gone": "x"}, 2: {"n": 7, "small": None, "gone": None}})
    made = evolve(batch, old, new)
    made.validate(full=True)
    rows = sorted(made.to_pylist(), key=lambda row: row["bedload_key_0"])
    assert [{n: v for n, v in row.items() if not n.startswith("bedload")} for row in rows] == [
        {"n": 5.0, "small": 6, "new": 7, "none": None},
        {"n": 7.0, "small": None, "new": 7, "none": None},
    ]


@pytest.mark.parametrize(
    ("was", "kind", "can"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int64(), pa.int32(), False),
        (pa.float32(), pa.float64(), True),
        (pa.float64(), pa.float32(), False),
        (pa.int64(), pa.float32(), False),
        (pa.decimal128(10, 2), pa.decimal128(20, 2), True),
        (pa.decimal128(10, 2), pa.decimal128(10, 4), False),
        (pa.string(), pa.binary(), False),
        (pa.bool_(), pa.int64(), False),
    ],
)
def test_a_column_widens_only_to_what_has_all_of_its_values(was: pa.DataType, kind: pa.DataType, can: bool) -> None:
    assert differences(columns(column("c", was)), columns(column("c", kind))) == (
        []
        if can
        else [
            f"c: {was} → {kind}: not every value of the old type is one of the new type; keep the type, or add a column"
        ]
    )


def test_a_column_with_nulls_does_not_become_one_without() -> None:
    with_null, without = columns(column("c", pa.int64())), columns(column("c", pa.int64(), 0))
    assert "stored values may be null" in differences(with_null, without)[0]
    assert differences(without, with_null) == []


class Mean(bl.VectorOperator):
    n: int = bl.value(0)
    total: int = bl.value(0)

    def process(self, batch: Any, state: Any, ctx: Any) -> Any:
        return state


class Mean2(bl.VectorOperator):
    count: int = bl.value(0, renamed_from="n")
    total: float = bl.value(0.0)
    last: float | None = bl.value()

    def process(self, batch: Any, state: Any, ctx: Any) -> Any:
        return state


def vector_schema(cls: Any, number: int = 1) -> OperatorSchema:
    logic = VectorLogic(cls, pa.schema([]))
    made = ColumnDeployment(OPERATOR, logic, (0,), (pa.int64(),), GROUPS)
    schema = state_schema(made, ["car"], [pa.int64()], GROUPS, cls.__bedload_specs__)
    return msgspec.structs.replace(schema, number=number)


def test_a_vector_operator_changes_as_an_operator_does() -> None:
    old, new = vector_schema(Mean), vector_schema(Mean2)
    made = evolve(state(old, {1: {"n": 5, "total": 6}}), old, new)
    assert made.select(["count", "total", "last"]).to_pylist() == [{"count": 5, "total": 6.0, "last": None}]


def test_expiries_of_a_vector_operator_follow_the_variable_that_is_renamed() -> None:
    class Before(bl.VectorOperator):
        n: int = bl.value(0, ttl="1 hour")

    class After(bl.VectorOperator):
        m: int = bl.value(0, ttl="1 hour", renamed_from="n")

    old, new = vector_schema(Before), vector_schema(After)
    made = evolve(state(old, {1: {"n": 5, "bedload_ttl_n": 77}}), old, new)
    assert made.select(["m", "bedload_ttl_m"]).to_pylist() == [{"m": 5, "bedload_ttl_m": 77}]


def aggregates(**functions: Any) -> OperatorSchema:
    logic = Aggregates(functions, pa.schema([("car", pa.int64()), ("x", pa.int64()), ("y", pa.int64())]), [0], ["car"])
    made = ColumnDeployment(OPERATOR, logic, (0,), (pa.int64(),), GROUPS)
    return state_schema(made, ["car"], [pa.int64()], GROUPS)


def test_an_aggregate_that_counts_its_own_rows_can_be_added() -> None:
    old = aggregates(n=bl.agg.count("x"))
    assert differences(old, aggregates(n=bl.agg.count("x"), s=bl.agg.sum("y"), m=bl.agg.mean("y"))) == []
    assert differences(aggregates(n=bl.agg.count("x"), m=bl.agg.mean("x")), old) == []


@pytest.mark.parametrize("added", [bl.agg.mean("x"), bl.agg.std("x")])
def test_an_aggregate_that_would_share_an_older_count_is_refused(added: Any) -> None:
    old, new = aggregates(n=bl.agg.count("x")), aggregates(n=bl.agg.count("x"), m=added)
    with pytest.raises(SchemaChanged, match=r"new, but count\(x\) is stored: .* would mix what was seen"):
        check_change(OPERATOR, old, new)


# --- over turns ---


def bump(by: Any = 1) -> Any:
    def step(op: Any, ctx: Any) -> None:
        op.v += by

    return step


def put(**entries: Any) -> Any:
    def step(op: Any, ctx: Any) -> None:
        op.seen.update(entries)

    return step


BEFORE = operator(v=(int, bl.value(0)), seen=(dict[str, int], bl.map()), gone=(str, bl.value("x")))
AFTER = operator(
    v=(float, bl.value(0.0)),
    seen=(dict[str, float | None], bl.map()),
    more=(list[int], bl.list()),
    w=(int, bl.value(9)),
)


def snapshot(evolving: Evolving, turn: Turn) -> None:
    record = next(record for record in evolving.writer.records if record.turn == turn)
    schema = evolving.schemas[record.schema]
    folder = paths.snapshot(OPERATOR, turn)
    parts = write_parts(evolving.writer.storage, folder, schema, evolving.restore(turn, schema).chunks(chunk_groups=2))
    evolving.manifests.append(manifest_of(record, schema, parts))


def through_a_change(storage: Storage) -> Evolving:
    found = Evolving(storage, BEFORE)
    found.epoch(*((key, bump()) for key in range(20)), *((key, put(a=key)) for key in range(0, 20, 2)))
    found.epoch((4, put(b=1)), (5, bump()), (6, lambda op, ctx: ctx.forget()))
    found.become(AFTER)
    found.epoch((4, put(c=2.5)), (7, bump(0.5)), (30, put(d=None)), (8, lambda op, ctx: op.more.append(1)))
    found.epoch((4, put(a=0.25)), (8, lambda op, ctx: op.more.append(2)), (9, lambda op, ctx: ctx.forget()))
    return found


@pytest.mark.parametrize("snapshots", [(), (0,), (1,), (2,), (1, 2), (3,)])
def test_a_chain_of_two_definitions_gives_what_the_workers_had(storage: Storage, snapshots: Any) -> None:
    evolving = through_a_change(storage)
    assert evolving.state()[4] == {"v": 1.0, "seen": {"a": 0.25, "b": 1.0, "c": 2.5}, "more": [], "w": 9}
    assert evolving.state()[8]["more"] == [1, 2]
    assert 6 not in evolving.state()
    for at in snapshots:
        snapshot(evolving, evolving.writer.records[at].turn)
    for record in evolving.writer.records[2:]:
        assert evolving.restored(record.turn) == evolving.states[record.turn]


def test_only_the_files_of_the_wanted_variables_are_read(storage: Storage) -> None:
    evolving = through_a_change(storage)
    snapshot(evolving, evolving.writer.records[1].turn)
    storage.delete([f"{paths.snapshot(OPERATOR, evolving.writer.records[1].turn)}/{part.files['seen'].path}"
                    for part in evolving.manifests[0].parts if part.files])  # fmt: skip
    table = evolving.restore().table(variables=["v", "w"], keys=[pa.array([7, 5])])
    assert {row["bedload_key_0"]: (row["v"], row["w"]) for row in table.to_pylist()} == {7: (1.5, 9), 5: (2.0, 9)}
    with pytest.raises(CheckpointDamaged, match="seen"):
        evolving.restore().table()


def test_a_schema_that_is_not_there_is_named(storage: Storage) -> None:
    evolving = through_a_change(storage)
    with pytest.raises(CheckpointDamaged, match=r"'Trip'.*written with schema 1, which is not known"):
        Restore(storage, OPERATOR, evolving.schema, evolving.plan()).table()


def a_rename_that_is_gone(storage: Storage) -> tuple[Evolving, Turn]:
    """One epoch each of a, of b that was a, and of b alone."""
    evolving = Evolving(storage, ints(a=None))
    first = evolving.epoch((1, lambda op, ctx: setattr(op, "a", 7)))
    evolving.become(ints(b="a"))
    evolving.epoch((2, lambda op, ctx: setattr(op, "b", 8)))
    evolving.become(operator(b=(float, bl.value(0.0))))
    evolving.epoch((3, lambda op, ctx: setattr(op, "b", 9.0)))
    return evolving, first


def test_state_from_further_back_goes_through_the_renames_between(storage: Storage) -> None:
    evolving, first = a_rename_that_is_gone(storage)
    assert evolving.state() == {1: {"b": 7.0}, 2: {"b": 8.0}, 3: {"b": 9.0}}
    assert evolving.restored() == evolving.state()
    assert evolving.restored(first) == {1: {"b": 7.0}}


def test_going_back_before_a_bad_change_finds_what_it_dropped(storage: Storage) -> None:
    evolving = Evolving(storage, ints(a=None, b=None))
    first = evolving.epoch((1, lambda op, ctx: setattr(op, "b", 7)))
    evolving.become(ints(a=None))
    evolving.epoch((2, lambda op, ctx: setattr(op, "a", 8)))
    evolving.become(operator(a=(int, bl.value(0)), b=(float, bl.value(0.5)), c=(int, bl.value(1))))
    assert evolving.state() == {1: {"a": 100, "b": 0.5, "c": 1}, 2: {"a": 8, "b": 0.5, "c": 1}}
    assert evolving.restored(first) == {1: {"a": 100, "b": 7.0, "c": 1}}


def test_a_name_that_came_back_with_another_type_is_another_variable(storage: Storage) -> None:
    evolving = Evolving(storage, ints(a=None, b=None))
    first = evolving.epoch((1, lambda op, ctx: setattr(op, "b", 7)))
    evolving.become(ints(a=None))
    evolving.epoch((2, lambda op, ctx: setattr(op, "a", 8)))
    evolving.become(operator(a=(int, bl.value(0)), b=(str, bl.value("new"))))
    assert evolving.restored(first) == {1: {"a": 100, "b": "new"}}


def test_schemas_without_a_common_past_are_compared_directly() -> None:
    schemas = {1: schema_for(ints(a=None), 1), 2: schema_for(ints(b="a"), 2, None), 3: schema_for(ints(b=None), 3, 2)}
    assert [schema.number for schema in path_between(schemas, 1, 3)] == [1, 3]
    assert [schema.number for schema in path_between(schemas, 2, 3)] == [2, 3]
    assert Evolution(path_between(schemas, 1, 3)).sources(["b"]) == ()


def test_a_snapshot_of_a_turn_is_in_the_schema_of_the_turn(storage: Storage) -> None:
    checkpoint = Checkpoint.open(storage, ME)
    evolving = through_a_change(storage)
    for schema in evolving.schemas.values():
        assert checkpoint.add_schema(OPERATOR, schema).number == schema.number
    for record in evolving.writer.records:
        checkpoint.write_turn(OPERATOR, record)
    for record in (evolving.writer.records[1], evolving.writer.records[3]):
        _, schema = restore_at(checkpoint, OPERATOR, record.turn)
        assert schema.number == record.schema
        checkpoint.write_manifest(OPERATOR, manifest_of(record, schema, compact(storage, OPERATOR, record.turn)))
    storage.delete(
        [paths.delta(OPERATOR, record.turn, worker) for record in evolving.writer.records for worker in record.workers]
    )
    restore, schema = restore_at(checkpoint, OPERATOR, evolving.writer.records[3].turn)
    rows = restore.table().to_pylist()
    assert {row["bedload_key_0"]: row["v"] for row in rows} == {k: row["v"] for k, row in evolving.state().items()}


# --- at apply ---


def keep(folder: Path, cls: type[bl.Operator], *, fresh: bool = False) -> tuple[Keeper, Lineage]:
    keeper = Keeper(str(folder))
    schema = msgspec.structs.replace(schema_for(cls), number=0)
    return keeper, keeper.lineage(OPERATOR, schema, fresh=fresh)


def record_of(turn: Turn, parent: Turn | None, generation: Generation, schema: int) -> TurnRecord:
    """A turn that is complete without segments."""
    return TurnRecord(
        turn=turn,
        parent=parent,
        generation=generation,
        query=QUERY,
        run="run",
        epoch=Epoch(0),
        location="",
        schema=schema,
        owners=((0, GROUPS),),
        workers=(),
        committed={},
    )


def complete_turn(keeper: Keeper, lineage: Lineage) -> None:
    head = lineage.history.head
    record = record_of(lineage.next_turn(head or Turn(0)), head, keeper.generation, lineage.schema.number)
    keeper.write_turn(OPERATOR, record)


def test_a_change_is_measured_against_the_state_and_not_against_an_attempt(tmp_path: Path) -> None:
    keeper, first = keep(tmp_path, ints(a=None, b=None))
    complete_turn(keeper, first)
    with pytest.warns(StateDropped, match="the stored state has b"):
        _, tried = keep(tmp_path, ints(a=None))
    assert (tried.schema.number, tried.schema.base) == (2, 1), "it ran no epoch, so b is still there"
    _, back = keep(tmp_path, ints(a=None, b=None))
    assert back.schema.number == 1
    keeper, wider = keep(tmp_path, operator(a=(int, bl.value(0)), b=(float, bl.value(0.0))))
    assert (wider.schema.number, wider.schema.base) == (3, 1)
    complete_turn(keeper, wider)
    with pytest.raises(SchemaChanged, match="b: float → int"):
        keep(tmp_path, ints(a=None, b=None))
    assert len(keeper.checkpoint.schemas(OPERATOR)) == 3, "what is refused leaves nothing behind"


def test_the_same_operator_keeps_its_schema(tmp_path: Path) -> None:
    for _ in range(3):
        keeper, lineage = keep(tmp_path, AFTER)
        assert lineage.schema.number == 1
        complete_turn(keeper, lineage)


def test_fresh_state_may_have_any_shape(tmp_path: Path) -> None:
    keeper, first = keep(tmp_path, ints(a=None))
    complete_turn(keeper, first)
    _, other = keep(tmp_path, operator(a=(str, bl.value(""))), fresh=True)
    assert (other.schema.number, other.schema.base) == (2, None)
    first.adopt(other)
    assert first.schema == other.schema


def test_an_order_has_the_schemas_on_the_way() -> None:
    schemas = {n: schema_for(ints(a=None) if n % 2 else ints(b="a"), n, n - 1 or None) for n in range(1, 6)}
    records = [record_of(Turn(n), Turn(n - 1) if n > 2 else None, Generation(0), n) for n in (2, 3)]
    lineage = Lineage(Generation(1), History(OPERATOR, records), schemas, 5)
    order = decode_order(lineage.order(Turn(3)))
    assert (sorted(order.schemas), order.target) == ([2, 3, 4, 5], 5)


def test_a_snapshot_before_the_first_epoch_of_a_change_is_in_the_old_schema() -> None:
    schemas = {1: schema_for(ints(a=None)), 2: schema_for(ints(b="a"), 2, 1)}
    lineage = Lineage(Generation(2), History(OPERATOR, [record_of(Turn(3), None, Generation(0), 1)]), schemas, 2)
    worker = WorkerId(0)
    routing = RoutingTable.initial(GROUPS, [worker])
    standing = Standing(OPERATOR, routing, Members(workers_at({worker: "here"})), lineage, SystemClock())
    lineage.head = Turn(3)
    compaction = Compaction(standing, Retention())
    (asked,) = compaction.ask("me")
    assert isinstance(asked, ToWorker)
    assert isinstance(asked.message, m.Compact)
    parts = msgspec.msgpack.encode([SnapshotPart(groups=tuple(range(GROUPS)), rows=0, files={})])
    (step,) = compaction.compacted(m.Compacted(worker, OPERATOR, asked.message.ticket, None), parts)
    assert isinstance(step, WriteManifest)
    assert (step.manifest.schema, lineage.schema.number) == (1, 2)


def test_what_cannot_be_stored_is_refused_when_it_is_applied() -> None:
    logic = types.SimpleNamespace(columns=(ColumnSpec("c", pa.string_view()),))
    bad = ColumnDeployment(OperatorName("Odd"), logic, (0,), (pa.int64(),), GROUPS)
    with pytest.raises(StateTypeError, match=r"operator Odd, state variable 'c' \(string_view\): .* cannot be stored"):
        state_schema(bad, ["car"], [pa.int64()], GROUPS)
    good = types.SimpleNamespace(columns=(ColumnSpec("c", pa.int64()),))
    with pytest.raises(StateTypeError, match="operator Odd, key column 'car'"):
        state_schema(
            ColumnDeployment(OperatorName("Odd"), good, (0,), (pa.null(),), GROUPS),
            ["car"],
            [pa.null()],
            GROUPS,
        )


# --- files of before ---


def test_a_schema_without_shapes_and_defaults_can_be_read() -> None:
    schema = schema_for(ints(a=None))
    plain = msgspec.json.decode(encode(schema))
    for name in ("base", "together", "xxh3"):
        plain.pop(name)
    for variable in plain["variables"]:
        for name in ("shape", "default", "renamed_from"):
            variable.pop(name)
    old = decode(OperatorSchema, msgspec.json.encode(plain), "old")
    assert differences(old, schema) == []
    assert (
        "does not say what its type is made of" in differences(old, schema_for(operator(a=(float, bl.value(0.0)))))[0]
    )
    assert "its schema has no default for it" in differences(schema_for(ints(b=None)), old)[0]


def test_a_default_that_is_not_what_was_written_is_damage() -> None:
    schema = schema_for(ints(a=None))
    new = schema_for(ints(a=None, b=None), 2)
    for bad, says in ((b"nonsense", "cannot be read"), (pack_value("x", pa.string()), "1 string, and not one int64")):
        variables = [msgspec.structs.replace(v, default=bad) if v.name == "b" else v for v in new.variables]
        with pytest.raises(CheckpointDamaged, match=says):
            evolve(
                column_of(ints(a=None), [{"a": 1}]), schema, msgspec.structs.replace(new, variables=tuple(variables))
            )


def test_an_unknown_variable_is_refused(storage: Storage) -> None:
    evolving = through_a_change(storage)
    with pytest.raises(DefinitionError, match="gone"):
        evolving.restore().table(variables=["gone"])


def test_nothing_is_copied_where_nothing_changes() -> None:
    cls = operator(v=(int, bl.value(0)), seen=(dict[str, int], bl.map()))
    batch = column_of(cls, [{"v": 1, "seen": {"a": 1}}])
    made = evolve(
        batch, schema_for(cls), schema_for(operator(v=(int, bl.value(0)), seen=(dict[str, int | None], bl.map())))
    )
    for name in ("v", "seen"):
        ours = [buffer.address for buffer in made.column(name).buffers() if buffer is not None]
        assert ours == [buffer.address for buffer in batch.column(name).buffers() if buffer is not None]
    assert np.array_equal(made.column(0).to_numpy(), batch.column(0).to_numpy())


# --- keys ---


def keyed(schema: OperatorSchema, **keys: pa.DataType) -> OperatorSchema:
    made = pack_schema(pa.schema(list(keys.items())))
    return msgspec.structs.replace(schema, key_names=tuple(keys), key_types=made)


@pytest.mark.parametrize(
    "after",
    [
        {"user": pa.string(), "day": pa.string()},
        {"day": pa.string(), "car": pa.string()},
    ],
)
def test_a_renamed_or_reordered_key_is_refused_at_apply(after: dict[str, pa.DataType]) -> None:
    schema = schema_for(one(int, bl.value(0)))
    stored = keyed(schema, car=pa.string(), day=pa.string())
    with pytest.raises(SchemaChanged, match=r"key: car string, day string → .*withColumnRenamed"):
        check_stored(OPERATOR, stored, keyed(schema, **after))
    assert not differences(stored, keyed(schema, **after)), "yet it is read, as older checkpoints have it"
    check_stored(OPERATOR, stored, keyed(schema, Car=pa.string(), day=pa.string()))


def test_an_instant_is_the_same_key_in_every_time_zone() -> None:
    cls = one(int, bl.value(0))
    schema = schema_for(cls)
    stored = keyed(schema, t=pa.timestamp("us", "America/New_York"))
    wanted = keyed(schema, t=pa.timestamp("us", "UTC"))
    check_stored(OPERATOR, stored, wanted)
    batch = column_of(cls, [{"v": 1}, {"v": 2}])
    at = batch.schema.get_field_index("bedload_key_0")
    zoned = batch.column(at).cast(pa.timestamp("us")).cast(pa.timestamp("us", "America/New_York"))
    old = batch.set_column(at, pa.field("bedload_key_0", zoned.type), zoned)
    made = evolve(old, stored, wanted)
    assert made.column("bedload_key_0").type == pa.timestamp("us", "UTC")
    assert made.column("bedload_key_0").cast(pa.int64()).equals(zoned.cast(pa.int64()))
    with pytest.raises(SchemaChanged, match="key: "):
        check_stored(OPERATOR, stored, keyed(schema, t=pa.timestamp("us")))
