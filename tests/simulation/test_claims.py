"""Attachments that race for one checkpoint, on a store that lets every create succeed, one step of the store at a time.

Every order of steps comes from a seed. What must hold, whatever the store does with a create: no two attachments get
one generation; and what an older one acknowledged at its seal, a newer one finds in the history that it goes on from.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from fsspec import AbstractFileSystem, register_implementation
from tests.checkpoint_states import COUNTS, OPERATOR, QUERY, Writer, delta, rows_of
from tests.simulator.chance import Chance
from tests.thorough import TIMES

from bedload.checkpoint import fsspec_storage, marks, paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.compaction import compact
from bedload.checkpoint.deadlines import Deadline, DeadlineStorage
from bedload.checkpoint.fsspec_storage import FsspecStorage
from bedload.checkpoint.records import Manifest, TurnRecord, encode, manifest_of, pack_owners
from bedload.checkpoint.restore import Restore
from bedload.core.errors import CheckpointDamaged, CheckpointError, Fenced
from bedload.core.ids import NO_TURN, Epoch, Generation, Turn, WorkerId
from bedload.spark.keeper import Keeper
from bedload.worker.durability import Seal
from bedload.worker.durable import CheckpointDurability

SEEDS = 80 * TIMES


class Order:
    """Lets one thread at a time take one step, whichever the seed says."""

    def __init__(self, seed: int) -> None:
        self._chance = Chance(seed)
        self._stays = self._chance.pick([0.0, 0.5, 0.9, 0.97])
        """How often the one that took a step takes the next one, too."""
        self._change = threading.Condition()
        self._numbers: dict[int, int] = {}
        self._waiting: dict[int, bool] = {}
        self._running = 0

    def step(self) -> None:
        me = self._numbers.get(threading.get_ident())
        if me is None:
            return  # a thread that reads for one of those that race, which waits for it
        with self._change:
            self._waiting[me] = True
            self._running -= 1
            self._change.notify_all()
            self._change.wait_for(lambda: not self._waiting[me])

    def run(self, *racers: Callable[[], None]) -> None:
        failed: list[BaseException] = []

        def race(number: int, of: Callable[[], None]) -> None:
            self._numbers[threading.get_ident()] = number
            try:
                self.step()
                of()
            except BaseException as error:
                failed.append(error)
            with self._change:
                del self._numbers[threading.get_ident()]  # another thread may get the same one
                del self._waiting[number]
                self._running -= 1
                self._change.notify_all()

        self._running = len(racers)
        threads = [threading.Thread(target=race, args=each, daemon=True) for each in enumerate(racers)]
        for thread in threads:
            thread.start()
        chosen = -1
        with self._change:
            while True:
                assert self._change.wait_for(lambda: not self._running, 120)
                waiting = sorted(self._waiting)
                if not waiting:
                    break
                if chosen not in waiting or not self._chance.happens(self._stays):
                    chosen = self._chance.pick(waiting)
                self._waiting[chosen] = False
                self._running += 1
                self._change.notify_all()
        for thread in threads:
            thread.join(120)
        if failed:
            raise failed[0]


class Careless(AbstractFileSystem):  # type: ignore[misc]
    """An object store that takes every write, whatever its condition."""

    protocol = "careless"
    cachable = False
    order: Order | None = None
    honours = False
    files: ClassVar[dict[str, bytes]] = {}

    def _step(self) -> None:
        if Careless.order is not None:
            Careless.order.step()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self._step()
        if mode == "create" and Careless.honours and path in Careless.files:
            raise FileExistsError(path)
        Careless.files[path] = value

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        self._step()
        try:
            return Careless.files[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        self._step()
        if path not in Careless.files:
            raise FileNotFoundError(path)
        return {"name": path, "type": "file", "size": len(Careless.files[path])}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        self._step()
        start = f"{path}/"
        found = {}
        for name, data in list(Careless.files.items()):
            if name.startswith(start):
                child = name[len(start) :].partition("/")
                kind = "directory" if child[1] else "file"
                found[start + child[0]] = {"name": start + child[0], "type": kind, "size": len(data)}
        return list(found.values())

    def rm_file(self, path: str) -> None:
        self._step()
        Careless.files.pop(path, None)


@pytest.fixture(autouse=True)
def _store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    register_implementation("careless", Careless, clobber=True)
    # Calls are made by the threads that race themselves, so that each step is one of theirs.
    monkeypatch.setattr(Deadline, "call", lambda _self, _operation, _path, step, _longer=0.0: step())
    yield
    Careless.order = None


class Attachment:
    """One that attaches, runs some epochs, and stops when it is fenced."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.generation = Generation(0)
        self.found: set[Turn] | None = set()
        """What was in the history that it went on from; None: it was fenced off before it had one."""
        self.written: list[Turn] = []
        self.acknowledged: list[Turn] = []

    def run(self) -> None:
        keeper = Keeper("careless://bucket/checkpoint")
        checkpoint, self.generation = keeper.checkpoint, keeper.generation
        try:
            lineage = keeper.lineage(OPERATOR, COUNTS)
        except Fenced:
            self.found = None
            return
        self.found = set(lineage.history.chain())
        turn = head = lineage.history.head
        durable = CheckpointDurability(checkpoint.storage, self.generation)
        for count in range(3):
            turn = lineage.next_turn(NO_TURN if turn is None else turn)
            record = TurnRecord(
                turn=turn,
                parent=head,
                generation=self.generation,
                query=QUERY,
                run=self.name,
                epoch=Epoch(count),
                location="",
                schema=1,
                owners=pack_owners([0] * COUNTS.key_groups),
                workers=(WorkerId(0),),
                committed={},
            )
            self.written.append(turn)
            checkpoint.write_turn(OPERATOR, record)
            try:
                durable.persist(Seal(WorkerId(0), OPERATOR, QUERY, Epoch(count), turn, self._delta))
            except Fenced:
                return
            self.acknowledged.append(turn)
            head = turn

    def _delta(self) -> pa.RecordBatch:
        return delta(COUNTS, {1: {"n": len(self.acknowledged)}})


def race(seed: int, racers: int) -> list[Attachment]:
    Careless.files, Careless.order = {}, Order(seed)
    attachments = [Attachment(f"attachment {i}") for i in range(racers)]
    Careless.order.run(*(attachment.run for attachment in attachments))
    Careless.order = None
    return attachments


def check(attachments: list[Attachment]) -> None:
    taken = [attachment.generation for attachment in attachments]
    assert len(set(taken)) == len(taken), f"two have one generation: {taken}"
    going = sorted((one for one in attachments if one.found is not None), key=lambda one: one.generation)
    for older, newer in itertools.pairwise(going):
        assert set(older.acknowledged) <= newer.found, f"{newer.name} passed over what {older.name} acknowledged"
    turns = [turn for one in attachments for turn in one.written]
    assert len(set(turns)) == len(turns), f"two have written one turn: {turns}"
    # What was acknowledged last is what the next attachment finds, byte for byte as it was written.
    last = Keeper("careless://bucket/checkpoint").lineage(OPERATOR, COUNTS).history
    acknowledged = [turn for one in going for turn in one.acknowledged]
    assert set(acknowledged) <= set(last.chain()), "what was acknowledged does not count"


@pytest.mark.parametrize("racers", [2, 3])
def test_of_attachments_that_race_each_gets_a_generation_and_misses_nothing(racers: int) -> None:
    for seed in range(SEEDS):
        try:
            check(race(seed, racers))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_without_marks_the_race_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The race can show what it is for."""
    monkeypatch.setattr(marks, "_is_contested", lambda *_: False)
    assert _caught(), "two attachments with one generation went unseen"


def test_without_the_number_that_nobody_got_a_zombie_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    original = DeadlineStorage.exists
    monkeypatch.setattr(DeadlineStorage, "exists", lambda self, path: _claiming() or original(self, path))
    assert _caught(), "a generation that nobody got fenced nobody, and that went unseen"


def _claiming() -> bool:
    return sys._getframe(2).f_code.co_name == "claim"


def _caught() -> bool:
    for seed in range(SEEDS):
        try:
            check(race(seed, 3))
        except AssertionError:
            return True
    return False


def test_without_a_look_after_the_history_turns_are_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keeper, "history", lambda self, operator: self.checkpoint.load_history(operator))
    assert _caught(), "two attachments wrote one turn, and that went unseen"


@pytest.mark.parametrize("honours", [False, True])
def test_whether_a_condition_is_honoured_is_tried_and_not_believed(
    honours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Careless, "honours", honours)
    monkeypatch.setattr(fsspec_storage, "_CONDITIONAL", frozenset({"careless"}))
    monkeypatch.setattr(fsspec_storage, "_has_create_mode", lambda _: True)
    Careless.files = {}
    storage = FsspecStorage("careless://bucket/checkpoint")
    assert storage.create("f/a", b"mine")
    assert not storage.create("f/a", b"yours")
    assert storage.create("f/a", b"mine"), "its own content: an answer that was lost"
    assert storage.list("") == ["f"]
    marks = [path for path in Careless.files if path.endswith(".mark")]
    assert bool(marks) is not honours
    assert not [path for path in Careless.files if path.endswith(".trial")]


# --- an older attachment that does not know yet that it is over ---


class Filled:
    """A checkpoint of some epochs by one attachment, which is still there."""

    def __init__(self) -> None:
        Careless.files, Careless.order = {}, None
        self.keeper = Keeper("careless://bucket/checkpoint")
        self.storage = self.keeper.checkpoint.storage
        self.lineage = self.keeper.lineage(OPERATOR, COUNTS)
        self.writer = Writer(self.storage, self.lineage.schema)
        for epoch in range(8):
            record = self.writer.turn(delta(COUNTS, {car: {"n": epoch} for car in range(20)}))
            self.keeper.checkpoint.write_turn(OPERATOR, record)
            if epoch == 2:
                self.keeper.write_manifest(OPERATOR, self.manifest(epoch, 1))

    def manifest(self, epoch: int, cuts: int) -> Manifest:
        """A snapshot whose key groups are cut in so many parts; not counted yet."""
        record = self.writer.records[epoch]
        step = COUNTS.key_groups // cuts
        parts = [
            part
            for first in range(0, COUNTS.key_groups, step)
            for part in compact(self.storage, OPERATOR, record.turn, range(first, first + step))
        ]
        return manifest_of(record, COUNTS, parts)

    def state(self, keeper: Keeper) -> dict[Any, Any]:
        history = keeper.lineage(OPERATOR, COUNTS).history
        head = history.head
        assert head is not None
        restore = Restore(keeper.checkpoint.storage, OPERATOR, COUNTS, history.restore_plan(head))
        return {car: row["n"] for car, row in rows_of(restore.table()).items()}


def test_a_new_attachment_reads_all_while_an_older_one_collects_garbage() -> None:
    filled = Filled()
    filled.keeper.write_manifest(OPERATOR, filled.manifest(6, 2))
    garbage = filled.keeper.checkpoint.load_history(OPERATOR).garbage(1)
    assert garbage.promises
    assert garbage.files
    files = dict(Careless.files)
    found: list[dict[Any, Any]] = []

    def collect() -> None:
        with contextlib.suppress(Fenced):
            filled.keeper.collect(OPERATOR, garbage)

    def attach() -> None:
        found.append(filled.state(Keeper("careless://bucket/checkpoint")))

    for seed in range(SEEDS // 2):
        Careless.files, Careless.order = dict(files), Order(seed)
        Careless.order.run(collect, attach)
        Careless.order = None
        assert found.pop() == dict.fromkeys(range(20), 7), f"seed {seed}"
        assert filled.state(Keeper("careless://bucket/checkpoint")) == dict.fromkeys(range(20), 7), f"seed {seed}"


@pytest.mark.parametrize("mutant", [False, True])
def test_two_that_make_a_snapshot_of_one_turn_do_not_delete_each_others_files(
    mutant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mutant:

        def written(self: Checkpoint, operator: Any, manifest: Manifest, *, again: bool) -> Manifest:
            self.storage.write(paths.manifest(operator, manifest.turn), encode(manifest))
            return manifest

        monkeypatch.setattr(Checkpoint, "write_manifest", written)
    lost = 0
    filled = Filled()
    newer = Keeper("careless://bucket/checkpoint")
    one, two = filled.manifest(7, 1), filled.manifest(7, 4)
    files = dict(Careless.files)
    # The older one has looked for a newer attachment just before there was one.
    monkeypatch.setattr(filled.keeper.checkpoint, "check_fence", lambda: None)

    def make(keeper: Keeper, manifest: Manifest) -> None:
        with contextlib.suppress(CheckpointError):
            keeper.write_manifest(OPERATOR, manifest)

    for seed in range(SEEDS // 2):
        Careless.files, Careless.order = dict(files), Order(seed)
        Careless.order.run(partial(make, filled.keeper, one), partial(make, newer, two))
        Careless.order = None
        try:
            assert filled.state(Keeper("careless://bucket/checkpoint")) == dict.fromkeys(range(20), 7), f"seed {seed}"
        except CheckpointDamaged:
            lost += 1
    assert bool(lost) is mutant
