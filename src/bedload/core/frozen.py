"""Values that cannot change: what an operator's parameters are made of.

Lists, sets and dicts become values of the same content that cannot change, at any depth. What could change, and is none
of these, is refused: every key of a worker would see the change, and no other worker.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import re
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, ModuleType, NoneType
from typing import Any, NoReturn
from uuid import UUID

import numpy as np
import xxhash

_FUNCTIONS = (FunctionType, BuiltinFunctionType, type)
_PLAIN = (
    *(NoneType, bool, int, float, complex, str, bytes, range, Decimal, Fraction, UUID, Enum, PurePath, re.Pattern),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo),
    *_FUNCTIONS,
)
_LONGEST = 200
"""Characters of a text that people read; of a longer one the beginning and a checksum."""


class Changeable(TypeError):
    """A value, or a part of it, could change; says which."""


class FrozenDict(dict[Any, Any]):
    """A dict that cannot change."""

    __slots__ = ()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("it is the value of a parameter, which cannot change: make a copy with dict(...)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


def frozen(value: Any) -> Any:
    """The value as one that cannot change; raises :class:`Changeable` if there is none."""
    if isinstance(value, np.generic):
        made = value.item()
        # Python has no datetimes of nanoseconds: NumPy would make ints of them.
        return value if value.dtype.kind in "mM" and not isinstance(made, datetime.date | datetime.timedelta) else made
    if isinstance(value, BuiltinFunctionType) and not isinstance(value.__self__, ModuleType | type | None):
        raise Changeable(f"{value!r} is a method of a {type(value.__self__).__name__}, which can change")
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple | list):
        items = [frozen(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, set | frozenset):
        return frozenset(frozen(item) for item in value)
    if isinstance(value, Mapping):
        return FrozenDict((frozen(key), frozen(item)) for key, item in value.items())
    if dataclasses.is_dataclass(value):
        if not getattr(value, "__dataclass_params__").frozen:  # noqa: B009 - mypy does not know it
            raise Changeable(f"{value!r}: the dataclass {type(value).__name__} is not declared with frozen=True")
        made = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(made, field.name, frozen(getattr(value, field.name)))
        return made
    raise Changeable(f"{value!r} is of the type {type(value).__name__}, whose values can change")


def text_of(value: Any) -> str:
    """A frozen value as a text for people. The same value has the same one in every process."""
    text = _text(value)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... ({len(text)} characters, xxh3 {xxhash.xxh3_64_hexdigest(text.encode())})"


def _text(value: Any) -> str:
    if isinstance(value, _FUNCTIONS):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, re.Pattern):
        return f"re.compile({value.pattern!r}, {value.flags})"
    if isinstance(value, FrozenDict):
        return f"{{{', '.join(sorted(f'{_text(key)}: {_text(item)}' for key, item in value.items()))}}}"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _named(value, fields)
    if isinstance(value, tuple):
        if hasattr(value, "_fields"):
            return _named(value, dict(zip(value._fields, value, strict=True)))
        return f"({', '.join(map(_text, value))}{',' * (len(value) == 1)})"
    return repr(value)


def _named(value: Any, fields: dict[str, Any]) -> str:
    return f"{type(value).__qualname__}({', '.join(f'{name}={_text(item)}' for name, item in fields.items())})"
