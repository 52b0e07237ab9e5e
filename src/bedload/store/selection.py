"""Which keys a shelf is about."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from bedload.core.ids import KeyGroup
from bedload.keys.lookup import among
from bedload.store.entries import Hashes

Flags = npt.NDArray[np.bool_]
_NONE: Hashes = np.empty(0, np.int64)


class Selection:
    """Which keys a shelf is about: key groups as a whole, but for some keys, and single keys of any key group."""

    def __init__(
        self,
        whole: Collection[KeyGroup],
        without: Hashes = _NONE,
        single: Collection[KeyGroup] = (),
        only: Hashes = _NONE,
        *,
        named: bool = True,
        of: int | None = None,
    ) -> None:
        """``single``: the key groups of the keys that have one of the hashes ``only``; ``of``: so many there are.

        Without single keys, in or out, it need not be ``named``: see :class:`~bedload.store.shelf.Shelf`.
        """
        assert named or not (len(without) or len(single) or len(only)), "single keys are known by their hashes"
        self.named, self.of = named, of
        self.groups = sorted({*whole, *single})
        self._all = frozenset(whole)
        self._whole = np.array(sorted(whole), np.int64)
        self._without, self._only = np.sort(without), np.sort(only)

    def admits(self, hashes: Hashes, groups: npt.NDArray[np.integer[Any]]) -> Flags:
        """Which keys of these key groups are meant."""
        meant: Flags = np.isin(groups, self._whole)
        if len(self._without):
            meant &= ~among(self._without, hashes)
        if len(self._only):
            meant |= among(self._only, hashes)
        return meant

    def admits_all(self, group: KeyGroup) -> bool:
        """Whether all keys of a key group are meant for certain."""
        return not len(self._without) and group in self._all
