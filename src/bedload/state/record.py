"""The per-key object: what is on it, what it was, and what changed.

A record is an instance of a class whose ``__slots__`` are the state names. Scalars are plain
attributes with nothing in between; their before-image is one tuple per key and epoch. Containers are
tracked and log for themselves, so the image just holds the container that was there. Of a NumPy array the image is the
array itself: to take it puts a copy in its place, for the epoch to work on (:mod:`bedload.state.arrays`).

Invariants: an image is a tuple in the order of the specs; ``None`` stands for "no image", which is a
new key to ``changes`` and ``changed``, and an untouched one to ``snapshot``; after ``adopt`` every
attribute is set and every container on the record is tracked, and is this record's own.

Why generated functions: ``fill``, ``image``, ``restore``, ``adopt``, ``changed`` and ``written`` run per key and epoch
or more often. Written out for the variables at hand they are a few attribute accesses; as loops over
specs they cost several times that.

Why one file: the functions are parts of one text, and what each may leave out is known from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from operator import attrgetter
from typing import Any

import numpy as np

from bedload.core.errors import StateTypeError
from bedload.state.arrays import ArrayNode, differ, frozen, settled
from bedload.state.codec import check_value
from bedload.state.expiries import Expiries
from bedload.state.generated import function
from bedload.state.journal import Journal, Tracked
from bedload.state.live import counts_reads, live_handling
from bedload.state.opaque import decode_opaque, encode_opaque
from bedload.state.passes import passes
from bedload.state.patches import is_exact, is_small
from bedload.state.specs import StateSpec
from bedload.state.timers import in_full, short
from bedload.state.ttl import is_expiry
from bedload.state.types import OpaqueNode, OptionalNode, ScalarNode, TimersNode, TupleNode, TypeNode

_WRAPPERS = (OptionalNode, TupleNode)
"""Types whose values have no log of their own, but what is in them has."""


class _Variable:
    """One variable as the layout works with it."""

    __slots__ = ("array", "decode", "encode", "live", "name", "sealed", "spec", "timers")

    def __init__(self, spec: StateSpec) -> None:
        self.spec = spec
        self.name = spec.name
        self.live = live_handling(spec)
        node = spec.type
        self.array = node if isinstance(node, ArrayNode) else None
        self.timers = isinstance(node, TimersNode)
        self.sealed = spec.checked and is_expiry(spec.name)
        """Only the seal writes it, as it should be."""
        self.encode: Callable[[Any], bytes] | None = None
        self.decode: Callable[[bytes], Any] | None = None
        if isinstance(node, OpaqueNode):
            self.encode = lambda value: encode_opaque(node, value)
            self.decode = lambda data: decode_opaque(node, data)

    def take(self, value: Any, journal: Journal, place: int) -> Any:
        """The live form of a plain value: adopted if it can change in place."""
        if self.live is None:
            return value
        try:
            return self.live.adopt(value, journal, None, place)
        except StateTypeError as bad:
            raise StateTypeError(f"state variable {self.name!r}: {bad.message}") from None

    def fresh(self, journal: Journal, place: int) -> Any:
        """The live form of the default."""
        return self.take(self.spec.fresh_default(), journal, place)

    def plain(self, value: Any) -> Any:
        """The plain form of a live value."""
        if self.live is not None:
            return self.live.plain(value)
        if self.encode is not None and self.decode is not None:
            return self.decode(self.encode(value))
        if self.timers:
            return in_full(value)
        return value if self.array is None else np.array(value)

    def changed(self, value: Any, before: Any) -> bool:
        """Whether a live value differs from its before-image."""
        if self.live is not None:
            return value is not before or self.live.differs(value)
        if self.encode is not None:
            return bool(self.encode(value) != before)
        if self.array is not None:
            return differ(value, before)
        return bool(value is not before and value != before)

    def committed(self, before: Any) -> Any:
        """The plain committed value, from the before-image."""
        if self.live is not None:
            return self.live.committed(before)
        if self.array is not None:
            return before.copy()
        if self.timers:
            return in_full(before)
        return before if self.decode is None else self.decode(before)


class RecordLayout:
    """How the variables of one operator lie on its per-key objects."""

    fill: Callable[[Any, Journal], None]
    """Set defaults and fresh containers on a new object."""
    image: Callable[[Any], tuple[Any, ...]]
    """The shallow before-image of a key, to be taken when it is first touched in an epoch."""
    restore: Callable[[Any, tuple[Any, ...]], None]
    """Put the old values back; containers restore themselves when the journal aborts."""
    adopt: Callable[[Any, Journal], None]
    """After user code: track plain containers that it assigned, give deleted attributes their default."""
    changed: Callable[[Any, tuple[Any, ...] | None], bool]
    """Whether anything differs from the image."""
    differs: Callable[[Any, tuple[Any, ...] | None], bool]
    """The same, but for expiries: whether operator code would see a difference."""
    written: Callable[[Sequence[Any], Sequence[tuple[Any, ...]]], list[int]]
    """For objects and their images, which variables a backup must write: bit ``i`` is the variable ``i``.

    Unlike ``changed`` it tells values apart that are equal but encoded differently, such as ``0.0`` and ``-0.0``.
    """

    def __init__(self, specs: Sequence[StateSpec]) -> None:
        self.specs = tuple(specs)
        self.names = tuple(spec.name for spec in self.specs)
        self._variables = tuple(_Variable(spec) for spec in self.specs)
        self.tracked = tuple(v.live is not None for v in self._variables)
        """Which variables are containers, or hold some."""
        self._containers = tuple(name for name, tracked in zip(self.names, self.tracked, strict=True) if tracked)
        self._numbers = tuple(accumulate(self.tracked, initial=0))[:-1]
        """For each variable, how many with containers come before it: its place on an object."""
        self._arrays = tuple((i, v.name, v.array) for i, v in enumerate(self._variables) if v.array is not None)
        self.array_bytes = sum(node.nbytes for _, _, node in self._arrays)
        """Of the arrays of a key."""
        self.images_are_values = not self._arrays and all(v.encode is None for v in self._variables)
        """Whether an image is no more than what the attributes hold."""
        self.timed = any(v.timers for v in self._variables)
        """Whether keys have timers."""
        expires = any(spec.ttl is not None for spec in self.specs)
        self.expiries = Expiries(self, self._variables, self._numbers) if expires else None
        """What expires of it; None: nothing."""
        self.scalars_only = self.images_are_values and not any(self.tracked)
        scope = self._scope()
        self.fill = function("fill(obj, journal)", self._fill_lines(), scope)
        self.image = self._image(scope)
        self.restore = function("restore(obj, image)", self._restore_lines(), scope)
        self.adopt = function("adopt(obj, journal)", self._adopt_lines(), scope)
        self.changed = self.differs = function("changed(obj, image)", self._changed_lines(), scope)
        if self.expiries is not None:
            self.differs = function("differs(obj, image)", self._changed_lines(self.expiries.hidden), scope)
        self.passes = passes(self)
        self.written = function("written(objs, images)", [f"return [{self._written()}]"], scope)

    @cached_property
    def gather(self) -> Callable[..., None] | None:
        """For layouts of small values alone: ``gather(objs, absent, keys, *columns)`` appends what a delta writes.

        One pass, because with millions of keys every look at an object is a cache miss. None for other layouts.
        """
        if not all(is_small(v.spec.type) and v.live is None and v.encode is None for v in self._variables):
            return None
        numbers = range(len(self._variables))
        differs = " or ".join(f"({self._differs(i, v)})" for i, v in enumerate(self._variables)) or "False"
        lines = [
            "for obj in objs:",
            "    image = obj._bedload_image",
            f"    if image is absent or {differs}:",
            "        add_key(obj._bedload_key)",
            *(f"        add{i}(obj.{v.name})" for i, v in enumerate(self._variables)),
        ]
        head = ["add_key = keys.append", *(f"add{i} = column{i}.append" for i in numbers)]
        columns = "".join(f", column{i}" for i in numbers)
        made: Callable[..., None] = function(f"gather(objs, absent, keys{columns})", [*head, *lines], self._scope())
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.specs,)

    def disown(self, objs: Iterable[Any]) -> None:
        """Objects go: their containers are of no key any more, also when another object gets the id of one."""
        if not self._containers:
            return
        for obj in objs:
            for name in self._containers:
                value = getattr(obj, name, None)
                if isinstance(value, Tracked):
                    object.__setattr__(value, "_bl_key", None)

    def reopen(self, objs: Iterable[Any]) -> None:
        """Operator code runs on sealed objects again: give it arrays to write into."""
        for _, name, _ in self._arrays:
            for obj in objs:
                setattr(obj, name, np.array(getattr(obj, name)))

    def take_over(self, layout: RecordLayout, objs: Iterable[Any], journal: Journal) -> None:
        """Objects get another layout of the same variables: containers learn whether reading counts."""
        pairs = zip(self._numbers, self._variables, layout._variables, strict=True)
        differ = [(n, new) for n, old, new in pairs if counts_reads(old.spec) != counts_reads(new.spec)]
        for number, variable in differ:
            for obj in objs:
                value = variable.plain(getattr(obj, variable.name))
                setattr(obj, variable.name, variable.take(value, journal, _place(obj, number)))

    def changes(self, obj: Any, image: tuple[Any, ...] | None) -> dict[str, Any]:
        """What a backup must write: for each changed variable a plain value, or a container's changes."""
        if image is None:
            return self.plain(obj)
        found = {}
        for variable, before in self._with(image):
            value = getattr(obj, variable.name)
            if not variable.changed(value, before):
                continue
            if value is before and isinstance(value, Tracked):
                found[variable.name] = value._bl_changes()
            else:
                found[variable.name] = variable.plain(value)
        return found

    def snapshot(self, obj: Any, image: tuple[Any, ...] | None) -> dict[str, Any]:
        """The committed values; without an image the key was not touched, and the current ones are."""
        if image is None:
            return self.plain(obj)
        return {variable.name: variable.committed(before) for variable, before in self._with(image)}

    def plain(self, obj: Any) -> dict[str, Any]:
        """The current values, sharing nothing that can change."""
        return {variable.name: variable.plain(getattr(obj, variable.name)) for variable in self._variables}

    def load_columns(self, objs: Sequence[Any], values: Mapping[str, Sequence[Any]], journal: Journal) -> None:
        """Install plain values on new objects, a column at a time; a variable without one gets its default."""
        for number, variable in zip(self._numbers, self._variables, strict=True):
            name, live = variable.name, variable.live
            if variable.array is not None:
                start = [variable.spec.fresh_default()] * len(objs) if name not in values else values[name]
                for obj, value in zip(objs, start, strict=True):
                    setattr(obj, name, frozen(value))
            elif name not in values:
                for obj in objs:
                    setattr(obj, name, variable.fresh(journal, _place(obj, number)))
            elif live is None:
                found = map(short, values[name]) if variable.timers else values[name]
                for obj, value in zip(objs, found, strict=True):
                    setattr(obj, name, value)
            else:
                for obj, value in zip(objs, values[name], strict=True):
                    setattr(obj, name, live.adopt(value, journal, None, _place(obj, number)))

    def check(self, obj: Any, key: Any = None) -> None:
        """Refuse values that cannot be encoded as declared; the error names variable, key and value."""
        for variable in self._variables:
            value = getattr(obj, variable.name)
            check_value(variable.spec, value if variable.live is None else variable.live.plain(value), key)

    def plain_value(self, name: str, obj: Any) -> Any:
        """One variable as a plain value; one that only a codec reads, as it is."""
        variable, value = self._variables[self.names.index(name)], getattr(obj, name)
        return value if variable.live is None else variable.live.plain(value)

    @cached_property
    def sort_out(self) -> Callable[..., None]:
        """``sort_out(objs, journal, absent, *takers)`` adopts the containers of objects, and hands out what is new.

        Arrays become what they are between epochs. Each variable of containers has two takers: of those that are new,
        and of those that have changed, unless its values were checked when they were given.
        """
        live = [(i, v) for i, v in enumerate(self._variables) if v.live is not None and not v.sealed]
        lines = ["for obj in objs:", "    image = obj._bedload_image", "    new = image is absent"]
        for i, v in live:
            lines += self._adopt_line(i, v)
            if not v.spec.checked:
                lines += [
                    f"    if new or x is not image[{i}]: fresh{i}(x)",
                    f"    elif {self._is_dirty(i, v)}: changed{i}(x)",
                ]
        lines += [f"    obj.{name} = settle{i}(obj.{name}, None if new else image[{i}])" for i, name, _ in self._arrays]
        names = "".join(f", fresh{i}, changed{i}" for i, v in live if not v.spec.checked)
        made: Callable[..., None] = function(
            f"sort_out(objs, journal, absent{names})", lines if live or self._arrays else [], self._scope()
        )
        return made

    def _with(self, image: tuple[Any, ...]) -> zip[tuple[_Variable, Any]]:
        return zip(self._variables, image, strict=True)

    # --- the generated functions: v0, v1, ... are the variables, d0, d1, ... shared defaults ---

    def _scope(self) -> dict[str, Any]:
        scope: dict[str, Any] = {"Tracked": Tracked, "mend": self._mend, "rooted": _rooted, "differ": differ}
        scope |= {f"settle{i}": partial(settled, node) for i, _, node in self._arrays}
        for i, variable in enumerate(self._variables):
            scope[f"v{i}"] = variable
            scope[f"encode{i}"], scope[f"decode{i}"] = variable.encode, variable.decode
            if variable.live is not None:
                scope[f"adopt{i}"], scope[f"differs{i}"] = variable.live.adopt, variable.live.differs
                scope[f"dirty{i}"] = variable.live.dirty
            if variable.encode is None:
                scope[f"d{i}"] = variable.spec.fresh_default()  # adopting copies, so one is enough
        return scope

    def _fill_lines(self) -> list[str]:
        lines = []
        for i, v in enumerate(self._variables):
            if v.live is not None:
                lines.append(f"obj.{v.name} = adopt{i}(d{i}, journal, None, id(obj) + {self._numbers[i]})")
            elif v.encode is not None:
                lines.append(f"obj.{v.name} = v{i}.fresh(journal, 0)")
            elif v.array is not None:
                lines.append(f"obj.{v.name} = d{i}.copy()")
            else:
                lines.append(f"obj.{v.name} = d{i}")
        return lines

    def _image(self, scope: dict[str, Any]) -> Callable[[Any], tuple[Any, ...]]:
        # attrgetter gives a tuple for two names or more, in one call that never leaves C.
        if len(self.names) > 1 and self.images_are_values:
            return attrgetter(*self.names)
        items = [
            f"obj.{v.name}" if v.encode is None else f"encode{i}(obj.{v.name})" for i, v in enumerate(self._variables)
        ]
        lines = [f"image = ({''.join(item + ', ' for item in items)})"]
        lines += [f"obj.{name} = image[{i}].copy()" for i, name, _ in self._arrays]
        made: Callable[[Any], tuple[Any, ...]] = function("image(obj)", [*lines, "return image"], scope)
        return made

    def _restore_lines(self) -> list[str]:
        return [
            f"obj.{v.name} = image[{i}]" if v.decode is None else f"obj.{v.name} = decode{i}(image[{i}])"
            for i, v in enumerate(self._variables)
        ]

    def _adopt_lines(self) -> list[str]:
        lines = []
        for i, v in enumerate(self._variables):
            if v.live is None:
                lines.append(f"    obj.{v.name}")  # raises if it was deleted
            else:
                lines += self._adopt_line(i, v)
        if not lines:
            return []
        return ["try:", *lines, "except AttributeError as error:", "    mend(obj, journal, error)"]

    @staticmethod
    def _is_dirty(i: int, variable: _Variable) -> str:
        return f"dirty{i}(x)" if isinstance(variable.spec.type, _WRAPPERS) else "x._bl_log is not None"

    def _adopt_line(self, i: int, variable: _Variable) -> list[str]:
        place = f"id(obj) + {self._numbers[i]}"
        return [
            f"    x = obj.{variable.name}",
            f"    if not (isinstance(x, Tracked) and x._bl_owner is None and x._bl_key == {place}):",
            f"        if not rooted(v{i}.spec.type, x, {place}):",
            f"            obj.{variable.name} = x = v{i}.take(x, journal, {place})",
        ]

    def _mend(self, obj: Any, journal: Journal, error: AttributeError) -> None:
        """Give deleted attributes their default, then adopt the rest."""
        missing = [(i, v) for i, v in zip(self._numbers, self._variables, strict=True) if not hasattr(obj, v.name)]
        if not missing:
            raise error
        for number, variable in missing:
            setattr(obj, variable.name, variable.fresh(journal, _place(obj, number)))
        self.adopt(obj, journal)

    def _changed_lines(self, but: Collection[str] = ()) -> list[str]:
        lines = ["if image is None: return True"]
        for i, v in enumerate(self._variables):
            if v.name in but:
                continue
            if v.live is not None:
                lines += [f"x = obj.{v.name}", f"if x is not image[{i}] or differs{i}(x): return True"]
            elif v.encode is not None:
                lines.append(f"if encode{i}(obj.{v.name}) != image[{i}]: return True")
            elif v.array is not None:
                lines.append(f"if differ(obj.{v.name}, image[{i}]): return True")
            else:
                lines += [
                    f"x, old = obj.{v.name}, image[{i}]",
                    "if x is not old and x != old: return True",
                ]
        return [*lines, "return False"]

    def _written(self) -> str:
        bits = [f"({1 << i} if {self._differs(i, v)} else 0)" for i, v in enumerate(self._variables)]
        return f"{' | '.join(bits) or '0'} for obj, image in zip(objs, images)"

    def _differs(self, i: int, variable: _Variable) -> str:
        name, node = variable.name, variable.spec.type
        if variable.encode is not None:
            return f"encode{i}(obj.{name}) != image[{i}]"
        if variable.array is not None:
            return f"differ(obj.{name}, image[{i}])"
        if variable.live is not None:
            test = "differs" if is_exact(node) and not variable.sealed else "dirty"
            return f"(x := obj.{name}) is not image[{i}] or {test}{i}(x)"
        other = f"(x := obj.{name}) is not image[{i}]"
        if is_exact(node):
            return f"{other} and x != image[{i}]"
        if node == ScalarNode(float):
            return f"{other} and (x != image[{i}] or not x)"  # of equal floats, only zeros are of two kinds
        return other


def _place(obj: Any, number: int) -> int:
    """Marks a container as the one of this variable of this object, without a reference cycle.

    SUBTLE: an object is at its id, and has more bytes than variables. So no other object's id is a place on it.
    """
    return id(obj) + number


def _rooted(node: TypeNode, value: Any, place: int) -> bool:
    """Whether a value needs no adopting: each container in it is tracked and belongs to this place."""
    if not node.mutable:
        return True
    if isinstance(node, OptionalNode):
        return value is None or _rooted(node.item, value, place)
    if isinstance(node, TupleNode):
        if not isinstance(value, tuple):
            return False
        nodes = node.items * len(value) if node.repeated else node.items
        return len(nodes) == len(value) and all(_rooted(n, v, place) for n, v in zip(nodes, value, strict=True))
    return isinstance(value, Tracked) and value._bl_owner is None and bool(value._bl_key == place)
