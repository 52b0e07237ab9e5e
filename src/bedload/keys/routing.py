"""Which worker owns which key group: the routing table, its successors, and what differs between two.

Invariants (:meth:`RoutingTable.check`, run at construction):

- every key group has exactly one owner, and every owner is one of the table's workers;
- a table never changes; :meth:`RoutingTable.reassign` makes the next one;
- ``initial`` and ``reassign`` spread key groups evenly (the shares differ by at most one), and ``reassign``
  moves as few as that allows;
- the same arguments give the same table, in every process.

A key that is *pinned* lives with another worker than its key group does. It is named by its hash; keys of one hash go
together.

Why members are kept apart from owners: with more workers than key groups some own nothing, but they are
still part of the cluster, and the next ``reassign`` counts on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bedload.core.errors import DefinitionError, KeyGroupsChanged
from bedload.core.ids import KeyGroup, KeyHash, WorkerId
from bedload.keys.groups import check_key_groups


@dataclass(frozen=True, order=True)
class Move:
    """Key groups that pass from one worker to another."""

    source: WorkerId
    target: WorkerId
    key_groups: tuple[KeyGroup, ...]
    keys: tuple[KeyHash, ...] = ()
    """Single keys, by their hash, that go without their key group."""
    stay: tuple[KeyHash, ...] = ()
    """Keys of the key groups that do not go along, because they are pinned before or after."""


@dataclass(frozen=True, order=True)
class Pin:
    """A key, by its hash, and the worker that it lives with."""

    key: KeyHash
    worker: WorkerId


@dataclass(frozen=True)
class RoutingTable:
    """The owner of each key group."""

    owners: tuple[WorkerId, ...]
    """The owner of each key group, by its number."""
    workers: tuple[WorkerId, ...]
    """The workers among which key groups are spread, in ascending order; some may own nothing."""
    pins: tuple[Pin, ...] = ()
    """In ascending order of keys."""

    def __post_init__(self) -> None:
        self.check()

    def __reduce__(self) -> tuple[Any, ...]:
        # Built again, so that the invariants hold on the other side too, and caches stay here.
        return (RoutingTable, (self.owners, self.workers, self.pins))

    @classmethod
    def initial(cls, key_groups: int, workers: Iterable[WorkerId]) -> RoutingTable:
        """The first table: contiguous runs of key groups, one for each worker in ascending order."""
        check_key_groups(key_groups)
        members = _members(workers)
        share, larger = divmod(key_groups, len(members))
        owners: list[WorkerId] = []
        for i, worker in enumerate(members):
            owners += [worker] * (share + (i < larger))
        return cls(tuple(owners), members)

    @property
    def key_groups(self) -> int:
        """How many key groups there are."""
        return len(self.owners)

    def groups_of(self, worker: WorkerId) -> tuple[KeyGroup, ...]:
        """The key groups of one worker, in ascending order; none for a worker that is not in the table."""
        return self._groups.get(worker, ())

    def owner_of_key(self, key: KeyHash) -> WorkerId:
        """The owner of a key, by its hash."""
        pinned = self._pinned.get(key)
        return self.owners[key % self.key_groups] if pinned is None else pinned

    def group_of(self, key: KeyHash) -> KeyGroup:
        """The key group of a key, by its hash."""
        return KeyGroup(key % self.key_groups)

    def guests_of(self, worker: WorkerId) -> tuple[KeyHash, ...]:
        """Pinned keys of a worker whose key groups live elsewhere."""
        return self._guests.get(worker, ())

    def away_from(self, worker: WorkerId) -> tuple[KeyHash, ...]:
        """Keys of a worker's key groups that are pinned to others."""
        return tuple(p.key for p in self.pins if p.worker != worker and self.owners[p.key % self.key_groups] == worker)

    def next(
        self,
        *,
        owners: Iterable[WorkerId] | None = None,
        workers: Iterable[WorkerId] | None = None,
        pins: Mapping[KeyHash, WorkerId] | None = None,
    ) -> RoutingTable:
        """The next table, with these parts replaced."""
        members = self.workers if workers is None else _members(workers)
        wanted = dict(self._pinned) if pins is None else dict(pins)
        kept = tuple(Pin(key, worker) for key, worker in sorted(wanted.items()) if worker in members)
        return RoutingTable(self.owners if owners is None else tuple(owners), members, kept)

    def reassign(self, workers: Iterable[WorkerId]) -> RoutingTable:
        """The next table, spread evenly over these workers, with as few moves as possible."""
        members = _members(workers)
        share, larger = divmod(self.key_groups, len(members))
        # SUBTLE: whoever has more than an even share gets the larger ones: any other choice moves more.
        by_size = sorted(members, key=lambda worker: (-len(self.groups_of(worker)), worker))
        quota = {worker: share + (i < larger) for i, worker in enumerate(by_size)}
        owners = list(self.owners)
        spare = [kg for kg, owner in enumerate(owners) if owner not in quota]
        for worker in members:
            spare += self.groups_of(worker)[quota[worker] :]
        spare.sort(reverse=True)
        for worker in members:
            for _ in range(quota[worker] - len(self.groups_of(worker))):
                owners[spare.pop()] = worker
        return self.next(owners=owners, workers=members)

    def diff(self, other: RoutingTable) -> tuple[Move, ...]:
        """What moves when this table gives way to the other, by source and target, in ascending order."""
        if self.key_groups != other.key_groups:
            raise KeyGroupsChanged(
                f"a routing table of {self.key_groups} key groups cannot give way to one of {other.key_groups}: their "
                f"number is fixed when the state is created"
            )
        moved: dict[tuple[WorkerId, WorkerId], list[KeyGroup]] = {}
        singles: dict[tuple[WorkerId, WorkerId], list[KeyHash]] = {}
        for kg, (source, target) in enumerate(zip(self.owners, other.owners, strict=True)):
            if source != target:
                moved.setdefault((source, target), []).append(KeyGroup(kg))
        pinned = sorted(self._pinned.keys() | other._pinned.keys())
        for key in pinned:
            if (source := self.owner_of_key(key)) != (target := other.owner_of_key(key)):
                singles.setdefault((source, target), []).append(key)
        found = []
        for source, target in sorted(moved.keys() | singles.keys()):
            kgs = tuple(moved.get((source, target), ()))
            stay = tuple(key for key in pinned if self.group_of(key) in kgs)
            found.append(Move(source, target, kgs, tuple(singles.get((source, target), ())), stay))
        return tuple(found)

    def check(self) -> None:
        """Raise :class:`DefinitionError` unless the table keeps its invariants."""
        check_key_groups(len(self.owners))
        if self.workers != _members(self.workers):
            raise DefinitionError(f"the workers of a routing table must be in ascending order: {self.workers}")
        strangers = set(self.owners) - set(self.workers)
        if strangers:
            raise DefinitionError(
                f"a routing table gives key groups to workers {sorted(strangers)}, which are not "
                f"among its workers {list(self.workers)}"
            )
        lost = {pin.worker for pin in self.pins} - set(self.workers)
        if lost or list(self.pins) != sorted({pin.key: pin for pin in self.pins}.values()):
            raise DefinitionError(
                f"a routing table has damaged pins: each key once, in ascending order, with one of {list(self.workers)}"
            )

    @cached_property
    def _pinned(self) -> dict[KeyHash, WorkerId]:
        return {pin.key: pin.worker for pin in self.pins}

    @cached_property
    def _guests(self) -> dict[WorkerId, tuple[KeyHash, ...]]:
        guests: dict[WorkerId, list[KeyHash]] = {}
        for pin in self.pins:
            if self.owners[pin.key % self.key_groups] != pin.worker:
                guests.setdefault(pin.worker, []).append(pin.key)
        return {worker: tuple(keys) for worker, keys in guests.items()}

    @cached_property
    def _groups(self) -> dict[WorkerId, tuple[KeyGroup, ...]]:
        groups: dict[WorkerId, list[KeyGroup]] = {}
        for kg, owner in enumerate(self.owners):
            groups.setdefault(owner, []).append(KeyGroup(kg))
        return {worker: tuple(kgs) for worker, kgs in groups.items()}


def _members(workers: Iterable[WorkerId]) -> tuple[WorkerId, ...]:
    members = tuple(sorted(workers))
    if not members:
        raise DefinitionError("a routing table needs at least one worker")
    twice = [worker for worker, count in Counter(members).items() if count > 1]
    if twice:
        raise DefinitionError(f"workers {twice} are listed twice in one routing table")
    if not 0 <= members[0] <= members[-1] < 2**31:
        raise DefinitionError(f"worker numbers must be from 0 to {2**31 - 1}: {list(members)}")
    return members
