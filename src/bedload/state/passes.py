"""Passes over many objects of one layout, written out for its variables: what runs for every key of every sub-batch.

A call per object costs more than the work on it, and with millions of keys each look at an object is a cache miss; so
each step of an epoch is one loop without calls. What these loops give is what the functions of
:class:`~bedload.state.record.RecordLayout` give object by object.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from bedload.state.generated import function

if TYPE_CHECKING:
    from bedload.state.record import RecordLayout


class Passes(NamedTuple):
    """The loops of one layout."""

    open: Callable[[Sequence[Any], Callable[[Any], None]], None]
    """``open(objs, touched)`` takes the before-image of each object without one, and tells ``touched`` of it."""
    changed: Callable[[Sequence[Any], Any], list[Any]] | None
    """``changed(objs, absent)``: those that differ from their image, or are new. For layouts of scalars alone.

    A deleted attribute is an :class:`AttributeError`.
    """


def passes(layout: RecordLayout) -> Passes:
    """The loops of a layout."""
    image = f"({''.join(f'obj.{name}, ' for name in layout.names)})" if layout.images_are_values else "image(obj)"
    lines = [
        "for obj in objs:",
        "    if obj._bedload_image is None:",
        f"        obj._bedload_image = {image}",
        "        touched(obj)",
    ]
    opening = function("open(objs, touched)", lines, {"image": layout.image})
    if not layout.scalars_only:
        return Passes(opening, None)
    differs = [f"(x := obj.{name}) is not image[{i}] and x != image[{i}]" for i, name in enumerate(layout.names)]
    test = " or ".join(["(image := obj._bedload_image) is absent", *differs])
    # SUBTLE: every attribute is read, also where an earlier one has changed: one may have been deleted. A pass in C, it
    # has several cache misses under way at a time, and the loop after it has none.
    lines = [*(f"exhaust(map(get{i}, objs))" for i in range(len(differs))), f"return [obj for obj in objs if {test}]"]
    scope: dict[str, Any] = {f"get{i}": attrgetter(name) for i, name in enumerate(layout.names)}
    return Passes(opening, function("changed(objs, absent)", lines, scope | {"exhaust": deque(maxlen=0).extend}))
