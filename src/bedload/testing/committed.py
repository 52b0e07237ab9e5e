"""The committed state, as tests look at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


class CommittedState(Mapping[Any, dict[str, Any]]):
    """The committed state of every key that has some: a mapping from key to state variables.

    ``state["a"]`` raises a KeyError if the key has no state; ``state.get("a")``, or ``state("a")``, gives None then.
    A composite key is a tuple, in the order of the key's columns.
    """

    def __init__(
        self, read: Callable[[Any], dict[str, Any] | None], snapshot: Callable[[], dict[Any, dict[str, Any]]]
    ) -> None:
        self._read = read
        self._snapshot = snapshot

    def __call__(self, key: Any) -> dict[str, Any] | None:
        """The state of a key; None if it has none."""
        return self._read(key)

    def __getitem__(self, key: Any) -> dict[str, Any]:
        found = self._read(key)
        if found is None:
            raise KeyError(f"key {key!r} has no committed state; commit the epoch if it is one of its keys")
        return found

    def __iter__(self) -> Iterator[Any]:
        return iter(self._snapshot())

    def __len__(self) -> int:
        return len(self._snapshot())

    def __repr__(self) -> str:
        return f"CommittedState({self._snapshot()!r})"
