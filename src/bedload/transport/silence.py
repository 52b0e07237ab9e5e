"""Hosts that vanish without a word: connections whose other host's system has stopped answering.

TCP's keepalive notices that on a connection that is idle. While bytes are under way the system sends those again
instead, for a quarter of an hour. So what the system knows of each connection is looked at now and then: when bytes
wait for an answer and nothing at all has come for :data:`SILENCE_SECONDS`, the host is gone.

SUBTLE: ``TCP_USER_TIMEOUT`` is not what it seems. Linux also ends a connection by it whose other end is alive, answers,
and just has no room for more: an operator that computes for a minute would lose its feeders. Here a host that answers
is there, however long its process takes; whether the process hangs is not found out here.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
import weakref
from typing import Protocol

SILENCE_SECONDS = 30.0
"""After so long without any sign of life, a host is gone."""

LOOK_SECONDS = 5.0
"""How often connections are looked at."""

# A connection that is idle: noticed after 10 + 4 * 5 = 30 seconds, not after two hours.
KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4))

# struct tcp_info of linux/tcp.h, up to tcpi_last_ack_recv: eight octets (tcpi_probes the fourth), then 32-bit numbers.
_INFO = struct.Struct("=8B13I")
_PROBES, _UNACKED, _LAST_ACK_MS = 3, 12, 20
_UNANSWERED_PROBES = 2


def is_silent(sock: socket.socket) -> bool:
    """Whether bytes wait for the other host's answer, and nothing has come from it for :data:`SILENCE_SECONDS`."""
    if sys.platform != "linux":
        return False  # keepalive alone has to do
    try:
        info = _INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size))
    except OSError:
        return False  # closed a moment ago
    # Probes ask a host that has no room whether it has some by now: one is under way at times, several without an
    # answer are not. They come ever more rarely, so the time since the last answer says nothing by itself.
    waits = info[_UNACKED] > 0 or info[_PROBES] >= _UNANSWERED_PROBES
    return bool(waits and info[_LAST_ACK_MS] >= SILENCE_SECONDS * 1000)


def describe() -> str:
    """How a connection ended that was silent."""
    return f"because its host has not answered for {SILENCE_SECONDS:g} seconds: it is gone, or the network to it is"


class Watched(Protocol):
    """A connection that a thread may be blocked on."""

    def cut_if_silent(self) -> None:
        """End the connection, and whoever waits for it, if the other host is gone."""
        ...


class Watch:
    """Looks after the blocking connections of a process, on a thread that is started when there is the first one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a collection may close a connection within any of these calls
        self._over = threading.Event()  # there is nothing to watch any more
        self._watched: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._runs = False

    def forked(self) -> None:
        """This process is a fork: it has no threads but the one that made it, and a lock may be theirs for ever."""
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._watched = weakref.WeakSet()
        self._runs = False

    def add(self, watched: Watched) -> None:
        """Look after a connection until nobody has it any more."""
        with self._lock:
            self._watched.add(watched)
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="bedload-silence", daemon=True).start()

    def discard(self, watched: Watched) -> None:
        """Look after it no longer."""
        with self._lock:
            self._watched.discard(watched)
            if not self._watched:
                self._over.set()

    def _run(self) -> None:
        while True:
            self._over.wait(LOOK_SECONDS)
            with self._lock:
                self._over.clear()
                connections = list(self._watched)
                if not connections:
                    self._runs = False
                    return
            for connection in connections:
                connection.cut_if_silent()
            del connections


def cut(sock: socket.socket) -> None:
    """End a connection under whoever waits for it, in whatever thread."""
    with contextlib.suppress(OSError):
        # SUBTLE: not the socket's own method: TLS's would drop what another thread is using.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
