"""What every store must do: :class:`~bedload.store.StateTable`, as production has it.

A layout joins by a :class:`Subject` in ``LAYOUTS``: it says what state it has, and how operator code of that layout
changes it. Another store of rows joins as a subject of its own, with another ``make_store``. Everything else goes
through the protocol, against a model of plain dicts.
"""

from __future__ import annotations

import atexit
import copy
import itertools
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pytest
import rocksdict
from hypothesis import example, given
from hypothesis import strategies as st
from tests.disks import PAGE, MemoryDisk, Slabs
from tests.redis_server import MISSING, RedisProcess, available
from tests.remotes import MemoryRemote, MemoryServer
from tests.shelves import drop, meant, note, noted, shelved
from tests.thorough import examples

import bedload.store.columns.table
import bedload.store.rows
from bedload import state as bl
from bedload.checkpoint.forms import StateForm
from bedload.checkpoint.merge import merge_checked
from bedload.core.errors import ProtocolError, StateTypeError
from bedload.core.ids import KeyGroup, OperatorName, Turn, WorkerId
from bedload.keys import hash_columns
from bedload.state import RecordLayout, codec
from bedload.store import StateTable
from bedload.store.cache import Cache
from bedload.store.columns import ColumnSpec, ColumnTable
from bedload.store.columns.paged_table import PagedTable
from bedload.store.columns.pager import Pager
from bedload.store.deltas import GROUP, OP, PUT, REMOVE, key_column
from bedload.store.disk import PACKED, Packing
from bedload.store.disk_rows import DiskStore
from bedload.store.disk_table import DiskTable
from bedload.store.remote import Remote
from bedload.store.remote_rows import RemoteStore
from bedload.store.remote_table import RemoteTable
from bedload.store.resting import RestingStore
from bedload.store.row_table import RowTable
from bedload.worker.local_stores import RocksDisk, Shared
from bedload.worker.operator import Operator, make_shared, state_of
from bedload.worker.redis_remote import RedisServer

KEYS = "abcdef"
GROUPS = 3
EVERY = [KeyGroup(group) for group in range(GROUPS)]
KEY = key_column(0)
Model = dict[str, dict[str, Any]]


@pytest.fixture(autouse=True, scope="module")
def _small_slices() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (bedload.store.rows, bedload.store.columns.table):
            patch.setattr(module, "SLICE", 2)
        yield


def group_of(key: str) -> KeyGroup:
    return KeyGroup(KEYS.index(key) % GROUPS)


def hashes_of(keys: Any) -> set[int]:
    return set(hash_columns([pa.array(sorted(keys), pa.string())]).tolist())


# --- what operator code does ---


class Add(NamedTuple):
    """Add to every variable of a key."""

    key: str
    number: int


class Undo(NamedTuple):
    """Add to a variable of a key and take it away again."""

    key: str
    number: int


class Drop(NamedTuple):
    """Take something away, and assign a new list."""

    key: str
    number: int


class Forget(NamedTuple):
    """Remove a key."""

    key: str


class Misfit(NamedTuple):
    """Assign what is not of the declared type."""

    key: str


Op = Add | Undo | Drop | Forget | Misfit


class Subject(Protocol):
    """One layout: its state, and how its operator code changes it. Every state has an integer ``total``."""

    variables: dict[str, pa.DataType]
    packs: bool
    """Whether what leaves is encoded as it lies on a disk."""
    named_by_drop: frozenset[str]
    """The variables that the changes name for a key of which only :class:`Drop` was run."""

    def make(self) -> StateTable: ...

    def fresh(self) -> dict[str, Any]:
        """The state of a new key."""
        ...

    def change(self, state: Any, op: Op) -> None:
        """What operator code does, to live state as to a model of it."""
        ...

    def run(self, table: Any, op: Op) -> None:
        """Do it in the table."""
        ...


class Shape(Operator):
    total: int = bl.value(0)
    tags: dict[int, list[int]] = bl.map()
    tally: Counter[int] = bl.counter()
    recent: deque[int] = bl.deque()
    items: list[int] = bl.list()


class Rows:
    """One object per key."""

    operator: type[Operator] = Shape
    packs = False
    named_by_drop = frozenset({"tags", "items"})

    def __init__(self) -> None:
        self.variables = {field.name: field.type for field in codec.arrow_schema(state_of(self.operator))}

    def make(self) -> StateTable:
        return self.bound(RowTable(OperatorName("rows"), RestingStore))

    def bound(self, table: RowTable) -> RowTable:
        layout = RecordLayout(state_of(self.operator))
        table.bind(layout, make_shared(self.operator, {}, layout, table.slots)[1], 1, [pa.string()])
        return table

    def fresh(self) -> dict[str, Any]:
        return {"total": 0, "tags": {}, "tally": Counter(), "recent": deque(), "items": []}

    def change(self, state: Any, op: Op) -> None:
        match op:
            case Add(number=number):
                state.total += number
                state.tags.setdefault(number % 3, []).append(number)
                state.tally[number % 2] += 1
                state.recent.append(number)
            case Undo(number=number):
                state.total += number
                state.recent.append(number)
                state.recent.pop()
                state.total -= number
            case Drop(number=number):
                state.tags.pop(number % 3, None)
                state.items = [*state.items, number][-3:]
            case Misfit():
                state.items = 5

    def run(self, table: Any, op: Op) -> None:
        store = table._store(group_of(op.key))  # a key group that was moved away within the epoch begins anew
        (live,) = store.touch([op.key])
        if isinstance(op, Forget):
            store.forget([op.key])
        else:
            self.change(live, op)


class Numbers(Operator):
    total: int = bl.value(0)
    last: float | None = bl.value(None)


class SmallRows(Rows):
    """One object of small values per key: their delta is gathered in another way."""

    operator = Numbers
    named_by_drop = frozenset({"last"})

    def fresh(self) -> dict[str, Any]:
        return {"total": 0, "last": None}

    def change(self, state: Any, op: Op) -> None:
        match op:
            case Add(number=number):
                state.total += number
                state.last = number / 2
            case Undo(number=number):
                state.total += number
                state.total -= number
            case Drop(number=number):
                state.last = number / 4 + 0.1
            case Misfit():
                state.total = "five"


class RowsOnDisk(Rows):
    """Rows of which those stay in memory that the epoch under way has touched."""

    packs = True

    def make(self) -> StateTable:
        return self.bound(EagerTable(OperatorName("rows"), MemoryDisk(), Cache(0)))


class SmallRowsOnDisk(SmallRows):
    """The same of small values."""

    packs = True

    def make(self) -> StateTable:
        return self.bound(EagerTable(OperatorName("rows"), MemoryDisk(), Cache(0)))


class RowsOnRocks(SmallRowsOnDisk):
    """The same in a RocksDB, of which some leave memory in the end."""

    def make(self) -> StateTable:
        return self.bound(DiskTable(OperatorName("rows"), OnRocks(), Cache(600)))


class LeavingTable(DiskTable):
    """What can leave memory does so as soon as it can."""

    def commit(self) -> None:
        super().commit()
        self.leave()

    def abort(self) -> None:
        super().abort()
        self.leave()

    def delta(self) -> pa.RecordBatch | None:
        self.leave()
        return super().delta()

    def leave(self) -> None:
        while self.untidy:
            self.tidy_disk()


class EagerTable(LeavingTable):
    """The same; and of what is dead there, some is taken from the disk."""

    def leave(self) -> None:
        super().leave()
        for store in self.stores.values():
            assert isinstance(store, DiskStore)
            dead = [key for key in store._buried if len(key) % 2 == 1]
            self.place.write([], map(store.name, dead))
            store.cleared(dead)


class OnRocks(MemoryDisk):
    """All tables of a test have the same database, each under a prefix of its own: to make one takes long."""

    numbers = itertools.count()
    rocks: ClassVar[list[RocksDisk]] = []

    def __init__(self) -> None:
        super().__init__()
        if not self.rocks:
            folder = Path(tempfile.mkdtemp())
            atexit.register(shutil.rmtree, folder)
            shared = Shared(rocksdict.Cache(1 << 20), rocksdict.WriteBufferManager(1 << 20, False), 1 << 20)
            self.rocks.append(RocksDisk(folder / "rocks", shared, "a test"))
        self.prefix = b"%10d" % next(self.numbers)

    def get(self, names: list[bytes]) -> list[bytes | None]:
        return self.rocks[0].get([self.prefix + name for name in names])

    def write(self, puts: Any, deletes: Any = ()) -> int:
        deletes = [self.prefix + name for name in deletes]
        return self.rocks[0].write(((self.prefix + name, data) for name, data in puts), deletes)

    def drop(self, prefix: bytes) -> None:
        self.rocks[0].drop(self.prefix + prefix)

    def names(self, prefix: bytes) -> Iterator[bytes]:
        return (name[len(self.prefix) :] for name in self.rocks[0].names(self.prefix + prefix))

    def close(self) -> None:
        self.drop(b"")


class SmallRowsInRemote(SmallRows):
    """Rows in a remote store, of which those stay in memory that the epoch under way has touched."""

    packs = True

    def make(self) -> StateTable:
        return self.bound(WritingTable(OperatorName("rows"), self.remote(), Cache(0)))

    def remote(self) -> Remote:
        return MemoryRemote(MemoryServer())


class RowsInRemote(Rows):
    """The same of containers."""

    packs = True

    def make(self) -> StateTable:
        return self.bound(WritingTable(OperatorName("rows"), MemoryRemote(MemoryServer()), Cache(0)))


class RowsInRedis(SmallRowsInRemote):
    """The same in a Redis, which all tables of a test share: each has an operator of its own."""

    numbers = itertools.count()
    servers: ClassVar[list[RedisServer]] = []

    def remote(self) -> Remote:
        if not available():
            pytest.skip(MISSING)
        if not self.servers:
            process = RedisProcess()
            atexit.register(process.close)
            self.servers.append(RedisServer(process.url, WorkerId(0)))
        return self.servers[0].open(str(next(self.numbers)))


class WritingTable(LeavingTable, RemoteTable):
    """A seal writes, as the worker's machine has it; what can leave memory does so as soon as it can."""

    by_place = False
    turn = base = Turn(-1)

    def seal(self, *arguments: Any, **more: Any) -> None:
        super().seal(*arguments, **more)
        again = [store for store in self.stores.values() if isinstance(store, RemoteStore) and store.back is not None]
        for store in again:
            store.undoes = True
        self.turn = Turn(self.turn + 1)
        self.stand(self.turn, self.base, EVERY)
        self.write(self.turn, lambda group: True)

    def commit(self) -> None:
        self.base = self.turn
        super().commit()


class Slot:
    """One key of a table, with its columns as attributes."""

    def __init__(self, table: ColumnTable, slot: int) -> None:
        self.__dict__.update(table=table, slot=slot)

    def __getattr__(self, name: str) -> Any:
        (spec,) = (spec for spec in self.table.columns if spec.name == name)
        if spec.nullable and not self.table.valid(name)[self.slot]:
            return None
        value = self.table.values(name)[self.slot]
        return value.item() if spec.fixed else value

    def __setattr__(self, name: str, value: Any) -> None:
        (spec,) = (spec for spec in self.table.columns if spec.name == name)
        if spec.nullable:
            self.table.valid(name)[self.slot] = value is not None
        if value is not None or not spec.fixed:
            # Under a null the old number stays: nobody may look at it.
            self.table.values(name)[self.slot] = value


class Columns:
    """Slots of arrays. A row is one entry of the changes."""

    packs = False
    named_by_drop = frozenset({"total", "last", "label", "odd", "items"})
    specs = (
        ColumnSpec("total", pa.int64(), 0),
        ColumnSpec("last", pa.float64()),
        ColumnSpec("label", pa.string(), "new"),
        ColumnSpec("odd", pa.bool_(), False),
        ColumnSpec("items", pa.list_(pa.int64()), []),
    )

    def __init__(self) -> None:
        self.variables = {spec.name: spec.type for spec in self.specs}

    def make(self) -> StateTable:
        return ColumnTable([pa.string()], self.specs, GROUPS, block=2)

    def fresh(self) -> dict[str, Any]:
        return {"total": 0, "last": None, "label": "new", "odd": False, "items": []}

    def change(self, state: Any, op: Op) -> None:
        match op:
            case Add(number=number):
                state.total += number
                state.last = number / 2
                state.label = f"{number} was added"
                state.odd = number % 2 == 1
                state.items = [*state.items, number][-2:]
            case Undo(number=number):
                last = state.last
                state.total += number
                state.last = 0.5
                state.total -= number
                state.last = last
            case Drop(number=number):
                state.last = None
                state.items = [number, number]
            case Misfit():
                state.items = 5

    def run(self, table: Any, op: Op) -> None:
        slots = table.locate([pa.array([op.key])], np.array([group_of(op.key)]))
        if isinstance(op, Forget):
            table.delete(slots)
        else:
            self.change(Slot(table, int(slots[0])), op)
        table.check()


class NumbersOnDisk(Columns):
    """Columns of numbers alone, of which hardly any are in memory."""

    named_by_drop = frozenset({"total", "last", "odd", "far"})
    specs = (
        ColumnSpec("total", pa.int64(), 0),
        ColumnSpec("last", pa.float64()),
        ColumnSpec("odd", pa.bool_(), False),
        ColumnSpec("far", pa.decimal128(30, 2), Decimal(0)),
    )

    def make(self) -> StateTable:
        return Leaving([pa.string()], self.specs, GROUPS, Pager(Cache(0), slab=PAGE), Slabs, block=2)

    def fresh(self) -> dict[str, Any]:
        return {"total": 0, "last": None, "odd": False, "far": Decimal(0).quantize(Decimal("0.01"))}

    def change(self, state: Any, op: Op) -> None:
        match op:
            case Add(number=number):
                state.total += number
                state.last = number / 2
                state.odd = number % 2 == 1
            case Undo(number=number):
                last = state.last
                state.last = 0.5
                state.last = last
            case Drop():
                state.last = None


class Leaving(PagedTable):
    """A table of which everything is on disk whenever something comes, and where it is looked often."""

    def locate(self, keys: Sequence[pa.Array], groups: Any) -> Any:
        slots = super().locate(keys, groups)
        self.leave()
        return slots

    def seal(self) -> None:
        super().seal()
        self.leave()

    def parts(self, count: int) -> Iterator[slice]:
        self._pager.rows = 1
        yield from super().parts(count)

    def leave(self) -> None:
        """Whatever can leave does, and no page stays."""
        self._pager.epoch()
        while self.untidy:
            self.tidy_disk()
        for array in self._memory.arrays:
            array.let_go()
        assert self._memory.laid_bytes
        self.check()


LAYOUTS: dict[str, Callable[[], Subject]] = {
    "columns": Columns,
    "columns on disk": NumbersOnDisk,
    "rows": Rows,
    "small rows": SmallRows,
    "rows on disk": RowsOnDisk,
    "small rows on disk": SmallRowsOnDisk,
    "rows on RocksDB": RowsOnRocks,
    "rows in a remote store": RowsInRemote,
    "small rows in a remote store": SmallRowsInRemote,
    "small rows in Redis": RowsInRedis,
}
layouts = pytest.mark.parametrize("layout", sorted(LAYOUTS))


# --- a table beside a model of it ---


class _Plain:
    def __init__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class Beside:
    """A table, and what it must hold. Every step checks what can be seen from outside."""

    def __init__(self, layout: str) -> None:
        self.subject = LAYOUTS[layout]()
        self.table = self.subject.make()
        self.form = StateForm((pa.string(),), self.subject.variables, GROUPS)
        self.committed: Model = {}
        self.current: Model = {}
        self.touched: set[str] = set()
        self.sealed = False
        self.table.begin(EVERY)

    # --- epochs ---

    def run(self, *steps: Op) -> None:
        for op in steps:
            self.subject.run(self.table, op)
            self.touched.add(op.key)
            self.sealed = False
            if isinstance(op, Forget):
                self.current.pop(op.key, None)
                continue
            plain = _Plain(copy.deepcopy(self.current.get(op.key) or self.subject.fresh()))
            self.subject.change(plain, op)
            self.current[op.key] = vars(plain)
        self.check()

    def seal(self) -> None:
        self.table.seal()
        self.sealed = True
        before, after = self.committed, self.current
        differing = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        found = list(self.table.changes())
        named = {key for part in found for key in (*part.entries, *part.removed)}
        assert differing <= named <= self.touched
        assert all(group_of(key) == part.group for part in found for key in (*part.entries, *part.removed))
        assert {key for part in found for key in part.removed} == before.keys() - after.keys()
        created = {key for part in found for key in part.created}
        assert after.keys() - before.keys() <= created <= after.keys() & named
        delta = self.table.delta()
        assert self.read_back(delta) == self.current
        if delta is not None:
            assert set(delta.column(KEY).to_pylist()) <= self.touched
            assert delta.column(GROUP).to_pylist() == sorted(map(group_of, delta.column(KEY).to_pylist()))
        self.check()

    def read_back(self, delta: pa.RecordBatch | None) -> Model:
        """What another table holds that gets the committed state with this delta."""
        state = merge_checked(self.form, self.state_form(), [] if delta is None else [delta])
        other = self.subject.make()
        other.install(EVERY, state)
        return dict(other.snapshot())

    def state_form(self) -> pa.RecordBatch:
        """The committed state."""
        keys = sorted(self.committed, key=group_of)
        parts = [self.form.empty().drop_columns([GROUP, KEY])]
        parts += [self.table.read_encoded(group, [key for key in keys if group_of(key) == group]) for group in EVERY]
        (state,) = pa.Table.from_batches(parts).combine_chunks().to_batches() or [parts[0]]
        columns = [pa.array([group_of(key) for key in keys], pa.int16()), pa.array(keys, pa.string()), *state.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.form.schema)

    def commit(self) -> None:
        self.seal()
        self.table.commit()
        self._ended(self.current)

    def abort(self) -> None:
        self.table.abort()
        self._ended(self.committed)

    def _ended(self, state: Model) -> None:
        self.committed, self.current = state, copy.deepcopy(state)
        self.touched, self.sealed = set(), False
        self.check()
        self.table.begin(EVERY)

    # --- state that comes and goes ---

    def collected(self, group: KeyGroup) -> pa.RecordBatch | None:
        """What a shelf of a key group gives of it."""
        mine = {key for key in self.committed.keys() | self.current.keys() if group_of(key) == group}
        shelf = shelved(self.table, [group])
        # A key that came and went in the epoch may be there, too.
        mine |= {key for key in self.touched if hashes_of(key) <= set(shelf.hashes.tolist()) and group_of(key) == group}
        assert set(shelf.hashes.tolist()) == hashes_of(mine)
        held = set() if self.sealed else mine & self.touched
        batch, left = shelf.collect_range(0, len(shelf.hashes))
        assert set(left.tolist()) == hashes_of(held)
        ops = (
            {} if batch is None else dict(zip(batch.column(KEY).to_pylist(), batch.column(OP).to_pylist(), strict=True))
        )
        assert ops == {key: PUT if key in self.current else REMOVE for key in mine - held}
        assert set(note(shelf).tolist()) >= hashes_of(mine & self.touched)
        return batch

    def take_in(self, batch: pa.RecordBatch, state: Model) -> None:
        """``batch`` has these keys, and takes the others out that it names."""
        named = set(batch.column(KEY).to_pylist())
        if named & self.touched:
            with pytest.raises(ProtocolError, match="touched"):
                self.table.take_in(batch)
        else:
            self.table.take_in(batch)
            for model in (self.committed, self.current):
                for key in named:
                    model.pop(key, None)
                model.update(copy.deepcopy({key: value for key, value in state.items() if key in named}))
        self.check()

    def drop(self, group: KeyGroup, *, shelf: bool) -> bool:
        """Forget a key group, if the epoch has not touched it."""
        mine = {key for key in self.committed.keys() | self.current.keys() if group_of(key) == group}
        shelves = self.table.shelve(meant([group]))
        forget = (lambda: drop(shelves)) if shelf else (lambda: self.table.drop([group]))
        touched = {key for key in self.touched if group_of(key) == group}
        if mine & touched or (touched and not shelf):
            with pytest.raises(ProtocolError, match="touched"):
                forget()
        elif not touched:
            forget()
            for model in (self.committed, self.current):
                for key in mine:
                    model.pop(key, None)
        self.check()
        return not touched

    def install(self, group: KeyGroup, state: pa.RecordBatch | None, model: Model) -> None:
        """Put a key group in; it must be empty."""
        if any(group_of(key) == group for key in (*self.committed, *self.current, *self.touched)):
            with pytest.raises(ProtocolError, match="has state already"):
                self.table.install([group], state)
        else:
            self.table.install([group], state)
            self.committed.update(copy.deepcopy(model))
            self.current.update(copy.deepcopy(model))
        self.check()

    def check(self) -> None:
        found = list(self.table.snapshot())
        assert dict(found) == self.committed
        assert len(found) == len(self.committed)
        for group in EVERY:
            keys = [key for key in (*KEYS, "nobody") if key == "nobody" or group_of(key) == group]
            assert self.table.read(group, keys) == [self.committed.get(key) for key in keys]
        sizes = self.table.sizes()
        assert sizes.keys == self.table.keys_in(EVERY) >= len(self.current)
        assert (sizes.touched > 0) == (self.table.image_bytes() > 0) == bool(self.touched)
        if not self.touched:
            assert sizes.keys == len(self.committed)
            assert (self.table.encoded_bytes() > 0) == bool(self.committed)


@pytest.fixture(params=sorted(LAYOUTS))
def beside(request: pytest.FixtureRequest) -> Beside:
    return Beside(request.param)


def in_columns(beside: Beside, batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch as a checkpoint would have it."""
    if not beside.subject.packs:
        return batch
    operator = beside.subject.operator
    specs = state_of(operator)
    values = Packing(RecordLayout(specs)).values(batch.column(PACKED).to_pylist())
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    parts = batch.drop_columns([PACKED]), codec.encode(specs, rows)
    names = [name for part in parts for name in part.schema.names]
    return pa.RecordBatch.from_arrays([column for part in parts for column in part.columns], names=names)


def another(beside: Beside) -> Beside:
    (name,) = (name for name, make in LAYOUTS.items() if type(beside.subject) is make)
    return Beside(name)


# --- random histories ---


class Epoch(NamedTuple):
    """The end of one."""

    ending: str


class Move(NamedTuple):
    """A key group goes from a table to the other, as far as it can."""

    group: KeyGroup
    to: int


class Reinstall(NamedTuple):
    """A key group is dropped, and put in as it was."""

    group: KeyGroup


keys = st.sampled_from(KEYS)
numbers = st.integers(0, 9)
ops = st.one_of(
    st.builds(Add, keys, numbers),
    st.builds(Undo, keys, numbers),
    st.builds(Drop, keys, numbers),
    st.builds(Forget, keys),
)
groups = st.sampled_from(EVERY)
others = st.one_of(
    st.builds(Epoch, st.sampled_from(["seal", "commit", "commit", "abort"])),
    st.builds(Move, groups, st.integers(0, 1)),
    st.builds(Reinstall, groups),
)
Step = Op | Epoch | Move | Reinstall
histories = st.lists(st.tuples(st.integers(0, 1), st.one_of(ops, ops, ops, others)), max_size=30)


def take(sides: list[Beside], at: int, step: Step) -> None:
    side = sides[at]
    match step:
        case Epoch(ending):
            getattr(side, ending)()
        case Move(group, to):
            batch, state = side.collected(group), copy.deepcopy(side.current)
            if batch is not None and side.drop(group, shelf=True):
                sides[to].take_in(batch, state)
        case Reinstall(group):
            batch, state = side.collected(group), copy.deepcopy(side.current)
            side.install(group, None, {})
            if side.drop(group, shelf=False):
                mine = {key: value for key, value in state.items() if group_of(key) == group}
                side.install(group, None if batch is None else batch.drop_columns([OP]), mine)
        case _:
            if side.sealed:
                side.commit()
            side.run(step)


@layouts
@examples(80)
@given(history=histories)
@example(history=[(0, Forget("f")), (1, Add("f", 0)), (1, Epoch("seal")), (1, Forget("a")), (1, Move(2, 0))])
def test_a_table_holds_what_plain_dicts_would_hold(layout: str, history: list[tuple[int, Any]]) -> None:
    sides = [Beside(layout), Beside(layout)]
    for at, step in history:
        take(sides, at, step)
    for side in sides:
        side.commit()


@layouts
@examples(40)
@given(
    before=st.lists(ops, max_size=8),
    within=st.lists(ops, max_size=8),
    ending=st.sampled_from(["commit", "abort"]),
    early=st.integers(0, 8),
)
def test_what_was_copied_before_an_epoch_is_put_right_by_what_the_epoch_noted(
    layout: str, before: list[Op], within: list[Op], ending: str, early: int
) -> None:
    """``early``: so many keys are noted before the epoch ends, the others after it."""
    here, there = Beside(layout), Beside(layout)
    here.run(*before)
    here.commit()
    shelf = shelved(here.table, EVERY)
    swept, _ = shelf.collect_range(0, len(shelf.hashes))
    here.run(*within)
    here.seal()
    shelf.sealed()
    first = shelf.note_some(early)
    changed, left = shelf.collect(first)
    assert not len(left)
    getattr(here, ending)()
    again, _ = shelf.collect(np.concatenate((first, noted(shelf))))
    for batch in (swept, changed, again):
        if batch is not None:
            there.table.take_in(batch)
    assert dict(there.table.snapshot()) == here.committed


# --- by example ---


def test_keys_that_come_in_within_an_epoch_are_committed_state(beside: Beside) -> None:
    other = another(beside)
    other.run(Add("b", 2), Add("e", 2))
    other.commit()
    batch = other.collected(group_of("b"))
    assert batch is not None
    beside.run(Add("a", 1))
    beside.take_in(batch, other.committed)
    beside.run(Add("b", 5), Forget("e"))
    beside.seal()
    assert beside.committed.keys() == {"b", "e"}
    beside.abort()
    assert {key: state["total"] for key, state in beside.committed.items()} == {"b": 2, "e": 2}


def test_state_that_does_not_fit_leaves_nothing(beside: Beside) -> None:
    other = another(beside)
    other.run(*(Add(key, 2) for key in KEYS))
    other.commit()
    beside.run(Add("a", 1))
    for group in EVERY[1:]:
        batch = other.collected(group)
        assert batch is not None
        batch = in_columns(beside, batch)
        at = batch.schema.get_field_index("total")
        wrong = batch.set_column(at, "total", pa.array(["x"] * batch.num_rows))
        for arrive in (lambda wrong=wrong: beside.table.take_in(wrong), lambda wrong=wrong: _install(beside, wrong)):
            with pytest.raises(StateTypeError):
                arrive()
            beside.check()
    beside.commit()


def _install(beside: Beside, batch: pa.RecordBatch) -> None:
    beside.table.install(
        sorted({KeyGroup(group) for group in batch.column(GROUP).to_pylist()}), batch.drop_columns([OP])
    )


def test_a_variable_that_the_state_does_not_have_gets_its_default(beside: Beside) -> None:
    other = another(beside)
    other.run(Add("a", 3))
    other.commit()
    batch = other.collected(group_of("a"))
    assert batch is not None
    beside.table.install(EVERY, in_columns(beside, batch).select([GROUP, KEY, "total"]))
    assert dict(beside.table.snapshot()) == {"a": {**beside.subject.fresh(), "total": 3}}


def test_just_the_keys_that_are_meant_are_on_a_shelf(beside: Beside) -> None:
    beside.run(*(Add(key, 1) for key in KEYS))
    beside.commit()
    some = np.array(sorted(hashes_of("ab")))
    table = beside.table
    assert set(shelved(table, EVERY, only=some).hashes.tolist()) == hashes_of("ab")
    assert set(shelved(table, EVERY, without=some).hashes.tolist()) == hashes_of("cdef")
    assert set(shelved(table, EVERY[:1], only=some).hashes.tolist()) == hashes_of("a")
    drop(table.shelve(meant(EVERY, only=some)))
    assert {key for key, _ in table.snapshot()} == set("cdef")


def test_a_key_that_was_changed_back_is_no_change(beside: Beside) -> None:
    beside.run(Add("a", 1))
    beside.commit()
    beside.run(Undo("a", 7))
    beside.seal()
    assert [part.entries for part in beside.table.changes() if part.entries or part.removed] == []
    assert beside.table.delta() is None
    assert beside.table.sizes().touched == 1


def test_a_key_that_was_removed_and_made_again_is_whole_in_the_changes(beside: Beside) -> None:
    beside.run(Add("a", 1))
    beside.commit()
    beside.run(Forget("a"), Add("a", 2))
    beside.seal()
    (changes,) = beside.table.changes()
    assert (changes.created, changes.removed, changes.entries["a"]["total"]) == ({"a"}, (), 2)
    beside.abort()


def test_a_key_that_came_and_went_in_one_epoch_leaves_nothing(beside: Beside) -> None:
    beside.run(Add("a", 1), Forget("a"))
    beside.seal()
    assert beside.table.delta() is None
    beside.commit()


def test_changes_are_small_when_little_changed(beside: Beside) -> None:
    beside.run(*(Add("a", number) for number in range(300)))
    beside.commit()
    beside.run(Drop("a", 1))
    beside.seal()
    (changes,) = beside.table.changes()
    assert set(changes.entries["a"]) == beside.subject.named_by_drop


def test_what_does_not_fit_its_declaration_is_refused_at_the_seal(beside: Beside) -> None:
    if isinstance(beside.subject, NumbersOnDisk):
        pytest.skip("what is no number cannot be assigned in the first place")
    beside.run(Misfit("a"))
    with pytest.raises(StateTypeError):
        beside.table.seal()
    beside.abort()


def test_an_epoch_cannot_begin_before_the_last_one_ended(beside: Beside) -> None:
    beside.run(Add("a", 1))
    with pytest.raises(ProtocolError):
        beside.table.begin(EVERY)


def test_what_goes_out_shares_nothing_with_the_live_state(beside: Beside) -> None:
    beside.run(Add("a", 1))
    beside.commit()
    (state,) = beside.table.read(group_of("a"), ["a"])
    assert state is not None
    batch = beside.collected(group_of("a"))
    assert batch is not None
    before = batch.to_pylist()
    for name in ("tags", "items", "recent"):
        if name in state:
            state[name].clear()
    state["total"] = -1
    beside.check()
    beside.run(Add("a", 5), Drop("a", 5))
    beside.commit()
    assert batch.to_pylist() == before
