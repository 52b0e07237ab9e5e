"""The workers' connections: one of each number, and copies that wait."""

from __future__ import annotations

from typing import Any

import pytest

from bedload.control.liveness import Patience
from bedload.core.ids import LOCAL, Site, WorkerId
from bedload.protocol import messages as m
from bedload.spark.contacts import Contact, Contacts

W0, W1 = WorkerId(0), WorkerId(1)


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def processor(self) -> float:
        return self.monotonic()


class FakePeer:
    def __init__(self) -> None:
        self.data: Any = None
        self.sent: list[m.Message] = []
        self.aborted = False

    def send(self, header: bytes) -> None:
        self.sent.append(m.decode(header))

    def abort(self) -> None:
        self.aborted = True


def contact(worker: WorkerId, pid: int = 1, site: Site = LOCAL) -> Contact:
    return Contact(FakePeer(), m.Register(worker, f"at {pid}", pid, site=site))  # type: ignore[arg-type]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def contacts(clock: Clock) -> Contacts:
    return Contacts(Patience(silent=10.0, stuck=100.0), clock)


def peer(it: Contact) -> Any:
    return it.peer


def test_a_worker_that_came_is_told_to_beat_and_is_known_by_its_connection(contacts: Contacts) -> None:
    one = contact(W0)
    contacts.came(one)
    assert peer(one).sent == [m.Watch(1.0)]
    assert contacts.get(W0) is one
    assert contacts.closed(one.peer) is one
    assert contacts.get(W0) is None


def test_what_a_worker_says_of_itself_is_what_the_coordinator_hears(contacts: Contacts) -> None:
    worker = contact(W1, 4711, Site("edge")).worker
    assert (worker.id, worker.address, worker.pid, worker.site) == (W1, "at 4711", 4711, "edge")


def test_the_end_of_a_feeders_connection_is_no_loss(contacts: Contacts) -> None:
    contacts.came(contact(W0))
    assert contacts.closed(FakePeer()) is None  # type: ignore[arg-type]
    assert len(contacts) == 1


def test_the_end_of_a_connection_that_was_given_up_is_no_loss_of_the_next_one(contacts: Contacts) -> None:
    old, new = contact(W0, 1), contact(W0, 2)
    contacts.came(old)
    contacts.forget(W0)
    contacts.came(new)
    assert contacts.closed(old.peer) is None
    assert contacts.get(W0) is new


def test_a_copy_waits_until_it_is_taken_or_goes(contacts: Contacts) -> None:
    one, first, second = contact(W0, 1), contact(W0, 2), contact(W0, 3)
    contacts.came(one)
    contacts.waits(first)
    contacts.waits(second)
    assert contacts.closed(first.peer) is None
    assert contacts.take_spare(W1) is None
    assert contacts.take_spare(W0) is second
    assert contacts.take_spare(W0) is None


def test_a_beat_counts_for_the_process_that_it_is_of(contacts: Contacts, clock: Clock) -> None:
    one, two = contact(W0, 1), contact(W1, 2)
    contacts.came(one)
    contacts.came(two)
    for _ in range(12):
        clock.now += 1.0
        contacts.beat(m.Beat(W0, "at 1", 0.0, ""))
        contacts.beat(m.Beat(W1, "at 99", 0.0, ""))  # a copy of it
        given_up = list(contacts.hung())
        if given_up:
            break
    assert [hung for hung, _ in given_up] == [two]
    assert peer(two).aborted
    assert contacts.get(W1) is None
    assert contacts.get(W0) is one


def test_one_that_left_by_the_loss_of_another_does_not_hang(contacts: Contacts, clock: Clock) -> None:
    one, two = contact(W0, 1), contact(W1, 2)
    contacts.came(one)
    contacts.came(two)
    given_up = []
    for _ in range(12):
        clock.now += 1.0
        for hung, _why in contacts.hung():
            given_up.append(hung)
            contacts.forget(W1)
    assert given_up == [one]
