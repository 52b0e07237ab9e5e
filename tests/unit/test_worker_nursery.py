"""Workers that are forked from one process: their start and end, what they have from it, and its loss."""

from __future__ import annotations

import ast
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import psutil
import pytest
from tests.patience import PATIENCE
from tests.spark.apps import alive, eventually

from bedload.core.errors import WorkerStartFailed
from bedload.core.ids import DeploymentId, OperatorName, WorkerId
from bedload.protocol import messages as m
from bedload.spark import hosts, processes
from bedload.spark.hosts import ProcessHost
from bedload.spark.processes import Forked, Nursery
from bedload.transport import Credentials, Endpoint, Handler, Peer
from bedload.worker import nursery as process

CREDENTIALS = Credentials(b"s" * 32)

pytestmark = pytest.mark.skipif(not process.available(), reason="workers are not forked here")


class _Run:
    """Unpickled in a worker, it evaluates an expression and leaves the value in a file."""

    def __init__(self, expression: str, answer: Path) -> None:
        self._code = f"__import__('pathlib').Path({str(answer)!r}).write_text(repr({expression}))"

    def __reduce__(self) -> Any:
        return eval, (self._code,)


class Desk(Handler):
    """Stands for the coordinator: workers come to it."""

    def __init__(self) -> None:
        self._came: queue.Queue[tuple[Peer, m.Register]] = queue.Queue()
        self._answered: queue.Queue[m.Deployed] = queue.Queue()
        self._asked = 0
        self.check: Callable[[], None] = lambda: None
        self.peers: dict[int, Peer] = {}
        self.endpoint = Endpoint("127.0.0.1", credentials=CREDENTIALS, handler=self)
        self._thread = threading.Thread(target=self.endpoint.run)
        self._thread.start()

    def on_frame(self, peer: Peer, header: bytes, body: memoryview | None) -> None:
        message = m.decode(header)
        if isinstance(message, m.Register):
            self._came.put((peer, message))
        elif isinstance(message, m.Deployed):
            self._answered.put(message)

    def on_error(self, peer: Peer | None, error: BaseException) -> None:
        raise AssertionError from error

    def next(self) -> tuple[int, int]:
        """The number and process of the next worker that comes. If it cannot come any more, ``check`` raises."""
        eventually(lambda: self.check() or not self._came.empty(), "a worker comes", PATIENCE)
        peer, message = self._came.get()
        self.peers[message.worker] = peer
        return message.worker, message.pid

    def all(self, count: int) -> dict[int, int]:
        return dict(self.next() for _ in range(count))

    def ask(self, worker: int, expression: str, folder: Path) -> Any:
        """What an expression is worth in a worker."""
        self._asked += 1
        answer = folder / f"answer-{self._asked}"
        header = m.encode(m.Deploy(OperatorName("probe"), DeploymentId(self._asked), 1))
        payload = cloudpickle.dumps(_Run(expression, answer))
        self.endpoint.call_soon(lambda: self.peers[worker].send(header, (payload,)))
        said = self._answered.get(timeout=PATIENCE)
        assert answer.exists(), said.error
        return ast.literal_eval(answer.read_text())

    def tell_to_stop(self, worker: int) -> None:
        self.endpoint.call_soon(lambda: self.peers[worker].send(m.encode(m.Stop())))

    def close(self) -> None:
        self.endpoint.stop()
        self._thread.join()
        self.endpoint.close()


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.close()


def environment(**more: str) -> dict[str, str]:
    return dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)), **more)


class Home:
    """A nursery and what was ordered from it."""

    def __init__(self, desk: Desk, folder: Path, given: Mapping[str, str], nursery: Nursery | None = None) -> None:
        self.nursery = nursery or Nursery(folder / "nursery.log", given)
        self._shared = nursery is not None
        self.children: dict[int, Forked] = {}
        self.folder = folder
        self._desk = desk
        self._given = given
        desk.check = self._check

    def order(self, worker: int, coordinator: str = "", given: Mapping[str, str] | None = None) -> Forked:
        address = coordinator or self._desk.endpoint.address
        hello = {"worker": worker, "coordinator": address, "credentials": CREDENTIALS}
        child = self.nursery.order(
            self.folder / f"worker-{worker}.log", given or self._given, msgspec.json.encode(hello) + b"\n"
        )
        self.children[worker] = child
        return child

    def _check(self) -> None:
        for child in self.children.values():
            assert child.fate() is None or not child.log.read_text(), child.log.read_text()

    def close(self) -> None:
        for child in self.children.values():
            child.kill(PATIENCE)
        if self._shared:
            assert all(child.wait(PATIENCE) for child in self.children.values())
        else:
            self.nursery.stop(PATIENCE)
        for child in self.children.values():
            child.close()


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """A nursery for many tests: one loads for as long as most of them take."""
    made = Nursery(tmp_path_factory.mktemp("grown") / "nursery.log", environment())
    yield made
    made.stop(PATIENCE)


@pytest.fixture
def shared_home(desk: Desk, tmp_path: Path, grown: Nursery) -> Iterator[Home]:
    """Where it does not matter what the nursery did before, nor whether it forks."""
    made = Home(desk, tmp_path, environment(), grown)
    yield made
    made.close()


@pytest.fixture
def home(desk: Desk, tmp_path: Path) -> Iterator[Home]:
    made = Home(desk, tmp_path, environment())
    yield made
    made.close()


def below(pid: int) -> set[int]:
    return {child.pid for child in psutil.Process(pid).children()}


def knows_compiled_code(pid: int) -> bool:
    return "llvmlite" in Path(f"/proc/{pid}/maps").read_text()


# --- start and end ---


def test_workers_are_forked_and_come_to_the_coordinator(home: Home, desk: Desk) -> None:
    for worker in (0, 1, 2):
        home.order(worker)
    pids = desk.all(3)
    assert sorted(pids) == [0, 1, 2]
    assert below(home.nursery.pid) == set(pids.values())
    lines = {tuple(psutil.Process(pid).cmdline()) for pid in (home.nursery.pid, *pids.values())}
    assert len(lines) == 1, "none is an interpreter of its own"


def test_a_worker_that_is_let_go_ends_and_is_waited_for(shared_home: Home, desk: Desk) -> None:
    child = shared_home.order(0)
    other = shared_home.order(1)
    pids = desk.all(2)
    assert child.fate() is None
    child.let_go()
    assert child.wait(PATIENCE)
    assert child.fate() == "ended with code 0"
    assert other.fate() is None
    assert below(shared_home.nursery.pid) == {pids[1]}, "no zombie is left"


def test_a_worker_that_the_coordinator_stops_ends_well(shared_home: Home, desk: Desk) -> None:
    child = shared_home.order(0)
    desk.next()
    desk.tell_to_stop(0)
    assert child.wait(PATIENCE)
    assert child.fate() == "ended with code 0"
    assert (shared_home.folder / "worker-0.log").read_text() == ""


def test_a_killed_worker_is_seen_and_its_signal_is_told(shared_home: Home, desk: Desk) -> None:
    child = shared_home.order(0)
    shared_home.order(1)  # holds nothing of the other
    pids = desk.all(2)
    os.kill(pids[0], signal.SIGKILL)
    assert child.wait(PATIENCE)
    assert child.fate() == "ended with code -9"


def test_a_worker_that_does_not_listen_can_be_killed(shared_home: Home, desk: Desk) -> None:
    child = shared_home.order(0)
    _, pid = desk.next()
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it is stopped")
    child.let_go()
    assert not child.wait(0.1)
    child.kill(PATIENCE)
    assert child.fate() == "ended with code -9"


def test_the_output_of_a_worker_is_in_its_log_and_a_failure_gives_its_code(shared_home: Home) -> None:
    child = shared_home.order(0, coordinator="127.0.0.1:1")
    assert child.wait(PATIENCE)
    assert child.fate() == "ended with code 1"
    assert "WorkerUnreachable" in child.log.read_text()
    assert child.log.name == "worker-0.log"


def test_ctrl_c_does_not_reach_the_nursery_or_its_workers(shared_home: Home, desk: Desk) -> None:
    shared_home.order(0)
    _, pid = desk.next()
    for target in (shared_home.nursery.pid, pid):
        os.kill(target, signal.SIGINT)
    assert desk.ask(0, "1 + 1", shared_home.folder) == 2
    shared_home.order(1)
    assert desk.next()[0] == 1


def test_a_crash_of_a_worker_leaves_its_stack_in_its_own_log(shared_home: Home, desk: Desk) -> None:
    child = shared_home.order(0)
    _, pid = desk.next()
    os.kill(pid, signal.SIGSEGV)
    assert child.wait(PATIENCE)
    assert child.fate() == "ended with code -11"
    assert "Fatal Python error: Segmentation fault" in child.log.read_text()
    assert shared_home.nursery.log.read_text() == ""


# --- without the nursery ---


def test_a_worker_outlives_its_nursery_and_its_end_is_still_seen(home: Home, desk: Desk) -> None:
    child = home.order(0)
    other = home.order(1)
    pids = desk.all(2)
    os.kill(home.nursery.pid, signal.SIGKILL)
    eventually(lambda: home.nursery.gone, "the loss was noticed, as no worker holds its end")
    assert desk.ask(0, "1 + 1", home.folder) == 2
    assert child.fate() is None
    child.let_go()
    assert child.wait(PATIENCE)
    assert child.fate() == "ended"
    assert alive(pids[1])
    other.kill(PATIENCE)
    assert other.fate() == "ended"


def test_the_nursery_ends_with_the_driver_and_after_its_workers(desk: Desk, tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
import msgspec
from bedload.spark.processes import Nursery
nursery = Nursery(Path(sys.argv[1], "nursery.log"), dict(os.environ))
hello = msgspec.json.encode({"worker": 7, "coordinator": sys.argv[2], "credentials": {"secret": b"s" * 32}})
nursery.order(Path(sys.argv[1], "worker.log"), dict(os.environ), hello + b"\\n")
print(nursery.pid, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), desk.endpoint.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    ) as driver:
        assert driver.stdout is not None
        pids = [int(driver.stdout.readline()), desk.next()[1]]
        assert all(map(alive, pids))
        driver.kill()
    eventually(lambda: not any(map(alive, pids)), "both ended by themselves")


def test_a_nursery_that_cannot_start_is_the_fate_of_its_workers(
    monkeypatch: pytest.MonkeyPatch, desk: Desk, tmp_path: Path
) -> None:
    broken = tmp_path / "broken" / "msgspec.py"
    broken.parent.mkdir()
    broken.write_text("raise ImportError('no such module: frobnicate')")
    given = dict(environment(), PYTHONPATH=os.pathsep.join([str(broken.parent), environment()["PYTHONPATH"]]))
    made = Home(desk, tmp_path, given)
    try:
        child = made.order(0)
        assert child.wait(PATIENCE)
        assert str(child.fate()).endswith("forked from ended with code 1")
        assert child.log == made.nursery.log
        assert "frobnicate" in child.log.read_text()
        late = made.order(1)
        assert late.wait(PATIENCE)
        assert str(late.fate()).endswith("forked from ended with code 1")
    finally:
        made.close()


def test_a_worker_that_is_not_wanted_any_more_when_the_nursery_is_up_is_none(home: Home, desk: Desk) -> None:
    unwanted = home.order(0)
    unwanted.kill(PATIENCE)
    home.order(1)
    assert desk.next()[0] == 1
    assert unwanted.wait(PATIENCE)


# --- what a worker has from it, and what not ---


def test_loading_starts_no_thread_of_pythons_and_no_pool_of_arrows() -> None:
    script = """
import os, threading
import numpy, pyarrow
from bedload.worker.nursery import _load, _load_compiled
def count(): return len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else 0
print(count())
_load()
print(count())
_load_compiled()
print(count(), threading.active_count())
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE)
    imports, loaded, compiled, threads = map(int, ran.stdout.split())
    assert imports == loaded == compiled
    assert threads == 1


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_that_are_forked_after_compiled_code_was_used_run_it(home: Home, desk: Desk) -> None:
    home.order(0)
    _, first = desk.next()
    assert not knows_compiled_code(first)
    nursery = psutil.Process(home.nursery.pid)
    before = nursery.num_threads()
    eventually(lambda: knows_compiled_code(nursery.pid), "compiled code is being loaded, as nothing is to do")
    eventually(lambda: nursery.num_threads() <= before, "it is loaded", 240)
    for worker in (1, 2):
        home.order(worker)
    pids = desk.all(2)
    assert below(nursery.pid) == {first, *pids.values()}
    for worker, pid in pids.items():
        assert psutil.Process(pid).cmdline() == nursery.cmdline(), "forked"
        assert psutil.Process(pid).nice() == psutil.Process().nice()
        assert knows_compiled_code(pid)
        assert desk.ask(worker, "__import__('bedload.store.columns').store.columns.warm_up()", home.folder) is None
        product = "float((__import__('numpy').ones((300, 300)) @ __import__('numpy').ones((300, 300))).sum())"
        assert desk.ask(worker, product, home.folder) == 300.0**3
        total = "__import__('pyarrow.compute').compute.sum(__import__('pyarrow').chunked_array([[1], [2]])).as_py()"
        assert desk.ask(worker, total, home.folder) == 3


def test_a_nursery_with_a_thread_of_somebody_elses_starts_fresh_interpreters(desk: Desk, tmp_path: Path) -> None:
    custom = tmp_path / "custom" / "sitecustomize.py"
    custom.parent.mkdir()
    custom.write_text("import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n")
    given = dict(environment(), PYTHONPATH=os.pathsep.join([str(custom.parent), environment()["PYTHONPATH"]]))
    made = Home(desk, tmp_path, given)
    try:
        child = made.order(0, given=dict(given, GIVEN_LATE="yes"))
        _, pid = desk.next()
        assert psutil.Process(pid).cmdline()[-1] == "bedload.worker"
        assert below(made.nursery.pid) == {pid}
        assert desk.ask(0, "__import__('os').environ['GIVEN_LATE']", tmp_path) == "yes"
        child.let_go()
        assert child.wait(PATIENCE)
        assert child.fate() == "ended with code 0"
    finally:
        made.close()


def test_random_numbers_differ_between_workers(home: Home, desk: Desk) -> None:
    for worker in (0, 1):
        home.order(worker)
    desk.all(2)
    for source in (
        "__import__('random').random()",
        "float(__import__('numpy').random.random())",
        "__import__('uuid').uuid4().hex",
        "__import__('secrets').token_hex()",
    ):
        assert desk.ask(0, source, home.folder) != desk.ask(1, source, home.folder)


def test_a_text_has_one_hash_at_all_workers_as_in_sparks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert processes.driver_environment()["PYTHONHASHSEED"] == "0"
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert processes.driver_environment()["PYTHONHASHSEED"] == "7"


def test_a_worker_has_the_environment_and_the_modules_of_the_driver_when_it_was_ordered(
    desk: Desk, tmp_path: Path
) -> None:
    early = environment(STAYS="1", CHANGES="old", GOES="1")
    made = Home(desk, tmp_path, early)
    try:
        made.order(0)
        desk.next()
        folder = tmp_path / "late"
        folder.mkdir()
        (folder / "only_found_late.py").write_text("VALUE = 42")
        late = dict(early, CHANGES="new", COMES="1", PYTHONPATH=os.pathsep.join([early["PYTHONPATH"], str(folder)]))
        del late["GOES"]
        made.order(1, given=late)
        desk.next()
        seen = "[__import__('os').environ.get(name) for name in ('STAYS', 'CHANGES', 'GOES', 'COMES')]"
        assert desk.ask(0, seen, tmp_path) == ["1", "old", "1", None]
        assert desk.ask(1, seen, tmp_path) == ["1", "new", None, "1"]
        assert desk.ask(1, "__import__('only_found_late').VALUE", tmp_path) == 42
    finally:
        made.close()


def test_a_worker_finds_modules_in_the_drivers_order(desk: Desk, tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("one", "two", "three")]
    for place in places:
        place.mkdir()
        (place / "found_by_order.py").write_text(f"VALUE = {place.name!r}")
    one, two, three = map(str, places)
    base = environment()

    def given(*paths: str) -> dict[str, str]:
        return dict(base, PYTHONPATH=os.pathsep.join([*paths, base["PYTHONPATH"]]))

    made = Home(desk, tmp_path, given(one))
    try:
        for number, (paths, expected) in enumerate([((one,), "one"), ((two, one), "two"), ((three,), "three")]):
            made.order(number, given=given(*paths))
            desk.next()
            assert desk.ask(number, "__import__('found_by_order').VALUE", tmp_path) == expected
        assert one not in desk.ask(2, "__import__('sys').path", tmp_path)
    finally:
        made.close()


def test_a_worker_has_the_time_zone_of_the_driver_when_it_was_ordered(desk: Desk, tmp_path: Path) -> None:
    made = Home(desk, tmp_path, environment(TZ="UTC0"))
    try:
        for number, (zone, hours) in enumerate([("UTC0", 0), ("EST5", -5)]):
            made.order(number, given=environment(TZ=zone))
            desk.next()
            assert desk.ask(number, "__import__('time').localtime(0).tm_gmtoff", tmp_path) == 3600 * hours
    finally:
        made.close()


def test_what_a_worker_starts_has_no_input_and_does_not_hide_the_end_of_the_worker(
    shared_home: Home, desk: Desk
) -> None:
    child = shared_home.order(0)
    _, pid = desk.next()
    run = "__import__('subprocess').run(['cat'], capture_output=True).stdout"
    assert desk.ask(0, run, shared_home.folder) == b""
    left = desk.ask(0, "__import__('subprocess').Popen(['sleep', '600']).pid", shared_home.folder)
    try:
        os.kill(pid, signal.SIGKILL)
        assert child.wait(PATIENCE)
        assert alive(left)
    finally:
        os.kill(left, signal.SIGKILL)


def test_signals_are_a_workers_own_again(home: Home, desk: Desk) -> None:
    home.order(0)
    desk.next()
    handlers = "[str(__import__('signal').getsignal(n)) for n in (__import__('signal').SIGCHLD, 2)]"
    assert desk.ask(0, handlers, home.folder) == [str(signal.SIG_DFL), str(signal.SIG_IGN)]
    assert desk.ask(0, "__import__('gc').isenabled()", home.folder) is True


# --- the host ---


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, desk: Desk, tmp_path: Path) -> Iterator[ProcessHost]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    nurseries = processes.Nurseries()
    made = ProcessHost(nurseries=nurseries)
    desk.check = made.check
    yield made
    made.stop()
    nurseries.stop(PATIENCE)
    assert not list(tmp_path.glob("bedload-*"))


def failure(host: ProcessHost, worker: WorkerId) -> str:
    """What the host says of a worker, as soon as it says something."""
    said: list[str] = []

    def says() -> bool:
        try:
            host.check(worker)
        except WorkerStartFailed as error:
            said.append(error.message)
        return bool(said)

    eventually(says, "the failure is told")
    return said[0]


def nursery_of(pid: int) -> psutil.Process:
    parent = psutil.Process(pid).parent()
    assert parent is not None
    return parent


def test_a_host_replaces_adds_and_removes_workers_of_one_nursery(host: ProcessHost, desk: Desk) -> None:
    host.start(desk.endpoint.address, CREDENTIALS, 2)
    pids = desk.all(2)
    nursery = nursery_of(pids[0])
    assert nursery.ppid() == os.getpid()
    os.kill(pids[1], signal.SIGKILL)
    host.replace(WorkerId(1))
    host.add(WorkerId(2))
    new = desk.all(2)
    assert sorted(new) == [1, 2]
    host.check()
    desk.tell_to_stop(2)
    host.remove(WorkerId(2))
    assert below(nursery.pid) == {pids[0], new[1]}
    host.stop()
    assert not any(alive(pid) for pid in (pids[0], new[1]))
    assert alive(nursery.pid)


def test_a_host_whose_nursery_was_killed_starts_another_and_keeps_the_workers(host: ProcessHost, desk: Desk) -> None:
    host.start(desk.endpoint.address, CREDENTIALS, 1)
    _, pid = desk.next()
    first = nursery_of(pid)
    first.kill()
    eventually(lambda: not alive(first.pid), "it is gone")
    host.add(WorkerId(1))
    _, second = desk.next()
    host.check()
    assert nursery_of(second).pid != first.pid
    assert alive(pid)
    host.replace(WorkerId(0))
    eventually(lambda: not alive(pid), "the one without a nursery was ended")
    _, third = desk.next()
    assert nursery_of(third).pid == nursery_of(second).pid
    os.kill(third, signal.SIGKILL)
    assert "worker 0 ended with code -9 before it joined" in failure(host, WorkerId(0))
    host.stop()
    assert not alive(second)


def test_an_order_that_a_killed_nursery_did_not_carry_out_is_given_to_another_once(
    host: ProcessHost, desk: Desk
) -> None:
    host.start(desk.endpoint.address, CREDENTIALS, 1)
    _, pid = desk.next()
    first = nursery_of(pid)
    first.suspend()
    host.add(WorkerId(1))
    first.kill()
    worker, second = desk.next()
    assert worker == 1
    assert nursery_of(second).pid != first.pid
    host.check()


def test_a_nursery_that_dies_again_is_told(host: ProcessHost, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    dies = Path(tempfile.gettempdir(), "python")
    dies.write_text("#!/bin/sh\necho 'no luck'\nkill -9 $$\n")
    dies.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(dies))
    host.start(desk.endpoint.address, CREDENTIALS, 1)
    said = failure(host, WorkerId(0))
    assert "worker 0 was not started" in said
    assert said.endswith("ended with code -9 before it joined; the end of its log:\nno luck\nno luck")


def test_a_host_whose_nursery_does_not_listen_ends_it(
    monkeypatch: pytest.MonkeyPatch, host: ProcessHost, desk: Desk
) -> None:
    monkeypatch.setattr(hosts, "_STOP_SECONDS", 0.2)
    host.start(desk.endpoint.address, CREDENTIALS, 1)
    _, pid = desk.next()
    nursery = nursery_of(pid)
    nursery.suspend()
    host.add(WorkerId(1))
    host.check(WorkerId(1))
    monkeypatch.setattr(processes, "_REPORT_SECONDS", 0.2)
    host.stop()
    assert not alive(nursery.pid)
    eventually(lambda: not alive(pid), "its worker ended")


def test_attachments_share_a_nursery_and_a_worker_is_where_the_driver_is(
    monkeypatch: pytest.MonkeyPatch, desk: Desk, tmp_path: Path
) -> None:
    nurseries = processes.Nurseries()
    try:
        pids = []
        for folder in (tmp_path, tmp_path.parent):
            monkeypatch.chdir(folder)
            one = ProcessHost(nurseries=nurseries)
            one.start(desk.endpoint.address, CREDENTIALS, 1)
            _, pid = desk.next()
            pids.append(nursery_of(pid).pid)
            assert Path(f"/proc/{pid}/cwd").resolve() == folder.resolve()
            one.stop()
        assert pids[0] == pids[1]
    finally:
        nurseries.stop(PATIENCE)
    assert not alive(pids[0])


def test_a_forked_driver_has_a_nursery_of_its_own_and_keeps_nothing_of_the_others_alive(
    desk: Desk, tmp_path: Path
) -> None:
    script = """
import os, sys, time
from bedload.core.ids import WorkerId
from bedload.spark.hosts import ProcessHost
from bedload.spark.processes import NURSERIES, driver_environment
from bedload.transport import Credentials
host = ProcessHost()
host.start(sys.argv[1], Credentials(b"s" * 32), 1)
first = NURSERIES.get(driver_environment()).pid
if sys.stdin.readline() and os.fork() == 0:
    os.environ["BEDLOAD_NO_FORK"] = "1"
    print(os.getpid(), first, NURSERIES.get(driver_environment()).pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, desk.endpoint.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(TMPDIR=str(tmp_path)),
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdin is not None
        _, worker = desk.next()
        driver.stdin.write(b"\n")
        driver.stdin.flush()
        forked, first, second = map(int, driver.stdout.readline().split())
        assert first != second
        assert all(map(alive, (worker, first, second)))
        driver.kill()
    try:
        eventually(lambda: not alive(worker), "the worker ended with the driver")
        eventually(lambda: not alive(first), "so did its nursery")
        assert alive(forked)
        assert alive(second)
    finally:
        os.kill(forked, signal.SIGKILL)
    eventually(lambda: not alive(second), "the other ended with its own")


def test_an_order_to_a_nursery_that_somebody_ends_just_then_is_given_to_another(
    monkeypatch: pytest.MonkeyPatch, desk: Desk
) -> None:
    nurseries = processes.Nurseries()
    first = nurseries.get(environment())
    host = ProcessHost(nurseries=nurseries)
    desk.check = host.check
    try:
        with monkeypatch.context() as patched:
            patched.setattr(nurseries, "get", lambda _: nurseries.leave(first) or first)
            host.start(desk.endpoint.address, CREDENTIALS, 1)
        assert desk.next()[0] == 0
    finally:
        host.stop()
        nurseries.stop(PATIENCE)


def test_a_nursery_that_does_not_tell_the_end_of_a_worker_is_left(
    monkeypatch: pytest.MonkeyPatch, host: ProcessHost, desk: Desk
) -> None:
    monkeypatch.setattr(processes, "_REPORT_SECONDS", 0.2)
    host.start(desk.endpoint.address, CREDENTIALS, 1)
    _, pid = desk.next()
    nursery = nursery_of(pid)
    nursery.suspend()
    host.stop()
    assert not alive(nursery.pid)


def test_folders_of_logs_that_somebody_tidied_up_are_made_again(host: ProcessHost, desk: Desk, tmp_path: Path) -> None:
    host.start(desk.endpoint.address, CREDENTIALS, 1)
    _, pid = desk.next()
    for folder in tmp_path.glob("bedload-*"):
        shutil.rmtree(folder)
    host.add(WorkerId(1))
    desk.next()
    nursery = nursery_of(pid)
    nursery.kill()
    eventually(lambda: not alive(nursery.pid), "it is gone")
    host.replace(WorkerId(0))
    desk.next()


@pytest.mark.skipif(sys.platform != "linux", reason="names are any bytes")
def test_a_driver_may_be_in_a_folder_and_have_an_environment_that_are_no_text(
    monkeypatch: pytest.MonkeyPatch, host: ProcessHost, desk: Desk, tmp_path: Path
) -> None:
    host.start(desk.endpoint.address, CREDENTIALS, 1)
    desk.next()
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DRINK", os.fsdecode(b"caf\xe9"))
    host.add(WorkerId(1))
    desk.next()
    assert desk.ask(1, "(__import__('os').getcwdb(), __import__('os').environb[b'DRINK'])", tmp_path) == (
        os.fsencode(folder),
        b"caf\xe9",
    )


def test_a_worker_that_fails_is_reported_with_the_end_of_its_log(host: ProcessHost, desk: Desk) -> None:
    host.start("127.0.0.1:1", CREDENTIALS, 1)
    assert "worker 0 ended with code 1 before it joined; the end of its log:\n" in failure(host, WorkerId(0))
    assert "WorkerUnreachable" in host.last_words(WorkerId(0))


def test_without_fork_each_worker_is_a_child_of_the_driver(
    monkeypatch: pytest.MonkeyPatch, host: ProcessHost, desk: Desk
) -> None:
    monkeypatch.setenv("BEDLOAD_NO_FORK", "1")
    host.start(desk.endpoint.address, CREDENTIALS, 1)
    _, pid = desk.next()
    assert psutil.Process(pid).ppid() == os.getpid()
    host.check()
    assert desk.ask(0, "__import__('sys').stdin.read()", Path(tempfile.gettempdir())) == ""
    os.kill(pid, signal.SIGKILL)
    host.replace(WorkerId(0))
    _, other = desk.next()
    desk.tell_to_stop(0)
    host.remove(WorkerId(0))
    assert not alive(other)
