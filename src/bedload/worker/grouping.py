"""Finding the keys of a sub-batch and their rows, as columns.

Keys are dictionary-encoded by Arrow, so only distinct keys become Python objects. Rows are ordered by
(key group, key), keeping arrival order within a key: the rows of a key are one slice, and the keys of
a key group are one slice too.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bedload.core.ids import KeyGroup
from bedload.keys import freeze_keys


class Grouped(NamedTuple):
    """The keys of a sub-batch in order, and where their rows are."""

    keys: list[Any]
    bounds: list[int]
    """Rows of ``keys[i]`` are at ``order[bounds[i]:bounds[i + 1]]``."""
    order: np.ndarray
    groups: list[tuple[KeyGroup, int, int]]
    """Key group, and the slice of ``keys`` that belongs to it."""


def group_rows(keys: list[pa.Array], groups: np.ndarray) -> Grouped:
    """Group the rows of a sub-batch, given its key columns and the key group of each row."""
    codes, distinct = _encode(keys)
    group_of = _groups_of(codes, groups, len(distinct[0]))
    rank = np.argsort(group_of, kind="stable")
    order, bounds = _in_order(codes, rank)
    ordered = pa.array(rank)
    sorted_groups = group_of[rank]
    cuts = [0, *(np.flatnonzero(np.diff(sorted_groups)) + 1).tolist(), len(rank)]
    return Grouped(
        freeze_keys([column.take(ordered) for column in distinct]),
        bounds.tolist(),
        order,
        [(KeyGroup(int(sorted_groups[a])), a, b) for a, b in pairwise(cuts)],
    )


class Ascending(NamedTuple):
    """The keys of a batch in ascending order, nulls first, and where their rows are."""

    columns: list[pa.Array]
    """The columns of the keys, a row for each."""
    groups: np.ndarray
    """Their key groups."""
    bounds: list[int]
    order: np.ndarray


def sort_rows(keys: list[pa.Array], groups: np.ndarray) -> Ascending:
    """The same in the order of the keys, over all key groups."""
    codes, distinct = _encode(keys)
    rank = _ascending(distinct)
    order, bounds = _in_order(codes, rank)
    ordered = pa.array(rank)
    group_of = _groups_of(codes, groups, len(rank))
    return Ascending([column.take(ordered) for column in distinct], group_of[rank], bounds.tolist(), order)


def _ascending(columns: list[pa.Array]) -> np.ndarray:
    by = [(column, "ascending") for column in columns]
    # Where a column has nulls, whether there is one comes before the value.
    by = [pair for it in by for pair in ([(it[0].is_null(), "descending"), it] if it[0].null_count else [it])]
    names = [str(i) for i in range(len(by))]
    table = pa.table([column for column, _ in by], names)
    keys = [(name, order) for name, (_, order) in zip(names, by, strict=True)]
    found: np.ndarray = pc.sort_indices(table, keys).to_numpy()
    return found


def _groups_of(codes: np.ndarray, groups: np.ndarray, count: int) -> np.ndarray:
    group_of = np.empty(count, dtype=np.int16)
    group_of[codes] = groups
    return group_of


def _in_order(codes: np.ndarray, rank: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows in an order of their keys, and where the rows of each begin."""
    count = len(rank)
    position = np.empty(count, dtype=np.uint16 if count <= 65536 else np.uint32)
    position[rank] = np.arange(count, dtype=position.dtype)
    placed = position[codes]
    # SUBTLE: a stable sort of 16-bit integers is a radix sort, several times as fast as of wider ones.
    order = np.argsort(placed, kind="stable")
    bounds = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(placed, minlength=count), out=bounds[1:])
    return order, bounds


def _encode(keys: list[pa.Array]) -> tuple[np.ndarray, list[pa.Array]]:
    """A number for each row's key, and the distinct keys by number."""
    encoded = [_canonical(column).dictionary_encode(null_encoding="encode") for column in keys]
    codes = encoded[0].indices.to_numpy()
    if len(encoded) == 1:
        return codes, [encoded[0].dictionary]
    combined = codes.astype(np.int64)
    for column in encoded[1:]:
        combined = combined * len(column.dictionary) + column.indices.to_numpy()
        _, first, combined = np.unique(combined, return_index=True, return_inverse=True)
    where = pa.array(first)
    return combined, [column.take(where).dictionary_decode() for column in encoded]


def _canonical(column: pa.Array) -> pa.Array:
    """Equal keys get equal bits: minus zero becomes zero, every NaN the same one."""
    if pa.types.is_floating(column.type):
        zero = pa.scalar(0.0, column.type)
        return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), pc.add(column, zero))
    return column
