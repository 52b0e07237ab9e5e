"""The worker's edge: a :class:`~bedload.worker.machine.WorkerMachine` behind a socket.

One thread does everything, so the machine needs no locks and an operator's code never runs beside
itself. The loop never waits for a reader: what a slow feeder does not take is queued, so that one
feeder cannot hold up another (two feeders of chained operators in one task would otherwise deadlock).
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import cloudpickle

from bedload.core.clock import SystemClock
from bedload.core.errors import BedloadError, OperatorNotShippable
from bedload.core.ids import WorkerId
from bedload.protocol import messages as m
from bedload.protocol.messages import Body
from bedload.transport import Endpoint, Handler, Peer
from bedload.worker.machine import COORDINATOR, Out, WorkerMachine
from bedload.worker.runtime import Startable


def load_deployment(payload: bytes) -> Startable:
    """Unpickle a deployment that the driver shipped."""
    try:
        deployment: Startable = cloudpickle.loads(payload)
        deployment.prepare()
    except BedloadError:
        raise
    except Exception as error:
        raise OperatorNotShippable(
            f"{type(error).__name__}: {error}. Is a module that the operator needs missing there? "
            f"Ship it with spark.addArtifact(..., pyfile=True) or sc.addPyFile(...), or install it there"
        ) from error
    return deployment


class WorkerServer(Handler):
    """One worker: listens for feeders and readers, and keeps a connection to the coordinator."""

    def __init__(self, worker: WorkerId, coordinator: str, secret: bytes, host: str) -> None:
        self._machine = WorkerMachine(worker, load_deployment, SystemClock())
        self._endpoint = Endpoint(host, secret=secret, handler=self)
        self._coordinator = self._endpoint.connect(coordinator)
        register = m.Register(worker, self._endpoint.address, os.getpid())
        self._coordinator.send(m.encode(register))

    def run(self) -> None:
        """Serve until the coordinator says stop or is gone."""
        # SUBTLE: state is millions of long-lived objects that reference counting alone handles well, and
        # a full collection would visit them all. Young garbage is still collected.
        before = gc.get_threshold()
        gc.freeze()
        gc.set_threshold(50_000, 20, 1_000_000)
        try:
            self._endpoint.run()
        finally:
            self._machine.close()
            self._endpoint.close()
            gc.set_threshold(*before)  # Spark reuses the process of a task
            gc.unfreeze()

    def on_frame(self, peer: Peer, header: bytes, body: memoryview | None) -> None:
        """Hand a message to the machine, and send what it says."""
        message = m.decode(header)
        if isinstance(message, m.Stop):
            self._endpoint.stop()
            return
        source = COORDINATOR if peer is self._coordinator else peer
        self._send(self._machine.handle(source, message, body))

    def on_close(self, peer: Peer) -> None:
        """A feeder went away; or the coordinator did, and the worker has no purpose left."""
        if peer is self._coordinator:
            self._endpoint.stop()
        else:
            self._send(self._machine.gone(peer))

    def _send(self, out: list[Out]) -> None:
        for to, message, body in out:
            target = self._coordinator if to == COORDINATOR else to
            assert isinstance(target, Peer)
            target.send(m.encode(message), _buffers(body))


def _buffers(body: Body) -> tuple[memoryview, ...]:
    if body is None:
        return ()
    return (memoryview(body),)


def serve(worker: WorkerId, coordinator: str, secret: bytes, host: Callable[[str], str]) -> None:
    """Run a worker in this process until the cluster ends. ``host`` gives the address to listen on."""
    WorkerServer(worker, coordinator, secret, host(coordinator)).run()
