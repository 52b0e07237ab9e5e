"""The workers of a cluster: who was asked for, who is here, who is missing, and who owns key groups. No I/O.

A worker's life::

    ASKED ──came──▶ LOADING ──ready──▶ HERE ──missing──▶ MISSING ──came──▶ RETURNED ──ready──▶ HERE
      ▲                │ not_started     │ left, gone       │ forgotten        │ missing
      └────────────────┘                 ▼                  ▼                  ▼
                                       GONE               GONE              MISSING

Invariants (:meth:`Members.check`): a worker that came has an address until it is lost; only such a worker loads code;
of one that was lost and is awaited, it is known why it was lost. A change may ask for a worker that is MISSING, too, if
it wants one of that number; the first that comes counts. Addresses that messages carry are derived here and nowhere
else. They and who is missing are asked for at every event, so they are kept until a worker's life changes: whoever has
them must not change them, and the same object says the same.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bedload.core.errors import BedloadError
from bedload.core.ids import LOCAL, DeploymentId, Site, WorkerId


class Life(enum.Enum):
    """Where a worker is in its life."""

    ASKED = "a change asked for it, and it has not come"
    LOADING = "it came because it was asked for, and takes part in nothing before it has all code"
    HERE = "it takes part"
    MISSING = "it was lost, and one in its place is awaited"
    RETURNED = "one came in its place, and loads all code"
    GONE = "it was lost or left, and nobody comes in its place"


@dataclass
class Worker:
    """What is known of a worker."""

    id: WorkerId
    address: str = ""
    pid: int = 0
    site: Site = LOCAL
    life: Life = Life.HERE
    owning: bool = False
    """It owns key groups, or will when it is lost and replaced."""
    asked: bool = False
    """A change has asked for it, and waits until it is ready."""
    lost: BedloadError | None = None
    """Why it was lost, until one in its place is ready."""
    in_vain: int = 0
    """How often one in its place was lost before it was ready."""
    last_words: str = ""
    """Why it is about to end."""
    code: set[DeploymentId] = field(default_factory=set)
    """What it has to load before it is ready."""

    def __str__(self) -> str:
        return f"worker {self.id} is {self.life.name}"

    @property
    def here(self) -> bool:
        """Whether it is a part of the cluster, with all code or not."""
        return self.life is Life.HERE or self.life is Life.RETURNED


def workers_at(addresses: Mapping[WorkerId, str]) -> list[Worker]:
    """Workers that are here from the beginning."""
    return [Worker(worker, address) for worker, address in addresses.items()]


class Members:
    """All workers, in the order in which they became a part of the cluster."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        self._workers = {worker.id: worker for worker in workers}
        self._addresses: Mapping[WorkerId, str] | None = None
        self._missing: Mapping[WorkerId, BedloadError] | None = None
        self.own(self._workers)

    # --- seeing them ---

    @property
    def addresses(self) -> Mapping[WorkerId, str]:
        """Where the workers are that are here."""
        if self._addresses is None:
            self._addresses = self._here()
        return self._addresses

    def addresses_of(self, workers: Iterable[WorkerId]) -> dict[WorkerId, str]:
        """Where these are, for a message; those that are not here are left out."""
        here = self.addresses
        return {number: here[number] for number in workers if number in here}

    @property
    def pids(self) -> dict[WorkerId, int]:
        """The processes of the workers that are here."""
        return {worker.id: worker.pid for worker in self._workers.values() if worker.here}

    @property
    def owning(self) -> tuple[WorkerId, ...]:
        """Workers that own key groups, or will when one is lost and replaced, in ascending order."""
        return tuple(sorted(worker.id for worker in self._workers.values() if worker.owning))

    @property
    def not_owning(self) -> tuple[WorkerId, ...]:
        """Workers that are here and own nothing: they may leave."""
        return tuple(worker.id for worker in self._workers.values() if worker.here and not worker.owning)

    @property
    def asked(self) -> set[WorkerId]:
        """Workers that a change has asked for and that are not ready."""
        return {worker.id for worker in self._workers.values() if worker.asked}

    @property
    def missing(self) -> Mapping[WorkerId, BedloadError]:
        """Workers that were lost and whose replacement is not ready, and why."""
        if self._missing is None:
            self._missing = self._lost()
        return self._missing

    @property
    def loading(self) -> dict[WorkerId, Worker]:
        """Workers that came because they were asked for, and do not have all code."""
        return {worker.id: worker for worker in self._workers.values() if worker.life is Life.LOADING}

    def get(self, worker: WorkerId) -> Worker | None:
        """What is known of a worker."""
        return self._workers.get(worker)

    def is_here(self, worker: WorkerId) -> bool:
        """Whether a worker is a part of the cluster, with all code or not."""
        known = self._workers.get(worker)
        return known is not None and known.here

    def is_missing(self, worker: WorkerId) -> bool:
        """Whether a worker was lost and its replacement is not ready."""
        known = self._workers.get(worker)
        return known is not None and known.lost is not None

    def is_asked(self, worker: WorkerId) -> bool:
        """Whether a change waits for a worker."""
        known = self._workers.get(worker)
        return known is not None and known.asked

    # --- events ---

    def own(self, workers: Iterable[WorkerId]) -> None:
        """These own key groups, and no others."""
        wanted = set(workers)
        for number in wanted - self._workers.keys():
            self._workers[number] = Worker(number, life=Life.GONE)
        for worker in list(self._workers.values()):
            worker.owning = worker.id in wanted
            self._drop_if_gone(worker)

    def disown(self, worker: WorkerId) -> None:
        """A worker owns nothing any more; if it was the last one, all that are here do."""
        self.own([it for it in self.owning if it != worker] or self.addresses)

    def ask(self, workers: Iterable[WorkerId]) -> tuple[WorkerId, ...]:
        """A change asks for workers; those that have to be started.

        One that came for a change which was called off, and loads code, is on its way already.
        """
        asked = [self._workers.setdefault(number, Worker(number, life=Life.GONE)) for number in workers]
        for worker in asked:
            worker.asked = True
            if worker.life is Life.GONE:
                self._away(worker)
        return tuple(worker.id for worker in asked if worker.life is not Life.LOADING)

    def call_off(self, workers: Iterable[WorkerId]) -> None:
        """Nobody waits for these workers that were asked for."""
        for worker in [self._workers[number] for number in workers if number in self._workers]:
            worker.asked = False
            if worker.life is Life.ASKED:
                self._away(worker)

    def came(self, number: WorkerId, address: str, pid: int, site: Site = LOCAL) -> Worker:
        """One that was asked for, or one in place of a lost one, is there; it has to load all code."""
        worker = self._workers[number]
        worker.address, worker.pid, worker.site = address, pid, site
        worker.life = Life.LOADING if worker.asked else Life.RETURNED
        self._comes_last(worker)
        self._changed()
        return worker

    def ready(self, worker: Worker) -> None:
        """A worker has all code: it takes part."""
        if worker.life is Life.LOADING:
            worker.asked = False
            self._comes_last(worker)
        worker.life, worker.lost = Life.HERE, None
        worker.code.clear()
        self._changed()

    def not_started(self, number: WorkerId) -> None:
        """One that was asked for went before it was ready, or does not come."""
        worker = self._workers.get(number)
        if worker is not None and worker.life is Life.LOADING:
            self._away(worker)
        elif worker is not None:
            worker.code.clear()

    def gone(self, number: WorkerId) -> None:
        """One that was here is lost."""
        self._away(self._workers[number])

    def missed(self, number: WorkerId, why: BedloadError) -> Worker:
        """One that is lost is awaited: another one comes in its place."""
        worker = self._workers.setdefault(number, Worker(number, life=Life.GONE))
        worker.in_vain = 0 if worker.lost is None else worker.in_vain + 1
        worker.life, worker.lost = Life.MISSING, why
        self._changed()
        return worker

    def not_missed(self, number: WorkerId) -> None:
        """Nobody waits any more for one in place of a lost one."""
        worker = self._workers[number]
        worker.lost = None
        self._changed()
        if not worker.here and worker.life is not Life.LOADING:
            self._away(worker)

    def left(self, number: WorkerId) -> None:
        """One that was here, or loaded code, was told to end."""
        self._away(self._workers[number])

    def start_anew(self, workers: Iterable[WorkerId]) -> tuple[WorkerId, ...]:
        """All end, and these are asked for; those that have to be started. Those that are lost are not missed."""
        for worker in list(self._workers.values()):
            worker.lost, worker.asked = None, False
            if worker.life is not Life.LOADING:
                self._away(worker)
        self._changed()
        workers = tuple(workers)
        absent = self.ask(workers)
        self.own(workers)
        return absent

    def check(self) -> None:
        """The invariants hold."""
        for it in self._workers.values():
            life = it.life
            came = it.here or life is Life.LOADING
            assert came == bool(it.address), f"{it} and its address is {it.address!r}"
            assert came or not it.code, f"{it} and loads code"
            awaited = life is Life.MISSING or life is Life.RETURNED
            assert not awaited or it.lost is not None, f"{it}, and nobody knows why it was lost"
            assert life is not Life.HERE or it.lost is None, f"{it}, and it counts as lost"
            assert life is not Life.ASKED or it.asked, f"{it}, and nobody wants it"
            assert life is not Life.GONE or it.owning, f"{it}, and it is remembered"
        assert list(self.addresses.items()) == list(self._here().items()), f"{self.addresses} are out of date"
        assert self.missing == self._lost(), f"{self.missing} are out of date"

    def _away(self, worker: Worker) -> None:
        """It is not there; whether it is awaited depends on who waits for it."""
        worker.life = Life.MISSING if worker.lost is not None else Life.ASKED if worker.asked else Life.GONE
        worker.address, worker.pid, worker.last_words = "", 0, ""
        worker.code.clear()
        self._changed()
        self._drop_if_gone(worker)

    def _changed(self) -> None:
        self._addresses = self._missing = None

    def _here(self) -> dict[WorkerId, str]:
        return {worker.id: worker.address for worker in self._workers.values() if worker.here}

    def _lost(self) -> dict[WorkerId, BedloadError]:
        return {worker.id: worker.lost for worker in self._workers.values() if worker.lost is not None}

    def _drop_if_gone(self, worker: Worker) -> None:
        if worker.life is Life.GONE and not worker.owning:
            self._workers.pop(worker.id, None)

    def _comes_last(self, worker: Worker) -> None:
        self._workers[worker.id] = self._workers.pop(worker.id)
