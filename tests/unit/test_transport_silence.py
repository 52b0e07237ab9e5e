"""Hosts that vanish without a word, in network namespaces; and busy ones, that are none of them."""

import contextlib
import itertools
import os
import queue
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from tests.patience import PATIENCE
from tests.unit.transport_kit import credentials_of

from bedload.core.errors import WorkerUnreachable
from bedload.transport import Channel, Credentials, Endpoint, Handler, Peer, silence

_numbers = itertools.count()

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what it knows of a connection")


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        raise OSError(done.stderr.strip())


class Other:
    """Another host: a network namespace, and a link to it that can be cut."""

    def __init__(self, name: str, here: str, there: str) -> None:
        self.name = name
        self.here = here
        self.there = there

    def run(self, code: str) -> subprocess.Popen[str]:
        command = ["ip", "netns", "exec", self.name, sys.executable, "-c", code]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def vanish(self) -> None:
        ip("-n", self.name, "link", "set", f"{self.name}1", "down")


@pytest.fixture
def other() -> Iterator[Other]:
    if shutil.which("ip") is None or os.getuid() != 0:
        pytest.skip("network namespaces need root, and the program ip")
    number = (os.getpid() * 8 + next(_numbers)) % (50 * 250)  # its own network: tests run beside each other
    name, net = f"bl{number}n", f"10.{200 + number // 250}.{number % 250}"
    here, there = f"{net}.1", f"{net}.2"
    with contextlib.ExitStack() as stack:
        try:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("link", "add", f"{name}0", "type", "veth", "peer", "name", f"{name}1", "netns", name)
            stack.callback(ip, "link", "del", f"{name}0")
            ip("addr", "add", f"{here}/24", "dev", f"{name}0")
            ip("link", "set", f"{name}0", "up")
            ip("-n", name, "addr", "add", f"{there}/24", "dev", f"{name}1")
            ip("-n", name, "link", "set", f"{name}1", "up")
            ip("-n", name, "link", "set", "lo", "up")
        except OSError as error:
            pytest.skip(f"network namespaces cannot be made here: {error}")
        yield Other(name, here, there)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_SECONDS", 2.0)
    monkeypatch.setattr(silence, "LOOK_SECONDS", 0.2)


class Sink(Handler):
    def __init__(self) -> None:
        self.opened: queue.Queue[Peer] = queue.Queue()
        self.ended: queue.Queue[Peer] = queue.Queue()

    def on_open(self, peer: Peer) -> None:
        self.opened.put(peer)

    def on_frame(self, peer: Peer, header: bytes, body: memoryview | None) -> None: ...

    def on_close(self, peer: Peer) -> None:
        self.ended.put(peer)


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


CALLER = """
import msgspec, sys
from bedload.transport import Channel, Credentials
credentials = msgspec.json.decode(sys.stdin.readline(), type=Credentials)
channel = Channel.connect("{address}", credentials, 30.0)
sys.stdin.read()
"""

SERVER = """
import msgspec, sys
from bedload.transport import Credentials, Endpoint, Handler
class Mute(Handler):
    def on_frame(self, peer, header, body): pass
credentials = msgspec.json.decode(sys.stdin.readline(), type=Credentials)
endpoint = Endpoint("{host}", credentials=credentials, handler=Mute())
print(endpoint.address, flush=True)
endpoint.run()
"""


@contextlib.contextmanager
def process(other: Other, code: str, credentials: Credentials) -> Iterator[subprocess.Popen[str]]:
    import msgspec

    child = other.run(code)
    assert child.stdin is not None
    child.stdin.write(msgspec.json.encode(credentials).decode() + "\n")
    child.stdin.flush()
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("kind", ["plain", "tls"])
def test_an_endpoint_notices_a_host_that_vanishes_with_bytes_under_way(other: Other, kind: str) -> None:
    handler, credentials = Sink(), credentials_of(kind)
    endpoint = Endpoint(other.here, credentials=credentials, handler=handler)
    with running(endpoint), process(other, CALLER.format(address=endpoint.address), credentials):
        peer = handler.opened.get(timeout=PATIENCE)
        other.vanish()
        endpoint.call_soon(lambda: peer.send(b"do you hear me?"))
        assert handler.ended.get(timeout=PATIENCE) is peer
        assert isinstance(peer.reason, WorkerUnreachable)
        assert "its host has not answered for 2 seconds" in str(peer.reason)


@pytest.mark.parametrize("doing", ["send", "recv"])
@pytest.mark.parametrize("kind", ["plain", "tls"])
def test_who_waits_for_a_host_that_vanishes_is_told(other: Other, kind: str, doing: str) -> None:
    credentials = credentials_of(kind)
    with process(other, SERVER.format(host=other.there), credentials) as child:
        assert child.stdout is not None
        channel = Channel.connect(child.stdout.readline().strip(), credentials, PATIENCE)
        other.vanish()
        with channel:
            # No deadline of its own: without the watch this would take a quarter of an hour.
            wait: Callable[[], object]
            if doing == "send":
                wait = partial(channel.send, b"", [bytes(64 << 20)])
            else:
                channel.send(b"a question")
                wait = channel.recv
            with pytest.raises(WorkerUnreachable, match="its host has not answered for 2 seconds"):
                wait()
            assert channel.closed


def test_a_host_that_answers_is_there_however_busy_its_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            near.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    near.send(bytes(1 << 20))
            backoff = 0
            while backoff < 4:  # until its system has said several times, ever more rarely, that there is no room
                assert not silence.is_silent(near)
                backoff = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[4]
                time.sleep(0.02)
            assert far.recv(1)


def test_a_host_that_was_never_there_is_for_the_deadline_of_the_call(other: Other) -> None:
    other.vanish()
    handler = Sink()
    endpoint = Endpoint(other.here, credentials=credentials_of("plain"), handler=handler)
    with running(endpoint):
        endpoint.call_soon(lambda: endpoint.connect_soon(f"{other.there}:9", 4.0) and None)
        reason = handler.ended.get(timeout=PATIENCE).reason
        assert isinstance(reason, WorkerUnreachable)
        assert "no handshake within 4 seconds" in str(reason) or "No route to host" in str(reason)


def test_a_closed_connection_is_not_silent() -> None:
    sock = socket.socket()
    sock.close()
    assert not silence.is_silent(sock)
    silence.cut(sock)
