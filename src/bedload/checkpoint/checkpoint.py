"""A checkpoint as a whole: what the files under one root mean together, and all reading and writing of records.

Invariants:

- A folder is a checkpoint if ``bedload.json`` says so. It is made in an empty folder only.
- A generation is claimed once. Who claims one creates its file first and looks at turns and segments after that;
  a worker writes its segment first and looks for a newer claim after that. So either the worker sees the claim,
  or the new attachment sees the segment. Claims are never deleted: a zombie looks for the one after its own.
- A manifest is written after its parts, a turn record before any seal is acknowledged, and both are deleted before the
  files that they promise. So a crash at any moment may leave files that nothing points to, which are swept with the
  next garbage, but never the reverse.

Others may write and delete while this reads: an older attachment that does not know that it is over, or garbage
collection. A file that was listed and is gone when it is read was not needed any more, and is ignored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from typing import TypeVar

import msgspec

from bedload.checkpoint import paths
from bedload.checkpoint.claimant import Claimant
from bedload.checkpoint.export import copy_state
from bedload.checkpoint.fence import check_fence
from bedload.checkpoint.history import Garbage, History
from bedload.checkpoint.pools import THREADS, Pools
from bedload.checkpoint.records import (
    FORMAT_NAME,
    Claim,
    Format,
    Manifest,
    OperatorSchema,
    R,
    TurnRecord,
    decode,
    encode,
    is_of,
)
from bedload.checkpoint.storage import Storage, read_if_there, without_secrets
from bedload.checkpoint.strays import stray_files
from bedload.core.errors import CheckpointDamaged, CheckpointError, CheckpointForeign
from bedload.core.ids import ChangeId, Generation, OperatorName, Turn, generation_of

_CLAIMS = 100
"""Numbers that an attachment tries in a row; somebody else may be quicker, but not for ever."""
_THREADS = 16
"""Reads of small files under way at a time: an object store answers each in some 20 ms, whatever its size."""


T = TypeVar("T", TurnRecord, Manifest)


class Checkpoint:
    """All operators' durable state under one root. Get one by :meth:`open`."""

    def __init__(
        self,
        storage: Storage,
        format: Format,  # noqa: A002
        claimant: Claimant | None,
        pools: Pools,
    ) -> None:
        self.storage = storage
        self.format = format
        self.pools = pools
        """The threads that read many small files at a time."""
        self.generation: Generation | None = None
        """What :meth:`claim` gave."""
        self._claimant = claimant
        self._schemas: dict[tuple[OperatorName, int], OperatorSchema] = {}

    @classmethod
    def open(cls, storage: Storage, claimant: Claimant | None = None, *, pools: Pools = THREADS) -> Checkpoint:
        """The checkpoint that is there; in an empty folder a new one. Without a ``claimant`` it can only be read."""
        data = read_if_there(storage, paths.FORMAT)
        if data is None:
            data = _make(storage, claimant)
        found = decode(Format, data, f"{_shown(storage)}/{paths.FORMAT}")
        if found.format != FORMAT_NAME:
            raise CheckpointForeign(
                f"{_shown(storage)}/{paths.FORMAT} is of format {found.format!r}, which is no checkpoint: give the "
                "checkpoint an empty folder of its own"
            )
        return cls(storage, found, claimant, pools)

    # --- generations ---

    def claim(self) -> Generation:
        """Take the next generation: from here on, older attachments are fenced off."""
        # SUBTLE: claims that somebody deleted leave turns behind, and no two attachments may have turns of one number.
        first = max(self.newest_generation() or 0, self._newest_written()) + 1
        for number in map(Generation, range(first, first + _CLAIMS)):
            path, claim = paths.generation(number), encode(self._claim(number))
            if self.storage.create(path, claim):
                self.generation = number
                return number
            # SUBTLE: a number that nobody got counts as claimed all the same: the one before it looks for it.
            if not self.storage.exists(path):
                self.storage.write(path, claim)
        raise CheckpointError(
            f"{_shown(self.storage)}: {_CLAIMS} generations were claimed by others while this attachment tried to take "
            "the next one. Find out what attaches to it again and again, end that, and attach again"
        )

    def newest_generation(self) -> Generation | None:
        """The last one that was claimed."""
        names = self.storage.list(paths.GENERATIONS)
        return max((number for name in names if (number := paths.parse_generation(name)) is not None), default=None)

    def _newest_written(self) -> int:
        """The last generation that left a turn or a delta."""
        folders = [folder(operator) for operator in self.operators() for folder in (paths.turns, paths.deltas)]
        with self.pools(_THREADS, "bedload-checkpoint") as pool:
            names = [name for listed in pool.map(self.storage.list, folders) for name in listed[-1:]]
        return max((int(name[:10]) for name in names if name[:10].isdecimal()), default=0)

    def check_fence(self) -> None:
        """Raise :class:`Fenced` if a newer attachment has taken over."""
        if self.generation is None:
            raise CheckpointError("this attachment has claimed no generation: it may only read")
        check_fence(self.storage, self.generation)

    # --- operators and their schemas ---

    def operators(self) -> list[OperatorName]:
        """All operators that have durable state, by name."""
        found = (paths.parse_operator(name) for name in self.storage.list(paths.OPERATORS))
        return sorted(name for name in found if name is not None)

    def schemas(self, operator: OperatorName) -> list[OperatorSchema]:
        """All schemas of an operator, oldest first. None is ever deleted, so what one builds upon is there, too."""
        numbers = map(paths.parse_schema, self.storage.list(paths.schemas(operator)))
        found = [self.schema(operator, number) for number in sorted(n for n in numbers if n is not None)]
        # SUBTLE: without one in between, what was renamed there would be taken for new.
        for base in {schema.base for schema in found} - {schema.number for schema in found} - {None}:
            assert base is not None
            self.schema(operator, base)
        return found

    def schema(self, operator: OperatorName, number: int) -> OperatorSchema:
        """One schema of an operator."""
        known = self._schemas.get((operator, number))
        if known is None:
            path = paths.schema(operator, number)
            known = self._read(OperatorSchema, path)
            if known is None:
                raise CheckpointDamaged(
                    f"{_shown(self.storage)}/{path} is missing: operator {operator} has state of that schema. Put the "
                    "file back from a copy of the checkpoint.",
                    path=path,
                )
            if known.number != number:
                raise CheckpointDamaged(
                    f"{_shown(self.storage)}/{path} is schema {known.number} of its operator. Files of a checkpoint "
                    "must not be renamed or copied over each other; go on from a copy or an export of it.",
                    path=path,
                )
            self._schemas[operator, number] = known
        return known

    def add_schema(self, operator: OperatorName, schema: OperatorSchema) -> OperatorSchema:
        """The stored schema of that shape, whatever number the given one has; a new one if there is none."""
        known = self.schemas(operator)
        for old in known:
            if msgspec.structs.replace(schema, number=old.number, version=old.version) == old:
                return old
        number = known[-1].number if known else 0
        while True:
            number += 1
            new = msgspec.structs.replace(schema, number=number)
            if self.storage.create(paths.schema(operator, number), encode(new)):
                self._schemas[operator, number] = new
                return new

    # --- turns and snapshots ---

    def write_turn(self, operator: OperatorName, record: TurnRecord) -> None:
        """Write a turn's record; only after that may a worker say that it has sealed the turn."""
        named = msgspec.structs.replace(record, operator=operator)
        self.storage.write(paths.turn(operator, record.turn), encode(named))

    def write_manifest(self, operator: OperatorName, manifest: Manifest, *, again: bool = False) -> Manifest:
        """Make a snapshot count, only after all its files were written; gives the manifest that counts.

        Created, not written: an older attachment that is not over yet may make one of the same turn, of other files,
        and each would take the other's for what failed attempts left. For the same reason one that this attachment
        made before, and was told that it could not, stays as it is: it has all of its files, and counts, where one turn
        has one state whoever writes it (``again``).
        """
        path = paths.manifest(operator, manifest.turn)
        mine = msgspec.UNSET if self.generation is None else self.generation
        named = msgspec.structs.replace(manifest, operator=operator, generation=mine)
        if self.storage.create(path, encode(named)):
            return manifest
        there = self._read(Manifest, path)
        counts = None if there is None else self._named(operator, manifest.turn, there)
        own = again and there is not None and there.generation == mine != msgspec.UNSET
        if counts is None or not (own or counts == manifest):
            raise CheckpointError(
                f"operator {operator}: another attachment has made a snapshot of the state after epoch "
                f"{manifest.epoch}, or makes one now ({_shown(self.storage)}/{path}). Nothing is lost: see that only "
                "one attachment runs, and ask for a snapshot again after the next epoch"
            )
        return counts

    def load_history(self, operator: OperatorName) -> History:
        """All turns and snapshots of an operator. To go on from it, claim first."""
        turns = self._numbered(paths.turns(operator), paths.parse_turn)
        segments = self.storage.sizes(paths.deltas(operator))
        snapshots = self._numbered(paths.snapshots(operator), paths.parse_snapshot)
        with self.pools(_THREADS, "bedload-checkpoint") as pool:
            records = pool.map(lambda turn: self._read(TurnRecord, paths.turn(operator, turn)), turns)
            manifests = pool.map(lambda turn: self._read(Manifest, paths.manifest(operator, turn)), snapshots)
            return History(
                operator,
                [self._named(operator, turn, found) for turn, found in zip(turns, records, strict=True) if found],
                segments,
                [self._named(operator, turn, found) for turn, found in zip(snapshots, manifests, strict=True) if found],
            )

    # --- garbage ---

    def delete_garbage(self, operator: OperatorName, garbage: Garbage) -> None:
        """Delete garbage, promises first; and if it tells the floor, snapshots below it that were never finished."""
        if not garbage.paths:
            return
        self.check_fence()
        self.storage.delete(garbage.promises)
        # Again, as the first may have taken long. What is left when it raises, nothing points to.
        self.check_fence()
        self.storage.delete(garbage.files)
        if garbage.floor is None:
            return
        self.storage.delete(self._unfinished_snapshots(operator, garbage.floor))
        # SUBTLE: the marks of this attachment stay. A worker that hung may wake up however late, and would not see that
        # the turn that it is about to seal was given up. Those of earlier attachments are fenced off.
        given_up = self._numbered(paths.turns(operator), paths.parse_abandoned)
        old = [turn for turn in given_up if turn < garbage.floor and generation_of(turn) != self.generation]
        self.storage.delete([paths.abandoned(operator, turn) for turn in old])

    # --- moves ---

    def write_move(self, number: ChangeId, operator: OperatorName, content: bytes) -> None:
        """Remember an operator's part in a change of the cluster; what was remembered of it before is replaced.

        Nothing depends on it: no restore reads it, no garbage takes it along, and an export leaves it behind.
        """
        if self.generation is None:
            raise CheckpointError("this attachment has claimed no generation: it may only read")
        self.storage.write(paths.move(self.generation, number, operator), content)

    def moves(self) -> dict[tuple[Generation, ChangeId, OperatorName], bytes]:
        """All that is remembered of changes of the cluster, by attachment, change and operator."""
        named = {name: key for name in self.storage.list(paths.MOVES) if (key := paths.parse_move(name)) is not None}
        with self.pools(_THREADS, "bedload-checkpoint") as pool:
            found = pool.map(lambda name: read_if_there(self.storage, f"{paths.MOVES}/{name}"), named)
            return {key: data for key, data in zip(named.values(), found, strict=True) if data is not None}

    # --- export ---

    def export(
        self, to: Storage, at: Mapping[OperatorName, Turn] | None = None, *, epochs_back: int = 1
    ) -> dict[OperatorName, Turn]:
        """Copy the state of all operators, as of their heads or of the turns in ``at``, into an empty folder.

        The copy is a checkpoint that another cluster can start from; it counts when this returns. From it the last
        ``epochs_back`` epochs can be run again: the last one may not be committed by Spark. Gives the turn that was
        copied of each operator; one that has completed no turn has none.
        """
        if there := to.list(""):
            raise CheckpointForeign(
                f"{_shown(to)} holds files ({', '.join(there[:3])}): export into an empty folder of its own"
            )
        copied: dict[OperatorName, Turn] = {}
        for operator in self.operators():
            for schema in self.schemas(operator):
                to.write(paths.schema(operator, schema.number), encode(schema))
            wanted = (at or {}).get(operator)
            turn = copy_state(self.storage, to, partial(self.load_history, operator), wanted, epochs_back, self.pools)
            if turn is not None:
                copied[operator] = turn
        # Turns must go up: the generations of the copy go on from those of the source.
        newest = Generation(max([self.newest_generation() or 0, *(generation_of(turn) for turn in copied.values())]))
        if newest:
            to.write(paths.generation(newest), encode(self._claim(newest, exported_from=self.format.id)))
        _write_format(to, self._who)
        return copied

    # --- steps ---

    @property
    def _who(self) -> Claimant:
        if self._claimant is None:
            raise CheckpointError(f"{_shown(self.storage)} was opened without saying by whom: it may only be read")
        return self._claimant

    def _claim(self, number: Generation, exported_from: str = "") -> Claim:
        return Claim(
            generation=number,
            exported_from=exported_from,
            token=self._who.new_id(),
            when=self._who.clock.wall(),
            host=self._who.host,
            pid=self._who.pid,
            bedload=installed_version(),
        )

    def _read(self, kind: type[R], path: str) -> R | None:
        data = read_if_there(self.storage, path)
        return None if data is None else decode(kind, data, f"{_shown(self.storage)}/{path}")

    def _numbered(self, folder: str, parse: Callable[[str], Turn | None]) -> list[Turn]:
        return sorted(turn for name in self.storage.list(folder) if (turn := parse(name)) is not None)

    def _named(self, operator: OperatorName, turn: Turn, found: T) -> T:
        if not is_of(found, operator, turn):
            raise CheckpointDamaged(
                f"the file of operator {operator} and turn {turn} under {_shown(self.storage)} is that of another turn "
                f"or operator: {found}. Files of a checkpoint must not be renamed or copied over each other; go on "
                "from a copy or an export of it."
            )
        # As those that are not read back have it.
        if isinstance(found, Manifest):
            return msgspec.structs.replace(found, operator=msgspec.UNSET, generation=msgspec.UNSET)
        return msgspec.structs.replace(found, operator=msgspec.UNSET)

    def _unfinished_snapshots(self, operator: OperatorName, floor: Turn) -> list[str]:
        found: list[str] = []
        for turn in self._numbered(paths.snapshots(operator), paths.parse_snapshot):
            if turn < floor and not self.storage.exists(paths.manifest(operator, turn)):
                found += stray_files(self.storage, paths.snapshot(operator, turn), ())
        return found


@functools.cache
def installed_version() -> str:
    """Of Bedload; empty if it is not installed as a package."""
    try:
        return metadata.version("bedload")
    except metadata.PackageNotFoundError:
        return ""


def _make(storage: Storage, claimant: Claimant | None) -> bytes:
    """Make a checkpoint in an empty folder; gives the content of the format file that counts."""
    there = storage.list("")
    # Somebody else may be making it at this moment.
    if paths.FORMAT not in there:
        if there:
            raise CheckpointForeign(
                f"{_shown(storage)} holds files ({', '.join(there[:3])}{', ...' if len(there) > 3 else ''}) but no "
                f"{paths.FORMAT}: it is no checkpoint. Give the checkpoint an empty folder of its own; if this was "
                f"one, put {paths.FORMAT} back."
            )
        if claimant is None:
            raise CheckpointForeign(f"there is no checkpoint at {_shown(storage)}: see that the URL is right")
        _write_format(storage, claimant)
    return storage.read(paths.FORMAT)


def _write_format(storage: Storage, claimant: Claimant) -> None:
    """Say that this is a checkpoint; if another does so at the same time, the file of one of the two stays."""
    made = encode(Format(id=claimant.new_id(), bedload=installed_version()))
    if not storage.create(paths.FORMAT, made) and not storage.exists(paths.FORMAT):
        storage.write(paths.FORMAT, made)


def _shown(storage: Storage) -> str:
    return without_secrets(storage.url)
