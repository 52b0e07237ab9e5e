"""What a peer needs of the endpoint that runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from bedload.transport.frames import Frame
from bedload.transport.timers import Timer

if TYPE_CHECKING:
    from bedload.transport.peer import Peer


class Loop(Protocol):
    """Called by the peer, on the thread that runs it."""

    def rearm(self, peer: Peer) -> None:
        """The peer waits for other events now."""
        ...

    def opened(self, peer: Peer) -> None:
        """Both ends have proven themselves."""
        ...

    def arrived(self, peer: Peer, frame: Frame) -> None:
        """A frame is whole."""
        ...

    def retired(self, peer: Peer) -> None:
        """Nothing more comes from this peer; its ``reason`` says why."""
        ...

    def failed(self, peer: Peer, error: BaseException) -> None:
        """Something is wrong with the other end that the handler should hear of."""
        ...

    def closed(self, peer: Peer) -> None:
        """The socket is about to be closed."""
        ...

    def unread(self, peer: Peer) -> None:
        """There is more to read than the selector sees."""
        ...

    def call_later(self, seconds: float, fn: Callable[[], None]) -> Timer:
        """Run ``fn`` in the loop, later."""
        ...
