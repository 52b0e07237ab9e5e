"""The workers' connections to the driver: one record for each that is connected, and copies that wait.

What a worker is to the cluster, the coordinator's :class:`~bedload.control.members.Members` know. Here is what only the
driver's edge has: the connection, what the worker said of itself when it came, and when it was heard last.

Invariants: of each number at most one worker is connected; the end of a connection that was given up before says
nothing. Only the endpoint's thread may use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bedload.control.liveness import Liveness, Patience
from bedload.control.members import Worker
from bedload.core.clock import Clock
from bedload.core.ids import WorkerId
from bedload.protocol import messages as m
from bedload.transport import Peer


@dataclass(frozen=True)
class Contact:
    """A worker that is connected."""

    peer: Peer
    said: m.Register
    """What it said of itself when it came."""

    @property
    def worker(self) -> Worker:
        """For the coordinator."""
        said = self.said
        return Worker(said.worker, said.address, said.pid, said.site)


class Contacts:
    """Everybody who is connected."""

    def __init__(self, patience: Patience, clock: Clock) -> None:
        self.patience = patience
        self._clock = clock
        self._liveness = Liveness(patience, clock.monotonic())
        self._by_worker: dict[WorkerId, Contact] = {}
        self._spares: list[Contact] = []
        """Copies of workers that are there: one takes over when the worker is lost."""

    def __len__(self) -> int:
        return len(self._by_worker)

    def __iter__(self) -> Iterator[Contact]:
        return iter(self._by_worker.values())

    def get(self, worker: WorkerId) -> Contact | None:
        """The one of that number that is connected."""
        return self._by_worker.get(worker)

    def came(self, contact: Contact) -> None:
        """A worker takes its place; it has to beat from now on."""
        worker = contact.said.worker
        self._by_worker[worker] = contact.peer.data = contact
        self._liveness.came(worker, self._clock.monotonic())
        contact.peer.send(m.encode(m.Watch(self.patience.every)))

    def waits(self, contact: Contact) -> None:
        """A copy of a worker that is there waits for that to be lost."""
        self._spares.append(contact)

    def take_spare(self, worker: WorkerId) -> Contact | None:
        """A copy that can take the worker's place, if there is one: it waits no longer."""
        spare = next((it for it in self._spares if it.said.worker == worker), None)
        if spare is not None:
            self._spares.remove(spare)
        return spare

    def closed(self, peer: Peer) -> Contact | None:
        """A connection has ended; whose it was, if that is a loss."""
        self._spares = [spare for spare in self._spares if spare.peer is not peer]
        contact = peer.data
        if not isinstance(contact, Contact) or self.get(contact.said.worker) is not contact:
            return None  # a feeder's, or one that was given up
        return self.forget(contact.said.worker)

    def forget(self, worker: WorkerId) -> Contact | None:
        """A worker is not expected to say anything any more, and the end of its connection says nothing."""
        self._liveness.gone(worker)
        return self._by_worker.pop(worker, None)

    def beat(self, message: m.Beat) -> None:
        """A worker's process lives."""
        contact = self.get(message.worker)
        if contact is not None and contact.said.address == message.address:
            self._liveness.beat(message.worker, message.busy, message.where, self._clock.monotonic())

    def hung(self) -> Iterator[tuple[Contact, str]]:
        """Those that hang, and why each is given up: it is connected no longer.

        One after the other: by what the loss of one means, others may have left.
        """
        for worker, why in self._liveness.look(self._clock.monotonic()).items():
            contact = self.forget(worker)
            if contact is not None:
                contact.peer.abort()
                yield contact, why
