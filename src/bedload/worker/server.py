"""The worker's edge: a :class:`~bedload.worker.machine.WorkerMachine` behind a socket.

One thread does everything, so the machine needs no locks and an operator's code never runs beside
itself. The loop never waits for a reader: what a slow feeder does not take is queued, so that one
feeder cannot hold up another (two feeders of chained operators in one task would otherwise deadlock).

Nothing fails into the log alone. What the machine can blame on a turn, a move or a reader, it says itself. Any other
exception of the worker's own code ends the worker, after it has told the coordinator why: what its memory holds is not
known any more, and the coordinator does what it does after every loss.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial

import cloudpickle

from bedload.core.clock import SystemClock
from bedload.core.errors import BedloadError, OperatorNotShippable, TooLarge
from bedload.core.ids import WorkerId
from bedload.protocol import messages as m
from bedload.protocol.messages import Body
from bedload.state.kinds import Store
from bedload.transport import Channel, Credentials, Endpoint, Handler, Peer, Timer
from bedload.worker.durability import Hurry, Load, Loaded, LoadFailed
from bedload.worker.durable import CheckpointDurability, Compactor, Loader, Place
from bedload.worker.local_files import LOCAL, Local, LocalFiles
from bedload.worker.local_stores import LocalStores
from bedload.worker.machine import COORDINATOR, LOADER, Out, WorkerMachine
from bedload.worker.memory import epoch_share, store_share
from bedload.worker.peers import Neighbour
from bedload.worker.pulse import Pulse
from bedload.worker.runtime import Startable


def load_deployment(payload: bytes) -> Startable:
    """Unpickle a deployment that the driver shipped."""
    try:
        deployment: Startable = cloudpickle.loads(payload)
        deployment.prepare()
    except BedloadError:
        raise
    except BaseException as error:  # a module that calls sys.exit() when it is imported ends no worker
        raise OperatorNotShippable(
            f"{type(error).__name__}: {error}. Is a module that the operator needs missing there? "
            f"Ship it with spark.addArtifact(..., pyfile=True) or sc.addPyFile(...), or install it there"
        ) from error
    return deployment


YOUNG = (10_000, 5, 1_000_000)
"""Garbage is looked for among the last 10,000 objects, and the last 60,000: 5 ms. Among the last million, 50 ms."""


def _preload(place: Place | None) -> threading.Thread | None:
    """Load in the background what reading state back needs, if there was an attachment before that may have left some.

    The driver plans the query meanwhile, so nobody waits for it. Without state to read back, a worker of operators on
    rows never needs the compiled code, and is smaller without it.
    """
    if place is None or place.generation <= 1:
        return None
    thread = threading.Thread(target=_load_compiled, name="bedload-preload", daemon=True)
    thread.start()
    return thread


def _load_compiled() -> None:
    # Whatever is wrong comes again where it is used, and is reported there.
    with contextlib.suppress(Exception):
        import bedload.checkpoint.restore  # noqa: F401
        from bedload.store.columns import warm_up

        warm_up()


class WorkerServer(Handler):
    """One worker: listens for feeders and readers, and keeps a connection to the coordinator."""

    def __init__(
        self,
        worker: WorkerId,
        coordinator: str,
        credentials: Credentials,
        host: str,
        place: Place | None = None,
        task: int = -1,
        local: Local = LOCAL,
    ) -> None:
        storage = None if place is None else place.open()
        durability = None if storage is None or place is None else CheckpointDurability(storage, place.generation)
        self._loader = None if storage is None or place is None else Loader(storage, place.generation)
        self._compactor = None if place is None else Compactor(worker, place)
        self._clock = SystemClock()
        self._endpoint = Endpoint(host, credentials=credentials, handler=self)
        memory = store_share() if local.memory is None else local.memory
        self._stores = LocalStores(
            worker, credentials.fingerprint, memory, local.folder, "" if place is None else place.url
        )
        self._machine = WorkerMachine(
            worker,
            self._load_deployment,
            self._clock,
            durability,
            epoch_share(),
            idle=lambda: self._endpoint.meter.idle,
            scratch=LocalFiles(local.folder),
            stores=self._stores,
        )
        self._coordinator = self._endpoint.connect(coordinator)
        self._call_driver = partial(Channel.connect, coordinator, credentials)
        self._pulse: Pulse | None = None
        register = m.Register(worker, self._endpoint.address, os.getpid(), task)
        self._coordinator.send(m.encode(register))
        self._preloading = _preload(place)
        self._neighbours: dict[Neighbour, Peer] = {}
        self._called: dict[Peer, Neighbour] = {}
        self._pumping = False
        self._joins = False
        """Whether the code that is being loaded runs already."""
        self._later: Timer | None = None

    def run(self) -> None:
        """Serve until the coordinator says stop or is gone."""
        # SUBTLE: state is millions of long-lived objects that reference counting alone handles well, and
        # a full collection would visit them all. Young garbage is still collected, a little at a time.
        before = gc.get_threshold()
        gc.freeze()
        gc.set_threshold(*YOUNG)
        try:
            self._endpoint.run()
        finally:
            if self._pulse is not None:
                self._pulse.stop()
            if self._compactor is not None:
                self._compactor.close()
            self._machine.close()
            self._stores.close()
            self._endpoint.close()
            gc.set_threshold(*before)  # Spark reuses the process of a task
            gc.unfreeze()

    def on_frame(self, peer: Peer, header: bytes, body: memoryview | None) -> None:
        """Hand a message to the machine, and send what it says."""
        message = m.decode(header)
        if isinstance(message, m.Stop):
            self._endpoint.stop()
            return
        with self._guard():
            if isinstance(message, m.Watch):
                self._pulse = Pulse(self._machine.worker, self._endpoint, self._call_driver, self._clock, message.every)
                return
            if isinstance(message, m.Compact):
                assert self._compactor is not None
                self._compactor.start(message, self._compacted)
                return
            self._joins = isinstance(message, m.Deploy) and message.start
            source = COORDINATOR if peer is self._coordinator else self._called.get(peer, peer)
            out = self._machine.handle(source, message, body)
            if isinstance(message, m.Ship | m.HandOver):
                # What is done for a move counts apart: not the rows that waited for it.
                self._endpoint.meter.apart(sum(said.took for _, said, _ in out if isinstance(said, m.Shipped)))
            self._say(out)
            self._pump_soon()

    def on_close(self, peer: Peer) -> None:
        """A feeder went away; or the coordinator did, and the worker has no purpose left."""
        if peer is self._coordinator:
            self._endpoint.stop()
            return
        neighbour = self._called.pop(peer, None)
        if neighbour is not None:
            self._neighbours.pop(neighbour, None)
        self._gone(peer if neighbour is None else neighbour)

    def on_error(self, peer: Peer | None, error: BaseException) -> None:
        """A caller without the secret, or a connection that broke: what is ours is guarded."""
        print(f"worker {self._machine.worker}: {peer or 'loop'}:", file=sys.stderr)
        traceback.print_exception(error)

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """Around all that runs on the loop: an exception ends the worker, and the coordinator is told why."""
        try:
            yield
        except Exception as error:
            self.on_error(None, error)
            try:
                self._send([self._machine.last_words(error)])
            finally:  # if that cannot be said either, the end says it
                self._endpoint.stop()

    def _soon(self, fn: Callable[[], None]) -> None:
        """Run something on the loop; from any thread."""

        def guarded() -> None:
            with self._guard():
                fn()

        self._endpoint.call_soon(guarded)

    def _gone(self, peer: Peer | Neighbour) -> None:
        with self._guard():
            self._say(self._machine.gone(peer))
            self._pump_soon()

    def _load_deployment(self, payload: bytes) -> Startable:
        if self._preloading is not None:
            # What it imports, the operator may import too: one at a time, so that neither sees modules half made.
            self._preloading.join()
        deployment = load_deployment(payload)
        if deployment.store is Store.DISK:
            self._stores.prepare(deployment.layout)
        elif deployment.store is Store.REDIS and not self._joins:
            # SUBTLE: of one that joins, nobody who applies an operator hears. It says so when it needs the store.
            self._stores.remotes.prepare(deployment.store_url)
        return deployment

    def _say(self, out: list[Out]) -> None:
        """Send what the machine says, unless state was lost meanwhile: then nothing of it may be taken for done."""
        if self._stores.lost is not None:
            raise self._stores.lost
        self._send(out)

    def _send(self, out: list[Out]) -> None:
        for to, message, body in out:
            if isinstance(message, Load):
                assert to == LOADER
                assert self._loader is not None
                self._loader.start(message, self._loaded)
                continue
            if isinstance(message, Hurry):
                assert self._loader is not None
                self._loader.hurry(message)
                continue
            target = self._coordinator if to == COORDINATOR else to
            if isinstance(target, Neighbour):
                target = self._call(target)
                if target is None:
                    continue
            assert isinstance(target, Peer)
            try:
                target.send(m.encode(message), _buffers(body))
            except TooLarge as error:
                if isinstance(to, Neighbour):
                    self._send(self._machine.unsent(message, error))
                    continue
                if to == COORDINATOR:
                    raise
                # An answer to a feeder or a reader: whoever asked has to hear why there is none.
                target.send(m.encode(m.Refused(m.WireError.of(error))))

    # --- moving state ---

    def _call(self, neighbour: Neighbour) -> Peer | None:
        """The connection to another worker, made if need be; what is sent before it stands is held back."""
        peer = self._neighbours.get(neighbour)
        if peer is None:
            try:
                peer = self._endpoint.connect_soon(neighbour.address)
            except (OSError, BedloadError) as error:
                self.on_error(None, error)
                self._soon(lambda: self._gone(neighbour))
                return None
            self._neighbours[neighbour] = peer
            self._called[peer] = neighbour
        return peer

    def _pump_soon(self) -> None:
        if self._machine.moving and not self._pumping:
            self._pumping = True
            self._soon(self._pump)

    def _pump(self) -> None:
        """Send a little of what has to move. Between two times, the loop serves every peer that is ready."""
        self._pumping = False
        started = self._clock.monotonic()
        out, delay = self._machine.pump()
        self._say(out)
        self._endpoint.meter.apart(self._clock.monotonic() - started)
        if delay is None:
            return
        if delay <= 0:
            self._pump_soon()
        else:
            if self._later is not None:
                self._later.cancel()
            self._later = self._endpoint.call_later(delay, self._pump_soon)

    # --- from other threads ---

    def _loaded(self, news: Loaded | LoadFailed) -> None:
        def take() -> None:
            self._say(self._machine.loaded(news))
            self._pump_soon()

        self._soon(take)

    def _compacted(self, message: m.Compacting | m.Compacted, parts: bytes | None) -> None:
        self._soon(lambda: self._send([(COORDINATOR, message, parts)]))


def _buffers(body: Body) -> tuple[memoryview, ...]:
    if body is None:
        return ()
    return (memoryview(body),)


def serve(
    worker: WorkerId,
    coordinator: str,
    credentials: Credentials,
    host: Callable[[str], str],
    place: Place | None = None,
    task: int = -1,
    local: Local = LOCAL,
) -> None:
    """Run a worker in this process until the cluster ends.

    ``host`` gives the address to listen on, ``place`` the checkpoint; without one, state is in memory only. ``task`` is
    the attempt of the Spark task that it runs in, ``local`` what it may have of its machine.
    """
    WorkerServer(worker, coordinator, credentials, host(coordinator), place, task, local).run()
