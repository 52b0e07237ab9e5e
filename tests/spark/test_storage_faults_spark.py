"""A store that is full, slow, away or damaged, under real queries: nothing is lost, or the query says what is.

Whatever passes is only waited for. What does not is named by its path, with what can be done.
"""

from __future__ import annotations

import contextlib
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from pyspark.sql import DataFrame, SparkSession

import bedload as bl
from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.storage import open_storage
from bedload.core.errors import CheckpointDamaged
from bedload.core.ids import OperatorName, WorkerId
from bedload.spark.supervisor import Supervised
from tests.spark.apps import eventually
from tests.spark.conftest import Sink, committed, fail, run, start
from tests.spark.faults import kill
from tests.spark.faulty_store import PROTOCOL, Faults, installed
from tests.spark.s3_server import S3, s3_server
from tests.spark.tally import KINDS, applied, check_epoch, check_epochs, check_states, set_back, states, stream

pytestmark = pytest.mark.spark


def supervised(cluster: bl.Cluster, out: DataFrame, sink: Sink, location: Path) -> Supervised:
    writer = out.writeStream.foreachBatch(sink).option("checkpointLocation", str(location))
    return cluster.run(
        writer.trigger(processingTime="20 milliseconds"), first_pause=0.2, longest_pause=1.0, restarts=50
    )


def upto(cluster: bl.Cluster, running: Supervised, name: str, epoch: int) -> int:
    def there() -> bool:
        error = running.exception()
        assert error is None, f"the query ended: {error}"
        return max(cluster.committed(name).values(), default=-1) >= epoch

    eventually(there, f"epoch {epoch} of {name} is committed")
    return int(max(cluster.committed(name).values()))


def outlasts(
    cluster: bl.Cluster, running: Supervised, name: str, fault: Callable[[], None], mend: Callable[[], None]
) -> None:
    """The query stands still under a fault, and goes on when it is gone."""
    upto(cluster, running, name, 1)
    fault()
    restarts = running.restarts
    eventually(lambda: running.restarts >= restarts + 2, "the query fails, and fails again")
    stands = max(cluster.committed(name).values())
    mend()
    upto(cluster, running, name, int(stands) + 3)


def check_all(cluster: bl.Cluster, kind: str, name: str, sink: Sink) -> None:
    check_epochs(kind, sink.epochs, 3)
    eventually(lambda: len({e for e, _ in states(cluster, kind, name).values()}) == 1, "all workers are at one epoch")
    assert check_states(kind, states(cluster, kind, name)) in (len(sink.epochs) - 1, len(sink.epochs) - 2)


# --- no room ---


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_cannot_write_its_file_aborts_the_epoch_and_goes_on_when_it_can(
    spark: SparkSession, durable: bl.Cluster, tmp_path: Path, kind: str
) -> None:
    """By the system's limit on the size of files, which needs no rights: one worker can, the other cannot."""
    name, sink, pid = f"Limited{kind}", Sink(), durable.workers[1]
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)

    def limit(size: int) -> Callable[[], None]:
        return lambda: (resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, before[1])), None)[1]

    with supervised(durable, applied(durable, stream(spark), kind, name), sink, tmp_path) as running:
        outlasts(durable, running, name, limit(100), limit(before[0]))
    assert durable.workers[1] == pid, "a worker that cannot write is no lost one"
    check_all(durable, kind, name, sink)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MB, where this process may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("nothing can be mounted here; the limit on file sizes is tested above")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_waited_for(spark: SparkSession, small_disk: Path, tmp_path: Path) -> None:
    """Driver and workers write to it alike. The message says what is wrong and what to do."""
    sink, filler = Sink(), small_disk / "filler"

    def fill() -> None:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    with bl.attach(spark, workers=2, checkpoint=small_disk / "bedload") as cluster:
        out = applied(cluster, stream(spark), "rows")
        with supervised(cluster, out, sink, tmp_path / "spark") as running:
            outlasts(cluster, running, "rows", fill, filler.unlink)
        check_all(cluster, "rows", "rows", sink)
        fill()
        error = fail(out, Sink(), tmp_path / "spark")
        assert "StoreError" in error
        assert "No space left on device" in error
        assert "Free some space, or keep fewer epochs" in error


# --- a store that fails, or takes its time ---


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[Faults]:
    with installed(tmp_path / "store") as found:
        yield found


def test_a_store_that_fails_now_and_then_is_slow_or_is_away_for_a_while_costs_nothing_but_time(
    spark: SparkSession, tmp_path: Path, faults: Faults
) -> None:
    url, sinks = f"{PROTOCOL}://{tmp_path}/bedload", {kind: Sink() for kind in KINDS}
    faults.tell(every=5)
    with bl.attach(spark, workers=2, checkpoint=url, storage_options=faults.options) as cluster:
        for kind in KINDS:
            run(applied(cluster, stream(spark), kind), sinks[kind], tmp_path / kind, 3)
            check_epochs(kind, sinks[kind].epochs, 3)
        assert cluster.checkpoint() == dict.fromkeys(KINDS, 2), "snapshots are written through failures, too"
    faults.tell(slow=0.02)
    with bl.attach(spark, workers=2, checkpoint=url, storage_options=faults.options) as cluster:
        for kind in KINDS:
            run(applied(cluster, stream(spark), kind), sinks[kind], tmp_path / kind, 5)
            check_epochs(kind, sinks[kind].epochs, 5)
        faults.tell()
        out = applied(cluster, stream(spark), "columns")
        with supervised(cluster, out, sinks["columns"], tmp_path / "columns") as running:
            outlasts(cluster, running, "columns", lambda: faults.tell(every=1), faults.tell)
        check_all(cluster, "columns", "columns", sinks["columns"])


def test_a_worker_that_is_lost_while_the_store_is_slow_reads_its_state_back(
    spark: SparkSession, tmp_path: Path, faults: Faults
) -> None:
    """Rows come before the state of their keys has been read: they wait, the others do not."""
    sink, url = Sink(), f"{PROTOCOL}://{tmp_path}/bedload"
    with bl.attach(spark, workers=2, checkpoint=url, storage_options=faults.options) as cluster:
        with supervised(cluster, applied(cluster, stream(spark), "rows"), sink, tmp_path / "spark") as running:
            last = upto(cluster, running, "rows", 2)
            faults.tell(slow=0.05)
            kill(cluster.workers[0])
            upto(cluster, running, "rows", last + 3)
        check_all(cluster, "rows", "rows", sink)


# --- damage ---


def cut(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


def flip(data: bytes) -> bytes:
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 0x10
    return bytes(flipped)


DAMAGE = {"rows": cut, "columns": flip}


class Stored:
    """A checkpoint of five epochs of both operators, with a snapshot after epoch 2, to be copied and damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "bedload"

    def copy(self, to: Path) -> Stored:
        for name in ("bedload", *KINDS):
            shutil.copytree(self.folder / name, to / name)
        return Stored(to)

    def damage(self, path: str, how: Callable[[bytes], bytes]) -> str:
        file = self.root / path
        file.write_bytes(how(file.read_bytes()))
        return str(file)

    def turns(self, kind: str) -> list[Any]:
        """The turns of the epochs, by number."""
        checkpoint = Checkpoint.open(open_storage(str(self.root)))
        return checkpoint.load_history(OperatorName(kind)).chain()[::-1]

    def delta(self, kind: str, epoch: int, worker: int = 0) -> str:
        return paths.delta(OperatorName(kind), self.turns(kind)[epoch], WorkerId(worker))

    def part(self, kind: str) -> str:
        folder = self.root / paths.snapshots(OperatorName(kind))
        return str(sorted(folder.glob("*/*/*.parquet"))[0].relative_to(self.root))


@pytest.fixture(scope="module")
def durable(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[bl.Cluster]:
    with bl.attach(spark, workers=2, checkpoint=tmp_path_factory.mktemp("durable")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def stored(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    folder = tmp_path_factory.mktemp("stored")
    with bl.attach(spark, workers=1, checkpoint=folder / "bedload") as cluster:
        for epochs in (3, 5):
            for kind in KINDS:
                run(applied(cluster, stream(spark), kind), Sink(), folder / kind, epochs)
                committed(cluster, kind, epochs - 1)
            if epochs == 3:
                cluster.checkpoint()
    return Stored(folder)


def test_a_damaged_segment_is_named_and_the_offered_epoch_can_be_gone_on_from(
    spark: SparkSession, stored: Stored, tmp_path: Path
) -> None:
    mine = stored.copy(tmp_path)
    # Spark has the location of the copy, the state that of the original: the same query, so the same state.
    damaged = {kind: mine.damage(mine.delta(kind, 4), DAMAGE[kind]) for kind in KINDS}
    with bl.attach(spark, workers=2, checkpoint=mine.root) as cluster:
        for kind in KINDS:
            out = applied(cluster, stream(spark), kind)
            error = fail(out, Sink(), tmp_path / kind)
            assert "CheckpointDamaged" in error
            assert damaged[kind] in error
            assert f"The newest older state of operator {kind} that is intact is that after epoch 3 of query" in error
            assert "deleting the files with numbers above 3 in its folders offsets and commits" in error
            set_back(tmp_path / kind, 3)
            sink = Sink()
            run(out, sink, tmp_path / kind, 6)
            assert sorted(sink.epochs) == [4, 5]
            for epoch, rows in sink.epochs.items():
                check_epoch(kind, epoch, rows)
            committed(cluster, kind, 5)
            assert check_states(kind, states(cluster, kind)) == 5


def test_a_damaged_snapshot_is_named_and_given_up_for_the_deltas(
    spark: SparkSession, stored: Stored, tmp_path: Path
) -> None:
    mine = stored.copy(tmp_path)
    damaged = {kind: mine.damage(mine.part(kind), DAMAGE[kind]) for kind in KINDS}
    with bl.attach(spark, workers=2, checkpoint=mine.root) as cluster:
        for kind in KINDS:
            error = fail(applied(cluster, stream(spark), kind), Sink(), tmp_path / kind)
            assert "CheckpointDamaged" in error
            assert damaged[kind] in error
            assert "Nothing is lost: the newest state" in error
            manifest = Path(damaged[kind]).parents[1] / paths.MANIFEST
            assert f"Remove file://{manifest}, and start again" in error
            manifest.unlink()
    with bl.attach(spark, workers=1, checkpoint=mine.root) as cluster:
        for kind in KINDS:
            sink = Sink()
            run(applied(cluster, stream(spark), kind), sink, tmp_path / kind, 6)
            check_epoch(kind, 5, sink.epochs[5])


def test_damaged_records_and_manifests_are_named_before_anything_runs(
    spark: SparkSession, stored: Stored, tmp_path: Path
) -> None:
    mine = stored.copy(tmp_path)
    record = mine.root / paths.turn(OperatorName("rows"), mine.turns("rows")[4])
    manifest = mine.root / paths.manifest(OperatorName("columns"), mine.turns("columns")[2])
    with bl.attach(spark, workers=1, checkpoint=mine.root) as cluster:
        for how in (cut, flip):
            for file, kind, words in (
                (record, "rows", f"remove file://{record}, with all later turn records and snapshots, and set Spark's"),
                (manifest, "columns", f"Remove file://{manifest}, and start again"),
            ):
                good = file.read_bytes()
                file.write_bytes(how(good))
                with pytest.raises(CheckpointDamaged, match=file.name) as caught:
                    applied(cluster, stream(spark), kind)
                assert words in caught.value.message
                file.write_bytes(good)
        # As the error says: without the last record the state is that after epoch 3.
        record.unlink()
        set_back(tmp_path / "rows", 3)
        sink = Sink()
        run(applied(cluster, stream(spark), "rows"), sink, tmp_path / "rows", 6)
        assert sorted(sink.epochs) == [4, 5]
        for epoch, rows in sink.epochs.items():
            check_epoch("rows", epoch, rows)


# --- an object store ---


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")
def test_state_on_s3_outlives_its_workers_and_its_cluster(spark: SparkSession, s3: S3, tmp_path: Path) -> None:
    boto3.client("s3", **s3.client).create_bucket(Bucket="states")
    sinks = {kind: Sink() for kind in KINDS}
    with bl.attach(spark, workers=2, checkpoint="s3://states/traffic", storage_options=s3.options) as cluster:
        for kind in KINDS:
            out = applied(cluster, stream(spark), kind)
            with supervised(cluster, out, sinks[kind], tmp_path / kind) as running:
                last = upto(cluster, running, kind, 1)
                kill(cluster.workers[1])
                upto(cluster, running, kind, last + 2)
        cluster.checkpoint()
        first = start(applied(cluster, stream(spark), "rows"), sinks["rows"], tmp_path / "rows")
        older = cluster
        with bl.attach(spark, workers=3, checkpoint="s3://states/traffic", storage_options=s3.options) as newer:
            eventually(lambda: not first.isActive, "the older attachment ended")
            assert "Fenced" in str(first.exception())
            for kind in KINDS:
                epochs = len(sinks[kind].epochs) + 2
                run(applied(newer, stream(spark), kind), sinks[kind], tmp_path / kind, epochs)
                committed(newer, kind, epochs - 1)
                check_epochs(kind, sinks[kind].epochs, epochs)
                assert check_states(kind, states(newer, kind)) == epochs - 1
        with pytest.raises(bl.errors.Fenced):
            older.state("rows")
