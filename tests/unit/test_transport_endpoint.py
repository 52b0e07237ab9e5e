"""Endpoints and channels over real sockets: service, fairness, closing, errors, time."""

import contextlib
import errno
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.unit.transport_kit import HandClock, credentials_of

from bedload.core.errors import (
    ClusterError,
    ClusterStopped,
    ProtocolError,
    SecretRefused,
    Unanswered,
    WorkerUnreachable,
)
from bedload.transport import Channel, Credentials, Endpoint, Handler, Peer, Phase, encode_frame

CREDENTIALS = credentials_of("plain")
MIB = 1024 * 1024


@pytest.fixture(params=["plain", "tls"], autouse=True)
def credentials(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Credentials:
    """Every test runs on plain connections and on encrypted ones."""
    chosen = credentials_of(request.param)
    monkeypatch.setattr(sys.modules[__name__], "CREDENTIALS", chosen)
    return chosen


plain_only = pytest.mark.parametrize("credentials", ["plain"], indirect=True)
"""For tests that write and read the bytes of the wire themselves."""

Script = Callable[[Peer, bytes, memoryview | None], None]


def echo(peer: Peer, header: bytes, body: memoryview | None) -> None:
    peer.send(header, () if body is None else (body,))


class Recorder(Handler):
    """Runs a script on each frame and notes everything else."""

    def __init__(self, script: Script = echo) -> None:
        self.script = script
        self.opened: queue.Queue[Peer] = queue.Queue()
        self.ended: queue.Queue[Peer] = queue.Queue()
        self.errors: queue.Queue[tuple[Peer | None, BaseException]] = queue.Queue()
        self.crowded: queue.Queue[OSError] = queue.Queue()

    def on_open(self, peer: Peer) -> None:
        self.opened.put(peer)

    def on_frame(self, peer: Peer, header: bytes, body: memoryview | None) -> None:
        self.script(peer, header, body)

    def on_close(self, peer: Peer) -> None:
        self.ended.put(peer)

    def on_error(self, peer: Peer | None, error: BaseException) -> None:
        self.errors.put((peer, error))

    def on_no_room(self, error: OSError) -> None:
        self.crowded.put(error)


@contextlib.contextmanager
def running(endpoint: Endpoint) -> Iterator[Endpoint]:
    thread = threading.Thread(target=endpoint.run)
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def endpoint_of(handler: Handler, host: str = "127.0.0.1", **options: object) -> Endpoint:
    return Endpoint(host, credentials=CREDENTIALS, handler=handler, **options)  # type: ignore[arg-type]


def call(endpoint: Endpoint) -> Channel:
    return Channel.connect(endpoint.address, CREDENTIALS, PATIENCE)


def on_loop(endpoint: Endpoint, fn: Callable[[], Any]) -> Any:
    """The result of ``fn`` on the loop's thread."""
    answer: queue.Queue[Any] = queue.Queue()
    endpoint.call_soon(lambda: answer.put(fn()))
    return answer.get(timeout=PATIENCE)


def other_secret() -> Credentials:
    return Credentials(b"other", CREDENTIALS.certificate, CREDENTIALS.key)


def roundtrip(channel: Channel, word: bytes) -> bytes:
    channel.send(word)
    return channel.recv(PATIENCE).header


# --- frames


@pytest.mark.parametrize(
    "buffers",
    [
        [],
        [b"one"],
        [b""],
        [b"a", b"", b"bc"],
        [b"%d," % i for i in range(3000)],
        [bytes([i]) * (3 * MIB) for i in range(3)],
    ],
    ids=["none", "one", "empty", "some", "many", "large"],
)
def test_a_frame_comes_back_as_it_was_sent(buffers):
    with running(endpoint_of(Recorder())) as endpoint, call(endpoint) as channel:
        channel.send(b"header", buffers)
        header, body = channel.recv(PATIENCE)
        assert header == b"header"
        assert (b"" if body is None else bytes(body)) == b"".join(buffers)


@plain_only
def test_a_frame_is_whole_however_slowly_it_comes():
    with running(endpoint_of(Recorder())) as endpoint, call(endpoint) as channel:
        raw = socket.socket(fileno=os.dup(channel.fileno()))
        with raw:
            for byte in b"".join(encode_frame(b"drop", [b"by drop"])):
                raw.sendall(bytes([byte]))
        assert channel.recv(PATIENCE) == (b"drop", b"by drop")


def test_frames_of_one_peer_stay_in_order():
    with running(endpoint_of(Recorder())) as endpoint, call(endpoint) as channel:
        for i in range(500):
            channel.send(b"%d" % i, [bytes(i)])
        assert [int(channel.recv(PATIENCE).header) for _ in range(500)] == list(range(500))


def test_many_clients_are_served_at_once():
    with running(endpoint_of(Recorder())) as endpoint, contextlib.ExitStack() as stack:
        channels = [stack.enter_context(call(endpoint)) for _ in range(40)]
        for i, channel in enumerate(channels):
            channel.send(b"%d" % i, [bytes(1000 * i)])
        for i, channel in enumerate(channels):
            header, body = channel.recv(PATIENCE)
            assert (int(header), len(body or b"")) == (i, 1000 * i)


@pytest.mark.parametrize("size", [10, 20_000])
def test_a_busy_feeder_does_not_starve_another(size):
    held, go = threading.Event(), threading.Event()
    seen: queue.Queue[bytes] = queue.Queue()

    def script(peer: Peer, header: bytes, body: memoryview | None) -> None:
        if header == b"hold":
            held.set()
            go.wait(PATIENCE)
        else:
            seen.put(header)

    with running(endpoint_of(Recorder(script))) as endpoint, contextlib.ExitStack() as stack:
        holder, busy, quiet = (stack.enter_context(call(endpoint)) for _ in range(3))
        holder.send(b"hold")
        assert held.wait(PATIENCE)
        for _ in range(50):  # all of it waits at the endpoint while its loop is held
            busy.send(b"busy", [bytes(size)])
        for _ in range(3):
            quiet.send(b"quiet")
        go.set()
        order = [seen.get(timeout=PATIENCE) for _ in range(53)]
        assert sum(word == b"quiet" for word in order[:8]) == 3


def test_a_peer_that_stops_reading_stops_nobody_else():
    def script(peer: Peer, header: bytes, body: memoryview | None) -> None:
        if header == b"flood":
            for i in range(64):
                peer.send(b"%d" % i, [bytes([i]) * MIB])
        else:
            echo(peer, header, body)

    handler = Recorder(script)
    with running(endpoint_of(handler)) as endpoint, call(endpoint) as stuck:
        peer = handler.opened.get(timeout=PATIENCE)
        stuck.send(b"flood")
        with call(endpoint) as other:
            assert roundtrip(other, b"hello") == b"hello"
            assert on_loop(endpoint, lambda: peer.pending_bytes) > 0
            assert roundtrip(other, b"again") == b"again"
        for i in range(64):
            header, body = stuck.recv(PATIENCE)
            assert int(header) == i
            assert body == bytes([i]) * MIB
        assert roundtrip(stuck, b"done") == b"done"
        assert on_loop(endpoint, lambda: peer.pending_bytes) == 0


def test_a_send_to_a_busy_endpoint_goes_on_when_it_can():
    held, go = threading.Event(), threading.Event()

    def script(peer: Peer, header: bytes, body: memoryview | None) -> None:
        if header == b"hold":
            held.set()
            go.wait(PATIENCE)
        else:
            echo(peer, header, body)

    data = os.urandom(MIB) * 48
    with running(endpoint_of(Recorder(script))) as endpoint, call(endpoint) as channel:
        channel.send(b"hold")
        assert held.wait(PATIENCE)
        sender = threading.Thread(target=channel.send, args=(b"bulk", [data]))
        sender.start()
        assert sender.is_alive()  # far more than the sockets hold
        go.set()
        sender.join(PATIENCE)
        assert channel.recv(PATIENCE) == (b"bulk", data)


def test_ipv6_endpoints_are_reached():
    try:
        endpoint = endpoint_of(Recorder(), host="::1")
    except ClusterError:
        pytest.skip("this host has no IPv6")
    with running(endpoint), call(endpoint) as channel:
        assert endpoint.address.startswith("[::1]:")
        assert roundtrip(channel, b"six") == b"six"


def test_connections_answer_at_once_are_watched_and_are_not_inherited():
    with running(endpoint_of(Recorder())) as endpoint, call(endpoint) as channel:
        assert not os.get_inheritable(channel.fileno())
        with socket.socket(fileno=os.dup(channel.fileno())) as raw:
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


# --- closing


def test_close_writes_what_was_sent_first():
    def script(peer: Peer, header: bytes, body: memoryview | None) -> None:
        for i in range(24):
            peer.send(b"%d" % i, [bytes(MIB)])
        peer.close()
        peer.send(b"too late")

    handler = Recorder(script)
    with running(endpoint_of(handler)) as endpoint, call(endpoint) as channel:
        channel.send(b"bye")
        channel.send(b"never read")
        assert [int(channel.recv(PATIENCE).header) for _ in range(24)] == list(range(24))
        with pytest.raises(WorkerUnreachable, match="closed by the other end"):
            channel.recv(PATIENCE)
        peer = handler.ended.get(timeout=PATIENCE)
        assert peer.reason is None
        assert handler.errors.empty()


def test_frames_that_come_after_a_close_are_dropped():
    seen = []

    def script(peer: Peer, header: bytes, body: memoryview | None) -> None:
        seen.append(header)
        peer.close()

    handler = Recorder(script)
    with running(endpoint_of(handler)) as endpoint, call(endpoint) as channel:
        channel.send(b"first")
        channel.send(b"second")
        with pytest.raises(WorkerUnreachable):
            channel.recv(PATIENCE)
        channel.close()
        handler.ended.get(timeout=PATIENCE)
    assert seen == [b"first"]
    assert handler.ended.empty()


def test_an_orderly_close_gives_up_on_a_peer_that_reads_nothing():
    def script(peer: Peer, header: bytes, body: memoryview | None) -> None:
        peer.send(b"", [bytes(64 * MIB)])
        peer.close()

    clock, handler = HandClock(), Recorder(script)
    with running(endpoint_of(handler, clock=clock)) as endpoint, call(endpoint) as channel:
        channel.send(b"go")
        peer = handler.opened.get(timeout=PATIENCE)
        while on_loop(endpoint, lambda: peer.phase) is not Phase.FLUSHING:
            pass
        clock.now += 60
        endpoint.call_soon(lambda: None)
        assert handler.ended.get(timeout=PATIENCE) is peer
        assert on_loop(endpoint, lambda: (peer.phase, peer.pending_bytes)) == (Phase.CLOSED, 0)


def test_abort_loses_what_is_queued():
    def script(peer: Peer, header: bytes, body: memoryview | None) -> None:
        peer.send(b"lost", [bytes(64 * MIB)])
        peer.abort()
        assert handler.ended.empty()  # the handler is not entered from inside its own call

    handler = Recorder(script)
    with running(endpoint_of(handler)) as endpoint, call(endpoint) as channel:
        channel.send(b"go")
        with pytest.raises(WorkerUnreachable):
            channel.recv(PATIENCE)
        peer = handler.ended.get(timeout=PATIENCE)
        assert peer.pending_bytes == 0
        assert handler.errors.empty()


def test_both_ends_see_the_other_one_leave():
    handler = Recorder()
    with running(endpoint_of(handler)) as endpoint:
        stays = call(endpoint)
        with call(endpoint) as channel:
            assert roundtrip(channel, b"x") == b"x"
        gone = handler.ended.get(timeout=PATIENCE)
        assert isinstance(gone.reason, WorkerUnreachable)
        assert "by the other end" in str(gone.reason)
    with pytest.raises(WorkerUnreachable, match=f"connection to {endpoint.address} closed"):
        stays.recv(PATIENCE)
    assert handler.ended.get(timeout=PATIENCE).reason is None


@plain_only
def test_an_end_inside_a_frame_is_told_from_one_between_frames():
    handler = Recorder()
    with running(endpoint_of(handler)) as endpoint:
        channel = call(endpoint)
        with socket.socket(fileno=os.dup(channel.fileno())) as raw:
            raw.sendall(b"".join(encode_frame(b"half", [b"a frame"]))[:20])
        channel.close()
        assert "in the middle of a frame" in str(handler.ended.get(timeout=PATIENCE).reason)


@plain_only
def test_a_damaged_frame_closes_the_peer_and_is_reported():
    handler = Recorder()
    with running(endpoint_of(handler)) as endpoint, call(endpoint) as channel, call(endpoint) as other:
        with socket.socket(fileno=os.dup(channel.fileno())) as raw:
            raw.sendall(b"these bytes are not a frame")
        peer, error = handler.errors.get(timeout=PATIENCE)
        assert isinstance(error, ProtocolError)
        assert handler.ended.get(timeout=PATIENCE) is peer
        assert roundtrip(other, b"fine") == b"fine"


def test_frames_sent_just_before_a_stop_arrive():
    def script(peer: Peer, header: bytes, body: memoryview | None) -> None:
        for _ in range(16):
            peer.send(b"last", [bytes(MIB)])
        endpoint.stop()

    with running(endpoint_of(Recorder(script))) as endpoint, call(endpoint) as channel:
        channel.send(b"go")
        for _ in range(16):
            assert channel.recv(PATIENCE).header == b"last"


# --- errors of handlers


def test_a_failing_handler_loses_its_peer_and_nothing_else():
    def script(peer: Peer, header: bytes, body: memoryview | None) -> None:
        if header == b"bad":
            peer.send(b"sent before")
            raise ZeroDivisionError("boom")
        echo(peer, header, body)

    handler = Recorder(script)
    with running(endpoint_of(handler)) as endpoint, call(endpoint) as channel, call(endpoint) as other:
        channel.send(b"bad")
        assert channel.recv(PATIENCE).header == b"sent before"
        with pytest.raises(WorkerUnreachable):
            channel.recv(PATIENCE)
        peer, error = handler.errors.get(timeout=PATIENCE)
        assert isinstance(error, ZeroDivisionError)
        assert handler.ended.get(timeout=PATIENCE) is peer
        assert peer is not None
        assert peer.reason is error
        assert roundtrip(other, b"fine") == b"fine"


def test_a_failing_callback_is_reported_and_the_loop_goes_on():
    handler = Recorder()
    with running(endpoint_of(handler)) as endpoint:
        endpoint.call_soon(lambda: 1 // 0 and None)
        peer, error = handler.errors.get(timeout=PATIENCE)
        assert peer is None
        assert isinstance(error, ZeroDivisionError)
        assert on_loop(endpoint, lambda: "alive") == "alive"


def test_a_failing_error_hook_does_not_end_the_loop(caplog):
    class Hopeless(Recorder):
        def on_error(self, peer: Peer | None, error: BaseException) -> None:
            raise RuntimeError("even this")

    with running(endpoint_of(Hopeless())) as endpoint:
        endpoint.call_soon(lambda: 1 // 0 and None)
        assert on_loop(endpoint, lambda: "alive") == "alive"
    assert "even this" in caplog.text


def test_an_error_is_logged_unless_the_handler_takes_it(caplog):
    class Silent(Handler):
        def on_frame(self, peer: Peer, header: bytes, body: memoryview | None) -> None: ...

    with running(endpoint_of(Silent())) as endpoint:
        endpoint.call_soon(lambda: 1 // 0 and None)
        on_loop(endpoint, lambda: None)
    assert "ZeroDivisionError" in caplog.text


class Exhausted:
    """A listening socket for which the process has no descriptors left, until ``relieved``."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.relieved = False

    def accept(self) -> tuple[socket.socket, Any]:
        if not self.relieved:
            raise OSError(errno.EMFILE, "too many open files")
        return self.listener.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.listener, name)


@plain_only
def test_an_endpoint_out_of_descriptors_serves_on_and_accepts_later():
    clock, handler = HandClock(), Recorder()
    endpoint = endpoint_of(handler, clock=clock)
    exhausted = Exhausted(endpoint._listener)
    endpoint._listener = exhausted  # type: ignore[assignment]
    host, _, port = endpoint.address.rpartition(":")
    with running(endpoint), socket.create_connection((host, int(port)), timeout=PATIENCE) as caller:
        assert handler.crowded.get(timeout=PATIENCE).errno == errno.EMFILE
        for _ in range(5):
            on_loop(endpoint, lambda: None)
        assert handler.crowded.empty()  # it pauses: it does not try again on every turn
        assert handler.errors.empty()  # which is nobody's fault
        exhausted.relieved = True
        clock.now += 2
        endpoint.call_soon(lambda: None)
        assert caller.recv(68, socket.MSG_WAITALL)[:3] == b"BLH"


# --- calls and time


def test_call_soon_runs_on_the_loops_thread():
    with running(endpoint_of(Recorder())) as endpoint:
        assert on_loop(endpoint, threading.get_ident) != threading.get_ident()


def test_a_call_that_was_accepted_is_made_even_when_stopped():
    endpoint = endpoint_of(Recorder())
    made = []
    endpoint.call_soon(lambda: made.append(1))
    endpoint.stop()
    endpoint.run()
    assert made == [1]


def test_a_stopped_endpoint_accepts_no_calls():
    with running(endpoint_of(Recorder())) as endpoint:
        pass
    with pytest.raises(ClusterStopped):
        endpoint.call_soon(lambda: None)
    with pytest.raises(ClusterStopped):
        endpoint.connect(endpoint.address)
    with pytest.raises(ClusterStopped):
        endpoint.run()


def test_a_callback_that_calls_again_does_not_hold_up_peers():
    def spin() -> None:
        with contextlib.suppress(ClusterStopped):
            endpoint.call_soon(spin)

    with running(endpoint_of(Recorder())) as endpoint, call(endpoint) as channel:
        endpoint.call_soon(spin)
        assert roundtrip(channel, b"served") == b"served"


def test_timers_run_in_order_when_due_and_not_when_cancelled():
    clock = HandClock()
    with running(endpoint_of(Recorder(), clock=clock)) as endpoint:
        made: list[str] = []
        endpoint.call_later(20, lambda: made.append("second"))
        endpoint.call_later(10, lambda: made.append("first"))
        endpoint.call_later(30, lambda: made.append("third"))
        never = endpoint.call_later(15, lambda: made.append("never"))
        never.cancel()
        assert on_loop(endpoint, lambda: list(made)) == []
        clock.now += 25
        on_loop(endpoint, lambda: None)  # the turn that makes this call has looked at the clock
        assert on_loop(endpoint, lambda: list(made)) == ["first", "second"]


def test_a_timer_fires_by_itself():
    fired = threading.Event()
    with running(endpoint_of(Recorder())) as endpoint:
        endpoint.call_later(0.01, fired.set)
        assert fired.wait(PATIENCE)


def test_closing_an_endpoint_that_never_ran_frees_its_port():
    endpoint = endpoint_of(Recorder())
    port = int(endpoint.address.rpartition(":")[2])
    with pytest.raises(ClusterError, match="cannot listen"):
        Endpoint("127.0.0.1", port, credentials=CREDENTIALS, handler=Recorder())
    endpoint.close()
    Endpoint("127.0.0.1", port, credentials=CREDENTIALS, handler=Recorder()).close()


def test_an_endpoint_needs_a_secret():
    with pytest.raises(SecretRefused, match="empty"):
        Endpoint("127.0.0.1", credentials=Credentials(b""), handler=Recorder())


# --- calling out


def test_an_endpoint_talks_to_another_through_its_own_loop():
    heard: queue.Queue[bytes] = queue.Queue()
    with running(endpoint_of(Recorder())) as coordinator:
        worker = endpoint_of(Recorder(lambda peer, header, body: heard.put(header)))
        peer = worker.connect(coordinator.address)
        peer.send(b"sent before the loop runs")
        with running(worker):
            assert heard.get(timeout=PATIENCE) == b"sent before the loop runs"
            later = worker.connect(coordinator.address)  # from another thread than the loop's
            worker.call_soon(lambda: later.send(b"sent from the loop"))
            assert heard.get(timeout=PATIENCE) == b"sent from the loop"


def test_the_loss_of_a_called_endpoint_is_told():
    handler = Recorder()
    with running(endpoint_of(handler)) as worker:
        with running(endpoint_of(Recorder())) as coordinator:
            peer = worker.connect(coordinator.address)
        assert handler.ended.get(timeout=PATIENCE) is peer
        assert isinstance(peer.reason, WorkerUnreachable)
        with pytest.raises(WorkerUnreachable, match="no connection to"):
            worker.connect(coordinator.address)


def test_two_loops_call_each_other_at_the_same_time_without_waiting():
    heard: queue.Queue[tuple[str, bytes]] = queue.Queue()
    handlers = {
        name: Recorder(lambda peer, header, body, name=name: heard.put((name, header)))  # type: ignore[misc]
        for name in ("a", "b")
    }
    with running(endpoint_of(handlers["a"])) as a, running(endpoint_of(handlers["b"])) as b:

        def meet(here: Endpoint, there: Endpoint) -> None:
            peer = here.connect_soon(there.address)
            peer.send(b"held back")
            peer.send(b"until open", [bytes(9 * MIB)])

        a.call_soon(lambda: meet(a, b))
        b.call_soon(lambda: meet(b, a))
        got = [heard.get(timeout=PATIENCE) for _ in range(4)]
        for name in ("a", "b"):
            assert [header for who, header in got if who == name] == [b"held back", b"until open"]
            assert handlers[name].opened.get(timeout=PATIENCE).phase is Phase.OPEN


def test_a_call_that_is_closed_before_it_is_open_still_delivers():
    heard: queue.Queue[bytes] = queue.Queue()
    with (
        running(endpoint_of(Recorder(lambda peer, header, body: heard.put(header)))) as there,
        running(endpoint_of(Recorder())) as here,
    ):

        def tell() -> None:
            peer = here.connect_soon(there.address)
            peer.send(b"fire and forget")
            peer.close()

        here.call_soon(tell)
        assert heard.get(timeout=PATIENCE) == b"fire and forget"


def test_a_call_to_nobody_ends_with_a_reason():
    nobody = endpoint_of(Recorder())
    nobody.close()
    handler = Recorder()
    with running(endpoint_of(handler)) as endpoint:
        peer = on_loop(endpoint, lambda: endpoint.connect_soon(nobody.address))
        assert handler.ended.get(timeout=PATIENCE) is peer
        assert isinstance(peer.reason, WorkerUnreachable)
        assert handler.errors.empty()
        assert handler.opened.empty()


def test_a_call_with_another_secret_ends_with_a_reason():
    handler = Recorder()
    other = Endpoint("127.0.0.1", credentials=other_secret(), handler=Recorder())
    with running(other), running(endpoint_of(handler)) as endpoint:
        with pytest.raises(SecretRefused):
            endpoint.connect(other.address)
        peer = on_loop(endpoint, lambda: endpoint.connect_soon(other.address))
        assert handler.ended.get(timeout=PATIENCE) is peer
        assert isinstance(peer.reason, SecretRefused)


def test_a_call_to_one_who_never_answers_is_given_up():
    clock, handler = HandClock(), Recorder()
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        running(endpoint_of(handler, clock=clock)) as endpoint,
    ):
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        peer = on_loop(endpoint, lambda: endpoint.connect_soon(address, timeout=7))
        clock.now += 8
        endpoint.call_soon(lambda: None)
        assert handler.ended.get(timeout=PATIENCE) is peer
        assert peer.reason is not None
        assert isinstance(peer.reason, Unanswered)
