"""What an endpoint tells whoever uses it."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod

from bedload.transport.peer import Peer

_log = logging.getLogger(__name__)


class Handler(ABC):
    """What an endpoint tells of its peers. Override ``on_frame``, and the others as needed."""

    @abstractmethod
    def on_frame(self, peer: Peer, header: bytes, body: memoryview | None) -> None:
        """A frame came. The body's memory is the handler's to keep."""

    def on_open(self, peer: Peer) -> None:  # noqa: B027 - optional, not forgotten
        """A peer that called has proven itself, or one that ``connect_soon`` called is now connected."""

    def on_close(self, peer: Peer) -> None:  # noqa: B027 - optional, not forgotten
        """Nothing more comes from this peer; ``peer.reason`` says why, None if this end closed it."""

    def on_error(self, peer: Peer | None, error: BaseException) -> None:
        """Something failed: a caller's handshake, a damaged frame, this handler, or a callback (no peer)."""
        _log.error("%s: %s", peer or "callback", error, exc_info=error)

    def on_no_room(self, error: OSError) -> None:
        """The process has no descriptor or memory for a caller, which waits until there is some. Nothing is lost."""
        _log.error("a caller cannot be let in yet (%s): allow this process more open files (ulimit -n)", error)
