"""The driver's part in a simulated checkpoint: what the coordinator decides, carried out on files, with delays.

It does what :mod:`bedload.spark.keeper` and the threads of :mod:`bedload.spark.desk` do. Claiming comes before
looking, and giving a turn up before looking for its segments; other things happen in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import pyarrow as pa

from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.records import OperatorSchema, Variable, pack_schema
from bedload.checkpoint.storage import Storage
from bedload.control.coordinator import Coordinator
from bedload.control.instructions import CheckTurn, CollectGarbage, Instruction, WriteManifest, WriteTurn
from bedload.control.lineage import Lineage
from bedload.core.errors import BedloadError
from bedload.core.ids import OperatorName, WorkerId
from bedload.testing.network import Network
from bedload.testing.watcher import Watcher
from bedload.testing.workload import KEY_GROUPS
from bedload.worker.runtime import Startable

Event = Callable[[Coordinator], list[Instruction]]


class Desk:
    """One attachment to the checkpoint, from its claim on."""

    def __init__(
        self, network: Network, storage: Storage, watchers: Mapping[OperatorName, Watcher], number: int
    ) -> None:
        self._network = network
        self._storage = storage
        self._watchers = watchers
        self._checkpoint = Checkpoint.open(storage, clock=network.time, new_id=lambda: f"attachment {number}")
        self.generation = self._checkpoint.claim()
        self.report: Callable[[Event], None] = lambda _: None
        """Tells the coordinator."""

    def lineage(self, deployment: Startable) -> Lineage:
        """What there is: look only after the claim."""
        name = deployment.name
        schema = self._checkpoint.add_schema(name, schema_of(deployment))
        history = self._checkpoint.load_history(name)
        self._watchers[name].attached(self.generation, self._storage.list(paths.deltas(name)))
        return Lineage(self.generation, history, {schema.number: schema})

    # --- instructions ---

    def write_turn(self, step: WriteTurn) -> None:
        """Put a turn on record."""
        location = location_of(step.record.query)
        record = msgspec.structs.replace(step.record, location=location)

        def do() -> Event:
            self._checkpoint.write_turn(step.operator, record)
            return lambda c: c.turn_written(step.operator, record.turn, location)

        self._later(do, lambda error: lambda c: c.turn_unwritten(step.operator, record.turn, error))

    def check_turn(self, step: CheckTurn, workers: tuple[WorkerId, ...]) -> None:
        """Leave the mark; some time later look for the segments."""

        def look() -> Event:
            there = set(self._storage.list(paths.deltas(step.operator)))
            missing = [w for w in workers if paths.delta(step.operator, step.turn, w).rpartition("/")[2] not in there]
            self._network.note(f"of turn {step.turn} the segments of {missing or 'no worker'} are missing")
            if missing:
                self._watchers[step.operator].given_up(step.turn, missing)
            return lambda c: c.turn_checked(step.operator, step.turn, not missing)

        def mark() -> Event:
            self._storage.write(paths.abandoned(step.operator, step.turn), b"")
            self._later(look, over)
            return lambda _: []

        def over(error: BedloadError) -> Event:
            return lambda c: c.failed(error)

        self._later(mark, over)

    def write_manifest(self, step: WriteManifest) -> None:
        """Make a snapshot count."""
        turn = step.manifest.turn

        def do() -> Event:
            self._checkpoint.check_fence()
            self._checkpoint.write_manifest(step.operator, step.manifest)
            return lambda c: c.snapshot_written(step.operator, turn, None)

        self._later(do, lambda error: lambda c: c.snapshot_written(step.operator, turn, error))

    def collect(self, step: CollectGarbage) -> None:
        """Delete what no retained epoch needs."""

        def do() -> Event:
            self._checkpoint.delete_garbage(step.operator, step.garbage)
            return lambda c: c.garbage_collected(step.operator)

        self._later(do, lambda _: lambda c: c.garbage_collected(step.operator))

    def _later(self, do: Callable[[], Event], failed: Callable[[BedloadError], Event]) -> None:
        """Do something with the files some time later; the coordinator hears of it later still."""

        def act() -> None:
            try:
                event = do()
            except BedloadError as error:
                self._network.note(f"generation {self.generation}: {error}"[:300])
                event = failed(error)
            self._network.after(self._network.delay(), lambda: self.report(event))

        self._network.after(self._network.chance.delay(2), act)


def schema_of(deployment: Startable) -> OperatorSchema:
    """The shape of an operator's state."""
    return OperatorSchema(
        number=1,
        layout=deployment.layout,
        key_names=("key",),
        key_types=pack_schema(pa.schema([("key", pa.string())])),
        key_groups=KEY_GROUPS,
        variables=tuple(
            Variable(name=v.name, type=v.type, arrow=pack_schema(pa.schema([v.field])), kind=v.kind)
            for v in deployment.variables
        ),
    )


def location_of(query: str) -> str:
    """Where a simulated query has its Spark checkpoint."""
    return f"/checkpoints/{query}"
