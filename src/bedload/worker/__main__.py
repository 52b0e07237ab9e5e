"""A worker as a process of its own: ``python -m bedload.worker``, started by the driver.

What it needs to know comes on standard input, so that the secret is in no argument list and no
environment. Standard input then stays open: when it ends, the driver is gone, however it went, and so
is the worker.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import msgspec

from bedload.core.ids import WorkerId
from bedload.worker.durable import Place
from bedload.worker.server import serve


class Start(msgspec.Struct):
    """The first line on standard input, as JSON."""

    worker: int
    coordinator: str
    secret: bytes
    place: Place | None = None


def _end_with_the_driver() -> None:
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)


def main() -> None:
    """Read the start line, then serve."""
    # Ctrl-C in a terminal reaches the driver's children too; the driver decides when they end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=Start)
    # A thread of its own: operator code may keep the main thread busy for long.
    threading.Thread(target=_end_with_the_driver, name="driver-watch", daemon=True).start()
    serve(WorkerId(start.worker), start.coordinator, start.secret, lambda _: "127.0.0.1", start.place)


if __name__ == "__main__":
    main()
