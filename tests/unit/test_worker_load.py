"""What a worker does for a feeder's end does not depend on how many feeders there are."""

from __future__ import annotations

import pytest
from tests.steps import steps_of
from tests.unit.test_worker_machine import FORM, NAME, Rig, feeder

from bedload.core.ids import Turn
from bedload.protocol import messages as m
from bedload.worker.machine import COORDINATOR, Phase

SCHEMA = FORM.batch([{"key": "a", "n": 1}]).schema.serialize()


def ends_of(feeders: int, slots: int) -> int:
    """The steps of a worker from the first feeder to the seal, with so many task slots."""
    rig = Rig()
    rig.begin(1)
    machine = rig.machine

    def run() -> None:
        machine.handle(COORDINATOR, m.Expect(NAME, Turn(1), feeders), None)
        for first in range(0, feeders, slots):
            wave = range(first, min(first + slots, feeders))
            for number in wave:
                machine.handle(number, m.Join(NAME, Turn(1), feeder(number)), SCHEMA)
            for number in wave:
                machine.handle(number, m.Done(NAME, Turn(1), feeder(number), 0), None)

    steps = steps_of(run)
    machine.check()
    assert machine.phase(NAME) is Phase.SEALED
    return steps


@pytest.mark.parametrize("slots", [4, 10_000], ids=["a few slots", "a slot for each"])
def test_twice_as_many_feeders_cost_twice_as_much(slots: int) -> None:
    one, two, four = (ends_of(n * 50, slots) for n in (1, 2, 4))
    assert four - two <= 2.05 * (two - one), f"50, 100 and 200 feeders: {one}, {two}, {four}"
