"""Compaction writes a snapshot that stands for the deltas before it; a child process does it as the function does."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.checkpoint_states import COUNTS, ME, OPERATOR, Writer, delta, rows_of
from tests.patience import PATIENCE

from bedload.checkpoint import __main__ as command
from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.compaction import (
    COMMAND,
    Job,
    compact,
    decode_result,
    encode_job,
    restore_at,
    run_job,
)
from bedload.checkpoint.filing import Filing
from bedload.checkpoint.records import Manifest, manifest_of
from bedload.checkpoint.storage import Storage, open_storage
from bedload.core.errors import CheckpointError, CheckpointForeign, EpochNotRetained, StoreError
from bedload.core.ids import Turn


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path))


@pytest.fixture
def writer(storage: Storage) -> Writer:
    """A checkpoint of four turns."""
    checkpoint = Checkpoint.open(storage, ME)
    checkpoint.add_schema(OPERATOR, COUNTS)
    made = Writer(storage, COUNTS)
    for turn in range(4):
        changed = {key: {"n": turn} for key in range(turn * 10, 100)}
        checkpoint.write_turn(OPERATOR, made.turn(delta(COUNTS, changed, removed=[turn])))
    return made


def state_at(storage: Storage, turn: Turn) -> dict[Any, Any]:
    restore, _ = restore_at(Checkpoint.open(storage, ME), OPERATOR, turn)
    found: dict[Any, Any] = {}
    for _, batch in restore.chunks():
        found |= rows_of(batch)
    return found


def test_a_snapshot_stands_for_the_deltas_before_it(storage: Storage, writer: Writer) -> None:
    expected = {record.turn: state_at(storage, record.turn) for record in writer.records}
    third = writer.records[2]
    parts = [*compact(storage, OPERATOR, third.turn, range(3)), *compact(storage, OPERATOR, third.turn, range(3, 8))]
    manifest = manifest_of(third, COUNTS, parts)
    Checkpoint.open(storage, ME).write_manifest(OPERATOR, manifest)
    assert manifest.rows == len(expected[third.turn])
    old = [paths.delta(OPERATOR, record.turn, worker) for record in writer.records[:3] for worker in record.workers]
    storage.delete(old)
    assert {turn: state_at(storage, turn) for turn in list(expected)[2:]} == dict(list(expected.items())[2:])


def test_a_snapshot_can_be_made_from_a_snapshot(storage: Storage, writer: Writer) -> None:
    checkpoint, last = Checkpoint.open(storage, ME), writer.records[-1]
    expected = state_at(storage, last.turn)
    for record in (writer.records[1], last):
        checkpoint.write_manifest(OPERATOR, manifest_of(record, COUNTS, compact(storage, OPERATOR, record.turn)))
    assert state_at(storage, last.turn) == expected


# --- a manifest whose answer was lost ---


def cut(storage: Storage, writer: Writer, pieces: int) -> Manifest:
    """The last turn in a snapshot of so many parts, which does not count yet."""
    record, step = writer.records[-1], COUNTS.key_groups // pieces
    ranges = [range(first, first + step) for first in range(0, COUNTS.key_groups, step)]
    parts = [part for groups in ranges for part in compact(storage, OPERATOR, record.turn, groups)]
    return manifest_of(record, COUNTS, parts)


def attached(storage: Storage) -> Filing:
    checkpoint = Checkpoint.open(storage, ME)
    checkpoint.claim()
    return Filing(checkpoint)


def lose_answers(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    create = storage.create

    def lost(path: str, data: Any) -> bool:
        create(path, data)
        raise StoreError(f"{path}: no answer")

    monkeypatch.setattr(storage, "create", lost)


def parts_there(storage: Storage, turn: Turn) -> set[str]:
    folder = f"{paths.snapshot(OPERATOR, turn)}/n"
    return {f"n/{name}" for name in storage.list(folder)}


def test_a_manifest_whose_answer_was_lost_is_the_one_that_counts(
    storage: Storage, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    filing, expected = attached(storage), state_at(storage, writer.records[-1].turn)
    first, second = cut(storage, writer, 1), cut(storage, writer, 4)
    with monkeypatch.context() as patch:
        lose_answers(storage, patch)
        with pytest.raises(StoreError):
            filing.write_manifest(OPERATOR, first)
    assert filing.write_manifest(OPERATOR, second) == first
    assert parts_there(storage, first.turn) == {info.path for part in first.parts for info in part.files.values()}
    assert state_at(storage, first.turn) == expected


def test_where_one_turn_may_have_two_states_an_earlier_manifest_of_ones_own_is_refused(
    storage: Storage, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As an initial state that is given twice: what was given first would be taken for the second.
    checkpoint = attached(storage).checkpoint
    first, second = cut(storage, writer, 1), cut(storage, writer, 4)
    with monkeypatch.context() as patch:
        lose_answers(storage, patch)
        with pytest.raises(StoreError):
            checkpoint.write_manifest(OPERATOR, first)
    with pytest.raises(CheckpointError, match="another attachment"):
        checkpoint.write_manifest(OPERATOR, second)
    there = parts_there(storage, first.turn)
    assert {info.path for made in (first, second) for part in made.parts for info in part.files.values()} <= there


@pytest.mark.parametrize("older", [True, False], ids=["by an older one", "without a generation"])
def test_a_manifest_of_other_files_by_another_attachment_is_blamed_on_it(
    storage: Storage, writer: Writer, older: bool
) -> None:
    filing = attached(storage) if older else Filing(Checkpoint.open(storage, ME))
    theirs, mine = cut(storage, writer, 1), cut(storage, writer, 4)
    filing.checkpoint.write_manifest(OPERATOR, theirs)
    with pytest.raises(CheckpointError, match="another attachment"):
        attached(storage).write_manifest(OPERATOR, mine)
    assert parts_there(storage, mine.turn) >= {info.path for part in theirs.parts for info in part.files.values()}


def test_the_same_manifest_counts_whoever_made_it(storage: Storage, writer: Writer) -> None:
    made = cut(storage, writer, 2)
    attached(storage).write_manifest(OPERATOR, made)
    assert attached(storage).write_manifest(OPERATOR, made) == made


# --- manifests and jobs ---


def test_a_manifest_has_each_key_group_once(storage: Storage, writer: Writer) -> None:
    record = writer.records[0]
    some = compact(storage, OPERATOR, record.turn, range(5))
    rest = compact(storage, OPERATOR, record.turn, range(4, 8))
    with pytest.raises(CheckpointError, match="5 0 times"):
        manifest_of(record, COUNTS, some)
    with pytest.raises(CheckpointError, match="4 2 times"):
        manifest_of(record, COUNTS, [*some, *rest])


def test_the_manifest_says_what_the_turn_committed(storage: Storage, writer: Writer) -> None:
    record = writer.records[2]
    manifest = manifest_of(record, COUNTS, compact(storage, OPERATOR, record.turn))
    assert (manifest.turn, manifest.epoch, manifest.committed) == (record.turn, 2, {"query": 2})
    assert manifest.bytes == sum(info.bytes for part in manifest.parts for info in part.files.values())


def test_a_child_process_writes_the_same_parts(storage: Storage, writer: Writer) -> None:
    turn = writer.records[-1].turn
    job = Job(url=storage.url, operator=OPERATOR, turn=turn, groups=(0, 3, 5))
    done = subprocess.run(COMMAND, input=encode_job(job), capture_output=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert list(decode_result(done.stdout)) == compact(storage, OPERATOR, turn, [0, 3, 5])


def test_a_child_that_fails_says_why(storage: Storage, writer: Writer, tmp_path: Path) -> None:
    job = Job(url=storage.url, operator=OPERATOR, turn=Turn(1))
    with pytest.raises(EpochNotRetained, match="turn 1"):
        decode_result(run_job(encode_job(job)))
    with pytest.raises(CheckpointForeign, match="nowhere"):
        decode_result(run_job(encode_job(msgspec.structs.replace(job, url=str(tmp_path / "nowhere")))))


def test_a_child_that_died_is_an_error_too() -> None:
    with pytest.raises(CheckpointError, match="ended without a result"):
        decode_result(b"")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], int]:
    """Runs the command in this process, with that on its standard input."""

    class Input:
        def __init__(self, data: bytes) -> None:
            self.buffer = self
            self._data = data

        def read(self) -> bytes:
            return self._data

    def call(data: bytes) -> int:
        monkeypatch.setattr("sys.stdin", Input(data))
        return command.main(["compact"])

    return call


def test_the_command_is_nice_and_prints_how_far_it_is_and_the_result(
    storage: Storage,
    writer: Writer,
    run: Callable[[bytes], int],
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    nice: list[int] = []
    monkeypatch.setattr(os, "nice", nice.append)
    job = {"url": storage.url, "operator": OPERATOR, "turn": writer.records[-1].turn, "groups": [1]}
    assert run(json.dumps(job).encode()) == 0
    assert nice == [10]
    *steps, last = map(json.loads, capfdbinary.readouterr().out.splitlines())
    (part,) = last["parts"]
    assert part["groups"] == [1]
    assert steps[0]["groups"] == 0, "it tells of deltas that it reads, too"
    assert (steps[-1]["groups"], steps[-1]["keys"]) == (1, part["rows"])
    assert [step["bytes"] for step in steps] == sorted(step["bytes"] for step in steps)
    assert run(b"{}") == 1
    assert json.loads(capfdbinary.readouterr().out)["error"][1].startswith("ValidationError")


def test_a_child_that_nobody_waits_for_keeps_to_its_share(
    storage: Storage, writer: Writer, run: Callable[[bytes], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    used, slept = 4.0, 0.0  # seconds of a processor, one more at each look; and of sleep

    def work() -> float:
        nonlocal used
        used += 1.0
        return used

    def sleep(seconds: float) -> None:
        nonlocal slept
        slept += seconds

    monkeypatch.setattr(os, "nice", lambda _: None)
    monkeypatch.setattr(
        command, "time", SimpleNamespace(process_time=work, monotonic=lambda: used + slept, sleep=sleep)
    )
    job = {"url": storage.url, "operator": OPERATOR, "turn": writer.records[-1].turn}
    assert run(json.dumps(job).encode()) == 0
    assert slept == 0.0
    assert run(json.dumps(job | {"share": 0.25}).encode()) == 0
    assert slept == pytest.approx(3 * used)


def test_another_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["compress"]) == 2
    assert "usage" in capsys.readouterr().err
