"""How much of its time a worker has to spare, as moves see it."""

from __future__ import annotations

from tests.unit.transport_kit import HandClock

from bedload.transport.meter import Meter


class Machine:
    """Two processors, as a test says what they do."""

    def __init__(self) -> None:
        self.idle = self.all = 0.0

    def passes(self, seconds: float, idle: float) -> None:
        self.idle += 2 * seconds * idle
        self.all += 2 * seconds

    def processors(self) -> tuple[float, float]:
        return self.idle, self.all


def settled(*, waits: float, machine: float, apart: float = 0.0) -> float:
    """What a meter says of a loop that always waits for such a share of its time, on such a machine."""
    clock, processors = HandClock(), Machine()
    meter = Meter(clock, processors.processors)
    for _ in range(50):
        clock.now += 1.0
        processors.passes(1.0, machine)
        meter.apart(apart)
        meter.waited(waits)
    return round(meter.idle, 3)


def test_a_loop_that_waits_on_an_idle_machine_has_that_time_to_spare() -> None:
    assert settled(waits=0.75, machine=1.0) == 0.75


def test_a_loop_that_waits_on_a_busy_machine_has_no_time_to_spare() -> None:
    assert settled(waits=0.75, machine=0.0) == 0.0


def test_a_loop_has_no_more_to_spare_than_its_machine() -> None:
    assert settled(waits=0.75, machine=0.25) == 0.25


def test_what_is_only_done_as_there_is_time_makes_no_machine_busy() -> None:
    assert settled(waits=0.5, machine=0.5, apart=0.5) == 0.75


def test_where_nobody_counts_processors_the_loop_alone_counts() -> None:
    clock = HandClock()
    meter = Meter(clock, lambda: (0.0, 0.0))
    for _ in range(50):
        clock.now += 1.0
        meter.waited(0.5)
    assert round(meter.idle, 3) == 0.5
