"""Declarations of state, and the frozen specs that a class definition makes of them.

Invariants: a spec is complete and valid once it exists; an error names class and variable and says
what to write instead; a spec is picklable as far as its default and its classes are.

Why two objects: at ``count: int = bl.value(0)`` the name and the annotation are not known yet. The
declaration is what the user wrote, the spec what the runtime works from.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, get_args, get_origin

import numpy as np

from bedload.core.durations import Duration
from bedload.core.errors import StateTypeError
from bedload.state.arrays import (
    Array,
    ArrayNode,
    annotated_dtype,
    array_node,
    fitted,
    is_array_type,
    pack_array,
    unpack_array,
)
from bedload.state.arrow import encoder
from bedload.state.kinds import VariableKind
from bedload.state.opaque import check_codec, decode_opaque, encode_opaque
from bedload.state.timers import VARIABLE
from bedload.state.ttl import Clock, Refresh, Ttl
from bedload.state.types import (
    SCALARS,
    Codec,
    CounterNode,
    DequeNode,
    HeapNode,
    ListNode,
    MapNode,
    OpaqueNode,
    OptionalNode,
    ScalarNode,
    SetNode,
    TimersNode,
    TypeNode,
    parse_type,
    rename_problem,
)


class _NoDefault:
    __slots__ = ()

    def __repr__(self) -> str:
        return "NO_DEFAULT"

    def __reduce__(self) -> str:
        return "NO_DEFAULT"  # the one there is, also after pickling


NO_DEFAULT: Final = _NoDefault()


@dataclasses.dataclass(frozen=True, slots=True)
class Declaration:
    """What the user wrote, before it has a name."""

    kind: VariableKind
    default: Any = NO_DEFAULT
    maxlen: int | None = None
    codec: Codec | None = None
    renamed_from: str | None = None
    shape: Any = ()
    dtype: Any = None
    """Of an array."""
    ttl: tuple[Any, Any, Any] = (None, None, None)
    """``ttl``, ``clock`` and ``refresh`` as given; they are checked when the variable has a name."""


@dataclasses.dataclass(frozen=True, slots=True)
class StateSpec:
    """One state variable of an operator."""

    name: str
    kind: VariableKind
    type: TypeNode
    default: Any = dataclasses.field(hash=False)
    """Of an array its bytes."""
    maxlen: int | None
    codec: Codec | None
    renamed_from: str | None = dataclasses.field(default=None, compare=False)
    """What it was called in stored state. It says nothing about the state that it has."""
    ttl: Ttl | None = dataclasses.field(default=None, compare=False)
    """How long its entries live. It says nothing about the variable's own state: expiries are a variable of theirs."""
    checked: bool = dataclasses.field(default=False, compare=False)
    """Whether whoever writes it sees to it that values are of its type, so that the seal need not look."""

    def fresh_default(self) -> Any:
        """A plain value for a new key: its own where it could change in place."""
        make = _EMPTY.get(self.kind)
        if make is not None:
            return make()
        if isinstance(self.type, OpaqueNode):
            return decode_opaque(self.type, encode_opaque(self.type, self.default))
        if isinstance(self.type, ArrayNode):
            return unpack_array(self.type, self.default)
        return self.default


_EMPTY: dict[VariableKind, Any] = {
    VariableKind.LIST: list,
    VariableKind.MAP: dict,
    VariableKind.SET: set,
    VariableKind.COUNTER: collections.Counter,
    VariableKind.DEQUE: collections.deque,
    VariableKind.HEAP: list,
}

_NODES: dict[VariableKind, tuple[type[TypeNode], str]] = {
    VariableKind.LIST: (ListNode, "list[float]"),
    VariableKind.MAP: (MapNode, "dict[str, int]"),
    VariableKind.SET: (SetNode, "set[str]"),
    VariableKind.COUNTER: (CounterNode, "Counter[str]"),
    VariableKind.DEQUE: (DequeNode, "deque[float]"),
    VariableKind.HEAP: (HeapNode, "bl.Heap[float]"),
}

_FACTORY_OF: tuple[tuple[type, str], ...] = (
    (collections.Counter, "bl.counter()"),
    (dict, "bl.map()"),
    (list, "bl.list()"),
    (set, "bl.set()"),
    (collections.deque, "bl.deque()"),
)


def value(
    default: Any = NO_DEFAULT,
    *,
    codec: Codec | None = None,
    renamed_from: str | None = None,
    ttl: Duration | None = None,
    clock: Clock | None = None,
    refresh: Refresh | None = None,
) -> Any:
    """A single value, as in ``count: int = bl.value(0)``: a scalar, a tuple, a dataclass, or what a codec takes.

    ``default`` is the value of a new key; a dataclass is copied for each key. It can be left out for ``X | None``.
    ``codec``: ``"msgspec"`` or ``"pickle"``, for types that have no other form. ``renamed_from``, here and in the other
    declarations, is the name that the variable had: state that was stored under it is taken over.

    ``ttl``, here and in the other declarations: how long something lives that is not written again, as a ``timedelta``
    or in words (``"1 hour"``). Then it is gone: of a map, a set or a counter the entry, of a list, a deque or a heap
    the item, and any other variable has its default again. ``clock``: ``"processing"`` (the default), the times of the
    epochs, or ``"event"``, the watermark. ``refresh="read"``: reading has it live on, too.
    """
    lives = (ttl, clock, refresh)
    return Declaration(VariableKind.VALUE, default=default, codec=codec, renamed_from=renamed_from, ttl=lives)


def list_(
    maxlen: int | None = None,
    *,
    renamed_from: str | None = None,
    ttl: Duration | None = None,
    clock: Clock | None = None,
    refresh: Refresh | None = None,
) -> Any:
    """A list, as in ``recent: list[float] = bl.list(maxlen=20)``.

    With ``maxlen`` it keeps the last so many items: what is appended to a full one drops the first.
    """
    return Declaration(VariableKind.LIST, maxlen=maxlen, renamed_from=renamed_from, ttl=(ttl, clock, refresh))


def map_(
    *,
    renamed_from: str | None = None,
    ttl: Duration | None = None,
    clock: Clock | None = None,
    refresh: Refresh | None = None,
) -> Any:
    """A dict, as in ``visits: dict[str, int] = bl.map()``; values may be containers and dataclasses."""
    return Declaration(VariableKind.MAP, renamed_from=renamed_from, ttl=(ttl, clock, refresh))


def set_(
    *,
    renamed_from: str | None = None,
    ttl: Duration | None = None,
    clock: Clock | None = None,
    refresh: Refresh | None = None,
) -> Any:
    """A set, as in ``seen: set[str] = bl.set()``."""
    return Declaration(VariableKind.SET, renamed_from=renamed_from, ttl=(ttl, clock, refresh))


def counter(
    *,
    renamed_from: str | None = None,
    ttl: Duration | None = None,
    clock: Clock | None = None,
    refresh: Refresh | None = None,
) -> Any:
    """A ``collections.Counter``, as in ``words: Counter[str] = bl.counter()``."""
    return Declaration(VariableKind.COUNTER, renamed_from=renamed_from, ttl=(ttl, clock, refresh))


def deque(
    maxlen: int | None = None,
    *,
    renamed_from: str | None = None,
    ttl: Duration | None = None,
    clock: Clock | None = None,
    refresh: Refresh | None = None,
) -> Any:
    """A ``collections.deque``, as in ``window: deque[float] = bl.deque(maxlen=100)``."""
    return Declaration(VariableKind.DEQUE, maxlen=maxlen, renamed_from=renamed_from, ttl=(ttl, clock, refresh))


def heap(
    maxlen: int | None = None,
    *,
    renamed_from: str | None = None,
    ttl: Duration | None = None,
    clock: Clock | None = None,
    refresh: Refresh | None = None,
) -> Any:
    """A priority queue, the smallest first, as in ``due: bl.Heap[tuple[int, str]] = bl.heap()``.

    With ``maxlen`` the largest so many items stay.
    """
    return Declaration(VariableKind.HEAP, maxlen=maxlen, renamed_from=renamed_from, ttl=(ttl, clock, refresh))


def array(
    shape: int | tuple[int, ...],
    dtype: Any = "float64",
    *,
    default: Any = 0,
    renamed_from: str | None = None,
    ttl: Duration | None = None,
    clock: Clock | None = None,
    refresh: Refresh | None = None,
) -> Any:
    """A NumPy array of fixed shape and dtype, changed in place or assigned: ``self.w[3] += 1``, ``self.w = a @ b``.

    ``dtype`` is a boolean, an integer or a float, as NumPy names it. ``default`` is what a new key starts with: a
    number for all places, or an array that broadcasts to the shape.
    """
    lives = (ttl, clock, refresh)
    return Declaration(
        VariableKind.ARRAY, default=default, renamed_from=renamed_from, shape=shape, dtype=dtype, ttl=lives
    )


TIMERS: Final = StateSpec(VARIABLE, VariableKind.VALUE, TimersNode(), (), None, None)
"""The hidden variable of an operator that has timers."""


def build_specs(
    cls_name: str, annotations: Mapping[str, Any], declarations: Mapping[str, Declaration]
) -> tuple[StateSpec, ...]:
    """The specs of a class, from its resolved annotations and its declarations, in their order."""
    specs = tuple(
        _build(f"{cls_name}.{name}", name, annotations.get(name, NO_DEFAULT), declaration)
        for name, declaration in declarations.items()
    )
    problem = rename_problem({spec.name: spec.renamed_from for spec in specs})
    if problem is not None:
        raise StateTypeError(f"{cls_name}: {problem}")
    return specs


def _build(where: str, name: str, annotation: Any, declared: Declaration) -> StateSpec:
    if name.startswith(("__", "_bl_", "bedload_")):
        raise StateTypeError(f"{where}: names that start with '__', '_bl_' or 'bedload_' are reserved; rename it")
    ttl = Ttl.of(*declared.ttl, where=where)
    if declared.kind is VariableKind.VALUE:
        node = _value_node(where, annotation, declared)
        default = _value_default(where, node, declared)
        return StateSpec(name, VariableKind.VALUE, node, default, None, declared.codec, declared.renamed_from, ttl)
    if declared.kind is VariableKind.ARRAY:
        array_type = _array_node(where, annotation, declared)
        start = _array_default(where, array_type, declared.default)
        return StateSpec(name, VariableKind.ARRAY, array_type, start, None, None, declared.renamed_from, ttl)
    node = _container_node(where, annotation, declared)
    return StateSpec(name, declared.kind, node, None, declared.maxlen, None, declared.renamed_from, ttl)


def _container_node(where: str, annotation: Any, declared: Declaration) -> TypeNode:
    expected, example = _NODES[declared.kind]
    if annotation is NO_DEFAULT:
        raise StateTypeError(
            f"{where}: bl.{declared.kind}() needs an annotation that says what it holds; write "
            f"{where.rpartition('.')[2]}: {example} = bl.{declared.kind}()"
        )
    maxlen = declared.maxlen
    if maxlen is not None and (type(maxlen) is not int or maxlen < 1):
        raise StateTypeError(f"{where}: maxlen is {maxlen!r}; give a positive int, or leave it out")
    node = parse_type(annotation, where)
    if not isinstance(node, expected) or (isinstance(node, HeapNode) and declared.kind is not VariableKind.HEAP):
        raise StateTypeError(
            f"{where}: bl.{declared.kind}() does not fit the annotation {node}; annotate it as in {example}"
        )
    if isinstance(node, ListNode):
        return dataclasses.replace(node, maxlen=maxlen)
    if isinstance(node, DequeNode):
        return dataclasses.replace(node, maxlen=maxlen, declared=True)
    return node


def _array_node(where: str, annotation: Any, declared: Declaration) -> ArrayNode:
    try:
        node = array_node(declared.shape, declared.dtype)
    except ValueError as bad:
        raise StateTypeError(f"{where}: bl.array(): {bad}") from None
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if annotation is not NO_DEFAULT and not is_array_type(annotation):
        raise StateTypeError(
            f"{where}: bl.array() does not fit the annotation {annotation}; annotate it as np.ndarray, or not at all"
        )
    if annotated_dtype(annotation) not in (None, node.dtype):
        raise StateTypeError(
            f"{where}: the annotation says {annotated_dtype(annotation)}, and bl.array() {node.dtype}; let both say one"
        )
    return node


def _array_default(where: str, node: ArrayNode, default: Any) -> bytes:
    try:
        given = np.asarray(default)
        if not isinstance(default, np.ndarray) and given.dtype.kind in "iuf":  # Python's numbers have no dtype
            given = _of_numbers(node, given)
        made = fitted(node, np.broadcast_to(given, node.dims).copy())
    except (StateTypeError, ValueError, TypeError, OverflowError) as bad:
        raise StateTypeError(
            f"{where}: the default {default!r:.100} does not fit {node}: {getattr(bad, 'message', bad)}"
        ) from None
    return pack_array(node, made)


def _of_numbers(node: ArrayNode, given: Array) -> Array:
    """Numbers in the dtype of an array. Fractions are rounded to floats of that size; nothing else may change."""
    with np.errstate(over="ignore", invalid="ignore"):
        made = given.astype(node.numpy)
    for number, became in zip(given.ravel().tolist(), made.ravel().tolist(), strict=True):
        rounded = isinstance(number, float) and node.numpy.kind == "f" and math.isfinite(became)
        if not (rounded or number == became or (number != number and became != became)):
            raise ValueError(f"{number!r} is no {node.dtype}")
    return made


def _value_node(where: str, annotation: Any, declared: Declaration) -> TypeNode:
    if declared.codec is not None:
        if declared.codec not in get_args(Codec):
            raise StateTypeError(f"{where}: there is no codec {declared.codec!r}; use 'msgspec' or 'pickle'")
        node = OpaqueNode(declared.codec, Any if annotation is NO_DEFAULT else annotation)
        check_codec(node, where)
        return node
    factory = next((make for py, make in _FACTORY_OF if isinstance(declared.default, py)), None)
    if factory is not None:
        raise StateTypeError(
            f"{where}: the default {declared.default!r} can change in place and would be shared; use {factory}"
        )
    if annotation is NO_DEFAULT:
        if type(declared.default) in SCALARS:
            return ScalarNode(type(declared.default))
        raise StateTypeError(f"{where}: no type can be inferred from the default; annotate the variable")
    if is_array_type(annotation):
        raise StateTypeError(
            f"{where}: bl.value() does not fit a NumPy array; use bl.array(shape, dtype), or bl.value(..., "
            'codec="pickle") if its shape changes'
        )
    parsed = parse_type(annotation, where)
    for kind, (container, _) in _NODES.items():
        if type(parsed) is container:
            raise StateTypeError(f"{where}: bl.value() does not fit {parsed}; use bl.{kind}()")
    return parsed


def _value_default(where: str, node: TypeNode, declared: Declaration) -> Any:
    default = declared.default
    if default is NO_DEFAULT:
        if isinstance(node, OptionalNode):
            return None
        raise StateTypeError(f"{where}: bl.value() needs the value of a new key, as in bl.value(0)")
    if isinstance(node, OpaqueNode):
        return default
    try:
        encoder(node)(default)
    except StateTypeError as bad:
        raise StateTypeError(f"{where}: the default does not fit: {bad.message}") from None
    return default
