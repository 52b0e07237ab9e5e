"""What is said of the value of a variable, tracked or not: its plain form, whether it was changed in place, equality.

A tuple has no log of its own, but what is in it has. Equality here is that of what is stored: NaN equals NaN, and it
does not ask the ``__eq__`` of a dataclass, which may leave out fields, or know nothing but identity.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bedload.core.errors import StateTypeError
from bedload.state.arrow import encoder
from bedload.state.journal import Tracked
from bedload.state.types import CounterNode, MapNode, ScalarNode, SetNode, TypeNode


def plain_form(value: Any) -> Any:
    """A value as plain builtins."""
    if isinstance(value, Tracked):
        return value._bl_plain()
    return tuple(map(plain_form, value)) if isinstance(value, tuple) else value


def was_changed(value: Any) -> bool:
    """Whether a tracked container in a value was written to in this epoch; one that is not tracked yet says nothing."""
    if isinstance(value, Tracked):
        return value._bl_log is not None
    return isinstance(value, tuple) and any(map(was_changed, value))


def alike(node: TypeNode, value: Any, other: Any) -> bool:
    """Whether two plain values of a type are stored as the same; not what does not fit the type."""
    try:
        return value is other or _same(encoder(node)(value), encoder(node)(other))
    except StateTypeError:
        return False


def are_default(node: TypeNode, column: pa.Array, default: Any) -> npt.NDArray[np.bool_]:
    """For each value of a stored column, whether it is the default for sure."""
    encoded = encoder(node)(default)
    if encoded is None:
        found = column.is_null()
    elif pa.types.is_nested(column.type):
        return np.zeros(len(column), np.bool_)
    else:
        found = pc.equal(column, pa.scalar(encoded, column.type)).fill_null(False)
    flags: npt.NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
    return flags


def pair_entries(node: TypeNode, values: Iterable[Any], times: Iterable[dict[Any, int]]) -> None:
    """Maps or sets of many keys, as they were stored, and the times of their entries: have these name the very entries.

    There may be NaN in entries. It equals no other, and what was stored has one for the entry and one for its time.
    """
    entry = node.item if isinstance(node, SetNode) else node.key if isinstance(node, MapNode | CounterNode) else None
    if isinstance(entry, ScalarNode) and entry.py is not float:
        return
    for value, found in zip(values, times, strict=True):
        lost = [key for key in found if key not in value]
        if lost:
            for key, there in zip(lost, [key for key in value if key not in found], strict=False):
                found[there] = found.pop(key)


def _same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b or (a != a and b != b))
