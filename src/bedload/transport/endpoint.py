"""A server on one thread: accepts, authenticates, reads, writes and keeps time for many peers.

Invariants:

- The handler, and everything given to ``call_soon`` and ``call_later``, runs on the thread of
  :meth:`Endpoint.run`, one call at a time and never one inside another: a handler needs no locks, and
  a worker built on it is a state machine that sees one event after another.
- No exception of a handler or callback ends the loop. It is reported to ``on_error``; if it
  happened on behalf of a peer, that peer is closed.
- Each turn serves every ready peer once (one frame at most), then due timers, then the callbacks that
  were waiting when the turn began.
- A function that ``call_soon`` accepted is run, even when the loop is being stopped.
- ``on_close`` is called once for every peer that the handler knows: one that ``on_open`` was called for,
  or that ``connect`` or ``connect_soon`` returned.

The clock only decides when timers are due, so a test owns the time by passing its own.
"""

from __future__ import annotations

import errno
import logging
import secrets
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from bedload.core.clock import Clock, SystemClock
from bedload.core.errors import ClusterStopped, ProtocolError
from bedload.transport import silence, sockets, tls
from bedload.transport.auth import (
    PROTOCOL_VERSION,
    ClientHandshake,
    NonceSource,
    ServerHandshake,
)
from bedload.transport.credentials import Credentials
from bedload.transport.door import Door, places
from bedload.transport.frames import Frame
from bedload.transport.handler import Handler
from bedload.transport.meter import Meter, MeteredSelector
from bedload.transport.peer import Peer, Phase
from bedload.transport.timers import Timer, Timers
from bedload.transport.waker import Waker

_log = logging.getLogger(__name__)

_ACCEPTS_PER_TURN = 8
"""Few, so that who has come is heard before the next ones crowd it out."""
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ACCEPT_PAUSE_SECONDS = 1.0
_STOP_SECONDS = 2.0
"""How long a stop waits for queued frames to be taken."""


class Endpoint:
    """Listens at ``host:port`` (port 0: any free one) from its making on; serves while :meth:`run` runs.

    ``call_soon``, ``call_later``, ``connect`` and ``stop`` may be called from any thread. Peers, and
    ``connect_soon``, belong to the thread of :meth:`run`; before it runs, to whoever made the endpoint.
    """

    def __init__(
        self,
        host: str,
        port: int = 0,
        *,
        credentials: Credentials,
        handler: Handler,
        clock: Clock | None = None,
        version: str = PROTOCOL_VERSION,
        nonces: NonceSource = secrets.token_bytes,
        handshake_seconds: float = 10.0,
    ) -> None:
        self._credentials = credentials
        self._handler = handler
        self._clock = clock or SystemClock()
        self._version = version
        self._nonces = nonces
        self._door: Door[Peer] = Door(places(sockets.most_descriptors()), handshake_seconds)
        self._peers: set[Peer] = set()
        self._unread: dict[Peer, None] = {}
        self._lock = threading.Lock()  # guards _soon against a stop
        self._soon: deque[Callable[[], None]] = deque()
        self._notices: deque[Callable[[], None]] = deque()
        self._timers = Timers(self._clock)
        self._thread: int | None = None
        self._stopping = False
        self._draining = False
        self._over = False
        self._listener = sockets.listen(host, port)
        bound = self._listener.getsockname()
        self._address = sockets.format_address(bound[0], bound[1])
        self._waker = Waker()
        self._selector = MeteredSelector(self._clock)
        self._selector.register(self._waker, selectors.EVENT_READ, self._waker.woken)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    # --- from any thread

    @property
    def address(self) -> str:
        """Where it listens, as ``host:port`` with the host in numbers."""
        return self._address

    @property
    def meter(self) -> Meter:
        """How much of its time it has nothing to do."""
        return self._selector.meter

    def call_soon(self, fn: Callable[[], None]) -> None:
        """Run ``fn`` on the loop's thread, after the events at hand."""
        with self._lock:
            self._check_not_over()
            self._soon.append(fn)
            if self._thread != threading.get_ident():
                self._waker.wake()

    def call_later(self, seconds: float, fn: Callable[[], None]) -> Timer:
        """Run ``fn`` on the loop's thread after so many seconds, unless it is stopped first."""
        self._check_not_over()
        timer = Timer(self._clock.monotonic() + seconds, fn)
        if self._mine():
            self._timers.add(timer)
        else:
            self.call_soon(partial(self._timers.add, timer))
        return timer

    def connect(self, address: str, timeout: float = 10.0) -> Peer:
        """Call another endpoint; blocks until both have proven themselves.

        SUBTLE: two loops that do this to each other at the same time wait for each other until the
        time is up. Between workers use :meth:`connect_soon`.
        """
        self._check_not_over()
        handshake = partial(ClientHandshake, self._credentials.secret, self._version, self._nonces)
        sock = sockets.call(address, timeout, self._clock, handshake, self._credentials)
        sock.setblocking(False)
        peer = Peer(self, sock, address)
        self._peers.add(peer)
        if self._mine():
            self.rearm(peer)
        else:
            try:
                self.call_soon(partial(self.rearm, peer))
            except ClusterStopped:
                self._peers.discard(peer)
                sock.close()
                raise
        return peer

    def stop(self) -> None:
        """Make :meth:`run` return, after the frames sent so far have been written if that goes quickly."""
        self._stopping = True
        with self._lock:
            if not self._over:
                self._waker.wake()

    # --- on the loop's thread

    def connect_soon(self, address: str, timeout: float = 10.0) -> Peer:
        """Call another endpoint without waiting; what is sent before the connection is open is held back.

        ``on_open`` or ``on_close`` tells how it went; an address that cannot be called at all raises here.
        """
        self._check_not_over()
        handshake = ClientHandshake(self._credentials.secret, self._version, self._nonces)
        sock = sockets.start_connect(address)
        securing = tls.Securing(self._credentials, server=False) if self._credentials.encrypted else None
        peer = Peer(self, sock, address, phase=Phase.CONNECTING, handshake=handshake, securing=securing)
        self._peers.add(peer)
        peer.start(timeout)
        return peer

    def run(self) -> None:
        """Serve until :meth:`stop`; then everything is closed. An endpoint runs once."""
        if self._thread is not None or self._over:
            raise ClusterStopped(f"the endpoint at {self._address} runs already, or was stopped: make a new one")
        self._thread = threading.get_ident()
        self.call_later(silence.LOOK_SECONDS, self._look_for_silence)
        try:
            while not self._stopping:
                self._turn()
            self._drain()
        finally:
            self._shut()

    def close(self) -> None:
        """Free everything of an endpoint that does not run; one that runs is stopped with :meth:`stop`."""
        if self._thread is None and not self._over:
            self._thread = threading.get_ident()
            self._shut()

    # --- what peers tell

    def rearm(self, peer: Peer) -> None:
        """Wait for what the peer is interested in now."""
        events = peer.interest()
        if events == peer.armed or peer.phase is Phase.CLOSED:
            return
        if not peer.armed:
            self._selector.register(peer, events, peer.handle)
        elif events:
            self._selector.modify(peer, events, peer.handle)
        else:
            self._selector.unregister(peer)
        peer.armed = events

    def opened(self, peer: Peer) -> None:
        """Both ends have proven themselves."""
        self._door.left(peer)
        self._tell(peer, self._handler.on_open, peer)

    def arrived(self, peer: Peer, frame: Frame) -> None:
        """A frame is whole."""
        self._tell(peer, self._handler.on_frame, peer, frame.header, frame.body)

    def failed(self, peer: Peer, error: BaseException) -> None:
        """Report an error of the connection, but not from inside one of the handler's calls."""
        if not peer.known:
            told, untold = self._door.tells(self._clock.monotonic())
            if not told:
                return
            if untold:
                more = ProtocolError(f"{untold:,} more callers that had proven nothing were refused before this one")
                self._notices.append(partial(self._report, peer, more))
        self._notices.append(partial(self._report, peer, error))

    def retired(self, peer: Peer) -> None:
        """Tell the handler, but not from inside one of its own calls."""
        if peer.known:
            self._notices.append(partial(self._tell, peer, self._handler.on_close, peer))

    def closed(self, peer: Peer) -> None:
        """Forget a peer whose socket is about to be closed."""
        if peer.armed:
            self._selector.unregister(peer)
            peer.armed = 0
        self._peers.discard(peer)
        self._unread.pop(peer, None)
        self._door.left(peer)

    def unread(self, peer: Peer) -> None:
        """Come back to this peer, whatever the selector says."""
        self._unread[peer] = None

    # --- the loop

    def _turn(self) -> None:
        ready = self._selector.select(self._patience())
        unread, self._unread = self._unread, {}
        for key, events in ready:
            unread.pop(key.fileobj, None)  # type: ignore[call-overload]
            key.data(events)
        for peer in unread:
            peer.handle(selectors.EVENT_READ)
        if self._timers:
            self._timers.run_due(self._run)
        for queue in (self._soon, self._notices):
            for _ in range(len(queue)):
                self._run(queue.popleft())

    def _patience(self) -> float | None:
        """How long the selector may wait."""
        if self._soon or self._notices or self._unread:
            return 0
        return self._timers.patience()

    def _accept(self, _events: int) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, remote = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    continue  # the caller has gone again
                # The caller stays in the queue, the listener readable: without a pause the loop would spin.
                self._handler.on_no_room(error)
                self._selector.unregister(self._listener)
                self._make_room(self._door.oldest())
                self.call_later(_ACCEPT_PAUSE_SECONDS, self._listen_again)
                return
            try:
                sock.setblocking(False)
                sockets.tune(sock)
            except OSError:  # reset before it was served
                sock.close()
                continue
            self._admit(sock, remote[0], remote[1])

    def _admit(self, sock: socket.socket, host: str, port: int) -> None:
        credentials = self._credentials
        peer = Peer(
            self,
            sock,
            sockets.format_address(host, port),
            phase=Phase.SECURING if credentials.encrypted else Phase.PROVING,
            handshake=ServerHandshake(credentials.secret, self._version, self._nonces),
            securing=tls.Securing(credentials, server=True) if credentials.encrypted else None,
            known=False,
        )
        self._peers.add(peer)
        seconds = self._door.seconds
        self._make_room(self._door.came(peer, host))
        peer.start(seconds)

    def _make_room(self, peer: Peer | None) -> None:
        if peer is not None:
            peer.turn_away(
                ProtocolError(
                    f"{peer.address} was closed to make room: too many callers wait that have not proven that they "
                    f"belong to this cluster; see who calls {self._address}"
                )
            )

    def _look_for_silence(self) -> None:
        for peer in list(self._peers):
            peer.look()
        self.call_later(silence.LOOK_SECONDS, self._look_for_silence)

    def _listen_again(self) -> None:
        if not self._draining:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _tell(self, peer: Peer, fn: Callable[..., None], *args: object) -> None:
        try:
            fn(*args)
        except Exception as error:
            if not (self._over and isinstance(error, ClusterStopped)):
                self._report(peer, error)
            peer.fail(error)

    def _run(self, fn: Callable[[], None]) -> None:
        try:
            fn()
        except Exception as error:
            if not (self._over and isinstance(error, ClusterStopped)):
                self._report(None, error)

    def _report(self, peer: Peer | None, error: BaseException) -> None:
        try:
            self._handler.on_error(peer, error)
        except Exception:
            _log.exception("on_error failed on %s: %r", peer or "a callback", error)

    # --- waking and stopping

    def _mine(self) -> bool:
        return self._thread is None or self._thread == threading.get_ident()

    def _check_not_over(self) -> None:
        if self._over:
            raise ClusterStopped(f"the endpoint at {self._address} was stopped: make a new one")

    def _drain(self) -> None:
        self._draining = True
        for peer in list(self._peers):
            if peer.phase is Phase.OPEN and peer.pending_bytes:
                peer.close()
            elif peer.phase is not Phase.FLUSHING:
                peer.abort()
        deadline = self.call_later(_STOP_SECONDS, lambda: None)
        if self._listener in self._selector.get_map():
            self._selector.unregister(self._listener)
        while self._clock.monotonic() < deadline.due and any(p.phase is Phase.FLUSHING for p in self._peers):
            self._turn()

    def _shut(self) -> None:
        with self._lock:
            self._over = True
        self._abort_all()
        while self._soon:
            self._run(self._soon.popleft())
        self._abort_all()  # a call of connect may have been among them
        self._selector.close()
        self._listener.close()
        self._waker.close()

    def _abort_all(self) -> None:
        for peer in list(self._peers):
            peer.abort()
        while self._notices:
            self._run(self._notices.popleft())
