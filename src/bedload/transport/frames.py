"""Frames: the unit of every conversation between driver, workers and feeders.

A frame is a fixed prefix (magic, header length, body length), the header's bytes and the body's
bytes. Transport reads neither of the two: the header is a message that the protocol layer encodes,
the body is bulk data, usually an Arrow IPC stream.

Invariants:

- Nothing here does I/O. :class:`FrameReader` says where the next bytes go and is told how many came;
  :class:`SendQueue` says which bytes go next and is told how many went.
- A reader never asks for more bytes than its current frame has left. So nothing of a later frame
  waits in user space, and "the socket is readable" always means "there is something to do".
- A body is copied once, by the kernel, into memory that belongs to the receiver alone. It starts at
  a multiple of 64 bytes, so Arrow and NumPy use it in place.

Header and body share one allocation, the header right before the body: a frame costs two reads (the
prefix, then the rest) however many buffers its sender gathered it from.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bedload.core.errors import ProtocolError, TooLarge

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MAGIC = b"BLF1"
"""Starts every frame; the digit is the version of the frame's layout."""

MAX_HEADER = 64 * 1024 * 1024
MAX_BODY = 4 * 1024 * 1024 * 1024
ALIGNMENT = 64
"""What Arrow recommends for its buffers: one cache line, one AVX-512 register."""

_PREFIX = struct.Struct("<4sIQ")
_JOIN_UP_TO = 64 * 1024
"""A header up to this size is joined to its prefix: copying it costs less than another I/O vector."""

_MAX_VECTORS = 512
"""Buffers in one ``sendmsg``. Linux and macOS take 1,024 and refuse more."""


class Frame(NamedTuple):
    """A whole frame as it was received."""

    header: bytes
    body: memoryview | None
    """None if the frame has no body. The memory is writable and the receiver's own."""


def encode_frame(header: ReadableBuffer, buffers: Iterable[ReadableBuffer] = ()) -> list[memoryview]:
    """The frame as views to send in order. The buffers are not copied: leave them unchanged until sent."""
    head = _bytes_view(header)
    body = [view for view in map(_bytes_view, buffers) if view.nbytes]
    body_size = sum(view.nbytes for view in body)
    if not _fits(head.nbytes, body_size):
        raise TooLarge(
            f"a message has a header of {head.nbytes:,} bytes and {body_size:,} bytes of rows or state, and at most "
            f"{MAX_HEADER:,} and {MAX_BODY:,} can be sent at once; nothing was sent. Make batches smaller "
            f"(spark.sql.execution.arrow.maxRecordsPerBatch), or rows, outputs or states, or use more key groups",
            header_size=head.nbytes,
            body_size=body_size,
        )
    prefix = _PREFIX.pack(MAGIC, head.nbytes, body_size)
    if head.nbytes <= _JOIN_UP_TO:
        return [memoryview(prefix + head), *body]
    return [memoryview(prefix), head, *body]


class FrameReader:
    """Assembles frames from bytes that come in pieces of any size.

    Fill the start of :meth:`space`, say how much with :meth:`filled`, until that returns a frame.
    """

    def __init__(self) -> None:
        self._prefix = memoryview(bytearray(_PREFIX.size))
        self._header_size = -1  # not known until the prefix is whole
        self._space = self._prefix
        self._at = 0

    @property
    def between_frames(self) -> bool:
        """True if no byte of the next frame has come: the place where a stream may end."""
        return self._at == 0 and self._header_size < 0

    def space(self) -> memoryview:
        """Where the next bytes go. Never empty, never longer than what the frame has left."""
        return self._space[self._at :]

    def filled(self, size: int) -> Frame | None:
        """Take note of ``size`` bytes written to :meth:`space`; return the frame that they completed."""
        self._at += size
        if self._at < len(self._space):
            return None
        if self._header_size < 0:
            magic, header_size, body_size = _PREFIX.unpack(self._prefix)
            if magic != MAGIC:
                raise ProtocolError(
                    f"expected the start of a frame, got {bytes(magic)!r}: the stream is damaged, "
                    "or the other end does not speak this protocol; close the connection"
                )
            if not _fits(header_size, body_size):
                raise ProtocolError(
                    f"a frame that came says that it has a header of {header_size:,} and a body of {body_size:,} "
                    f"bytes, more than one may have: the stream is damaged; close the connection",
                    header_size=header_size,
                    body_size=body_size,
                )
            self._header_size = header_size
            self._at = 0
            self._space = _allocate(header_size, body_size)
            if self._space.nbytes:
                return None
        whole, header_size = self._space, self._header_size
        self._space, self._at, self._header_size = self._prefix, 0, -1
        # The header is copied out so that keeping it does not keep the whole body.
        return Frame(bytes(whole[:header_size]), whole[header_size:] if len(whole) > header_size else None)


class SendQueue:
    """Bytes on their way out, as the buffers they came in."""

    def __init__(self) -> None:
        self._views: deque[memoryview] = deque()
        self.pending = 0
        """Bytes that have not gone yet."""

    def push(self, views: Iterable[memoryview]) -> None:
        """Append views, none of them empty."""
        for view in views:
            self._views.append(view)
            self.pending += view.nbytes

    def take_all(self) -> list[memoryview]:
        """Empty the queue."""
        views = list(self._views)
        self._views.clear()
        self.pending = 0
        return views

    def next_vectors(self) -> list[memoryview]:
        """What to give to one ``sendmsg``."""
        return list(islice(self._views, _MAX_VECTORS))

    def sent(self, size: int) -> None:
        """Take note that the first ``size`` bytes have gone; their buffers are let go."""
        self.pending -= size
        views = self._views
        while size:
            first = views[0]
            if size < first.nbytes:
                views[0] = first[size:]
                return
            size -= first.nbytes
            views.popleft()


def _bytes_view(buffer: ReadableBuffer) -> memoryview:
    view = memoryview(buffer)
    if view.format == "B" and view.ndim == 1 and view.contiguous:
        return view
    # An empty view of another shape cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(b"")


def _allocate(header_size: int, body_size: int) -> memoryview:
    """Room for a header and a body, of which the body starts aligned."""
    size = header_size + body_size
    if not body_size:
        return memoryview(bytearray(size))
    # Not zeroed: every byte is received before anybody sees it, and a damaged length touches no page.
    room = np.empty(size + ALIGNMENT - 1, np.uint8)
    skip = -(int(room.__array_interface__["data"][0]) + header_size) % ALIGNMENT
    return room.data[skip : skip + size]


def _fits(header_size: int, body_size: int) -> bool:
    return header_size <= MAX_HEADER and body_size <= MAX_BODY
