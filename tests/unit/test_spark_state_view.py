"""Reading the state of a key from a worker that does not answer, over real sockets."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from tests.patience import PATIENCE

from bedload.core.errors import KeyTypeError, WorkerUnreachable
from bedload.core.ids import OperatorName, WorkerId
from bedload.keys import RoutingTable
from bedload.spark import state_view
from bedload.spark.state_view import ColumnDecoder, OperatorState, Whereabouts
from bedload.transport import Credentials, Endpoint, Handler, Peer

CREDENTIALS = Credentials(b"correct horse battery staple")


class Silent(Handler):
    """Takes every question, and answers none."""

    def __init__(self) -> None:
        self.asked = 0

    def on_frame(self, peer: Peer, header: bytes, body: memoryview | None) -> None:
        self.asked += 1


def test_a_key_whose_state_does_not_come_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_view, "_LOOK_SECONDS", 0.05)
    worker = Silent()
    endpoint = Endpoint("127.0.0.1", credentials=CREDENTIALS, handler=worker)
    thread = threading.Thread(target=endpoint.run, daemon=True)
    thread.start()
    routing = RoutingTable.initial(16, [WorkerId(0)])
    state = OperatorState(
        OperatorName("rides"),
        ColumnDecoder(()),
        (pa.int64(),),
        lambda: Whereabouts(routing, {WorkerId(0): endpoint.address}, {}),
        CREDENTIALS,
    )
    try:
        with pytest.raises(WorkerUnreachable, match=r"rides: there is no answer .*restoring\(\), and try again"):
            state.get(7, timeout=0.2)
        assert worker.asked == 1
    finally:
        state.close()
        endpoint.stop()
        thread.join(PATIENCE)


def test_a_key_of_another_type_is_refused_with_the_name_of_its_column() -> None:
    state = OperatorState(
        OperatorName("rides"), ColumnDecoder(()), (pa.string(),), lambda: None, CREDENTIALS, ["car"]  # type: ignore[arg-type, return-value]
    )  # fmt: skip
    for ask in (state.get, state.hash_of):
        with pytest.raises(KeyTypeError, match=r"5 \(int\) is not a value of key column 'car'"):
            ask(5)
