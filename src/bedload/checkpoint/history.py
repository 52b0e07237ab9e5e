"""Which turns an operator has, which state builds upon which, and what it takes to restore one. Pure.

::

    empty ◀── 1 ◀── 2 ◀── 4 ◀── 5      the chain of the head, 5
                    ▲
                    └──── 3            an attempt that 4 replaced: an abandoned branch

Invariants:

- A turn is *complete* when the segment of each of its workers is there, or a snapshot of it. Only complete
  turns are built upon. The *head* is the largest complete turn; turns only go up, so a zombie that finishes an
  old turn late moves nothing once the new attachment has completed a turn. Until then it may move the head of
  whoever comes next; that is harmless, as Spark never saw the turn acknowledged and asks for its epoch again.
- The state at a turn is that of the nearest snapshot on its chain (or the empty one), and the deltas since.
- Garbage is only what is older than the oldest retained state and not needed to restore it. So what is
  retained stays restorable, whatever else happens.
- Spark may ask again for any epoch: for that of the head, because it was sealed and not committed, or for an older one,
  because the query was set back. The answer is the parent of that epoch's turn. Therefore at least the head's parent is
  retained.

A history reads no files: :class:`~bedload.checkpoint.checkpoint.Checkpoint` loads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from bedload.checkpoint import paths
from bedload.checkpoint.records import Manifest, TurnRecord
from bedload.core.errors import EpochNotRetained
from bedload.core.ids import NO_EPOCH, Epoch, OperatorName, QueryId, Turn, WorkerId


@dataclass(frozen=True)
class Base:
    """The state that an epoch starts from: that at a turn, or the empty one."""

    turn: Turn | None


class Plan(NamedTuple):
    """How to restore a state: a snapshot (None: the empty state), then the turns' segments in this order."""

    snapshot: Manifest | None
    deltas: list[TurnRecord]


@dataclass(frozen=True)
class CompactionSettings:
    """When a new snapshot is due: when the deltas since the last one outweigh it, or are many.

    A snapshot is at most the last one and the deltas together. So by weight, at 2.0, a byte of deltas costs at most 1.5
    bytes of snapshots (0.5 if the state does not grow), and by number, at 0.125, at most 9; but for one snapshot in
    ``most_turns`` turns.
    """

    ratio: float = 2.0
    """Bytes of deltas since the last snapshot, by its own bytes, from which one is due. At 2.0 a restore reads at most
    three times the state."""
    floor_bytes: int = 128 << 20
    """Fewer bytes of deltas than this are no reason by weight."""
    max_turns: int = 1000
    """Turns since the last snapshot after which one is due, as each is a file per worker to open; but only if"""
    small_ratio: float = 0.125
    """the deltas are this much of it, by bytes: a large state is not written anew because a few keys have changed."""
    most_turns: int = 2000
    """After so many, one is due whatever has changed."""


@dataclass(frozen=True)
class Garbage:
    """Files that no retained state needs. The promises go first: without them nobody looks for the files."""

    floor: Turn | None
    """The oldest retained turn; None: all is retained."""
    turns: frozenset[Turn] = frozenset()
    """Whose records and segments go."""
    snapshots: frozenset[Turn] = frozenset()
    """Which go."""
    promises: tuple[str, ...] = ()
    """Manifests, then turn records."""
    files: tuple[str, ...] = ()
    """Parts of snapshots and segments."""

    @property
    def paths(self) -> list[str]:
        """All, in the order in which they may be deleted."""
        return [*self.promises, *self.files]

    def slices(self, most: int) -> list[Garbage]:
        """The same in pieces of so many files, to be deleted one after another; the last one tells the floor."""
        first = len(self.promises)
        pieces = [
            Garbage(
                None,
                promises=self.promises[at : at + most],
                files=self.files[max(0, at - first) : max(0, at + most - first)],
            )
            for at in range(0, len(self.paths), most)
        ]
        return [*pieces[:-1], replace(pieces[-1], floor=self.floor)] if pieces else []


class _Behind(NamedTuple):
    """What there is on a chain since its last snapshot, and the size of that one."""

    turns: int
    deltas: int
    snapshot: int


class History:
    """The turns of one operator."""

    def __init__(
        self,
        operator: OperatorName,
        records: Iterable[TurnRecord] = (),
        segments: Mapping[str, int] | None = None,
        manifests: Iterable[Manifest] = (),
    ) -> None:
        """``segments``: the names of the files in the folder of deltas, with their sizes."""
        self.operator = operator
        self._records: dict[Turn, TurnRecord] = {}
        self._segments: dict[Turn, dict[WorkerId, int]] = {}
        self._sealed: dict[Turn, int] = {}
        self._manifests: dict[Turn, Manifest] = {}
        self._head: Turn | None = None
        self._weights: dict[Turn, _Behind] = {}
        for name, size in (segments or {}).items():
            if (parsed := paths.parse_delta(name)) is not None:
                self._segments.setdefault(parsed[0], {})[parsed[1]] = size
        for record in records:
            self.add(record)
        for manifest in manifests:
            self.snapshot(manifest)

    # --- what happened ---

    def add(self, record: TurnRecord) -> None:
        """The record of a turn was written."""
        self._records[record.turn] = record
        self._look_at(record.turn)

    def sealed(self, turn: Turn, bytes: int) -> None:  # noqa: A002
        """All segments of a turn were written, with that many bytes together."""
        self._sealed[turn] = bytes
        self._look_at(turn)

    def snapshot(self, manifest: Manifest) -> None:
        """The manifest of a snapshot was written."""
        self._manifests[manifest.turn] = manifest
        self._weights = {}  # what came after it has less behind it now
        self._look_at(manifest.turn)

    def forget(self, garbage: Garbage) -> None:
        """Garbage was deleted."""
        for turn in garbage.turns:
            self._records.pop(turn, None)
            self._segments.pop(turn, None)
            self._sealed.pop(turn, None)
            self._weights.pop(turn, None)
        for turn in garbage.snapshots:
            self._manifests.pop(turn, None)

    # --- what there is ---

    @property
    def head(self) -> Turn | None:
        """The largest complete turn; None: the state is empty. It may be sealed and not committed by Spark."""
        return self._head

    def record(self, turn: Turn) -> TurnRecord | None:
        """The record of a turn; None if there is none (any more): a snapshot stands without it."""
        return self._records.get(turn)

    def manifest(self, turn: Turn) -> Manifest | None:
        """The snapshot of the state at a turn."""
        return self._manifests.get(turn)

    def complete(self, turn: Turn) -> bool:
        """Whether all of a turn is there."""
        return turn in self._manifests or self.has_segments(turn)

    def has_segments(self, turn: Turn) -> bool:
        """Whether a turn's record and all its segments are there."""
        record = self._records.get(turn)
        if record is None:
            return False
        return turn in self._sealed or self._segments.get(turn, {}).keys() >= set(record.workers)

    def delta_bytes(self, turn: Turn) -> int:
        """The size of a turn's segments, as far as known."""
        return self._sealed.get(turn) or sum(self._segments.get(turn, {}).values())

    def chain(self, tip: Turn | None = None) -> list[Turn]:
        """The turns that the state at ``tip`` (the head) is made of, newest first, as far as they are known."""
        return list(self._back_from(self._head if tip is None else tip))

    def retained(self, tip: Turn | None = None) -> list[Turn]:
        """The turns of the chain whose state can be restored, newest first."""
        chain = self.chain(tip)
        if not chain or self._reaches_empty(chain):
            return chain
        while chain and chain[-1] not in self._manifests:
            chain.pop()
        return chain

    @property
    def schemas(self) -> set[int]:
        """The numbers of the schemas that states which can be restored are written in."""
        held = [self._records.get(turn) or self._manifests[turn] for turn in self.retained()]
        return {one.schema for one in held}

    def last_epochs(self, tip: Turn | None = None) -> dict[str, Epoch]:
        """The last epoch of each query that is in the state at ``tip`` (the head)."""
        tip = self._head if tip is None else tip
        if tip is None:
            return {}
        if (record := self._records.get(tip)) is not None:
            return record.last_epochs
        manifest = self._manifests.get(tip)
        return dict(manifest.committed) if manifest is not None else {}

    def last_epoch(self, query: QueryId, tip: Turn | None = None) -> Epoch:
        """The last epoch of a query that is in the state at ``tip`` (the head); ``NO_EPOCH`` if none is."""
        return self.last_epochs(tip).get(query, NO_EPOCH)

    def turn_of(self, query: QueryId, epoch: Epoch, tip: Turn | None = None) -> Turn | None:
        """The turn of the chain that is that epoch; None if it is not there (any more)."""
        for turn in self._back_from(self._head if tip is None else tip):
            if self._is_of(turn, query, epoch):
                return turn
        return None

    def base_for(self, query: QueryId, epoch: Epoch, tip: Turn | None = None) -> Base | None:
        """The state that an epoch of a query starts from; None if it is not known or not retained.

        It is the state at ``tip`` (the head) for the epoch after the query's last, and the parent of its turn for
        an epoch that is in the chain. An epoch beyond the next, or one that the chain passed over, is not known.
        ``tip`` is for who knows better than the storage which turn the workers hold.
        """
        tip = self._head if tip is None else tip
        if epoch == self.last_epoch(query, tip) + 1:
            return Base(tip)
        turn = self.turn_of(query, epoch, tip)
        record = None if turn is None else self._records.get(turn)
        if record is None:
            return None
        return None if self._plan(record.parent) is None else Base(record.parent)

    def restore_plan(self, turn: Turn | None) -> Plan:
        """What to read for the state at a turn (None: the empty one)."""
        plan = self._plan(turn)
        if plan is None:
            raise self._not_retained(turn)
        return plan

    # --- what to do ---

    def needs_compaction(self, settings: CompactionSettings) -> bool:
        """Whether a new snapshot of the head is due."""
        turns, deltas, snapshot = self._behind(self._head)
        if turns > settings.max_turns and deltas >= settings.small_ratio * snapshot:
            return True
        return turns > settings.most_turns or deltas > max(settings.ratio * snapshot, settings.floor_bytes)

    def garbage(self, retain_epochs: int, keep: Collection[Turn] = ()) -> Garbage:
        """What may be deleted so that the last ``retain_epochs`` epochs (at least one) can be run again.

        ``keep``: turns whose state is being read, to restore, compact or export it; they count as retained. So does
        what a turn after the head builds upon: it is under way, or was given up and yet may turn out to be complete.
        """
        floor = self._oldest_retained(max(retain_epochs, 1))
        if floor is None:
            return Garbage(None)
        assert self._head is not None
        pending = [record.parent for record in self._records.values() if record.turn > self._head]
        needed: set[Turn] = set()
        snapshots: set[Turn] = set()
        for root in {floor, *keep, *pending}:
            if root is None or (plan := self._plan(root)) is None:
                continue  # the empty state needs no files; and of what is gone already, nothing can be kept
            floor = min(floor, root)
            needed |= {record.turn for record in plan.deltas}
            snapshots |= {plan.snapshot.turn} if plan.snapshot else set()
        turns = sorted({t for t in (*self._records, *self._segments) if t < floor} - needed)
        old = sorted({t for t in self._manifests if t < floor} - snapshots)
        promises = [paths.manifest(self.operator, turn) for turn in old]
        promises += [paths.turn(self.operator, turn) for turn in turns if turn in self._records]
        files = [path for turn in old for path in self.snapshot_files(turn)]
        files += [path for turn in turns for path in self.segment_paths(turn)]
        return Garbage(floor, frozenset(turns), frozenset(old), tuple(promises), tuple(files))

    def segment_paths(self, turn: Turn) -> list[str]:
        """The files of a turn's segments: those that make it complete, and others that were seen."""
        record = self._records.get(turn)
        workers = {*(record.workers if record else ()), *self._segments.get(turn, ())}
        return [paths.delta(self.operator, turn, worker) for worker in sorted(workers)]

    def snapshot_files(self, turn: Turn) -> list[str]:
        """The files of a snapshot but its manifest."""
        folder = paths.snapshot(self.operator, turn)
        return [f"{folder}/{file.path}" for part in self._manifests[turn].parts for file in part.files.values()]

    def describe_retained(self) -> str:
        """Which states can be restored, in words."""
        epochs: dict[str, list[int]] = {}
        for turn in self.retained():
            held = self._records.get(turn) or self._manifests[turn]
            epochs.setdefault(held.query, []).append(held.epoch)
        if not epochs:
            return "no state is retained"
        each = (f"query {query}: epochs {min(found)} to {max(found)}" for query, found in sorted(epochs.items()))
        return f"retained are the states after {'; '.join(each)}"

    # --- steps ---

    def _behind(self, tip: Turn | None) -> _Behind:
        """What has come on a chain since its last snapshot. Asked after every epoch: only what is new is looked at."""
        new: list[Turn] = []
        behind = _Behind(0, 0, 0)
        for turn in self._back_from(tip):
            if (manifest := self._manifests.get(turn)) is not None:
                behind = _Behind(0, 0, manifest.bytes)
                break
            if (known := self._weights.get(turn)) is not None:
                behind = known
                break
            new.append(turn)
        for turn in reversed(new):
            behind = _Behind(behind.turns + 1, behind.deltas + self.delta_bytes(turn), behind.snapshot)
            self._weights[turn] = behind
        return behind

    def _look_at(self, turn: Turn) -> None:
        if (self._head is None or turn > self._head) and self.complete(turn):
            self._head = turn

    def _back_from(self, tip: Turn | None) -> Iterator[Turn]:
        at = tip
        while at is not None and self.complete(at):
            yield at
            record = self._records.get(at)
            at = record.parent if record is not None else None

    def _reaches_empty(self, chain: list[Turn]) -> bool:
        last = self._records.get(chain[-1])
        return last is not None and last.parent is None

    def _is_of(self, turn: Turn, query: QueryId, epoch: Epoch) -> bool:
        held = self._records.get(turn) or self._manifests.get(turn)
        return held is not None and held.query == query and held.epoch == epoch

    def _plan(self, turn: Turn | None) -> Plan | None:
        deltas: list[TurnRecord] = []
        at = turn
        while at is not None:
            if (manifest := self._manifests.get(at)) is not None:
                return Plan(manifest, deltas[::-1])
            record = self._records.get(at)
            if record is None or not self.has_segments(at):
                return None
            deltas.append(record)
            at = record.parent
        return Plan(None, deltas[::-1])

    def _oldest_retained(self, retain_epochs: int) -> Turn | None:
        """The oldest turn that must stay restorable; None: nothing may be deleted."""
        retained = self.retained()
        if not retained:
            return None
        if len(retained) > retain_epochs:
            return retained[retain_epochs]
        return None if self._reaches_empty(retained) else retained[-1]

    def _not_retained(self, turn: Turn | None) -> EpochNotRetained:
        return EpochNotRetained(
            f"operator {self.operator}: the state at turn {turn} cannot be restored: it, or a turn that it builds "
            f"upon, is not there any more; {self.describe_retained()}. Go back to one of those, or retain more epochs.",
            operator=self.operator,
            turn=turn,
        )
