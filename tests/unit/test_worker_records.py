"""Outputs that wait for Spark's commit go to a local file when they are many, and come back as they were."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bedload import state as bl
from bedload.core.clock import SystemClock
from bedload.core.epoch import EpochTime
from bedload.core.errors import BedloadError, LocalDiskError, TooLarge
from bedload.core.ids import DeploymentId, Epoch, KeyGroup, OperatorName, QueryId, Turn, WorkerId
from bedload.core.limits import Limits
from bedload.protocol import messages as m
from bedload.protocol.feeder import FeederSession
from bedload.protocol.split import pack, unpack
from bedload.testing import InProcessCluster
from bedload.testing.input import InputFormat
from bedload.worker.allowance import Allowance
from bedload.worker.local_files import LocalFile, LocalFiles
from bedload.worker.machine import COORDINATOR, Phase, WorkerMachine
from bedload.worker.operator import Context, Operator
from bedload.worker.records import Kept, Records
from bedload.worker.row_runtime import Deployment
from bedload.worker.rows import Rows

NAME = OperatorName("op")
IN = pa.schema([("k", pa.int64()), ("x", pa.string())])
OUT = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("x", pa.string())])
FORM = InputFormat(IN, "k", 4)
GROUPS = tuple(KeyGroup(group) for group in range(4))
FEEDERS = m.FeederId(0, 0), m.FeederId(1, 0)
LIMIT = 20_000


class Folder(LocalFiles):
    """Remembers its files, so that a test can get at what has no name."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.made: list[LocalFile] = []

    def file(self) -> LocalFile:
        self.made.append(super().file())
        return self.made[-1]


class FullDisk(Folder):
    """What is written fails, as it does where there is no room."""

    full = True

    def file(self) -> LocalFile:
        made = super().file()
        if self.full:
            made._file = Path("/dev/full").open("wb")  # type: ignore[assignment]  # noqa: SIM115
        return made


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def batch(number: int, rows: int = 100) -> pa.RecordBatch:
    return pa.record_batch([[number] * rows, list(range(rows)), [f"{number:08}"] * rows], schema=OUT)


def records(folder: LocalFiles | None, most: int = LIMIT) -> Records:
    return Records(None, folder, most, "operator op, epoch 3, worker 0")


def fill(kept: Records) -> list[Kept]:
    return [kept.keep(batch(number)) for number in range(100)]


def test_few_outputs_touch_no_disk(folder: Folder) -> None:
    kept = records(folder)
    found = [kept.keep(batch(number)) for number in range(5)]
    assert not folder.made
    assert [unpack(kept.body(it), OUT) for it in found] == [batch(number) for number in range(5)]


def test_many_stay_within_the_limit_and_come_back_as_they_were(folder: Folder, tmp_path: Path) -> None:
    kept = records(folder)
    found, total = [], 0
    for number in range(300):
        found.append(kept.keep(batch(number)))
        total += found[-1].size
        assert kept.held <= LIMIT + found[-1].size
        assert kept.held + kept.spilled == total
    assert kept.spilled > 10 * LIMIT
    assert [unpack(kept.body(it), OUT) for it in found] == [batch(number) for number in range(300)]
    assert len(folder.made) == 1
    assert not list(tmp_path.iterdir()), "the file has no name"


def test_the_file_is_an_arrow_stream(folder: Folder) -> None:
    kept = records(folder)
    fill(kept)
    (file,) = folder.made
    found = pa.ipc.open_stream(pa.py_buffer(file.read(0, file._end))).read_all()
    assert found == pa.Table.from_batches([batch(number) for number in range(len(found) // 100)])
    assert len(found) > 5000


def test_a_slice_is_written_at_a_time(folder: Folder) -> None:
    kept = records(folder)
    ends = []
    for number in range(300):
        kept.keep(batch(number))
        ends.append(kept.spilled)
    steps = [after - before for before, after in pairwise(ends) if after > before]
    assert max(steps) < LIMIT / 3
    assert len(steps) < 250


def test_one_output_that_is_larger_than_all_is_in_memory_until_the_next(folder: Folder) -> None:
    kept = records(folder)
    large = kept.keep(batch(0, 10_000))
    assert large.body is not None
    kept.keep(batch(1))
    assert large.body is None
    assert unpack(kept.body(large), OUT) == batch(0, 10_000)


def test_outputs_of_one_sub_batch_that_wait_for_others_count(folder: Folder) -> None:
    kept = records(folder)
    parts = [batch(0), batch(1)]
    for part in parts:
        kept.wait(part)
    assert kept.held == sum(part.nbytes for part in parts)
    joined = kept.join(parts)
    assert joined is not None
    assert kept.held == joined.size
    assert unpack(kept.body(joined), OUT) == pa.concat_batches(parts)
    assert kept.join([]) is None


def test_a_new_turn_has_a_file_of_its_own(folder: Folder) -> None:
    kept = records(folder)
    fill(kept)
    kept.clear()
    assert folder.made[0]._file.closed
    assert kept.held == kept.spilled == 0
    again = [kept.keep(batch(number + 7)) for number in range(100)]
    assert len(folder.made) == 2
    assert unpack(kept.body(again[0]), OUT) == batch(7)


def test_a_part_of_what_the_epoch_may_take_is_for_outputs() -> None:
    def most(limit: int | None) -> int:
        return Records.within(Allowance(NAME, WorkerId(0), limit), None, 1000, "")._most

    assert (most(None), most(400), most(1 << 40)) == (1000, 100, 1000)


# --- what may be lost ---


def flip(file: LocalFile, at: int) -> None:
    file._file.seek(at)
    byte = file._file.read(1)
    file._file.seek(at)
    file._file.write(bytes([byte[0] ^ 1]))
    file._file.flush()


@pytest.mark.parametrize("how", ["damaged", "cut", "unreadable"])
def test_what_was_lost_is_an_error_that_says_where(folder: Folder, how: str) -> None:
    kept = records(folder)
    found = fill(kept)
    (file,) = folder.made
    if how == "damaged":
        flip(file, found[0].at + found[0].size - 1)
    elif how == "cut":
        file._file.truncate(found[0].at + 10)
    else:
        file._file = Path("/dev/null").open("wb")  # type: ignore[assignment]  # noqa: SIM115
    with pytest.raises(LocalDiskError, match=r"operator op, epoch 3, worker 0: .* were lost") as lost:
        kept.body(found[0])
    assert "Start the query again" in str(lost.value)
    if how == "damaged":
        assert unpack(kept.body(found[1]), OUT) == batch(1)


def test_a_full_disk_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    kept = records(FullDisk(tmp_path))
    with pytest.raises(LocalDiskError, match="No space left on device") as full:
        fill(kept)
    assert "local_dir=" in str(full.value)
    kept.clear()


def test_so_is_a_folder_that_is_not_there(tmp_path: Path) -> None:
    kept = records(Folder(tmp_path / "gone"))
    with pytest.raises(LocalDiskError, match="No such file or directory"):
        fill(kept)


# --- in a worker ---


class Echo(Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        for row in rows:
            self.n += 1
            yield key, self.n, row.x


class AtTheSeal(Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        self.n += len(rows)

    def result(self, key: Any, ctx: Context) -> Any:
        return key, self.n, "x" * 1000


class Rig:
    """A worker with two feeders."""

    def __init__(self, operator: type[Operator], scratch: LocalFiles, epoch_bytes: int | None = None) -> None:
        deployment = Deployment(NAME, operator, FORM.key, FORM.columns, OUT, FORM.key_types)
        limits = Limits(output_bytes=LIMIT)
        self.machine = WorkerMachine(
            WorkerId(3), lambda _: deployment, SystemClock(), None, epoch_bytes, limits, scratch=scratch
        )
        self.machine.handle(COORDINATOR, m.Deploy(NAME, DeploymentId(0), 4), b"")
        self.turn = -1

    def begin(self, epoch: int) -> None:
        self.turn += 1
        turn = Turn(self.turn)
        self.machine.handle(COORDINATOR, m.Begin(NAME, turn, Epoch(epoch), QueryId("q"), DeploymentId(0), GROUPS))
        self.machine.handle(COORDINATOR, m.Time(NAME, turn, EpochTime()))
        self.machine.handle(COORDINATOR, m.Expect(NAME, turn, 2))
        for feeder in FEEDERS:
            self.machine.handle("join", m.Join(NAME, turn, feeder), body(0)[0].schema.serialize())

    def apply(self, peer: str, feeder: m.FeederId, number: int) -> list[Any]:
        packed, check = pack(body(number)[0])
        return self.machine.handle(peer, m.Apply(NAME, Turn(self.turn), feeder, number, check), packed)

    def action(self, peer: str, count: int = 60) -> list[Any]:
        """What each feeder gets for its rows and at its end."""
        out = [self.apply(f"{peer} {feeder}", feeder, number) for number in range(count) for feeder in FEEDERS]
        out += [self.machine.handle(f"{peer} {it}", m.Done(NAME, Turn(self.turn), it, count)) for it in FEEDERS]
        for to, message, _ in [it for step in out for it in step if isinstance(it[1], m.Finished)]:
            feeder = next(it for it in FEEDERS if str(it) in str(to))
            asks = [m.AskPart(NAME, Turn(self.turn), feeder, part + 1) for part in range(message.more)]
            out += [self.machine.handle(to, ask) for ask in asks]
        answers = [(to[-30:], message, body) for step in out for to, message, body in step if to != COORDINATOR]
        refused = [message.error.error() for _, message, _ in answers if isinstance(message, m.Refused)]
        if refused:
            raise refused[0]
        return [None if body is None else unpack(body, OUT) for _, _, body in answers]

    @property
    def phase(self) -> Phase:
        return self.machine.phase(NAME)


def body(number: int) -> list[pa.RecordBatch]:
    return [FORM.batch([{"k": number * 100 + i, "x": f"row {number} {i}"} for i in range(20)])]


@pytest.mark.parametrize("operator", [Echo, AtTheSeal])
def test_a_second_action_gets_what_the_first_got(operator: type[Operator], folder: Folder) -> None:
    rig = Rig(operator, folder)
    rig.begin(0)
    first = rig.action("first")
    rows = [row for part in first if part is not None for row in part.to_pylist()]
    assert len(rows) == (2400 if operator is Echo else 1200)
    assert folder.made
    again = rig.action("again")
    assert [row for part in again if part is not None for row in part.to_pylist()] == rows
    rig.machine.handle(COORDINATOR, m.Commit(NAME, Turn(0)))
    assert folder.made[0]._file.closed, "Spark has committed: nobody asks again"


def test_sealed_outputs_come_in_parts_that_no_answer_exceeds(folder: Folder) -> None:
    rig = Rig(AtTheSeal, folder)
    rig.begin(0)
    parts = [part for part in rig.action("first") if part is not None]
    assert len(parts) > 100
    assert max(part.nbytes for part in parts) < LIMIT
    assert rig.machine._hosted[NAME].records.held < 2 * LIMIT
    refused = rig.machine.handle("first", m.AskPart(NAME, Turn(0), FEEDERS[0], 10_000))
    assert isinstance(refused[0][1], m.Refused)
    assert rig.phase is Phase.SEALED


def test_a_feeder_takes_part_after_part_and_minds_no_repeats() -> None:
    opened = m.Opened(
        Turn(5), FEEDERS[0], b"", m.Routes((WorkerId(0), WorkerId(1)), {WorkerId(0): "a", WorkerId(1): "b"})
    )
    session = FeederSession(NAME, opened)
    session.finish()
    session.receive(WorkerId(1), m.Finished(Turn(5), 1), b"1.0")
    session.receive(WorkerId(0), m.Finished(Turn(5), 2), b"0.0")
    found: list[Any] = []
    while not session.complete:
        found += session.outputs()
        for worker, ask, _ in session.wants():
            assert isinstance(ask, m.AskPart)
            assert not session.wants(), "asked for once"
            for _ in range(2):
                session.receive(worker, m.Finished(Turn(5), 2 - worker), b"again")
                session.receive(worker, m.Part(Turn(5), ask.part), f"{worker}.{ask.part}".encode())
                session.receive(worker, m.Part(Turn(5), ask.part - 1), b"late")
    assert found == [b"0.0", b"0.1", b"0.2", b"1.0", b"1.1"]
    session.receive(WorkerId(1), m.Part(Turn(5), 1), b"late")


def test_a_cluster_gives_the_same_outputs_in_parts_and_whole() -> None:
    def outputs(limits: Limits) -> list[Any]:
        cluster = InProcessCluster(AtTheSeal, schema=OUT, key="k", input=IN, key_groups=8, limits=limits)
        rows = [{"k": i % 50, "x": "x"} for i in range(500)]
        return sorted(map(str, cluster.run_epoch([rows[:300], rows[300:]])))

    assert outputs(Limits(output_bytes=5000)) == outputs(Limits())


def test_outputs_on_disk_do_not_count_against_the_epoch(folder: Folder, tmp_path: Path) -> None:
    rig = Rig(Echo, folder, epoch_bytes=LIMIT * 4)
    rig.begin(0)
    rig.action("first", 30)
    assert rig.phase is Phase.SEALED
    small = Rig(Echo, Folder(tmp_path), epoch_bytes=50)
    small.begin(0)
    with pytest.raises(TooLarge):
        small.action("first", 3)


def test_a_full_disk_fails_the_epoch_and_when_there_is_room_it_is_tried_again(tmp_path: Path) -> None:
    disk = FullDisk(tmp_path)
    rig = Rig(Echo, disk)
    rig.begin(0)
    with pytest.raises(LocalDiskError, match="operator op, epoch 0, worker 3"):
        rig.action("first")
    assert rig.phase is Phase.ABORTED
    disk.full = False
    rig.begin(0)
    counts = [row["n"] for part in rig.action("again") for row in ([] if part is None else part.to_pylist())]
    assert sorted(counts) == [1] * 1200 + [2] * 1200


def test_lost_outputs_of_a_sealed_epoch_are_refused_and_a_replay_makes_them_again(folder: Folder) -> None:
    rig = Rig(Echo, folder)
    rig.begin(0)
    first = rig.action("first")
    folder.made[0]._file.truncate(0)
    with pytest.raises(LocalDiskError, match="were lost"):
        rig.action("again")
    assert rig.phase is Phase.SEALED, "Spark may have committed it"
    rig.machine.handle(COORDINATOR, m.Abort(NAME, Turn(0), m.WireError.of(BedloadError("replay"))))
    rig.begin(0)
    assert rig.action("replay") == first


def test_lost_outputs_of_an_epoch_under_way_roll_it_back(folder: Folder) -> None:
    rig = Rig(Echo, folder)
    rig.begin(0)
    for number in range(60):
        rig.apply("first", FEEDERS[0], number)
    folder.made[0]._file.truncate(0)
    out = rig.apply("again", FEEDERS[0], 0)
    (failed,) = [message for _, message, _ in out if isinstance(message, m.Failed)]
    assert isinstance(failed.error.error(), LocalDiskError)
    assert rig.phase is Phase.ABORTED
    rig.begin(0)
    rig.action("replay")
    assert rig.phase is Phase.SEALED
