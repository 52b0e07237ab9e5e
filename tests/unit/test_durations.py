"""Durations as users give them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedload.core.durations import milliseconds
from bedload.core.errors import DefinitionError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("1 hour", 3_600_000),
        ("30 seconds", 30_000),
        ("500 milliseconds", 500),
        ("1 millisecond", 1),
        ("1 day", 86_400_000),
        ("2 weeks", 1_209_600_000),
        ("1 hour 30 minutes", 5_400_000),
        ("1.5 seconds", 1_500),
        ("2000 microseconds", 2),
        (" Interval 10 MINUTES ", 600_000),
        ("10minutes 5seconds", 605_000),
        (dt.timedelta(hours=1, milliseconds=1), 3_600_001),
        (dt.timedelta(milliseconds=1), 1),
    ],
)
def test_a_duration_is_read(given: Any, expected: int) -> None:
    assert milliseconds(given, "ttl") == expected


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("", "no duration"),
        ("minutes", "no duration"),
        ("10", "no duration"),
        ("10 parsecs", "no duration"),
        ("1 hour and 2 minutes", "no duration"),
        ("1 hour 2 hours", "no duration"),
        ("-1 hour", "no duration"),
        ("1e3 seconds", "no duration"),
        ("\u0661 hour", "no duration"),
        ("1 month", "no fixed length"),
        ("2 years", "no fixed length"),
        ("0 seconds", "too short"),
        ("1 microsecond", "too short"),
        (dt.timedelta(0), "too short"),
        (dt.timedelta(seconds=-1), "too short"),
        ("1500 microseconds", "part of a millisecond"),
        (dt.timedelta(milliseconds=1, microseconds=1), "part of a millisecond"),
        ("10000000000 days", "too long"),
        (10, "is a int"),
        (1.5, "is a float"),
        (True, "is a bool"),
        (None, "is a NoneType"),
    ],
)
def test_what_is_no_duration_is_told(given: Any, says: str) -> None:
    with pytest.raises(DefinitionError, match=says) as found:
        milliseconds(given, "ttl")
    assert str(found.value).startswith("ttl="), "it says which argument"


@given(st.integers(1, 10**15))
def test_text_and_timedelta_say_the_same(number: int) -> None:
    # In floats a timedelta of many milliseconds would lose some.
    days, rest = divmod(number, 86_400_000)
    text = f"{number} milliseconds"
    assert milliseconds(text, "ttl") == milliseconds(dt.timedelta(days=days, milliseconds=rest), "ttl") == number
