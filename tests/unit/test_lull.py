"""What an operator has to do while its sources are quiet, as the coordinator knows it."""

from __future__ import annotations

import pytest
from tests.unit.test_control_epochs import NAME, TIME, Rig

from bedload.control.lull import Lull, Start
from bedload.core.epoch import Due, EpochStats, EpochTime
from bedload.core.ids import Epoch, QueryId, RunId, WorkerId
from bedload.protocol import messages as m

NOW = TIME.processing


@pytest.fixture
def rig() -> Rig:
    return Rig()


def lull(rig: Rig) -> Lull:
    return Lull.of(rig.epochs)


def seal(rig: Rig, *dues: Due | None) -> None:
    for worker, due in enumerate(dues):
        rig.did(rig.coordinator.from_worker(m.Sealed(WorkerId(worker), NAME, rig.turn, EpochStats(), due)))


def test_before_the_first_epoch_anything_may_be_due(rig: Rig) -> None:
    assert lull(rig) == Lull(False, EpochTime(), None)
    assert lull(rig).due_by_time(1)
    assert lull(rig).due_by_watermark(1)


def test_while_an_epoch_is_under_way_nothing_is_asked_for(rig: Rig) -> None:
    rig.open(0)
    rig.inspected()
    for _ in range(2):
        found = lull(rig)
        assert found.waits
        assert not found.heeds_watermark
        assert not found.due_by_time(NOW + 1_000_000)
        assert not found.due_by_watermark(NOW)
        seal(rig, Due(0, 0))


def test_the_earliest_of_all_workers_counts_from_the_seal_on_and_after_the_commit(rig: Rig) -> None:
    rig.open(0)
    rig.inspected()
    seal(rig, Due(processing=NOW + 9), Due(TIME.watermark + 5, NOW + 7))
    for _ in range(2):
        assert lull(rig) == Lull(False, TIME, Due(TIME.watermark + 5, NOW + 7))
        rig.progress(0)


def test_what_a_worker_does_not_say_may_be_any_moment(rig: Rig) -> None:
    rig.open(0)
    rig.inspected()
    seal(rig, Due(), None)
    assert lull(rig) == Lull(False, TIME, None)


def test_what_was_rolled_back_says_nothing(rig: Rig) -> None:
    rig.open(0)
    rig.inspected()
    rig.fail()
    assert lull(rig) == Lull(False, EpochTime(), None)


def start(after: int, run: str = "r2", query: str = "q") -> Start:
    return Start(QueryId(query), RunId(run), Epoch(after))


def test_what_is_due_after_an_epoch_that_a_query_was_set_back_behind_is_not_known(rig: Rig) -> None:
    for epoch in range(3):
        rig.open(epoch)
        rig.inspected()
        seal(rig, Due(), Due())
        if epoch < 2:
            rig.progress(epoch)
    nothing = Lull(False, TIME, Due())
    assert Lull.of(rig.epochs, start(2)) == nothing
    assert Lull.of(rig.epochs, start(0, "r1")) == nothing, "the run has begun epochs"
    assert Lull.of(rig.epochs, start(-1, query="other")) == nothing
    behind = Lull.of(rig.epochs, start(1))
    assert behind == Lull(False, EpochTime(), None), "it is sealed, and Spark may not have it"
    assert behind.due_by_time(1)
    assert behind.due_by_watermark(1)
    rig.progress(2)
    for after in range(-1, 2):
        assert Lull.of(rig.epochs, start(after)) == Lull(False, EpochTime(), None)
    assert Lull.of(rig.epochs, start(2)) == nothing


def test_a_run_that_has_begun_is_behind_no_longer(rig: Rig) -> None:
    rig.open(0)
    rig.inspected()
    seal(rig, Due(), Due())
    rig.progress(0)
    rig.epochs.past_runs.add(RunId("r2"))
    assert Lull.of(rig.epochs, start(-1)) == Lull(False, TIME, Due())


@pytest.mark.parametrize(
    ("due", "by_time", "by_watermark"),
    [
        (None, [0, 100, 101], [51, 60]),
        (Due(), [], []),
        (Due(processing=100), [100, 101], []),
        (Due(watermark=51), [], [51, 60]),
        (Due(watermark=60, processing=101), [101], [60]),
        (Due(watermark=40), [], [51, 60]),  # at 50 there was an epoch: it does not ask for another one
    ],
)
def test_due_means_that_an_epoch_of_that_time_would_do_something(
    due: Due | None, by_time: list[int], by_watermark: list[int]
) -> None:
    found = Lull(False, EpochTime(50, 0), due)
    assert [at for at in (0, 100, 101) if found.due_by_time(at)] == by_time
    assert [at for at in (0, 49, 50, 51, 60) if found.due_by_watermark(at)] == by_watermark
    assert found.heeds_watermark == bool(by_watermark)


def test_the_first_of_several_is_the_earliest_by_either_clock() -> None:
    assert Due.first([Due(3, None), Due(2, 9), Due(None, 8)]) == Due(2, 8)
    assert Due.first([Due(), Due()]) == Due()
    assert Due.first([Due(1, 1), None]) is None
    assert Due.first([]) is None
