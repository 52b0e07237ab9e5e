"""A worker's sign of life: what it says of the loop, and that it goes on whatever happens to its connection."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.unit.transport_kit import HandClock

from bedload.core.errors import ClusterStopped, Unanswered, WorkerUnreachable
from bedload.core.ids import WorkerId
from bedload.protocol import messages as m
from bedload.worker.pulse import Pulse


class Loop:
    """A loop that answers when it is told to."""

    address = "here:1"

    def __init__(self) -> None:
        self.pokes: queue.Queue[Callable[[], None]] = queue.Queue()
        self.over = False

    def call_soon(self, fn: Callable[[], None]) -> None:
        if self.over:
            raise ClusterStopped("over")
        self.pokes.put(fn)


class Line:
    """The connection: one beat at a time, which somebody has to take."""

    closed = False

    def __init__(self) -> None:
        self.beats: queue.Queue[m.Beat] = queue.Queue()
        self.next = threading.Semaphore(0)

    def send(self, header: bytes, timeout: float) -> None:
        beat = m.decode(header)
        assert isinstance(beat, m.Beat)
        self.beats.put(beat)
        assert self.next.acquire(timeout=PATIENCE)

    def close(self) -> None:
        self.closed = True


def pulse(loop: Loop, connect: Callable[[float], Any], clock: HandClock) -> Pulse:
    return Pulse(WorkerId(1), loop, connect, clock, 0.001)  # type: ignore[arg-type]


def test_a_machine_that_stood_still_was_not_busy() -> None:
    loop, line, clock = Loop(), Line(), HandClock()
    it = pulse(loop, lambda seconds: line, clock)
    assert line.beats.get(timeout=PATIENCE).busy == 0.0
    clock.now += 3.0
    line.next.release()
    assert line.beats.get(timeout=PATIENCE).busy == 3.0
    clock.now += 3600.0  # all of it, the driver too: nobody says how long a loop was busy meanwhile
    line.next.release()
    assert line.beats.get(timeout=PATIENCE).busy < 60.0
    loop.pokes.get(timeout=PATIENCE)()
    clock.now += 5.0
    line.next.release()
    assert line.beats.get(timeout=PATIENCE).busy == 0.0
    it.stop()
    line.next.release()


@pytest.mark.parametrize("problem", [WorkerUnreachable("away", address="x"), RuntimeError("can't start new thread")])
def test_it_goes_on_after_whatever_keeps_it_from_connecting(problem: Exception) -> None:
    loop, line = Loop(), Line()
    problems = [problem, problem]

    def connect(seconds: float) -> Line:
        if problems:
            raise problems.pop()
        return line

    it = pulse(loop, connect, HandClock())
    assert line.beats.get(timeout=PATIENCE).worker == 1
    it.stop()
    line.next.release()


def test_a_far_driver_is_reached() -> None:
    """Four round trips of 300 ms and more, each way."""
    loop, line = Loop(), Line()

    def connect(seconds: float) -> Line:
        if seconds < 4.0:
            raise Unanswered("no handshake in time", address="x")
        return line

    it = pulse(loop, connect, HandClock())
    assert line.beats.get(timeout=PATIENCE).worker == 1
    it.stop()
    line.next.release()
