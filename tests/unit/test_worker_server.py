"""The worker's edge, over real sockets, with the coordinator stood in for."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.unit.transport_kit import credentials_of

from bedload.core.errors import TooLarge
from bedload.core.ids import Epoch, KeyGroup, OperatorName, QueryId, WorkerId
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
