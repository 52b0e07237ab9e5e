"""A simulated worker: the machine of a real one on the virtual network, with the files of a real one in memory.

It does what :mod:`bedload.worker.server` does: hands messages to the machine and carries out what the machine says.
Writing at the seal is a call that takes time, in which others go on and this worker takes nothing; reading state
back and compaction are events. State that moves goes over connections between workers, which it makes when it has
something to send; they break without either end dying.

Invariant: a worker that is killed does nothing any more, wherever it was; one that is cut off from its driver
finishes what it is doing before it notices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from bedload.checkpoint.compaction import Step, compact
from bedload.checkpoint.snapshots import TARGET_BYTES
from bedload.checkpoint.storage import Storage, failed
from bedload.core.errors import BedloadError, LocalDiskError, OperatorFailed, RemoteStoreError, WorkerStartFailed
from bedload.core.ids import DeploymentId, Generation, KeyGroup, OperatorName, Ticket, Turn, WorkerId
from bedload.core.limits import Limits
from bedload.migration.lane import Parcel
from bedload.migration.parking import Freed
from bedload.migration.receiver import Receiver
from bedload.migration.sender import Sender
from bedload.protocol import messages as m
from bedload.worker.durability import Hurry, Load, Loaded, LoadFailed, Seal
from bedload.worker.durable import CheckpointDurability, load
from bedload.worker.hosted import Hosted
from bedload.worker.machine import COORDINATOR, LOADER, Out, Phase, WorkerMachine
from bedload.worker.moving import Moving
from bedload.worker.peers import Neighbour
from bedload.worker.runtime import Runtime, Startable
from tests.simulator.chance import Chance
from tests.simulator.faults import Faults
from tests.simulator.holdings import Holdings
from tests.simulator.inline import READ_AHEAD, Inline
from tests.simulator.network import Body, Connection, End, Network, VirtualTime
from tests.simulator.scratch import SimulatedScratch
from tests.simulator.storage import SlowStorage
from tests.simulator.stores import SimulatedRedis, SimulatedStores
from tests.simulator.watcher import Watcher

_MOMENT = 0.01
"""What looking at the clock takes, so that work takes time."""
_LATE = 60.0
"""Until word of a copy comes at the latest."""
_LONGEST_READ = 300.0
"""A part of the state is read in so many seconds: less than a change waits for an epoch to end."""
_LOOK_EVERY = 5
"""After so many messages that change no committed state it is looked at all the same."""
_HARMLESS = (
    m.Join,
    m.Apply,
    m.Done,
    m.AskPart,
    m.Backlog,
    m.Expect,
    m.Probe,
    m.Weigh,
    m.Shipped,
    m.Fetch,
    m.AskDue,
    m.DueKeys,
    m.Deploy,
    m.Copy,
)
"""Messages that change no committed state."""


class ProcessKilled(BaseException):
    """The process is gone: nothing on the way may catch this."""


class _BusyClock:
    """The virtual time as one worker sees it: it goes on while the worker works."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._last = 0.0

    def monotonic(self) -> float:
        """The time, a moment later each time."""
        self._last = max(self._last, self._time.now) + _MOMENT
        return self._last

    def wall(self) -> float:
        """The virtual time."""
        return self._time.now

    def processor(self) -> float:
        """The same: a worker of the simulation has a processor of its own."""
        return self.monotonic()


class _Moving(Moving):
    """Whatever sends and takes in state may raise."""

    faults: Faults

    def _out(self, sender: Sender, parcel: Parcel, deployment: DeploymentId) -> Out:
        self._may_raise()
        return super()._out(sender, parcel, deployment)

    def _ship(self, receiver: Receiver, message: m.Ship, body: Body, runtime: Runtime) -> list[Freed]:
        self._may_raise()
        return super()._ship(receiver, message, body, runtime)

    def _may_raise(self) -> None:
        if self.faults.strikes("failing move", 0.5):
            raise ValueError("the simulation lets no state pass")


class _Machine(WorkerMachine):
    """Some of its code raises: an operator's ``setup``, and whatever moves its state."""

    faults: Faults

    _joins = False

    def handle(self, peer: Any, message: m.Message, body: Body = None) -> list[Out]:
        assert isinstance(self._stores, SimulatedStores)
        with self._stores.working():
            return super().handle(peer, message, body)

    def pump(self) -> tuple[list[Out], float | None]:
        assert isinstance(self._stores, SimulatedStores)
        with self._stores.working():
            return super().pump()

    def _deploy(self, message: m.Deploy, body: Body) -> list[Out]:
        self._joins = message.start
        return super()._deploy(message, body)

    def _activate(self, hosted: Hosted, deployment: DeploymentId) -> Runtime:
        if self._joins and hosted.runtime is None and self.faults.strikes("failed setup", 2):
            raise OperatorFailed("the simulation lets no setup succeed")
        return super()._activate(hosted, deployment)

    def _host(self, operator: OperatorName) -> Hosted:
        hosted = super()._host(operator)
        moving = hosted.moving = _Moving(self.worker, operator, hosted.parking, self._clock, self._limits)
        moving.faults = self.faults
        return hosted


def _idle(name: str, network: Network) -> float:
    """What a worker has to spare: anything, at any time. Nothing else depends on how often it is asked."""
    return Chance(f"{name} {network.time.monotonic()}").number(0, 10) / 10


class SimulatedWorker:
    """One worker process. Without a storage, state is in memory only, and the worker is its own backup."""

    def __init__(
        self,
        network: Network,
        worker: WorkerId,
        name: str,
        code: Mapping[str, Startable],
        watchers: Mapping[OperatorName, Watcher],
        faults: Faults,
        on_copied: Callable[[], None],
        on_unread: Callable[[], None],
        limits: Limits,
        place: tuple[Storage, Generation] | None = None,
        redis: SimulatedRedis | None = None,
    ) -> None:
        self.name = name
        self.worker = worker
        self.alive = True
        self.places: Mapping[str, SimulatedWorker] = {}
        """All processes of the cluster, by address."""
        scratch, clock = SimulatedScratch(faults, network.chance), _BusyClock(network.time)
        idle = partial(_idle, name, network)
        self._stores = SimulatedStores(name, faults, redis or SimulatedRedis(faults), self._pause_at_redis)
        self.machine = _Machine(
            worker, self._load_code, clock, self, limits=limits, idle=idle, scratch=scratch, stores=self._stores
        )
        self.machine.faults = faults
        self.machine._durable = place is not None  # what is persisted in memory only is looked at, and not kept
        self.holdings = {
            operator: Holdings(worker, name, lambda: self.machine, watcher, durable=place is not None)
            for operator, watcher in watchers.items()
        }
        self._network = network.part()
        """What goes on in this process: it can be held up by itself."""
        self._code = code
        self._watchers = watchers
        self._faults = faults
        self._on_copied = on_copied
        self._on_unread = on_unread
        self._place = place
        self._driver: Connection | None = None
        self._connections: dict[Connection, None] = {}
        self._calls: dict[Neighbour, Connection] = {}
        self._called: dict[Connection, Neighbour] = {}
        self._pumping = False
        self._hung = False
        self._unseen = 0
        """Messages since the state was looked at."""
        self._unread: dict[tuple[OperatorName, Ticket], tuple[Load, set[KeyGroup]]] = {}
        """What was ordered to be read, and what of it was not."""
        self._busy = False
        self._waiting: list[Callable[[], list[Out]]] = []
        self._told: tuple[OperatorName, Turn] | None = None
        self._late: m.Copied | None = None
        """Word that all is copied, which is held back until another epoch was sealed and copied, too."""

    # --- the process ---

    def attach(self, driver: Connection) -> None:
        """This is the connection to the coordinator."""
        self._driver = driver
        self._connections[driver] = None

    def _load_code(self, payload: bytes) -> Startable:
        return self._code[payload.decode()]

    def accept(self, caller: End) -> Connection:
        """A feeder or another worker connects."""
        connection = self._network.connect(caller, self)
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

    def vanish(self, silence: float) -> None:
        """The machine that it runs on is gone: nobody is told, and whoever is connected waits for so long."""
        if self.alive:
            self._network.note(f"{self.name} vanishes")
            self.alive = False
            for connection in self._connections:
                connection.vanish(self, silence)

    @property
    def hung(self) -> bool:
        """Whether it does nothing for now."""
        return self._hung and self.alive

    def hang(self, seconds: float) -> None:
        """The process stands still for a while; its connections stay open."""
        if self.alive and not self._hung:
            self._network.note(f"{self.name} hangs for {seconds:.1f}")
            self._hung = True
            self._network.hold()
            self._network.time.after(seconds, self._wake_up)

    def _wake_up(self) -> None:
        self._network.note(f"{self.name} goes on")
        self._hung = False
        self._network.go_on()

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
        peer = COORDINATOR if connection is self._driver else self._called.get(connection, connection)
        self._network.happen(lambda: self._do(lambda: self._handle(peer, message, body)))

    def on_close(self, connection: Connection) -> None:
        """A feeder or another worker is gone; or the coordinator is, and this worker has no purpose left."""
        self._network.happen(lambda: self._closed(connection))

    def _closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._do(self._end if connection is self._driver else lambda: self._hears_of(connection))

    def _hears_of(self, connection: Connection) -> list[Out]:
        """A connection is gone. In one step: no other is made before the machine knows what was lost with this one."""
        neighbour = self._called.pop(connection, None)
        if neighbour is None:
            return self.machine.gone(connection)
        if self._calls.get(neighbour) is connection:
            del self._calls[neighbour]
        return self.machine.gone(neighbour)

    def _end(self) -> list[Out]:
        self.kill()
        return []

    def _do(self, step: Callable[[], list[Out]], *, pumping: bool = True) -> None:
        """One thread does everything, one after the other."""
        self._waiting.append(step)
        while self._waiting and self.alive and not self._busy:
            self._busy = True
            try:
                out = self._waiting.pop(0)()
                if self._stores.lost is not None:
                    raise self._stores.lost
            except ProcessKilled:
                return
            except (WorkerStartFailed, LocalDiskError, RemoteStoreError) as error:
                self._send([self.machine.last_words(error)])
                self.kill()
                return
            except SystemExit:  # operator code ended the process
                self.kill()
                return
            finally:
                self._busy = False
            self.machine.check()
            self._send(out)
        if pumping:
            self._pump_soon()

    def _handle(self, peer: object, message: m.Message, body: Body) -> list[Out]:
        if isinstance(message, m.Compact):
            slow = 60.0 if self._faults.strikes("slow snapshot", 3) else 0.0
            self._network.after(slow + self._network.delay(), lambda: self._compact(message))
            return []
        if isinstance(message, m.Stop):
            return self._end()
        self._unseen += 1 if isinstance(message, _HARMLESS) else _LOOK_EVERY
        if isinstance(message, m.Begin | m.Restore | m.Flip | m.Release | m.Reset):
            self.holdings[message.operator].told(message)
            out = self.machine.handle(peer, message, body)
            self.holdings[message.operator].compare(message)
            return out
        if not isinstance(message, m.Commit):
            return self.machine.handle(peer, message, body)
        hosted = self.machine._hosted.get(message.operator)
        sealed = hosted is not None and hosted.phase is Phase.SEALED
        out = self.machine.handle(peer, message, body)
        if hosted is not None and sealed and hosted.phase is Phase.IDLE:
            self.holdings[message.operator].committed(message.turn)
        return out

    def _send(self, out: list[Out]) -> None:
        if self._told is not None:
            operator, turn = self._told
            self._watchers[operator].acknowledged(self.holdings[operator], turn)
            self._told = None
            if self.machine._hosted[operator].moving.sender is not None:
                self._on_copied()
            if (
                self._place is None
                and self.holdings[operator].handed_something
                and self._faults.strikes("lost newcomer", 2)
            ):
                self._network.after(self._network.delay(), self.kill)  # when only the sink knows that all is sealed
            if self._late is not None:
                self._network.after(3 * self._network.delay(), self._say_late)
        for to, answer, data in out:
            if isinstance(answer, m.Copied) and self._late is None and self._faults.strikes("late copy", 3):
                self._late = answer
                self._network.after(_LATE, self._say_late)
            elif isinstance(answer, Load):
                assert to == LOADER
                self._load(answer)
            elif isinstance(answer, Hurry):
                assert to == LOADER
                self._hurry(answer)
            elif isinstance(to, Neighbour):
                self._call(to, answer, data)
            else:
                target = self._driver if to == COORDINATOR else to
                assert isinstance(target, Connection)
                target.send(self, answer, data)
        if self._unseen >= _LOOK_EVERY:
            self._unseen = 0
            for operator, watcher in self._watchers.items():
                watcher.check_worker(self.holdings[operator])

    def _say_late(self) -> None:
        late, self._late = self._late, None
        if late is not None and self._driver is not None and self.alive:
            self._driver.send(self, late)

    def check_at_rest(self) -> None:
        """Nothing is left of any move."""
        for operator, hosted in self.machine._hosted.items():
            sender, receiver = hosted.moving.sender, hosted.moving.receiver
            assert sender is None, f"{self.name} still sends move {sender.move}"
            assert receiver is None, f"{self.name} still receives move {receiver.move}"
            stale = self.holdings[operator].leftovers()
            assert not stale, f"{self.name} has state of {sorted(stale)}, which it does not own"

    # --- moving state ---

    def _call(self, neighbour: Neighbour, message: m.Message, body: Body) -> None:
        """Send something to another worker, on a connection that is made if need be."""
        network = self._network
        connection = self._calls.get(neighbour)
        if connection is None:
            other = self.places[neighbour.address]
            if not other.alive:
                network.after(network.delay(), lambda: self._do(lambda: self.machine.gone(neighbour)))
                return
            connection = self._calls[neighbour] = other.accept(self)
            self._called[connection] = neighbour
            self._connections[connection] = None
        connection.send(self, message, body)
        if self._faults.strikes("repeated shipment"):
            network.after(network.chance.delay(15), lambda: connection.send(self, message, body))
        if self._faults.strikes("broken neighbour"):
            breaker = network.chance.pick([self, self.places[neighbour.address]])
            network.after(network.delay(), lambda: breaker.hang_up(connection))

    def hang_up(self, connection: Connection) -> None:
        """A connection to another worker breaks; this end notices some time later."""
        if self.alive and connection in self._connections:
            self._network.note(f"{self.name} loses the connection to another worker")
            connection.close(self)
            self._network.after(self._network.delay(), lambda: self.on_close(connection))

    def _pump_soon(self, delay: float = 0.0) -> None:
        if self.alive and self.machine.moving and not self._pumping:
            self._pumping = True
            self._network.after(delay + self._network.delay() / 8, lambda: self._do(self._pump, pumping=False))

    def _pump(self) -> list[Out]:
        self._pumping = False
        out, delay = self.machine.pump()
        if delay is not None and delay > 0:
            self._network.after(delay, self._pump_soon)
        elif delay is not None:
            self._pump_soon()
        return out

    # --- writing ---

    def persist(self, seal: Seal) -> int:
        """The machine seals: write, or back up and look whether the backup is right."""
        with self._stores.watched():
            return self._persist(seal)

    def _persist(self, seal: Seal) -> int:
        holdings, epoch = self.holdings[seal.operator], (seal.query, seal.epoch)
        size, backup = 0, holdings.sealing(epoch)
        if self._place is not None:
            storage, generation = self._place
            files = CheckpointDurability(SlowStorage(storage, self._pause), generation)
            size = files.persist(seal)
        holdings.sealed(seal.turn, epoch, backup)
        self._told = seal.operator, seal.turn
        return size

    def _pause_at_redis(self) -> None:
        """Time goes by at a call of the remote store; the process may end in it."""
        self._network.sleep(self._network.delay() * 3)
        if not self.alive:
            raise ProcessKilled(self.name)

    def _pause(self, where: str, path: str) -> None:
        """Time goes by at a call of the storage; the process may end in it."""
        if "write" in where and self._faults.strikes("killed in the seal"):
            self._network.note(f"{self.name} is killed {where} of {path}")
            self.kill()
        elif "write" in where and self._faults.strikes("cut off in the seal"):
            self.cut_off()
        if self.alive:
            slow = 40.0 if self._faults.strikes("slow store") else 0.0
            self._network.sleep(slow + self._network.delay() / 2)
        if not self.alive:
            raise ProcessKilled(self.name)

    # --- reading and compaction, beside the work ---

    def _load(self, order: Load) -> None:
        """Read in some parts, in any order."""
        chance = self._network.chance
        self._unread[order.operator, order.ticket] = order, set(order.groups)
        groups = chance.shuffled(order.groups)
        size, scale = -(-len(groups) // chance.number(1, 3)), chance.pick([1, 6, 30, 300])
        for start in range(0, len(groups), size):
            part = replace(order, groups=tuple(sorted(groups[start : start + size])))
            delay = min(scale * self._network.delay(), _LONGEST_READ)
            self._network.after(delay, lambda part=part: self._read(part))  # type: ignore[misc]

    def _hurry(self, message: Hurry) -> None:
        """Read what somebody waits for, before the rest."""
        order, _ = self._unread[message.operator, message.ticket]
        self._network.after(self._network.delay(), lambda: self._read(replace(order, groups=message.groups)))

    def _read(self, order: Load) -> None:
        if not self.alive:
            return
        _, unread = self._unread[order.operator, order.ticket]
        order = replace(order, groups=tuple(group for group in order.groups if group in unread))
        unread.difference_update(order.groups)
        if not order.groups:
            return
        if self._faults.strikes("killed in restore"):
            self.kill()
            return
        assert self._place is not None
        try:
            if self._faults.strikes("failed restore", 2):
                self._on_unread()
                raise failed("read", self._place[0].url, f"of {order.groups}", OSError("the simulation gives none"))
            news: list[Loaded | LoadFailed] = list(load(*self._place, order, threads=READ_AHEAD, pools=Inline))
        except BedloadError as error:
            self._network.note(f"{self.name} cannot read {order.groups}: {error}"[:300])
            news = [LoadFailed(order.operator, order.ticket, error)]
        self._network.after(self._network.delay(), lambda: self._loaded(news))

    def _loaded(self, news: list[Loaded | LoadFailed]) -> None:
        self._unseen = _LOOK_EVERY
        for item in news:
            self._do(lambda item=item: self.machine.loaded(item))  # type: ignore[misc]

    def _compact(self, message: m.Compact) -> None:
        if not self.alive:
            return
        assert self._place is not None
        error, parts = None, b""
        who = self.worker, message.operator, message.ticket

        def told(step: Step) -> None:
            far = m.Compacting(*who, step.groups, step.keys, step.bytes)
            self._network.after(0.0, lambda: self._do(lambda: [(COORDINATOR, far, None)]))

        size = TARGET_BYTES if message.ticket % 2 else 1  # two attempts at a snapshot are of other files
        try:
            what = message.operator, message.turn, message.groups
            made = compact(self._place[0], *what, target_bytes=size, pools=Inline, steps=told)
            parts = msgspec.msgpack.encode(made)
        except BedloadError as problem:
            self._network.note(f"{self.name} cannot compact {message}: {problem}"[:300])
            error = m.WireError.of(problem)
        answer = m.Compacted(*who, error)
        self._network.after(self._network.delay(), lambda: self._do(lambda: [(COORDINATOR, answer, parts)]))
