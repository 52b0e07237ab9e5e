"""An attacker at the transport: damaged, endless, slow, replayed and reflected words; the seed is the parameter."""

import contextlib
import os
import queue
import random  # noqa: TID251 - seeded by each test
import socket
import struct
import threading
from pathlib import Path

import pytest
from tests.patience import PATIENCE
from tests.unit.transport_kit import SECRET, credentials_of, serving

from bedload.core.errors import BedloadError, ProtocolError, SecretRefused
from bedload.transport import (
    Channel,
    ClientHandshake,
    Credentials,
    Endpoint,
    FrameReader,
    Handler,
    Peer,
    ServerHandshake,
    encode_frame,
    parse_address,
    tls,
)

SEEDS = range(40)


@pytest.fixture(params=["plain", "tls"])
def credentials(request: pytest.FixtureRequest) -> Credentials:
    return credentials_of(request.param)


class Echo(Handler):
    def __init__(self) -> None:
        self.opened = 0
        self.served: list[bytes] = []
        self.ended: queue.Queue[Peer] = queue.Queue()

    def on_open(self, peer: Peer) -> None:
        self.opened += 1

    def on_frame(self, peer: Peer, header: bytes, body: memoryview | None) -> None:
        self.served.append(header)
        peer.send(header, () if body is None else (body,))

    def on_close(self, peer: Peer) -> None:
        self.ended.put(peer)

    def on_error(self, peer: Peer | None, error: BaseException) -> None: ...


def raw(endpoint: Endpoint, credentials: Credentials) -> socket.socket:
    """A connection whose TLS, if any, is up, and that has proven nothing."""
    sock = socket.create_connection(parse_address(endpoint.address), timeout=PATIENCE)
    if not credentials.encrypted:
        return sock
    secure = tls.wrap(sock, credentials, server=False)
    secure.do_handshake()
    return secure


def read_to_the_end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while sock.recv(65536):
            pass


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def assert_serves(endpoint: Endpoint, credentials: Credentials) -> None:
    with Channel.connect(endpoint.address, credentials, PATIENCE) as friend:
        friend.send(b"friend", [b"body"])
        assert friend.recv(PATIENCE) == (b"friend", b"body")


def damaged(chance: random.Random, words: bytes) -> bytes:
    """The words with some of them changed, lost, doubled or cut off."""
    data = bytearray(words)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data)) if data else 0
        match chance.randrange(5):
            case 0 if data:
                data[at] ^= 1 << chance.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data[at:at] = chance.randbytes(chance.randint(1, 40))
            case 3:
                data += data[: chance.randint(1, 100)]
            case _:
                del data[at : at + chance.randint(1, 8)]
    return bytes(data)


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_handshakes_open_nothing_and_leave_nothing_behind(seed, credentials):
    chance = random.Random(seed)
    with serving(credentials, Echo()) as (endpoint, handler):
        assert_serves(endpoint, credentials)
        handler.ended.get(timeout=PATIENCE)
        before = descriptors()
        for _ in range(10):
            sock = raw(endpoint, credentials)
            client = ClientHandshake(SECRET)
            with sock, contextlib.suppress(OSError):
                sock.sendall(client.start())
                greeting = b""
                while len(greeting) < 68:
                    greeting += sock.recv(68 - len(greeting))
                answer = client.receive(greeting).reply
                wrong = damaged(chance, answer)
                if wrong.startswith(answer):
                    wrong = b"\0" + wrong  # the same answer with more behind it would be a right one
                for piece in (wrong[i : i + 7] for i in range(0, len(wrong), 7)):
                    sock.sendall(piece)
                sock.shutdown(socket.SHUT_WR)
                read_to_the_end(sock)
        assert handler.opened == 1
        assert_serves(endpoint, credentials)
        handler.ended.get(timeout=PATIENCE)
        gone: queue.Queue[int] = queue.Queue()
        while descriptors() > before:  # what was refused last may still be closing
            endpoint.call_soon(lambda: gone.put(1))
            gone.get(timeout=PATIENCE)


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_frames_of_a_friend_end_its_connection_alone(seed, credentials):
    chance = random.Random(seed)
    with (
        serving(credentials, Echo()) as (endpoint, handler),
        Channel.connect(endpoint.address, credentials, PATIENCE) as other,
    ):
        for _ in range(5):
            channel = Channel.connect(endpoint.address, credentials, PATIENCE)
            words = b"".join(
                view
                for i in range(chance.randint(1, 4))
                for view in encode_frame(b"frame %d" % i, [chance.randbytes(chance.randint(0, 300))])
            )
            sock = channel._sock
            with channel, contextlib.suppress(OSError):
                sock.settimeout(PATIENCE)
                sock.sendall(damaged(chance, words))
                socket.socket.shutdown(sock, socket.SHUT_WR)
                read_to_the_end(sock)
            handler.ended.get(timeout=PATIENCE)
        other.send(b"fine")
        assert other.recv(PATIENCE).header == b"fine"
        assert all(header.startswith((b"frame", b"fine")) or len(header) < 400 for header in handler.served)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reader_of_damaged_frames_gives_frames_or_an_error(seed):
    chance = random.Random(seed)
    for _ in range(50):
        words = b"".join(
            encode_frame(chance.randbytes(chance.randint(0, 60)), [chance.randbytes(chance.randint(0, 90))])
        )
        stream, reader = damaged(chance, words * 3), FrameReader()
        with contextlib.suppress(ProtocolError):
            while stream:
                space = reader.space()
                size = min(len(space), len(stream), chance.randint(1, 50))
                space[:size] = stream[:size]
                stream = stream[size:]
                reader.filled(size)


def test_a_length_that_is_a_lie_takes_no_memory():
    reader = FrameReader()
    for header, body in ((1 << 31, 0), (0, 1 << 62), (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)):
        reader.space()[:] = struct.pack("<4sIQ", b"BLF1", header, body)
        with pytest.raises(ProtocolError, match="more than one may have"):
            reader.filled(16)
        reader = FrameReader()


def test_a_slow_stranger_holds_up_nobody_and_is_cut(credentials):
    from tests.unit.transport_kit import HandClock

    clock, handler = HandClock(), Echo()
    endpoint = Endpoint("127.0.0.1", credentials=credentials, handler=handler, clock=clock)
    thread = threading.Thread(target=endpoint.run)
    thread.start()
    try:
        with socket.create_connection(parse_address(endpoint.address), timeout=PATIENCE) as slow:
            first = b"\x16\x03\x01" if credentials.encrypted else b"BLH"
            for byte in first:
                slow.sendall(bytes([byte]))
                assert_serves(endpoint, credentials)
                clock.now += 1.0
            clock.now += 10.0
            endpoint.call_soon(lambda: None)
            read_to_the_end(slow)
    finally:
        endpoint.stop()
        thread.join(PATIENCE)


def test_a_recorded_conversation_replayed_opens_nothing():
    plain = credentials_of("plain")
    said = bytearray()
    with serving(plain, Echo()) as (endpoint, handler):
        client = ClientHandshake(SECRET)
        with raw(endpoint, plain) as sock:
            said += client.start()
            sock.sendall(client.start())
            answer = client.receive(sock.recv(68, socket.MSG_WAITALL)).reply
            order = b"".join(encode_frame(b"order"))
            said += answer + order
            sock.sendall(answer + order)
            read = sock.recv(1)
            assert read
        handler.ended.get(timeout=PATIENCE)
        with raw(endpoint, plain) as sock:
            with contextlib.suppress(OSError):
                sock.sendall(said)
            read_to_the_end(sock)
        assert handler.served == [b"order"]
        assert handler.opened == 1


def test_a_proof_reflected_between_two_endpoints_opens_neither():
    plain = credentials_of("plain")
    with serving(plain, Echo()) as (one, at_one), serving(plain, Echo()) as (two, at_two):
        # Somebody without the secret has two endpoints of the cluster prove themselves to each other: both are servers,
        # and what a server says proves nothing that a client has to.
        with raw(one, plain) as first, raw(two, plain) as second:
            with contextlib.suppress(OSError):
                first.sendall(second.recv(68, socket.MSG_WAITALL))
                second.sendall(first.recv(68, socket.MSG_WAITALL))
                first.sendall(bytes(32))
                second.sendall(bytes(32))
            read_to_the_end(first)
            read_to_the_end(second)
        assert (at_one.opened, at_two.opened) == (0, 0)


def test_a_servers_own_words_prove_nothing_to_a_client():
    client, server = ClientHandshake(SECRET), ServerHandshake(SECRET)
    answer = client.receive(server.start())
    verdict = server.receive(client.start() + answer.reply)
    assert verdict.done
    again = ClientHandshake(SECRET)
    again.receive(ServerHandshake(SECRET).start())
    assert isinstance(again.receive(verdict.reply).error, SecretRefused)


def test_a_connection_of_one_attachment_is_none_of_another(credentials):
    other = Credentials.fresh(encrypted=credentials.encrypted)
    with serving(credentials, Echo()) as (endpoint, handler):
        with pytest.raises(BedloadError):
            Channel.connect(endpoint.address, other, PATIENCE)
        assert handler.opened == 0


@pytest.mark.parametrize("failing", ["nobody", "mute", "stranger", "another attachment"])
def test_a_call_that_fails_leaves_no_descriptor(failing, credentials):
    with contextlib.ExitStack() as stack:
        wanted = credentials
        if failing == "another attachment":
            address = stack.enter_context(serving(Credentials.fresh(encrypted=credentials.encrypted), Echo()))[
                0
            ].address
        else:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            address = f"127.0.0.1:{server.getsockname()[1]}"
            if failing == "nobody":
                server.close()
        if failing == "stranger":

            def greet() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        sock, _ = server.accept()
                        sock.sendall(b"220 mail.example.org ESMTP\r\n" * 20)
                        sock.close()

            threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(BedloadError):
            Channel.connect(address, wanted, 0.3)  # loads what is loaded once
        before = descriptors()
        for _ in range(5):
            with pytest.raises(BedloadError):
                Channel.connect(address, wanted, 0.3)
        if failing in ("nobody", "mute"):
            assert descriptors() == before
        else:  # the other end is in this process too, and closes when it comes to it
            for _ in range(100_000):
                if descriptors() <= before + 2:
                    break
                os.sched_yield()
            assert descriptors() <= before + 2
