"""Tuples on their way to Arrow, which takes them as dicts: the common case is written out for each type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bedload.state.generated import function
from bedload.state.types import OptionalNode, ScalarNode, TupleNode, TypeNode

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def field_names(node: TupleNode) -> tuple[str, ...]:
    """What the items of a tuple are called where they are stored."""
    return node.names or tuple(f"f{i}" for i in range(len(node.items)))


def quickly(node: TupleNode, slowly: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    """Encodes as ``slowly`` does, which is asked where a value is not one that Arrow takes as it is."""
    names = [f"a{i}" for i in range(len(node.items))]
    tests = [_is_encoded(name, item) for name, item in zip(names, node.items, strict=True)]
    if not tests or None in tests:
        return slowly
    made = ", ".join(f"{field!r}: {name}" for field, name in zip(field_names(node), names, strict=True))
    lines = [
        f"if type(value) is tuple and len(value) == {len(tests)}:",
        f"    {', '.join(names)}, = value",
        f"    if {' and '.join(f'({test})' for test in tests)}:",
        f"        return {{{made}}}",
        "return slowly(value)",
    ]
    encode: Callable[[Any], dict[str, Any]] = function("encode(value)", lines, {"slowly": slowly})
    return encode


def _is_encoded(name: str, node: TypeNode) -> str | None:
    """A test that says yes to values that Arrow takes as they are; None: there is none."""
    inner = node.item if isinstance(node, OptionalNode) else node
    if not isinstance(inner, ScalarNode) or inner.py not in (bool, int, float, str, bytes):
        return None
    test = f"type({name}) is {inner.py.__name__}"
    if inner.py is int:
        test = f"{test} and {INT64_MIN} <= {name} <= {INT64_MAX}"
    return test if inner is node else f"{test} or {name} is None"
