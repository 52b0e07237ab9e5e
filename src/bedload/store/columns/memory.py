"""Arrays that grow and shrink in place.

Each is a window at the front of a range of addresses that is reserved once; the system gives memory to a page when
it is first written. So growing copies nothing, whatever is there already, and costs what the new pages cost.

Invariants: what is in the window stays as it is, and where it is, while the window grows within the reservation. New
room is zero unless the window was there before. ``nbytes`` is the window: an address without memory is not counted.

Why: with copies, the batch that meets a full table of two million keys would wait some ten milliseconds for each
of its arrays. Where a reservation is refused (address space limits, strict overcommit, other systems than Unix) growing
copies, and all else is the same.

Whole huge pages within the window, and within what is foreseen of it, are asked for as such: memory that is first
written costs a sixth then (0.06 ms a megabyte instead of 0.36, measured), and keys are found with fewer misses. In an
array that is large the page at its end is one, too, or it would get none as it grows. What is else not a whole page of
the window is of small ones, so that an array takes hardly more memory than it says.
"""

from __future__ import annotations

import itertools
import mmap
import sys
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

_RESERVED = 2**30
"""Bytes of address space for each array at first: 134 million numbers of eight bytes."""
_MORE = 8
"""A reservation that is full is followed by one this many times as large."""
_SMALL = 2**12
"""Arrays below this many bytes are plain ones: most tables of tests, and columns nobody uses."""
_SLACK = 2**14
"""Bytes that an array grows by at least: to make room means to leave a kernel and come back."""
_STAGGER = 3 * 64
"""Bytes by which the beginnings of arrays differ, within a page: three cache lines."""
_HUGE = 2**21
"""Bytes of a huge page, where there are any."""
_LARGE = 2**25
"""Bytes of an array from which on one huge page more than it needs does not matter."""
_PLACES = 31
_made = itertools.count()
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
"""Linux's MAP_NORESERVE, which Python names only from 3.13 on; others reserve nothing ahead anyway."""


class GrowingArray:
    """An array of numbers of one type; ``width`` makes it two-dimensional, with that many in a row."""

    __slots__ = ("_dtype", "_map", "_offset", "_row", "_shape", "array")

    reserved = 0
    """Bytes of address space at first, if that is more than the usual."""
    small = _SMALL
    """With fewer bytes it is a plain array."""

    def __init__(self, dtype: npt.DTypeLike, width: int | None = None) -> None:
        self._dtype = np.dtype(dtype)
        self._shape: tuple[int, ...] = () if width is None else (width,)
        self._row = self._dtype.itemsize * (1 if width is None else width)
        self._map: mmap.mmap | None = None
        # SUBTLE: reservations lie at multiples of their size. Arrays that all began there would have equal slots at
        # equal low address bits, and a kernel on three of them was measured at 30 ns per row instead of 2.
        # And they would all come to their next huge page with the same slot, in one step.
        self._offset = next(_made) % _PLACES * (_STAGGER + _HUGE // (_PLACES + 1))
        self.array: npt.NDArray[Any] = np.zeros((0, *self._shape), self._dtype)
        """The window. It is replaced when it grows, as a view of the same memory if that was reserved."""

    def __len__(self) -> int:
        return len(self.array)

    @property
    def nbytes(self) -> int:
        """Bytes of the window."""
        return self.array.nbytes

    def resize(self, length: int) -> None:
        """Make the window this long; memory behind it goes back to the system."""
        old = len(self.array)
        if length == old:
            return
        size = length * self._row
        if self._map is None or self._offset + size > len(self._map):
            self._move(length, size)
            return
        self.array = self._window(self._map, length)
        if length < old:
            self._leave(self._map, self._offset + size, self._offset + old * self._row)
        else:
            self._prefer_huge(old * self._row, size)

    def foresee(self, length: int) -> None:
        """The window will be about so long: ask for huge pages up to there."""
        size = length * self._row
        if self._map is None and size > self.small:
            self._move(len(self.array), size)
        self._prefer_huge(self.nbytes, size)

    def at_least(self, length: int) -> None:
        """Make room for this many, and for some more."""
        if length > len(self.array):
            # What costs a copy must not come often.
            self.resize(length + max(_SLACK // self._row, length // (4 if self._map is None else 16)))

    def _move(self, length: int, size: int) -> None:
        old, kept = self.array, min(length, len(self.array))
        self._map = None
        if size > self.small:
            wanted = _RESERVED
            while wanted < self._offset + size:
                wanted *= _MORE
            self._map = (_reserve(self.reserved) if wanted < self.reserved else None) or _reserve(wanted)
        if self._map is None:
            self.array = np.zeros((length, *self._shape), self._dtype)
        else:
            self.array = self._window(self._map, length)
            self._prefer_huge(0, size)
        self.array[:kept] = old[:kept]

    def _leave(self, reserved: mmap.mmap, begin: int, end: int) -> None:
        """The window does not reach there any more, from one place of what is reserved to another."""
        _give_back(reserved, begin, end)

    def _prefer_huge(self, since: int, size: int) -> None:
        """Ask for huge pages, whole ones, from one number of bytes to another."""
        advice = getattr(mmap, "MADV_HUGEPAGE", None)
        if self._map is None or advice is None:
            return
        size = min(size + (_HUGE if size >= _LARGE else 0), len(self._map) - self._offset)
        start = int(self.array.__array_interface__["data"][0])
        # A page that the window covered in part is in use, in small ones.
        begin, end = -(-(start + since) // _HUGE) * _HUGE, (start + size) // _HUGE * _HUGE
        if begin < end:
            with suppress(OSError):  # a system without them
                self._map.madvise(advice, begin - start + self._offset, end - begin)

    def _window(self, reserved: mmap.mmap, length: int) -> npt.NDArray[Any]:
        count = length * self._row // self._dtype.itemsize
        if not count:
            return np.zeros((0, *self._shape), self._dtype)
        return np.frombuffer(reserved, self._dtype, count, self._offset).reshape(length, *self._shape)


class Memory:
    """Where the arrays of a table are that grow with its keys."""

    def by_slot(self, dtype: npt.DTypeLike, width: int | None = None) -> GrowingArray:
        """An array with something for each slot."""
        return GrowingArray(dtype, width)

    def other(self, dtype: npt.DTypeLike) -> GrowingArray:
        """One in which keys have no place of their own."""
        return GrowingArray(dtype)


PLAIN = Memory()
"""All of it is in memory."""


def scattered(length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Zeros that are written to here and there: of small pages, or a few writes would take all of the huge ones.

    A huge page that is first written takes 0.1 ms, and 1 to 2 ms where the host has to find its memory: that is often
    so for huge ones, which hosts are given back, and less often for small ones.
    """
    size = length * np.dtype(dtype).itemsize
    reserved = _reserve(size) if size >= _HUGE else None
    if reserved is None:
        return np.zeros(length, dtype)
    advice = getattr(mmap, "MADV_NOHUGEPAGE", None)
    if advice is not None:
        with suppress(OSError):  # a system without huge ones
            reserved.madvise(advice)
    return np.frombuffer(reserved, dtype, length)


def give_back(scattered: npt.NDArray[Any], begin: int, end: int) -> None:
    """Let go of the memory of items that nobody looks at any more; what is :func:`scattered` is left as zeros."""
    reserved = getattr(scattered.base, "obj", None)
    if isinstance(reserved, mmap.mmap):
        _give_back(reserved, begin * scattered.itemsize, end * scattered.itemsize)


def _reserve(size: int) -> mmap.mmap | None:
    private, anonymous = getattr(mmap, "MAP_PRIVATE", None), getattr(mmap, "MAP_ANONYMOUS", None)
    if private is None or anonymous is None:
        return None
    try:
        return mmap.mmap(-1, size, flags=private | anonymous | _NO_RESERVE)
    except (OSError, ValueError, OverflowError):
        return None


def _give_back(reserved: mmap.mmap, begin: int, end: int) -> None:
    """Let go of the whole pages between two places."""
    dont_need = getattr(mmap, "MADV_DONTNEED", None)
    begin += -begin % mmap.PAGESIZE
    end += -end % mmap.PAGESIZE
    if dont_need is not None and end > begin:
        reserved.madvise(dont_need, begin, end - begin)
