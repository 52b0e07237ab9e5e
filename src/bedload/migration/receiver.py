"""The new owner's end of a move: which keys have arrived, and whether that is all.

Phases of a move at its new owner::

    EARLY ──Flip──▶ ARRIVING ──all is here──▶ WHOLE ──Arrived──▶ TOLD ──Release──▶ (dropped)

State may come before the ``Flip``: copies do, and other state may, as it travels on another connection. Either way it
goes into the store at once; from the flip on :class:`~bedload.migration.holdings.Holdings` knows which keys are here.

Invariants:

- a parcel whose number was passed already is not taken in: it is a repeat, or from a connection that broke;
- after the flip a key that is here is never overwritten;
- copies count only if a ``HandOver`` says that they are of the turn which the flip builds upon, and no copy was taken
  in after that ``HandOver``: such a copy may be of a later epoch, which was rolled back.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.ids import KeyGroup, MoveId, Turn, WorkerId
from bedload.keys.lookup import Hashes, among
from bedload.migration.hash_set import Flags, HashSet
from bedload.migration.holdings import Presence
from bedload.migration.parking import Freed, Parking
from bedload.protocol import messages as m
from bedload.protocol.messages import Lot, Order, Terms, WaitsFor


@dataclass
class _Incoming:
    """What comes from one worker."""

    number: int = 0
    handed: Turn | None = None
    """The turn whose state was copied, if that was said."""
    stale: HashSet = field(default_factory=HashSet)
    """But for these keys."""
    said: HashSet = field(default_factory=HashSet)
    """Those that were named so far, while it is being said anew."""
    early: HashSet = field(default_factory=HashSet)
    """Keys that came since it was said, or for good before the flip."""
    lot: Lot | None = None
    """Set at the flip."""
    whole: bool = False
    """All of it is here."""
    last: bool = False
    """The old owner has sent all of it."""


class Receiving(enum.Enum):
    """Where a move is at its new owner."""

    EARLY = "the old owners' own; what comes is a copy, or ahead of the word that ownership has passed on"
    ARRIVING = "ownership has passed on, and something is on its way"
    WHOLE = "all is here"
    TOLD = "all is here, and the coordinator is told so"


class Receiver:
    """One move at one new owner."""

    def __init__(self, move: MoveId, parking: Parking) -> None:
        self.move = move
        self.phase = Receiving.EARLY
        self.base: Turn | None = None
        """Set at the flip."""
        self.bytes = 0
        self._parking = parking
        self._holdings = parking.holdings
        self._terms: Terms | None = None
        self._incoming: dict[WorkerId, _Incoming] = {}

    @property
    def on_demand(self) -> bool:
        """Whether the old owners want to be asked for what rows wait for."""
        return self._terms is not None and self._terms.order is Order.DEMAND

    def is_repeat(self, source: WorkerId, number: int) -> bool:
        """Whether this was taken in already."""
        return number <= self._from(source).number

    def flip(self, base: Turn, lots: Iterable[Lot], terms: Terms, now: float) -> list[Freed]:
        """Ownership has passed on: rows may come for all of it."""
        self.phase, self.base, self._terms = Receiving.ARRIVING, base, terms
        lots, holdings = tuple(lots), self._holdings
        arriving = {key for lot in lots for key in lot.keys}
        freed: list[Freed] = []
        # SUBTLE: single keys first. Their key group may come, too, and from another worker.
        for lot in lots:
            holdings.hand_over(lot.key_groups, Presence.PATCHY)
            holdings.miss(np.array(lot.keys, np.int64))
        for lot in lots:
            incoming = self._from(lot.source)
            incoming.lot = lot
            stay = np.array([key for key in lot.stay if key not in arriving], np.int64)
            holdings.arrive_keys(stay)
            if terms.waits_for is not WaitsFor.KEY or terms.copy_ahead:
                holdings.hand_over(lot.groups, Presence.AWAITED)
            else:
                holdings.hand_over(lot.groups, Presence.ARRIVING)
                freed += self._early_here(incoming, now)
            freed += self._copied(incoming, now)
            if incoming.last:
                freed += self._complete(incoming, now)
        return [*freed, *self._finish(now)]

    def handed_over(
        self,
        source: WorkerId,
        number: int,
        base: Turn,
        stale: Hashes,
        now: float,
        *,
        first: bool = True,
        more: bool = False,
    ) -> list[Freed]:
        """What was copied from a worker is the state at a turn, but for these keys and those that were named ``first``.

        ``more``: others are to be named before it counts.
        """
        incoming = self._from(source)
        incoming.number = number
        if self._counts(incoming):
            return []  # said again after a connection broke: rows may have gone on since it was said first
        if first:
            incoming.said = HashSet()
        incoming.said.add(stale)
        if more:
            return []
        incoming.handed, incoming.stale, incoming.early = base, incoming.said, HashSet()
        incoming.said = HashSet()
        return self._copied(incoming, now) if incoming.lot is not None else []

    def takes_all(self, source: WorkerId) -> bool:
        """Whether all of a shipment is to be taken in, whichever keys it has.

        That is so before the flip, and after it as long as no row runs before everything is here: a repeat is the same.
        """
        return self.phase is Receiving.EARLY or (whole_only(self._terms) and not self._from(source).whole)

    def places(self, source: WorkerId, body: m.Body) -> dict[KeyGroup, tuple[bytes, bytes]]:
        """Where key groups are that come with a shipment and stay in a remote store; none if they are not wanted."""
        if body is None or self._from(source).whole:
            return {}
        self.bytes += len(body)
        return msgspec.msgpack.decode(body, type=dict[KeyGroup, tuple[bytes, bytes]])

    def wanted(self, source: WorkerId, hashes: Hashes) -> Flags:
        """Which keys of a shipment are to be taken in otherwise: those that are not here."""
        incoming = self._from(source)
        if incoming.whole:
            return np.zeros(len(hashes), np.bool_)
        wanted = ~incoming.early.has(hashes)
        if self._counts(incoming):
            wanted &= incoming.stale.has(hashes)
        return wanted

    def arrived(
        self,
        source: WorkerId,
        number: int,
        hashes: Hashes,
        state: pa.RecordBatch | None,
        groups: tuple[KeyGroup, ...],
        last: bool,
        now: float,
        *,
        ahead: bool = False,
    ) -> list[Freed]:
        """A shipment was taken in; these keys are settled with it. ``ahead``: it was copied before the flip."""
        incoming = self._from(source)
        if ahead and not self._counts(incoming):
            # SUBTLE: an epoch may be sealed, copied and rolled back after the turn that was handed over. The old owner
            # knows, and says again what is stale; until it does, nothing of the copy counts.
            incoming.handed = None
        incoming.number = number
        incoming.last |= last
        if state is not None:
            self.bytes += state.nbytes
        incoming.early.add(hashes)
        if incoming.lot is None:
            return []
        assert self._terms is not None
        freed: list[Freed] = []
        if self._terms.waits_for is WaitsFor.KEY:
            freed += self._keys_here(hashes, now)
        elif self._terms.waits_for is WaitsFor.KEY_GROUP:
            freed += self._groups_here(groups, now)
        if incoming.last and not incoming.whole:
            freed += self._complete(incoming, now)
        return [*freed, *self._finish(now)]

    def superseded(self, groups: Iterable[KeyGroup], now: float) -> list[Freed]:
        """These key groups are read back: what comes of them from another worker is not wanted any more."""
        gone = set(groups)
        for incoming in self._incoming.values():
            lot = incoming.lot
            if lot is not None and not incoming.whole and gone.issuperset((*lot.groups, *lot.key_groups)):
                incoming.whole = True
        return self._finish(now)

    @property
    def complete(self) -> bool:
        """Whether ownership has passed on and all is here."""
        return self.phase in (Receiving.WHOLE, Receiving.TOLD)

    def becomes_complete(self) -> bool:
        """Whether all is here by now. True once only."""
        if self.phase is not Receiving.WHOLE:
            return False
        self.phase = Receiving.TOLD
        return True

    @property
    def handed(self) -> list[Lot]:
        """What comes with the move; known from the flip on."""
        return [it.lot for it in self._incoming.values() if it.lot is not None]

    @property
    def awaited(self) -> set[KeyGroup]:
        """Key groups of which something is on its way."""
        lots = [it.lot for it in self._incoming.values() if it.lot is not None and not it.whole]
        return {group for lot in lots for group in (*lot.groups, *lot.key_groups)}

    @property
    def sources(self) -> list[WorkerId]:
        """Whom it comes from."""
        return [source for source, incoming in self._incoming.items() if not incoming.whole]

    def split(self, hashes: Hashes, groups: Callable[[Hashes], npt.NDArray[np.integer[Any]]]) -> dict[WorkerId, Hashes]:
        """Whom to ask for each of these keys."""
        of = groups(hashes)
        found: dict[WorkerId, Hashes] = {}
        for source, incoming in self._incoming.items():
            lot = incoming.lot
            if lot is None or incoming.whole:
                continue
            mine = among(np.array(sorted(lot.keys), np.int64), hashes)
            stay = among(np.array(sorted(lot.stay), np.int64), hashes)
            mine |= np.isin(of, np.array(lot.groups, np.int64)) & ~stay
            if mine.any():
                found[source] = hashes[mine]
        return found

    def check(self) -> None:
        """Raise an AssertionError if this cannot be."""
        early = self.phase is Receiving.EARLY
        assert early == (self.base is None), f"move {self.move} is {self.phase.name}, its base {self.base}"
        lots = [it.lot for it in self._incoming.values() if it.lot is not None]
        assert early == (not lots), f"move {self.move} is {self.phase.name}, with {lots}"
        if not early:
            assert self.complete == self._all_whole, f"move {self.move} is {self.phase.name}, {self.awaited} to come"
        arriving = self._holdings.arriving
        assert not self.complete or not arriving, f"{sorted(arriving)} are waited for, and all has arrived"

    # --- steps ---

    @property
    def _all_whole(self) -> bool:
        return all(incoming.whole for incoming in self._incoming.values() if incoming.lot is not None)

    def _from(self, source: WorkerId) -> _Incoming:
        return self._incoming.setdefault(source, _Incoming())

    def _counts(self, incoming: _Incoming) -> bool:
        """Whether what was copied is what the flip builds upon."""
        return incoming.lot is not None and incoming.handed is not None and incoming.handed == self.base

    def _copied(self, incoming: _Incoming, now: float) -> list[Freed]:
        """If what was copied is what the flip builds upon, it counts."""
        lot = incoming.lot
        assert self._terms is not None
        assert lot is not None
        if not self._counts(incoming) or incoming.whole:
            return []
        self._holdings.miss_all(incoming.stale)
        keys = np.array(lot.keys, np.int64)
        freed = self._keys_here(keys[~incoming.stale.has(keys)], now)
        freed += self._early_here(incoming, now)
        if self._terms.waits_for is WaitsFor.KEY:
            freed += self._groups_here(lot.groups, now)
        return freed

    def _complete(self, incoming: _Incoming, now: float) -> list[Freed]:
        incoming.whole = True
        assert incoming.lot is not None
        assert self._terms is not None
        if self._terms.waits_for is WaitsFor.EVERYTHING:
            return []
        freed = self._groups_here(incoming.lot.groups, now)
        return [*freed, *self._keys_here(np.array(incoming.lot.keys, np.int64), now)]

    def _finish(self, now: float) -> list[Freed]:
        if not self._all_whole:
            return []
        if self.phase is Receiving.ARRIVING:
            self.phase = Receiving.WHOLE
        self._holdings.all_here()
        return self._parking.free(now)

    def _keys_here(self, hashes: Hashes, now: float) -> list[Freed]:
        self._holdings.arrive_keys(hashes)
        return self._parking.free(now, hashes)

    def _early_here(self, incoming: _Incoming, now: float) -> list[Freed]:
        self._holdings.arrive_all(incoming.early)
        return self._parking.free(now)

    def _groups_here(self, groups: Iterable[KeyGroup], now: float) -> list[Freed]:
        # SUBTLE: not HERE, since a single key of such a key group may be on its way from a third worker.
        self._holdings.hand_over(groups, Presence.PATCHY)
        return self._parking.free(now)


def whole_only(terms: Terms | None) -> bool:
    """Whether it makes no difference which keys have arrived, as long as not all have."""
    return terms is not None and terms.waits_for is WaitsFor.EVERYTHING and not terms.copy_ahead


def waits(found: list[tuple[Hashes, float]]) -> npt.NDArray[np.float64]:
    """How long each key waited, in seconds: from its first row that had to."""
    if not found:
        return np.empty(0, np.float64)
    hashes = np.concatenate([keys for keys, _ in found])
    seconds = np.concatenate([np.full(len(keys), wait) for keys, wait in found])
    order = np.lexsort((-seconds, hashes))
    _, first = np.unique(hashes[order], return_index=True)
    return seconds[order][first]
