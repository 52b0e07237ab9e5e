"""The driver's part in a simulated checkpoint: what the coordinator decides, carried out on files, with delays.

What is done is what :mod:`bedload.spark.desk` does (:mod:`bedload.control.paperwork` and
:mod:`bedload.checkpoint.filing`); between any two deeds other things happen. Claiming comes before looking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.filing import Filing
from bedload.checkpoint.records import Manifest, OperatorSchema, TurnRecord, Variable, pack_schema
from bedload.checkpoint.storage import Storage
from bedload.control.coordinator import Coordinator
from bedload.control.instructions import Instruction, WriteTurn
from bedload.control.lineage import Lineage
from bedload.control.paperwork import Event, FileStep, Paperwork, paperwork
from bedload.core.errors import BedloadError, CheckpointError
from bedload.core.ids import OperatorName, WorkerId
from bedload.testing.network import Network
from bedload.testing.watcher import Watcher
from bedload.testing.workload import KEY_GROUPS
from bedload.worker.runtime import Startable


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
        self._files = _Watched(self._checkpoint, network, watchers)
        self.report: Callable[[Event], None] = lambda _: None
        """Tells the coordinator."""

    def lineage(self, deployment: Startable) -> Lineage:
        """What there is: look only after the claim."""
        name = deployment.name
        schema = self._checkpoint.add_schema(name, schema_of(deployment))
        history = self._files.history(name)
        self._watchers[name].attached(self.generation, self._storage.list(paths.deltas(name)))
        return Lineage(self.generation, history, {schema.number: schema})

    def do(self, step: FileStep, record: TurnRecord | None) -> None:
        """Carry a step out, deed by deed, some time later each; the coordinator hears of it later still."""
        query = step.record.query if isinstance(step, WriteTurn) else ""
        work = paperwork(self._files, step, record, lambda: location_of(query))
        self._later(work, work.deeds)

    def _later(self, work: Paperwork, deeds: tuple[Callable[[], object], ...]) -> None:
        def act() -> None:
            try:
                deeds[0]()
            except BedloadError as raised:
                error, event = work.failed_by(raised)
                self._network.note(f"generation {self.generation}: {error}"[:300])
            else:
                event = _nothing if deeds[1:] else work.done()
                if deeds[1:]:
                    self._later(work, deeds[1:])
            self._network.after(self._network.delay(), lambda: self.report(event))

        self._network.after(self._network.chance.delay(2), act)


def _nothing(_: Coordinator) -> list[Instruction]:
    """There is nothing to report yet."""
    return []


class _Watched(Filing):
    """The files of an attachment; whoever watches hears of turns that are not whole."""

    def __init__(self, checkpoint: Checkpoint, network: Network, watchers: Mapping[OperatorName, Watcher]) -> None:
        super().__init__(checkpoint)
        self._network = network
        self._watchers = watchers

    def write_manifest(self, operator: OperatorName, manifest: Manifest) -> Manifest:
        """Make a snapshot count: no other attachment makes one of its turns here, as a newer one fences it off."""
        try:
            return super().write_manifest(operator, manifest)
        except CheckpointError as error:
            if "another attachment" in error.message:
                raise AssertionError(f"generation {self.checkpoint.generation} blames another one: {error}") from error
            raise

    def unwritten(self, operator: OperatorName, record: TurnRecord) -> list[WorkerId]:
        """The workers whose part of a turn is not there."""
        missing = super().unwritten(operator, record)
        self._network.note(f"of turn {record.turn} the segments of {missing or 'no worker'} are missing")
        if missing:
            self._watchers[operator].given_up(record.turn, missing)
        return missing


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
