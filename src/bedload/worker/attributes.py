"""What an operator's class may have beside its declarations: methods, descriptors, classes, and constants.

A plain value on the class belongs to no key: all keys of a worker would share it, and it would be lost where they move.
It looks like state, though, so it has to say that it is none: as a ``ClassVar``, or by a name in upper case. Without
either, what has an annotation is refused, and so is what can change in place.
"""

from __future__ import annotations

import collections
import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any

import numpy as np

from bedload.core.errors import DefinitionError
from bedload.state import Declaration, StateSpec
from bedload.worker.parameters import Parameter

_SETTINGS = frozenset({"grouped"})
_CONSTANT = re.compile(r"(\w+\.)*(ClassVar|Final)\b")
_CHANGEABLE: tuple[tuple[type, str, str], ...] = (
    (collections.Counter, "Counter[str]", "bl.counter()"),
    (dict, "dict[str, int]", "bl.map()"),
    (list, "list[float]", "bl.list()"),
    (set, "set[str]", "bl.set()"),
    (collections.deque, "deque[float]", "bl.deque()"),
    (np.ndarray, "np.ndarray", "bl.array(shape, dtype)"),
    (bytearray, "bytes", "bl.value(b'')"),
)
"""What can change in place, and what to declare instead."""


def check_attributes(cls: type, specs: tuple[StateSpec, ...]) -> None:
    """Raise a DefinitionError for what would be taken for state and is none, here or in a base class."""
    for base in cls.__mro__:
        if base.__module__ in ("builtins", "typing", "abc"):
            continue
        annotated = inspect.get_annotations(base)
        for name, value in _plain(base):
            if isinstance(value, (Declaration, Parameter)) or _is_constant(annotated.get(name)):
                continue
            if name in annotated or isinstance(value, tuple(kind for kind, _, _ in _CHANGEABLE)):
                raise DefinitionError(_refusal(base, name, value, annotated.get(name)))
    for spec in specs:
        for base in cls.__mro__:
            if spec.name in vars(base):
                raise DefinitionError(
                    f"operator {cls.__name__}: the state variable {spec.name} is hidden by "
                    f"{base.__name__}.{spec.name}; give one of them another name"
                )


def _plain(cls: type) -> Iterator[tuple[str, Any]]:
    """The attributes that are neither methods, descriptors or classes, nor named as constants or settings are."""
    for name, value in vars(cls).items():
        ours = name.startswith("__") or name.isupper() or name in _SETTINGS
        declared = isinstance(value, (Declaration, Parameter))
        if declared or not (ours or isinstance(value, type) or hasattr(type(value), "__get__")):
            yield name, value


def _is_constant(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return _CONSTANT.match(annotation.strip()) is not None
    constant = (typing.ClassVar, typing.Final)
    return annotation in constant or typing.get_origin(annotation) in constant


def _refusal(cls: type, name: str, value: Any, annotation: Any) -> str:
    kind, made = next(
        ((kind, made) for it, kind, made in _CHANGEABLE if isinstance(value, it)),
        (type(value).__name__, f"bl.value({value!r:.60})"),
    )
    if annotation is not None and not isinstance(value, bytearray):
        kind = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return (
        f"operator {cls.__name__}: {name} = {value!r:.60} is a plain value on the class: it is no state, and all keys "
        f"of a worker would share it. If each key has its own, write {name}: {kind} = {made}; if whoever applies the "
        f"operator chooses it, {name}: {kind} = bl.param(...); if it never changes, annotate it as ClassVar, or name "
        f"it {name.upper()}; and make what else keys share in setup()"
    )
