"""The processes of workers, as the driver sees them: forked from a nursery, or a fresh interpreter each.

Invariants:

- That a forked worker is gone is seen on its lifeline, whatever became of the nursery. Only its exit code is the
  nursery's to tell.
- A process is killed by its number only while neither lifeline nor nursery says that it is gone: numbers come again.
- Nothing here waits for the nursery to be up: it turns to its orders when it has loaded what it needs.
- A nursery is of one process. It outlives attachments, and ends with that process: a process that is forked from the
  driver, by ``multiprocessing`` say, holds nothing by which a worker or a nursery lives.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Protocol

import msgspec

from bedload.core.ids import Ticket
from bedload.worker.nursery import COMMAND, SIZE, Born, Ended, Order

_REPORT_SECONDS = 5.0
"""How long the nursery may take to tell the exit code of a worker that is gone."""
_POLL_SECONDS = 0.2
_OURS: weakref.WeakSet[socket.socket | IO[bytes]] = weakref.WeakSet()
"""The driver's ends of what workers and nurseries live by."""


class Child(Protocol):
    """A worker's process, however it was made."""

    @property
    def log(self) -> Path:
        """Where to read what went wrong."""
        ...

    @property
    def stranded(self) -> bool:
        """Whether it never ran because what was to start it was killed, so that it is worth another try."""
        ...

    @property
    def ignored(self) -> Nursery | None:
        """The nursery that was to start it, or to tell its end, and has not done so."""
        ...

    def fate(self) -> str | None:
        """What became of it, if it does not run any more."""
        ...

    def wait(self, seconds: float) -> bool:
        """Whether it ends within that time."""
        ...

    def let_go(self) -> None:
        """Tell it that it is not needed any more."""
        ...

    def kill(self, seconds: float) -> None:
        """End it by force; returns when it is gone, or that time is over."""
        ...

    def close(self) -> None:
        """Free what belongs to one that has ended."""
        ...


class Nursery:
    """The driver's end: orders workers and hears what became of them. Thread-safe."""

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        self._environment = dict(environment)
        self._children: dict[Ticket, Forked] = {}
        self._ticket = Ticket(0)
        self._heard = b""
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        _OURS.add(self._socket)
        try:
            with theirs, _open_log(log) as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-X", "faulthandler", "-m", "bedload.worker.nursery"],
                    stdin=theirs.fileno(),
                    stdout=output,
                    stderr=output,
                    env=self._environment,
                )
        except OSError:
            self._socket.close()
            raise

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def gone(self) -> bool:
        """Whether it takes no orders any more."""
        return self._process.poll() is not None or _hung_up(self._socket, 0.0)

    def order(self, log: Path, environment: Mapping[str, str], hello: bytes) -> Forked:
        """Have a worker started. Returns at once; if the nursery is gone, that is the worker's fate."""
        names = environment.keys() | self._environment.keys()
        changed = {
            os.fsencode(name): None if (value := environment.get(name)) is None else os.fsencode(value)
            for name in names
            if environment.get(name) != self._environment.get(name)
        }
        ours, theirs = socket.socketpair()
        _OURS.add(ours)
        with theirs, _open_log(log) as output, self._lock:
            self._ticket = Ticket(self._ticket + 1)
            child = self._children[self._ticket] = Forked(self, ours, log)
            payload = msgspec.msgpack.encode(Order(self._ticket, changed, _folder()))
            frame = SIZE.pack(len(payload)) + payload
            if self._socket.fileno() >= 0:  # else somebody has ended it just now
                with contextlib.suppress(ConnectionError):
                    sent = socket.send_fds(self._socket, [frame], [theirs.fileno(), output.fileno()])
                    self._socket.sendall(frame[sent:])
            ours.sendall(hello)
        return child

    def hear(self) -> None:
        """Take in what it has said."""
        with self._lock:
            with contextlib.suppress(OSError):  # nothing more for now, or for ever
                while news := self._socket.recv(65536, socket.MSG_DONTWAIT):
                    self._heard += news
            *lines, self._heard = self._heard.split(b"\n")
            for line in lines:
                event = msgspec.json.decode(line, type=Born | Ended)
                if isinstance(event, Born):
                    self._children[event.ticket].pid = event.pid
                else:
                    self._children.pop(event.ticket).code = event.code

    def last_code(self, seconds: float) -> int | None:
        """Its exit code, if it ends within that time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=seconds)
        return None

    def stop(self, seconds: float) -> None:
        """End it: by itself, when it has seen to all orders, or else by force. Its workers are not touched."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        if self.last_code(seconds) is None:
            self._process.kill()
            self._process.wait()
        self.hear()
        with self._lock:
            self._socket.close()


class Nurseries:
    """The nursery of this process: started when it is first needed, and again when it is gone. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: Nursery | None = None
        self._logs: Path | None = None

    def get(self, environment: Mapping[str, str]) -> Nursery:
        """The one that takes orders now."""
        with self._lock:
            if self._current is None or self._current.gone:
                if self._logs is None:
                    self._logs = Path(tempfile.mkdtemp(prefix="bedload-nursery-"))
                    atexit.register(_remove, self._logs, os.getpid())
                self._current = Nursery(self._logs / "nursery.log", environment)
            return self._current

    def forget(self) -> None:
        """This process was forked from the one whose they are."""
        self.__init__()  # type: ignore[misc]

    def leave(self, nursery: Nursery) -> None:
        """End one that is gone or does not listen: the next worker is ordered from another."""
        with self._lock:
            if self._current is nursery:
                self._current = None
        nursery.stop(0.0)

    def stop(self, seconds: float) -> None:
        """End it, within that time by itself or else by force."""
        with self._lock:
            nursery, self._current = self._current, None
            logs, self._logs = self._logs, None
        if nursery is not None:
            nursery.stop(seconds)
        if logs is not None:
            shutil.rmtree(logs, ignore_errors=True)


NURSERIES = Nurseries()
"""Those of all attachments."""


def _forked() -> None:
    for end in list(_OURS):
        end.close()
    NURSERIES.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def driver_environment() -> dict[str, str]:
    """What a worker has of the driver's."""
    # SUBTLE: what the driver can import, the operators that it ships may need: a script's folder, say.
    given = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    # As in Spark's own: a text has one hash at all workers, and a replay goes through a set in the same order.
    given.setdefault("PYTHONHASHSEED", "0")
    return given


class Forked:
    """A worker that was ordered from a nursery."""

    def __init__(self, nursery: Nursery, lifeline: socket.socket, log: Path) -> None:
        self.pid: int | None = None
        self.code: int | None = None
        self._nursery = nursery
        self._lifeline = lifeline
        self._log = log
        self._over = False

    @property
    def log(self) -> Path:
        """Where to read what went wrong."""
        return self._nursery.log if self._unborn() else self._log

    @property
    def ignored(self) -> Nursery | None:
        """The nursery, if it has done nothing about the order, or said nothing of the end."""
        self._nursery.hear()
        return self._nursery if self.code is None and (self.pid is None or self._over) else None

    @property
    def stranded(self) -> bool:
        """Whether it was ordered from a nursery that was being killed just then."""
        return self._unborn() and (self._nursery.last_code(_REPORT_SECONDS) or 0) < 0

    def fate(self) -> str | None:
        """What became of it, if it does not run any more."""
        if not self.wait(0.0):
            return None
        if self.code is not None:
            return f"ended with code {self.code}"
        if self._unborn():
            code = self._nursery.last_code(_REPORT_SECONDS)
            return f"was not started, as the process that it was to be forked from ended with code {code}"
        return "ended"

    def wait(self, seconds: float) -> bool:
        """Whether it ends within that time."""
        deadline = time.monotonic() + seconds
        while not self._has_ended():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            _hung_up(self._lifeline, min(left, _POLL_SECONDS))
        return True

    def let_go(self) -> None:
        """Tell it that it is not needed any more. Not by closing: the end of the other side is still to be seen."""
        with contextlib.suppress(OSError):
            self._lifeline.shutdown(socket.SHUT_WR)

    def kill(self, seconds: float) -> None:
        """End it by force. One that has not been forked yet ends as soon as it is: nobody waits for that."""
        self.let_go()
        if self._has_ended() or self.pid is None:
            return
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            self._over = True
        self.wait(seconds)

    def close(self) -> None:
        """Free the lifeline."""
        self._over = True
        self._lifeline.close()

    def _has_ended(self) -> bool:
        self._nursery.hear()
        # SUBTLE: either may be missing. A process that operator code has forked holds the lifeline open, too, and a
        # nursery that is gone reports nothing.
        if not self._over and (self.code is not None or _hung_up(self._lifeline, 0.0)):
            # A lifeline is closed by a process that is about to be gone, a report is of one that is.
            deadline = time.monotonic() + _REPORT_SECONDS
            while self.code is None and not self._nursery.gone and time.monotonic() < deadline:
                time.sleep(0.002)
                self._nursery.hear()
            self._nursery.hear()  # what it said last
            self._over = True
        return self._over

    def _unborn(self) -> bool:
        return self._over and self.pid is None and self.code is None


class Spawned:
    """A worker that is a child process of the driver. Its standard input is its lifeline."""

    stranded = False
    ignored = None

    def __init__(self, log: Path, environment: dict[str, str], hello: bytes) -> None:
        self.log = log
        with _open_log(log) as output:
            self._process = subprocess.Popen(
                [sys.executable, *COMMAND], stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment
            )
        assert self._process.stdin is not None
        self._lifeline = self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # it died at once: its fate says why
            self._lifeline.write(hello)
            self._lifeline.flush()
        _OURS.add(self._lifeline)

    def fate(self) -> str | None:
        """What became of it, if it does not run any more."""
        code = self._process.poll()
        return None if code is None else f"ended with code {code}"

    def wait(self, seconds: float) -> bool:
        """Whether it ends within that time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=seconds)
        return self._process.returncode is not None

    def let_go(self) -> None:
        """Close the lifeline."""
        with contextlib.suppress(OSError):
            self._lifeline.close()

    def kill(self, seconds: float) -> None:
        """End it by force."""
        self._process.kill()
        self.wait(seconds)

    def close(self) -> None:
        """Close the lifeline."""
        self.let_go()


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # and no process that was forked from it
        shutil.rmtree(folder, ignore_errors=True)


def _open_log(log: Path) -> IO[bytes]:
    """Whoever tidies up temporary files may have removed the folder: a driver runs for months."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return log.open("ab")


def _folder() -> bytes:
    """Where this process is; nowhere if that was removed."""
    try:
        return os.fsencode(Path.cwd())
    except OSError:
        return b""


def _hung_up(end: socket.socket, seconds: float) -> bool:
    """Whether the other side is closed. What it said before is left unread."""
    number = end.fileno()
    if number < 0:
        return True  # this side is
    poll = select.poll()
    poll.register(number, 0)  # a hang-up is always told
    return bool(poll.poll(seconds * 1000))
