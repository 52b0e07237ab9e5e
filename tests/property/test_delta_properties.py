"""Deltas of random histories, merged and installed, are the state; key groups come in while an epoch is under way."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter, deque
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checkpoint_states import merge

from bedload import state as bl
from bedload.checkpoint.records import OperatorSchema, Variable, pack_schema
from bedload.core.ids import Epoch, KeyGroup, OperatorName, WorkerId
from bedload.store.columns import ColumnSpec, ColumnTable
from bedload.store.columns.index import Slots
from bedload.store.deltas import GROUP, OP, PATCHES
from bedload.testing.input import InputFormat
from bedload.worker.column_runtime import ColumnDeployment
from bedload.worker.operator import Context, Operator
from bedload.worker.row_runtime import Deployment
from bedload.worker.rows import Rows
from bedload.worker.runtime import Runtime, Startable

GROUPS = 4
FORGET = 0
INPUT = pa.schema([("name", pa.string()), ("number", pa.int32()), ("what", pa.int64()), ("n", pa.int64())])
FORM = InputFormat(INPUT, ["name", "number"], GROUPS)
EVERY = [KeyGroup(group) for group in range(GROUPS)]
NAME = OperatorName("subject")


@dataclasses.dataclass
class Place:
    x: int
    tags: set[str]
    when: dt.datetime | None = None


class Commanded(Operator):
    """Does what its rows say."""

    def process(self, key: Any, rows: Rows, ctx: Context) -> None:
        for row in rows:
            if row.what == FORGET:
                ctx.forget()
            else:
                self.run(row.what, row.n)

    def run(self, what: int, n: int) -> None:
        raise NotImplementedError


class Small(Commanded):
    """All variables are small: a delta has PUT and REMOVE rows."""

    count: int = bl.value(0)
    mean: float = bl.value(0.0)
    last: dt.datetime | None = bl.value()
    pair: tuple[int, bool] = bl.value((0, False))

    def run(self, what: int, n: int) -> None:
        match what % 4:
            case 0:
                self.count += n - 5
            case 1:
                self.mean = -self.mean if n % 2 else self.mean + n
            case 2:
                self.last = dt.datetime(2026, 1, 1 + n, fold=n % 2, tzinfo=dt.UTC if n % 3 else None)
            case 3:
                self.pair = (n, n > 4)


class Large(Commanded):
    """Every kind of variable that a PATCH row can have."""

    text: str = bl.value("")
    amount: Decimal | None = bl.value()
    lists: dict[str, list[int]] = bl.map()
    tally: Counter[tuple[int, str]] = bl.counter()
    days: set[dt.date] = bl.set()
    recent: deque[dt.timedelta] = bl.deque(maxlen=3)
    speeds: list[float] = bl.list(maxlen=3)
    place: Place | None = bl.value()
    maybe: dict[int | None, int] = bl.map()
    prices: dict[Decimal, int] = bl.map()
    long: list[int] = bl.list()
    loose: Any = bl.value(None, codec="msgspec")
    own: deque[int] | None = bl.value()
    queue: bl.Heap[tuple[int, list[int]]] = bl.heap()
    top: bl.Heap[float] = bl.heap(maxlen=3)
    grid: np.ndarray = bl.array((2, 2), "float32", default=-0.0)
    marks: np.ndarray = bl.array(3, "uint8")
    times: dict[str, dt.datetime] = bl.map()

    def run(self, what: int, n: int) -> None:
        match what % 21:
            case 18:
                row = self.grid[n % 2]
                row *= -1 if n % 3 else 1
            case 19:
                if n % 2:
                    np.add(self.marks, n, out=self.marks)
                else:
                    self.marks = np.full(3, n, "uint8")
            case 20:
                self.times[f"k{n % 3}"] = dt.datetime(2026, 1, 1 + n, tzinfo=dt.UTC if n % 2 else None)
            case 0:
                self.text += str(n)
            case 1:
                self.amount = Decimal(n).scaleb(-(n % 3)) if n else None
            case 2:
                self.lists.setdefault(f"k{n % 3}", []).append(n)
            case 3:
                self.lists.pop(f"k{n % 3}", None)
            case 4:
                self.tally[n % 4, "x"] += 1
            case 5:
                (self.days.add if n % 2 else self.days.discard)(dt.date(2026, 1, 1 + n % 4))
            case 6:
                self.recent.append(dt.timedelta(microseconds=-n))
            case 7:
                self.speeds.append(n / 3 if n else -0.0)
            case 8:
                if self.place is None or n == 0:
                    self.place = Place(n, {"a"})
                self.place.x += n
                self.place.tags.add(f"t{n % 3}")
                self.place.when = dt.datetime(1969, 1, 1 + n)
            case 9:
                self.maybe[n % 3 or None] = n
            case 10:
                self.prices[Decimal("1.0") if n % 2 else Decimal("1.00")] = n
            case 11:
                self.long.extend(range(40 * n))
            case 12:
                if self.long:
                    self.long[n * 7 % len(self.long)] = -n
                    self.long.pop(0)
            case 13:
                self.loose = {"n": [n]}
            case 14:
                self.own = deque([1], 2) if self.own is None else self.own
                self.own.append(n)
            case 15:
                self.queue.extend((i * 7 % 31, [i]) for i in range(30 * n))
                self.top.push(n / 4)
            case 16:
                if self.queue:
                    self.queue.replace((n, [n]))
                    self.queue[len(self.queue) // 2][1].append(n)
            case 17:
                for _ in range(min(n, len(self.queue))):
                    self.queue.pop()


class Columns:
    """The same for columns: numbers, a nullable one, strings and lists."""

    columns: ClassVar = (
        ColumnSpec("total", pa.int64(), 0),
        ColumnSpec("last", pa.float64()),
        ColumnSpec("label", pa.string(), "new"),
        ColumnSpec("items", pa.list_(pa.int64()), []),
    )

    def setup(self, ctx: Context) -> None:
        pass

    def close(self) -> None:
        pass

    def update(self, table: ColumnTable, slots: Slots, batch: pa.RecordBatch, ctx: Context) -> None:
        (slot,), (row,) = slots, batch.to_pylist()
        what, n = row["what"], row["n"]
        if what == FORGET:
            table.delete(slots)
        elif what % 3 == 0:
            table.values("total")[slot] += n
        elif what % 3 == 1:
            table.values("last")[slot] = -0.0 if n == 1 else n / 2
            table.valid("last")[slot] = n > 0
        else:
            table.values("label")[slot] = f"l{n}"
            table.values("items")[slot] = [n] * n

    def result(self, table: ColumnTable, slots: Slots, ctx: Context) -> None:
        return None


KEY = [("name", pa.string()), ("number", pa.int32())]


def rows_of(operator: type[Operator]) -> Deployment:
    return Deployment(NAME, operator, FORM.key, FORM.columns, pa.schema([("n", pa.int64())]), FORM.key_types)


SUBJECTS: dict[str, Startable] = {
    "small": rows_of(Small),
    "large": rows_of(Large),
    "columns": ColumnDeployment(NAME, Columns(), FORM.key, FORM.key_types, GROUPS),
}
subjects = pytest.mark.parametrize("subject", sorted(SUBJECTS))


def schema_of(subject: Startable) -> OperatorSchema:
    return OperatorSchema(
        number=1,
        layout=subject.layout,
        key_names=("name", "number"),
        key_types=pack_schema(pa.schema(KEY)),
        key_groups=GROUPS,
        variables=tuple(
            Variable(name=name, type=text, arrow=pack_schema(pa.schema([field])), kind=kind)
            for name, kind, text, field in subject.variables
        ),
    )


class Command(NamedTuple):
    name: str | None
    number: int
    what: int
    n: int


commands = st.lists(
    st.builds(
        Command,
        st.sampled_from(["a", "bb", None]),
        st.integers(0, 2),
        st.one_of(st.just(FORGET), st.integers(1, 30), st.integers(1, 30)),
        st.integers(0, 9),
    ),
    max_size=12,
)
histories = st.lists(st.tuples(commands, st.booleans()), max_size=5)
History = list[tuple[list[Command], bool]]


def group_of(command: Command) -> KeyGroup:
    return FORM.group((command.name, command.number))


def feed(runtime: Runtime, steps: list[Command]) -> None:
    """One batch per command: a delta does not depend on how rows came."""
    for command in steps:
        runtime.apply(FORM.batch([command._asdict()]))


def exact(runtime: Runtime) -> dict[Any, Any]:
    """The committed state, told apart as finely as it is written: 0.0 from -0.0, 1.0 from 1.00, orders of entries."""

    def form(value: Any) -> Any:
        if isinstance(value, set):
            return sorted(map(repr, value))
        return repr(dataclasses.replace(value, tags=form(value.tags)) if isinstance(value, Place) else value)

    return {key: {name: form(value) for name, value in state.items()} for key, state in runtime.snapshot()}


def restored(subject: Startable, state: pa.RecordBatch | None) -> dict[Any, Any]:
    runtime = subject.start(WorkerId(1))
    runtime.install(EVERY, state)
    return exact(runtime)


def entries(delta: pa.RecordBatch | None) -> list[Any]:
    return [] if delta is None else sorted(map(repr, delta.to_pylist()))


@subjects
@settings(max_examples=40, deadline=None)
@given(history=histories)
def test_the_deltas_of_committed_epochs_are_the_state(subject: str, history: History) -> None:
    deployment = SUBJECTS[subject]
    schema, runtime = schema_of(deployment), deployment.start(WorkerId(0))
    state: pa.RecordBatch | None = None
    deltas = []
    for epoch, (steps, commits) in enumerate(history):
        runtime.begin(Epoch(epoch), EVERY)
        feed(runtime, steps)
        runtime.seal()
        delta = runtime.delta()
        if delta is not None:
            delta.validate(full=True)
            groups = delta.column(GROUP).to_pylist()
            assert groups == sorted(groups)
            named = list(zip(delta.column(2).to_pylist(), delta.column(3).to_pylist(), strict=True))
            assert len(set(named)) == len(named), "a key is named twice"
            assert set(named) <= {step[:2] for step in steps}, "a key is named that the epoch has not met"
            assert (PATCHES in delta.schema.names) == (1 in delta.column(OP).to_pylist())
        if not commits:
            runtime.abort()
            continue
        runtime.commit()
        if delta is not None:
            deltas.append(delta)
            state = merge(schema, state, [delta])
        assert restored(deployment, state) == exact(runtime)
    assert restored(deployment, merge(schema, None, deltas)) == exact(runtime)


@subjects
@settings(max_examples=40, deadline=None)
@given(before=commands, early=commands, late=commands, after=commands, moved=st.sets(st.sampled_from(EVERY)), ends=...)
def test_key_groups_that_come_in_within_an_epoch_are_as_if_they_had_been_there(
    subject: str,
    before: list[Command],
    early: list[Command],
    late: list[Command],
    after: list[Command],
    moved: set[KeyGroup],
    ends: bool,
) -> None:
    deployment = SUBJECTS[subject]
    origin = deployment.start(WorkerId(0))
    origin.begin(Epoch(0), EVERY)
    feed(origin, before)
    origin.seal()
    delta = origin.delta()
    state = merge(schema_of(deployment), None, [] if delta is None else [delta])
    arriving = state.filter(pa.array([group in moved for group in state.column(GROUP).to_pylist()], pa.bool_()))
    there = state.filter(pa.array([group not in moved for group in state.column(GROUP).to_pylist()], pa.bool_()))
    early = [command for command in early if group_of(command) not in moved]

    whole, parts = deployment.start(WorkerId(1)), deployment.start(WorkerId(2))
    whole.install(EVERY, state)
    parts.install([group for group in EVERY if group not in moved], there)
    for runtime in (whole, parts):
        runtime.begin(Epoch(1), EVERY)
        feed(runtime, early)
    parts.install(sorted(moved), arriving)
    for runtime in (whole, parts):
        feed(runtime, late)
        runtime.seal()
    assert entries(parts.delta()) == entries(whole.delta())
    for runtime in (whole, parts):
        runtime.commit() if ends else runtime.abort()
    assert exact(parts) == exact(whole)
    for runtime in (whole, parts):
        runtime.begin(Epoch(2), EVERY)
        feed(runtime, after)
        runtime.seal()
    assert entries(parts.delta()) == entries(whole.delta())
    for runtime in (whole, parts):
        runtime.abort()
        runtime.drop(moved)
    assert exact(parts) == exact(whole)
    parts.install(sorted(moved), arriving)
    if not ends:
        assert exact(parts) == restored(deployment, state)
