"""Random types that change in random ways: stored values become what Python would make of them, at any depth.

The expected value is made by plain Python, value by value; the other one by Arrow, column by column, through files.
"""

import copy
import dataclasses
import tempfile
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checkpoint_states import evolve
from tests.evolving import Evolving, column_of, operator, schema_for

import bedload as bl
from bedload.checkpoint.evolution import differences
from bedload.checkpoint.storage import open_storage
from bedload.state import codec
from bedload.worker.operator import state_of


@dataclasses.dataclass(frozen=True)
class Change:
    """A type before and after, its values before, and what becomes of one."""

    old: Any
    new: Any
    values: st.SearchStrategy[Any]
    convert: Callable[[Any], Any]
    later: st.SearchStrategy[Any]
    """Values of the type after."""


def same(value: Any) -> Any:
    return value


INTS = st.integers(-(2**53), 2**53)
TEXT = st.text("abc", max_size=3)
FLOATS = st.floats(allow_nan=False)

LEAVES = [
    Change(int, int, INTS, same, INTS),
    Change(int, float, INTS, float, FLOATS),
    Change(str, str, TEXT, same, TEXT),
    Change(str, str | None, TEXT, same, st.none() | TEXT),
    Change(int, float | None, INTS, float, st.none() | FLOATS),
]
KEYS = [*LEAVES[:3], Change(int, int | None, INTS, same, st.none() | INTS)]


def optional(inner: Change) -> Change:
    def convert(value: Any) -> Any:
        return None if value is None else inner.convert(value)

    return Change(inner.old | None, inner.new | None, st.none() | inner.values, convert, st.none() | inner.later)


def list_of(inner: Change) -> Change:
    return Change(
        list[inner.old],  # type: ignore[name-defined]
        list[inner.new],  # type: ignore[name-defined]
        st.lists(inner.values, max_size=3),
        lambda value: [inner.convert(item) for item in value],
        st.lists(inner.later, max_size=3),
    )


def map_of(key: Change, inner: Change) -> Change:
    return Change(
        dict[key.old, inner.old],  # type: ignore[name-defined]
        dict[key.new, inner.new],  # type: ignore[name-defined]
        st.dictionaries(key.values, inner.values, max_size=3),
        lambda value: {key.convert(k): inner.convert(v) for k, v in value.items()},
        st.dictionaries(key.later, inner.later, max_size=3),
    )


def tuple_of(parts: list[Change]) -> Change:
    return Change(
        tuple[tuple(part.old for part in parts)],  # type: ignore[misc]
        tuple[tuple(part.new for part in parts)],  # type: ignore[misc]
        st.tuples(*(part.values for part in parts)),
        lambda value: tuple(part.convert(item) for part, item in zip(parts, value, strict=True)),
        st.tuples(*(part.later for part in parts)),
    )


def dataclass_of(parts: list[tuple[Change, bool]], added: list[Any], first: bool) -> Change:
    """Fields that change, some of them renamed, and new ones before or after them."""
    old: Any = dataclasses.make_dataclass("Old", [(f"f{i}", part.old) for i, (part, _) in enumerate(parts)])
    kept = [
        (
            f"g{i}" if renamed else f"f{i}",
            part.new,
            dataclasses.field(metadata={"renamed_from": f"f{i}"} if renamed else {}),
        )
        for i, (part, renamed) in enumerate(parts)
    ]
    defaults = {f"new{i}": value for i, value in enumerate(added)}
    extra = [(name, type(value), dataclasses.field(default=value)) for name, value in defaults.items()]
    new: Any = dataclasses.make_dataclass("New", [*extra, *kept] if first else [*kept, *extra], kw_only=True)

    def convert(value: Any) -> Any:
        made = {
            n: part.convert(getattr(value, f"f{i}"))
            for i, ((part, _), (n, _, _)) in enumerate(zip(parts, kept, strict=True))
        }
        return new(**defaults, **made)

    return Change(
        old,
        new,
        st.builds(old, *(part.values for part, _ in parts)),
        convert,
        st.builds(new, **{name: part.later for (part, _), (name, _, _) in zip(parts, kept, strict=True)}),
    )


def grown(inner: st.SearchStrategy[Change]) -> st.SearchStrategy[Change]:
    plain = inner.filter(lambda change: type(None) not in getattr(change.old, "__args__", ()))
    return st.one_of(
        plain.filter(lambda change: type(None) not in getattr(change.new, "__args__", ())).map(optional),
        inner.map(list_of),
        st.builds(map_of, st.sampled_from(KEYS), inner),
        st.lists(inner, min_size=1, max_size=3).map(tuple_of),
        st.builds(
            dataclass_of,
            st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=3),
            st.lists(st.sampled_from([1, "x", 2.5, b"y"]), max_size=2),
            st.booleans(),
        ),
    )


CHANGES = st.recursive(st.sampled_from(LEAVES), grown, max_leaves=6)


def exactly(value: Any) -> Any:
    """Equal only if of equal types all the way down."""
    if isinstance(value, dict):
        return dict, [(exactly(k), exactly(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [exactly(item) for item in value]
    if dataclasses.is_dataclass(value):
        return type(value), {field.name: exactly(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return type(value), repr(value)


@settings(max_examples=50, deadline=None)
@given(st.data(), CHANGES)
def test_values_become_what_python_makes_of_them(data: st.DataObject, change: Change) -> None:
    inside = list_of(change)  # a list is a state variable by itself; what is asked for is in it
    old, new = operator(v=(inside.old, bl.list())), operator(v=(inside.new, bl.list()))
    values = data.draw(st.lists(inside.values, min_size=1, max_size=5))
    cut = data.draw(st.integers(0, len(values)))
    batch = column_of(old, [{"v": value} for value in values]).slice(cut)
    assert differences(schema_for(old), schema_for(new)) == []
    made = evolve(batch, schema_for(old), schema_for(new, 2))
    made.validate(full=True)
    found = [row["v"] for row in codec.decode(state_of(new), made.select(["v"]))]
    assert exactly(found) == exactly([inside.convert(value) for value in values[cut:]])


@settings(max_examples=40, deadline=None)
@given(CHANGES, CHANGES)
def test_a_refusal_names_the_variable_and_never_fails_later(one: Change, other: Change) -> None:
    """Whatever two types are put side by side: either all values can be converted, or the change is refused."""
    old, new = operator(v=(list[one.old], bl.list())), operator(v=(list[other.new], bl.list()))  # type: ignore[name-defined]
    lines = differences(schema_for(old), schema_for(new))
    if lines:
        assert len(lines) == 1
        assert lines[0].startswith("v: list[")
    else:
        empty = column_of(old, [{"v": []}, {"v": []}])
        made = evolve(empty, schema_for(old), schema_for(new, 2))
        made.validate(full=True)
        assert made.column("v").type == pa.list_(made.column("v").type.value_type)


# --- histories ---


def write(value: Any) -> Any:
    def step(op: Any, ctx: Any) -> None:
        op.items = copy.deepcopy(value)

    return step


def append(value: Any) -> Any:
    def step(op: Any, ctx: Any) -> None:
        op.items.append(copy.deepcopy(value))

    return step


def entry(key: Any, value: Any) -> Any:
    def step(op: Any, ctx: Any) -> None:
        op.table[key] = copy.deepcopy(value)

    return step


def drop(op: Any, ctx: Any) -> None:
    op.table.clear()


def forget(op: Any, ctx: Any) -> None:
    ctx.forget()


def steps(data: st.DataObject, values: st.SearchStrategy[Any]) -> list[tuple[int, Any]]:
    step = st.one_of(
        st.lists(values, max_size=3).map(write),
        values.map(append),
        st.builds(entry, TEXT, values),
        st.just(drop),
        st.just(forget),
    )
    return data.draw(st.lists(st.tuples(st.integers(0, 5), step), max_size=6))


@settings(max_examples=25, deadline=None)
@given(st.data(), CHANGES)
def test_a_history_over_a_change_restores_what_the_workers_had(data: st.DataObject, change: Change) -> None:
    old = operator(
        items=(list[change.old], bl.list()),  # type: ignore[name-defined]
        table=(dict[str, change.old], bl.map()),  # type: ignore[name-defined]
        gone=(int, bl.value(1)),
    )
    new = operator(
        fresh=(int, bl.value(3)),
        table=(dict[str, change.new], bl.map()),  # type: ignore[name-defined]
        items=(list[change.new], bl.list(maxlen=4)),  # type: ignore[name-defined]
    )
    with tempfile.TemporaryDirectory() as folder:
        evolving = Evolving(open_storage(folder), old)
        for _ in range(data.draw(st.integers(1, 3))):
            evolving.epoch(*steps(data, change.values))
        before = copy.deepcopy(evolving.state())
        evolving.become(new)
        expected = {
            key: {
                "fresh": 3,
                "table": {name: change.convert(value) for name, value in row["table"].items()},
                "items": [change.convert(value) for value in row["items"]][-4:],
            }
            for key, row in before.items()
        }
        assert {key: exactly(row) for key, row in evolving.state().items()} == {
            key: exactly(row) for key, row in expected.items()
        }
        for _ in range(data.draw(st.integers(0, 2))):
            turn = evolving.epoch(*steps(data, change.later))
            assert exactly(sorted(evolving.restored(turn).items())) == exactly(sorted(evolving.state().items()))
