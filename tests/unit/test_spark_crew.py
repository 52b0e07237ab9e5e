"""Workers that come and go: who waits for whom."""

from __future__ import annotations

import queue
import threading
from typing import Any

from tests.patience import PATIENCE

from bedload.core.ids import WorkerId
from bedload.spark.crew import Arrival, Crew


class Host:
    """Notes what it is asked for; what ends a worker takes until it is let go."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.let_go, self.replaced, self.added = threading.Event(), threading.Event(), threading.Event()

    def kill(self, worker: WorkerId, task: int) -> None:
        assert self.let_go.wait(PATIENCE)
        self.did.append("kill")

    def replace(self, worker: WorkerId) -> None:
        self.did.append("replace")
        self.replaced.set()

    def add(self, worker: WorkerId) -> None:
        self.did.append("add")
        self.added.set()

    def remove(self, worker: WorkerId) -> None:
        assert self.let_go.wait(PATIENCE)
        self.did.append("remove")

    def check(self, worker: WorkerId) -> None:
        pass


def test_a_worker_that_hangs_is_killed_before_another_one_has_its_number() -> None:
    host: Any = Host()
    crew = Crew(host, not_started=lambda *_: None, not_replaced=lambda *_: None)
    crew.kill(WorkerId(1), -1)
    crew.replace(WorkerId(1), PATIENCE)
    host.replaced.wait(0.2)  # it would be there by now
    host.let_go.set()
    assert host.replaced.wait(PATIENCE)
    assert host.did == ["kill", "replace"]
    crew.stop()


def test_one_that_is_awaited_twice_arrives_as_new_and_then_in_place_of_the_lost_one() -> None:
    host: Any = Host()
    crew = Crew(host, not_started=lambda *_: None, not_replaced=lambda *_: None)
    crew.replace(WorkerId(1), PATIENCE, start=False)
    crew.add(WorkerId(1), PATIENCE)
    arrivals = [crew.arrived(WorkerId(1)) for _ in range(3)]
    assert arrivals == [Arrival.NEW, Arrival.REPLACEMENT, Arrival.UNASKED]
    assert crew.arrived(WorkerId(2)) is Arrival.UNASKED
    crew.stop()


def test_one_that_does_not_come_is_reported_and_awaited_no_longer() -> None:
    host: Any = Host()
    told: queue.Queue[str] = queue.Queue()
    crew = Crew(host, not_started=lambda *_: None, not_replaced=lambda _, why: told.put(why))
    crew.replace(WorkerId(1), 0.05, start=False)
    assert "within 0.05 seconds" in told.get(timeout=PATIENCE)
    assert crew.arrived(WorkerId(1)) is Arrival.UNASKED
    crew.stop()


def test_a_new_one_starts_after_the_one_of_its_number_is_gone() -> None:
    host: Any = Host()
    crew = Crew(host, not_started=lambda *_: None, not_replaced=lambda *_: None)
    crew.let_go(WorkerId(1))
    crew.add(WorkerId(1), PATIENCE)
    host.added.wait(0.2)  # it would be there by now
    host.let_go.set()
    assert host.added.wait(PATIENCE)
    assert host.did == ["remove", "add"]
    crew.arrived(WorkerId(1))
    crew.stop()
