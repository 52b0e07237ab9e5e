"""The workers of a cluster: every way through a worker's life."""

from __future__ import annotations

import pytest

from bedload.control.members import Life, Members, Worker, workers_at
from bedload.core.errors import BedloadError
from bedload.core.ids import LOCAL, DeploymentId, Site, WorkerId

W0, W1, W2 = WorkerId(0), WorkerId(1), WorkerId(2)
WHY = BedloadError("it was lost")


def members() -> Members:
    return Members(workers_at({W0: "w0", W1: "w1"}))


def life(it: Members, worker: WorkerId) -> Life | None:
    it.check()
    known = it.get(worker)
    return None if known is None else known.life


def test_those_from_the_beginning_are_here_at_the_one_site_and_own_key_groups() -> None:
    it = members()
    assert it.addresses == {W0: "w0", W1: "w1"}
    assert it.owning == (W0, W1)
    assert {worker.site for worker in (it.get(W0), it.get(W1)) if worker is not None} == {"local"}


def test_one_that_was_asked_for_loads_code_before_it_takes_part() -> None:
    it = members()
    it.ask([W2])
    assert (life(it, W2), it.asked) == (Life.ASKED, {W2})
    worker = it.came(W2, "w2", 4711)
    worker.code = {DeploymentId(0)}
    assert life(it, W2) is Life.LOADING
    assert W2 not in it.addresses
    it.ready(worker)
    assert life(it, W2) is Life.HERE
    assert (it.addresses[W2], worker.pid, worker.code, it.asked) == ("w2", 4711, set(), set())
    assert it.not_owning == (W2,)


def test_one_that_is_not_wanted_any_more_is_forgotten_unless_it_is_there() -> None:
    it = members()
    it.ask([W2])
    it.call_off([W2])
    assert life(it, W2) is None
    it.ask([W2])
    it.came(W2, "w2", 1)
    it.call_off([W2])
    assert life(it, W2) is Life.LOADING, "it is there, and has to be told"
    it.left(W2)
    assert life(it, W2) is None


def test_one_that_went_before_it_was_ready_is_asked_for_still() -> None:
    it = members()
    it.ask([W2])
    it.came(W2, "w2", 1)
    it.not_started(W2)
    assert life(it, W2) is Life.ASKED


def test_one_in_place_of_a_lost_one_counts_as_missing_until_it_has_all_code() -> None:
    it = members()
    it.gone(W0)
    assert it.missed(W0, WHY).in_vain == 0
    assert (life(it, W0), it.missing) == (Life.MISSING, {W0: WHY})
    worker = it.came(W0, "again", 1)
    assert life(it, W0) is Life.RETURNED
    assert it.is_missing(W0)
    assert list(it.addresses) == [W1, W0], "it comes last"
    it.ready(worker)
    assert (life(it, W0), it.missing) == (Life.HERE, {})


def test_losses_in_vain_are_counted_until_one_is_ready() -> None:
    it = members()
    for count in range(3):
        it.gone(W0)
        assert it.missed(W0, WHY).in_vain == count
        it.came(W0, "again", 1)
    worker = it.get(W0)
    assert worker is not None
    it.ready(worker)
    it.gone(W0)
    assert it.missed(W0, WHY).in_vain == 0


def test_one_that_is_missing_may_be_asked_for_as_well() -> None:
    it = members()
    it.gone(W0)
    it.missed(W0, WHY)
    it.own([W1])
    it.ask([W0])
    assert life(it, W0) is Life.MISSING
    it.came(W0, "w0", 1)
    assert life(it, W0) is Life.LOADING
    it.not_missed(W0)
    assert (life(it, W0), it.missing) == (Life.LOADING, {})


def test_one_that_nobody_waits_for_is_forgotten_when_it_owns_nothing() -> None:
    it = members()
    it.gone(W0)
    it.missed(W0, WHY)
    it.not_missed(W0)
    assert life(it, W0) is Life.GONE
    it.disown(W0)
    assert life(it, W0) is None
    assert it.owning == (W1,)


def test_when_the_last_owner_is_gone_those_that_are_here_own_all() -> None:
    it = members()
    it.own([W0])
    it.gone(W0)
    it.disown(W0)
    assert it.owning == (W1,)


def test_when_all_start_anew_nobody_is_here_or_missing_and_those_wanted_are_asked_for() -> None:
    it = members()
    it.gone(W0)
    it.missed(W0, WHY)
    it.ask([W2])
    it.came(W2, "w2", 1)
    it.start_anew([W0, W2])
    assert (life(it, W0), life(it, W1), life(it, W2)) == (Life.ASKED, None, Life.LOADING)
    assert (it.addresses, it.missing, it.asked, it.owning) == ({}, {}, {W0, W2}, (W0, W2))


def test_a_worker_whose_record_contradicts_itself_is_told() -> None:
    it = Members([Worker(W0, "w0", life=Life.MISSING)])
    with pytest.raises(AssertionError, match="worker 0 is MISSING"):
        it.check()


def test_a_worker_is_at_the_site_that_it_said_when_it_came() -> None:
    it = Members([Worker(W0, "w0", 1, Site("here")), Worker(W1, "w1", 2)])
    assert [it.get(W0).site, it.get(W1).site] == ["here", LOCAL]  # type: ignore[union-attr]
    it.gone(W0)
    it.missed(W0, WHY)
    assert it.came(W0, "again", 3, Site("there")).site == "there"


def test_addresses_and_processes_are_those_of_who_is_here() -> None:
    it = Members([Worker(W0, "w0", 1), Worker(W1, "w1", 2)])
    it.ask([W2])
    it.came(W2, "w2", 3)
    assert it.addresses_of({W1, W2}) == {W1: "w1"}
    assert it.pids == {W0: 1, W1: 2}
