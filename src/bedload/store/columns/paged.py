"""Arrays of which parts lie on a local disk: in slabs, each of which is *held* in memory or *laid down* in a file.

What is laid down stays where it is for all that use it: in its place in memory there is the file itself, of which the
system brings a page when it is touched, and keeps it as long as it likes. So kernels, views and addresses know nothing
of it. The file is as a swap partition would be, but of one array, and nothing is in it that was not laid down.

Invariants: the bytes of the window are the same whether a slab is held or laid down; a slab is laid down when its bytes
are in the file, and not before; what the window leaves is given back in memory and in the file.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bedload.core.errors import LocalDiskError
from bedload.store.columns.memory import GrowingArray, Memory

SLAB = 1 << 21
"""Bytes of a slab: a huge page, which is given back as a whole, and a millisecond of writing."""
_RESERVED = 1 << 34
"""Bytes of address space for an array: eight for each slot that there can be."""
_UNITS = 16
"""Parts of a slab of eight bytes a slot, by which touches are counted."""
_SAMPLED = 4
"""Of so many touches one is counted."""

Flags = npt.NDArray[np.bool_]
Heat = npt.NDArray[np.float64]


class Backing(Protocol):
    """A file for the slabs of one array. ``at``: where in it; ``address`` and ``size``: of memory, whole pages."""

    lost: LocalDiskError | None
    """Why something is not there as it was written, if that is known."""

    def check(self) -> None:
        """Find that out, also of what the system was to write later."""
        ...

    def lay_down(self, address: int, size: int, at: int) -> None:
        """Write this memory to the file, and have it be the file. If it raises LocalDiskError, all is as it was."""
        ...

    def take_up(self, address: int, size: int, at: int) -> None:
        """Have it be memory again, with what is in the file. If it raises LocalDiskError, all is as it was."""
        ...

    def let_go(self, address: int, size: int) -> None:
        """What was laid down need not be in memory."""
        ...

    def clear(self, address: int, size: int, at: int) -> None:
        """Have it be new memory, and give the place in the file back."""
        ...

    def size(self) -> int:
        """The bytes that it takes on the disk."""
        ...

    def close(self) -> None:
        """Nobody needs it any more."""
        ...


class PagedArray(GrowingArray):
    """An array of numbers of one type, whose slabs may be laid down."""

    __slots__ = ("_backing", "_base", "_laid", "_make", "_slab", "_slots", "laid_bytes", "laid_down", "written_bytes")

    reserved = _RESERVED

    def __init__(
        self, dtype: npt.DTypeLike, width: int | None, slab: int, make: Callable[[], Backing], *, slots: bool
    ) -> None:
        """``make``: makes an empty file; ``slots``: whether it has something for each slot."""
        super().__init__(dtype, width)
        self._slab, self._make, self._slots = slab, make, slots
        self._backing: Backing | None = None
        self._base = 0
        """The address where what is reserved begins."""
        self._laid: Flags = np.zeros(0, np.bool_)
        """By slab, from the one on that has the beginning of what is reserved."""
        self.laid_bytes = 0
        """Of the window."""
        self.laid_down = self.written_bytes = 0
        """How many slabs were laid down so far, and their bytes."""

    @property
    def small(self) -> int:  # type: ignore[override]
        """With fewer bytes it is a plain array."""
        return self._slab // 512

    @property
    def held_bytes(self) -> int:
        """Of the window."""
        return self.nbytes - self.laid_bytes

    @property
    def disk_bytes(self) -> int:
        """What it takes on the disk."""
        return 0 if self._backing is None else self._backing.size()

    def slabs(self) -> tuple[int, int]:
        """The slabs that have bytes of the window: the first, and the one after the last."""
        if self._map is None or not self.nbytes:
            return 0, 0
        begin = self._lead + self._offset
        return begin // self._slab, -(-(begin + self.nbytes) // self._slab)

    def laid(self) -> Flags:
        """Of those slabs, which are laid down."""
        first, end = self.slabs()
        if len(self._laid) < end:
            self._laid = np.append(self._laid, np.zeros(end + end // 4 - len(self._laid), np.bool_))
        return self._laid[first:end]

    def heat(self, counted: Heat, unit: int, rows: float) -> Heat:
        """How often each of those slabs was touched. ``counted``: by so many slots, summed; ``rows``: in all."""
        first, end = self.slabs()
        if not self._slots:
            return np.full(end - first, rows * self._slab / max(self.nbytes, 1))
        bounds = np.arange(first, end + 1) * self._slab - self._lead - self._offset
        places = np.clip(bounds / (self._row * unit), 0, len(counted) - 1)
        return np.diff(np.interp(places, np.arange(len(counted)), counted))

    def lay_down(self, number: int) -> None:
        """Lay one of those slabs down. Raises LocalDiskError."""
        if self._backing is None:
            self._backing = self._make()
        begin, end = self._span(number)
        self._backing.lay_down(self._base + begin, end - begin, begin)
        self.laid()[number] = True
        self.laid_down += 1
        self.written_bytes += end - begin
        self._count()

    def take_up(self, number: int) -> None:
        """Have one of those slabs in memory again. Raises LocalDiskError."""
        assert self._backing is not None
        begin, end = self._span(number)
        self._backing.take_up(self._base + begin, end - begin, begin)
        self.laid()[number] = False
        self._count()

    def let_go(self) -> None:
        """No page of what is laid down has to be in memory."""
        if self._backing is None or not self.laid_bytes:
            return
        edges = np.flatnonzero(np.diff(np.concatenate(([False], self.laid(), [False])).astype(np.int8)))
        for low, high in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            begin, end = self._span(low)[0], self._span(high - 1)[1]
            self._backing.let_go(self._base + begin, end - begin)

    def check(self) -> None:
        """Raise LocalDiskError if something that was laid down is not there as it was."""
        if self._backing is not None:
            self._backing.check()
            if self._backing.lost is not None:
                raise self._backing.lost

    def close(self) -> None:
        """Nobody needs it any more."""
        if self._backing is not None:
            self._backing.close()

    def resize(self, length: int) -> None:
        """Make the window this long; what is behind it is given back."""
        super().resize(length)
        if self._backing is not None:
            self._count()

    def _leave(self, reserved: mmap.mmap, begin: int, end: int) -> None:
        super()._leave(reserved, begin, end)
        if self._backing is None:
            return
        for slab in np.flatnonzero(self._laid).tolist():
            low, high = self._bounds(slab)
            if low >= begin:
                self._backing.clear(self._base + low, high - low, low)
                self._laid[slab] = False

    def _move(self, length: int, size: int) -> None:
        before, self._backing = self._backing, None
        super()._move(length, size)
        self._laid, self.laid_bytes = np.zeros(0, np.bool_), 0
        if self._map is not None:
            self._base = int(np.frombuffer(self._map, np.uint8, 1).__array_interface__["data"][0])
        if before is not None:
            before.close()

    @property
    def _lead(self) -> int:
        """So many bytes before that begins the first slab: slabs are huge pages."""
        return self._base % self._slab

    def _span(self, number: int) -> tuple[int, int]:
        return self._bounds(self.slabs()[0] + number)

    def _bounds(self, slab: int) -> tuple[int, int]:
        """Where a slab begins and ends in what is reserved."""
        assert self._map is not None
        begin = slab * self._slab - self._lead
        return max(begin, 0), min(begin + self._slab, len(self._map))

    def _count(self) -> None:
        """Count the bytes of the window that are laid down."""
        laid = np.flatnonzero(self.laid())
        if not len(laid):
            self.laid_bytes = 0
            return
        first, _ = self.slabs()
        begins = (laid + first) * self._slab - self._lead
        ends = np.minimum(begins + self._slab, self._offset + self.nbytes)
        self.laid_bytes = int((ends - np.maximum(begins, self._offset)).sum())


class PagedMemory(Memory):
    """Where the arrays of one table are, and how often its slots were touched of late."""

    def __init__(self, make: Callable[[], Backing], slab: int = SLAB) -> None:
        self.arrays: list[PagedArray] = []
        self._make, self._slab = make, slab
        self._shift = max(0, (slab // 8 // _UNITS).bit_length() - 1)
        self._touches: Heat = np.zeros(0)
        self._rows = 0.0
        self.read_bytes = 0
        """Pages that came back to memory, in bytes."""

    def by_slot(self, dtype: npt.DTypeLike, width: int | None = None) -> GrowingArray:
        """An array with something for each slot."""
        return self._add(PagedArray(dtype, width, self._slab, self._make, slots=True))

    def other(self, dtype: npt.DTypeLike) -> GrowingArray:
        """One in which keys have no place of their own."""
        return self._add(PagedArray(dtype, None, self._slab, self._make, slots=False))

    def _add(self, array: PagedArray) -> PagedArray:
        self.arrays.append(array)
        return array

    @property
    def held_bytes(self) -> int:
        """What is in memory, without the pages of what is laid down."""
        return sum(array.held_bytes for array in self.arrays)

    @property
    def laid_bytes(self) -> int:
        """What is laid down."""
        return sum(array.laid_bytes for array in self.arrays)

    @property
    def disk_bytes(self) -> int:
        """What it takes on the disk."""
        return sum(array.disk_bytes for array in self.arrays)

    def warm(self, slots: npt.NDArray[Any]) -> None:
        """Count touches of slots."""
        counted = np.bincount(slots[::_SAMPLED] >> self._shift)
        if len(counted) > len(self._touches):
            self._touches = np.append(self._touches, np.zeros(len(counted) - len(self._touches)))
        self._touches[: len(counted)] += counted
        self._rows += len(slots) / _SAMPLED

    def cool(self) -> None:
        """What was touched before counts half."""
        self._touches *= 0.5
        self._rows *= 0.5

    def heat(self) -> list[Heat]:
        """How often each slab was touched, by array."""
        counted = np.concatenate(([0.0], np.cumsum(self._touches)))
        return [array.heat(counted, 1 << self._shift, self._rows) for array in self.arrays]

    def close(self) -> None:
        """Nobody needs it any more."""
        for array in self.arrays:
            array.close()
