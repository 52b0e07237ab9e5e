"""What is meant by the lots of a move in what a worker has: keys that go, and keys that have come."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np

from bedload.core.ids import KeyGroup
from bedload.protocol.messages import Lot
from bedload.store.selection import Selection
from bedload.store.shelf import Shelf

_SOME = 1 << 12
"""Keys to look at in a step. Single ones are found by a look at all of their key groups."""


class State(Protocol):
    """What a worker has of an operator's state."""

    def shelve(self, selection: Selection) -> Shelf:
        """The keys that are meant, to go elsewhere."""
        ...

    def keys_in(self, groups: Collection[KeyGroup]) -> int:
        """The number of keys with state in these key groups."""
        ...


def shelve(state: State, lot: Lot, *, named: bool = True, key_groups: int | None = None) -> Shelf:
    """What passes from one worker to another; without names if it can be. ``key_groups``: how many there are."""
    stay, keys = np.array(lot.stay, np.int64), np.array(lot.keys, np.int64)
    named = named or bool(lot.stay or lot.keys)
    return state.shelve(Selection(lot.groups, stay, lot.key_groups, keys, named=named, of=key_groups))


class MovedKeys:
    """How many keys some lots have brought, all of which are here: counted some at a time."""

    def __init__(self, state: State, lots: Sequence[Lot]) -> None:
        self._state = state
        self._groups = [group for lot in lots for group in lot.groups]
        keys = np.array([key for lot in lots for key in lot.keys], np.int64)
        self._single = state.shelve(Selection((), single={it for lot in lots for it in lot.key_groups}, only=keys))

    def count_some(self) -> int | None:
        """Go on counting; how many have state, when that is known. Single keys that were named need not have any."""
        if not self._single.listed:
            self._single.list_some(_SOME)
        if not self._single.listed:
            return None
        return self._state.keys_in(self._groups) + len(self._single.hashes)
