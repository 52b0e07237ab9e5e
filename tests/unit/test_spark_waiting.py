"""Waiting for an epoch of a query, with a query and a clock of the tests' own."""

from __future__ import annotations

from typing import Any

import pytest

from bedload.core.errors import ClusterStopped, EpochIncomplete
from bedload.spark.waiting import wait_for_epoch


class Query:
    """One of Spark's, and its time: what happens at which second is told."""

    id = "query"

    def __init__(self, commits: dict[int, int], ends: float | None = None, error: Exception | None = None) -> None:
        self._commits = commits
        self._ends = ends
        self._error = error
        self.now = 0.0
        self.batches: dict[int, tuple[int, bool]] = {}
        """What Spark has committed, and whether operators had partitions in it."""
        self.seen = -1
        """The last one that an operator has seen."""

    @property
    def isActive(self) -> bool:
        return self._ends is None or self.now < self._ends

    def exception(self) -> Exception | None:
        return None if self.isActive else self._error

    def monotonic(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def committed(self, query: str) -> int:
        assert query == "query"
        return max((epoch for second, epoch in self._commits.items() if second <= self.now), default=-1)

    def reached(self, query: str) -> int:
        return max(self.seen, self.committed(query))

    def last_batch(self, query: Any) -> tuple[int, bool]:
        assert query is self
        return max((batch for second, batch in self.batches.items() if second <= self.now), default=(-1, False))


def wait(query: Any, epoch: int, seconds: float = 600.0) -> None:
    wait_for_epoch(
        query,
        epoch,
        query.committed,
        seconds,
        query,
        query.pause,
        reached=query.reached,
        last_batch=query.last_batch,
    )


def test_it_returns_when_the_epoch_is_committed_and_not_before() -> None:
    query = Query({3: 0, 5: 1, 9: 2})
    wait(query, 1)
    assert 5 <= query.now < 9
    wait(query, 0)
    assert query.now < 9


def test_a_query_that_fails_before_it_raises_what_it_failed_with() -> None:
    query = Query({3: 0}, ends=4, error=ValueError("bad data"))
    with pytest.raises(ValueError, match="bad data"):
        wait(query, 1)
    assert query.now < 5


def test_the_news_of_a_commit_may_come_after_the_query_has_ended() -> None:
    query = Query({30: 0}, ends=2)
    wait(query, 0)
    assert 30 <= query.now < 31


def test_a_query_that_was_stopped_before_it_is_not_waited_for() -> None:
    query = Query({3: 0}, ends=4)
    with pytest.raises(ClusterStopped, match=r"stopped before its epoch 1 was committed; the last one .* is 0"):
        wait(query, 1)
    assert query.now < 100


def test_an_epoch_that_does_not_come_is_given_up() -> None:
    query = Query({})
    with pytest.raises(TimeoutError, match="epoch 4 was not committed within 50 seconds; none is committed yet"):
        wait(query, 4, 50)
    assert 50 <= query.now < 51


# --- a sink that reads nothing ---


def test_batches_that_no_operator_sees_are_noticed_at_the_second_one() -> None:
    query = Query({})
    query.batches = {2: (0, True), 5: (1, True), 9: (2, True)}
    with pytest.raises(EpochIncomplete, match=r"epoch 0 will not .* up to 1, and .* never reached .*use-foreach-batch"):
        wait(query, 0)
    assert 5 <= query.now < 7


def test_one_batch_that_was_skipped_is_no_alarm_and_the_next_epoch_counts() -> None:
    query = Query({20: 5})
    query.batches = {2: (4, True), 20: (5, True)}
    wait(query, 4)
    assert query.now >= 20


@pytest.mark.parametrize("seen", [3, 9])
def test_batches_that_an_operator_has_seen_or_that_had_nothing_for_it_are_no_alarm(seen: int) -> None:
    query = Query({})
    query.seen = seen
    query.batches = {second: (second, seen == 9) for second in range(1, 9)}
    with pytest.raises(TimeoutError, match="epoch 4 was not committed") as found:
        wait(query, 4, 50)
    assert ("up to 8" in str(found.value)) == (seen == 3)


def test_a_query_that_has_ended_and_was_not_read_is_not_waited_for() -> None:
    query = Query({}, ends=2)
    query.batches = {1: (0, True)}
    with pytest.raises(EpochIncomplete, match="up to 0"):
        wait(query, 0)
    assert query.now < 3
