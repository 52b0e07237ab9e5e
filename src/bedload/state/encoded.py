"""Values of a variable as an Arrow column: those of many keys at once, by the fastest way for their type.

Invariant: the column is the one that :func:`~bedload.state.arrow.encode_all` and ``pa.array`` would give.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from bedload.state.arrays import ArrayNode, array_column
from bedload.state.arrow import arrow_type, encode_all
from bedload.state.timers import timers_column
from bedload.state.types import ListNode, OptionalNode, ScalarNode, TimersNode, TupleNode, TypeNode


def encoded_column(node: TypeNode, values: Any, rows: int | None = None, at: Any = ()) -> pa.Array:
    """A column of values, plain or timers in short form; with ``rows`` it is so long, null but for the rows ``at``."""
    if isinstance(node, ArrayNode):
        return array_column(node, values, rows, at)
    if isinstance(node, TimersNode):
        return _spread(timers_column(values), rows, at)
    if isinstance(node, ListNode) and (made := _lists_of_tuples(node, values, rows, at)) is not None:
        return made
    encoded = encode_all(node, values)
    if rows is not None and len(encoded) < rows:
        spread: list[Any] = [None] * rows
        for i, value in zip(at, encoded, strict=True):
            spread[i] = value
        encoded = spread
    return pa.array(encoded, arrow_type(node))


def _spread(column: pa.Array, rows: int | None, at: Any) -> pa.Array:
    if rows is None or len(column) == rows:
        return column
    places, there = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
    places[at], there[at] = np.arange(len(column)), True
    return column.take(pa.array(places, mask=~there))


def _lists_of_tuples(node: ListNode, values: Any, rows: int | None, at: Any) -> pa.Array | None:
    """The same for lists of flat tuples, all items together, field by field; None: they are something else."""
    item = node.item
    if not isinstance(item, TupleNode) or item.repeated or not item.items or not all(map(_is_flat, item.items)):
        return None
    if not all(isinstance(value, list) for value in values):
        return None
    flat, width = list(chain.from_iterable(values)), len(item.items)
    if set(map(type, flat)) != {tuple} or set(map(len, flat)) != {width}:
        return None
    kind = arrow_type(node)
    cells = list(chain.from_iterable(flat))  # to zip so many tuples would make an iterator of each
    columns = [encode_all(part, cells[at::width]) for at, part in enumerate(item.items)]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, kind.value_type, strict=True)]
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    there = None
    if rows is not None and len(values) < rows:
        spread, there = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
        spread[at], there[at] = sizes, True
        sizes = spread
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()),
        pa.StructArray.from_arrays(arrays, fields=list(kind.value_type)),
        kind,
        mask=None if there is None else pa.array(~there),
    )


def _is_flat(node: TypeNode) -> bool:
    return isinstance(node.item if isinstance(node, OptionalNode) else node, ScalarNode)
