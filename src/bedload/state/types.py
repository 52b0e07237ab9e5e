"""The types that state can be declared with, as a tree that every other module works from.

Invariants: a tree is frozen, hashable and picklable; a set element or a map key is immutable and
hashable; a tree is finite (a dataclass that contains itself is refused); a type that is not known
here is refused unless a codec was asked for by name.

Why a tree of our own: tracking, the Arrow codec and the error messages all walk the declared type,
and must agree on what is a container, what is a plain value and what is opaque.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import types
import typing
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal

from bedload.core.errors import StateTypeError
from bedload.state.heap import Heap

Codec = Literal["msgspec", "pickle"]

SCALARS: tuple[type, ...] = (
    bool,
    int,
    float,
    str,
    bytes,
    dt.date,
    dt.datetime,
    dt.timedelta,
    Decimal,
)


class TypeNode:
    """One node of a declared type."""

    __slots__ = ()

    @property
    def mutable(self) -> bool:
        """Whether a value holds a container that can change in place, at any depth."""
        return False

    @property
    def hashable(self) -> bool:
        """Whether a value can be a set element or a map key."""
        return False


@dataclasses.dataclass(frozen=True)
class ScalarNode(TypeNode):
    """A value that cannot change in place."""

    py: type

    @property
    def hashable(self) -> bool:
        """Scalars can be keys."""
        return True

    def __str__(self) -> str:
        return self.py.__name__


@dataclasses.dataclass(frozen=True)
class OptionalNode(TypeNode):
    """A value or None."""

    item: TypeNode

    @property
    def mutable(self) -> bool:
        """As its item."""
        return self.item.mutable

    @property
    def hashable(self) -> bool:
        """As its item."""
        return self.item.hashable

    def __str__(self) -> str:
        return f"{self.item} | None"


@dataclasses.dataclass(frozen=True)
class TupleNode(TypeNode):
    """A tuple; ``repeated`` is ``tuple[X, ...]``. It may hold containers, and they are tracked."""

    items: tuple[TypeNode, ...]
    repeated: bool = False
    names: tuple[str, ...] = ()
    """Of the items where they are stored, if they have some; else they are f0, f1, ..."""

    @property
    def mutable(self) -> bool:
        """Whether one of its items is."""
        return any(item.mutable for item in self.items)

    @property
    def hashable(self) -> bool:
        """Whether all of its items are."""
        return all(item.hashable for item in self.items)

    def __str__(self) -> str:
        named = [f"{name}: {item}" for name, item in zip(self.names, self.items, strict=bool(self.names))]
        inner = ", ".join(named or map(str, self.items)) + (", ..." if self.repeated else "")
        return f"tuple[{inner or '()'}]"


@dataclasses.dataclass(frozen=True)
class ListNode(TypeNode):
    """A list; with ``maxlen`` it keeps the last so many."""

    item: TypeNode
    maxlen: int | None = None

    @property
    def mutable(self) -> bool:
        """A container changes in place."""
        return True

    def __str__(self) -> str:
        return f"list[{self.item}]"


@dataclasses.dataclass(frozen=True)
class HeapNode(ListNode):
    """A heap, stored as the list of its items in heap order; with ``maxlen`` it keeps the largest so many."""

    def __str__(self) -> str:
        return f"Heap[{self.item}]"


@dataclasses.dataclass(frozen=True)
class DequeNode(TypeNode):
    """A deque.

    ``declared`` marks the one that a ``bl.deque(maxlen=...)`` declared: its maxlen is fixed by the
    declaration. A deque deeper in a type carries its maxlen with its value, as in Python.
    """

    item: TypeNode
    maxlen: int | None = None
    declared: bool = False

    @property
    def mutable(self) -> bool:
        """A container changes in place."""
        return True

    def __str__(self) -> str:
        return f"deque[{self.item}]"


@dataclasses.dataclass(frozen=True)
class MapNode(TypeNode):
    """A dict."""

    key: TypeNode
    value: TypeNode

    @property
    def mutable(self) -> bool:
        """A container changes in place."""
        return True

    def __str__(self) -> str:
        return f"dict[{self.key}, {self.value}]"


@dataclasses.dataclass(frozen=True)
class CounterNode(TypeNode):
    """A ``collections.Counter``: its counts are ints."""

    key: TypeNode

    @property
    def mutable(self) -> bool:
        """A container changes in place."""
        return True

    def __str__(self) -> str:
        return f"Counter[{self.key}]"


@dataclasses.dataclass(frozen=True)
class SetNode(TypeNode):
    """A set."""

    item: TypeNode

    @property
    def mutable(self) -> bool:
        """A container changes in place."""
        return True

    def __str__(self) -> str:
        return f"set[{self.item}]"


@dataclasses.dataclass(frozen=True)
class StructNode(TypeNode):
    """A dataclass. A frozen one whose fields are immutable is a plain value, any other is tracked."""

    cls: type
    fields: tuple[tuple[str, TypeNode], ...]
    frozen: bool

    @property
    def mutable(self) -> bool:
        """Whether it, or something in it, can change in place."""
        return not self.frozen or any(node.mutable for _, node in self.fields)

    @property
    def hashable(self) -> bool:
        """A frozen dataclass of hashable fields is."""
        hashes = self.cls.__hash__ is not None
        return self.frozen and hashes and all(node.hashable for _, node in self.fields)

    def __str__(self) -> str:
        return self.cls.__name__


@dataclasses.dataclass(frozen=True)
class OpaqueNode(TypeNode):
    """A value that only its codec can read: imaged, compared and stored as encoded bytes."""

    codec: Codec
    annotation: Any = dataclasses.field(hash=False, default=Any)

    def __str__(self) -> str:
        return getattr(self.annotation, "__name__", None) or str(self.annotation)


@dataclasses.dataclass(frozen=True)
class TimersNode(TypeNode):
    """The timers of a key (:mod:`bedload.state.timers`): a tuple that is replaced, and never changes in place."""

    def __str__(self) -> str:
        return "timers"


class UnknownType(Exception):
    """An annotation that has no node. The caller says which variable it belongs to."""


_BARE = {
    list: "list[float]",
    dict: "dict[str, int]",
    set: "set[str]",
    tuple: "tuple[int, str]",
    collections.deque: "deque[float]",
    collections.Counter: "Counter[str]",
    Heap: "Heap[float]",
}


def parse_type(annotation: Any, where: str) -> TypeNode:
    """The tree of an annotation; ``where`` names class and variable in the error."""
    try:
        return _parse(annotation, ())
    except UnknownType as unknown:
        raise StateTypeError(f"{where}: {unknown}") from None


def _parse(annotation: Any, outer: tuple[type, ...]) -> TypeNode:
    if isinstance(annotation, type) and annotation in _BARE:
        raise UnknownType(f"{annotation.__name__} does not say what it holds; write it out, as in {_BARE[annotation]}")
    if isinstance(annotation, type) and annotation in SCALARS:
        return ScalarNode(annotation)
    if isinstance(annotation, typing.NewType):
        return _parse(annotation.__supertype__, outer)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _parse(args[0], outer)
    if origin is typing.Union or origin is types.UnionType:
        return _parse_union(annotation, args, outer)
    if origin is not None:
        return _parse_generic(annotation, origin, args, outer)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return _parse_dataclass(annotation, outer)
    raise UnknownType(
        f"{_name(annotation)} is not a type that Bedload tracks. Use a scalar, a container, a tuple or a "
        'dataclass of them, or ask for a codec by name: bl.value(..., codec="msgspec") or codec="pickle"'
    )


def _parse_union(annotation: Any, args: tuple[Any, ...], outer: tuple[type, ...]) -> TypeNode:
    rest = [arg for arg in args if arg is not type(None)]
    if len(rest) != 1 or len(rest) == len(args):
        raise UnknownType(
            f"{_name(annotation)} mixes types; a state variable has one type, or that type and None. "
            'For a mix ask for codec="msgspec" or codec="pickle"'
        )
    return OptionalNode(_parse(rest[0], outer))


def _parse_generic(annotation: Any, origin: Any, args: tuple[Any, ...], outer: tuple[type, ...]) -> TypeNode:
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return TupleNode((_parse(args[0], outer),), repeated=True)
        return TupleNode(tuple(_parse(arg, outer) for arg in args))
    nodes = [_parse(arg, outer) for arg in args] if origin in _BARE else []
    if origin is list:
        return ListNode(nodes[0])
    if origin is Heap:
        return HeapNode(_ordered(nodes[0], annotation))
    if origin is collections.deque:
        return DequeNode(nodes[0])
    if origin is set:
        return SetNode(_key(nodes[0], annotation, "element"))
    if origin is collections.Counter:
        return CounterNode(_key(nodes[0], annotation, "element"))
    if origin is dict:
        return MapNode(_key(nodes[0], annotation, "key"), nodes[1])
    raise UnknownType(
        f"{_name(annotation)} is not a type that Bedload tracks; use list, dict, set, Counter, deque, "
        'tuple or a dataclass, or ask for codec="msgspec" or codec="pickle"'
    )


def _ordered(node: TypeNode, annotation: Any) -> TypeNode:
    if not _has_order(node):
        raise UnknownType(
            f"the items of {_name(annotation)} have no order; use a scalar, a tuple or list that begins with one, "
            "or a dataclass with order=True"
        )
    return node


def _has_order(node: TypeNode) -> bool:
    match node:
        case TupleNode(items):
            return bool(items) and _has_order(items[0])
        case ListNode(item):
            return not isinstance(node, HeapNode) and _has_order(item)
        case StructNode(cls=cls):
            return getattr(cls, "__lt__") is not getattr(object, "__lt__")  # noqa: B009 - not of the class, but on it
    return isinstance(node, ScalarNode)


def _key(node: TypeNode, annotation: Any, role: str) -> TypeNode:
    if not node.hashable:
        raise UnknownType(
            f"the {role} type {node} of {_name(annotation)} can change or has no hash; use a scalar, "
            "a tuple or a frozen dataclass"
        )
    return node


def _parse_dataclass(cls: type, outer: tuple[type, ...]) -> StructNode:
    if cls in outer:
        raise UnknownType(f'dataclass {cls.__name__} contains itself; ask for codec="msgspec" or codec="pickle"')
    try:
        hints = typing.get_type_hints(cls)
    except NameError as missing:
        raise UnknownType(
            f"the field types of dataclass {cls.__name__} cannot be resolved ({missing}); define what "
            "they name at module level"
        ) from None
    fields = []
    problem = rename_problem({field.name: field_renamed_from(field) for field in dataclasses.fields(cls)})
    if problem is not None:
        raise UnknownType(f"dataclass {cls.__name__}: {problem}")
    for field in dataclasses.fields(cls):
        try:
            fields.append((field.name, _parse(hints[field.name], (*outer, cls))))
        except UnknownType as unknown:
            raise UnknownType(f"field {field.name!r} of {cls.__name__}: {unknown}") from None
    params = cls.__dataclass_params__  # type: ignore[attr-defined]
    return StructNode(cls, tuple(fields), params.frozen)


def field_renamed_from(field: dataclasses.Field[Any]) -> Any:
    """What a dataclass field was called: ``dataclasses.field(..., metadata={"renamed_from": "old"})``."""
    return field.metadata.get("renamed_from")


def rename_problem(renames: Mapping[str, Any]) -> str | None:
    """What is wrong with the former names of variables or fields, if something is."""
    taken: dict[str, str] = {}
    for name, former in renames.items():
        if former is None:
            continue
        if not isinstance(former, str) or not former or former == name:
            return f"renamed_from={former!r} of {name!r}: give the other name that it had, or leave it out"
        if former in taken:
            return f"{taken[former]!r} and {name!r} are both renamed_from={former!r}; one of them can be"
        taken[former] = name
    return None


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
