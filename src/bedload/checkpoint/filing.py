"""One attachment's work on files: what the coordinator decides about turns and snapshots, carried out.

Invariant: to give a turn up, its ``.abandoned`` file is written first, and segments are looked for second; a worker
that seals writes its segment first, and looks for that file second. So a turn is never both given up here and
acknowledged there.

The drivers of a coordinator use it, on a thread for files or in a simulation.
"""

from __future__ import annotations

from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.history import Garbage, History
from bedload.checkpoint.intact import advise
from bedload.checkpoint.records import Manifest, TurnRecord
from bedload.checkpoint.strays import stray_files
from bedload.checkpoint.uniform import is_uniform, uniform
from bedload.core.errors import CheckpointDamaged, EpochNotRetained
from bedload.core.ids import OperatorName, Turn, WorkerId


class Filing:
    """The files of an attachment that has claimed its generation."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    def history(self, operator: OperatorName) -> History:
        """What there is of an operator, to go on from."""
        try:
            history = self.checkpoint.load_history(operator)
            history.restore_plan(history.head)
        except (CheckpointDamaged, EpochNotRetained) as error:
            damaged = CheckpointDamaged(error.message, **error.details)
            raise advise(self.checkpoint.storage, operator, None, damaged) from error
        # SUBTLE: after the look. Turns of a newer attachment may be in it, and to go on from them would be to write
        # turns of their numbers over theirs.
        self.checkpoint.check_fence()
        return history

    def write_turn(self, operator: OperatorName, record: TurnRecord) -> None:
        """Put a turn on record."""
        self.checkpoint.write_turn(operator, record)

    def abandon(self, operator: OperatorName, turn: Turn) -> None:
        """Let no worker acknowledge a turn from now on."""
        self.checkpoint.storage.write(paths.abandoned(operator, turn), b"")

    def unwritten(self, operator: OperatorName, record: TurnRecord) -> list[WorkerId]:
        """The workers whose part of a turn is not there: look only after the turn was abandoned."""
        there = set(self.checkpoint.storage.list(paths.deltas(operator)))
        names = {worker: paths.delta(operator, record.turn, worker).rpartition("/")[2] for worker in record.workers}
        return [worker for worker, name in names.items() if name not in there]

    def write_manifest(self, operator: OperatorName, manifest: Manifest) -> Manifest:
        """Make a snapshot count; gives the manifest that does, which may be that of an attempt before this one."""
        self.checkpoint.check_fence()
        storage = self.checkpoint.storage
        # SUBTLE: of one that was made before, and was said to have failed, the files that it replaced are gone.
        if not is_uniform(manifest) and not storage.exists(paths.manifest(operator, manifest.turn)):
            manifest = uniform(storage, operator, self.checkpoint.schema(operator, manifest.schema), manifest)
            self.checkpoint.check_fence()  # again, as that took its time
        counts = self.checkpoint.write_manifest(operator, manifest, again=True)
        # What another attempt left would be counted by whoever reads the folder as plain Parquet.
        storage.delete(stray_files(storage, paths.snapshot(operator, manifest.turn), counts.parts))
        return counts

    def collect(self, operator: OperatorName, garbage: Garbage) -> None:
        """Delete what no retained epoch needs."""
        self.checkpoint.delete_garbage(operator, garbage)
