"""A worker inside a Spark task on an executor."""

from __future__ import annotations

import socket

from pyspark import TaskContext

from bedload.core.ids import WorkerId
from bedload.transport import Credentials, parse_address
from bedload.worker.durable import Place
from bedload.worker.local_files import LOCAL, Local
from bedload.worker.server import serve


def serve_in_task(
    worker: WorkerId, coordinator: str, credentials: Credentials, place: Place | None, local: Local = LOCAL
) -> None:
    """Serve until the cluster ends."""
    task = TaskContext.get()
    attempt = -1 if task is None else task.taskAttemptId()
    serve(worker, coordinator, credentials, own_address, place, attempt, local)


def own_address(coordinator: str) -> str:
    """The address by which this machine reaches the driver, so one by which the driver reaches it."""
    family, _, _, _, target = socket.getaddrinfo(*parse_address(coordinator), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # sends nothing: a datagram socket only looks up the route
        return str(probe.getsockname()[0])
