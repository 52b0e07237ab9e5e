"""The delta of rows whose variables are all small, gathered while the rows are in the processor's cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from bedload.core.ids import KeyGroup
from bedload.state import RecordLayout
from bedload.state.arrow import arrow_type
from bedload.store.deltas import REMOVE, delta_batch, key_arrays, whole_column

Gather: TypeAlias = Callable[[list[Any], Sequence[list[Any]]], list[Any]]
"""Adds the keys and values that a delta of one key group writes; gives the removed keys."""


_SOME = 4096
"""So many keys of small values are encoded together."""


class SmallDelta:
    """The delta of rows of small values, gathered key group by key group, and encoded some keys at a time.

    Why not all at once: a key group's objects are in the processor's cache right after operator code ran on them.
    """

    def __init__(self, layout: RecordLayout, key_types: Sequence[pa.DataType]) -> None:
        self._specs = layout.specs
        self._key_types = key_types
        self._keys: list[Any] = []
        self._columns: list[list[Any]] = [[] for _ in layout.specs]
        self._encoded: list[list[pa.Array]] = []
        """The columns of the keys before these: of the key, and of the variables."""
        self._groups: list[tuple[KeyGroup, int, int]] = []
        self._gone: list[Any] = []

    def add(self, group: KeyGroup, gather: Gather) -> None:
        """Take in a key group."""
        before = len(self._keys)
        removed = gather(self._keys, self._columns)
        self._gone += removed
        self._groups.append((group, len(self._keys) - before, len(removed)))
        if len(self._keys) >= _SOME:
            self._encode()

    def _encode(self) -> None:
        columns = zip(self._specs, self._columns, strict=True)
        made = [whole_column(spec, values, self._keys) for spec, values in columns]
        self._encoded.append([*key_arrays(self._keys, self._key_types), *made])
        for values in (self._keys, *self._columns):
            values.clear()

    def batch(self) -> pa.RecordBatch | None:
        """All that was gathered; None if nothing changed."""
        if not (self._keys or self._encoded or self._gone):
            return None
        self._encode()
        numbers, counts, lost = zip(*self._groups, strict=True)
        groups, gone = np.repeat(numbers, counts), self._gone
        ops = np.zeros(len(groups), np.int8)
        if gone:
            groups = np.concatenate((groups, np.repeat(numbers, lost)))
            ops = np.concatenate((ops, np.full(len(gone), REMOVE, np.int8)))
            nulls = [pa.nulls(len(gone), arrow_type(spec.type)) for spec in self._specs]
            self._encoded.append([*key_arrays(gone, self._key_types), *nulls])
        columns = list(map(pa.concat_arrays, zip(*self._encoded, strict=True)))
        keys, values = columns[: len(self._key_types)], columns[len(self._key_types) :]
        names = [spec.name for spec in self._specs]
        return delta_batch(groups, ops, keys, dict(zip(names, values, strict=True)))
