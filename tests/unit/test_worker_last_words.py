"""The worker's edge, on real sockets: whatever raises there reaches the coordinator, and the worker ends."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.transport_kit import credentials_of

from bedload.core.ids import DeploymentId, OperatorName, Turn, WorkerId
from bedload.protocol import messages as m
from bedload.transport import Endpoint, Handler, Peer
from bedload.worker.machine import WorkerMachine
from bedload.worker.server import WorkerServer

CREDENTIALS = credentials_of("plain")
NAME = OperatorName("x")
SECONDS = 60
"""Until a test gives up."""
CLOSED = object()


class Coordinator(Handler):
    """Notes what the worker says."""

    def __init__(self) -> None:
        self.said: queue.Queue[Any] = queue.Queue()
        self.endpoint = Endpoint("127.0.0.1", credentials=CREDENTIALS, handler=self)
        self.peer: Peer | None = None

    def on_frame(self, peer: Peer, header: bytes, body: memoryview | None) -> None:
        self.peer = peer
        self.said.put(m.decode(header))

    def on_close(self, peer: Peer) -> None:
        self.said.put(CLOSED)

    def tell(self, message: m.Message) -> None:
        def send() -> None:
            assert self.peer is not None
            self.peer.send(m.encode(message))

        self.endpoint.call_soon(send)

    def hear(self) -> Any:
        return self.said.get(timeout=SECONDS)


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    it = Coordinator()
    thread = threading.Thread(target=it.endpoint.run)
    thread.start()
    yield it
    it.endpoint.stop()
    thread.join(SECONDS)


@pytest.fixture
def worker(coordinator: Coordinator) -> Iterator[threading.Thread]:
    server = WorkerServer(WorkerId(3), coordinator.endpoint.address, CREDENTIALS, "127.0.0.1")
    thread = threading.Thread(target=server.run)
    thread.start()
    assert isinstance(coordinator.hear(), m.Register)
    yield thread
    coordinator.tell(m.Stop())
    thread.join(SECONDS)
    assert not thread.is_alive()


def raise_(*_: Any) -> Any:
    raise ValueError("nobody thought of this")


def last_words(coordinator: Coordinator, worker: threading.Thread) -> str:
    words = coordinator.hear()
    assert isinstance(words, m.WorkerFailed)
    assert (words.worker, words.operator, words.move) == (3, None, None)
    assert coordinator.hear() is CLOSED
    worker.join(SECONDS)
    assert not worker.is_alive()
    return words.error.message


@pytest.mark.parametrize("door", ["handle", "pump", "moving"])
def test_an_exception_of_the_workers_own_code_is_its_last_words(
    door: str, coordinator: Coordinator, worker: threading.Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    if door == "pump":
        monkeypatch.setattr(WorkerMachine, "moving", True)
    monkeypatch.setattr(WorkerMachine, door, property(raise_) if door == "moving" else raise_)
    coordinator.tell(m.Probe(NAME, Turn(1)))
    if door != "handle":
        assert isinstance(coordinator.hear(), m.Probed)
    assert "nobody thought of this" in last_words(coordinator, worker)


def test_a_worker_whose_operator_cannot_start_says_why_and_ends(
    coordinator: Coordinator, worker: threading.Thread
) -> None:
    coordinator.tell(m.Deploy(NAME, DeploymentId(0), 4, start=True))  # without any code
    assert "worker 3 cannot run operator x" in last_words(coordinator, worker)
