"""Encrypted connections: who is taken, who is refused and told why, and that nobody in between reads or alters."""

import contextlib
import copy
import io
import pickle
import queue
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest
from rich.console import Console
from tests.patience import PATIENCE
from tests.unit.transport_kit import SECRET, credentials_of, serving

from bedload.core.errors import BedloadError, ProtocolError, SecretRefused, Unanswered, WorkerUnreachable
from bedload.transport import (
    Channel,
    Credentials,
    Endpoint,
    Handler,
    Peer,
    ServerHandshake,
    encode_frame,
    is_loopback,
    parse_address,
    tls,
    wait,
)

PLAIN, TLS = credentials_of("plain"), credentials_of("tls")


def other_certificate() -> Credentials:
    fresh = Credentials.fresh(encrypted=True)
    return Credentials(SECRET, fresh.certificate, fresh.key)


class Echo(Handler):
    def __init__(self) -> None:
        self.served: list[bytes] = []
        self.ended: queue.Queue[Peer] = queue.Queue()
        self.errors: queue.Queue[BaseException] = queue.Queue()

    def on_frame(self, peer: Peer, header: bytes, body: memoryview | None) -> None:
        self.served.append(header)
        for _ in range(int(header) if header.isdigit() else 1):
            peer.send(header, () if body is None else (body,))

    def on_close(self, peer: Peer) -> None:
        self.ended.put(peer)

    def on_error(self, peer: Peer | None, error: BaseException) -> None:
        self.errors.put(error)


def why_not(endpoint: Endpoint, credentials: Credentials, kind: str) -> BaseException:
    """The error of a caller, by a channel or from another loop."""
    if kind == "channel":
        with pytest.raises(BedloadError) as caught:
            Channel.connect(endpoint.address, credentials, PATIENCE)
        return caught.value
    with serving(credentials, Echo()) as (caller, handler):
        caller.call_soon(lambda: caller.connect_soon(endpoint.address, PATIENCE) and None)
        reason = handler.ended.get(timeout=PATIENCE).reason
        assert reason is not None
        return reason


@pytest.mark.parametrize("kind", ["channel", "loop"])
@pytest.mark.parametrize(
    ("server", "client", "at_client", "at_server"),
    [
        (TLS, other_certificate(), (SecretRefused, "not have this cluster's certificate"), (SecretRefused, "refused")),
        (TLS, PLAIN, (ProtocolError, "takes encrypted connections only"), (ProtocolError, "does not encrypt")),
        (PLAIN, TLS, (ProtocolError, "does not encrypt, and this one does"), (ProtocolError, "a caller encrypts")),
        (
            TLS,
            msgspec.structs.replace(TLS, secret=b"another"),
            (SecretRefused, "refused this cluster's secret"),
            (SecretRefused, "does not have this cluster's secret"),
        ),
    ],
    ids=["another certificate", "plain caller", "plain server", "another secret"],
)
def test_both_ends_say_why_they_do_not_go_together(server, client, at_client, at_server, kind):
    with serving(server, Echo()) as (endpoint, handler):
        error = why_not(endpoint, client, kind)
        assert isinstance(error, at_client[0])
        assert at_client[1] in str(error)
        assert endpoint.address in str(error)
        heard = handler.errors.get(timeout=PATIENCE)
        assert isinstance(heard, at_server[0])
        assert at_server[1] in str(heard)
        with Channel.connect(endpoint.address, server, PATIENCE) as friend:
            friend.send(b"fine")
            assert friend.recv(PATIENCE).header == b"fine"


def raw_tls(endpoint: Endpoint, prepare: Callable[[ssl.SSLContext], None]) -> bytes:
    """What a caller hears that believes every server, after the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    prepare(context)
    with (
        socket.create_connection(parse_address(endpoint.address), timeout=PATIENCE) as sock,
        context.wrap_socket(sock) as secure,
    ):
        return secure.recv(100)


def test_a_caller_without_a_certificate_is_refused():
    with serving(TLS, Echo()) as (endpoint, handler):
        with pytest.raises(ssl.SSLError, match=r"(?i)certificate required"):
            raw_tls(endpoint, lambda context: None)
        assert "showed no certificate" in str(handler.errors.get(timeout=PATIENCE))
        assert handler.served == []


def test_a_caller_with_a_certificate_of_its_own_is_refused():
    with serving(TLS, Echo()) as (endpoint, handler):
        stranger = other_certificate()

        def show(context: ssl.SSLContext) -> None:
            with tls._file_of(f"{stranger.certificate}{stranger.key}") as path:
                context.load_cert_chain(path)

        with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
            raw_tls(endpoint, show)
        assert isinstance(handler.errors.get(timeout=PATIENCE), SecretRefused)


def test_an_older_tls_is_refused():
    def old(context: ssl.SSLContext) -> None:
        context.maximum_version = ssl.TLSVersion.TLSv1_2

    with serving(TLS, Echo()) as (endpoint, handler):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            raw_tls(endpoint, old)
        assert isinstance(handler.errors.get(timeout=PATIENCE), ProtocolError)


def test_many_frames_in_one_record_are_all_seen():
    with serving(TLS, Echo()) as (endpoint, _), Channel.connect(endpoint.address, TLS, PATIENCE) as channel:
        channel.send(b"300")  # it is answered 300 times at once: many frames to a record
        got = 0
        while got < 300:
            assert wait([channel], PATIENCE) == [channel]
            assert channel.recv(PATIENCE).header == b"300"
            got += 1
        assert not channel.poll()


def test_an_endpoint_sees_the_frames_that_its_tls_holds():
    with serving(TLS, Echo()) as (endpoint, handler), Channel.connect(endpoint.address, TLS, PATIENCE) as channel:
        # One record with 50 frames: after the first read nothing of them is left for a selector to see.
        channel._sock.sendall(b"".join(view for i in range(50) for view in encode_frame(b"x%d" % i)))
        assert [channel.recv(PATIENCE).header for _ in range(50)] == [b"x%d" % i for i in range(50)]
        assert len(handler.served) == 50


def test_a_channel_sees_the_frames_that_its_tls_holds():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            sock = tls.wrap(server.accept()[0], TLS, server=True)
            sock.settimeout(PATIENCE)
            sock.do_handshake()
            handshake = ServerHandshake(SECRET)
            sock.sendall(handshake.start())
            while not (step := handshake.receive(sock.recv(handshake.wanted))).done:
                assert step.error is None
            sock.sendall(step.reply)
            sock.sendall(b"".join(view for i in range(50) for view in encode_frame(b"%d" % i)))  # one record
            read.wait(PATIENCE)
            sock.close()

        read = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        with Channel.connect(f"127.0.0.1:{server.getsockname()[1]}", TLS, PATIENCE) as channel:
            for i in range(50):
                assert wait([channel], PATIENCE) == [channel]
                assert channel.poll()
                assert channel.recv(PATIENCE).header == b"%d" % i
            assert not channel.poll()
        read.set()
        thread.join(PATIENCE)


# --- somebody in between


@contextlib.contextmanager
def between(target: str, alter: Callable[[int, bytes], bytes], size: int = 65536) -> Iterator[str]:
    """A proxy of one connection; ``alter`` sees the bytes from the caller, with how many came before."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ends: list[socket.socket] = []

        def pump(source: socket.socket, sink: socket.socket, change: Callable[[int, bytes], bytes]) -> None:
            seen = 0
            with contextlib.suppress(OSError):
                while data := source.recv(size):
                    sink.sendall(change(seen, data))
                    seen += len(data)
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

        def serve() -> None:
            near, _ = server.accept()
            far = socket.create_connection(parse_address(target), timeout=PATIENCE)
            ends.extend((near, far))
            back = threading.Thread(target=pump, args=(far, near, lambda _, data: data))
            back.start()
            pump(near, far, alter)
            back.join(PATIENCE)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        for end in ends:
            end.close()


def test_frames_pass_one_who_only_carries_them_in_small_pieces():
    with (
        serving(TLS, Echo()) as (endpoint, _),
        between(endpoint.address, lambda _, data: data, 7) as proxy,
        Channel.connect(proxy, TLS, PATIENCE) as channel,
    ):
        body = bytes(range(256)) * 1000
        channel.send(b"echo", [body])
        assert channel.recv(PATIENCE) == (b"echo", body)


@pytest.mark.parametrize("flipped", [5, 60, 300, 900, 5000])
def test_who_flips_a_bit_on_the_way_is_noticed(flipped):
    def flip(seen: int, data: bytes) -> bytes:
        at = flipped - seen
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] if 0 <= at < len(data) else data

    def talk(address: str) -> None:
        with Channel.connect(address, TLS, PATIENCE) as channel:
            channel.send(b"secret order", [bytes(10_000)])
            channel.recv(PATIENCE)

    handler = Echo()
    with serving(TLS, handler) as (endpoint, _), between(endpoint.address, flip) as proxy:
        with pytest.raises((WorkerUnreachable, ProtocolError, SecretRefused)):
            talk(proxy)
        assert b"secret order" not in handler.served


def test_nothing_of_a_frame_can_be_read_on_the_way():
    heard = bytearray()

    def listen(_: int, data: bytes) -> bytes:
        heard.extend(data)
        return data

    with (
        serving(TLS, Echo()) as (endpoint, _),
        between(endpoint.address, listen) as proxy,
        Channel.connect(proxy, TLS, PATIENCE) as channel,
    ):
        channel.send(b"hush", [b"a secret of ours " * 100])
        assert channel.recv(PATIENCE).header == b"hush"
    assert b"hush" not in heard
    assert b"a secret of ours" not in heard
    assert b"BLH1" not in heard


# --- credentials


def test_credentials_show_nothing_of_themselves():
    assert TLS.key is not None
    console = Console(file=io.StringIO(), width=10_000)
    console.print(TLS, [TLS])
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    for shown in (repr(TLS), str(TLS), f"{TLS}", repr([TLS]), printed):
        for part in (SECRET.decode(), TLS.key[40:60], str(TLS.certificate)[40:60]):
            assert part not in shown


@pytest.mark.parametrize("credentials", [PLAIN, TLS], ids=["plain", "tls"])
def test_credentials_are_carried_by_pickle_and_json(credentials):
    assert pickle.loads(pickle.dumps(credentials)) == credentials
    assert msgspec.json.decode(msgspec.json.encode(credentials), type=Credentials) == credentials
    assert hash(copy.copy(credentials)) == hash(credentials)


def test_fresh_credentials_are_nobody_elses():
    one, other = (Credentials.fresh(encrypted=True) for _ in range(2))
    assert one.secret != other.secret
    assert one.certificate != other.certificate
    assert one.key != other.key
    assert len(one.secret) == 32
    assert not Credentials.fresh(encrypted=False).encrypted


def test_half_of_a_certificate_is_refused():
    with pytest.raises(SecretRefused, match="give both or none"):
        Credentials(SECRET, TLS.certificate, None)


@pytest.mark.parametrize(
    ("host", "stays"),
    [("127.0.0.1", True), ("127.3.2.1", True), ("::1", True), ("10.0.0.1", False), ("0.0.0.0", False)],
)
def test_loopback_is_told_from_the_network(host, stays):
    assert is_loopback(host) == stays


@pytest.mark.parametrize("credentials", [PLAIN, TLS], ids=["plain", "tls"])
def test_a_frame_that_comes_in_drops_does_not_outlast_the_time_limit(credentials: Credentials) -> None:
    over = threading.Event()
    ours, theirs = socket.socketpair()

    def trickle() -> None:
        sock: socket.socket = theirs
        if credentials.encrypted:
            secure = tls.wrap(theirs, credentials, server=True)
            secure.do_handshake()
            sock = secure
        views = encode_frame(b"header", [bytes(1 << 20)])
        sock.sendall(views[0])
        for _ in range(int(PATIENCE / 0.02)):
            if over.wait(0.02):
                break
            sock.sendall(b"\0")

    thread = threading.Thread(target=trickle, daemon=True)
    thread.start()
    caller: socket.socket = ours
    if credentials.encrypted:
        secure = tls.wrap(ours, credentials, server=False)
        secure.do_handshake()
        caller = secure
    with Channel(caller, "here:1") as channel:
        with pytest.raises(WorkerUnreachable) as caught:
            channel.recv(0.5)
        assert not over.is_set()
        assert thread.is_alive(), "it waited for all that came"
        assert isinstance(caught.value, Unanswered)
        over.set()
        thread.join(PATIENCE)
    theirs.close()
