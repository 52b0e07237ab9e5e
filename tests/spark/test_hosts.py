"""Workers as processes beside the driver: how they start and end, who may call them, and their loss."""

from __future__ import annotations

import base64
import os
import signal
import stat
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import bedload as bl
from bedload.core.errors import (
    ClusterStopped,
    ProtocolError,
    SecretRefused,
    TooFewSlots,
    WorkerLost,
    WorkerStartFailed,
    WorkerUnreachable,
)
from bedload.core.ids import DeploymentId, Epoch, OperatorName, QueryId, RunId, WorkerId
from bedload.keys import RoutingTable, hash_key
from bedload.protocol import messages as m
from bedload.spark import attaching, hosts, jobs, processes
from bedload.transport import Channel, Credentials, parse_address
from tests.patience import PATIENCE
from tests.spark.apps import alive, eventually, running
from tests.spark.apps.session import no_jobs
from tests.spark.conftest import Sink, numbers, run, start

pytestmark = pytest.mark.spark


class Count(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
        self.n += len(rows)

    def result(self, key: Any, ctx: bl.Context) -> Any:
        return key, self.n


@pytest.fixture
def two(spark: SparkSession) -> Iterator[bl.Cluster]:
    """Two workers for one test, which may kill them."""
    with bl.attach(spark, workers=2) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Temporary folders are made where no other process makes any."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def is_nursery(process: psutil.Process) -> bool:
    return process.status() == psutil.STATUS_ZOMBIE or "bedload.worker.nursery" in process.cmdline()


def leftovers() -> tuple[set[int], set[str], set[str]]:
    """What an attachment makes and has to remove: child processes, folders of logs, threads. The nursery stays."""
    children = {child.pid for child in psutil.Process().children() if not is_nursery(child)}
    folders = {path.name for path in Path(tempfile.gettempdir()).glob("bedload-workers-*")}
    threads = {thread.name for thread in threading.enumerate() if thread.name.startswith("bedload")}
    return children, folders, threads


def addresses(cluster: bl.Cluster) -> dict[WorkerId, str]:
    return cluster._driver.call(lambda c: c.workers)


def count_of_counts(spark: SparkSession, cluster: bl.Cluster, checkpoint: Path) -> None:
    """The cluster works: two epochs come out right."""
    stream = numbers(spark, 60, 2).selectExpr("value % 6 as key", "value")
    sink = Sink()
    run(cluster.apply(stream, key="key", operator=Count, schema="key long, n long"), sink, checkpoint, 2)
    assert {epoch: sorted(rows) for epoch, rows in sink.epochs.items()} == {
        0: [(key, 10) for key in range(6)],
        1: [(key, 20) for key in range(6)],
    }


# --- start and end ---


@pytest.mark.parametrize("forked", [True, False])
def test_workers_are_processes_below_the_driver_and_end_with_the_cluster(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, forked: bool
) -> None:
    monkeypatch.setenv("BEDLOAD_NO_FORK", "0" if forked else "1")
    before = leftovers()
    cluster = bl.attach(spark, workers=2)
    assert sorted(cluster.workers) == [0, 1]
    pids = set(cluster.workers.values())
    children = leftovers()[0] - before[0]
    if forked:
        (nursery,) = {psutil.Process(pid).ppid() for pid in pids}
        assert psutil.Process(nursery).ppid() == os.getpid()
        assert not children
    else:
        assert children == pids
    assert all(alive(pid) for pid in pids)
    assert repr(cluster) == "<bedload cluster of 2 workers, operators: none>"

    cluster.stop()
    assert not any(alive(pid) for pid in pids)
    assert cluster.workers == {}
    assert leftovers() == before
    assert "stopped" in repr(cluster)


def test_a_cluster_can_be_stopped_twice_and_takes_no_work_after(spark: SparkSession) -> None:
    cluster = bl.attach(spark, workers=1)
    cluster.stop()
    cluster.stop()
    with pytest.raises(ClusterStopped, match="attach again"):
        cluster.apply(numbers(spark), key="value", operator=Count, schema="key long, n long")
    with pytest.raises(ClusterStopped, match="attach again"):
        cluster.state("Count")


def test_the_context_manager_ends_the_workers_when_its_body_fails(spark: SparkSession) -> None:
    def work() -> None:
        with bl.attach(spark, workers=1) as cluster:
            pids.update(cluster.workers.values())
            raise ZeroDivisionError

    pids: set[int] = set()
    with pytest.raises(ZeroDivisionError):
        work()
    assert len(pids) == 1
    assert not any(alive(pid) for pid in pids)


def test_a_session_can_be_attached_to_again_and_starts_empty(spark: SparkSession, tmp_path: Path) -> None:
    with bl.attach(spark, workers=2) as first:
        count_of_counts(spark, first, tmp_path / "first")
        pids = set(first.workers.values())
    with bl.attach(spark, workers=3) as second:
        assert not pids & set(second.workers.values())
        count_of_counts(spark, second, tmp_path / "second")


def test_two_clusters_on_one_session_do_not_meet(spark: SparkSession, tmp_path: Path) -> None:
    with bl.attach(spark, workers=1) as one, bl.attach(spark, workers=2) as other:
        count_of_counts(spark, one, tmp_path / "one")
        count_of_counts(spark, other, tmp_path / "other")
        one.stop()
        assert all(alive(pid) for pid in other.workers.values())


def test_a_stop_does_not_wait_for_operator_code_and_its_query_fails(spark: SparkSession, tmp_path: Path) -> None:
    started = str(tmp_path / "started")

    class Stuck(bl.Operator):
        n: int = bl.value(0)

        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
            Path(started).touch()
            time.sleep(600)

    cluster = bl.attach(spark, workers=2)
    pids = cluster.workers.values()
    out = cluster.apply(numbers(spark, 10, 1), key="value", operator=Stuck, schema="key long")
    query = start(out, Sink(), tmp_path / "checkpoint")
    eventually(Path(started).exists, "the operator runs")
    cluster.stop()
    assert not any(alive(pid) for pid in pids)
    eventually(lambda: not query.isActive, "the query ended")
    assert any(name in str(query.exception()) for name in ("ClusterStopped", "WorkerLost", "WorkerUnreachable"))


def test_workers_end_when_the_driver_is_killed_even_in_the_middle_of_a_call(tmp_path: Path) -> None:
    with running("sleeping", tmp_path) as app:
        said = app.expect("sleeping")
        workers = set(said["workers"].values())
        nurseries = {psutil.Process(pid).ppid() for pid in workers}
        assert app.pid not in nurseries
        assert len(workers) == 2
        assert said["busy"] in workers
        assert all(alive(pid) for pid in workers)
        app.kill()
        eventually(lambda: not any(map(alive, workers | nurseries)), "all ended by themselves")


# --- the Python of Spark's tasks ---


def test_in_local_mode_tasks_run_with_the_drivers_python_whatever_spark_is_told(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    with running("bare", tmp_path / "app", "local[2]", str(bare / "bin" / "python")) as app:
        for _ in range(2):
            assert app.expect("counted")["epochs"]["1"] == {str(key): 40 for key in range(20)}
        app.ends()


# --- a worker that does not start ---


@pytest.fixture
def own_nursery(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The nursery that all attachments share is not this test's."""
    own = processes.Nurseries()
    monkeypatch.setattr(hosts.ProcessHost.__init__, "__defaults__", (None, own))
    monkeypatch.setattr(attaching, "NURSERIES", own)
    yield
    own.stop(PATIENCE)


@pytest.fixture
def python_is(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_nursery: None) -> Any:
    """Replaces the Python that workers are started with by a shell script."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", spark.sparkContext.pythonExec)  # so that it is put back

    def replace(script: str) -> None:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(sys, "executable", str(path))

    return replace


@pytest.mark.parametrize(
    ("no_fork", "words"),
    [
        ("1", "worker 0 ended with code 3 before it joined"),
        ("0", "worker 0 was not started, as the process that it was to be forked from ended with code 3 "),
    ],
)
def test_workers_whose_python_dies_are_reported_with_the_end_of_its_log(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, python_is: Any, no_fork: str, words: str
) -> None:
    monkeypatch.setenv("BEDLOAD_NO_FORK", no_fork)
    python_is("echo 'no such module: frobnicate' >&2; exit 3")
    before = leftovers()
    with pytest.raises(WorkerStartFailed, match=rf"{words}.*\n.*no such module: frobnicate"):
        bl.attach(spark, workers=2)
    assert leftovers() == before


def test_the_workers_that_did_start_are_ended_when_another_did_not(
    spark: SparkSession, python_is: Any, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    # The first worker to be started lives; the next ends when the first one has been there.
    patched = f"""
import os, sys, time
from pathlib import Path
from bedload.worker import __main__ as program, nursery
pids = Path("{pids}")
def serve(worker, *others, serve=program.serve):
    if worker == 0:
        pids.write_text(str(os.getpid()))
        return serve(worker, *others)
    while not pids.exists() or not pids.read_text():
        time.sleep(0.05)
    sys.exit("no room")
program.serve = serve
nursery.main()
"""
    (tmp_path / "patched.py").write_text(patched)
    python_is(f'exec {sys.executable} {tmp_path}/patched.py "$@"')
    before = leftovers()
    with pytest.raises(WorkerStartFailed, match=r"worker 1 ended with code 1 .*\nno room"):
        bl.attach(spark, workers=2)
    assert leftovers() == before
    assert not alive(int(pids.read_text()))


def test_a_python_that_is_not_there_is_a_worker_that_did_not_start(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_nursery: None
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    before = leftovers()
    with pytest.raises(WorkerStartFailed, match=r"worker 0 .*nothing"):
        bl.attach(spark, workers=2)
    assert leftovers() == before


def test_workers_that_never_come_are_given_up_and_ended(
    spark: SparkSession, python_is: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python_is(f"echo $$ >> {tmp_path}/pids; exec sleep 600")
    monkeypatch.setattr(hosts, "_STOP_SECONDS", 0.2)
    before = leftovers()
    with pytest.raises(WorkerStartFailed, match="0 of 2 workers joined within 1 seconds"):
        bl.attach(spark, workers=2, start_seconds=1)
    assert leftovers() == before
    pids = tmp_path / "pids"  # on a slow machine they may have been ended before they came to this
    assert not any(alive(int(pid)) for pid in (pids.read_text().split() if pids.exists() else []))


# --- who may call ---


def test_a_caller_with_another_secret_is_refused_everywhere(two: bl.Cluster) -> None:
    for address in (two._driver.address, *addresses(two).values()):
        with pytest.raises(SecretRefused):
            Channel.connect(address, Credentials(b"x" * 32))
        Channel.connect(address, two._credentials).close()


def test_a_refused_caller_changes_nothing(spark: SparkSession, two: bl.Cluster, tmp_path: Path) -> None:
    for address in (two._driver.address, *addresses(two).values()):
        with pytest.raises(SecretRefused):
            Channel.connect(address, Credentials(b"x" * 32))
    count_of_counts(spark, two, tmp_path)


def test_each_attachment_has_a_secret_of_its_own(spark: SparkSession, two: bl.Cluster) -> None:
    with bl.attach(spark, workers=1) as other, pytest.raises(SecretRefused):
        Channel.connect(two._driver.address, other._credentials)


def test_in_local_mode_all_sockets_listen_on_loopback_only(two: bl.Cluster) -> None:
    expected = {parse_address(address)[1] for address in (two._driver.address, *addresses(two).values())}
    found = set()
    for pid in (os.getpid(), *two.workers.values()):
        for connection in psutil.Process(pid).net_connections("inet"):
            ours = pid != os.getpid() or connection.laddr.port in expected
            if ours and connection.status == psutil.CONN_LISTEN:
                assert connection.laddr.ip in ("127.0.0.1", "::1", "::ffff:127.0.0.1")
                found.add(connection.laddr.port)
    assert found == expected


def test_the_secret_is_in_no_argument_list_and_no_environment(two: bl.Cluster) -> None:
    secret = two._credentials.secret
    forms = (secret.hex(), base64.b64encode(secret).decode())
    for pid in two.workers.values():
        process = psutil.Process(pid)
        visible = " ".join([*process.cmdline(), *process.environ().values()])
        assert not any(form in visible for form in forms)


@pytest.mark.parametrize("host", ["process", "task"])
def test_an_encrypted_cluster_counts_right_and_shows_nothing_of_its_credentials(
    spark: SparkSession, tmp_path: Path, host: str
) -> None:
    with bl.attach(spark, workers=1, host=host, encrypt=True) as cluster:
        credentials = cluster._credentials
        assert credentials.encrypted
        count_of_counts(spark, cluster, tmp_path / "query")
        answer = cluster.state("Count").get(3)
        assert answer is not None
        assert answer["n"] >= 20
        with pytest.raises(ProtocolError, match="encrypted connections only"):
            Channel.connect(cluster._driver.address, Credentials(credentials.secret))

        out = cluster.apply(
            numbers(spark).selectExpr("value key", "value"), key="key", operator=Count, schema="key long, n long"
        )
        shown = [str(out._jdf.queryExecution().toString()), repr(cluster), repr(cluster.__dict__)]
        for pid in cluster.workers.values():
            process = psutil.Process(pid)
            shown += [*process.cmdline(), *process.environ().values()]
        assert credentials.key is not None
        body = credentials.key.splitlines()[1]
        for form in (credentials.secret.hex(), base64.b64encode(credentials.secret).decode(), body, repr(body)):
            assert not any(form in text for text in shown)


def test_on_loopback_connections_are_not_encrypted_unless_asked_for(two: bl.Cluster) -> None:
    assert not two._credentials.encrypted


# --- a lost worker ---


def test_a_worker_killed_in_an_epoch_fails_the_query_and_the_others_roll_back(
    spark: SparkSession, two: bl.Cluster, tmp_path: Path
) -> None:
    folder = str(tmp_path)

    class Waits(bl.Operator):
        n: int = bl.value(0)

        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
            self.n += len(rows)
            if ctx.epoch == 1:
                Path(folder, f"in-epoch-{ctx.worker}").touch()
                eventually(Path(folder, "go").exists, "told to go on")

    out = two.apply(numbers(spark, 100, 2), key="value", operator=Waits, schema="key long", key_groups=64)
    routing = two._driver.call(lambda c: c.operator(OperatorName("Waits")).routing)
    where = addresses(two)
    sink = Sink()
    query = start(out, sink, tmp_path / "checkpoint")
    eventually(lambda: all((tmp_path / f"in-epoch-{w}").exists() for w in (0, 1)), "both workers are in epoch 1")
    lost, kept = (two.workers[worker] for worker in (0, 1))

    os.kill(lost, signal.SIGKILL)
    eventually(lambda: not query.isActive, "the query ended")
    text = str(query.exception())
    assert "WorkerLost" in text
    assert f"worker 0 was lost (process {lost} ended" in text
    assert "32 key groups of Waits" in text
    assert "in memory only" in text
    assert "bedload.attach(spark, checkpoint=" in text
    assert list(sink.epochs) == [0]

    (tmp_path / "go").touch()
    expected = sum(_owner(value, routing) == 1 for value in range(100))
    assert 0 < expected < 100
    with Channel.connect(where[WorkerId(1)], two._credentials) as channel:
        # It answers only after what it was told before, so after the roll-back.
        assert _keys(channel, "Waits") == expected

    for call in (
        lambda: two.apply(numbers(spark), key="value", operator=Count, schema="key long, n long"),
        lambda: two.apply(numbers(spark), key="value", operator=Waits, schema="key long", fresh=True),
        lambda: two.state("Waits"),
    ):
        with pytest.raises(WorkerLost, match="worker 0 was lost") as caught:
            call()
        assert caught.value.worker == 0
    assert two.workers == {1: kept}
    two.stop()
    assert not alive(kept)


def test_a_worker_killed_between_epochs_fails_the_next_one(
    spark: SparkSession, two: bl.Cluster, tmp_path: Path
) -> None:
    stream = numbers(spark, 60, 2).selectExpr("value % 6 as key", "value")
    out = two.apply(stream, key="key", operator=Count, schema="key long, n long")
    run(out, Sink(), tmp_path, 2)
    state = two.state("Count")
    assert state.get(3) is not None

    os.kill(two.workers[1], signal.SIGKILL)
    eventually(lambda: 1 not in two.workers, "the loss was noticed")
    with pytest.raises(WorkerLost, match=r"worker 1 was lost.*128 key groups of Count"):
        state.get(3)
    sink = Sink()
    query = start(out, sink, tmp_path)
    eventually(lambda: not query.isActive, "the query ended")
    assert "worker 1 was lost" in str(query.exception())
    assert "in memory only" in str(query.exception())
    assert sink.epochs == {}


def test_a_worker_lost_before_any_operator_is_noticed_too(spark: SparkSession, two: bl.Cluster) -> None:
    os.kill(two.workers[0], signal.SIGKILL)
    eventually(lambda: 0 not in two.workers, "the loss was noticed")
    with pytest.raises(WorkerLost, match="no state"):
        two.apply(numbers(spark), key="value", operator=Count, schema="key long, n long")


def test_a_copy_of_a_worker_that_lives_is_left_waiting_and_one_of_a_lost_worker_is_told_to_end(
    spark: SparkSession, two: bl.Cluster, tmp_path: Path
) -> None:
    register = m.encode(m.Register(WorkerId(0), "127.0.0.1:1", 1))
    with Channel.connect(two._driver.address, two._credentials) as copy:
        copy.send(register)
        copy.send(m.encode(_open("nothing")))
        answer = m.decode(copy.recv(PATIENCE).header)
        assert isinstance(answer, m.Refused), "the first that it hears is the answer to its second message"
        assert "'nothing' was not applied" in answer.error.message
        count_of_counts(spark, two, tmp_path)

    os.kill(two.workers[0], signal.SIGKILL)
    eventually(lambda: 0 not in two.workers, "the loss was noticed")
    with Channel.connect(two._driver.address, two._credentials) as late:
        late.send(register)
        assert isinstance(m.decode(late.recv(PATIENCE).header), m.Stop)


# --- Spark tasks as hosts, in local mode ---


def test_more_workers_than_slots_are_refused_with_what_to_do(spark: SparkSession) -> None:
    before = leftovers()
    with pytest.raises(TooFewSlots, match=r"need 3 task slots, but Spark has 2\.") as caught:
        bl.attach(spark, workers=2, host="task")
    for advice in ("workers=1", "spark.cores.max", "host='process'"):
        assert advice in caught.value.message
    assert leftovers() == before


def test_a_worker_in_a_task_frees_its_slot_when_the_cluster_stops(spark: SparkSession, tmp_path: Path) -> None:
    before = leftovers()
    with bl.attach(spark, workers=1, host="task") as cluster:
        count_of_counts(spark, cluster, tmp_path)
        assert spark.sparkContext.statusTracker().getActiveJobsIds() != []
        (address,) = addresses(cluster).values()
    no_jobs(spark)
    with pytest.raises(WorkerUnreachable):
        Channel.connect(address, cluster._credentials, 1.0)
    assert leftovers() == before


def test_a_worker_that_cannot_start_in_a_task_is_reported_with_the_reason(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        def run(numbers: Any) -> Any:
            raise ModuleNotFoundError("no module named frobnicate")

        return run

    monkeypatch.setattr(jobs, "_task", broken)
    before = leftovers()
    with pytest.raises(WorkerStartFailed, match="no module named frobnicate"):
        bl.attach(spark, workers=1, host="task")
    assert leftovers() == before


def test_a_stop_cancels_a_task_whose_operator_is_stuck_and_nothing_else(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hosts, "_STOP_SECONDS", 0.5)
    started = str(tmp_path / "started")

    class Stuck(bl.Operator):
        n: int = bl.value(0)

        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
            Path(started).write_text(str(os.getpid()))
            time.sleep(600)

    cluster = bl.attach(spark, workers=1, host="task")
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None
    out = cluster.apply(numbers(spark, 10, 1), key="value", operator=Stuck, schema="key long")
    query = start(out, Sink(), tmp_path / "checkpoint")
    eventually(lambda: Path(started).exists() and bool(Path(started).read_text()), "the operator runs")
    pid = int(Path(started).read_text())
    cluster.stop()
    eventually(lambda: not query.isActive, "the query ended")
    no_jobs(spark)
    eventually(lambda: not alive(pid), "Spark ended the process of the task")
    assert spark.range(10).count() == 10


def _owner(value: int, routing: RoutingTable) -> int:
    return routing.owner_of_key(hash_key(value, (pa.int64(),)))


def _keys(channel: Channel, operator: str) -> int:
    channel.send(m.encode(m.Inspect(OperatorName(operator))))
    answer = m.decode(channel.recv(PATIENCE).header)
    assert isinstance(answer, m.Inspected)
    return answer.keys


def _open(operator: str) -> m.Open:
    return m.Open(OperatorName(operator), DeploymentId(0), QueryId("q"), RunId("r"), Epoch(0), 0, 0, 0, "once")
