"""The numbers of many objects as columns, made in one pass.

A column at a time looks at every object once per variable, and with many variables the objects do not stay in the
processor's cache meanwhile. Here each object is looked at once, and becomes one record of bytes.

Invariant: what comes out is what :func:`~bedload.state.encoded.encoded_column` gives of the same values. Only for
values that were found to be of their declared types when they were sealed: they are converted here, and not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from operator import attrgetter
from struct import Struct, error
from typing import Any

import numpy as np
import pyarrow as pa

from bedload.state.specs import StateSpec
from bedload.state.types import ScalarNode

_CODES = {bool: "?", int: "q", float: "d"}


class NumberColumns:
    """Those variables of a layout that are plain numbers."""

    def __init__(self, specs: Sequence[StateSpec]) -> None:
        codes = {it.name: _CODES.get(it.type.py) for it in specs if isinstance(it.type, ScalarNode)}
        fields = [(name, code) for name, code in codes.items() if code is not None]
        self._names = [name for name, _ in fields] if len(fields) > 1 else []  # for one there is nothing to be won
        if self._names:
            self._read = attrgetter(*self._names)
            self._pack = Struct("=" + "".join(code for _, code in fields)).pack
            self._record = np.dtype(fields)

    def of(self, objs: Sequence[Any]) -> dict[str, pa.Array]:
        """Their columns; none of any variable if a value does not fit: then the slow way says which."""
        if not self._names or not objs:
            return {}
        try:
            records = np.frombuffer(b"".join(starmap(self._pack, map(self._read, objs))), self._record)
        except (error, TypeError, OverflowError):
            return {}
        return {name: pa.array(np.ascontiguousarray(records[name])) for name in self._names}
