"""Random histories against a model that keeps everything.

The machine plays drivers and their zombies: turns, replays, deep rewinds, turns given up half-way or when all their
segments were there, several queries in turn, snapshots, garbage collection (also cut short by a crash), and segments
that a zombie writes late. Files are a set of paths; states are the tuple of the turns that made them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.thorough import TIMES

from bedload.checkpoint import paths
from bedload.checkpoint.history import Base, Garbage, History
from bedload.checkpoint.records import FileInfo, Manifest, SnapshotPart, TurnRecord
from bedload.core.errors import EpochNotRetained
from bedload.core.ids import NO_EPOCH, Epoch, Generation, OperatorName, QueryId, Turn, WorkerId, make_turn

OPERATOR = OperatorName("Trip")
WORKERS = (WorkerId(0), WorkerId(1))
QUERIES = (QueryId("a"), QueryId("b"))

State = tuple[Turn, ...]


def _manifest(record: TurnRecord) -> Manifest:
    part = SnapshotPart(groups=(0,), rows=1, files={"n": FileInfo(path="n/part-00000.parquet", bytes=1, xxh3="0" * 16)})
    return Manifest(
        turn=record.turn,
        schema=1,
        query=record.query,
        epoch=record.epoch,
        parts=(part,),
        bytes=1,
        rows=1,
        committed=record.last_epochs,
    )


@dataclass
class Disk:
    """What is stored, beside all that ever was."""

    files: set[str] = field(default_factory=set)
    records: dict[Turn, TurnRecord] = field(default_factory=dict)
    manifests: dict[Turn, Manifest] = field(default_factory=dict)

    def load(self) -> History:
        deltas = f"{paths.deltas(OPERATOR)}/"
        return History(
            OPERATOR,
            [r for t, r in self.records.items() if paths.turn(OPERATOR, t) in self.files],
            {path.removeprefix(deltas): 1 for path in self.files if path.startswith(deltas)},
            [m for t, m in self.manifests.items() if paths.manifest(OPERATOR, t) in self.files],
        )

    def write_record(self, record: TurnRecord) -> None:
        self.records[record.turn] = record
        self.files.add(paths.turn(OPERATOR, record.turn))

    def write_segments(self, turn: Turn, workers: tuple[WorkerId, ...]) -> None:
        self.files |= {paths.delta(OPERATOR, turn, worker) for worker in workers}

    def has_segments(self, turn: Turn) -> bool:
        return {paths.delta(OPERATOR, turn, worker) for worker in self.records[turn].workers} <= self.files

    def has_snapshot(self, turn: Turn) -> bool:
        return turn in self.manifests and paths.manifest(OPERATOR, turn) in self.files

    def complete(self) -> set[Turn]:
        whole = {t for t in self.records if paths.turn(OPERATOR, t) in self.files and self.has_segments(t)}
        return whole | {t for t in self.manifests if self.has_snapshot(t)}

    # --- the model: records are never taken out, so it knows every chain to its beginning ---

    def full_chain(self, tip: Turn | None) -> list[Turn]:
        chain = []
        while tip is not None:
            chain.append(tip)
            tip = self.records[tip].parent
        return chain

    def state(self, turn: Turn | None) -> State:
        return tuple(self.full_chain(turn)[::-1])

    def restorable(self, turn: Turn | None) -> bool:
        if turn is None or self.has_snapshot(turn):
            return True
        there = paths.turn(OPERATOR, turn) in self.files and self.has_segments(turn)
        return there and self.restorable(self.records[turn].parent)

    def run(self, history: History, turn: Turn | None) -> State:
        """Carry a plan out, from files that are there."""
        snapshot, deltas = history.restore_plan(turn)
        made: State = ()
        if snapshot is not None:
            assert set(history.snapshot_files(snapshot.turn)) <= self.files
            made = self.state(snapshot.turn)
        for record in deltas:
            assert set(history.segment_paths(record.turn)) <= self.files
            made = (*made, record.turn)
        return made


class Histories(RuleBasedStateMachine):
    """A driver, its zombies and the disk."""

    @initialize()
    def begin(self) -> None:
        self.disk = Disk()
        self.generation = 0
        self.known: set[Turn] = set()
        self.pending: Turn | None = None
        self.zombies: list[Turn] = []
        self.half_deleted: Garbage | None = None
        self.fragile: Turn | None = None
        self.former: tuple[History, Generation, int] | None = None
        self.attach()

    def attach(self) -> None:
        self.generation += 1
        self.counter = 0
        self.history = self.disk.load()
        self.known = self.disk.complete()
        self.pending = None

    @staticmethod
    def _record(
        query: QueryId, epoch: Epoch, base: Turn | None, history: History, generation: Generation, counter: int
    ) -> TurnRecord:
        return TurnRecord(
            turn=make_turn(generation, counter),
            parent=base,
            generation=generation,
            query=query,
            run="r",
            epoch=epoch,
            location="",
            schema=1,
            owners=((0, 1),),
            workers=WORKERS,
            committed=history.last_epochs(base) if base is not None else {},
        )

    def _open(self, query: QueryId, epoch: Epoch, base: Turn | None) -> None:
        self.counter += 1
        record = self._record(query, epoch, base, self.history, Generation(self.generation), self.counter)
        self.disk.write_record(record)
        self.history.add(record)
        self.pending = record.turn

    @rule(query=st.sampled_from(QUERIES))
    def next_epoch(self, query: QueryId) -> None:
        epoch = Epoch(self.history.last_epoch(query) + 1)
        base = self.history.base_for(query, epoch)
        assert base is not None
        self._open(query, epoch, base.turn)

    @rule(back=st.integers(0, 6))
    def same_epoch_again(self, back: int) -> None:
        """A replay of the head's epoch, or a query that was set back by some epochs."""
        chain = self.history.chain()
        if back >= len(chain):
            return
        record = self.disk.records[chain[back]]
        base = self.history.base_for(record.query, record.epoch)
        if base is None or (self.fragile is not None and back > 0 and (base.turn or Turn(0)) < self.fragile):
            return
        self._open(record.query, record.epoch, base.turn)

    @rule(query=st.sampled_from(QUERIES), epoch=st.integers(0, 20))
    def start_empty(self, query: QueryId, epoch: int) -> None:
        self._open(query, Epoch(epoch), None)

    @precondition(lambda self: self.pending is not None)
    @rule(workers=st.sampled_from([(WORKERS[0],), (WORKERS[1],), WORKERS]))
    def write_and_give_up(self, workers: tuple[WorkerId, ...]) -> None:
        assert self.pending is not None
        self.disk.write_segments(self.pending, workers)
        self.pending = None

    @precondition(lambda self: self.pending is not None)
    @rule()
    def seal(self) -> None:
        assert self.pending is not None
        self.disk.write_segments(self.pending, WORKERS)
        self.history.sealed(self.pending, 2)
        self.known.add(self.pending)
        self.pending = None

    @rule(many=st.integers(1, 8), query=st.sampled_from(QUERIES), every=st.integers(2, 9))
    def run_for_a_while(self, many: int, query: QueryId, every: int) -> None:
        for number in range(many):
            self.next_epoch(query)
            self.seal()
            if number % every == 1:
                self.compact(0)

    @rule(back=st.integers(0, 4))
    def compact(self, back: int) -> None:
        retained = self.history.retained()
        if back >= len(retained) or (self.fragile is not None and retained[back] < self.fragile):
            return
        turn = retained[back]
        manifest = _manifest(self.disk.records[turn])
        self.disk.manifests[turn] = manifest
        self.history.snapshot(manifest)
        self.disk.files |= {paths.manifest(OPERATOR, turn), *self.history.snapshot_files(turn)}

    @rule(retain=st.integers(0, 5), reading=st.lists(st.integers(0, 9), max_size=2))
    def collect(self, retain: int, reading: list[int]) -> None:
        retained = self.history.retained()
        keep = [retained[back] for back in reading if back < len(retained)]
        garbage = self.history.garbage(retain, keep)
        promised = [*retained[: max(retain, 1) + 1], *keep]
        self.disk.files -= set(garbage.paths)
        self.history.forget(garbage)
        for turn in promised:
            if self.fragile is None or turn >= self.fragile:
                assert self.disk.run(self.history, turn) == self.disk.state(turn)
        assert all(turn < garbage.floor for turn in garbage.turns | garbage.snapshots if garbage.floor is not None)

    @rule(collecting=st.booleans(), retain=st.integers(1, 4), done=st.integers(0, 40))
    def crash(self, collecting: bool, retain: int, done: int) -> None:
        """The driver goes, perhaps amid garbage collection, and may be a zombie that goes on with it later."""
        if collecting:
            garbage = self.history.garbage(retain)
            self.disk.files -= set(garbage.paths[:done])
            self.half_deleted, self.fragile = garbage, garbage.floor
        if self.pending is not None:
            self.zombies.append(self.pending)
        former = self.history, Generation(self.generation), self.counter
        self.attach()
        self.former = former

    @precondition(lambda self: self.half_deleted is not None)
    @rule()
    def zombie_goes_on_deleting(self) -> None:
        assert self.half_deleted is not None
        self.disk.files -= set(self.half_deleted.paths)
        self.half_deleted = None

    @precondition(lambda self: self.former is not None)
    @rule(query=st.sampled_from(QUERIES))
    def zombie_opens_one_more(self, query: QueryId) -> None:
        """Its driver does not know yet that it is over; its workers will, before they acknowledge."""
        assert self.former is not None
        history, generation, counter = self.former
        record = self._record(
            query, Epoch(history.last_epoch(query) + 1), history.head, history, generation, counter + 1
        )
        self.disk.write_record(record)
        self.zombies.append(record.turn)
        self.former = None

    @precondition(lambda self: self.zombies)
    @rule(workers=st.sampled_from([(WORKERS[0],), (WORKERS[1],), WORKERS]), which=st.integers(0, 9))
    def zombie_writes_late(self, workers: tuple[WorkerId, ...], which: int) -> None:
        self.disk.write_segments(self.zombies[which % len(self.zombies)], workers)

    # --- what must hold at any time ---

    @invariant()
    def the_driver_knows_where_it_is(self) -> None:
        self._check(self.history, self.known, self.fragile)

    @invariant()
    def whoever_comes_next_finds_everything(self) -> None:
        fresh = self.disk.load()
        self._check(fresh, self.disk.complete(), None)
        if fresh.head is not None:
            assert self.disk.run(fresh, fresh.head) == self.disk.state(fresh.head)
            record = fresh.record(fresh.head)
            assert record is not None
            # Spark may not have committed it.
            assert fresh.base_for(record.query, record.epoch) == Base(record.parent)
            assert self.disk.run(fresh, record.parent) == self.disk.state(record.parent)

    def _check(self, history: History, complete: set[Turn], sure_from: Turn | None) -> None:
        head = max(complete, default=None)
        assert history.head == head
        full = self.disk.full_chain(head)
        chain = history.chain()
        assert chain == full[: len(chain)]
        for turn in self.disk.records:
            if sure_from is not None and turn < sure_from:
                continue
            try:
                assert self.disk.run(history, turn) == self.disk.state(turn)
            except EpochNotRetained:
                assert turn not in history.retained()
                assert turn not in complete or not self.disk.restorable(turn)
            else:
                assert turn not in chain or turn in history.retained()
        for query in QUERIES:
            self._check_query(history, query, full, sure_from)

    def _check_query(self, history: History, query: QueryId, full: list[Turn], sure_from: Turn | None) -> None:
        of_query = [turn for turn in full if self.disk.records[turn].query == query]
        last = self.disk.records[of_query[0]].epoch if of_query else NO_EPOCH
        assert history.last_epoch(query) == last
        assert history.base_for(query, Epoch(last + 1)) == Base(full[0] if full else None)
        assert history.base_for(query, Epoch(last + 2)) is None
        by_epoch = {self.disk.records[turn].epoch: turn for turn in reversed(of_query)}
        for epoch in range(last + 1):
            found = by_epoch.get(Epoch(epoch))
            if found is None:
                assert history.base_for(query, Epoch(epoch)) is None
                continue
            parent = self.disk.records[found].parent
            if sure_from is not None and (parent is None or parent < sure_from):
                continue
            known = paths.turn(OPERATOR, found) in self.disk.files and self.disk.restorable(parent)
            linked = found in history.chain()
            assert history.base_for(query, Epoch(epoch)) == (Base(parent) if known and linked else None)


Histories.TestCase.settings = settings(max_examples=40 * TIMES, stateful_step_count=30, deadline=None)
TestHistories = Histories.TestCase
