"""What a worker has of an operator's state: what is its own, what leaves, and what is not here yet.

A key group is *owned* here; or another worker owns it, and pinned keys of it are *guests* here. Either may *leave*.
What the worker owns may be *absent*: it is being read back, or another worker hands it over (:class:`Presence`).

Invariant: ownership is the coordinator's word alone (``Begin``, ``Restore``, ``Flip``, ``Release``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from bedload.core.ids import KeyGroup, KeyHash, MoveId, WorkerId
from bedload.keys.lookup import Hashes
from bedload.migration.hash_set import NONE, Flags, HashSet
from bedload.protocol.messages import Lot

Groups = npt.NDArray[np.integer[Any]]
Lots = tuple[Lot, ...]


class Presence(enum.IntEnum):
    """How much of a key group is here that another worker hands over."""

    HERE = 0
    """All of it."""
    AWAITED = 1
    """Nothing that counts."""
    ARRIVING = 2
    """The keys that have arrived."""
    PATCHY = 3
    """All but the keys that are missing and have not arrived."""


class Holdings:
    """The part of one worker in the state of one operator."""

    def __init__(self) -> None:
        self.key_groups = 0
        """How many there are."""
        self.told = 0
        """How often the coordinator has said what is this worker's own, as it counts itself."""
        self.clear()

    def clear(self) -> None:
        """Nothing is here, nor on its way."""
        self.owned: frozenset[KeyGroup] = frozenset()
        self._mine: Flags = np.zeros(0, np.bool_)
        """By key group, whether it is owned in this turn."""
        self._single, self._away = NONE, NONE
        """Keys that are owned without their key groups, and the other way round."""
        self.guests: frozenset[KeyGroup] = frozenset()
        """Key groups of which single keys live here, whoever has the others."""
        self._hosted: frozenset[KeyGroup] | None = None
        """Those that were so before what is on its way was to come."""
        self._leaving: dict[MoveId, Lots] = {}
        """What was handed over, or will be, and is kept until its move is over."""
        self._reading: Flags = np.zeros(0, np.bool_)
        self.left = 0
        """How many key groups are being read back."""
        self.asked: set[KeyGroup] = set()
        """Those of them that somebody waits for, or has waited for."""
        self._presence: npt.NDArray[np.int8] = np.zeros(0, np.int8)
        self._moving = False
        """Whether a key group is not all here."""
        self._arrived = HashSet()
        self._missing = HashSet()

    # --- whose it is ---

    def begin(
        self, groups: Iterable[KeyGroup], guests: Collection[KeyHash], away: Collection[KeyHash] = ()
    ) -> list[KeyGroup]:
        """A turn begins, in which the worker owns these, and single keys; some are away: key groups to be dropped."""
        self._single, self._away = np.array(guests, np.int64), np.array(away, np.int64)
        before, self.owned = self.owned, frozenset(groups)
        self._mine = np.zeros(self.key_groups, np.bool_)
        self._mine[list(self.owned)] = True
        self.guests = self._groups_of(guests) - self.owned
        return sorted(before - self.owned - self.leaving)

    @property
    def by_groups(self) -> bool:
        """Whether what the worker owns in this turn are whole key groups, all of which is here."""
        return self.whole and not len(self._single) and not len(self._away)

    def here(self, groups: Groups, hashes: Hashes) -> Flags:
        """Which of these keys the worker owns in this turn, and has."""
        mine: Flags = (self._mine[groups] & ~np.isin(hashes, self._away)) | np.isin(hashes, self._single)
        return mine & ~self.on_its_way(groups, hashes)

    def read_back(self, groups: Collection[KeyGroup], hosts: Collection[KeyGroup]) -> None:
        """These are the worker's own and are being read back; of the hosts, single keys are."""
        self.owned = (self.owned | frozenset(groups)) - frozenset(hosts)
        self.guests |= frozenset(hosts)
        self.expect(groups)

    def flip(self, leaving: Lots, arriving: Lots) -> None:
        """Ownership passes on."""
        # SUBTLE: what left is not ours from here on. It may come back before the next turn begins, which drops what
        # was owned in the last one and is not in this one.
        if arriving:
            self._hosted = self.guests & _touched(arriving)
        self.owned = self.owned - groups_of(leaving) | groups_of(arriving)
        self.guests |= {group for lot in arriving for group in lot.key_groups}
        # A pinned key whose group leaves is a guest from here on.
        self.guests |= self._groups_of(key for lot in leaving for key in lot.stay)

    def called_off(self, arriving: Lots) -> None:
        """What was on its way is not."""
        self.all_here()
        self.owned -= groups_of(arriving)
        if self._hosted is not None:  # ownership has passed on
            self.guests = (self.guests - _touched(arriving) | self._hosted) - self.owned
            self._hosted = None

    def take_back(self, lots: Lots) -> None:
        """What was to leave stays."""
        self.owned |= groups_of(lots)
        self.guests = (self.guests | {group for lot in lots for group in lot.key_groups}) - self.owned

    def keep(self, move: MoveId, lots: Lots) -> None:
        """These are to leave with a move: whoever owns them, they stay here until it is over."""
        self._leaving[move] = lots

    def lot_to(self, move: MoveId, target: WorkerId) -> Lot | None:
        """What leaves to a worker with a move."""
        return next((lot for lot in self._leaving.get(move, ()) if lot.target == target), None)

    def taken_over(self) -> None:
        """What was on its way is here, or is read back."""
        self._hosted = None

    def let_go(self, move: MoveId) -> Lots:
        """The move is over: what was kept for it."""
        return self._leaving.pop(move, ())

    @property
    def leaving(self) -> frozenset[KeyGroup]:
        """Key groups that were handed over, or will be, and that the worker has not let go of."""
        return frozenset().union(*map(groups_of, self._leaving.values()))

    @property
    def arriving(self) -> frozenset[KeyGroup]:
        """Key groups that another worker hands over, and of which something may be on its way."""
        return frozenset(map(KeyGroup, np.flatnonzero(self._presence).tolist()))

    def knows(self, group: KeyGroup) -> bool:
        """Whether keys of it may be the worker's own."""
        return group in self.owned or group in self.guests

    # --- being read back ---

    def expect(self, groups: Iterable[KeyGroup]) -> None:
        """These are being read back, whatever else was said of them."""
        named = self._set(groups, True)  # which makes room
        self._presence[named] = Presence.HERE
        self._look()

    def arrive(self, groups: Iterable[KeyGroup]) -> None:
        """These were read back."""
        self.asked.difference_update(map(KeyGroup, self._set(groups, False).tolist()))

    def ask(self, groups: Groups) -> None:
        """Somebody waits for these: for those of them that are being read back."""
        met = np.zeros(len(self._reading), np.bool_)
        met[groups[self.being_read(groups)]] = True
        self.asked.update(map(KeyGroup, np.flatnonzero(met).tolist()))

    def forget(self) -> None:
        """Nothing is being read back any more."""
        self._reading[:] = False
        self.left = 0
        self.asked = set()

    # --- handed over by another worker ---

    def hand_over(self, groups: Iterable[KeyGroup], presence: Presence) -> None:
        """This is how it is with these key groups."""
        named = self._named(groups)  # which makes room
        self._presence[named] = presence
        self._look()

    def miss(self, hashes: Hashes) -> None:
        """These keys of patchy key groups are missing."""
        self._missing.add(hashes)

    def miss_all(self, hashes: HashSet) -> None:
        """The same for many."""
        self._missing.take_over(hashes)

    def arrive_keys(self, hashes: Hashes) -> None:
        """These keys are here."""
        self._arrived.add(hashes)

    def arrive_all(self, hashes: HashSet) -> None:
        """The same for many."""
        self._arrived.take_over(hashes)

    def all_here(self) -> None:
        """All that was handed over is here."""
        self._presence[:] = Presence.HERE
        self._moving = False
        self._arrived, self._missing = HashSet(), HashSet()

    # --- what is not here ---

    @property
    def whole(self) -> bool:
        """Whether nothing is absent."""
        return not self.left and not self._moving

    def absent(self, group: KeyGroup, hash_of: Callable[[], Hashes] | None = None) -> bool:
        """Whether a key's state is on its way; without a hash, whether any of its key group may be."""
        if group >= len(self._reading):
            return False
        if self._reading[group]:
            return True
        if self._presence[group] == Presence.HERE:
            return False
        if hash_of is None or self._presence[group] == Presence.AWAITED:
            return True
        return bool(self._waits(self._presence[[group]], hash_of())[0])

    def being_read(self, groups: Groups) -> Flags:
        """Which of these are being read back."""
        if not self.left:
            return np.zeros(len(groups), np.bool_)
        self._make_room(groups)
        reading: Flags = self._reading[groups]
        return reading

    def moving(self, groups: Groups) -> Flags:
        """Of which of these something may be on its way from another worker."""
        if not self._moving:
            return np.zeros(len(groups), np.bool_)
        self._make_room(groups)
        moving: Flags = self._presence[groups] != Presence.HERE
        return moving

    def on_its_way(self, groups: Groups, hashes: Hashes) -> Flags:
        """Which of these keys, with their key groups, another worker has not handed over yet."""
        if not self._moving or not len(hashes):
            return np.zeros(len(groups), np.bool_)
        self._make_room(groups)
        return self._waits(self._presence[groups], hashes)

    def check(self) -> None:
        """Raise an AssertionError if this cannot be."""
        assert self.left == int(self._reading.sum()), f"{self.left} key groups are said to be read back"
        assert self._moving == bool(self._presence.any()), "whether something is on its way is not what is said"
        both = np.flatnonzero(self._reading & (self._presence != Presence.HERE))
        assert not len(both), f"{both.tolist()} are read back and handed over"

    def _groups_of(self, keys: Iterable[KeyHash]) -> frozenset[KeyGroup]:
        return frozenset(KeyGroup(key % self.key_groups) for key in keys)

    def _waits(self, presence: npt.NDArray[np.int8], hashes: Hashes) -> Flags:
        waiting: Flags = presence == Presence.AWAITED
        open_ = presence >= Presence.ARRIVING
        if open_.any():
            some, of = hashes[open_], presence[open_]
            gone = np.where(of == Presence.ARRIVING, True, self._missing.has(some))
            waiting[open_] = gone & ~self._arrived.has(some)
        return waiting

    def _set(self, groups: Iterable[KeyGroup], reading: bool) -> npt.NDArray[np.int64]:
        named = self._named(groups)
        self._reading[named] = reading
        self.left = int(self._reading.sum())
        return named

    def _look(self) -> None:
        self._moving = bool(self._presence.any())

    def _named(self, groups: Iterable[KeyGroup]) -> npt.NDArray[np.int64]:
        named = np.fromiter(groups, np.int64)
        self._make_room(named)
        return named

    def _make_room(self, groups: Groups) -> None:
        more = int(groups.max(initial=-1)) + 1 - len(self._reading)
        if more > 0:
            self._reading = np.concatenate([self._reading, np.zeros(more, np.bool_)])
            self._presence = np.concatenate([self._presence, np.zeros(more, np.int8)])


def groups_of(lots: Iterable[Lot]) -> frozenset[KeyGroup]:
    """The key groups that pass on as a whole."""
    return frozenset(group for lot in lots for group in lot.groups)


def _touched(lots: Iterable[Lot]) -> frozenset[KeyGroup]:
    """The key groups that pass on as a whole, or of which single keys do."""
    return frozenset(group for lot in lots for group in (*lot.groups, *lot.key_groups))
