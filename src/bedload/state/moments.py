"""Datetimes as Arrow has them: a struct of wall (timestamp[us]), zone (string, null if naive) and fold.

So naive and aware ones stay apart, zones of the same offset too, and a wall time that a clock shows twice is the one
that it was. Aware datetimes need a ``datetime.timezone`` or a ``zoneinfo.ZoneInfo`` of the database: others have no
name to find them by again.

That is how state is moved, backed up and merged. Where all datetimes of a variable have one zone, users see timestamps:
:mod:`bedload.checkpoint.timestamps`.
"""

from __future__ import annotations

import datetime as dt
import zoneinfo
from functools import cache
from typing import Any

import pyarrow as pa

from bedload.core.errors import StateTypeError
from bedload.state.handling import mismatch
from bedload.state.types import ScalarNode

MOMENT = pa.struct([("wall", pa.timestamp("us")), ("zone", pa.string()), ("fold", pa.bool_())])


def encode_moment(value: Any) -> dict[str, Any]:
    """What Arrow takes for a datetime."""
    if not isinstance(value, dt.datetime) or value != value:  # pandas' NaT is one, and none
        raise mismatch(ScalarNode(dt.datetime), value)
    refuse_nanoseconds(value)
    return {"wall": value.replace(tzinfo=None), "zone": zone_name(value.tzinfo), "fold": bool(value.fold)}


def refuse_nanoseconds(value: dt.datetime | dt.timedelta) -> None:
    """Those of pandas have some, and would lose them."""
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        raise StateTypeError(f"{value!r} has nanoseconds, which are not kept: round it, as by .floor('us')")


def zone_name(zone: dt.tzinfo | None) -> str | None:
    """The name by which :func:`zone_of` finds a zone again; None for none."""
    if zone is None:
        return None
    if isinstance(zone, zoneinfo.ZoneInfo) and zone.key:
        zone_of(zone.key)  # one that was made of a file may have any name
        return zone.key
    if isinstance(zone, dt.timezone):
        return dt.datetime(2000, 1, 1, tzinfo=zone).isoformat()[19:]
    raise StateTypeError(
        f"the time zone {zone!r} has no name to find it by again; use datetime.timezone or zoneinfo.ZoneInfo"
    )


def decode_moment(value: dict[str, Any]) -> dt.datetime:
    """The datetime of what Arrow gives."""
    wall: dt.datetime = value["wall"]
    return wall.replace(tzinfo=zone_of(value["zone"]), fold=int(value["fold"]))


@cache
def zone_of(name: str | None) -> dt.tzinfo | None:
    """The zone of a name. Raises :class:`StateTypeError` if it is not known here."""
    if name is None:
        return None
    try:
        if name[0] in "+-":
            return dt.datetime.fromisoformat("2000-01-01T00:00:00" + name).tzinfo
        return zoneinfo.ZoneInfo(name)
    except (ValueError, zoneinfo.ZoneInfoNotFoundError, OSError) as unknown:
        raise StateTypeError(
            f"the time zone {name!r} is not known to Python here: use one of the IANA database, such as "
            "Europe/Berlin, and install the package tzdata where this runs"
        ) from unknown
