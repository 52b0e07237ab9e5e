"""Values of one declared type as values of another, a column at a time.

Invariants: a conversion is found or refused before a value is read, and a refusal says why and what to do; a conversion
loses nothing; buffers that need no change are shared.

None stands for a conversion that has nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bedload.checkpoint.records import Variable
from bedload.checkpoint.shapes import FieldShape, Shape, ShapeKind, unpack_value
from bedload.state.arrays import flat_values, nested
from bedload.state.kinds import VariableKind

Convert: TypeAlias = Callable[[pa.Array], pa.Array]


class Refused(Exception):
    """Why a type cannot become another one."""


class Inexact(Exception):
    """A value that the new type does not have."""


# --- names ---


def renames(named: Iterable[Variable | FieldShape]) -> dict[str, str | None]:
    """Names, and what each was declared to be renamed from."""
    return {one.name: one.renamed_from for one in named}


def origins_of(
    stored: Mapping[str, str | None], wanted: Mapping[str, str | None]
) -> tuple[dict[str, str | None], dict[str, str]]:
    """For each wanted name the stored one, or None; and what is doubtful. Both map a name to what it was renamed from.

    A declaration that the stored schema has as well was carried out then.
    """
    moved = {
        name: former
        for name, former in wanted.items()
        if former is not None and former in stored and stored.get(name) != former
    }
    taken = set(moved.values())
    doubts = {
        name: f"renamed_from={former!r}, but {name!r} is stored as well as {former!r}: remove one of them first"
        for name, former in moved.items()
        if name in stored and name not in taken
    }
    kept = {name: name for name in wanted if name in stored and name not in taken}
    return {name: moved.get(name, kept.get(name)) for name in wanted}, doubts


# --- types ---


def conversion(old: Variable, new: Variable) -> Convert | None:
    """How the column of a stored variable becomes that of a wanted one. Raises :class:`Refused`."""
    kind = new.field.type
    if VariableKind.COLUMN in (old.kind, new.kind):
        return _column(old, new)
    if old.shape is None or new.shape is None:
        if old.type == new.type and old.field.type == kind:
            return None
        raise Refused("the checkpoint does not say what its type is made of; declare it as it was")
    return _compile(old.shape, new.shape, kind)


def _column(old: Variable, new: Variable) -> Convert | None:
    was, kind = old.field.type, new.field.type
    if old.kind != new.kind:
        raise Refused("a column and a variable of an Operator do not become each other")
    if _nullable(old) and not _nullable(new):
        raise Refused("stored values may be null; let it start with None again")
    if was == kind:
        return None
    if not _wider(was, kind):
        raise Refused("not every value of the old type is one of the new type; keep the type, or add a column")
    return lambda column: _exactly(column, kind)


def _nullable(variable: Variable) -> bool:
    """Of a column, which is so if it starts with null."""
    return variable.default is not None and unpack_value(variable.default, variable.field.type).null_count == 1


def _wider(was: pa.DataType, kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_signed_integer(was) and types.is_signed_integer(kind):
        return bool(was.bit_width < kind.bit_width)
    if types.is_floating(was) and types.is_floating(kind):
        return bool(was.bit_width < kind.bit_width)
    if types.is_integer(was) and types.is_float64(kind):
        return True  # those that have no float are found value by value
    if types.is_decimal(was) and types.is_decimal(kind):
        return bool(was.scale <= kind.scale and was.precision - was.scale <= kind.precision - kind.scale)
    return False


def _compile(old: Shape, new: Shape, kind: pa.DataType) -> Convert | None:
    """How values of one shape become values of another, which has this Arrow type."""
    if new.kind is ShapeKind.OPTIONAL:
        return _compile(old.items[0] if old.kind is ShapeKind.OPTIONAL else old, new.items[0], kind)
    if old.kind is ShapeKind.OPTIONAL:
        raise Refused("stored values may be None; keep `| None`")
    if old.kind is ShapeKind.INT and new.kind is ShapeKind.FLOAT:
        return lambda column: _exactly(column, kind)
    if old.kind != new.kind:
        raise Refused(f"{old} does not become {new}; keep the type, or add a variable")
    match new.kind:
        case ShapeKind.OPAQUE:
            if (old.codec, old.name) != (new.codec, new.name):
                raise Refused("only its codec can read it; keep type and codec, or add a variable")
            return None
        case ShapeKind.DATACLASS:
            return _compile_dataclass(old, new, kind)
        case ShapeKind.ARRAY:
            return _compile_array(old, new)
        case ShapeKind.TUPLE:
            return _compile_tuple(old, new, kind)
        case ShapeKind.DICT | ShapeKind.COUNTER:
            return _compile_map(old, new, kind)
        case ShapeKind.FREE_DEQUE:
            inner = _compile_list(old, new, kind.field("items").type)
            if inner is None:
                return None
            return lambda column: with_fields(kind, column, [inner(column.field("items")), column.field("maxlen")])
        case ShapeKind.LIST | ShapeKind.SET | ShapeKind.DEQUE | ShapeKind.REPEATED:
            return _compile_list(old, new, kind)
    return None  # one scalar


def _compile_array(old: Shape, new: Shape) -> Convert | None:
    if old.dims != new.dims:
        raise Refused("an array keeps its shape; keep it, or add a variable")
    if old.name == new.name:
        return None
    if not np.can_cast(old.name, new.name, "safe"):
        raise Refused(f"not every {old.name} is a {new.name}; keep the dtype, or add a variable")
    kind = pa.from_numpy_dtype(np.dtype(new.name))

    def convert(column: pa.Array) -> pa.Array:
        flat = flat_values(column)
        # Arrow makes no short floats of booleans.
        return nested(_exactly(flat.cast(pa.uint8()) if old.name == "bool" else flat, kind), new.dims)

    return convert


def _compile_list(old: Shape, new: Shape, kind: pa.DataType) -> Convert | None:
    inner = _compile(old.items[0], new.items[0], kind.value_type)
    most = new.maxlen
    if most is not None and old.maxlen is not None and old.maxlen <= most:
        most = None
    if inner is None and most is None:
        return None

    def convert(column: pa.Array) -> pa.Array:
        if most is not None:
            column = _last(column, most)
        return column if inner is None else with_entries(kind, column, inner(column.values))

    return convert


def _compile_map(old: Shape, new: Shape, kind: pa.DataType) -> Convert | None:
    was_list, is_list = old.items[0].kind is ShapeKind.OPTIONAL, new.items[0].kind is ShapeKind.OPTIONAL
    fields = list(kind.value_type) if is_list else [kind.key_field, kind.item_field]
    try:
        keys = _compile(old.items[0], new.items[0], fields[0].type)
    except Refused as why:
        raise Refused(f"keys: {why}") from None
    values = None if new.kind is ShapeKind.COUNTER else _compile(old.items[1], new.items[1], fields[1].type)
    if keys is None and values is None and was_list == is_list:
        return None

    def convert(column: pa.Array) -> pa.Array:
        of = (column.values.field("key"), column.values.field("value")) if was_list else (column.keys, column.items)
        made = [of[0] if keys is None else keys(of[0]), of[1] if values is None else values(of[1])]
        return with_entries(kind, column, pa.StructArray.from_arrays(made, fields=fields))

    return convert


def _compile_tuple(old: Shape, new: Shape, kind: pa.DataType) -> Convert | None:
    if len(old.items) != len(new.items):
        raise Refused(f"a tuple of {len(old.items)} does not become one of {len(new.items)}; add a variable")
    pairs = zip(old.items, new.items, strict=True)
    inner = [_compile(o, n, kind.field(i).type) for i, (o, n) in enumerate(pairs)]
    if not any(inner):
        return None
    return lambda column: with_fields(
        kind, column, [_with(convert, column.field(i)) for i, convert in enumerate(inner)]
    )


def _compile_dataclass(old: Shape, new: Shape, kind: pa.DataType) -> Convert | None:
    was, now = {one.name: one for one in old.fields}, {one.name: one for one in new.fields}
    origins, doubts = origins_of(renames(old.fields), renames(new.fields))
    for name, doubt in doubts.items():
        raise Refused(f"field {name!r} of {new}: {doubt}")
    gone = [name for name in was if name not in origins.values()]
    if gone:
        raise Refused(
            f"field {gone[0]!r} of {old} is stored, and {new} does not have it; keep it, or say what it is called now: "
            f"field(metadata={{'renamed_from': {gone[0]!r}}})"
        )
    made: list[tuple[str | None, Any]] = []
    for name, origin in origins.items():
        of = kind.field(name).type
        if origin is not None:
            try:
                made.append((origin, _compile(was[origin].shape, now[name].shape, of)))
            except Refused as why:
                raise Refused(f"field {name!r} of {new}: {was[origin].shape} → {now[name].shape}: {why}") from None
            continue
        default = now[name].default
        if default is None:
            raise Refused(f"field {name!r} of {new} is new, and has no default that fits its type; give it one")
        made.append((None, unpack_value(default, of)))
    if [origin for origin, _ in made] == list(now) == list(was) and not any(inner for _, inner in made):
        return None

    def convert(column: pa.Array) -> pa.Array:
        everywhere = pa.array(np.zeros(len(column), np.int64))
        children = [
            inner.take(everywhere) if origin is None else _with(inner, column.field(origin)) for origin, inner in made
        ]
        return with_fields(kind, column, children)

    return convert


def _with(convert: Convert | None, column: pa.Array) -> pa.Array:
    return column if convert is None else convert(column)


def _exactly(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Numbers as a type that has them, if it does."""
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        # Arrow refuses all integers from 2**53 on, although floats have many of them.
        made = column.cast(kind, safe=False)
        differ = pc.not_equal(made.cast(column.type, safe=False), column)
        if pa.types.is_integer(column.type):
            # Some processors make of the float after the largest integer that integer again.
            beyond = 2.0 ** (column.type.bit_width - pa.types.is_signed_integer(column.type))
            differ = pc.or_(differ, pc.equal(made, beyond))
        wrong = column.filter(differ)
        if len(wrong):
            raise Inexact(f"it holds {wrong[0].as_py()}, which no float equals") from None
        return made


def with_fields(kind: pa.DataType, column: pa.Array, children: Sequence[pa.Array]) -> pa.Array:
    """The structs of a column with other fields."""
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def with_entries(kind: pa.DataType, column: pa.Array, child: pa.Array) -> pa.Array:
    """The lists or maps of a column with other entries, as many as before."""
    return pa.Array.from_buffers(kind, len(column), column.buffers()[:2], -1, column.offset, [child])


def _last(column: pa.Array, most: int) -> pa.Array:
    """The last entries of each list."""
    lengths = pc.list_value_length(column).fill_null(0).to_numpy().astype(np.int64)
    kept = np.minimum(lengths, most)
    if (kept == lengths).all():
        return column
    ends = column.offsets.to_numpy()[1:].astype(np.int64)
    bounds = np.concatenate(([0], np.cumsum(kept)))
    rows = np.arange(bounds[-1]) + np.repeat(ends - kept - bounds[:-1], kept)
    mask = column.is_null() if column.null_count else None
    offsets = pa.array(bounds.astype(np.int32))
    return pa.ListArray.from_arrays(offsets, column.values.take(pa.array(rows)), type=column.type, mask=mask)
