"""One process that has loaded what workers need, and forks them: ``python -m bedload.worker.nursery``.

::

    driver ──Order, two descriptors──▶ nursery ──fork──▶ worker
       │ ◀──────── Born, Ended ───────────┘                 ▲
       └──────────── lifeline: the hello, then silence ─────┘

The driver's end is ``bedload.spark.processes``.

Invariants:

- A worker depends on the driver, never on the nursery. Its lifeline (a socket pair, its standard input) runs to the
  driver: when the driver's end closes, the worker ends; when the worker's end closes, the worker is gone. The loss of
  the nursery costs nothing but the exit codes of the workers that are there.
- The secret goes over the lifeline. The nursery never sees it.
- It outlives attachments: workers of several clusters of one driver may be its children at once.
- It forks only while it has a single Python thread. Otherwise (compiled code is being loaded; somebody's
  ``sitecustomize`` has started a thread) it starts a fresh interpreter, which takes longer and is always safe.

Why: a worker's imports cost as much processor time as many epochs, and are paid for when the query can least afford
it: when it is to grow, or has just lost a worker. See ADR 11.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path
from typing import NoReturn

import msgspec

from bedload.core.ids import Ticket

_IDLE_SECONDS = 2.0
"""How long after the last order the compiled code is loaded: the first workers, and their first epochs, come before."""
_LEAVE_SECONDS = 5.0
_LOW_PRIORITY = 10
SIZE = struct.Struct("!I")
"""The length of an order, before it."""
COMMAND = ("-X", "faulthandler", "-m", "bedload.worker")
"""What a Python that is started for one worker is told."""


class Order(msgspec.Struct):
    """Start a worker. With it come its end of the lifeline and its log."""

    ticket: Ticket
    environment: dict[bytes, bytes | None]
    """What is different in the driver's environment since the nursery was started. As bytes: any are allowed."""
    folder: bytes = b""
    """The driver's working directory."""


class Born(msgspec.Struct, tag=True):
    """The worker runs."""

    ticket: Ticket
    pid: int


class Ended(msgspec.Struct, tag=True):
    """The worker does not run any more, or could not be started."""

    ticket: Ticket
    code: int


def available() -> bool:
    """Whether workers can be forked here. ``BEDLOAD_NO_FORK=1`` says no."""
    possible = all(hasattr(os, name) for name in ("fork", "posix_spawn")) and hasattr(socket, "send_fds")
    return possible and os.environ.get("BEDLOAD_NO_FORK", "") in ("", "0")


class _Ward:
    """The nursery's own loop. In a worker, :meth:`run` returns."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._wake, self._alarm = os.pipe()
        self._tickets: dict[int, Ticket] = {}
        """By process: workers that run."""
        self._loading: threading.Thread | None = None
        given = _paths()
        self._own_paths = [path for path in sys.path[not sys.flags.safe_path :] if path not in given]
        """Where Python looks for modules whatever the driver says."""

    def run(self) -> None:
        for end in (self._wake, self._alarm):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler, nothing is written to the alarm
        signal.set_wakeup_fd(self._alarm, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._orders, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        idle: float | None = None
        while True:
            ready = dict(poll.poll(None if idle is None else idle * 1000))
            if not ready:
                idle = None
                self._load_more()
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 65536)
            self._reap()
            if self._orders.fileno() in ready:
                if self._serve():
                    return
                if self._loading is None:
                    idle = _IDLE_SECONDS

    def _serve(self) -> bool:
        """Carry out an order; whether this is the worker."""
        received = _receive(self._orders)
        if received is None:
            self._leave()  # the driver is gone, or needs no more workers
        order, lifeline, log = received
        try:
            pid = self._start(order, lifeline, log)
        except OSError as error:
            os.write(log, f"the worker could not be started: {error}\n".encode())
            self._tell(Ended(order.ticket, 1))
        else:
            if pid == 0:
                self._become(order, lifeline, log)
                return True
            self._tickets[pid] = order.ticket
            self._tell(Born(order.ticket, pid))
        os.close(lifeline)
        os.close(log)
        return False

    def _start(self, order: Order, lifeline: int, log: int) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        if order.folder:
            with contextlib.suppress(OSError):  # it was removed since
                os.chdir(order.folder)
        if self._alone():
            gc.freeze()  # a collection would write to every object, and so unshare every page
            return os.fork()
        changed = {**os.environb, **order.environment}
        environment = {name: value for name, value in changed.items() if value is not None}
        places = [(os.POSIX_SPAWN_DUP2, lifeline, 0), (os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
        return os.posix_spawn(sys.executable, [sys.executable, *COMMAND], environment, file_actions=places)

    def _alone(self) -> bool:
        loading = self._loading
        if loading is not None and Path(f"/proc/self/task/{loading.native_id}").exists():
            return False  # it may be over for Python, and on its way out still
        return threading.active_count() == 1

    def _become(self, order: Order, lifeline: int, log: int) -> None:
        """Make this process one that could have been started by itself."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._orders.close()
        for number, place in ((lifeline, 0), (log, 1), (log, 2)):
            os.dup2(number, place)
        for number in (lifeline, log, self._wake, self._alarm):
            os.close(number)
        for name, value in order.environment.items():
            if value is None:
                os.environb.pop(name, None)
            else:
                os.environb[name] = value
        time.tzset()
        # The driver's order, as modules of one name may be in several places.
        here = [] if sys.flags.safe_path or not order.folder else [os.fsdecode(order.folder)]
        sys.path[:] = dict.fromkeys([*here, *_paths(), *self._own_paths])
        importlib.invalidate_caches()
        # Python's own generator sees to itself; NumPy's would give the same numbers in all workers.
        if (numbers := sys.modules.get("numpy.random")) is not None:
            numbers.seed()
        gc.enable()

    def _reap(self) -> None:
        # By number: a library may wait for a process of its own.
        for pid in list(self._tickets):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._tell(Ended(self._tickets.pop(pid), os.waitstatus_to_exitcode(status)))

    def _tell(self, news: Born | Ended) -> None:
        with contextlib.suppress(OSError):  # the driver is gone: that is noticed where its orders are awaited
            self._orders.sendall(msgspec.json.encode(news) + b"\n")

    def _leave(self) -> NoReturn:
        """End, after the workers: they end with the driver, too, and somebody has to wait for them."""
        deadline = time.monotonic() + _LEAVE_SECONDS
        while self._tickets and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.01)
        os._exit(0)

    def _load_more(self) -> None:
        """Have the compiled code, and what operators are likely to import, in the workers to come.

        On a thread, so that an order never waits for a compiler, and of low priority, as a query runs beside it. It is
        over before the next fork: see the invariants.
        """
        self._loading = threading.Thread(target=_load_compiled, name="bedload-preload", daemon=True)
        self._loading.start()


def _paths() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _load() -> None:
    """Load what every worker needs by its first epoch."""
    import pyarrow as pa

    import bedload.checkpoint.local_storage
    import bedload.worker.__main__  # noqa: F401

    pa.array([0])  # loads pandas, if it is installed, to see whether it was given some


def _load_compiled() -> None:
    with contextlib.suppress(OSError):
        if sys.platform == "linux":  # elsewhere priority is the process's, and workers would have it, too
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW_PRIORITY)
    # Whatever is wrong comes again in the worker that needs it, and is reported there.
    with contextlib.suppress(Exception):
        import bedload.checkpoint.restore  # noqa: F401
        from bedload.store.columns import warm_up

        warm_up()
        # Most modules that define an operator import it, for the query beside the operator.
        importlib.import_module("pyspark.sql")


def _receive(orders: socket.socket) -> tuple[Order, int, int] | None:
    # The descriptors come with the first byte of an order, so no more than its head is read with them.
    head, numbers, _, _ = socket.recv_fds(orders, SIZE.size, 2)
    if not head:
        return None
    for number in numbers:
        os.set_inheritable(number, False)
    lifeline, log = numbers
    head += _exactly(orders, SIZE.size - len(head))
    return msgspec.msgpack.decode(_exactly(orders, *SIZE.unpack(head)), type=Order), lifeline, log


def _exactly(orders: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = orders.recv(size - len(data))
        if not more:
            os._exit(0)
        data += more
    return data


def _work() -> NoReturn:
    """Be a worker, and leave without tidying up what belongs to the nursery."""
    from bedload.worker.__main__ import main as work

    code = 1
    try:
        work()
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main() -> NoReturn:
    """Load what a worker needs, then fork one for each order until the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # NumPy's BLAS and an allocator of Arrow's have threads from their import on. Both see to them at a fork.
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
    gc.disable()
    orders = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    _load()
    _Ward(orders).run()
    _work()


if __name__ == "__main__":
    main()
