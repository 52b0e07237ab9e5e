"""What a TTL may be: on variables and on whole keys, and what the errors say."""

from __future__ import annotations

import datetime as dt
from collections import Counter, deque
from typing import Any

import pytest

import bedload as bl
from bedload.core.errors import DefinitionError
from bedload.state.timers import TimerClock
from bedload.state.ttl import Ttl
from bedload.testing import OperatorHarness


def test_each_declaration_takes_a_ttl() -> None:
    class Each(bl.Operator):
        a: int = bl.value(0, ttl="1 hour")
        b: list[int] = bl.list(ttl="1 hour", clock="event")
        c: dict[str, int] = bl.map(ttl=dt.timedelta(seconds=1), refresh="read")
        d: set[str] = bl.set(ttl="2 seconds")
        e: Counter[str] = bl.counter(ttl="2 seconds", clock="processing", refresh="write")
        f: deque[int] = bl.deque(ttl="2 seconds")
        g: bl.Heap[int] = bl.heap(ttl="2 seconds")
        h = bl.array(3, ttl="2 seconds")
        plain: int = bl.value(0)

    found = {spec.name: spec.ttl for spec in Each.__bedload_specs__ if not spec.name.startswith("bedload_")}
    assert found == {
        "a": Ttl(3_600_000),
        "b": Ttl(3_600_000, TimerClock.EVENT),
        "c": Ttl(1000, TimerClock.PROCESSING, "read"),
        **dict.fromkeys("defgh", Ttl(2000)),
        "plain": None,
    }


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ttl": "soon"}, "Trip.n: ttl='soon' is no duration"),
        ({"ttl": 5}, "Trip.n: ttl=5 is a int"),
        ({"ttl": "0 seconds"}, "Trip.n: ttl='0 seconds' is too short"),
        ({"ttl": "1 month"}, "Trip.n: ttl='1 month': a month has no fixed length"),
        ({"clock": "event"}, "Trip.n: clock without a ttl"),
        ({"refresh": "read"}, "Trip.n: refresh without a ttl"),
        ({"ttl": "1 hour", "clock": "wall"}, "Trip.n: clock='wall'"),
        ({"ttl": "1 hour", "refresh": "never"}, "Trip.n: refresh='never'"),
    ],
)
def test_what_is_no_ttl_is_refused_with_class_and_variable(given: dict[str, Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=f"^{says}"):

        class Trip(bl.Operator):
            n: int = bl.value(0, **given)


def test_the_ttl_of_whole_keys_is_checked_where_it_is_given() -> None:
    class Count(bl.Operator):
        def process(self, key: Any, rows: Any, ctx: Any) -> Any: ...

    with pytest.raises(DefinitionError, match="clock without a ttl"):
        OperatorHarness(Count, schema="n long", key="n", clock="event")
    with pytest.raises(DefinitionError, match="ttl='soon' is no duration"):
        OperatorHarness(Count, schema="n long", key="n", ttl="soon")
