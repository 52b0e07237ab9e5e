"""The coordinator alone, under the load of many workers, partitions and operators: what it says, hears and does.

Invariants:
- No socket, thread or Spark: every message is decoded, handed in, and what comes out is encoded, as the driver does.
- An epoch is whole: every feeder of every operator opens it, every worker seals it, and Spark's word commits it.
- Feeders run in ``processes`` Python processes, one after another, and each process keeps what it was told before.

Why: a cluster of a thousand workers cannot be had on a desk, but what its coordinator would do can be counted.
"""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from bedload.checkpoint.history import History
from bedload.checkpoint.records import OperatorSchema
from bedload.control.attempt import StageFacts
from bedload.control.compaction import Retention
from bedload.control.coordinator import Coordinator
from bedload.control.instructions import CollectGarbage, InspectStage, Instruction, Reply, ToWorker, WriteTurn
from bedload.control.lineage import Lineage
from bedload.control.members import workers_at
from bedload.core.clock import SystemClock
from bedload.core.epoch import EpochStats, EpochTime
from bedload.core.ids import DeploymentId, Epoch, Generation, OperatorName, QueryId, RunId, WorkerId
from bedload.protocol import messages as m
from bedload.protocol.routes import Told
from bedload.state.kinds import Layout

RUN = RunId("6f3c2c1e-3f0e-4d0a-9a0e-1c5b3f2e7d10")
QUERY = QueryId("0a51a7a9-97ad-4a5f-8f2c-6f1f0c7e5b11")


@dataclass
class Cost:
    """What the coordinator had to do."""

    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    cpu_s: float = 0.0

    @property
    def messages(self) -> int:
        """Both ways."""
        return self.messages_in + self.messages_out

    @property
    def bytes(self) -> int:
        """Both ways, without the frames around them."""
        return self.bytes_in + self.bytes_out


class Load:
    """A durable cluster with this many workers, and a query with this many partitions through these operators."""

    def __init__(
        self, workers: int, partitions: int, *, operators: int = 1, key_groups: int = 1024, processes: int = 8
    ) -> None:
        self._workers = [WorkerId(number) for number in range(workers)]
        self._partitions = partitions
        self._processes = [Told() for _ in range(min(processes, partitions))]
        self._coordinator = Coordinator(
            workers_at({worker: f"10.0.{worker // 256}.{worker % 256}:45678" for worker in self._workers}),
            durable=True,
            retention=Retention(),
            clock=SystemClock(),
        )
        self._epoch = Epoch(-1)
        self._attempts = itertools.count()
        self._steps: list[Instruction] = []
        self.cost = Cost()
        self._names: dict[OperatorName, DeploymentId] = {}
        for number in range(operators):
            name = OperatorName(f"operator-{number}")
            lineage = Lineage(Generation(1), History(name), {1: _schema(key_groups)})
            deployment, steps = self._coordinator.deploy(name, name, key_groups, b"code", lineage=lineage)
            self._names[name] = deployment
            self._does(steps)
            for worker in self._workers:
                self._hears(m.Deployed(worker, deployment, None))

    def epoch(self) -> Cost:
        """The next epoch, from the first feeder to Spark's commit."""
        self.cost = Cost()
        self._epoch = Epoch(self._epoch + 1)
        began = time.process_time()
        for partition, name in itertools.product(range(self._partitions), self._names):
            self._opens(partition, name)
        for name in self._names:
            turn = self._coordinator.operator(name).turn
            for worker in self._workers:
                self._hears(m.Sealed(worker, name, turn, EpochStats(rows=1000, keys=1000, busy=0.01, bytes=10_000)))
        self._does(self._coordinator.progress(QUERY, RUN, self._epoch))
        self.cost.cpu_s = time.process_time() - began
        return self.cost

    @property
    def committed(self) -> Sequence[int]:
        """The last epoch that counts, of each operator."""
        return [self._coordinator.operator(name).committed.get(QUERY, -1) for name in self._names]

    def _opens(self, partition: int, name: OperatorName) -> None:
        attempt = next(self._attempts)
        ask = m.Open(
            name, self._names[name], QUERY, RUN, self._epoch, self._epoch + 1, partition, attempt, f"12345-{attempt}"
        )
        process = self._processes[partition % len(self._processes)]
        message = self._arrives(process.asks(ask))
        assert isinstance(message, m.Open)
        steps = self._coordinator.open(attempt, message)
        self._does(steps)
        for step in steps:
            if isinstance(step, Reply) and isinstance(step.message, m.Opened):
                process.answered(name, step.message)

    def _hears(self, message: m.Message) -> None:
        self._does(self._coordinator.from_worker(self._arrives(message)))

    def _arrives(self, message: m.Message) -> m.Message:
        header = m.encode(message)
        self.cost.messages_in += 1
        self.cost.bytes_in += len(header)
        return m.decode(header)

    def _does(self, steps: list[Instruction]) -> None:
        """Carry out what the coordinator says; what it asks for is answered at once."""
        for step in steps:
            match step:
                case ToWorker(message=message) | Reply(message=message):
                    assert not isinstance(message, m.Refused | m.Abort), message
                    self.cost.messages_out += 1
                    self.cost.bytes_out += len(m.encode(message))
                case InspectStage(operator=name, turn=turn, stage=stage):
                    facts = StageFacts(self._partitions, self._partitions, EpochTime(1, 2))
                    self._does(self._coordinator.stage_inspected(name, turn, stage, facts))
                case WriteTurn(operator=name, record=record):
                    self._does(self._coordinator.turn_written(name, record.turn, "file:/checkpoint"))
                case CollectGarbage(operator=name):
                    self._does(self._coordinator.garbage_collected(name))


def _schema(key_groups: int) -> OperatorSchema:
    keys = pa.schema([("key", pa.int64())]).serialize().to_pybytes()
    return OperatorSchema(
        number=1, layout=Layout.COLUMNS, key_names=("key",), key_types=keys, key_groups=key_groups, variables=()
    )
