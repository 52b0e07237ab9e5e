"""Connections that threads share."""

import contextlib
import queue
import threading
from collections.abc import Iterator

import pytest
from tests.patience import PATIENCE
from tests.unit.transport_kit import credentials_of, serving

from bedload.core.errors import Unanswered, WorkerUnreachable
from bedload.transport import Channel, ChannelPool, Credentials, Endpoint, Handler, Peer


@pytest.fixture(params=["plain", "tls"])
def credentials(request: pytest.FixtureRequest) -> Credentials:
    return credentials_of(request.param)


class Parrot(Handler):
    """Echoes, except for what it is to be silent about; repeats itself if asked to."""

    def __init__(self) -> None:
        self.opened: queue.Queue[Peer] = queue.Queue()
        self.ended: queue.Queue[Peer] = queue.Queue()

    def on_open(self, peer: Peer) -> None:
        self.opened.put(peer)

    def on_frame(self, peer: Peer, header: bytes, body: memoryview | None) -> None:
        if header != b"hush":
            peer.send(header)
        if header == b"twice":
            peer.send(header)

    def on_close(self, peer: Peer) -> None:
        self.ended.put(peer)


@pytest.fixture
def parrot(credentials: Credentials) -> Iterator[tuple[Endpoint, Parrot]]:
    with serving(credentials, Parrot()) as served:
        yield served


def ask(pool: ChannelPool, address: str, word: bytes, timeout: float = PATIENCE) -> bytes:
    with pool.lend(address, PATIENCE) as channel:
        channel.send(word, timeout=PATIENCE)
        return channel.recv(timeout).header


def test_a_connection_is_used_again(parrot, credentials):
    endpoint, handler = parrot
    pool = ChannelPool(credentials)
    for i in range(20):
        assert ask(pool, endpoint.address, b"%d" % i) == b"%d" % i
    assert handler.opened.qsize() == 1
    pool.close()
    handler.ended.get(timeout=PATIENCE)


def test_threads_get_their_own_answers(parrot, credentials):
    endpoint, handler = parrot
    pool, wrong = ChannelPool(credentials, most=4), []

    def loop(name: int) -> None:
        for i in range(50):
            word = b"%d-%d" % (name, i)
            if ask(pool, endpoint.address, word) != word:
                wrong.append(word)

    threads = [threading.Thread(target=loop, args=(name,)) for name in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not wrong
    assert handler.opened.qsize() <= 4
    pool.close()


def test_a_connection_without_its_answer_is_never_lent_again(parrot, credentials):
    endpoint, handler = parrot
    pool = ChannelPool(credentials)
    with pytest.raises(WorkerUnreachable):
        ask(pool, endpoint.address, b"hush", timeout=0.01)
    assert ask(pool, endpoint.address, b"next") == b"next"
    assert handler.opened.qsize() == 2
    pool.close()


def test_a_connection_with_more_than_its_answer_is_never_lent_again(parrot, credentials):
    endpoint, handler = parrot
    pool = ChannelPool(credentials)
    with pool.lend(endpoint.address, PATIENCE) as channel:
        channel.send(b"twice")
        assert channel.recv(PATIENCE).header == b"twice"
        while not channel.poll():
            pass
    assert ask(pool, endpoint.address, b"next") == b"next"
    assert handler.opened.qsize() == 2
    pool.close()


def test_whoever_waits_for_a_connection_in_vain_is_told(parrot, credentials):
    endpoint, _ = parrot
    pool = ChannelPool(credentials, most=1)
    with (
        pool.lend(endpoint.address, PATIENCE),
        pytest.raises(WorkerUnreachable, match="all 1 connections"),
        pool.lend(endpoint.address, 0.01),
    ):
        pass
    assert ask(pool, endpoint.address, b"free") == b"free"
    pool.close()


def test_closing_takes_back_what_is_lent_when_it_comes(parrot, credentials):
    endpoint, handler = parrot
    pool = ChannelPool(credentials)
    with pool.lend(endpoint.address, PATIENCE) as channel:
        pool.close()
        channel.send(b"still mine")
        assert channel.recv(PATIENCE).header == b"still mine"
    assert channel.closed
    handler.ended.get(timeout=PATIENCE)
    assert ask(pool, endpoint.address, b"again") == b"again"
    pool.close()


def test_connections_to_those_who_left_are_let_go(parrot, credentials):
    endpoint, _ = parrot
    pool = ChannelPool(credentials)
    gone = Endpoint("127.0.0.1", credentials=credentials, handler=Parrot())
    thread = threading.Thread(target=gone.run)
    thread.start()
    with pool.lend(gone.address, PATIENCE) as left:
        pass
    gone.stop()
    thread.join(PATIENCE)
    while not left.poll():
        pass
    assert ask(pool, endpoint.address, b"here") == b"here"
    assert left.closed
    pool.close()


def test_a_send_that_is_not_taken_in_time_closes_the_channel(credentials):
    held, go = threading.Event(), threading.Event()

    class Busy(Parrot):
        def on_frame(self, peer: Peer, header: bytes, body: memoryview | None) -> None:
            held.set()
            go.wait(PATIENCE)

    endpoint = Endpoint("127.0.0.1", credentials=credentials, handler=Busy())
    thread = threading.Thread(target=endpoint.run)
    thread.start()
    try:
        with Channel.connect(endpoint.address, credentials, PATIENCE) as channel:
            channel.send(b"hold")
            assert held.wait(PATIENCE)
            with pytest.raises(WorkerUnreachable, match=r"did not take a message within 0\.2 seconds") as caught:
                channel.send(b"bulk", [bytes(64 << 20)], timeout=0.2)
            assert isinstance(caught.value, Unanswered)
            assert channel.closed
    finally:
        go.set()
        endpoint.stop()
        thread.join(PATIENCE)


def test_a_send_that_goes_on_after_a_while_loses_and_doubles_nothing(credentials):
    held, go = threading.Event(), threading.Event()
    came: queue.Queue[bytes] = queue.Queue()

    class Busy(Parrot):
        def on_frame(self, peer: Peer, header: bytes, body: memoryview | None) -> None:
            held.set()
            go.wait(PATIENCE)
            if body is not None:
                came.put(bytes(body))

    endpoint = Endpoint("127.0.0.1", credentials=credentials, handler=Busy())
    thread = threading.Thread(target=endpoint.run)
    thread.start()
    times = 0

    def blocked() -> None:
        nonlocal times
        times += 1
        if times == 3:
            go.set()

    body = bytes(range(256)) * (1 << 17)  # more than the sockets hold
    try:
        with Channel.connect(endpoint.address, credentials, PATIENCE) as channel:
            channel.send(b"hold")
            assert held.wait(PATIENCE)
            channel.send(b"bulk", [body[:100], body[100:]], 0.05, blocked=blocked)
            assert came.get(timeout=PATIENCE) == body
        assert times >= 3
    finally:
        go.set()
        endpoint.stop()
        thread.join(PATIENCE)


def test_an_interrupted_receive_closes_the_channel(parrot, credentials, monkeypatch):
    endpoint, _ = parrot
    with Channel.connect(endpoint.address, credentials, PATIENCE) as channel:
        channel.send(b"word")

        def interrupted(size: int) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(channel._reader, "filled", interrupted)
        with pytest.raises(KeyboardInterrupt):
            channel.recv(PATIENCE)
        assert channel.closed  # how much of the frame was taken is not known


def test_a_frame_without_room_in_memory_closes_the_channel(parrot, credentials, monkeypatch):
    endpoint, _ = parrot
    with Channel.connect(endpoint.address, credentials, PATIENCE) as channel:
        channel.send(b"word")

        def full(size: int) -> None:
            raise MemoryError

        monkeypatch.setattr(channel._reader, "filled", full)
        with contextlib.suppress(Exception):
            channel.recv(PATIENCE)
        assert channel.closed
