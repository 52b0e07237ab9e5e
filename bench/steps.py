"""The longest steps that a worker's thread takes, by kind: moves, pins and restores of much state, without Spark.

    python -m bench.steps                      # 5 M keys in columns, 1 M rows: five minutes
    python -m bench.steps --keys 1000000 --cases int-256,rows-256

Two machines of the worker's protocol, one after the other on this thread; messages pass from hand to hand. Each call is
a step: rows of all other keys wait for it. Measured is processor time, so that other work on the machine counts little.
"""

import argparse
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import bedload as bl
from bedload.core.clock import SystemClock
from bedload.core.epoch import EpochTime
from bedload.core.ids import (
    NO_EPOCH,
    NO_TURN,
    DeploymentId,
    Epoch,
    KeyGroup,
    KeyHash,
    OperatorName,
    QueryId,
    Ticket,
    Turn,
    WorkerId,
)
from bedload.keys import hash_columns, key_groups
from bedload.migration import strategy_named
from bedload.operators.aggregates import Aggregates
from bedload.protocol import messages as m
from bedload.protocol.split import pack
from bedload.store.columns import warm_up
from bedload.store.deltas import GROUP, key_column
from bedload.worker.column_runtime import ColumnDeployment
from bedload.worker.durability import Load, Loaded
from bedload.worker.machine import COORDINATOR, WorkerMachine
from bedload.worker.peers import Neighbour
from bedload.worker.row_runtime import Deployment
from bedload.worker.runtime import Startable
from bedload.worker.server import YOUNG

NAME, QUERY, CODE = OperatorName("count"), QueryId("query"), DeploymentId(0)
OLD, NEW = WorkerId(0), WorkerId(1)
PLACES = {OLD: "a", NEW: "b"}
CHUNK = 1 << 18
TOUCHED = 100_000
"""Rows of different keys in an epoch, of which half leave."""
PINS = 64
TARGET_MS = 20.0


class Count(bl.Operator):
    """Counts the rows of a key."""

    n: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        self.n += len(rows)
        return key, self.n


@dataclass(frozen=True)
class Case:
    """A layout, a type of key, and how many of both."""

    name: str
    keys: int
    groups: int
    key_type: pa.DataType
    rows: bool = False

    def deployment(self) -> Startable:
        """The running count."""
        key = pa.schema([("key", self.key_type)])
        if self.rows:
            out = key.append(pa.field("n", pa.int64()))
            return Deployment(NAME, Count, (0,), ("key",), out, (self.key_type,))
        logic = Aggregates({"n": bl.agg.count()}, key, (0,), ["key"])
        return ColumnDeployment(NAME, logic, (0,), (self.key_type,), self.groups)


def cases(keys: int) -> list[Case]:
    """All of them."""
    int_, text = pa.int64(), pa.string()
    columns = [
        (f"{name}-{groups}", kind, groups) for name, kind in (("int", int_), ("str", text)) for groups in (256, 4)
    ]
    made = [Case(name, keys, groups, kind) for name, kind, groups in columns]
    return [*made, *(Case(f"rows-{groups}", keys // 5, groups, int_, rows=True) for groups in (256, 4))]


class Pair:
    """An old owner with state, and a new one without."""

    def __init__(self, case: Case, strategy: str) -> None:
        self.case = case
        self.longest: dict[str, float] = {}
        self.groups = tuple(KeyGroup(group) for group in range(case.groups))
        self.terms = strategy_named(strategy).with_(share=1.0, most_share=1.0).terms
        deployment = case.deployment()
        self.machines = {it: WorkerMachine(it, lambda _: deployment, SystemClock()) for it in PLACES}
        self.lane: list[tuple[WorkerId, Any, Any]] = []
        self.told: list[Any] = []
        self.applying = 0.0
        """Rows are the query's own work, also those that waited."""
        for machine in self.machines.values():
            machine.handle(COORDINATOR, m.Deploy(NAME, CODE, case.groups, start=True), b"")
            runtime: Any = machine.runtime(NAME)
            runtime.apply = partial(self.apply, runtime.apply)
        numbers = np.random.default_rng(7).permutation(case.keys)
        self.keys = (
            pa.array(numbers) if case.key_type == pa.int64() else pa.array([f"key-{n:012}" for n in numbers.tolist()])
        )
        self.of = key_groups(hash_columns([self.keys]), case.groups).astype(np.int16)
        order = np.argsort(self.of, kind="stable")
        self.keys, self.of = self.keys.take(pa.array(order)), self.of[order]

    def apply(self, apply: Callable[[Any], Any], batch: Any) -> Any:
        """Run operator code."""
        began = time.thread_time()
        try:
            return apply(batch)
        finally:
            self.applying += time.thread_time() - began

    def step(self, kind: str, function: Callable[[], Any]) -> Any:
        """Take a step and see how long it takes."""
        began, applying = time.thread_time(), self.applying
        try:
            return function()
        finally:
            took = time.thread_time() - began - (self.applying - applying)
            self.longest[kind] = max(self.longest.get(kind, 0.0), took)

    def tell(self, worker: WorkerId, message: Any, body: Any = None, peer: Any = COORDINATOR) -> list[Any]:
        """A message is a step."""
        kind = f"{type(message).__name__}{' at the new owner' if worker == NEW else ''}"
        out: list[Any] = self.step(kind, lambda: self.machines[worker].handle(peer, message, body))
        self.take(worker, out)
        return out

    def take(self, worker: WorkerId, out: list[Any]) -> None:
        """What it said."""
        for to, message, body in out:
            if isinstance(to, Neighbour):
                self.lane.append((worker, message, None if body is None else bytes(body)))
            else:
                self.told.append(message)

    def restore(self) -> None:
        """The old owner reads all of its state back."""
        order = m.Restore(NAME, NO_TURN, CODE, self.groups, NO_EPOCH, QUERY)
        said = self.tell(OLD, order, b"plan")
        ticket = next((it.ticket for _, it, _ in said if isinstance(it, Load)), Ticket(1))
        cuts = [0]
        ends = np.searchsorted(self.of, np.arange(self.case.groups), "right").tolist()
        names: list[KeyGroup] = []
        for group, end in enumerate(ends):
            names.append(KeyGroup(group))
            if end - cuts[-1] < CHUNK and group < self.case.groups - 1:
                continue
            at = slice(cuts[-1], end)
            columns = [pa.array(self.of[at]), self.keys[at], pa.array(np.ones(end - cuts[-1], np.int64))]
            state = pa.RecordBatch.from_arrays(columns, names=[GROUP, key_column(0), self.variable])
            news = Loaded(NAME, ticket, tuple(names), state, 0, self.case.keys if len(cuts) == 1 else 0)
            self.take(OLD, self.step("Loaded", lambda news=news: self.machines[OLD].loaded(news)))  # type: ignore[misc]
            cuts.append(end)
            names = []
            while self.machines[OLD].moving:
                self.pump(OLD, "install")

    @property
    def variable(self) -> str:
        """The one state variable."""
        return self.case.deployment().variables[0].name

    def pump(self, worker: WorkerId, kind: str = "pump") -> float | None:
        """A step of what nobody asked for."""
        kind = f"{kind} at the new owner" if worker == NEW else kind
        out, pause = self.step(kind, lambda: self.machines[worker].pump())
        self.take(worker, out)
        return pause  # type: ignore[no-any-return]

    def exchange(self, until: Callable[[], bool]) -> None:
        """Until something is so."""
        for _ in range(200_000):
            if until():
                return
            for worker in PLACES:
                self.pump(worker)
            lane, self.lane = self.lane, []
            for source, message, body in lane:
                target = NEW if source == OLD else OLD
                self.tell(target, message, body, Neighbour(source, PLACES[source]))
        raise RuntimeError(f"the move does not come to an end: {self.told[-3:]}")

    def said(self, kind: type) -> Callable[[], bool]:
        """Whether the coordinator was told such a thing."""
        return lambda: any(isinstance(it, kind) for it in self.told)

    def listed(self) -> bool:
        """Whether all keys that leave are listed."""
        sender = self.machines[OLD]._at(NAME).moving.sender
        return sender is not None and all(shelf.listed for shelf in sender.shelves)

    def epoch(
        self,
        worker: WorkerId,
        number: int,
        rows: Any,
        *,
        mine: Any,
        guests: Any = (),
        done: bool = True,
        commit: bool = True,
    ) -> None:
        """An epoch with a row for each of these keys, all of it or so far."""
        turn, feeder = Turn(number), m.FeederId(0, 0)
        self.tell(worker, m.Begin(NAME, turn, Epoch(number), QUERY, CODE, mine, guests))
        self.tell(worker, m.Time(NAME, turn, EpochTime()))
        batch = pa.RecordBatch.from_arrays([self.keys.take(pa.array(rows)), pa.array(self.of[rows])], ["key", "g"])
        body, checksum = pack(batch)
        self.machines[worker].handle("f", m.Join(NAME, turn, feeder), batch.schema.serialize())
        self.tell(worker, m.Apply(NAME, turn, feeder, 0, checksum), body, "f")
        if done:
            self.tell(worker, m.Expect(NAME, turn, 1))
            self.machines[worker].handle("f", m.Done(NAME, turn, feeder, 1))  # the seal is the query's own work
            if commit:
                self.tell(worker, m.Commit(NAME, turn))


def run(case: Case, strategy: str, *, pins: bool) -> dict[str, float]:
    """The longest steps of a move by kind, in milliseconds: of half of the key groups, or of some keys."""
    pair, rng = Pair(case, strategy), np.random.default_rng(3)
    pair.restore()
    count = min(TOUCHED, case.keys // 4)
    chosen = rng.choice(case.keys, PINS if pins else count, replace=False)
    lot = _pins(pair, chosen) if pins else m.Lot(OLD, NEW, pair.groups[: case.groups // 2])
    pair.epoch(OLD, 0, chosen, mine=pair.groups)
    flip = 0
    if pair.terms.copy_ahead:
        pair.tell(OLD, m.Copy(NAME, 1, CODE, (lot,), PLACES, pair.terms))
        pair.exchange(pair.listed)
        pair.epoch(OLD, 1, rng.choice(case.keys, count, replace=False), mine=pair.groups, commit=False)
        for _ in range(3):
            pair.pump(OLD)
        pair.tell(OLD, m.Commit(NAME, Turn(1)))
        pair.exchange(pair.said(m.Copied))
        flip = 2
        pair.epoch(OLD, flip, rng.choice(case.keys, count, replace=False), mine=pair.groups)
    for worker, leaving, arriving in ((NEW, (), (lot,)), (OLD, (lot,), ())):
        order = m.Flip(NAME, 1, Turn(flip), CODE, leaving, arriving, PLACES, pair.terms, Epoch(flip), QUERY)
        pair.tell(worker, order)
    # Rows of what has not come wait.
    waiting = chosen if pins else chosen[np.isin(pair.of[chosen], lot.groups)]
    pair.epoch(NEW, flip + 1, waiting, mine=lot.groups, guests=lot.keys, done=False)
    pair.exchange(pair.said(m.Arrived))
    while pair.machines[NEW].moving:
        pair.pump(NEW)
    found: dict[str, float] = {}
    for machine in pair.machines.values():
        for kind, took in machine._at(NAME).moving.slices.longest.items():
            found[kind] = max(found.get(kind, 0.0), took)
    for worker in PLACES:
        pair.tell(worker, m.Release(NAME, 1))
    while pair.machines[OLD].moving:
        pair.pump(OLD, "drop")
    # What took a row in is the query's own, so what is measured around it counts.
    found.pop("take in", None)
    return {kind: 1000 * took for kind, took in {**found, **pair.longest}.items()}


def _pins(pair: Pair, chosen: Any) -> m.Lot:
    hashes = hash_columns([pair.keys.take(pa.array(chosen))])
    of = tuple(sorted({KeyGroup(it) for it in pair.of[chosen].tolist()}))
    return m.Lot(OLD, NEW, (), tuple(KeyHash(it) for it in hashes.tolist()), (), of)


def main() -> None:
    """Run the cases and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=5_000_000, help="in columns; a fifth of it as rows")
    parser.add_argument("--cases", help="some of them, with commas between")
    arguments = parser.parse_args()
    warm_up()
    gc.freeze()  # as a worker does
    gc.set_threshold(*YOUNG)
    wanted = None if arguments.cases is None else set(arguments.cases.split(","))
    for case in cases(20_000):
        run(case, "seamless", pins=False)
    for case in cases(arguments.keys):
        if wanted is not None and case.name not in wanted:
            continue
        table = Table(title=f"{case.name}: {case.keys:,} keys, longest steps in ms of processor time")
        results = {name: run(case, name, pins=False) for name in ("seamless", "all_at_once")}
        results["pins"] = run(case, "seamless", pins=True)
        for column in ("step", *results):
            table.add_column(column)
        for kind in sorted({kind for result in results.values() for kind in result}):
            took = [result.get(kind) for result in results.values()]
            worst = max(it for it in took if it is not None)
            if worst < 2:
                continue
            style = "red" if worst > TARGET_MS else None
            table.add_row(kind, *("" if it is None else f"{it:.1f}" for it in took), style=style)
        Console(width=110).print(table)


if __name__ == "__main__":
    main()
