"""The driver's part in a simulated checkpoint: what the coordinator decides, carried out on files, with delays.

What is done is what :mod:`bedload.spark.keeper` does (:mod:`bedload.control.paperwork` and
:mod:`bedload.checkpoint.filing`); between any two deeds other things happen. Claiming comes before looking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import pyarrow as pa

from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.claimant import Claimant
from bedload.checkpoint.compaction import restore_at
from bedload.checkpoint.filing import Filing
from bedload.checkpoint.heritage import inherit
from bedload.checkpoint.records import Manifest, OperatorSchema, TurnRecord, pack_schema
from bedload.checkpoint.storage import Storage
from bedload.control.coordinator import Coordinator
from bedload.control.instructions import Instruction, WriteTurn
from bedload.control.lineage import Lineage
from bedload.control.paperwork import Event, FileStep, Paperwork, paperwork
from bedload.core.errors import BedloadError, CheckpointError, SchemaChanged
from bedload.core.ids import KeyGroup, OperatorName, Turn, WorkerId, generation_of
from bedload.worker.operator import state_of
from bedload.worker.row_runtime import Deployment
from bedload.worker.runtime import Startable
from bedload.worker.state_schema import state_schema
from tests.simulator.inline import Inline
from tests.simulator.network import Network
from tests.simulator.storage import MemoryStorage
from tests.simulator.watcher import Plain, Watcher
from tests.simulator.workload import KEY_GROUPS


class Desk:
    """One attachment to the checkpoint, from its claim on."""

    def __init__(
        self,
        network: Network,
        storage: Storage,
        watchers: Mapping[OperatorName, Watcher],
        number: int,
        claiming: Storage | None = None,
    ) -> None:
        """``claiming`` is the storage as it is seen until the claim is made: time may go by at every step."""
        self._network = network
        self._storage = storage
        self._watchers = watchers
        self._claimant = Claimant(
            "simulated", number, network.time, lambda: f"attachment {number} at {network.time.now}"
        )
        self._checkpoint = Checkpoint.open(claiming or storage, self._claimant, pools=Inline)
        self.generation = self._checkpoint.claim()
        self._checkpoint.storage = storage
        self._files = _Watched(self._checkpoint, network, watchers)
        self.report: Callable[[Event], None] = lambda _: None
        """Tells the coordinator."""

    def lineage(self, deployment: Startable, *, fresh: bool = False) -> Lineage:
        """What there is: look only after the claim."""
        name = deployment.name
        found = inherit(self._files, name, schema_of(deployment), fresh=fresh)
        self._watchers[name].attached(self.generation, self._storage.list(paths.deltas(name)))
        return Lineage(self.generation, *found)

    def refuses_another_key(self, deployment: Startable) -> None:
        """The user comes with keys of another type, which state that is there cannot become."""
        wanted = msgspec.structs.replace(schema_of(deployment), key_types=pack_schema(pa.schema([("key", pa.int64())])))
        try:
            found = inherit(self._files, deployment.name, wanted)
        except SchemaChanged:
            return
        assert found.history.head is None, f"state of {deployment.name} was taken over by another key"

    def export(self, slow: Storage, versions: Mapping[OperatorName, Sequence[Startable]]) -> None:
        """Copy all state while others go on; the copy is that of one turn, whole."""
        source = Checkpoint.open(slow, self._claimant, pools=Inline)
        target = MemoryStorage("memory://export")
        copied = source.export(target)
        copy = Checkpoint.open(target, self._claimant, pools=Inline)
        for name, turn in copied.items():
            assert copy.load_history(name).head == turn, f"the copy of {name} is of another turn than {turn}"
            self._watchers[name].check_restored(turn, read_back(copy, versions[name], turn))
        assert not copied or copy.claim() > max(map(generation_of, copied.values()))

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
    specs = state_of(deployment.operator) if isinstance(deployment, Deployment) else getattr(deployment, "specs", ())
    return state_schema(deployment, ["key"], deployment.key_types, KEY_GROUPS, specs)


def read_back(checkpoint: Checkpoint, versions: Sequence[Startable], turn: Turn) -> Plain:
    """The state at a turn, from the storage alone, by the version of the operator that it is of."""
    found, schema = restore_at(checkpoint, versions[0].name, turn, threads=1)
    names = {variable.name for variable in schema.variables}
    (version,) = (it for it in versions if {variable.name for variable in it.variables} == names)
    runtime = version.start(WorkerId(99))
    for groups, state in found.chunks():
        runtime.install([KeyGroup(group) for group in groups], state)
    return dict(runtime.snapshot())


def location_of(query: str) -> str:
    """Where a simulated query has its Spark checkpoint."""
    return f"/checkpoints/{query}"
