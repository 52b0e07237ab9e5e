"""A worker as a process of its own: ``python -m bedload.worker``, or forked from the nursery.

What it needs to know comes on standard input, so that the secret is in no argument list and no environment. Standard
input stays open: when it ends, the driver is gone, whatever the reason, and the worker ends, too.
"""

from __future__ import annotations

import os
import signal
import threading
from io import FileIO

import msgspec

from bedload.core.ids import WorkerId
from bedload.transport import Credentials
from bedload.worker.durable import Place
from bedload.worker.local_files import Local
from bedload.worker.local_stores import remove_folders
from bedload.worker.server import serve


class Start(msgspec.Struct):
    """The first line on standard input, as JSON."""

    worker: int
    coordinator: str
    credentials: Credentials
    place: Place | None = None
    local: Local = Local()


def _lifeline() -> FileIO:
    """What was standard input. A process that operator code starts gets an empty one, and cannot hold this open."""
    # SUBTLE: without a buffer. Its lock would be the watching thread's, and the interpreter's end would wait for it.
    lifeline = FileIO(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return lifeline


def _end_with_the_driver(lifeline: FileIO) -> None:
    while lifeline.read(4096):
        pass
    remove_folders()
    os._exit(0)


def main() -> None:
    """Read the start line, then serve."""
    # Ctrl-C in a terminal reaches the driver's children too; the driver decides when they end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lifeline = _lifeline()
    line = lifeline.readline()
    if not line:
        return  # nobody wants it any more
    start = msgspec.json.decode(line, type=Start)
    # A thread of its own: operator code may keep the main thread busy for long.
    threading.Thread(target=_end_with_the_driver, args=(lifeline,), name="driver-watch", daemon=True).start()
    where, task = "127.0.0.1", -1
    worker, place = WorkerId(start.worker), start.place
    serve(worker, start.coordinator, start.credentials, lambda _: where, place, task, start.local)


if __name__ == "__main__":
    main()
