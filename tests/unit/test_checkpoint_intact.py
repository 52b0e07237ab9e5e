"""A damaged file: what is offered in place of the state that needed it, and that it can be restored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.checkpoint_states import COUNTS, ME, OPERATOR, QUERY, Writer, collect_garbage, delta, rows_of

from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.compaction import compact, restore_at
from bedload.checkpoint.history import History
from bedload.checkpoint.intact import Intact, advise, newest_intact
from bedload.checkpoint.local_storage import LocalStorage
from bedload.checkpoint.records import TurnRecord, encode, manifest_of
from bedload.core.errors import CheckpointDamaged
from bedload.core.ids import Epoch, Turn, WorkerId

Damage = Callable[[bytes], bytes | None]


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip(data: bytes) -> bytes:
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    return bytes(flipped)


def empty(_: bytes) -> bytes:
    return b""


def gone(_: bytes) -> None:
    return None


DAMAGES = [cut, flip, empty, gone]


class Stored:
    """Six epochs; epoch *n* sets the count of every car to *n*. Some have a snapshot."""

    def __init__(self, root: Path, snapshots: tuple[int, ...] = ()) -> None:
        self.root = root
        self.storage = LocalStorage(root)
        self.checkpoint = Checkpoint.open(self.storage, ME)
        self.checkpoint.add_schema(OPERATOR, COUNTS)
        self.writer = Writer(self.storage, COUNTS)
        for epoch in range(6):
            record = self.writer.turn(delta(COUNTS, {car: {"n": epoch} for car in range(10)}))
            self.record(record)
            if epoch in snapshots:
                parts = compact(self.storage, OPERATOR, record.turn)
                self.checkpoint.write_manifest(OPERATOR, manifest_of(record, COUNTS, parts))

    def record(self, record: TurnRecord) -> None:
        self.storage.write(
            paths.turn(OPERATOR, record.turn), encode(msgspec.structs.replace(record, location="file:///spark"))
        )

    def turn(self, epoch: int) -> Turn:
        return self.writer.records[epoch].turn

    def damage(self, path: str, how: Damage) -> str:
        file = self.root / path
        data = how(file.read_bytes())
        if data is None:
            file.unlink()
        else:
            file.write_bytes(data)
        return str(file)

    def delta(self, epoch: int, worker: int = 0) -> str:
        return paths.delta(OPERATOR, self.turn(epoch), WorkerId(worker))

    def part(self, epoch: int) -> str:
        folder = self.root / paths.snapshot(OPERATOR, self.turn(epoch))
        return str(next(folder.glob("*/*.parquet")).relative_to(self.root))

    def offered(self, wanted: int | None = None) -> Intact | None:
        return newest_intact(self.storage, OPERATOR, None if wanted is None else self.turn(wanted))

    def restored(self, turn: Turn | None) -> dict[Any, Any]:
        restore, _ = restore_at(Checkpoint.open(self.storage), OPERATOR, turn)  # type: ignore[arg-type]
        return {car: row["n"] for car, row in rows_of(restore.table()).items()}


def test_of_what_is_not_damaged_the_newest_state_is_intact(tmp_path: Path) -> None:
    stored = Stored(tmp_path, snapshots=(2,))
    found = stored.offered()
    assert found is not None
    assert (found.epoch, found.newest, found.in_the_way, found.cut) == (5, True, (), False)


@pytest.mark.parametrize("how", [cut, flip, empty])
@pytest.mark.parametrize("snapshots", [(), (1,)])
def test_a_damaged_segment_offers_the_state_before_its_epoch(
    tmp_path: Path, how: Damage, snapshots: tuple[int, ...]
) -> None:
    stored = Stored(tmp_path, snapshots)
    stored.damage(stored.delta(4, worker=1), how)
    found = stored.offered(5)
    assert found is not None
    assert (found.turn, found.query, found.epoch, found.location) == (stored.turn(3), QUERY, 3, "file:///spark")
    assert not found.newest
    assert found.in_the_way == ()
    assert stored.restored(found.turn) == dict.fromkeys(range(10), 3)


def test_a_segment_that_is_gone_cuts_off_what_came_after(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.damage(stored.delta(4, worker=1), gone)
    found = stored.offered()
    assert found is not None
    record = f"file://{tmp_path}/{paths.turn(OPERATOR, stored.turn(4))}"
    assert (found.epoch, found.cut, found.in_the_way) == (3, True, (record,))
    for later in (4, 5):
        (tmp_path / paths.turn(OPERATOR, stored.turn(later))).unlink()
    assert Checkpoint.open(stored.storage).load_history(OPERATOR).head == stored.turn(3)


def test_a_damaged_segment_before_a_snapshot_is_not_needed(tmp_path: Path) -> None:
    stored = Stored(tmp_path, snapshots=(3,))
    stored.damage(stored.delta(1), flip)
    found = stored.offered(5)
    assert found is not None
    assert (found.epoch, found.newest) == (5, True)


def test_of_several_damaged_segments_the_oldest_counts_but_for_snapshots_in_between(tmp_path: Path) -> None:
    stored = Stored(tmp_path, snapshots=(2,))
    for epoch in (1, 4, 5):
        stored.damage(stored.delta(epoch), cut)
    found = stored.offered(5)
    assert found is not None
    assert found.epoch == 3
    stored.damage(stored.part(2), flip)
    found = stored.offered(5)
    assert found is not None
    assert found.epoch == 0


def test_the_first_segment_leaves_the_empty_state(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.damage(stored.delta(0), gone)
    found = stored.offered(5)
    assert found is not None
    assert (found.turn, found.epoch) == (None, -1)


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_snapshot_costs_nothing_while_the_deltas_are_there(tmp_path: Path, how: Damage) -> None:
    stored = Stored(tmp_path, snapshots=(1, 3))
    stored.damage(stored.part(3), how)
    found = stored.offered(5)
    assert found is not None
    assert found.newest
    assert found.in_the_way == (f"file://{tmp_path}/{paths.manifest(OPERATOR, stored.turn(3))}",)
    stored.damage(paths.manifest(OPERATOR, stored.turn(3)), gone)
    assert stored.restored(stored.turn(5)) == dict.fromkeys(range(10), 5)


@pytest.mark.parametrize("how", [cut, flip, empty])
def test_a_damaged_manifest_costs_nothing_while_the_deltas_are_there(tmp_path: Path, how: Damage) -> None:
    stored = Stored(tmp_path, snapshots=(3,))
    path = stored.damage(paths.manifest(OPERATOR, stored.turn(3)), how)
    found = stored.offered()
    assert found is not None
    assert found.newest
    assert found.in_the_way == (f"file://{path}",)
    Path(path).unlink()
    assert stored.restored(stored.turn(5)) == dict.fromkeys(range(10), 5)


def test_a_damaged_snapshot_whose_deltas_are_gone_leaves_nothing(tmp_path: Path) -> None:
    stored = Stored(tmp_path, snapshots=(3,))
    Checkpoint.open(stored.storage, ME).claim()
    checkpoint = Checkpoint.open(stored.storage, ME)
    checkpoint.claim()
    collect_garbage(checkpoint, OPERATOR, checkpoint.load_history(OPERATOR), 2)
    stored.damage(stored.part(3), flip)
    assert stored.offered(5) is None


@pytest.mark.parametrize("how", [cut, flip, empty])
@pytest.mark.parametrize("epoch", [5, 3])
def test_a_damaged_record_offers_the_state_before_its_turn(tmp_path: Path, how: Damage, epoch: int) -> None:
    stored = Stored(tmp_path)
    path = stored.damage(paths.turn(OPERATOR, stored.turn(epoch)), how)
    found = stored.offered()
    assert found is not None
    assert (found.epoch, found.cut, found.in_the_way) == (epoch - 1, True, (f"file://{path}",))
    for later in range(epoch, 6):
        (tmp_path / paths.turn(OPERATOR, stored.turn(later))).unlink()
    checkpoint = Checkpoint.open(stored.storage, ME)
    assert checkpoint.load_history(OPERATOR).head == stored.turn(epoch - 1)
    assert stored.restored(found.turn) == dict.fromkeys(range(10), epoch - 1)


def test_a_damaged_record_behind_a_snapshot_is_not_needed(tmp_path: Path) -> None:
    stored = Stored(tmp_path, snapshots=(4,))
    path = stored.damage(paths.turn(OPERATOR, stored.turn(2)), flip)
    found = stored.offered()
    assert found is not None
    assert (found.newest, found.cut, found.in_the_way) == (True, False, (f"file://{path}",))
    Path(path).unlink()
    assert stored.restored(stored.turn(5)) == dict.fromkeys(range(10), 5)


def test_a_branch_that_was_given_up_is_not_offered_for_a_damaged_record(tmp_path: Path) -> None:
    """Epochs 0 to 5, then Spark was set back to epoch 2: turns 7 and 8 are epochs 3 and 4."""
    stored = Stored(tmp_path)
    for epoch, parent in ((3, 2), (4, 6)):
        record = stored.writer.turn(delta(COUNTS, {0: {"n": 100 + epoch}}))
        parent_turn = stored.writer.records[parent].turn
        record = msgspec.structs.replace(
            record, epoch=Epoch(epoch), parent=parent_turn, committed={QUERY: Epoch(epoch - 1)}
        )
        stored.writer.records[-1] = record
        stored.record(record)
    stored.damage(paths.turn(OPERATOR, stored.turn(6)), flip)
    found = stored.offered()
    assert found is not None
    assert (found.turn, found.epoch) == (stored.turn(2), 2)


def test_the_error_says_which_epoch_and_what_to_do(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    path = stored.damage(stored.delta(4), flip)
    with pytest.raises(CheckpointDamaged) as caught:
        stored.restored(stored.turn(5))
    error = advise(stored.storage, OPERATOR, stored.turn(5), caught.value)
    assert path in error.message
    assert (error.epoch, error.query, error.path) == (3, QUERY, f"file://{path}")
    for words in (
        "its checksum differs",
        "that after epoch 3 of query query",
        "set Spark's checkpoint (file:///spark) back",
        "deleting the files with numbers above 3 in its folders offsets and commits",
    ):
        assert words in error.message
    assert "remove" not in error.message


def test_the_error_says_that_nothing_is_lost_and_what_to_remove(tmp_path: Path) -> None:
    stored = Stored(tmp_path, snapshots=(4,))
    stored.damage(stored.part(4), cut)
    with pytest.raises(CheckpointDamaged) as caught:
        stored.restored(stored.turn(5))
    error = advise(stored.storage, OPERATOR, stored.turn(5), caught.value)
    manifest = f"{tmp_path}/{paths.manifest(OPERATOR, stored.turn(4))}"
    assert "Nothing is lost" in error.message
    assert f"Remove file://{manifest}, and start again" in error.message


def test_the_error_says_that_a_record_cuts_off_what_came_after(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    path = stored.damage(paths.turn(OPERATOR, stored.turn(2)), empty)
    with pytest.raises(CheckpointDamaged) as caught:
        Checkpoint.open(stored.storage).load_history(OPERATOR)
    error = advise(stored.storage, OPERATOR, None, caught.value)
    assert f"remove file://{path}, with all later turn records and snapshots, and set Spark's" in error.message
    assert error.epoch == 1


def test_the_error_says_that_nothing_is_left(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.damage(paths.turn(OPERATOR, stored.turn(0)), empty)
    error = advise(stored.storage, OPERATOR, None, CheckpointDamaged("x.json is damaged.", path="x.json"))
    assert error.message.startswith("x.json is damaged. No older state of operator Trip is intact: put the file back")
    assert error.path == "x.json"


def test_history_alone_cannot_tell(tmp_path: Path) -> None:
    """Why files are read here: a history knows which files are there, not whether they are good."""
    stored = Stored(tmp_path)
    stored.damage(stored.delta(4), flip)
    history = Checkpoint.open(stored.storage).load_history(OPERATOR)
    assert isinstance(history, History)
    assert len(history.restore_plan(stored.turn(5)).deltas) == 6
