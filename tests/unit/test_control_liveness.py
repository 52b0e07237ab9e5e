"""Which workers are given up, and why."""

from __future__ import annotations

from bedload.control.liveness import Liveness, Patience
from bedload.core.ids import WorkerId

A, B = WorkerId(0), WorkerId(1)
PATIENCE = Patience(silent=10.0, stuck=100.0)


def watched(*workers: WorkerId) -> Liveness:
    found = Liveness(PATIENCE, 0.0)
    for worker in workers:
        found.came(worker, 0.0)
    return found


def look_until(liveness: Liveness, start: float, end: float) -> dict[WorkerId, str]:
    hung: dict[WorkerId, str] = {}
    for tenth in range(int(start * 10) + 10, int(end * 10) + 1, 10):
        hung |= liveness.look(tenth / 10)
    return hung


def test_a_worker_that_says_nothing_is_given_up_once() -> None:
    liveness = watched(A, B)
    for second in range(1, 30):
        liveness.beat(B, 0.0, "", float(second))
        hung = liveness.look(float(second))
        assert list(hung) == ([A] if second == 11 else [])
        assert all("said nothing for 11 seconds" in why for why in hung.values())


def test_a_worker_whose_loop_does_not_come_back_is_given_up_with_the_place() -> None:
    liveness = watched(A)
    for second in range(1, 101):
        liveness.beat(A, float(second), "in process", float(second))
        assert liveness.look(float(second)) == {}
    liveness.beat(A, 101.0, "in process, line 7", 101.0)
    (why,) = liveness.look(101.0).values()
    assert "in process, line 7" in why


def test_a_loop_that_came_back_is_not_stuck() -> None:
    liveness = watched(A)
    for second in range(1, 300):
        liveness.beat(A, second % 90, "", float(second))
        assert liveness.look(float(second)) == {}


def test_a_driver_that_stood_still_gives_nobody_up_for_that() -> None:
    liveness = watched(A)
    assert look_until(liveness, 0.0, 5.0) == {}
    assert liveness.look(1000.0) == {}  # nobody could be heard meanwhile
    assert look_until(liveness, 1000.0, 1004.0) == {}
    assert list(look_until(liveness, 1004.0, 1010.0)) == [A]


def test_a_pause_of_the_driver_is_no_credit_for_later() -> None:
    liveness = watched(A)
    liveness.beat(A, 0.0, "", 1000.0)  # heard at once when it went on
    assert liveness.look(1000.0) == {}
    assert list(look_until(liveness, 1000.0, 1012.0)) == [A]


def test_who_has_left_or_is_unknown_is_not_looked_for() -> None:
    liveness = watched(A)
    liveness.gone(A)
    liveness.beat(B, 0.0, "", 1.0)
    assert look_until(liveness, 0.0, 30.0) == {}


def test_one_in_its_place_starts_with_a_clean_slate() -> None:
    liveness = watched(A)
    liveness.beat(A, 99.0, "", 1.0)
    liveness.came(A, 2.0)
    assert look_until(liveness, 0.0, 11.0) == {}
