"""Workers that come and go: who waits for whom."""

from __future__ import annotations

import threading
from typing import Any

from tests.patience import PATIENCE

from bedload.core.ids import WorkerId
from bedload.spark.crew import Crew


class Host:
    """Notes what it is asked for; a kill takes until it is let go."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.let_go, self.replaced = threading.Event(), threading.Event()

    def kill(self, worker: WorkerId, task: int) -> None:
        assert self.let_go.wait(PATIENCE)
        self.did.append("kill")

    def replace(self, worker: WorkerId) -> None:
        self.did.append("replace")
        self.replaced.set()

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
