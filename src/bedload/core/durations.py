"""Durations as users give them: a ``timedelta``, or text as Spark has it (``"10 minutes"``, ``"1 hour 30 minutes"``).

A bare number is refused, since nobody sees its unit; so are months and years, since they have no fixed length.
"""

from __future__ import annotations

import datetime as dt
import re
from fractions import Fraction
from typing import TypeAlias

from bedload.core.errors import DefinitionError

Duration: TypeAlias = str | dt.timedelta
"""How long something takes, as users write it."""


def milliseconds(duration: Duration, what: str) -> int:
    """A duration in milliseconds, at least one; ``what`` it is for, as the errors say it (``"ttl"``)."""
    if isinstance(duration, dt.timedelta):
        found = Fraction(duration // _MICROSECOND, 1000)
    elif isinstance(duration, str):
        found = _read(duration, what)
    else:
        raise DefinitionError(
            f"{what}={duration!r:.100} is a {type(duration).__name__}; give a duration: text such as '10 minutes', or "
            f"a datetime.timedelta"
        )
    if found < 1:
        raise DefinitionError(f"{what}={duration!r:.100} is too short: give at least '1 millisecond'")
    if found > _LONGEST:
        raise DefinitionError(f"{what}={duration!r:.100} is too long: give at most a billion days")
    if found.denominator != 1:
        raise DefinitionError(f"{what}={duration!r:.100} has a part of a millisecond: give whole ones")
    return int(found)


_MICROSECOND = dt.timedelta(microseconds=1)
_UNITS = {
    "microsecond": Fraction(1, 1000),
    "millisecond": Fraction(1),
    "second": Fraction(1000),
    "minute": Fraction(60_000),
    "hour": Fraction(3_600_000),
    "day": Fraction(86_400_000),
    "week": Fraction(604_800_000),
}
_LONGEST = 10**9 * _UNITS["day"]
"""A time of today and so much more still fits into 64 bits."""
_PART = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([a-z]+)\s*", re.ASCII)


def _read(text: str, what: str) -> Fraction:
    """The milliseconds of ``<number> <unit>``, once or several times."""
    rest = text.strip().lower().removeprefix("interval ").lstrip()
    total = Fraction(0)
    seen: set[str] = set()
    at = 0
    while part := _PART.match(rest, at):
        number, word = part.groups()
        unit = word.removesuffix("s")
        if unit in ("month", "quarter", "year"):
            raise DefinitionError(f"{what}={text!r:.100}: a {unit} has no fixed length; give it in days")
        if unit not in _UNITS or unit in seen:
            break
        seen.add(unit)
        total += Fraction(number) * _UNITS[unit]
        at = part.end()
    if not seen or at < len(rest):
        raise DefinitionError(
            f"{what}={text!r:.100} is no duration: write a number and a unit, or several such: '500 milliseconds', "
            f"'1 hour 30 minutes'. Units: {', '.join(_UNITS)}"
        )
    return total
