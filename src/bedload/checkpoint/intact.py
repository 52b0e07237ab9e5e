"""What is left of an operator's state when a file of it is damaged, and how to go on from there.

A damaged file is no reason to lose everything: the states before it do not need it. This finds the newest of them, and
puts what to do into the error. Nothing is deleted or changed here: only the user knows whether there is a good copy.

Invariants: a state is offered only if every file that it needs was read and is what was written; a file is read once.
This runs after a failure, so it may take as long as a restore.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
import xxhash

from bedload.checkpoint import paths
from bedload.checkpoint.history import History
from bedload.checkpoint.records import Manifest, TurnRecord, decode, is_of
from bedload.checkpoint.segments import decode_segment
from bedload.checkpoint.storage import Storage, without_secrets
from bedload.core.errors import CheckpointDamaged, CheckpointError
from bedload.core.ids import NO_EPOCH, NO_QUERY, Epoch, OperatorName, QueryId, Turn

_R = TypeVar("_R", TurnRecord, Manifest)


@dataclass(frozen=True)
class Intact:
    """A state of which every file is what was written."""

    turn: Turn | None
    """None: the empty state."""
    query: QueryId
    epoch: Epoch
    location: str
    """The Spark checkpoint of its query, or empty."""
    newest: bool
    """Nothing is lost: it is the state that was asked for."""
    in_the_way: tuple[str, ...]
    """Damaged files that have to go first: while they are there, this state cannot be found or is not looked for."""
    cut: bool
    """A turn in between is not whole any more, so nothing that came after it leads back to this state."""


def advise(
    storage: Storage, operator: OperatorName, wanted: Turn | None, error: CheckpointDamaged
) -> CheckpointDamaged:
    """The error with what to do: which state is intact, and how to go back to it. ``wanted`` None: the newest."""
    try:
        found = newest_intact(storage, operator, wanted)
    except CheckpointError:
        return error  # the store does not answer: what is known is said
    said = error.message.rstrip(". ")
    if found is None:
        return CheckpointDamaged(
            f"{said}. No older state of operator {operator} is intact: put the file back, or start anew under another "
            "name (name=...) or with another checkpoint",
            **error.details,
        )
    return CheckpointDamaged(
        f"{said}. {_what_to_do(operator, found)}", **{**error.details, "query": found.query, "epoch": found.epoch}
    )


def newest_intact(storage: Storage, operator: OperatorName, wanted: Turn | None = None) -> Intact | None:
    """The newest state up to a turn (the newest one) of which no file is damaged; None if there is none."""
    there = _read_all(storage, operator)
    return _Search(storage, there).back_from(there.newest if wanted is None else wanted)


# --- steps ---


@dataclass
class _There:
    """What can be read of an operator's records."""

    history: History
    damaged: dict[Turn, str] = field(default_factory=dict)
    """Turns whose record is damaged, and where."""
    damaged_manifests: dict[Turn, str] = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()
    """Those whose record can be read, newest first."""

    @property
    def newest(self) -> Turn | None:
        """The head, or a damaged turn after it."""
        return max([*self.damaged, *([] if self.history.head is None else [self.history.head])], default=None)


def _read_all(storage: Storage, operator: OperatorName) -> _There:
    named = [paths.parse_turn(name) for name in storage.list(paths.turns(operator))]
    records, damaged = _read(storage, operator, TurnRecord, named, lambda turn: paths.turn(operator, turn))
    named = [paths.parse_snapshot(name) for name in storage.list(paths.snapshots(operator))]
    manifests, bad = _read(storage, operator, Manifest, named, lambda turn: paths.manifest(operator, turn))
    history = History(operator, records.values(), storage.sizes(paths.deltas(operator)), manifests.values())
    return _There(history, damaged, bad, tuple(sorted({*records, *manifests}, reverse=True)))


def _read(
    storage: Storage, operator: OperatorName, kind: type[_R], turns: list[Turn | None], path: Callable[[Turn], str]
) -> tuple[dict[Turn, _R], dict[Turn, str]]:
    found: dict[Turn, _R] = {}
    damaged: dict[Turn, str] = {}
    for turn in turns:
        if turn is None:
            continue  # a file of somebody else
        where = f"{without_secrets(storage.url)}/{path(turn)}"
        try:
            record = decode(kind, storage.read(path(turn)), where)
        except FileNotFoundError:
            continue
        except CheckpointDamaged:
            damaged[turn] = where
            continue
        if is_of(record, operator, turn):
            found[turn] = record
        else:
            damaged[turn] = where
    return found, damaged


class _Search:
    """One walk back through the turns."""

    def __init__(self, storage: Storage, there: _There) -> None:
        self._storage = storage
        self._there = there
        self._history = there.history
        self._damaged_snapshots: dict[Turn, str] = {}
        self._gone: dict[Turn, str] = {}
        """Records of turns whose segments are not there."""
        self._cut = False

    def back_from(self, wanted: Turn | None) -> Intact | None:
        """The newest state on the way back whose base is found with no damage in between."""
        start, at = wanted, wanted
        limit: Mapping[str, Epoch] | None = None
        while at is not None:
            record = self._history.record(at)
            if self._snapshot_is_intact(at):
                return self._found(start, wanted)
            if record is not None:
                limit = record.committed
                if not self._history.has_segments(at):
                    # Histories end at a turn that is not whole: nothing after it leads back to this state.
                    self._cut = True
                    self._gone[at] = self._shown(paths.turn(self._history.operator, at))
                    start = record.parent
                elif not self._segments_are_intact(record):
                    start = record.parent
                at = record.parent
            elif at in self._there.damaged:
                # Its parent is not known: the turn before it that is not of a later epoch was built upon, or could be.
                self._cut = True
                start = at = self._before(at, limit)
                if at is None:
                    return None
            else:
                return None  # garbage was collected up to here
        return self._found(start, wanted)

    def _before(self, turn: Turn, limit: Mapping[str, Epoch] | None) -> Turn | None:
        for earlier in self._there.turns:
            if earlier < turn and self._history.complete(earlier) and self._precedes(earlier, limit):
                return earlier
        return None

    def _precedes(self, turn: Turn, limit: Mapping[str, Epoch] | None) -> bool:
        """Whether a state is before one in which these were the last epochs."""
        if limit is None:
            return True
        last = self._history.last_epochs(turn)
        return last != dict(limit) and all(epoch <= limit.get(query, NO_EPOCH) for query, epoch in last.items())

    def _found(self, turn: Turn | None, wanted: Turn | None) -> Intact:
        held = None if turn is None else self._history.record(turn) or self._history.manifest(turn)
        locations = [record.location for t in self._there.turns if (record := self._history.record(t)) is not None]
        location = held.location if isinstance(held, TurnRecord) else next(iter(locations), "")
        return Intact(
            turn=turn,
            query=NO_QUERY if held is None else held.query,
            epoch=NO_EPOCH if held is None else held.epoch,
            location=location,
            newest=turn == wanted,
            in_the_way=(
                *self._there.damaged.values(),
                *self._there.damaged_manifests.values(),
                *self._gone.values(),
                *(path for at, path in self._damaged_snapshots.items() if turn is not None and at <= turn),
            ),
            cut=self._cut,
        )

    def _snapshot_is_intact(self, turn: Turn) -> bool:
        manifest = self._history.manifest(turn)
        if manifest is None:
            return False
        folder = paths.snapshot(self._history.operator, turn)
        for part in manifest.parts:
            for info in part.files.values():
                data = self._bytes(f"{folder}/{info.path}")
                if data is None or len(data) != info.bytes or xxhash.xxh3_64_hexdigest(data) != info.xxh3:
                    self._damaged_snapshots[turn] = self._shown(paths.manifest(self._history.operator, turn))
                    return False
        return True

    def _segments_are_intact(self, record: TurnRecord) -> bool:
        for path in self._history.segment_paths(record.turn):
            data = self._bytes(path)
            try:
                if data is None:
                    return False
                meta, _ = decode_segment(pa.py_buffer(data), path)
            except CheckpointDamaged:
                return False
            if (meta.operator, meta.turn) != (self._history.operator, record.turn):
                return False
        return True

    def _shown(self, path: str) -> str:
        return f"{without_secrets(self._storage.url)}/{path}"

    def _bytes(self, path: str) -> bytes | None:
        try:
            return self._storage.read(path)
        except FileNotFoundError:
            return None


def _what_to_do(operator: OperatorName, found: Intact) -> str:
    remove = "" if not found.in_the_way else f"remove {' and '.join(found.in_the_way)}"
    if found.newest:
        return (
            f"Nothing is lost: the newest state of operator {operator}, that after epoch {found.epoch}, can be put "
            f"together without it from older files that are intact. {_sentence(remove)}, and start again"
        )
    state = "the empty one, before the first epoch" if found.turn is None else f"that after epoch {found.epoch}"
    where = f" ({found.location})" if found.location else ""
    later = f"{remove}{', with all later turn records and snapshots,' * found.cut} and " if remove else ""
    query = f" of query {found.query}" if found.query else ""
    return (
        f"The newest older state of operator {operator} that is intact is {state}{query}. To go on from there: {later}"
        f"set Spark's checkpoint{where} back, by deleting the files with numbers above {found.epoch} in its folders "
        f"offsets and commits, and start the query again: Spark replays what came after"
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] if text else "Put the file back"
