"""The worker's edge, over real sockets, with the coordinator stood in for."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.unit.transport_kit import credentials_of

from bedload.core.errors import TooLarge
from bedload.core.ids import DeploymentId, Epoch, KeyGroup, MoveId, OperatorName, QueryId, WorkerId
from bedload.protocol import messages as m
from bedload.transport import Channel, Endpoint, Handler, Peer, frames
from bedload.worker.server import WorkerServer


class Deaf(Handler):
    """A coordinator that says nothing."""

    def on_frame(self, peer: Peer, header: bytes, body: memoryview | None) -> None: ...


@pytest.mark.parametrize("kind", ["plain", "tls"])
def test_an_answer_that_is_too_large_is_told_to_whoever_asked(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = credentials_of(kind)
    coordinator = Endpoint("127.0.0.1", credentials=credentials, handler=Deaf())
    threads = [threading.Thread(target=coordinator.run)]
    threads[0].start()
    server = WorkerServer(WorkerId(0), coordinator.address, credentials, "127.0.0.1")

    def answer(peer: Any, message: m.Message, body: Any) -> list[Any]:
        return [(peer, m.ReadAnswer(True, Epoch(1), QueryId("q")), bytes(2000))]

    monkeypatch.setattr(server._machine, "handle", answer)
    monkeypatch.setattr(frames, "MAX_BODY", 1000)
    threads.append(threading.Thread(target=server._endpoint.run))
    threads[1].start()
    try:
        with Channel.connect(server._endpoint.address, credentials, PATIENCE) as reader:
            for _ in range(2):  # the connection is as good as before
                reader.send(m.encode(m.Read(OperatorName("op"), KeyGroup(0))))
                refused = m.decode(reader.recv(PATIENCE).header)
                assert isinstance(refused, m.Refused)
                error = refused.error.error()
                assert isinstance(error, TooLarge)
                assert "2,000 bytes of rows or state" in str(error)
    finally:
        server._endpoint.stop()
        coordinator.stop()
        for thread in threads:
            thread.join(PATIENCE)


def test_what_is_taken_in_for_a_move_counts_apart_in_the_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = credentials_of("plain")
    coordinator = Endpoint("127.0.0.1", credentials=credentials, handler=Deaf())
    threads = [threading.Thread(target=coordinator.run)]
    threads[0].start()
    server = WorkerServer(WorkerId(0), coordinator.address, credentials, "127.0.0.1")
    name, move = OperatorName("op"), MoveId(1)
    apart: list[float] = []

    def answer(peer: Any, message: m.Message, body: Any) -> list[Any]:
        if isinstance(message, m.Ship):
            return [(peer, m.Shipped(name, move, WorkerId(0), message.number, took=message.number / 4), None)]
        return [(peer, m.ReadAnswer(True, Epoch(1), QueryId("q")), None)]

    monkeypatch.setattr(server._machine, "handle", answer)
    monkeypatch.setattr(server._endpoint.meter, "apart", apart.append)
    threads.append(threading.Thread(target=server._endpoint.run))
    threads[1].start()
    try:
        with Channel.connect(server._endpoint.address, credentials, PATIENCE) as other:
            for number in (1, 2):
                other.send(m.encode(m.Ship(name, move, WorkerId(1), number, DeploymentId(0), b"")))
                other.send(m.encode(m.Read(name, KeyGroup(0))))
                other.recv(PATIENCE)
                other.recv(PATIENCE)
    finally:
        server._endpoint.stop()
        coordinator.stop()
        for thread in threads:
            thread.join(PATIENCE)
    assert apart == [0.25, 0.5]
