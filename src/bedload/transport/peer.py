"""One connection of an endpoint, from the first byte to the last.

::

    CONNECTING ──▶ SECURING ──▶ PROVING ──▶ OPEN ──▶ FLUSHING ──▶ ENDING ──▶ CLOSED
    (called out)   (if encrypted)  │                    ▲                       ▲
                       └───────────┴── refused ─────────┘      abort, error ────┘ (from every phase)

Invariants:

- No method blocks, and no method calls the handler except through the loop, so a handler is never
  entered from inside its own call to :meth:`Peer.send` or :meth:`Peer.close`.
- Before OPEN not one frame is read or written; frames sent earlier are held back.
- A peer reads at most one frame, and at most a few MiB of it, per turn of the loop. It writes at
  most what one ``sendmsg`` takes. A busy peer cannot starve the others.
- The loop is told exactly once that a peer retired: from then on nothing of it is delivered.
- After each look at a peer the loop is told if TLS holds bytes of it: no selector sees them.

An orderly close shuts the write side and then drops what still comes in until the other end closes
too, since closing a socket with unread input resets the connection and may destroy the last frames
before they are read.

Why one file: it is one state machine, and what is done in a phase decides upon the next one.
"""

from __future__ import annotations

import enum
import errno
import os
import selectors
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bedload.core.errors import ProtocolError, Unanswered, WorkerUnreachable
from bedload.transport import silence, sockets, tls
from bedload.transport.auth import TLS_ONLY, Handshake
from bedload.transport.frames import FrameReader, SendQueue, encode_frame
from bedload.transport.loop import Loop
from bedload.transport.timers import Timer

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_READ_PER_TURN = 4 * 1024 * 1024
_STRANGERS_BYTES = 16 * 1024
"""What is read of a stranger after its refusal, so that this arrives: the rest of a handshake, not more."""
_LINGER_SECONDS = 5.0
"""How long an orderly close may take before the connection is cut."""


class Phase(enum.Enum):
    """Where a connection is in its life."""

    CONNECTING = "connecting"
    """Called out; the other host has not accepted yet."""
    SECURING = "securing"
    """Connected; the two ends are agreeing upon keys."""
    PROVING = "proving"
    """Connected; the two ends are proving themselves."""
    OPEN = "open"
    """Frames go both ways."""
    FLUSHING = "flushing"
    """Closed by this end, which still writes what was queued and drops what comes in."""
    ENDING = "ending"
    """Everything is written; waiting for the other end to close as well."""
    CLOSED = "closed"
    """The socket is gone."""


_COMING_UP = (Phase.CONNECTING, Phase.SECURING, Phase.PROVING)


class Peer:
    """The other end of a connection. Only the endpoint's thread may use it."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        address: str,
        *,
        phase: Phase = Phase.OPEN,
        handshake: Handshake | None = None,
        securing: tls.Securing | None = None,
        known: bool = True,
    ) -> None:
        self.address = address
        """Where it is, as ``host:port``: for an incoming connection the port is a passing one."""
        self.data: Any = None
        """For the handler to keep what it knows about this peer."""
        self.reason: BaseException | None = None
        """Why the connection ended; None while it is open and if this end simply closed it."""
        self.known = known
        """True if the handler knows this peer, and must hear of its end."""
        self.armed = 0
        """The events that the loop waits for; kept by the loop."""
        self._loop = loop
        self._sock = sock
        self._phase = phase
        self._handshake = handshake
        self._securing = securing
        self._wants = selectors.EVENT_READ  # in SECURING
        self._strange = 0
        self._reader = FrameReader()
        self._out = SendQueue()
        self._held = SendQueue()  # frames sent before the connection was open
        self._close_when_open = False
        self._saw_end = False
        self._retired = False
        self._timer: Timer | None = None

    # --- for handlers

    @property
    def phase(self) -> Phase:
        """Where the connection is in its life."""
        return self._phase

    @property
    def pending_bytes(self) -> int:
        """What was sent here and has not been taken by the operating system yet."""
        return self._out.pending + self._held.pending

    def send(self, header: ReadableBuffer, buffers: Iterable[ReadableBuffer] = ()) -> None:
        """Send a frame without ever blocking; what the socket does not take now is queued.

        The buffers are not copied: leave them unchanged. A frame for a peer that is closed, or being
        closed, is dropped: ``on_close`` tells of it, or has done so.
        """
        views = encode_frame(header, buffers)
        if self._phase is Phase.OPEN:
            idle = not self._out.pending
            self._out.push(views)
            if idle:  # else the socket is full, and the loop goes on when it is not
                self.write()
        elif self._phase in _COMING_UP:
            self._held.push(views)

    def close(self) -> None:
        """Close once everything that was sent has been written; frames that come in meanwhile are dropped."""
        if self._phase in _COMING_UP:
            self._close_when_open = True
        elif self._phase is Phase.OPEN:
            self._flush_and_end()

    def abort(self) -> None:
        """Close now; what is queued is lost."""
        self._end(None)

    def __repr__(self) -> str:
        return f"<Peer {self.address}, {self._phase.value}>"

    # --- for the loop

    def fileno(self) -> int:
        """The socket's descriptor, for the selector."""
        return self._sock.fileno()

    def start(self, seconds: float) -> None:
        """Begin the handshake, which must be over in so many seconds."""
        self._timer = self._loop.call_later(seconds, lambda: self._late(seconds))
        if self._phase is Phase.PROVING:
            self._greet()
        else:
            self._loop.rearm(self)

    def interest(self) -> int:
        """The selector events to wait for."""
        if self._phase is Phase.CLOSED:
            return 0
        if self._phase is Phase.CONNECTING:
            return selectors.EVENT_WRITE
        if self._phase is Phase.SECURING:
            return self._wants
        reads = 0 if self._saw_end else selectors.EVENT_READ
        return reads | (selectors.EVENT_WRITE if self._out.pending else 0)

    def handle(self, events: int) -> None:
        """The selector saw these events."""
        if self._phase is Phase.SECURING:
            self._secure()
            return
        if events & selectors.EVENT_WRITE:
            if self._phase is Phase.CONNECTING:
                self._connected()
            elif self._out.pending:
                self.write()
        if events & selectors.EVENT_READ:
            if self._phase is Phase.OPEN:
                self._read_frame()
            elif self._phase is Phase.PROVING:
                self._read_handshake()
            elif self._phase in (Phase.FLUSHING, Phase.ENDING):
                self._drop_input()
        if self._phase is not Phase.CLOSED and tls.unread(self._sock):
            self._loop.unread(self)

    def turn_away(self, error: BaseException) -> None:
        """Close a caller that has proven nothing."""
        self._loop.failed(self, error)
        self._end(error)

    def look(self) -> None:
        """End the connection if the other host is gone. One that was never there is for the handshake's deadline."""
        if self._phase not in (Phase.CONNECTING, Phase.CLOSED) and silence.is_silent(self._sock):
            self._end(sockets.closed(self.address, silence.describe()))

    def write(self) -> None:
        """Give the socket what it takes of the queue."""
        try:
            self._out.sent(self._sock.sendmsg(self._out.next_vectors()))
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._end(sockets.closed(self.address, f"while sending ({error})"))
            return
        if self._phase is Phase.FLUSHING and not self._out.pending:
            self._written()
        self._loop.rearm(self)

    def fail(self, error: BaseException) -> None:
        """Close because of an error: what is queued is still written."""
        if self._phase in (Phase.SECURING, Phase.PROVING, Phase.OPEN):
            self.reason = error
            self._flush_and_end()

    # --- inside

    def _connected(self) -> None:
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            kind = Unanswered if code == errno.ETIMEDOUT else WorkerUnreachable
            self._end(sockets.unreachable(self.address, os.strerror(code), kind))
            return
        if self._securing is None:
            self._phase = Phase.PROVING
            self._greet()
        else:
            self._phase = Phase.SECURING
            self._secure()

    def _secure(self) -> None:
        assert self._securing is not None
        try:
            self._sock, self._wants = self._securing.advance(self._sock)
        except tls.PlainCaller:
            error = ProtocolError("a caller does not encrypt, and this cluster does: its connection was refused")
            self._out.push([memoryview(TLS_ONLY)])
            self._fail_handshake(sockets.at_address(error, self.address))
            return
        except OSError as problem:
            self._fail_handshake(sockets.not_secured(self.address, problem), linger=True)
            return
        if self._wants:
            self._loop.rearm(self)
            return
        self._securing = None
        self._phase = Phase.PROVING
        self._greet()

    def _greet(self) -> None:
        assert self._handshake is not None
        greeting = self._handshake.start()
        if greeting:
            self._out.push([memoryview(greeting)])
            self.write()
        else:
            self._loop.rearm(self)

    def _read_handshake(self) -> None:
        assert self._handshake is not None
        data = self._receive(self._handshake.wanted)
        if data is None:
            return
        step = self._handshake.receive(data)
        if step.reply:
            self._out.push([memoryview(step.reply)])
        if step.error is not None:
            self._fail_handshake(sockets.at_address(step.error, self.address))
            return
        if step.done:
            self._handshake = None
            self._stop_timer()
            self._phase = Phase.OPEN
            self._out.push(self._held.take_all())
            self.known = True
            self._loop.opened(self)
            if self._close_when_open:
                self.close()
        if self._out.pending and self._phase is not Phase.CLOSED:
            self.write()

    def _read_frame(self) -> None:
        allowance = _READ_PER_TURN
        while True:
            space = self._reader.space()
            size = min(len(space), allowance)
            try:
                got = self._sock.recv_into(space, size)
                if not got:
                    where = "by the other end" if self._reader.between_frames else "in the middle of a frame"
                    self._end(sockets.closed(self.address, where))
                    return
                frame = self._reader.filled(got)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._end(sockets.closed(self.address, f"while receiving ({error})"))
                return
            except (ProtocolError, MemoryError) as error:
                # The place of the next frame in the stream is not known, so nothing more can be read.
                if isinstance(error, MemoryError):
                    error = sockets.no_memory()
                named = sockets.at_address(error, self.address)
                self._loop.failed(self, named)
                self._end(named)
                return
            if frame is not None:
                self._loop.arrived(self, frame)
                return
            allowance -= got
            if got < size or not allowance:
                return

    def _drop_input(self) -> None:
        data = self._receive(64 * 1024)
        self._strange += 0 if self.known else len(data or b"")
        if self._strange > _STRANGERS_BYTES:
            self._end(None)  # a stranger that goes on talking after its refusal
        elif self._saw_end and self._phase is Phase.ENDING:
            self._end(None)
        else:
            self._loop.rearm(self)

    def _receive(self, size: int) -> bytes | None:
        """Some bytes, or None if there are none now or ever; the end is then noted or acted on."""
        try:
            data = self._sock.recv(size)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            self._end(sockets.closed(self.address, f"while receiving ({error})"))
            return None
        if data:
            return data
        self._saw_end = True
        if self._phase is Phase.PROVING:
            self._end(sockets.closed(self.address, "by the other end during the handshake"))
        return None

    def _late(self, seconds: float) -> None:
        error = sockets.unreachable(self.address, f"no handshake within {seconds:g} seconds", Unanswered)
        self._fail_handshake(error)

    def _fail_handshake(self, error: BaseException, *, linger: bool = False) -> None:
        if not self.known:  # else on_close tells
            self._loop.failed(self, error)
        if self._out.pending or linger:  # a verdict, or TLS's own, is still to arrive
            self.fail(error)
        else:
            self._end(error)

    def _flush_and_end(self) -> None:
        self._stop_timer()
        self._held.take_all()
        self._phase = Phase.FLUSHING
        self._timer = self._loop.call_later(_LINGER_SECONDS, self.abort)
        if self._out.pending:
            self.write()
        else:
            self._written()
            self._loop.rearm(self)

    def _written(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._end(None)
            return
        self._phase = Phase.ENDING
        self._retire()
        if self._saw_end:
            self._end(None)

    def _end(self, reason: BaseException | None) -> None:
        if self._phase is Phase.CLOSED:
            return
        if not self._retired:
            self.reason = self.reason or reason
        self._stop_timer()
        self._phase = Phase.CLOSED
        self._loop.closed(self)
        self._sock.close()
        self._out.take_all()
        self._held.take_all()
        self._retire()

    def _retire(self) -> None:
        if not self._retired:
            self._retired = True
            self._loop.retired(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
