"""A checkpoint as a whole, on a local folder and in memory."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from tests.checkpoint_states import ME, collect_garbage

from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.claimant import Claimant, this_process
from bedload.checkpoint.fence import check_fence, newer_generation
from bedload.checkpoint.history import Base, History
from bedload.checkpoint.records import (
    Claim,
    FileInfo,
    Format,
    Manifest,
    OperatorSchema,
    SnapshotPart,
    TurnRecord,
    Variable,
    decode,
    encode,
    pack_schema,
)
from bedload.checkpoint.storage import Buffers, Storage, open_storage
from bedload.core.errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointForeign,
    CheckpointVersion,
    EpochNotRetained,
    Fenced,
)
from bedload.core.ids import Epoch, Generation, OperatorName, QueryId, Turn, WorkerId, make_turn

TRIP = OperatorName("Trip")
A = QueryId("a")
_NUMBERS = itertools.count()
SCHEMA = OperatorSchema(
    number=0,
    layout="rows",
    key_names=("car",),
    key_types=pack_schema(pa.schema([("car", pa.string())])),
    key_groups=8,
    variables=(Variable(name="n", type="int", arrow=pack_schema(pa.schema([("n", pa.int64())])), kind="value"),),
)


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Storage]:
    prefix = str(tmp_path) if request.param == "local" else f"memory://checkpoint-{next(_NUMBERS)}"
    return lambda name: open_storage(f"{prefix}/{name}")


@pytest.fixture
def storage(root: Callable[[str], Storage]) -> Storage:
    return root("main")


class Driver:
    """Writes turns and snapshots as the real ones do, with made-up content."""

    def __init__(self, storage: Storage, operator: OperatorName = TRIP) -> None:
        self.checkpoint = Checkpoint.open(storage, ME)
        self.storage = storage
        self.operator = operator
        self.generation = self.checkpoint.claim()
        self.schema = self.checkpoint.add_schema(operator, SCHEMA)
        self.history = self.checkpoint.load_history(operator)
        self.counter = 0

    def open(self, epoch: int) -> TurnRecord:
        base = self.history.base_for(A, Epoch(epoch))
        assert base is not None
        self.counter += 1
        record = TurnRecord(
            turn=make_turn(self.generation, self.counter),
            parent=base.turn,
            generation=self.generation,
            query=A,
            run="r",
            epoch=Epoch(epoch),
            location="",
            schema=self.schema.number,
            owners=((0, 4), (1, 4)),
            workers=(WorkerId(0), WorkerId(1)),
            committed=self.history.last_epochs(base.turn) if base.turn is not None else {},
        )
        self.checkpoint.write_turn(self.operator, record)
        self.history.add(record)
        return record

    def segments(self, record: TurnRecord, workers: Sequence[int] = (0, 1)) -> None:
        for worker in workers:
            content = f"{self.operator} {record.turn} {worker}".encode()
            self.storage.write(paths.delta(self.operator, record.turn, WorkerId(worker)), content)

    def run(self, epoch: int) -> Turn:
        record = self.open(epoch)
        self.segments(record)
        self.history.sealed(record.turn, 20)
        return record.turn

    def snapshot(self, turn: Turn, finish: bool = True) -> Manifest:
        file = FileInfo(path=paths.part("n", 0, "0f"), bytes=8, xxh3="0" * 16)
        self.storage.write(f"{paths.snapshot(self.operator, turn)}/{file.path}", b"snapshot")
        record = self.history.record(turn)
        assert record is not None
        manifest = Manifest(
            turn=turn,
            schema=1,
            query=A,
            epoch=record.epoch,
            parts=(SnapshotPart(groups=tuple(range(8)), rows=1, files={"n": file}),),
            bytes=8,
            rows=1,
            committed=record.last_epochs,
        )
        if finish:
            self.checkpoint.write_manifest(self.operator, manifest)
            self.history.snapshot(manifest)
        return manifest


def _content(storage: Storage, history: History, turn: Turn | None) -> list[bytes]:
    """All that a restore of that state reads."""
    snapshot, deltas = history.restore_plan(turn)
    found = [storage.read(path) for path in history.snapshot_files(snapshot.turn)] if snapshot else []
    return found + [storage.read(path) for record in deltas for path in history.segment_paths(record.turn)]


def _all_files(storage: Storage, folder: str = "") -> set[str]:
    prefix = f"{folder}/" if folder else ""
    files = set(storage.sizes(folder))
    below = [_all_files(storage, f"{prefix}{name}") for name in storage.list(folder) if name not in files]
    return {f"{prefix}{name}" for name in files}.union(*below)


# --- opening ---


def test_an_empty_folder_becomes_a_checkpoint_and_stays_the_same_one(storage: Storage) -> None:
    made = Checkpoint.open(storage, ME)
    assert Checkpoint.open(storage).format == made.format
    assert decode(Format, storage.read("bedload.json"), "x").format == "bedload-checkpoint"


def test_two_checkpoints_have_different_ids(root: Callable[[str], Storage]) -> None:
    assert Checkpoint.open(root("one"), ME).format.id != Checkpoint.open(root("two"), ME).format.id


def test_many_who_make_it_at_once_get_the_same_one(storage: Storage) -> None:
    barrier = threading.Barrier(4)

    def make(_: int) -> str:
        barrier.wait()
        return Checkpoint.open(open_storage(storage.url), ME).format.id

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(make, range(4)))) == 1


def test_a_folder_with_other_files_is_refused_and_left_alone(storage: Storage) -> None:
    storage.write("holiday.jpg", b"x")
    with pytest.raises(CheckpointForeign, match=r"holiday\.jpg.*folder of its own"):
        Checkpoint.open(storage, ME)
    assert storage.list("") == ["holiday.jpg"]


def test_a_checkpoint_that_lost_its_format_file_says_to_put_it_back(storage: Storage) -> None:
    Driver(storage)
    storage.delete(["bedload.json"])
    with pytest.raises(CheckpointForeign, match=r"put bedload\.json back"):
        Checkpoint.open(storage, ME)


def test_nothing_is_made_unless_asked_for(storage: Storage) -> None:
    with pytest.raises(CheckpointForeign, match="no checkpoint at"):
        Checkpoint.open(storage)
    assert storage.list("") == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": "bedload-checkpoint"}', b"\xff"])
def test_a_damaged_format_file_is_said_to_be(storage: Storage, content: bytes) -> None:
    storage.write("bedload.json", content)
    with pytest.raises(CheckpointDamaged, match=r"bedload\.json"):
        Checkpoint.open(storage, ME)


def test_a_format_file_of_something_else_is_foreign(storage: Storage) -> None:
    storage.write("bedload.json", b'{"format": "bedload-settings", "version": 1, "id": "x"}')
    with pytest.raises(CheckpointForeign, match="bedload-settings"):
        Checkpoint.open(storage, ME)


def test_a_newer_format_says_what_to_install(storage: Storage) -> None:
    storage.write("bedload.json", b'{"format": "bedload-checkpoint", "version": 7, "bedload": "3.2", "id": "x"}')
    with pytest.raises(CheckpointVersion, match=r'version 7.*pip install -U "bedload>=3\.2"'):
        Checkpoint.open(storage, ME)


# --- generations ---


def test_generations_are_claimed_in_ascending_order(storage: Storage) -> None:
    assert [Checkpoint.open(storage, ME).claim() for _ in range(3)] == [1, 2, 3]


class StoppedClock:
    """Always the same time, so that claims of one process differ in nothing but what makes them unique."""

    def monotonic(self) -> float:
        return 1.0

    def wall(self) -> float:
        return 1.0

    def processor(self) -> float:
        return self.monotonic()


def test_of_many_attachments_at_once_each_gets_a_generation_of_its_own(storage: Storage) -> None:
    barrier = threading.Barrier(6)
    stopped = this_process(StoppedClock())
    checkpoints = [Checkpoint.open(open_storage(storage.url), stopped) for _ in range(6)]

    def claim(checkpoint: Checkpoint) -> Generation:
        barrier.wait()
        return checkpoint.claim()

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(claim, checkpoints)) == [1, 2, 3, 4, 5, 6]


def test_a_claim_says_who_and_when(storage: Storage) -> None:
    Checkpoint.open(storage, Claimant("there", 7, StoppedClock(), lambda: "nobody else's")).claim()
    claim = decode(Claim, storage.read(paths.generation(Generation(1))), "x")
    assert (claim.host, claim.pid, claim.when, claim.token) == ("there", 7, 1.0, "nobody else's")
    assert claim.generation == 1


def test_whoever_does_not_say_who_it_is_can_only_read(storage: Storage, root: Callable[[str], Storage]) -> None:
    Checkpoint.open(storage, ME).claim()
    reader = Checkpoint.open(storage)
    assert reader.newest_generation() == 1
    for write in (reader.claim, lambda: reader.export(root("copy"))):
        with pytest.raises(CheckpointError, match="may only be read"):
            write()
    assert reader.newest_generation() == 1


def test_this_process_says_so() -> None:
    assert ME.pid == os.getpid()
    assert ME.host
    assert ME.new_id() != ME.new_id()


def test_an_attachment_is_fenced_by_the_next_one(storage: Storage) -> None:
    old = Checkpoint.open(storage, ME)
    with pytest.raises(CheckpointError, match="claimed no generation"):
        old.check_fence()
    generation = old.claim()
    old.check_fence()
    assert newer_generation(storage, generation) is None
    new = Checkpoint.open(storage, ME)
    new.claim()
    with pytest.raises(Fenced, match="generation 2") as caught:
        old.check_fence()
    assert caught.value.newer == 2
    with pytest.raises(Fenced):
        check_fence(storage, generation)
    claim = newer_generation(storage, generation)
    assert claim is not None
    assert claim.generation == 2
    new.check_fence()


# --- schemas ---


def test_a_schema_is_stored_once_and_numbered_from_one(storage: Storage) -> None:
    checkpoint = Checkpoint.open(storage, ME)
    first = checkpoint.add_schema(TRIP, SCHEMA)
    assert first.number == 1
    assert Checkpoint.open(storage, ME).add_schema(TRIP, SCHEMA) == first
    wider = msgspec.structs.replace(SCHEMA, key_groups=16)
    assert checkpoint.add_schema(TRIP, wider).number == 2
    assert checkpoint.add_schema(TRIP, SCHEMA) == first, "the former shape is there already"
    assert [schema.number for schema in Checkpoint.open(storage).schemas(TRIP)] == [1, 2]
    assert Checkpoint.open(storage).schema(TRIP, 2).key_groups == 16


def test_a_schema_that_is_missing_is_said_to_be(storage: Storage) -> None:
    with pytest.raises(CheckpointDamaged, match=r"0003\.json is missing"):
        Checkpoint.open(storage, ME).schema(TRIP, 3)


def test_operators_are_listed_by_their_names(storage: Storage) -> None:
    checkpoint = Checkpoint.open(storage, ME)
    for name in ("Trip", "per road/lane", "..", "ü"):
        checkpoint.add_schema(OperatorName(name), SCHEMA)
    storage.write("operators/not.ours/x", b"")
    assert checkpoint.operators() == ["..", "Trip", "per road/lane", "ü"]


# --- history ---


def test_a_history_is_loaded_as_it_was(storage: Storage) -> None:
    driver = Driver(storage)
    for epoch in range(30):
        driver.run(epoch)
    driver.snapshot(driver.history.chain()[10])
    open_turn = driver.open(30)
    driver.segments(open_turn, [1])
    again = Checkpoint.open(storage).load_history(TRIP)
    assert again.head == driver.history.head
    assert again.chain() == driver.history.chain()
    assert again.restore_plan(again.head) == driver.history.restore_plan(again.head)
    assert again.record(open_turn.turn) == open_turn
    assert not again.complete(open_turn.turn)


def test_an_operator_without_turns_has_an_empty_history(storage: Storage) -> None:
    assert Checkpoint.open(storage, ME).load_history(TRIP).head is None


def test_the_next_attachment_goes_on_with_larger_turns(storage: Storage) -> None:
    first = Driver(storage)
    first.run(0)
    second = Driver(storage)
    assert second.history.head == first.history.head
    turn = second.run(1)
    assert second.history.head == turn
    assert second.history.chain()[1] == first.history.head


def test_what_a_zombie_finishes_late_moves_nothing_once_the_new_one_has_a_turn(storage: Storage) -> None:
    first = Driver(storage)
    first.run(0)
    late = first.open(1)
    second = Driver(storage)
    mine = second.run(1)
    first.segments(late)
    with pytest.raises(Fenced):
        first.checkpoint.check_fence()
    assert Checkpoint.open(storage).load_history(TRIP).head == mine


def test_what_a_zombie_finishes_before_that_is_an_epoch_that_spark_asks_for_again(storage: Storage) -> None:
    first = Driver(storage)
    base = first.run(0)
    late = first.open(1)
    Driver(storage)
    first.segments(late)
    third = Driver(storage)
    assert third.history.head == late.turn
    assert third.history.base_for(A, Epoch(1)) == Base(base)


class VanishingStorage:
    """Passes everything on; what is listed of some folders is gone when it is read."""

    def __init__(self, inner: Storage, gone: set[str]) -> None:
        self._inner, self._gone, self.url = inner, gone, inner.url

    def read(self, path: str) -> bytes:
        if path in self._gone:
            raise FileNotFoundError(path)
        return self._inner.read(path)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def test_records_that_vanish_while_they_are_read_are_looked_over(storage: Storage) -> None:
    driver = Driver(storage)
    for epoch in range(4):
        driver.run(epoch)
    driver.snapshot(driver.history.chain()[1])
    oldest = driver.history.chain()[-1]
    vanishing = VanishingStorage(storage, {paths.turn(TRIP, oldest)})
    history = Checkpoint.open(vanishing).load_history(TRIP)  # type: ignore[arg-type]
    assert history.head == driver.history.head
    assert history.record(oldest) is None
    vanishing = VanishingStorage(storage, {paths.manifest(TRIP, driver.history.chain()[1])})
    history = Checkpoint.open(vanishing).load_history(TRIP)  # type: ignore[arg-type]
    assert len(history.restore_plan(history.head).deltas) == 4


def test_a_damaged_turn_record_is_said_to_be_with_its_place(storage: Storage) -> None:
    driver = Driver(storage)
    turn = driver.run(0)
    storage.write(paths.turn(TRIP, turn), b"{}")
    with pytest.raises(CheckpointDamaged, match=r"operators/Trip/turns/0000000001-0000000001\.json"):
        driver.checkpoint.load_history(TRIP)


def test_a_record_under_another_turns_name_is_damage(storage: Storage) -> None:
    driver = Driver(storage)
    one, two = driver.run(0), driver.run(1)
    storage.write(paths.turn(TRIP, two), storage.read(paths.turn(TRIP, one)))
    with pytest.raises(CheckpointDamaged, match="another turn"):
        driver.checkpoint.load_history(TRIP)


def test_strangers_files_are_looked_over(storage: Storage) -> None:
    driver = Driver(storage)
    turn = driver.run(0)
    for path in ("turns/notes.txt", "deltas/x", "snapshots/readme", "schemas/old.json.bak"):
        storage.write(f"{paths.operator(TRIP)}/{path}", b"?")
    assert Driver(storage).history.head == turn


# --- garbage ---


def test_garbage_goes_and_what_is_retained_can_be_restored(storage: Storage) -> None:
    driver = Driver(storage)
    for epoch in range(10):
        turn = driver.run(epoch)
        if epoch in (3, 6):
            driver.snapshot(turn)
    chain = driver.history.chain()
    before = {turn: _content(storage, driver.history, turn) for turn in chain[:3]}
    garbage = collect_garbage(driver.checkpoint, TRIP, driver.history, retain_epochs=2)
    assert len(garbage.turns) == 7
    assert len(garbage.snapshots) == 1
    assert not _all_files(storage) & set(garbage.paths)
    again = Checkpoint.open(storage).load_history(TRIP)
    assert again.retained() == driver.history.retained() == chain[:4], "the snapshot that they build upon stays"
    assert {turn: _content(storage, again, turn) for turn in chain[:3]} == before
    with pytest.raises(EpochNotRetained):
        again.restore_plan(chain[5])
    names = storage.list(paths.snapshots(TRIP))
    assert len(names) == 1, "no empty folder stays behind"


def test_what_was_given_up_stays_marked_as_long_as_its_attachment_lives(storage: Storage) -> None:
    """A worker that hung in a seal may go on however late: it looks for the mark before it says that it has sealed."""
    driver = Driver(storage)
    given_up = paths.abandoned(TRIP, driver.run(0))
    storage.write(given_up, b"")
    for first, kept in ((1, True), (7, False)):
        for epoch in range(first, first + 6):
            driver.snapshot(driver.run(epoch))
        collect_garbage(driver.checkpoint, TRIP, driver.history, 1)
        assert storage.exists(given_up) == kept
        driver = Driver(storage)  # who is left of the one before is fenced off now


def test_nobody_who_was_fenced_deletes_anything(storage: Storage) -> None:
    driver = Driver(storage)
    for epoch in range(6):
        turn = driver.run(epoch)
        driver.snapshot(turn)
    Checkpoint.open(storage, ME).claim()
    before = _all_files(storage)
    with pytest.raises(Fenced):
        collect_garbage(driver.checkpoint, TRIP, driver.history, 1)
    assert _all_files(storage) == before
    assert len(driver.history.chain()) == 6, "nothing was forgotten"


class RecordingStorage:
    """Passes everything on, and fails at the nth deletion of a file."""

    def __init__(self, inner: Storage, survive: int) -> None:
        self._inner, self._left, self.url = inner, survive, inner.url

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            if self._left == 0:
                raise KeyboardInterrupt
            self._left -= 1
            self._inner.delete([path])

    def write(self, path: str, data: Buffers) -> None:
        self._inner.write(path, data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


@pytest.mark.parametrize("survive", range(0, 17, 2))
def test_a_crash_amid_deletion_leaves_no_promise_that_cannot_be_kept(storage: Storage, survive: int) -> None:
    driver = Driver(storage)
    for epoch in range(8):
        turn = driver.run(epoch)
        if epoch in (1, 4):
            driver.snapshot(turn)
    crashing = Checkpoint.open(RecordingStorage(storage, survive), ME)  # type: ignore[arg-type]
    crashing.generation = driver.generation
    with pytest.raises(KeyboardInterrupt):
        collect_garbage(crashing, TRIP, driver.history, 1)
    again = Driver(storage)
    for turn in again.history.retained():
        _content(storage, again.history, turn)
    # What was left is swept by the next one.
    again.run(8)
    collect_garbage(again.checkpoint, TRIP, again.history, 1)
    left = _all_files(storage, paths.operator(TRIP))
    known = {path for turn in again.history.chain() for path in again.history.segment_paths(turn)}
    assert {path for path in left if "/deltas/" in path} == {path for path in known if storage.exists(path)}
    assert len(storage.list(paths.snapshots(TRIP))) == 1


def test_a_snapshot_that_was_never_finished_is_swept_once_it_is_old(storage: Storage) -> None:
    driver = Driver(storage)
    turns = [driver.run(epoch) for epoch in range(8)]
    driver.snapshot(turns[1], finish=False)
    driver.snapshot(turns[4])
    driver.snapshot(turns[7], finish=False)
    collect_garbage(driver.checkpoint, TRIP, driver.history, 1)
    names = [paths.snapshot(TRIP, turn).rpartition("/")[2] for turn in (turns[4], turns[7])]
    assert storage.list(paths.snapshots(TRIP)) == names, "the newest may be under way"


# --- export ---


def test_an_export_starts_another_cluster_that_goes_on_where_this_one_was(root: Callable[[str], Storage]) -> None:
    source = root("main")
    Checkpoint.open(source, ME).claim()
    driver, other = Driver(source), Driver(source, OperatorName("per/lane"))
    for epoch in range(6):
        turn = driver.run(epoch)
        if epoch == 2:
            driver.snapshot(turn)
        other.run(epoch)
    driver.open(6)
    to = root("copy")
    copied = Checkpoint.open(source, ME).export(to)
    assert copied == {TRIP: driver.history.head, other.operator: other.history.head}
    new = Driver(to)
    assert new.generation > other.generation
    assert new.schema == driver.schema
    assert new.history.head == driver.history.head
    for turn in new.history.chain()[:2]:
        assert _content(to, new.history, turn) == _content(source, driver.history, turn)
    assert new.history.base_for(A, Epoch(5)) == driver.history.base_for(A, Epoch(5)), "Spark may ask for it again"
    assert new.run(6) > (driver.history.head or 0)
    assert new.checkpoint.format.id != driver.checkpoint.format.id
    assert _content(to, Checkpoint.open(to).load_history(other.operator), other.history.head)


def test_an_export_takes_only_what_it_needs(root: Callable[[str], Storage]) -> None:
    source, to = root("main"), root("copy")
    driver = Driver(source)
    turns = [driver.run(epoch) for epoch in range(9)]
    driver.snapshot(turns[3])
    driver.snapshot(turns[8])
    driver.checkpoint.export(to, epochs_back=0)
    history = Checkpoint.open(to).load_history(TRIP)
    assert history.chain() == [turns[8]]
    assert to.list(paths.deltas(TRIP)) == []
    assert _content(to, history, turns[8]) == [b"snapshot"]
    assert history.last_epoch(A) == 8
    assert Driver(to).run(9)


def test_the_state_before_the_last_epoch_is_exported_with_the_snapshot_that_it_needs(
    root: Callable[[str], Storage],
) -> None:
    source, to = root("main"), root("copy")
    driver = Driver(source)
    turns = [driver.run(epoch) for epoch in range(9)]
    driver.snapshot(turns[3])
    driver.snapshot(turns[8])
    driver.checkpoint.export(to)
    history = Checkpoint.open(to).load_history(TRIP)
    assert history.base_for(A, Epoch(8)) == Base(turns[7])
    assert _content(to, history, turns[7]) == _content(source, driver.history, turns[7])
    assert _content(to, history, turns[8]) == [b"snapshot"]


def test_a_turn_that_only_its_snapshot_holds_is_exported_with_it(root: Callable[[str], Storage]) -> None:
    source, to = root("main"), root("copy")
    driver = Driver(source)
    turns = [driver.run(epoch) for epoch in range(4)]
    driver.snapshot(turns[2])
    driver.snapshot(turns[3])
    source.delete(driver.history.segment_paths(turns[2]))
    driver.checkpoint.export(to, epochs_back=2)
    history = Checkpoint.open(to).load_history(TRIP)
    assert history.retained() == turns[::-1]
    assert _content(to, history, turns[2]) == [b"snapshot"]


def test_an_older_state_can_be_exported(root: Callable[[str], Storage]) -> None:
    source, to = root("main"), root("copy")
    driver = Driver(source)
    turns = [driver.run(epoch) for epoch in range(9)]
    driver.snapshot(turns[3])
    assert driver.checkpoint.export(to, {TRIP: turns[5]}, epochs_back=2) == {TRIP: turns[5]}
    new = Driver(to)
    assert new.history.head == turns[5]
    assert new.history.retained() == [turns[5], turns[4], turns[3]]
    assert _content(to, new.history, turns[5]) == _content(source, driver.history, turns[5])
    new.run(6)


def test_a_short_history_is_exported_from_the_empty_state_on(root: Callable[[str], Storage]) -> None:
    source, to = root("main"), root("copy")
    driver = Driver(source)
    driver.snapshot(driver.run(0))
    driver.checkpoint.export(to)
    assert Driver(to).history.base_for(A, Epoch(0)) == Base(None)


def test_an_export_of_a_state_that_is_not_retained_says_which_are(root: Callable[[str], Storage]) -> None:
    driver = Driver(root("main"))
    turns = [driver.run(epoch) for epoch in range(6)]
    driver.snapshot(turns[4])
    collect_garbage(driver.checkpoint, TRIP, driver.history, 1)
    with pytest.raises(EpochNotRetained, match="epochs 4 to 5"):
        driver.checkpoint.export(root("copy"), {TRIP: turns[1]})


def test_an_export_needs_an_empty_folder(root: Callable[[str], Storage]) -> None:
    Driver(root("other"))
    with pytest.raises(CheckpointForeign, match="empty folder"):
        Driver(root("main")).checkpoint.export(root("other"))


def test_a_part_that_was_cut_short_is_not_exported(root: Callable[[str], Storage]) -> None:
    driver = Driver(root("main"))
    turn = driver.run(0)
    driver.snapshot(turn)
    driver.storage.write(f"{paths.snapshot(TRIP, turn)}/{paths.part('n', 0, '0f')}", b"snap")
    with pytest.raises(CheckpointDamaged, match="has 4 bytes, and was written with 8"):
        driver.checkpoint.export(root("copy"))
    with pytest.raises(CheckpointForeign):
        Checkpoint.open(root("copy"))


class CollectedOnce:
    """What is being copied is collected as garbage the first time that a segment is read."""

    def __init__(self, inner: Storage, collect: Callable[[], object]) -> None:
        self._inner, self._collect, self.url = inner, collect, inner.url
        self._collected = False

    def read(self, path: str) -> bytes:
        if path.endswith(".arrow") and not self._collected:
            self._collected = True
            self._collect()
        return self._inner.read(path)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def test_an_export_starts_over_when_garbage_collection_was_faster(root: Callable[[str], Storage]) -> None:
    source, to = root("main"), root("copy")
    driver = Driver(source)
    for epoch in range(4):
        driver.run(epoch)

    def go_on() -> None:
        for epoch in range(4, 8):
            driver.snapshot(driver.run(epoch))
        collect_garbage(driver.checkpoint, TRIP, driver.history, 1)

    collecting = CollectedOnce(source, go_on)
    copied = Checkpoint.open(collecting, ME).export(to)  # type: ignore[arg-type]
    assert copied == {TRIP: driver.history.head}
    new = Checkpoint.open(to).load_history(TRIP)
    assert _content(to, new, new.head) == _content(source, driver.history, driver.history.head)


def test_a_missing_file_is_damage_and_not_a_copy(root: Callable[[str], Storage]) -> None:
    driver = Driver(root("main"))
    turn = driver.run(0)
    path = paths.delta(TRIP, turn, WorkerId(0))
    gone = VanishingStorage(driver.storage, {path})
    with pytest.raises(CheckpointDamaged, match=r"is missing in"):
        Checkpoint.open(gone, ME).export(root("copy"))  # type: ignore[arg-type]


def test_a_manifest_is_encoded_as_it_is_read(storage: Storage) -> None:
    driver = Driver(storage)
    manifest = driver.snapshot(driver.run(0))
    named = msgspec.structs.replace(manifest, operator=TRIP, generation=driver.generation)
    assert storage.read(paths.manifest(TRIP, manifest.turn)) == encode(named)
    assert driver.checkpoint.load_history(TRIP).manifest(manifest.turn) == manifest
