"""The state at a turn, read back from a snapshot and the deltas that came after it.

The key groups asked for come in chunks: those of one snapshot part together, cut so that a chunk stays small. Each
chunk is read, merged and given on by itself, while the next ones are read and merged in other threads. It waits for its
own files alone. Key groups may be in a hurry: their chunks are read by threads of their own, and given on first.

The operator may have been changed between turns. Then the plan has *eras*: the snapshot and the turns of one schema
are read as they were written, and what they give is converted before the turns of the next one are merged into it.

Invariants: every key group asked for comes once, also if it has no keys; every file that is needed is read once and
checked, and no other file is read; in memory are the deltas of the key groups asked for, and a few parts of the
snapshot; if a file is missing or damaged, an error names it, and no chunk comes after it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from bedload.checkpoint import paths
from bedload.checkpoint.evolution import Evolution, path_between
from bedload.checkpoint.forms import StateForm, groups_of, select
from bedload.checkpoint.merge import KeyFilter, check_delta, merge_checked
from bedload.checkpoint.pools import THREADS, Pools
from bedload.checkpoint.records import Manifest, OperatorSchema, SnapshotPart, TurnRecord
from bedload.checkpoint.segments import decode_segment
from bedload.checkpoint.snapshots import PartReader
from bedload.checkpoint.storage import Storage, without_secrets
from bedload.core.errors import CheckpointDamaged, DefinitionError
from bedload.core.ids import OperatorName, WorkerId
from bedload.store.deltas import OP, PATCHES

Plan: TypeAlias = tuple[Manifest | None, Sequence[TurnRecord]]
"""A snapshot, and the turns after it in their order: what ``History.restore_plan`` gives."""

Chunk: TypeAlias = tuple[tuple[int, ...], pa.RecordBatch]
Progress: TypeAlias = Callable[[int, int, int], None]
"""Called after each delta and chunk, with the key groups that are done, all that were asked for, and the bytes read."""

CHUNK_ROWS = 1 << 18
"""Rows of the snapshot in a chunk: some milliseconds of work for whoever takes it."""
CHUNK_BYTES = 16 * 1024 * 1024
"""The same in bytes of the snapshot's files."""
CHUNK_GROUPS = 1024
_LOOK_SECONDS = 0.02
"""While nothing is done, what is in a hurry is looked for so often."""
_HASTY_THREADS = 2
"""For key groups that are in a hurry: so that they do not wait for what is being read already."""


class Restore:
    """Reads the state of one operator at one turn. Thread-safe, and good for any number of reads."""

    def __init__(
        self,
        storage: Storage,
        operator: OperatorName,
        schema: OperatorSchema,
        plan: Plan,
        *,
        schemas: Mapping[int, OperatorSchema] | None = None,
        threads: int | None = None,
        pools: Pools = THREADS,
    ) -> None:
        """``schema`` is the one that the state is wanted in, ``schemas`` has by number those that it was written in."""
        self._storage = storage
        self._operator = operator
        self._schema = schema
        self._schemas = {**(schemas or {}), schema.number: schema}
        self.snapshot, self._turns = plan
        self._threads = threads or min(4, os.cpu_count() or 1)
        self._pools = pools

    def chunks(
        self,
        groups: Iterable[int] | None = None,
        *,
        chunk_groups: int = CHUNK_GROUPS,
        first: Set[int] = frozenset(),
        variables: Sequence[str] | None = None,
        keys: Sequence[pa.Array] | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Chunk]:
        """The state of these key groups, or of all, chunk by chunk: the chunk's key groups, and their state.

        ``first``: key groups that are in a hurry, which may become more at any time. ``variables`` leaves the others
        out; ``keys`` (key columns) leaves out all keys but these, and so all key groups but theirs.
        """
        eras = self._eras(variables)
        wanted = self._wanted(groups)
        only = None if keys is None else KeyFilter(eras[-1].form, keys)
        if only is not None:
            wanted = [group for group in wanted if group in only.groups]
        with (
            self._pools(self._threads, "bedload-restore") as pool,
            self._pools(_HASTY_THREADS, "bedload-restore-first") as hasty,
        ):
            try:
                yield from self._run(pool, hasty, eras, wanted, chunk_groups, first, only, progress)
            finally:
                for threads in (pool, hasty):
                    threads.shutdown(wait=True, cancel_futures=True)

    def expected(self, groups: Sequence[int]) -> int:
        """About how many keys the snapshot has of these key groups."""
        wanted = frozenset(groups)
        parts = () if self.snapshot is None else self.snapshot.parts
        return sum(part.rows * len(wanted.intersection(part.groups)) // len(part.groups) for part in parts)

    def table(
        self,
        groups: Iterable[int] | None = None,
        *,
        variables: Sequence[str] | None = None,
        keys: Sequence[pa.Array] | None = None,
    ) -> pa.Table:
        """As :meth:`chunks`, all at once."""
        batches = [batch for _, batch in self.chunks(groups, variables=variables, keys=keys)]
        return pa.Table.from_batches(batches, StateForm.of(self._schema, variables).schema)

    def _wanted(self, groups: Iterable[int] | None) -> list[int]:
        count = self._schema.key_groups
        wanted = list(range(count)) if groups is None else sorted(set(groups))
        if wanted and not 0 <= wanted[0] <= wanted[-1] < count:
            raise DefinitionError(
                f"operator {self._operator!r} has the key groups 0 to {count - 1}, but {wanted[0]} to {wanted[-1]} "
                "were asked for"
            )
        return wanted

    def _eras(self, variables: Sequence[str] | None) -> list[_Era]:
        """The plan by schema, oldest first; the last era is in the wanted one, with these variables."""
        plan: list[tuple[int, list[TurnRecord]]] = []
        if self.snapshot is not None:
            plan.append((self.snapshot.schema, []))
        for record in self._turns:
            if not plan or plan[-1][0] != record.schema:
                plan.append((record.schema, []))
            plan[-1][1].append(record)
        if not plan or plan[-1][0] != self._schema.number:
            plan.append((self._schema.number, []))
        form = StateForm.of(self._schema, variables)
        eras: list[_Era] = []
        for at in reversed(range(len(plan))):
            number, turns = plan[at]
            evolution = None if not at else self._evolution(plan[at - 1][0], number)
            eras.insert(0, _Era(self._schemas[number], form, tuple(turns), evolution))
            if evolution is not None:
                form = StateForm.of(self._schemas[plan[at - 1][0]], evolution.sources(form.variables))
        return eras

    def _evolution(self, stored: int, wanted: int) -> Evolution:
        for number in (stored, wanted):
            if number not in self._schemas:
                raise CheckpointDamaged(
                    f"the state of operator {self._operator!r} in {without_secrets(self._storage.url)} was written "
                    f"with schema {number}, which is not known. Put its file back from a copy of the checkpoint"
                )
        return Evolution(path_between(self._schemas, stored, wanted), self._operator)

    def _run(
        self,
        pool: Executor,
        hasty: Executor,
        eras: Sequence[_Era],
        wanted: list[int],
        chunk_groups: int,
        first: Set[int],
        only: KeyFilter | None,
        progress: Progress | None,
    ) -> Iterator[Chunk]:
        tally = _Tally(len(wanted), progress)
        segments = [
            [
                _Segment(record, worker, partial(self._segment, era.form, record, worker, wanted, only))
                for record in era.turns
                for worker in record.writers(wanted)
            ]
            for era in eras
        ]
        pieces = list(self._pieces(wanted, chunk_groups, eras[0]))
        # Ahead of the pieces, which would read them one after another. What fails, fails in the piece that needs it.
        ahead = [pool.submit(segment.read, tally) for of_era in segments for segment in of_era]
        running: dict[Future[pa.RecordBatch], _Piece] = {}
        while pieces or running:
            hurried = [piece for piece in pieces if not first.isdisjoint(piece.groups)]
            for piece in hurried[: _HASTY_THREADS + 1 - sum(it.hurried for it in running.values())]:
                pieces.remove(piece)
                running[hasty.submit(self._merge, eras, piece, segments, tally, only)] = replace(piece, hurried=True)
            # As many ahead as there are threads: what is done and not yet taken is memory.
            while pieces and sum(not it.hurried for it in running.values()) <= self._threads:
                piece = pieces.pop(0)
                running[pool.submit(self._merge, eras, piece, segments, tally, only)] = piece
            # SUBTLE: one at a time, chosen when it is asked for: what is done goes after what is in a hurry by then.
            # Without a hurry key groups come in their order.
            urgent = [it for it, piece in running.items() if not first.isdisjoint(piece.groups)]
            watched = urgent or [next(iter(running))]
            done, _ = wait(watched, timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED)
            future = next((it for it in watched if it in done), None)
            if future is None:
                continue  # something else may be in a hurry by now
            piece = running.pop(future)
            batch = future.result()
            tally.count(groups=len(piece.groups), size=piece.bytes)
            yield piece.groups, batch
        for read in ahead:
            read.result()

    def _pieces(self, wanted: Sequence[int], chunk_groups: int, era: _Era) -> Iterator[_Piece]:
        rest, form = set(wanted), era.form
        parts = () if self.snapshot is None else self._parts(self.snapshot, era.schema)
        for part in parts:
            groups = [group for group in part.groups if group in rest]
            rest.difference_update(groups)
            if not groups:
                continue
            reader = PartReader(self._storage, self._folder, era.schema, part, tuple(form.variables))
            size = _bytes(part, form)
            step = _step(part, size, chunk_groups)
            for at in range(0, len(groups), step):
                # A file's bytes count when its first chunk is done.
                yield _Piece(tuple(groups[at : at + step]), reader, 0 if at else size)
        # Without a snapshot all groups are here.
        left = sorted(rest)
        for at in range(0, len(left), chunk_groups):
            yield _Piece(tuple(left[at : at + chunk_groups]), None, 0)

    def _parts(self, manifest: Manifest, schema: OperatorSchema) -> Sequence[SnapshotPart]:
        groups = sorted(group for part in manifest.parts for group in part.groups)
        if groups != list(range(schema.key_groups)):
            where = f"{without_secrets(self._storage.url)}/{paths.manifest(self._operator, manifest.turn)}"
            raise CheckpointDamaged(
                f"the manifest {where} does not have each of the {schema.key_groups} key groups once. Put the file "
                "back from a copy of the checkpoint, or restore an epoch that does not need it",
                path=where,
            )
        return manifest.parts

    @property
    def _folder(self) -> str:
        assert self.snapshot is not None
        return paths.snapshot(self._operator, self.snapshot.turn)

    def _segment(
        self, form: StateForm, record: TurnRecord, worker: WorkerId, wanted: Sequence[int], only: KeyFilter | None
    ) -> tuple[pa.RecordBatch, int]:
        whole, size = load_delta(self._storage, self._operator, form, record, worker)
        batch = select(whole, wanted, form.key_groups)
        if only is not None:
            batch = only.keep(batch)
        elif 2 * batch.num_rows < whole.num_rows:
            batch = batch.take(pa.array(np.arange(batch.num_rows)))  # a slice would hold on to the whole
        return batch, size

    def _merge(
        self,
        eras: Sequence[_Era],
        piece: _Piece,
        segments: Sequence[Sequence[_Segment]],
        tally: _Tally,
        only: KeyFilter | None,
    ) -> pa.RecordBatch:
        state = eras[0].form.empty() if piece.reader is None else piece.reader.read(piece.groups)
        if only is not None:
            state = only.keep(state)
        deltas = [[it.read(tally) for it in of_era if it.has(piece.groups)] for of_era in segments]
        try:
            for era, changed in zip(eras, deltas, strict=True):
                form = era.form
                if era.evolution is not None:
                    state = era.evolution.apply(state, tuple(form.variables))
                near = [_between(delta, piece.groups[0], piece.groups[-1]) for delta in changed]
                state = merge_checked(form, state, [select(delta, piece.groups, form.key_groups) for delta in near])
            return state
        except CheckpointDamaged as bad:
            raise CheckpointDamaged(
                f"the state of operator {self._operator!r} in {without_secrets(self._storage.url)} cannot be put "
                f"together (key groups {piece.groups[0]} to {piece.groups[-1]}): {bad.message}",
                **bad.details,
            ) from bad


@dataclass(frozen=True)
class _Era:
    """The part of a plan that was written in one schema."""

    schema: OperatorSchema
    form: StateForm
    """With the variables that are needed."""
    turns: tuple[TurnRecord, ...]
    evolution: Evolution | None
    """From the era before; None: there is none."""


class _Tally:
    """How far a restore is. Thread-safe."""

    def __init__(self, wanted: int, progress: Progress | None) -> None:
        self._wanted = wanted
        self._progress = progress
        self._lock = Lock()
        self._groups = self._bytes = 0

    def count(self, *, groups: int = 0, size: int) -> None:
        """Something was read."""
        with self._lock:
            self._groups += groups
            self._bytes += size
            if self._progress is not None:
                self._progress(self._groups, self._wanted, self._bytes)


class _Segment:
    """What one worker changed in a turn. It is read once, by whoever needs it first; others wait for that."""

    def __init__(self, record: TurnRecord, worker: WorkerId, load: Callable[[], tuple[pa.RecordBatch, int]]) -> None:
        self._record = record
        self._worker = worker
        self._load = load
        self._lock = Lock()
        self._batch: pa.RecordBatch | None = None

    def has(self, groups: Sequence[int]) -> bool:
        """Whether changes of these key groups may be in it."""
        return self._worker in self._record.writers(groups)

    def read(self, tally: _Tally) -> pa.RecordBatch:
        """The changes of all key groups that are wanted."""
        with self._lock:
            if self._batch is None:
                self._batch, size = self._load()
                tally.count(size=size)
            return self._batch


@dataclass(frozen=True)
class _Piece:
    groups: tuple[int, ...]
    reader: PartReader | None
    bytes: int
    hurried: bool = False


def load_delta(
    storage: Storage, operator: OperatorName, form: StateForm, record: TurnRecord, worker: WorkerId
) -> tuple[pa.RecordBatch, int]:
    """What one worker changed in a turn, with the columns of the form alone, and the size of its file."""
    path = paths.delta(operator, record.turn, worker)
    where = f"{without_secrets(storage.url)}/{path}"
    try:
        data = pa.py_buffer(storage.read(path))
    except FileNotFoundError as missing:
        raise CheckpointDamaged(
            f"the segment {where} (query {record.query}, epoch {record.epoch}) is not there, but the state that was "
            "asked for needs it. Put the file back from a copy of the checkpoint, or restore an epoch that does not "
            "need it",
            path=where,
        ) from missing
    meta, batch = decode_segment(data, where)
    if (meta.operator, meta.turn, meta.worker) != (operator, record.turn, worker):
        raise CheckpointDamaged(
            f"the segment {where} is of operator {meta.operator!r}, turn {meta.turn} and worker {meta.worker}: it was "
            "put in another one's place. Put the right file back from a copy of the checkpoint",
            path=where,
        )
    if not batch.num_columns:  # nothing changed
        return form.empty_delta(), int(data.size)
    check_delta(form, batch, f"the segment {where}")
    names = [*form.schema.names, OP, *([PATCHES] if PATCHES in batch.schema.names else [])]
    return batch.select(names), int(data.size)


def _between(batch: pa.RecordBatch, low: int, high: int) -> pa.RecordBatch:
    first, end = np.searchsorted(groups_of(batch), [low, high + 1]).tolist()
    return batch.slice(first, end - first)


def _bytes(part: SnapshotPart, form: StateForm) -> int:
    names = [name for name in part.files if name in form.variables] or sorted(part.files)[:1]
    return sum(part.files[name].bytes for name in names)


def _step(part: SnapshotPart, size: int, chunk_groups: int) -> int:
    chunks = max(part.rows / CHUNK_ROWS, size / CHUNK_BYTES, 1.0)
    return max(1, min(chunk_groups, int(len(part.groups) / chunks)))
