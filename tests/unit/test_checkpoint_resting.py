"""Parts of a snapshot that nothing has changed since are taken over by the next one, and no others."""

from pathlib import Path

import msgspec
import pytest
from tests.checkpoint_states import COUNTS, ME, OPERATOR, Writer, delta, groups_of_keys, rows_of

from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.compaction import Step, compact, restore_at
from bedload.checkpoint.filing import Filing
from bedload.checkpoint.records import Manifest, manifest_of
from bedload.checkpoint.storage import Storage, open_storage
from bedload.core.errors import CheckpointDamaged
from bedload.core.ids import Turn

KEYS = range(200)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path))


@pytest.fixture
def writer(storage: Storage) -> Writer:
    """A snapshot of a part per key group."""
    checkpoint = Checkpoint.open(storage, ME)
    checkpoint.add_schema(OPERATOR, COUNTS)
    made = Writer(storage, COUNTS)
    change(storage, made, dict.fromkeys(KEYS, 0))
    snapshot(storage, made)
    return made


def change(storage: Storage, writer: Writer, counts: dict[int, int]) -> None:
    changed = delta(COUNTS, {key: {"n": count} for key, count in counts.items()})
    Checkpoint.open(storage, ME).write_turn(OPERATOR, writer.turn(changed))


def snapshot(storage: Storage, writer: Writer) -> Manifest:
    parts = compact(storage, OPERATOR, writer.records[-1].turn, target_bytes=1)
    manifest = manifest_of(writer.records[-1], COUNTS, parts)
    return Checkpoint.open(storage, ME).write_manifest(OPERATOR, manifest)


def inodes(storage: Storage, turn: Turn) -> dict[str, int]:
    """By file of a snapshot, which file of the disk it is."""
    folder = Path(storage.url.removeprefix("file://")) / paths.snapshot(OPERATOR, turn)
    return {str(file.relative_to(folder)): file.stat().st_ino for file in folder.rglob("*.parquet")}


def state_at(storage: Storage, turn: Turn) -> dict[int, int]:
    restore, _ = restore_at(Checkpoint.open(storage, ME), OPERATOR, turn)
    return {key: row["n"] for _, batch in restore.chunks() for key, row in rows_of(batch).items()}


def test_parts_without_changes_are_links_and_the_others_are_new(storage: Storage, writer: Writer) -> None:
    change(storage, writer, {7: 1})
    before, after = (record.turn for record in writer.records)
    made = snapshot(storage, writer)
    (changed,) = groups_of_keys(COUNTS, [7])
    old, new = inodes(storage, before), inodes(storage, after)
    assert len(new) == COUNTS.key_groups == len(made.parts)
    fresh = [path for path, inode in new.items() if inode not in old.values()]
    assert fresh == [part.files["n"].path for part in made.parts if part.groups == (changed,)]
    assert state_at(storage, after) == dict.fromkeys(KEYS, 0) | {7: 1}


def test_a_snapshot_with_parts_that_were_taken_over_stands_by_itself(storage: Storage, writer: Writer) -> None:
    change(storage, writer, {7: 1})
    made = snapshot(storage, writer)
    filing = Filing(Checkpoint.open(storage, ME))
    filing.checkpoint.claim()
    history = filing.history(OPERATOR)
    garbage = history.garbage(1)
    assert not garbage.paths, "the last epoch can be run again"
    change(storage, writer, {7: 2})
    history = filing.history(OPERATOR)
    garbage = history.garbage(1)
    assert {made.turn} == {*history.chain()} - {*garbage.turns, *garbage.snapshots} - {writer.records[-1].turn}
    for piece in garbage.slices(3):
        filing.collect(OPERATOR, piece)
    assert state_at(storage, made.turn) == dict.fromkeys(KEYS, 0) | {7: 1}
    assert storage.list(paths.snapshots(OPERATOR)) == [paths.snapshot(OPERATOR, made.turn).rpartition("/")[2]]


def test_a_snapshot_that_is_there_already_is_not_copied_onto_itself(
    storage: Storage, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[tuple[str, str]] = []
    monkeypatch.setattr(storage, "copy", lambda *paths: copied.append(paths))
    before = inodes(storage, writer.records[-1].turn)
    parts = compact(storage, OPERATOR, writer.records[-1].turn)
    assert not copied
    assert sum(part.rows for part in parts) == len(KEYS)
    assert before.items() <= inodes(storage, writer.records[-1].turn).items(), "nor are its files touched"


def test_steps_tell_of_what_was_taken_over_and_of_what_is_new(storage: Storage, writer: Writer) -> None:
    change(storage, writer, {7: 1})
    steps: list[Step] = []
    compact(storage, OPERATOR, writer.records[-1].turn, target_bytes=1, steps=steps.append)
    assert steps[0].groups == COUNTS.key_groups - 1
    assert (steps[-1].groups, steps[-1].keys) == (COUNTS.key_groups, len(KEYS))


def test_only_parts_that_lie_within_the_key_groups_of_a_job_are_taken_over(storage: Storage, writer: Writer) -> None:
    change(storage, writer, {7: 1})
    whole = manifest_of(writer.records[-1], COUNTS, compact(storage, OPERATOR, writer.records[-1].turn))
    some = compact(storage, OPERATOR, writer.records[-1].turn, range(4), target_bytes=1)
    rest = compact(storage, OPERATOR, writer.records[-1].turn, range(4, 8), target_bytes=1)
    assert sorted(group for part in (*some, *rest) for group in part.groups) == list(range(8))
    assert sum(part.rows for part in (*some, *rest)) == whole.rows


@pytest.mark.parametrize("field", ["version", "schema"])
def test_a_part_of_an_older_layout_or_schema_is_written_anew(storage: Storage, writer: Writer, field: str) -> None:
    path = paths.manifest(OPERATOR, writer.records[-1].turn)
    if field == "version":
        text = storage.read(path).replace(b'"version": 2', b'"version": 1')
        storage.write(path, text.rpartition(b",")[0] + b"\n}")  # without its checksum
    else:
        number = Checkpoint.open(storage, ME).add_schema(OPERATOR, msgspec.structs.replace(COUNTS, base=1)).number
        writer.schema = msgspec.structs.replace(COUNTS, number=number, base=1)
    change(storage, writer, {7: 1})
    before, after = (record.turn for record in writer.records)
    compact(storage, OPERATOR, after, target_bytes=1)
    assert not {*inodes(storage, before).values()} & {*inodes(storage, after).values()}


@pytest.mark.parametrize("how", ["cut off", "gone"])
def test_a_file_that_is_not_as_long_as_it_was_is_not_taken_over(storage: Storage, writer: Writer, how: str) -> None:
    change(storage, writer, {7: 1})
    (changed,) = groups_of_keys(COUNTS, [7])
    history = Checkpoint.open(storage, ME).load_history(OPERATOR)
    manifest = history.manifest(writer.records[0].turn)
    assert manifest is not None
    part = next(part for part in manifest.parts if changed not in part.groups)
    path = f"{paths.snapshot(OPERATOR, manifest.turn)}/{part.files['n'].path}"
    if how == "gone":
        storage.delete([path])
    else:
        storage.write(path, storage.read(path)[:-1])
    with pytest.raises(CheckpointDamaged, match=path.rpartition("/")[2]):
        compact(storage, OPERATOR, writer.records[-1].turn)
