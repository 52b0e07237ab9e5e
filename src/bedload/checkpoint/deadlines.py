"""A deadline on every call to a store: if the store does not answer, the caller gets an error.

Invariants: a call ends within its deadline, by its own outcome or by a :class:`StoreError`. A thread that is stuck in a
store is left behind. There are at most :data:`MOST_STUCK` such threads for a storage; then calls fail at once, until
one of the threads comes back. None of them keeps the process alive.

SUBTLE: a call that was given up may still take effect, as with any answer that is lost. So nothing may rely on the
absence of a file whose write failed; see the invariants of :mod:`bedload.checkpoint.history`.

Why threads: neither a read from a mounted network file system nor most of fsspec's filesystems can be interrupted. The
hop to another thread and back takes some 45 µs, and an epoch makes three calls at each worker.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from bedload.checkpoint.storage import Buffers, Storage, buffers, failed
from bedload.core.errors import StoreError

T = TypeVar("T")

DEFAULT_SECONDS = 60.0
MOST_STUCK = 16
_MOST_IDLE = 16
_BYTES_PER_SECOND = 1 << 20
"""A read or a write may take so much longer for its size, on top."""
_LOOK_SECONDS = 5.0
"""How long to look for the size of a file whose read is late."""
_FILES_PER_SECOND = 20
"""And a deletion for the number of its files."""


class _Call(Generic[T]):
    """One call on its way through another thread."""

    def __init__(self, step: Callable[[], T], back: Callable[[], None]) -> None:
        self._step = step
        self._back = back
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._given_up = False
        self._result: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._step()
        except BaseException as error:
            self._error = error
        with self._lock:
            self._over.set()
            given_up = self._given_up
        if given_up:
            self._back()

    def over(self, seconds: float) -> bool:
        """Whether it is over within so many seconds."""
        return self._over.wait(seconds)

    def wait(self, seconds: float) -> bool:
        """The same, for the last time; if it is not, ``back`` is called when it is."""
        if self._over.wait(seconds):
            return True
        with self._lock:
            self._given_up = not self._over.is_set()
            return not self._given_up

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class _Callers:
    """Threads that make calls, one at a time each. One that is stuck is replaced when it is needed."""

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[_Call[Any]]] = []
        os.register_at_fork(after_in_child=self._idle.clear)

    def start(self, call: _Call[Any]) -> None:
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), name="bedload-store", daemon=True).start()
        inbox.put(call)

    def _serve(self, inbox: queue.SimpleQueue[_Call[Any]]) -> None:
        while True:
            inbox.get().run()
            if len(self._idle) >= _MOST_IDLE:
                return
            self._idle.append(inbox)


_CALLERS = _Callers()


class Deadline:
    """How long calls to one store may take."""

    def __init__(self, url: str, seconds: float = DEFAULT_SECONDS) -> None:
        self._url = url
        self.seconds = seconds
        self._lock = threading.Lock()
        self._stuck = 0
        """How many calls were given up and have not come back."""

    def call(self, operation: str, path: str, step: Callable[[], T], longer: Callable[[], float] = lambda: 0.0) -> T:
        """What the step gives, if it does so in time; ``longer``: seconds on top, found out when they are needed."""
        if self._stuck >= MOST_STUCK:
            raise self._failed(operation, path, f"{self._stuck} calls before it have not come back")
        call = _Call(step, self._came_back)
        _CALLERS.start(call)
        seconds = self.seconds
        if not call.over(seconds):
            more = longer()
            seconds += more
            if not call.wait(more):
                with self._lock:
                    self._stuck += 1
                raise self._failed(operation, path, f"no answer within {seconds:g} seconds")
        return call.result()

    def _came_back(self) -> None:
        with self._lock:
            self._stuck -= 1

    def _failed(self, operation: str, path: str, why: str) -> Exception:
        return failed(operation, self._url, path, TimeoutError(why))


class DeadlineStorage:
    """A storage whose calls all end in time."""

    def __init__(self, inner: Storage, deadline: Deadline) -> None:
        self.url = inner.url
        self.inner = inner
        self.deadline = deadline
        self._look = Deadline(inner.url, min(_LOOK_SECONDS, deadline.seconds))

    def read(self, path: str) -> bytes:
        """The content of a file; ``FileNotFoundError`` if it is not there."""
        return self.deadline.call("read", path, lambda: self.inner.read(path), lambda: self._seconds_to_read(path))

    def write(self, path: str, data: Buffers) -> None:
        """Write a file, whole."""
        self.deadline.call("write", path, lambda: self.inner.write(path, data), lambda: _seconds(data))

    def create(self, path: str, data: Buffers) -> bool:
        """Write a file if there is none of that path. False: there is one of other content, or somebody makes one."""
        return self.deadline.call("create", path, lambda: self.inner.create(path, data), lambda: _seconds(data))

    def copy(self, source: str, target: str) -> None:
        """Have the content of a file under another path, too; ``FileNotFoundError`` if it is not there."""
        longer = self._seconds_to_read
        self.deadline.call("copy", source, lambda: self.inner.copy(source, target), lambda: 2 * longer(source))

    def exists(self, path: str) -> bool:
        """Whether there is a file of that path."""
        return self.deadline.call("look for", path, lambda: self.inner.exists(path))

    def list(self, folder: str) -> list[str]:
        """The names of the files and folders directly in a folder, sorted; empty if it is not there."""
        return self.deadline.call("list", folder, lambda: self.inner.list(folder))

    def sizes(self, folder: str) -> dict[str, int]:
        """The files directly in a folder, with their sizes in bytes; empty if it is not there."""
        return self.deadline.call("list", folder, lambda: self.inner.sizes(folder))

    def size(self, path: str) -> int:
        """The size of a file in bytes; ``FileNotFoundError`` if it is not there."""
        return self.deadline.call("look at", path, lambda: self.inner.size(path))

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files; those that are not there are fine."""
        if paths:
            shown = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
            self.deadline.call(
                "delete", shown, lambda: self.inner.delete(paths), lambda: len(paths) / _FILES_PER_SECOND
            )

    def _seconds_to_read(self, path: str) -> float:
        """As long as a write of it. Asked only of a read that is late, so that no other pays for it."""
        try:
            return self._look.call("look at", path, lambda: self.inner.size(path)) / _BYTES_PER_SECOND
        except (StoreError, FileNotFoundError):
            return 0.0


def _seconds(data: Buffers) -> float:
    return sum(part.nbytes for part in buffers(data)) / _BYTES_PER_SECOND
