"""A simulated worker: the machine of a real one on the virtual network, with the files of a real one in memory.

It does what :mod:`bedload.worker.server` does: hands messages to the machine and carries out what the machine says.
Writing at the seal is a call that takes time, in which others go on and this worker takes nothing; reading state
back and compaction are events.

Invariant: a worker that is killed does nothing any more, wherever it was; one that is cut off from its driver
finishes what it is doing before it notices.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pyarrow as pa

from bedload.checkpoint.compaction import compact
from bedload.checkpoint.storage import Storage
from bedload.core.errors import BedloadError
from bedload.core.ids import Epoch, Generation, KeyGroup, OperatorName, QueryId, Turn, WorkerId
from bedload.protocol import messages as m
from bedload.state import apply_changes
from bedload.testing.faults import Faults
from bedload.testing.network import Body, Connection, End, Network
from bedload.testing.oracle import History
from bedload.testing.simulated_storage import SlowStorage
from bedload.testing.watcher import Plain, Watcher
from bedload.testing.workload import GROUP_OF, NAME
from bedload.worker.durability import Load, Loaded, LoadFailed
from bedload.worker.durable import CheckpointDurability, load
from bedload.worker.machine import COORDINATOR, LOADER, Out, Phase, WorkerMachine
from bedload.worker.runtime import Startable


class ProcessKilled(BaseException):
    """The process is gone: nothing on the way may catch this."""


class SimulatedWorker:
    """One worker process. Without a storage, state is in memory only, and the worker is its own backup."""

    def __init__(
        self,
        network: Network,
        worker: WorkerId,
        name: str,
        deployment: Startable,
        watcher: Watcher,
        faults: Faults,
        place: tuple[Storage, Generation] | None = None,
    ) -> None:
        self.name = name
        self.worker = worker
        self.history: History = ()
        self.alive = True
        self.backup: Plain = {}
        self.machine = WorkerMachine(worker, lambda _: deployment, network.time, self)
        self._network = network
        self._watcher = watcher
        self._faults = faults
        self._place = place
        self._driver: Connection | None = None
        self._connections: dict[Connection, None] = {}
        self._groups: set[KeyGroup] = set()
        self._busy = False
        self._waiting: list[Callable[[], list[Out]]] = []
        self._sealed: tuple[Turn, tuple[QueryId, Epoch], Plain] | None = None
        self._told: Turn | None = None

    # --- the process ---

    def attach(self, driver: Connection) -> None:
        """This is the connection to the coordinator."""
        self._driver = driver
        self._connections[driver] = None

    def accept(self, feeder: End) -> Connection:
        """A feeder connects."""
        connection = self._network.connect(feeder, self)
        self._connections[connection] = None
        return connection

    def kill(self) -> None:
        """The process ends, whatever it is doing."""
        if not self.alive:
            return
        self._network.note(f"{self.name} dies")
        self.alive = False
        for connection in self._connections:
            connection.close(self)

    def cut_off(self) -> None:
        """The connection to the coordinator breaks; the process notices when it is not busy."""
        if not self.alive or self._driver is None:
            return
        self._network.note(f"{self.name} is cut off")
        driver = self._driver
        driver.close(self)
        self._network.after(self._network.delay(), lambda: self.on_close(driver))

    def on_message(self, connection: Connection, message: m.Message, body: Body) -> None:
        """Hand a message to the machine and send what it says."""
        peer = COORDINATOR if connection is self._driver else connection
        self._do(lambda: self._handle(peer, message, body))

    def on_close(self, connection: Connection) -> None:
        """A feeder is gone; or the coordinator is, and this worker has no purpose left."""
        self._connections.pop(connection, None)
        self._do(self._end if connection is self._driver else lambda: self.machine.gone(connection))

    def _end(self) -> list[Out]:
        self.kill()
        return []

    def _do(self, step: Callable[[], list[Out]]) -> None:
        """One thread does everything, one after the other."""
        self._waiting.append(step)
        while self._waiting and self.alive and not self._busy:
            self._busy = True
            try:
                out = self._waiting.pop(0)()
            except ProcessKilled:
                return
            finally:
                self._busy = False
            self._send(out)

    def _handle(self, peer: object, message: m.Message, body: Body) -> list[Out]:
        if isinstance(message, m.Compact):
            self._network.after(self._network.delay(), lambda: self._compact(message))
            return []
        if isinstance(message, m.Stop):
            return self._end()
        if isinstance(message, m.Restore):
            self._restoring(message)
        elif isinstance(message, m.Begin):
            self._beginning(message)
        sealed = NAME in self.machine._hosted and self.machine.phase(NAME) is Phase.SEALED
        out = self.machine.handle(peer, message, body)
        if isinstance(message, m.Commit) and sealed and self.machine.phase(NAME) is Phase.IDLE:
            self._committed(message.turn)
        return out

    def _send(self, out: list[Out]) -> None:
        if self._told is not None:
            self._watcher.acknowledged(self, self._told)
            self._told = None
        for to, answer, data in out:
            if isinstance(answer, Load):
                assert to == LOADER
                self._load(answer)
                continue
            target = self._driver if to == COORDINATOR else to
            assert isinstance(target, Connection)
            target.send(self, answer, data)
        self._watcher.check_worker(self)

    # --- what its state should be ---

    def _restoring(self, message: m.Restore) -> None:
        there = self._watcher.histories[message.base]
        if self._groups - set(message.groups):
            assert self.history == there, f"{self.name} has {self.history} and is to restore a part of {there}"
        self._groups |= set(message.groups)
        self.history = there

    def _beginning(self, message: m.Begin) -> None:
        base = self._watcher.base[message.turn]
        assert self.history == base, f"{self.name} begins turn {message.turn} on {self.history}, not on {base}"
        self._groups = set(message.groups)

    def _committed(self, turn: Turn) -> None:
        assert self._sealed is not None
        assert self._sealed[0] == turn, f"{self.name} committed turn {turn}, but sealed {self._sealed[0]}"
        _, epoch, self.backup = self._sealed
        self.history = (*self.history, epoch)
        assert self.history == self._watcher.histories[turn]

    def state(self) -> tuple[Plain, set[str]]:
        """The committed state that is here, and the keys that should be."""
        runtime, hosted = self.machine.runtime(NAME), self.machine._hosted.get(NAME)
        if runtime is None or hosted is None or hosted.unrestored is not None:
            return {}, set()
        here = {key for key, group in GROUP_OF.items() if group in self._groups and not hosted.parking.absent(group)}
        actual = {key: state for key, state in runtime.snapshot() if key in here}
        if self._place is None:
            assert self.backup.keys() == actual.keys(), f"{self.name}: the backup has other keys"
        return actual, here

    # --- writing ---

    def persist(
        self,
        worker: WorkerId,
        operator: OperatorName,
        query: QueryId,
        epoch: Epoch,
        turn: Turn,
        delta: Callable[[], pa.RecordBatch | None],
    ) -> int:
        """The machine seals: write, or back up and look whether the backup is right."""
        size, backup = 0, self.backup
        if self._place is None:
            backup = self._back_up((query, epoch))
        else:
            storage, generation = self._place
            files = CheckpointDurability(SlowStorage(storage, self._pause), generation)
            size = files.persist(worker, operator, query, epoch, turn, delta)
        self._sealed, self._told = (turn, (query, epoch), backup), turn
        return size

    def _back_up(self, epoch: tuple[QueryId, Epoch]) -> Plain:
        runtime = self.machine.runtime(NAME)
        assert runtime is not None
        backup = dict(self.backup)
        for change in runtime.changes():
            for key in change.removed:
                del backup[key]
            for key, entries in change.entries.items():
                state = {} if key in change.created else copy.deepcopy(backup[key])
                for name, entry in entries.items():
                    state[name] = apply_changes(state[name], entry) if name in state else entry
                backup[key] = state
        self._watcher.check_seal(self, epoch, backup, {key for key, group in GROUP_OF.items() if group in self._groups})
        return backup

    def _pause(self, where: str, path: str) -> None:
        """Time goes by at a call of the storage; the process may end in it."""
        if "write" in where and self._faults.strikes("killed in the seal"):
            self._network.note(f"{self.name} is killed {where} of {path}")
            self.kill()
        elif "write" in where and self._faults.strikes("cut off in the seal"):
            self.cut_off()
        if self.alive:
            self._network.sleep(self._network.delay() / 2)
        if not self.alive:
            raise ProcessKilled(self.name)

    # --- reading and compaction, beside the work ---

    def _load(self, order: Load) -> None:
        """Read in some parts, in any order."""
        chance = self._network.chance
        groups = chance.shuffled(order.groups)
        size, scale = -(-len(groups) // chance.number(1, 3)), chance.pick([1, 6, 30, 300])
        for start in range(0, len(groups), size):
            part = replace(order, groups=tuple(sorted(groups[start : start + size])))
            self._network.after(scale * self._network.delay(), lambda part=part: self._read(part))  # type: ignore[misc]

    def _read(self, order: Load) -> None:
        if not self.alive:
            return
        if self._faults.strikes("killed in restore"):
            self.kill()
            return
        assert self._place is not None
        try:
            news: list[Loaded | LoadFailed] = list(load(self._place[0], order))
        except BedloadError as error:
            self._network.note(f"{self.name} cannot read {order.groups}: {error}"[:300])
            news = [LoadFailed(order.operator, order.ticket, error)]
        self._network.after(self._network.delay(), lambda: self._loaded(news))

    def _loaded(self, news: list[Loaded | LoadFailed]) -> None:
        for item in news:
            self._do(lambda item=item: self.machine.loaded(item))  # type: ignore[misc]

    def _compact(self, message: m.Compact) -> None:
        if not self.alive:
            return
        assert self._place is not None
        error, parts = None, b""
        try:
            parts = msgspec.msgpack.encode(compact(self._place[0], message.operator, message.turn, message.groups))
        except BedloadError as problem:
            self._network.note(f"{self.name} cannot compact {message}: {problem}"[:300])
            error = m.WireError.of(problem)
        answer = m.Compacted(self.worker, message.operator, message.turn, error)
        self._network.after(self._network.delay(), lambda: self._do(lambda: [(COORDINATOR, answer, parts)]))
