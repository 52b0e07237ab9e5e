"""Callers that have proven nothing: a bound on them, and the process lives on with them at its door."""

import contextlib
import logging
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import PATIENCE
from tests.unit.transport_kit import HandClock, credentials_of

from bedload.transport import Channel, Endpoint, Handler, Peer, parse_address
from bedload.transport.door import MOST_UNPROVEN, Door, places

PLAIN = credentials_of("plain")


def test_the_oldest_of_the_host_with_the_most_callers_goes():
    door: Door[str] = Door(4, 10.0)
    assert door.came("friend", "10.0.0.1") is None
    assert [door.came(f"stranger {i}", "10.0.0.9") for i in range(3)] == [None] * 3
    for i in range(3, 20):
        gone = door.came(f"stranger {i}", "10.0.0.9")
        assert gone == f"stranger {i - 3}"
        door.left(gone)
    door.left("friend")
    assert door.came("stranger 20", "10.0.0.9") is None


def test_callers_hurry_when_many_wait():
    door: Door[int] = Door(10, 10.0)
    assert door.seconds == 10.0
    for i in range(6):
        door.came(i, "h")
    assert door.seconds == 2.0
    for i in range(6):
        door.left(i)
    assert door.seconds == 10.0
    assert door.oldest() is None


def test_refusals_are_told_a_few_at_a_time_and_the_rest_is_counted():
    door: Door[int] = Door(10, 10.0)
    assert sum(door.tells(0.0)[0] for _ in range(1000)) == 20
    assert door.tells(10.0) == (True, 980)
    assert door.tells(10.0) == (True, 0)


def test_callers_get_a_small_share_of_the_descriptors():
    assert places(1 << 20) == MOST_UNPROVEN
    assert places(256) == 32
    assert places(4) == 1


class Counting(Handler):
    def __init__(self) -> None:
        self.errors: queue.Queue[BaseException] = queue.Queue()

    def on_frame(self, peer: Peer, header: bytes, body: memoryview | None) -> None:
        peer.send(header)

    def on_error(self, peer: Peer | None, error: BaseException) -> None:
        self.errors.put(error)


@pytest.mark.parametrize("kind", ["plain", "tls"])
def test_strangers_at_the_door_are_bounded_and_friends_come_in(kind):
    credentials, handler, clock = credentials_of(kind), Counting(), HandClock()
    endpoint = Endpoint("127.0.0.1", credentials=credentials, handler=handler, clock=clock)
    thread = threading.Thread(target=endpoint.run)
    thread.start()
    strangers: list[socket.socket] = []
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(3 * MOST_UNPROVEN):
                sock = socket.create_connection(parse_address(endpoint.address), timeout=PATIENCE)
                strangers.append(stack.enter_context(sock))
            with Channel.connect(endpoint.address, credentials, PATIENCE) as friend:
                friend.send(b"hello")
                assert friend.recv(PATIENCE).header == b"hello"
                waiting: queue.Queue[int] = queue.Queue()
                endpoint.call_soon(lambda: waiting.put(len(endpoint._peers)))
                assert waiting.get(timeout=PATIENCE) <= MOST_UNPROVEN + 1
            for sock in strangers[:MOST_UNPROVEN]:  # those that came first were closed
                with contextlib.suppress(ConnectionResetError):
                    while sock.recv(100):
                        pass
            assert handler.errors.qsize() <= 20
            assert "closed to make room" in str(handler.errors.get(timeout=PATIENCE))
    finally:
        endpoint.stop()
        thread.join(PATIENCE)


SERVED = """
import os, resource, sys, threading
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from bedload.transport import Channel, Credentials, Endpoint, Handler
class Echo(Handler):
    def on_frame(self, peer, header, body): peer.send(header)
    def on_error(self, peer, error): pass
credentials = Credentials(b"s" * 32)
endpoint = Endpoint("127.0.0.1", credentials=credentials, handler=Echo())
threading.Thread(target=endpoint.run, daemon=True).start()
print(endpoint.address, flush=True)
sys.stdin.readline()
before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
for _ in range(20):
    open(os.devnull, "rb").close()
    with Channel.connect(endpoint.address, credentials, 30.0) as channel:
        channel.send(b"x")
        assert channel.recv(30.0).header == b"x"
print("served with", before, "descriptors", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def served() -> Iterator[subprocess.Popen[str]]:
    """A process with few descriptors that serves."""
    child = subprocess.Popen(
        [sys.executable, "-c", SERVED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def test_a_process_that_strangers_besiege_opens_files_and_serves(served: subprocess.Popen[str]) -> None:
    assert served.stdout is not None
    assert served.stdin is not None
    address = parse_address(served.stdout.readline().strip())
    stop = threading.Event()

    def besiege() -> None:
        held: list[socket.socket] = []
        while not stop.is_set():
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(address, timeout=0.2))
            if len(held) > 400:
                held.pop(0).close()
        for sock in held:
            sock.close()

    strangers = threading.Thread(target=besiege)
    strangers.start()
    try:
        served.stdin.write("\n")
        served.stdin.flush()
        said = served.stdout.readline()
        assert said.startswith("served with")
        assert int(said.split()[2]) < 128
    finally:
        stop.set()
        strangers.join(PATIENCE)


def test_the_log_is_not_a_strangers_to_fill(caplog: pytest.LogCaptureFixture) -> None:
    class Silent(Handler):
        def on_frame(self, peer: Peer, header: bytes, body: memoryview | None) -> None: ...

    endpoint = Endpoint("127.0.0.1", credentials=PLAIN, handler=Silent(), clock=HandClock())
    thread = threading.Thread(target=endpoint.run)
    thread.start()
    with caplog.at_level(logging.ERROR):
        for _ in range(200):
            with socket.create_connection(parse_address(endpoint.address), timeout=PATIENCE) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
                with contextlib.suppress(ConnectionResetError):
                    while sock.recv(100):
                        pass
    endpoint.stop()
    thread.join(PATIENCE)
    assert 0 < len(caplog.records) <= 20
