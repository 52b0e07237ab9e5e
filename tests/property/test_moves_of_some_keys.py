"""Any change of ownership between three workers, on rows and on columns, against a dict.

As in ``test_moves_in_any_order`` the coordinator is a script. Here key groups and single keys go anywhere, to several
workers at once and back, of keys of any size; epochs touch one key or all of them; and each step that takes some keys
at a time takes few of them, or many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.test_moves_in_any_order import CODE, FEEDER, GROUPS, NAME, PLACES, QUERY, Pair
from tests.thorough import examples

import bedload as bl
from bedload.control.lots import lots_between
from bedload.core.epoch import EpochTime
from bedload.core.ids import Epoch, KeyHash, MoveId, Turn, WorkerId
from bedload.core.limits import Limits
from bedload.keys import RoutingTable, hash_columns, key_groups
from bedload.migration import STRATEGIES, hash_set, lane, pace
from bedload.migration.hash_set import pack as pack_hashes
from bedload.migration.plan import pin, unpin
from bedload.protocol import messages as m
from bedload.protocol.split import pack
from bedload.store import entries, resting
from bedload.store import shelf as any_shelf
from bedload.store.columns import ColumnSpec, interner, memory, slot_table, split_tables
from bedload.store.columns import index as column_index
from bedload.store.columns import shelf as column_shelf
from bedload.worker import moving
from bedload.worker.column_runtime import ColumnDeployment
from bedload.worker.row_runtime import Deployment

OUT = pa.schema([("k", pa.string())])
FORGET = 6
"""A key with so many rows is forgotten."""
STRATEGY_NAMES = [name for name in STRATEGIES if name != "stop_restart"]


def mixed(digest: int, number: int) -> int:
    """A digest that tells in which order rows came."""
    return (digest * 31 + number + 7) % ((1 << 61) - 1)


class Numbers(bl.Operator):
    """Small values alone, so keys that come may rest."""

    n: int = bl.value(0)
    digest: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        for row in rows:
            self.n += 1
            self.digest = mixed(self.digest, row.number)
        if self.n >= FORGET:
            ctx.forget()


class Lists(bl.Operator):
    """A container beside them, and a string."""

    n: int = bl.value(0)
    digest: int = bl.value(0)
    label: str | None = bl.value(None)
    numbers: list[int] = bl.list()

    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        for row in rows:
            self.numbers.append(row.number)
            self.label = None if row.number % 3 == 0 else f"{row.number}" * 30
        Numbers.process(self, key, rows, ctx)  # type: ignore[arg-type]


class Columns:
    """Numbers, and strings if wanted."""

    def __init__(self, *, strings: bool) -> None:
        self.columns: tuple[ColumnSpec, ...] = (
            ColumnSpec("n", pa.int64(), 0),
            ColumnSpec("digest", pa.int64(), 0),
            ColumnSpec("half", pa.float64()),
        )
        self.columns += (ColumnSpec("label", pa.string()),) if strings else ()

    def setup(self, ctx: Any) -> None: ...

    def close(self) -> None: ...

    def update(self, table: Any, slots: Any, batch: pa.RecordBatch, ctx: Any) -> None:
        n, digest = table.values("n"), table.values("digest")
        labels = table.values("label") if len(self.columns) > 3 else None
        for slot, number in zip(slots.tolist(), batch.column("number").to_pylist(), strict=True):
            n[slot] += 1
            digest[slot] = mixed(int(digest[slot]), number)
            table.values("half")[slot], table.valid("half")[slot] = number / 2, number % 2 == 0
            if labels is not None:
                labels[slot] = None if number % 3 == 0 else f"{number}" * 30
        table.delete(np.unique(slots[n[slots] >= FORGET]))

    def result(self, table: Any, slots: Any, ctx: Any) -> None: ...


def deployment(kind: str, key: pa.DataType) -> Any:
    """An operator on rows or on columns."""
    if kind.startswith("columns"):
        return ColumnDeployment(NAME, Columns(strings=kind == "columns of strings"), (0,), (key,), len(GROUPS))
    return Deployment(NAME, Numbers if kind == "numbers" else Lists, (0,), ("k", "number"), OUT, (key,))


class Three(Pair):
    """Three workers, and a routing table."""

    workers = (WorkerId(0), WorkerId(1), WorkerId(2))

    def __init__(self, chance: Any, kind: str) -> None:
        self.random = chance
        count = chance.choice([8, 40, 120])
        if chance.randrange(2):
            self.type, self.keys = pa.string(), ["", "x" * 3000, *(f"key {i}" for i in range(count))]
        else:
            self.type, self.keys = pa.int64(), [-(1 << 63), (1 << 63) - 1, *range(count)]
        limits = Limits(
            ship_keys=chance.choice([1, 2, 5, 200]),
            install_rows=chance.choice([1, 3, 100]),
            free_rows=chance.choice([1, 5, 1000]),
        )
        super().__init__(chance.randrange, deployment(kind, self.type), limits)
        column = pa.array(self.keys, self.type)
        self.hash_of = dict(zip(self.keys, hash_columns([column]).tolist(), strict=True))
        self.group_of = dict(zip(self.keys, key_groups(hash_columns([column]), len(GROUPS)).tolist(), strict=True))
        self.routing = RoutingTable.initial(len(GROUPS), self.workers)
        self.state: dict[Any, tuple[int, int]] = {}
        self.number = 0
        self.moving = False
        """Whether feeders may say what they wait for."""

    # --- epochs ---

    def begin(self) -> None:
        self.turn += 1
        for it in self.workers:
            mine = self.routing.groups_of(it), self.routing.guests_of(it), self.routing.away_from(it)
            self.tell(it, m.Begin(NAME, Turn(self.turn), Epoch(self.epoch), QUERY, CODE, *mine))
            self.tell(it, m.Time(NAME, Turn(self.turn), EpochTime()))

    def feed(self, batches: Any) -> None:
        turn, feeder = Turn(self.turn), -2 - self.turn
        sent = dict.fromkeys(self.workers, 0)
        schema = pa.schema([("k", self.type), ("number", pa.int64()), ("g", pa.int16())])
        for it in self.workers:
            self.put(feeder, it, feeder, m.Join(NAME, turn, FEEDER), schema.serialize())
        for batch in batches:
            for it in self.workers:
                mine = [row for row in batch if self.routing.owner_of_key(KeyHash(self.hash_of[row[0]])) == it]
                if mine:
                    keys, numbers = zip(*mine, strict=True)
                    columns = [keys, numbers, [self.group_of[key] for key in keys]]
                    body, check = pack(
                        pa.RecordBatch.from_arrays(list(map(pa.array, columns, schema.types)), schema=schema)
                    )
                    self.put(feeder, it, feeder, m.Apply(NAME, turn, FEEDER, sent[it], check), body)
                    sent[it] += 1
                if self.moving and self.draw(2):
                    wanted = pack_hashes(np.array([self.hash_of[key] for key, _ in batch], np.int64))
                    self.put(feeder, it, feeder, m.Backlog(NAME, turn, len(batches)), wanted)
        for it in self.workers:
            self.put(feeder, it, feeder, m.Done(NAME, turn, FEEDER, sent[it]), None)
            self.tell(it, m.Expect(NAME, turn, 1))

    def batches(self) -> list[list[tuple[Any, int]]]:
        """Rows of one key, of some, or of all."""
        found = []
        for _ in range(self.random.choice([1, 1, 2, 3])):
            many = self.random.choice([1, 5, 5, 20, len(self.keys) // 2])
            keys = self.keys if self.draw(6) == 0 else self.random.choices(self.keys, k=many)
            found.append([(key, self.number + i) for i, key in enumerate(keys)])
            self.number += len(keys)
        return found

    def run_epoch(self) -> None:
        batches = self.batches()
        for attempt in range(3):
            self.begin()
            self.feed(batches)
            fails = attempt < 2 and self.draw(3) == 0
            if not fails or self.draw(2):
                self.wait(m.Sealed, self.workers, turn=self.turn)
            self.some_steps()
            if not fails:
                break
            self.abort()
        for it in self.workers:
            self.tell(it, m.Commit(NAME, Turn(self.turn)))
        self.base, self.epoch = self.turn, self.epoch + 1
        for batch in batches:
            for key, numbers in _by_key(batch):
                n, digest = self.state.pop(key, (0, 0))
                for number in numbers:
                    n, digest = n + 1, mixed(digest, number)
                if n < FORGET:
                    self.state[key] = n, digest

    def roll_back(self, steps: int) -> None:
        """An epoch that does not count."""
        self.begin()
        self.feed(self.batches())
        if self.draw(2):
            self.wait(m.Sealed, self.workers, turn=self.turn)
        for _ in range(self.draw(steps)):
            self.some_steps()
        self.abort()

    # --- moves ---

    def next_routing(self) -> RoutingTable:
        """Another table: some key groups or single keys live elsewhere."""
        chance, table = self.random, self.routing
        hashes = [
            KeyHash(self.hash_of[key]) for key in chance.sample(self.keys, chance.choice([1, 3, len(self.keys) // 3]))
        ]
        how = chance.randrange(5)
        if how == 1 and table.pins:
            pinned = [it.key for it in table.pins]
            return unpin(table, chance.sample(pinned, 1 + chance.randrange(len(pinned))))
        if how in (0, 2):
            table = pin(table, hashes, chance.choice(self.workers))
        if how == 0:
            return table
        owners = list(table.owners)
        return table.next(owners=[chance.choice(self.workers) if chance.randrange(2) else owner for owner in owners])

    def change(self, number: MoveId) -> None:
        """One move, of whatever goes from anybody to anybody; it may be called off, or given back after its flip."""
        chance, target = self.random, self.next_routing()
        strategy = STRATEGIES[chance.choice(STRATEGY_NAMES)].with_(share=1.0)
        if not (lots := lots_between(self.routing, target)):
            return
        parts = tuple(sorted({it for lot in lots for it in (lot.source, lot.target)}))
        if strategy.copy_ahead:
            sources = tuple(sorted({lot.source for lot in lots}))
            for it in sources:
                mine = tuple(lot for lot in lots if lot.source == it)
                self.tell(it, m.Copy(NAME, number, CODE, mine, PLACES, strategy.terms))
            for _ in range(self.draw(4)):
                self.run_epoch()
            if self.draw(8) == 0:
                self.let_go(number, lots, parts, called_off=True)
                return
            if self.draw(3):
                self.wait(m.Copied, sources, move=number)
            if self.draw(2):
                self.run_epoch()
            if self.draw(3) == 0:
                self.roll_back(3)
        before, self.routing = self.routing, target
        for it in parts:
            leaving, arriving = (tuple(lot for lot in lots if end(lot) == it) for end in (_source, _target))
            said = CODE, leaving, arriving, PLACES, strategy.terms, Epoch(self.epoch - 1), QUERY
            self.tell(it, m.Flip(NAME, number, Turn(self.base), *said))
        self.moving = True
        if self.draw(8) == 0:  # given back, while nothing counts that was done since
            if self.draw(2):
                self.roll_back(10)
            self.moving, self.routing = False, before
            self.let_go(number, lots, parts, called_off=True)
            return
        for _ in range(self.draw(4)):
            self.run_epoch()
        self.wait(m.Arrived, tuple(sorted({lot.target for lot in lots})), move=number)
        if self.draw(2):
            self.run_epoch()
        self.moving = False
        self.let_go(number, lots, parts, called_off=False)

    def let_go(self, number: MoveId, lots: tuple[m.Lot, ...], parts: tuple[WorkerId, ...], *, called_off: bool) -> None:
        for it in parts:
            arriving = tuple(lot for lot in lots if lot.target == it)
            self.tell(it, m.Release(NAME, number, called_off, arriving))
        if self.draw(2):
            self.run_epoch()
        self.wait(m.Released, parts, move=number)
        self.said.clear()

    def check(self) -> None:
        while any(self.links.values()) or any(it.moving for it in self.machines.values()):
            self.step()
        for it in self.workers:
            runtime = self.machines[it].runtime(NAME)
            there = {} if runtime is None else {key: (v["n"], v["digest"]) for key, v in runtime.snapshot()}
            mine = {key for key in self.state if self.routing.owner_of_key(KeyHash(self.hash_of[key])) == it}
            assert there == {key: self.state[key] for key in mine}, f"worker {it}"


def _source(lot: m.Lot) -> WorkerId:
    return lot.source


def _target(lot: m.Lot) -> WorkerId:
    return lot.target


def _by_key(batch: list[tuple[Any, int]]) -> Iterator[tuple[Any, list[int]]]:
    found: dict[Any, list[int]] = {}
    for key, number in batch:
        found.setdefault(key, []).append(number)
    return iter(found.items())


def few_at_a_time(patch: pytest.MonkeyPatch, chance: Any) -> None:
    """Steps and tables of all sizes, so that what takes several of them with millions of keys does so here."""
    for where, name, sizes in (
        (split_tables, "WIDEST", [64, 65536]),
        (interner, "_SWEPT_FROM", [1, 4096]),
        (slot_table, "_TIDIED", [2, 16384]),
        (column_index, "KEPT_PLACES", [2, 65536]),
        (memory, "_SMALL", [0, 4096]),
        (column_shelf, "_ONE_BY_ONE", [64, 1 << 15]),
        (moving, "_DROP_KEYS", [1, 7, 1 << 14]),
        (lane, "_SOME", [1, 10, 8192]),
        (lane, "MOST_BYTES", [1, 300, 1 << 22]),
        (pace, "_FIRST_KEYS", [1, 16, 256]),
        (pace, "_FEWEST_KEYS", [1.0, 16.0]),
        (pace, "_FEWEST_LISTED", [1.0, 10.0, 1024.0]),
        (pace, "_MOST_NOTED", [1.0, 10.0, 4096.0]),
        (hash_set, "FULL", [4, 1 << 19]),
        (entries, "_RUN", [8, 1 << 17]),
        (entries, "_TINY", [2, 256]),
        (any_shelf, "_GROUP", [1, 64]),
        (resting, "FEW", [1, 32]),
    ):
        patch.setattr(where, name, chance.choice(sizes))


@pytest.mark.parametrize("kind", ["numbers", "lists", "columns", "columns of strings"])
@examples(8)
@given(random=st.randoms(use_true_random=True))
def test_each_key_is_with_its_owner_whatever_was_moved(kind: str, random: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        few_at_a_time(patch, random)
        three = Three(random, kind)
        three.run_epoch()
        for number in range(1 + three.draw(4)):
            three.change(MoveId(number))
            if three.draw(3) == 0:
                three.check()
        three.run_epoch()
        three.check()
