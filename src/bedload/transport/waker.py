"""How another thread wakes a loop that waits in its selector."""

from __future__ import annotations

import contextlib
import socket


class Waker:
    """Readable after a wake-up call."""

    def __init__(self) -> None:
        self._in, self._out = socket.socketpair()
        self._in.setblocking(False)
        self._out.setblocking(False)

    def fileno(self) -> int:
        """For the selector."""
        return self._out.fileno()

    def wake(self) -> None:
        """Wake the loop; from any thread."""
        with contextlib.suppress(BlockingIOError):  # full of wake-up calls: one is enough
            self._in.send(b"w")

    def woken(self, _events: int) -> None:
        """The loop is awake."""
        with contextlib.suppress(BlockingIOError):
            self._out.recv(4096)

    def close(self) -> None:
        """Free it."""
        self._in.close()
        self._out.close()
