"""A limit on the processor time of one simulation: a loop inside one event is a failure, and not a wait for ever.

It counts the time that this process works, not the time that goes by, so a busy machine changes nothing. Code that
never comes back to Python is not stopped by it; whoever started the process has to end it.
"""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN = 0.5
"""Seconds until it is raised again, should something on the way have caught it."""
_INNERMOST = 8


class TookTooLong(BaseException):
    """A simulation has used up its time; no ``except Exception`` of the simulated code swallows it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`TookTooLong` in here after so many seconds of work. Only the main thread can have one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_it(_: int, frame: FrameType | None) -> None:
        where = "".join(traceback.format_stack(frame)[-_INNERMOST:])
        raise TookTooLong(f"it did not come to an end within {seconds:g} s of processor time; it was here:\n{where}")

    before = signal.signal(signal.SIGPROF, raise_it)
    signal.setitimer(signal.ITIMER_PROF, seconds, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
