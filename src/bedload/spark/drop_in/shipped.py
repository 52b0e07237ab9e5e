"""A processor as bytes, with what it refers to by means of Spark's own.

To a task of Spark's, a broadcast variable is a number, and the value is there already. A worker has no Spark: the value
goes along. It is unpickled once in a process, since the processor is unpickled in each epoch.
"""

from __future__ import annotations

import io
import pickle
from hashlib import blake2b
from typing import Any

from pyspark import Broadcast, cloudpickle

_held: dict[bytes, Any] = {}
"""Broadcast variables of this process, by the hash of their bytes."""


def shipped(processor: Any) -> bytes:
    """The processor, for any process."""
    with io.BytesIO() as file:
        pickler: Any = _Pickler(file)  # type: ignore[no-untyped-call]
        pickler.dump(processor)
        return file.getvalue()


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Broadcast):
            data = pickle.dumps(value.value, pickle.HIGHEST_PROTOCOL)
            return _broadcast, (blake2b(data, digest_size=16).digest(), data)
        return super().reducer_override(value)  # type: ignore[no-untyped-call]


def _broadcast(name: bytes, data: bytes) -> Any:
    found = _held.get(name)
    if found is None:
        made: Any = Broadcast.__new__(Broadcast)
        made._jbroadcast = made._sc = made._python_broadcast = made._path = None
        made._value = pickle.loads(data)
        found = _held[name] = made
    return found
