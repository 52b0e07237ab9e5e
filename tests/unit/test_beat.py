"""When a beat is given: what the source is told, whatever the clock does."""

from __future__ import annotations

from typing import Any

from bedload.control.lull import Lull
from bedload.core.epoch import Due, EpochTime
from bedload.core.ids import OperatorName
from bedload.spark.beat import _Asked

HOUR = 3_600_000


class Watermarks:
    """A query whose next batch has this watermark."""

    def __init__(self) -> None:
        self.next = 0

    def watermark(self, query: str) -> int:
        return self.next


class Asked(_Asked):
    """What is asked of an operator that stands where the test says."""

    def __init__(self, lull: Lull) -> None:
        self.watermarks = Watermarks()
        nobody: Any = None
        plans: Any = self.watermarks
        super().__init__(nobody, plans, OperatorName("op"), 1000, lambda: None)
        self.lull = lull

    def _lull(self) -> Lull:
        return self.lull


def test_what_is_due_waits_until_some_time_after_the_last_epoch() -> None:
    asked = Asked(Lull(False, EpochTime(5, HOUR), Due(processing=HOUR)))
    assert not asked.call("query", HOUR + 999, False)
    assert asked.call("query", HOUR + 1000, False)
    assert not asked.call("query", HOUR + 1500, False), "it was given one"
    assert asked.call("query", HOUR + 2000, False)


def test_what_the_watermark_has_made_due_does_not_wait_for_a_clock_that_was_set_back() -> None:
    asked = Asked(Lull(False, EpochTime(5, HOUR), Due(watermark=7)))
    asked.watermarks.next = 7
    assert asked.call("query", HOUR - 60_000, False)
    assert not asked.call("query", HOUR - 60_000 + 2000, False), "one for a watermark"


def test_a_query_that_ends_has_no_epoch_for_what_is_due_later_than_it_began() -> None:
    asked = Asked(Lull(False, EpochTime(5, HOUR), Due(processing=HOUR)))
    assert not asked.call("query", HOUR - 1, True), "the last epoch was after that"
    assert asked.call("query", HOUR + 1, True)
    assert not asked.call("query", HOUR + 1, True)
