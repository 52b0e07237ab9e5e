"""Callers that have no business at an endpoint, and endpoints that are none: over real sockets."""

import contextlib
import queue
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest
from tests.patience import PATIENCE
from tests.unit.transport_kit import SECRET, HandClock, credentials_of

from bedload.core.errors import ProtocolError, SecretRefused, Unanswered, VersionMismatch, WorkerUnreachable
from bedload.transport import (
    PROTOCOL_VERSION,
    Channel,
    Credentials,
    Endpoint,
    Handler,
    Peer,
    ServerHandshake,
    encode_frame,
    tls,
    wait,
)

CREDENTIALS = credentials_of("plain")


@pytest.fixture(params=["plain", "tls"], autouse=True)
def credentials(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Credentials:
    """Every test runs on plain connections and on encrypted ones."""
    chosen = credentials_of(request.param)
    monkeypatch.setattr(sys.modules[__name__], "CREDENTIALS", chosen)
    return chosen


plain_only = pytest.mark.parametrize("credentials", ["plain"], indirect=True)
"""For tests that write and read the bytes of the wire themselves."""


class Guard(Handler):
    """Echoes frames; notes who came in and who was refused."""

    def __init__(self) -> None:
        self.served: list[bytes] = []
        self.opened: list[Peer] = []
        self.ended: list[Peer] = []
        self.errors: queue.Queue[BaseException] = queue.Queue()

    def on_open(self, peer: Peer) -> None:
        self.opened.append(peer)

    def on_frame(self, peer: Peer, header: bytes, body: memoryview | None) -> None:
        self.served.append(header)
        peer.send(header)

    def on_close(self, peer: Peer) -> None:
        self.ended.append(peer)

    def on_error(self, peer: Peer | None, error: BaseException) -> None:
        self.errors.put(error)


@contextlib.contextmanager
def guarded(guard: Guard, clock: HandClock | None = None, version: str = PROTOCOL_VERSION) -> Iterator[Endpoint]:
    endpoint = Endpoint(
        "127.0.0.1", credentials=CREDENTIALS, handler=guard, clock=clock, version=version, handshake_seconds=10
    )
    thread = threading.Thread(target=endpoint.run)
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@contextlib.contextmanager
def stranger(endpoint: Endpoint) -> Iterator[socket.socket]:
    """A raw connection that has read the greeting."""
    host, _, port = endpoint.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as sock:
        assert len(sock.recv(68, socket.MSG_WAITALL)) == 68
        yield sock


def is_dropped(sock: socket.socket) -> bool:
    """Read to the end of the connection; raises if that does not come."""
    try:
        while sock.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def assert_still_serves(endpoint: Endpoint, guard: Guard) -> None:
    with Channel.connect(endpoint.address, CREDENTIALS, PATIENCE) as channel:
        channel.send(b"friend")
        assert channel.recv(PATIENCE).header == b"friend"
    assert guard.served == [b"friend"]
    assert len(guard.opened) == 1


def test_a_wrong_secret_is_refused_and_both_ends_say_so():
    guard = Guard()
    with guarded(guard) as endpoint:
        with pytest.raises(SecretRefused, match=endpoint.address):
            Channel.connect(endpoint.address, msgspec.structs.replace(CREDENTIALS, secret=b"wrong"), PATIENCE)
        assert isinstance(guard.errors.get(timeout=PATIENCE), SecretRefused)
        assert_still_serves(endpoint, guard)


@plain_only
def test_no_secret_is_refused():
    guard = Guard()
    with guarded(guard) as endpoint:
        with pytest.raises(SecretRefused, match="empty"):
            Channel.connect(endpoint.address, Credentials(b""), PATIENCE)
        with stranger(endpoint) as sock:
            sock.sendall(b"BLH1" + bytes(96))
            assert sock.recv(37, socket.MSG_WAITALL)[:5] == b"BLH1-"
            assert is_dropped(sock)
        assert isinstance(guard.errors.get(timeout=PATIENCE), SecretRefused)
        assert_still_serves(endpoint, guard)


@plain_only
@pytest.mark.parametrize(
    "words",
    [
        b"\x00\xff" * 50_000,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"".join(encode_frame(b"friend", [b"without a handshake"])),
        b"BLH1" + bytes(100_000),
    ],
    ids=["garbage", "http", "tls", "frame", "flood after a forged answer"],
)
def test_strangers_are_dropped_unheard(words):
    guard = Guard()
    with guarded(guard) as endpoint:
        with stranger(endpoint) as sock:
            with contextlib.suppress(ConnectionError):
                sock.sendall(words)
            assert is_dropped(sock)
        assert isinstance(guard.errors.get(timeout=PATIENCE), ProtocolError | SecretRefused)
        assert_still_serves(endpoint, guard)


@plain_only
@pytest.mark.parametrize("said", [b"", b"BLH1 and then nothing"], ids=["silent", "half said"])
def test_a_handshake_that_does_not_end_is_cut_in_time(said):
    clock, guard = HandClock(), Guard()
    with guarded(guard, clock) as endpoint:
        with stranger(endpoint) as sock:
            sock.sendall(said)
            clock.now += 11
            endpoint.call_soon(lambda: None)
            assert is_dropped(sock)
        error = guard.errors.get(timeout=PATIENCE)
        assert isinstance(error, WorkerUnreachable)
        assert isinstance(error, Unanswered)
        assert_still_serves(endpoint, guard)


def test_time_does_not_cut_who_has_proven_itself():
    clock, guard = HandClock(), Guard()
    with guarded(guard, clock) as endpoint, Channel.connect(endpoint.address, CREDENTIALS, PATIENCE) as channel:
        clock.now += 1000
        endpoint.call_soon(lambda: None)
        channel.send(b"still here")
        assert channel.recv(PATIENCE).header == b"still here"
        assert guard.errors.empty()


@plain_only
def test_a_caller_that_leaves_before_proving_itself_is_nobodys_business():
    guard = Guard()
    with guarded(guard) as endpoint:
        with stranger(endpoint):
            pass
        assert_still_serves(endpoint, guard)
    assert guard.errors.empty()
    assert len(guard.ended) == 1


def test_different_versions_are_named_at_both_ends():
    guard = Guard()
    with guarded(guard, version="2.0") as endpoint:
        with pytest.raises(VersionMismatch, match=r"version 1\.9 .* version 2\.0"):
            Channel.connect(endpoint.address, CREDENTIALS, PATIENCE, version="1.9")
        error = guard.errors.get(timeout=PATIENCE)
        assert isinstance(error, VersionMismatch)
        assert (error.ours, error.theirs) == ("2.0", "1.9")
        assert guard.opened == []


# --- channels to what is no endpoint


@contextlib.contextmanager
def acting(play: Callable[[socket.socket], None], *, encrypted: bool = True, calls: int = 1) -> Iterator[str]:
    """An address where ``play`` is given the first connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(calls):
                sock, _ = server.accept()
                sock.settimeout(PATIENCE)
                if encrypted and CREDENTIALS.encrypted:
                    sock = tls.wrap(sock, CREDENTIALS, server=True)
                    sock.do_handshake()
                with sock:
                    play(sock)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def welcome(sock: socket.socket) -> None:
    """Play the server's half of the handshake."""
    handshake = ServerHandshake(SECRET)
    sock.sendall(handshake.start())
    step = handshake.receive(sock.recv(handshake.wanted))
    while not step.done:
        assert step.error is None
        step = handshake.receive(sock.recv(handshake.wanted))
    sock.sendall(step.reply)


def test_a_channel_to_nobody_is_unreachable():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(WorkerUnreachable, match=address):
        Channel.connect(address, CREDENTIALS, PATIENCE)


def test_a_channel_to_one_who_never_speaks_times_out():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with pytest.raises(WorkerUnreachable) as caught:
            Channel.connect(f"127.0.0.1:{server.getsockname()[1]}", CREDENTIALS, timeout=0.05)
        assert isinstance(caught.value, Unanswered)


def test_a_channel_to_another_kind_of_server_says_so():
    web = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with (
        acting(lambda sock: sock.sendall(web), encrypted=False) as address,
        pytest.raises(ProtocolError, match=r"check the addr"),
    ):
        Channel.connect(address, CREDENTIALS, PATIENCE)


def test_a_channel_to_one_who_hangs_up_says_so():
    with (
        acting(lambda sock: None, encrypted=False, calls=4) as address,
        pytest.raises(WorkerUnreachable, match="during the handshake"),
    ):
        Channel.connect(address, CREDENTIALS, PATIENCE)


def test_a_channel_reports_damage_and_closes():
    def play(sock: socket.socket) -> None:
        welcome(sock)
        sock.sendall(b"these bytes are not a frame")

    with acting(play) as address, Channel.connect(address, CREDENTIALS, PATIENCE) as channel:
        with pytest.raises(ProtocolError, match=address):
            channel.recv(PATIENCE)
        assert channel.closed
        with pytest.raises(WorkerUnreachable, match="earlier at this end"):
            channel.send(b"x")


def test_a_time_out_loses_no_part_of_a_frame():
    half = threading.Event()
    frame = b"".join(encode_frame(b"head", [b"body"]))

    def play(sock: socket.socket) -> None:
        welcome(sock)
        sock.sendall(frame[:19])
        half.wait(PATIENCE)
        sock.sendall(frame[19:])

    with acting(play) as address, Channel.connect(address, CREDENTIALS, PATIENCE) as channel:
        for timeout in (0.01, 0):
            with pytest.raises(WorkerUnreachable) as caught:
                channel.recv(timeout)
            assert isinstance(caught.value, Unanswered)
            assert not channel.closed
        half.set()
        assert channel.recv() == (b"head", b"body")


def test_a_channel_tells_an_end_inside_a_frame():
    def play(sock: socket.socket) -> None:
        welcome(sock)
        sock.sendall(b"".join(encode_frame(b"head", [b"body"]))[:-1])

    with (
        acting(play) as address,
        Channel.connect(address, CREDENTIALS, PATIENCE) as channel,
        pytest.raises(WorkerUnreachable, match="in the middle of a frame"),
    ):
        channel.recv(PATIENCE)


def test_a_send_to_one_who_left_is_unreachable():
    def play(sock: socket.socket) -> None:
        welcome(sock)

    with acting(play) as address:
        channel = Channel.connect(address, CREDENTIALS, PATIENCE)
    assert wait([channel], PATIENCE) == [channel]
    body = [bytes(1 << 20)] * 64  # more than the sockets hold: it cannot all go before the end is noticed
    with pytest.raises(WorkerUnreachable, match=f"connection to {address} closed"):
        channel.send(b"", body)
    assert channel.closed


def test_readable_channels_are_found_in_order():
    with guarded(Guard()) as endpoint, contextlib.ExitStack() as stack:
        channels = [stack.enter_context(Channel.connect(endpoint.address, CREDENTIALS, PATIENCE)) for _ in range(3)]
        first, second, third = channels
        assert wait(channels, 0) == []
        assert not second.poll()
        second.send(b"x")
        assert wait(channels, PATIENCE) == [second]
        assert second.poll()
        third.close()
        assert wait(channels, PATIENCE) == [second, third]
        assert second.recv(PATIENCE) == (b"x", None)
        assert not second.poll()
        assert wait([first], 0) == []
    assert third.fileno() == -1


def test_the_end_of_a_connection_is_readable():
    with guarded(Guard()) as endpoint:
        channel = Channel.connect(endpoint.address, CREDENTIALS, PATIENCE)
    with channel:
        assert wait([channel], PATIENCE) == [channel]
        assert channel.poll()
