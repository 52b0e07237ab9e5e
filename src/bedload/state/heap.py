"""The type of a priority queue, for annotations: ``bl.Heap[float]``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, SupportsIndex, TypeVar, overload

T = TypeVar("T")


class Heap(Generic[T]):
    """A priority queue, the smallest item first: what ``heapq`` makes of a list, as an object.

    Declare one as ``queue: bl.Heap[tuple[int, str]] = bl.heap()``. It iterates, compares and prints as the list of its
    items in heap order; ``sorted(queue)`` has them in theirs.
    """

    __slots__ = ()

    def push(self, item: T, /) -> None:
        """Put an item in. Into a full heap of a ``maxlen``: as :meth:`pushpop`, so the largest so many stay."""
        raise NotImplementedError

    def pop(self) -> T:
        """Take the smallest item out."""
        raise NotImplementedError

    def pushpop(self, item: T, /) -> T:
        """Put an item in, then take the smallest out, which may be that item."""
        raise NotImplementedError

    def replace(self, item: T, /) -> T:
        """Take the smallest item out, then put one in."""
        raise NotImplementedError

    def extend(self, items: Iterable[T], /) -> None:
        """Put many items in."""
        raise NotImplementedError

    def clear(self) -> None:
        """Take all items out."""
        raise NotImplementedError

    def peek(self) -> T:
        """The smallest item."""
        raise NotImplementedError

    def nsmallest(self, n: int, key: Callable[[T], Any] | None = None) -> list[T]:
        """The smallest so many items, in order."""
        raise NotImplementedError

    def nlargest(self, n: int, key: Callable[[T], Any] | None = None) -> list[T]:
        """The largest so many items, the largest first."""
        raise NotImplementedError

    def copy(self) -> list[T]:
        """A plain list of the items, in heap order."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Iterator[T]:
        raise NotImplementedError

    def __contains__(self, item: object) -> bool:
        raise NotImplementedError

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError
