"""What to do with a value of a declared type: adopt it, copy it, ask whether it changed.

Invariants: a type that cannot change in place has no handling, and its values are used as they are;
adopting always makes new containers, so a container has one owner; the plain and the committed form
share nothing that can change with the live one.

Why adopting copies: a container tells its one owner that it changed. Were it in two places, one of
them would not know. So ``m["b"] = m["a"]`` puts a copy under ``"b"``, and a plain list that was put in
is not the one that is kept: go on with ``m["a"]``, or with what ``setdefault`` returned. Putting a
container where it already is (``m["a"] += [1]``) changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import methodcaller
from typing import Any, NamedTuple, TypeAlias

from bedload.core.errors import StateTypeError
from bedload.state.journal import Journal, Tracked, differs, is_dirty
from bedload.state.types import OptionalNode, TupleNode, TypeNode

Adopt: TypeAlias = Callable[[Any, Journal, Tracked | None, Any], Any]


class Handling(NamedTuple):
    """How values of one mutable type are handled."""

    adopt: Adopt
    plain: Callable[[Any], Any]
    committed: Callable[[Any], Any]
    dirty: Callable[[Any], bool]
    differs: Callable[[Any], bool]


Family: TypeAlias = Callable[[Any], Adopt]
"""Makes the tracked classes of a container type, and gives the function that adopts into them."""

_FAMILIES: dict[type[TypeNode], Family] = {}

_plain: Callable[[Any], Any] = methodcaller("_bl_plain")
_committed: Callable[[Any], Any] = methodcaller("_bl_committed")


def tracks(node_type: type[TypeNode]) -> Callable[[Family], Family]:
    """Register the family of a container type."""

    def register(family: Family) -> Family:
        _FAMILIES[node_type] = family
        return family

    return register


@cache
def handling(node: TypeNode) -> Handling | None:
    """The handling of a type; None if its values cannot change in place."""
    if not node.mutable:
        return None
    if isinstance(node, OptionalNode):
        return _optional(node)
    if isinstance(node, TupleNode):
        return _tuple(node)
    return Handling(_FAMILIES[type(node)](node), _plain, _committed, is_dirty, differs)


def mismatch(node: TypeNode, value: Any) -> StateTypeError:
    """The error of a value that does not have the declared type."""
    return StateTypeError(
        f"expected {node}, got {type(value).__name__}: {value!r:.200}. Put in a value of the declared type, "
        "or change the declaration"
    )


def _optional(node: OptionalNode) -> Handling:
    inner = handling(node.item)
    assert inner is not None
    adopt, plain, committed, dirty, differs_ = inner
    return Handling(
        lambda value, journal, owner, key: None if value is None else adopt(value, journal, owner, key),
        lambda value: None if value is None else plain(value),
        lambda value: None if value is None else committed(value),
        lambda value: value is not None and dirty(value),
        lambda value: value is not None and differs_(value),
    )


def _tuple(node: TupleNode) -> Handling:
    """A tuple cannot change, so its containers belong to whatever the tuple is in."""

    def per_item(length: int) -> tuple[Handling | None, ...]:
        items = node.items * length if node.repeated else node.items
        return tuple(handling(item) for item in items)

    fixed = None if node.repeated else per_item(0)

    def items_of(value: tuple[Any, ...]) -> tuple[Handling | None, ...]:
        return per_item(len(value)) if fixed is None else fixed

    def adopt(value: Any, journal: Journal, owner: Tracked | None, key: Any) -> Any:
        if not isinstance(value, tuple) or (fixed is not None and len(value) != len(fixed)):
            raise mismatch(node, value)
        return tuple(
            x if how is None else how.adopt(x, journal, owner, key)
            for x, how in zip(value, items_of(value), strict=True)
        )

    return Handling(
        adopt,
        lambda value: tuple(x if how is None else how.plain(x) for x, how in zip(value, items_of(value), strict=True)),
        lambda value: tuple(
            x if how is None else how.committed(x) for x, how in zip(value, items_of(value), strict=True)
        ),
        lambda value: any(how is not None and how.dirty(x) for x, how in zip(value, items_of(value), strict=True)),
        lambda value: any(how is not None and how.differs(x) for x, how in zip(value, items_of(value), strict=True)),
    )


def named(base: type[Any], *classes: type[Any]) -> None:
    """Let the classes of a family show as what users know."""
    for cls in classes:
        cls.__name__, cls.__qualname__ = base.__name__, base.__qualname__


def touching(*names: str) -> Callable[[type[Any]], type[Any]]:
    """Give a clean class its mutators: open the log, which swaps the class, and call the new class's."""

    def mutator(name: str) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            self._bl_touch()
            return getattr(self, name)(*args, **kwargs)

        return method

    return _with_methods({name: mutator(name) for name in names})


def rewriting(*names: str) -> Callable[[type[Any]], type[Any]]:
    """Give a logged class the mutators that change too much to log by entry: copy what was, go raw."""

    def mutator(name: str) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return getattr(self._bl_full(), name)(*args, **kwargs)

        return method

    return _with_methods({name: mutator(name) for name in names})


def _with_methods(methods: dict[str, Any]) -> Callable[[type[Any]], type[Any]]:
    def decorate(cls: type[Any]) -> type[Any]:
        for name, method in methods.items():
            if name in cls.__dict__:
                continue  # written out, because it is hot
            method.__name__ = name
            method.__qualname__ = f"{cls.__qualname__}.{name}"
            setattr(cls, name, method)
        return cls

    return decorate
