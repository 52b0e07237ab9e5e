"""Pickling what goes to the workers, and saying what is in the way."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import cloudpickle

from bedload.core.errors import BedloadError, OperatorNotShippable

_SPARK = ("pyspark", "py4j")


def pickled(value: Any, what: str, code: Any) -> bytes:
    """The value as it is shipped; raises :class:`OperatorNotShippable` with the name in its code that is in the way."""
    try:
        made: bytes = cloudpickle.dumps(value)
    except BedloadError:
        raise
    except Exception as error:
        found = _culprit(code, getattr(code, "__name__", what), {id(code)})
        raise OperatorNotShippable(
            f"{what} cannot be pickled: {type(error).__name__}: {error}. {_advice(found)}"
        ) from error
    return made


def _advice(found: tuple[str, str, Any] | None) -> str:
    if found is None:
        return (
            "It refers to something that lives in this process only (a connection, a lock, the SparkSession): make "
            "that in setup() instead. Workers have no Spark session"
        )
    where, name, value = found
    kind = type(value)
    if kind.__module__.split(".")[0] in _SPARK:
        return (
            f"{where} refers to {name}, a {kind.__name__}, but workers have no Spark session. Do what needs Spark on "
            f"the input or the output of the operator (a join, say), or before it is applied, and give it plain values "
            f"as a parameter"
        )
    return (
        f"{where} refers to {name} ({kind.__module__}.{kind.__qualname__}), which lives in this process only: make "
        f"that in setup() instead"
    )


def _culprit(value: Any, where: str, seen: set[int]) -> tuple[str, str, Any] | None:
    """The first name by which code refers to what cannot be pickled: where, the name, and what it stands for."""
    for place, name, item in _names(value, where):
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, (FunctionType, type)):
            found = None if _pickles(item) else _culprit(item, name, seen)
            if found is not None:
                return found
        elif not _pickles(item):
            return place, name, item
    return None


def _names(value: Any, where: str) -> Iterator[tuple[str, str, Any]]:
    """What a function refers to, or the methods and attributes of a class: where, the name, and what it stands for."""
    if isinstance(value, type):
        for name, item in vars(value).items():
            item = getattr(item, "__func__", getattr(item, "fget", item))
            if isinstance(item, FunctionType):
                yield from _names(item, f"{where}.{name}")
            elif not name.startswith("__"):
                yield where, name, item
        for base in value.__bases__:
            if base.__module__ != "builtins":
                yield where, base.__name__, base
    elif isinstance(value, FunctionType):
        used = inspect.getclosurevars(value)
        for name, item in {**used.nonlocals, **used.globals}.items():
            yield where, name, item


def _pickles(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True
