"""Stores that do not answer: every call ends, the error reaches whoever asked, and nothing piles up without end."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from queue import Queue
from typing import Any

import msgspec
import pytest
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem
from tests.checkpoint_states import COUNTS, ME, OPERATOR, QUERY, Writer, delta
from tests.patience import PATIENCE

from bedload.checkpoint import compaction
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.deadlines import MOST_STUCK, Deadline, DeadlineStorage
from bedload.checkpoint.local_storage import LocalStorage
from bedload.checkpoint.orders import RestoreOrder, encode_order
from bedload.checkpoint.records import Manifest
from bedload.checkpoint.storage import Storage, failed, open_storage
from bedload.control.instructions import CheckTurn, CollectGarbage, WriteManifest, WriteTurn
from bedload.core.errors import BedloadError, CheckpointError, DefinitionError, StoreError
from bedload.core.ids import Epoch, Generation, KeyGroup, Ticket, Turn, WorkerId
from bedload.protocol import messages as m
from bedload.spark.keeper import Keeper
from bedload.worker.durability import Load, Loaded, LoadFailed, Seal
from bedload.worker.durable import CheckpointDurability, Compactor, Loader, Place

SHORT = 0.05
"""A deadline that is over soon. What hangs here hangs until it is released, so a slow machine changes nothing."""


class Hanging:
    """A storage whose calls do not come back until they are let go."""

    def __init__(self, inner: Storage, *operations: str) -> None:
        self.url, self._inner, self._operations = inner.url, inner, operations
        self.let_go = threading.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if self._operations and name not in self._operations:
            return found

        def hang(*arguments: Any) -> Any:
            self.let_go.wait()
            return found(*arguments)

        return hang


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Callable[..., tuple[Any, Hanging]]]:
    made: list[Hanging] = []

    def make(*operations: str, seconds: float = SHORT) -> tuple[Any, Hanging]:
        inner = Hanging(LocalStorage(tmp_path / "state"), *operations)
        made.append(inner)
        return DeadlineStorage(inner, Deadline(inner.url, seconds)), inner  # type: ignore[arg-type]

    yield make
    for one in made:
        one.let_go.set()


CALLS: dict[str, Callable[[Storage], Any]] = {
    "read": lambda storage: storage.read("a"),
    "write": lambda storage: storage.write("a", b"x"),
    "create": lambda storage: storage.create("a", b"x"),
    "look for": lambda storage: storage.exists("a"),
    "list": lambda storage: storage.list(""),
    "look at": lambda storage: storage.size("a"),
    "delete": lambda storage: storage.delete(["a", "b"]),
}


@pytest.mark.parametrize("operation", CALLS)
def test_a_call_that_hangs_is_an_error_that_says_so(operation: str, hanging: Any) -> None:
    storage, _ = hanging()
    with pytest.raises(StoreError, match=rf"cannot {operation} file://.*no answer within .*raise the .*deadline") as it:
        CALLS[operation](storage)
    assert it.value.operation == operation


def test_calls_that_hang_do_not_pile_up_and_a_store_that_is_back_is_used_again(hanging: Any) -> None:
    storage, inner = hanging()
    inner._inner.write("a", b"x")
    for _ in range(MOST_STUCK):
        with pytest.raises(StoreError, match="no answer within"):
            storage.read("a")
    before = threading.active_count()
    for _ in range(50):
        with pytest.raises(StoreError, match=f"{MOST_STUCK} calls before it have not come back"):
            storage.exists("a")
    assert threading.active_count() <= before
    inner.let_go.set()
    for _ in range(1000):
        if storage.deadline._stuck:
            threading.Event().wait(0.01)
    storage.deadline.seconds = 120.0
    assert storage.read("a") == b"x"


@pytest.mark.parametrize("operation", ["read", "write"])
def test_a_large_file_has_more_time_both_ways(
    operation: str, hanging: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What could be written over a slow link can be read over it, too."""
    monkeypatch.setattr("bedload.checkpoint.deadlines._BYTES_PER_SECOND", 1)
    LocalStorage(tmp_path / "state").write("a", b"x" * 3600)
    storage, inner = hanging(operation)
    threading.Timer(10 * SHORT, inner.let_go.set).start()
    if operation == "read":
        assert storage.read("a") == b"x" * 3600
    else:
        storage.write("a", b"y" * 3600)


def test_what_a_store_says_comes_through(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), {"deadline": 30})
    with pytest.raises(FileNotFoundError):
        storage.read("nothing")
    storage.write("a", [b"x", b"y"])
    assert storage.read("a") == b"xy"
    assert storage.create("b", b"1")
    assert not storage.create("b", b"2")
    assert storage.sizes("") == {"a": 2, "b": 1}


@pytest.mark.parametrize("given", [0, -1, "soon", None, float("nan"), float("inf")])
def test_a_deadline_is_a_number_of_seconds(tmp_path: Path, given: Any) -> None:
    with pytest.raises(DefinitionError, match="is no number of seconds"):
        open_storage(str(tmp_path), {"deadline": given})


class HangingFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """A filesystem of fsspec whose server does not answer."""

    protocol = "hanging"
    cachable = False
    let_go = threading.Event()

    def cat_file(self, *arguments: Any, **more: Any) -> Any:
        HangingFileSystem.let_go.wait()
        return super().cat_file(*arguments, **more)


def test_a_filesystem_of_fsspec_that_hangs_is_an_error_too() -> None:
    register_implementation("hanging", HangingFileSystem, clobber=True)
    try:
        with pytest.raises(StoreError, match=r"no answer within 0\.05 seconds"):
            Checkpoint.open(open_storage("hanging://store/checkpoint", {"deadline": SHORT}), ME)
    finally:
        HangingFileSystem.let_go.set()


def test_a_file_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    """What the system itself hangs on: the content of a pipe without a writer."""
    os.mkfifo(tmp_path / "bedload.json")
    with pytest.raises(StoreError, match="no answer within"):
        Checkpoint.open(open_storage(str(tmp_path), {"deadline": SHORT}), ME)
    os.close(os.open(tmp_path / "bedload.json", os.O_RDWR | os.O_NONBLOCK))


# --- who asked ---


def test_a_seal_fails(hanging: Any) -> None:
    storage, _ = hanging("write")
    durable = CheckpointDurability(storage, Generation(1))
    with pytest.raises(StoreError, match="cannot write"):
        durable.persist(Seal(WorkerId(0), OPERATOR, QUERY, Epoch(0), Turn(1), lambda: delta(COUNTS, {1: {"n": 1}})))


def test_a_load_fails(hanging: Any, tmp_path: Path) -> None:
    writer = Writer(LocalStorage(tmp_path / "state"), COUNTS)
    record = writer.turn(delta(COUNTS, {1: {"n": 1}}))
    storage, _ = hanging("read")
    order = RestoreOrder({1: COUNTS}, 1, None, [record])
    answer: Future[Loaded | LoadFailed] = Future()
    plan = Load(OPERATOR, 1, record.turn, tuple(map(KeyGroup, range(8))), encode_order(order))
    Loader(storage, Generation(1)).start(plan, answer.set_result)
    found = answer.result(120)
    assert isinstance(found, LoadFailed)
    assert isinstance(found.error, StoreError)


def test_every_step_of_the_keeper_ends_in_an_event(hanging: Any, tmp_path: Path) -> None:
    root = tmp_path / "state"
    keeper = Keeper(str(root))
    keeper.checkpoint.storage, _ = hanging()
    told: list[Any] = []
    record = Writer(LocalStorage(root), COUNTS).turn(delta(COUNTS, {1: {"n": 1}}))

    class Listening:
        """A coordinator that remembers what it is told."""

        def __init__(self) -> None:
            self.heard: list[tuple[str, tuple[Any, ...]]] = []

        def __getattr__(self, name: str) -> Any:
            return lambda *arguments: self.heard.append((name, arguments))

    manifest: Any = Manifest(
        turn=record.turn, schema=1, query=QUERY, epoch=Epoch(0), parts=(), bytes=0, rows=0, committed={}
    )
    garbage: Any = type("G", (), {"paths": ["x"], "promises": ("x",), "files": (), "floor": record.turn})()
    steps = (
        WriteTurn(OPERATOR, record),
        WriteManifest(OPERATOR, manifest),
        CollectGarbage(OPERATOR, garbage),
        CheckTurn(OPERATOR, record.turn),
    )
    for step in steps:
        keeper.carry_out(step, record if isinstance(step, CheckTurn) else None, lambda query: "", told.append)
    coordinator = Listening()
    for event in told:
        event(coordinator)
    assert [name for name, _ in coordinator.heard] == [
        "turn_unwritten",
        "snapshot_written",
        "garbage_collected",
        "failed",
    ]
    for name, arguments in coordinator.heard:
        assert isinstance(arguments[-1], StoreError), name


def test_an_attachment_an_export_and_a_history_fail(hanging: Any) -> None:
    storage, _ = hanging("read", "list")
    for act in (
        lambda: Checkpoint.open(storage, ME),
        lambda: Checkpoint(storage, None, None, None).load_history(OPERATOR),  # type: ignore[arg-type]
        lambda: Checkpoint(storage, None, None, None).claim(),  # type: ignore[arg-type]
        lambda: Checkpoint(storage, None, None, None).export(storage),  # type: ignore[arg-type]
    ):
        with pytest.raises(StoreError, match="no answer within"):
            act()


# --- children ---


def compacted(compactor: Compactor) -> BedloadError | None:
    answer: Future[m.Compacted] = Future()
    compactor.start(
        m.Compact(OPERATOR, Turn(1), (KeyGroup(0),), ticket=1), lambda message, _: answer.set_result(message)
    )
    found = answer.result(240)
    return None if found.error is None else found.error.error()


@pytest.mark.parametrize("job_size", ["small", "more than a pipe holds"])
def test_a_compaction_that_gives_no_sign_of_life_is_ended_and_reported(
    job_size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "COMMAND", ("sleep", "1000000"))
    options = {"key": "x" * (1 if job_size == "small" else 1 << 20)}
    compactor = Compactor(WorkerId(0), Place(str(tmp_path), Generation(1), options), patience=SHORT)
    error = compacted(compactor)
    assert isinstance(error, CheckpointError)
    assert "gave no sign of life for 0.05 seconds and was ended" in error.message
    assert not compactor._children


class Slow:
    """A child that is heard of a little more each time, up to its result."""

    pid = 1

    def __init__(self, *heard: bytes) -> None:
        self.heard = list(heard)
        self.killed = False
        self.given: list[bytes | None] = []
        self.returncode = 0

    def communicate(self, given: bytes | None = None, timeout: float | None = None) -> tuple[bytes, bytes]:
        self.given.append(given)
        heard = self.heard.pop(0) if self.heard else b""
        if not heard.endswith(b"}") and not self.killed:
            raise subprocess.TimeoutExpired("child", timeout or 0, output=heard)
        return heard, b""

    def kill(self) -> None:
        self.killed = True


def test_a_compaction_that_gives_signs_of_life_may_take_its_time(tmp_path: Path) -> None:
    compactor = Compactor(WorkerId(0), Place(str(tmp_path), Generation(1)), patience=1.0)
    slow: Any = Slow(b"\n", b"\n\n", b"\n\n\n", b"\n\n\n{}")
    said: list[bytes] = []
    assert compactor._listen(slow, b"job", said.append) == (b"\n\n\n{}", b"")
    assert slow.given == [b"job", None, None, None]
    assert said == [b"\n", b"\n\n", b"\n\n\n"]
    silent: Any = Slow(b"\n", b"\n\n", b"\n\n")
    with pytest.raises(CheckpointError, match="no sign of life"):
        compactor._listen(silent, b"job", said.append)
    assert silent.killed


@pytest.mark.parametrize("asked", [True, False])
def test_a_child_has_its_priority_and_share_and_is_heard_of(
    asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = b'{"groups":1,"keys":2,"bytes":3}\n', b'{"groups":4,"keys":5,"bytes":6}\n'
    child = Slow(b"", first, first, first + second[:-9], first + second, first + second + b'{"parts":[]}')
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: child)
    told: Queue[m.Compacting | m.Compacted] = Queue()
    compactor = Compactor(WorkerId(3), Place(str(tmp_path), Generation(1)), patience=600.0)
    message = m.Compact(OPERATOR, Turn(1), (KeyGroup(0),), Ticket(1), asked)
    compactor.start(message, lambda message, _: told.put(message))
    who = WorkerId(3), OPERATOR, Ticket(1)
    assert told.get(timeout=PATIENCE) == m.Compacting(*who, 1, 2, 3)
    assert told.get(timeout=PATIENCE) == m.Compacting(*who, 4, 5, 6)
    assert told.get(timeout=PATIENCE) == m.Compacted(*who, None)
    job = msgspec.json.decode(child.given[0] or b"", type=compaction.Job)
    assert (job.niceness, job.share) == ((3, None) if asked else (10, 0.5))


def test_a_child_reports_a_store_that_hangs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "bedload.json")
    place = Place(str(tmp_path), Generation(1), {"deadline": SHORT})
    error = compacted(Compactor(WorkerId(0), place))
    assert isinstance(error, StoreError)
    assert "no answer within" in error.message


# --- no space ---


@pytest.mark.parametrize("when", ["at once", "in the middle"])
def test_a_full_disk_leaves_no_half_file_and_says_so(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path)
    storage.write("f/a", b"before")
    real = open

    class Full:
        def __init__(self, file: Any) -> None:
            self._file, self._left = file, 0 if when == "at once" else 1

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: Any) -> None:
            self._file.close()

        def write(self, data: Any) -> int:
            if not self._left:
                raise OSError(errno.ENOSPC, "No space left on device")
            self._left -= 1
            return int(self._file.write(data))

    def opened(path: Any, mode: str = "r", **more: Any) -> Any:
        return Full(real(path, mode, **more)) if mode == "xb" else real(path, mode, **more)

    monkeypatch.setattr("builtins.open", opened)
    for act in (lambda: storage.write("f/a", [b"one", b"two"]), lambda: storage.create("f/b", [b"one", b"two"])):
        with pytest.raises(StoreError, match=r"No space left.*Free some space"):
            act()
    monkeypatch.undo()
    assert storage.read("f/a") == b"before"
    assert [path.name for path in (tmp_path / "f").iterdir()] == ["a"]
    assert isinstance(failed("write", "u", "p", OSError(errno.ENOSPC, "x")), StoreError)
