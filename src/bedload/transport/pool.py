"""Connections that threads share: each is one thread's at a time, and as clean as a new one when the next takes it.

Invariant: a connection on which anything went wrong is closed, never lent again: what may still come on it is the
answer to another question.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from bedload.core.clock import Clock, SystemClock
from bedload.core.errors import Unanswered
from bedload.transport.channel import Channel
from bedload.transport.credentials import Credentials

MOST_PER_ADDRESS = 32


class ChannelPool:
    """Lends channels, any number of threads at a time; to one address, at most ``most`` at once."""

    def __init__(self, credentials: Credentials, most: int = MOST_PER_ADDRESS, clock: Clock | None = None) -> None:
        self._credentials = credentials
        self._most = most
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()  # never held while anything waits; a collection may end a loan within it
        self._idle: dict[str, list[Channel]] = {}
        self._room: dict[str, threading.Semaphore] = {}
        self._closings = 0

    @contextlib.contextmanager
    def lend(self, address: str, seconds: float) -> Iterator[Channel]:
        """A channel for one exchange, within so many seconds. Whatever is raised meanwhile closes it."""
        deadline = self._clock.monotonic() + seconds
        with self._lock:
            room = self._room.setdefault(address, threading.Semaphore(self._most))
            closings = self._closings
        if not room.acquire(timeout=max(0.0, seconds)):
            raise Unanswered(
                f"all {self._most} connections to {address} were in use for {seconds:g} seconds; ask with fewer "
                "threads at once, or wait longer",
                address=address,
            )
        try:
            channel = self._take(address)
            if channel is None:
                left = max(0.0, deadline - self._clock.monotonic())
                channel = Channel.connect(address, self._credentials, left, clock=self._clock)
            try:
                yield channel
            except BaseException:
                channel.close()
                raise
            with self._lock:
                if closings == self._closings and not channel.closed:
                    self._idle.setdefault(address, []).append(channel)
                    channel = None
            if channel is not None:
                channel.close()
        finally:
            room.release()

    def close(self) -> None:
        """Close the connections; those that are lent, when they come back."""
        with self._lock:
            self._closings += 1
            idle = [channel for channels in self._idle.values() for channel in channels]
            self._idle = {}
        for channel in idle:
            channel.close()

    def _take(self, address: str) -> Channel | None:
        with self._lock:
            channels = self._idle.get(address, [])
            while channels:
                channel = channels.pop()
                if not channel.poll():  # readable while idle means that it was closed
                    return channel
                channel.close()
            self._drop_ended()
        return None

    def _drop_ended(self) -> None:
        """Let go of connections to those who have left for good: nobody asks for them again."""
        for address, channels in list(self._idle.items()):
            ended = [channel for channel in channels if channel.poll()]
            for channel in ended:
                channels.remove(channel)
                channel.close()
            if not channels:
                del self._idle[address]
