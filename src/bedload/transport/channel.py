"""A blocking connection: how a feeder, or the driver's own thread, talks to an endpoint.

Invariants:

- One thread uses a channel at a time.
- A frame is sent whole or the channel is closed: no half frame is ever followed by another.
- Nothing is buffered here but what TLS has decrypted, and :meth:`Channel.poll` and :func:`wait` look there too.
- Whatever goes wrong closes the channel, except that a receive may time out: what came of a frame is kept.
- An endpoint always reads (its own sends are queued), so a blocking send comes to an end; if the other host is gone,
  it ends by :mod:`~bedload.transport.silence`.
"""

from __future__ import annotations

import errno
import os
import secrets
import selectors
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from bedload.core.clock import Clock, SystemClock
from bedload.core.errors import ProtocolError, Unanswered, WorkerUnreachable
from bedload.transport import silence, sockets, tls
from bedload.transport.auth import PROTOCOL_VERSION, ClientHandshake, NonceSource
from bedload.transport.credentials import Credentials
from bedload.transport.frames import Frame, FrameReader, SendQueue, encode_frame

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# Poll needs no descriptor of its own, unlike epoll, and no limit on their numbers, unlike select.
_Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)
_WAIT_ALL: int = getattr(socket, "MSG_WAITALL", 0)
_watch = silence.Watch()
os.register_at_fork(after_in_child=_watch.forked)


class Channel:
    """An authenticated connection to the endpoint at ``address``. Make one with :meth:`connect`."""

    def __init__(self, sock: socket.socket, address: str, clock: Clock | None = None) -> None:
        self.address = address
        self._sock = sock
        self._clock = clock or SystemClock()
        self._reader = FrameReader()
        self._timeout: float | None = None
        self._closed = False
        self._silent = False
        _watch.add(self)

    @classmethod
    def connect(
        cls,
        address: str,
        credentials: Credentials,
        timeout: float = 10.0,
        *,
        version: str = PROTOCOL_VERSION,
        nonces: NonceSource = secrets.token_bytes,
        clock: Clock | None = None,
    ) -> Self:
        """Connect and shake hands, within ``timeout`` seconds."""
        clock = clock or SystemClock()
        handshake = partial(ClientHandshake, credentials.secret, version, nonces)
        sock = sockets.call(address, timeout, clock, handshake, credentials)
        return cls(sock, address, clock)

    def send(
        self,
        header: ReadableBuffer,
        buffers: Iterable[ReadableBuffer] = (),
        timeout: float | None = None,
        *,
        blocked: Callable[[], None] | None = None,
    ) -> None:
        """Send a frame; blocks while the other end is too busy to take it.

        If ``timeout`` seconds pass before it is sent, the channel is closed and ``Unanswered`` is raised: a half frame
        cannot be taken back. With ``blocked``, that is called instead, each time, and the send goes on unless it
        raises.
        """
        queue = SendQueue()
        queue.push(encode_frame(header, buffers))
        self._check_open()
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        try:
            while queue.pending:
                self._set_timeout(deadline)
                try:
                    queue.sent(self._sock.sendmsg(queue.next_vectors()))
                except (TimeoutError, BlockingIOError) as error:
                    if blocked is None or timeout is None or error.errno == errno.ETIMEDOUT:
                        raise
                    blocked()
                    deadline = self._clock.monotonic() + timeout
        except (TimeoutError, BlockingIOError) as error:
            self.close()
            if error.errno == errno.ETIMEDOUT:  # the system gave the connection up
                raise self._ended(f"while sending ({error})") from error
            raise Unanswered(
                f"{self.address} did not take a message within {timeout:g} seconds; its process may be busy or stuck: "
                "wait longer, or look at its log",
                address=self.address,
            ) from error
        except OSError as error:
            self.close()
            raise self._ended(f"while sending ({error})") from error
        except BaseException:
            self.close()  # interrupted inside a frame
            raise

    def recv(self, timeout: float | None = None) -> Frame:
        """The next frame, as (header, body).

        If ``timeout`` seconds pass without it, ``Unanswered`` is raised; the channel stays usable, and what has come
        of the frame is kept for the next call.
        """
        self._check_open()
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        try:
            while True:
                self._set_timeout(deadline)
                size = self._sock.recv_into(self._reader.space(), 0, _WAIT_ALL)
                if not size:
                    where = "by the other end" if self._reader.between_frames else "in the middle of a frame"
                    self.close()
                    raise self._ended(where)
                frame = self._reader.filled(size)
                if frame is not None:
                    return frame
        except (TimeoutError, BlockingIOError) as error:
            if error.errno == errno.ETIMEDOUT:  # the system gave the connection up
                self.close()
                raise self._ended(f"while receiving ({error})") from error
            raise Unanswered(
                f"no answer from {self.address} within {timeout:g} seconds; its process may be busy or "
                "stuck: wait longer, or look at its log",
                address=self.address,
            ) from error
        except OSError as error:
            self.close()
            raise self._ended(f"while receiving ({error})") from error
        except ProtocolError as error:
            self.close()
            raise sockets.at_address(error, self.address) from error
        except MemoryError as error:
            self.close()
            raise sockets.at_address(sockets.no_memory(), self.address) from error
        except BaseException:
            self.close()  # interrupted: how much of the frame has come is not known
            raise

    def poll(self) -> bool:
        """True if there is something to receive, be it the end of the connection."""
        return bool(wait((self,), 0))

    def fileno(self) -> int:
        """The socket's descriptor, -1 once closed."""
        return self._sock.fileno()

    @property
    def closed(self) -> bool:
        """True once this end was closed, or has noticed that the connection ended."""
        return self._closed

    def close(self) -> None:
        """Close the connection; what was sent before still arrives. Closing twice does no harm."""
        self._closed = True
        _watch.discard(self)
        self._sock.close()

    def cut_if_silent(self) -> None:
        """End the connection if the other host is gone; whoever waits for it hears of it. Any thread may call this."""
        if silence.is_silent(self._sock):
            self._silent = True
            silence.cut(self._sock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Channel to {self.address}{', closed' if self._closed else ''}>"

    def _check_open(self) -> None:
        if self._closed:
            raise sockets.closed(self.address, "earlier at this end")

    def _ended(self, how: str) -> WorkerUnreachable:
        return sockets.closed(self.address, silence.describe() if self._silent else how)

    def _set_timeout(self, deadline: float | None) -> None:
        # Setting it costs a system call. Without a time limit, or with much the same one each time, nobody pays it.
        seconds = None if deadline is None else max(0.0, deadline - self._clock.monotonic())
        if seconds and self._timeout and seconds <= self._timeout <= 1.1 * seconds:
            return
        if seconds != self._timeout:
            self._sock.settimeout(seconds)
            self._timeout = seconds

    @property
    def _unread(self) -> bool:
        return self._closed or tls.unread(self._sock)


def wait(channels: Sequence[Channel], timeout: float | None = None) -> list[Channel]:
    """The channels with something to receive, in the order given; empty if ``timeout`` seconds passed.

    A channel whose connection ended counts as ready: its ``recv`` says so.
    """
    ready = {channel for channel in channels if channel._unread}
    with _Selector() as selector:
        for channel in channels:
            if not channel.closed:
                selector.register(channel, selectors.EVENT_READ, channel)
        for key, _ in selector.select(0 if ready else timeout):
            ready.add(key.data)
    return [channel for channel in channels if channel in ready]
