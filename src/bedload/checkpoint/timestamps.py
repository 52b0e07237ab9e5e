"""Datetimes as timestamps, for those who look at state from outside: snapshots, tables, the data source.

Within Bedload a datetime is a struct that has all of it (:mod:`bedload.state.moments`). Where all datetimes of a
variable have one zone, a timestamp of that zone says the same: of naive ones the wall time, of others the instant.

Invariants: :func:`unstamped` gives back what :func:`stamped` took, if :func:`zones_of` did not tell of ``NO_STAMP``;
a zone is found at any depth, in lists, maps and structs. Whatever an instant means in a zone, Python's ``zoneinfo``
decides, as it does in operator code.

A zone is a name here, as :func:`~bedload.state.moments.zone_name` gives it, and ``NAIVE`` stands for none.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Collection
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.checkpoint.conversions import with_entries, with_fields
from bedload.checkpoint.records import Variable
from bedload.core.errors import StateTypeError
from bedload.state.kinds import VariableKind
from bedload.state.moments import MOMENT, zone_of

NAIVE = ""
"""The zone of datetimes that have none."""
NO_STAMP = "*"
"""Stands for datetimes that no timestamp of one zone can be: of several zones, in the hour that a clock skips, …"""
UTC = "UTC"
"""How Spark's own timestamps are, so also what a variable is shown as that has no datetimes yet."""

Micros: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

_MICROSECOND = dt.timedelta(microseconds=1)
_EPOCH = dt.datetime(1970, 1, 1)
_FIRST, _LAST = ((limit - _EPOCH) // _MICROSECOND for limit in (dt.datetime.min, dt.datetime.max))
_OFFSET = re.compile(r"[+-]\d\d:\d\d")


@cache
def has_datetimes(kind: pa.DataType) -> bool:
    """Whether values of a type hold datetimes."""
    if kind == MOMENT:
        return True
    return pa.types.is_nested(kind) and any(has_datetimes(kind.field(i).type) for i in range(kind.num_fields))


def is_dated(variable: Variable) -> bool:
    """Whether a variable holds datetimes; columns have timestamps."""
    return variable.kind != VariableKind.COLUMN and has_datetimes(variable.field.type)


@cache
def stamped_type(kind: pa.DataType, zone: str) -> pa.DataType:
    """The type with timestamps of a zone in the place of datetimes."""
    if kind == MOMENT:
        return pa.timestamp("us", _arrow_zone(zone))
    if not has_datetimes(kind):
        return kind
    if pa.types.is_map(kind):
        fields = [field.with_type(stamped_type(field.type, zone)) for field in (kind.key_field, kind.item_field)]
        return pa.map_(*fields)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(stamped_type(field.type, zone)) for field in kind])
    return pa.list_(kind.value_field.with_type(stamped_type(kind.value_type, zone)))


def zones_of(column: pa.Array, *, exact: bool = True) -> set[str]:
    """The zones of all datetimes in a column; if ``exact``, also ``NO_STAMP`` where no timestamp of its zone is one."""
    found: set[str] = set()

    def look(moments: pa.Array) -> pa.Array:
        parts = _Moments(moments)
        for zone in parts.zones():
            found.add(zone)
            if exact and not parts.is_exact(zone):
                found.add(NO_STAMP)
        return moments

    _each(column, column.type, column.type, look)
    return found


def zone_for(zones: Collection[str]) -> str:
    """The zone of a timestamp that says all of datetimes with these zones; ``NO_STAMP`` if none does."""
    return NO_STAMP if NO_STAMP in zones or len(zones) > 1 else next(iter(zones), UTC)


def zone_shown(zones: Collection[str]) -> str:
    """The same for Spark, whose timestamps are instants: aware datetimes of all zones are such."""
    plain = {zone for zone in zones if zone != NO_STAMP}
    return NO_STAMP if NAIVE in plain and len(plain) > 1 else NAIVE if plain == {NAIVE} else UTC


def stamped(column: pa.Array, zone: str) -> pa.Array:
    """The column with timestamps of a zone in the place of datetimes; of aware ones the instant counts."""
    tz = _arrow_zone(zone)
    kind = stamped_type(column.type, zone)
    return _each(column, column.type, kind, lambda moments: _Moments(moments).stamps(tz))


def unstamped(column: pa.Array, kind: pa.DataType, zone: str) -> pa.Array:
    """Back: the column as this type, which has datetimes where the column has timestamps."""
    return _each(column, kind, kind, lambda stamps: _from_stamps(stamps, zone))


# --- one column of datetimes ---


class _Moments:
    """Datetimes, taken apart."""

    def __init__(self, moments: pa.Array) -> None:
        self._null: Flags = moments.is_null().to_numpy(zero_copy_only=False)
        wall, zone, fold = (moments.field(i) for i in range(3))
        self._wall: Micros = wall.cast(pa.int64()).fill_null(0).to_numpy()
        self._fold: Flags = fold.fill_null(False).to_numpy(zero_copy_only=False)
        coded = zone.fill_null(NAIVE).dictionary_encode()
        self._names: list[str] = coded.dictionary.to_pylist()
        self._code: npt.NDArray[np.int32] = coded.indices.to_numpy()

    def zones(self) -> list[str]:
        """Which there are."""
        there = np.unique(self._code[~self._null]).tolist()
        return [self._names[i] for i in there]

    def stamps(self, tz: str | None) -> pa.Array:
        """Timestamps: of naive ones the wall time."""
        made = self._wall.copy()
        for zone in self.zones():
            rows = self._rows(zone)
            made[rows] -= _offsets(zone, self._wall[rows], self._fold[rows])
        return pa.array(made, pa.timestamp("us", tz), mask=self._null)

    def is_exact(self, zone: str) -> bool:
        """Whether the timestamps of those of a zone give them back."""
        rows = self._rows(zone)
        wall, fold = self._wall[rows], self._fold[rows]
        try:
            instants = wall - _offsets(zone, wall, fold)
            if ((instants < _FIRST) | (instants > _LAST)).any():  # Python could not read them
                return False
            back, again = _walls(zone, instants)
        except (OverflowError, StateTypeError):  # a wall time before the year 1 or after 9999; a zone unknown here
            return False
        return bool((back == wall).all() and (again == fold).all())

    def _rows(self, zone: str) -> Flags:
        rows: Flags = ~self._null & (self._code == self._names.index(zone))
        return rows


def _from_stamps(stamps: pa.Array, zone: str) -> pa.Array:
    null: Flags = stamps.is_null().to_numpy(zero_copy_only=False)
    wall, fold = _walls(zone, stamps.cast(pa.int64()).fill_null(0).to_numpy())
    name = pa.array([None if zone == NAIVE else zone], pa.string()).take(pa.array(np.zeros(len(wall), np.int64)))
    children = [pa.array(wall, pa.timestamp("us")), name, pa.array(fold)]
    return pa.StructArray.from_arrays(children, fields=list(MOMENT), mask=pa.array(null))


def _fixed(zone: str) -> int | None:
    """The microseconds that a zone is ahead of UTC, if they are always as many."""
    found = zone_of(zone or None)
    offset = dt.timedelta() if found is None else found.utcoffset(None)
    return None if offset is None else offset // _MICROSECOND


def _offsets(zone: str, wall: Micros, fold: Flags) -> Micros | int:
    """By how much each wall time is ahead of UTC."""
    fixed = _fixed(zone)
    if fixed is not None:
        return fixed
    of = zone_of(zone)
    pairs = zip(wall.tolist(), fold.tolist(), strict=True)
    found = ((_EPOCH + dt.timedelta(microseconds=at)).replace(tzinfo=of, fold=bool(again)) for at, again in pairs)
    return np.fromiter(((value.utcoffset() or dt.timedelta()) // _MICROSECOND for value in found), np.int64, len(wall))


def _walls(zone: str, micros: Micros) -> tuple[Micros, Flags]:
    """What a clock in a zone shows at some instants, and whether for the second time."""
    fixed = _fixed(zone)
    if fixed is not None:
        return micros + fixed, np.zeros(len(micros), np.bool_)
    of, start = zone_of(zone), _EPOCH.replace(tzinfo=dt.UTC)
    shown = [(start + dt.timedelta(microseconds=at)).astimezone(of) for at in micros.tolist()]
    walls = ((value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND for value in shown)
    folds = (bool(value.fold) for value in shown)
    return np.fromiter(walls, np.int64, len(shown)), np.fromiter(folds, np.bool_, len(shown))


def _arrow_zone(zone: str) -> str | None:
    """The zone as Arrow and its readers know it; for those that they do not know, UTC: the instants are the same."""
    if zone == NAIVE:
        return None
    return UTC if zone == "+00:00" or (zone[0] in "+-" and not _OFFSET.fullmatch(zone)) else zone


# --- at any depth ---


def _each(column: pa.Array, state: pa.DataType, kind: pa.DataType, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """The column as another type, in which only datetimes differ. ``state`` is that of the two that has them.

    Which one it is cannot be seen: a dataclass of the user's that has a naive ``wall``, a ``zone`` and a ``fold`` looks
    like a datetime once it has a timestamp.
    """
    if state == MOMENT:
        return convert(column)
    if not has_datetimes(state):
        return column
    if pa.types.is_struct(kind):
        # Flattened: of a struct that is null, what is in it does not count.
        parts = zip(column.flatten(), state, kind, strict=True)
        return with_fields(kind, column, [_each(part, was.type, field.type, convert) for part, was, field in parts])
    if column.offset or len(column.values) != column.offsets[-1].as_py() or column.offsets[0].as_py():
        column = column.take(pa.array(np.arange(len(column))))  # what lies around a slice is not to be looked at
    if pa.types.is_map(kind):
        fields = [kind.key_field, kind.item_field]
        entries = zip((column.keys, column.items), (state.key_type, state.item_type), fields, strict=True)
        made = [_each(part, was, field.type, convert) for part, was, field in entries]
        return with_entries(kind, column, pa.StructArray.from_arrays(made, fields=fields))
    return with_entries(kind, column, _each(column.values, state.value_type, kind.value_type, convert))
