"""Parts of a snapshot that nothing has changed since: the next snapshot takes their files over as they are.

Each snapshot still has all of its files: the store copies them by itself (``Storage.copy``), on a local disk as a hard
link. So a snapshot can be read and deleted without any other, and no file counts how many need it.

Invariants: a part is taken over only if it was written in the schema and layout of the next snapshot, and no turn since
has a row of its key groups; a copy has the length that was written, or :class:`CheckpointDamaged` names the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from bedload.checkpoint import paths
from bedload.checkpoint.forms import StateForm, groups_of
from bedload.checkpoint.history import Plan
from bedload.checkpoint.records import VERSION, OperatorSchema, SnapshotPart, TurnRecord
from bedload.checkpoint.storage import Storage, without_secrets
from bedload.core.errors import CheckpointDamaged
from bedload.core.ids import OperatorName, Turn


def resting_parts(
    storage: Storage, operator: OperatorName, schema: OperatorSchema, plan: Plan, groups: Sequence[int]
) -> list[SnapshotPart]:
    """The parts of the plan's snapshot that are all of these key groups, and of which no turn after it has a row."""
    before = plan.snapshot
    if before is None or (before.schema, before.version) != (schema.number, VERSION):
        return []
    if not plan.deltas:
        return []  # a snapshot of the same turn, whose answer was lost: its files are in this very folder
    wanted = set(groups)
    parts = [part for part in before.parts if wanted.issuperset(part.groups)]
    changed: set[int] = set()
    for record in plan.deltas:
        if not parts:
            break
        if record.schema != schema.number:
            return []  # there and back again: what was in between is not looked into
        changed |= _changed(storage, operator, schema, record, groups)
        parts = [part for part in parts if changed.isdisjoint(part.groups)]
    return parts


def take_over(
    storage: Storage, operator: OperatorName, parts: Iterable[SnapshotPart], before: Turn, turn: Turn
) -> None:
    """Put the files of these parts into another snapshot's folder."""
    source, target = paths.snapshot(operator, before), paths.snapshot(operator, turn)
    for part in parts:
        for info in part.files.values():
            path = f"{source}/{info.path}"
            try:
                storage.copy(path, f"{target}/{info.path}")
                size = storage.size(f"{target}/{info.path}")
            except FileNotFoundError as missing:
                raise _damaged(storage, path, "it is not there") from missing
            if size != info.bytes:
                raise _damaged(storage, path, f"it has {size} bytes, and {info.bytes} were written")


def _changed(
    storage: Storage, operator: OperatorName, schema: OperatorSchema, record: TurnRecord, groups: Sequence[int]
) -> set[int]:
    # Compiled code comes with it, which is not needed to start a child or to read its result.
    from bedload.checkpoint.restore import load_delta

    form = StateForm.of(schema, [])
    found: set[int] = set()
    for worker in record.writers(groups):
        batch, _ = load_delta(storage, operator, form, record, worker)
        found.update(np.unique(groups_of(batch)).tolist())
    return found


def _damaged(storage: Storage, path: str, what: str) -> CheckpointDamaged:
    where = f"{without_secrets(storage.url)}/{path}"
    return CheckpointDamaged(
        f"the snapshot file {where} is damaged: {what}. Put the file back from a copy of the checkpoint, or restore an "
        "epoch that does not need it",
        path=where,
        what=what,
    )
