"""State on its way out of a store and back in: the same Arrow forms for every layout.

*State form*: ``bedload_group``, the key columns ``bedload_key_0``…, and one typed column per state variable.

*Delta form*, what one epoch changed: the same, with ``bedload_op`` behind the key group, and ``bedload_patch`` at the
end if some row is a PATCH. Of a PUT row the variables are the key's whole state. Of a PATCH row the patch says which
variables changed, and how (:mod:`bedload.state.patches`). Of a REMOVE row they are null.

Invariants: a batch is sorted by key group and names a key once; it shares nothing with live state.

Why operators whose variables are all small always write PUT rows: a patch would cost more than what it leaves out, and
columns are made without a Python object per key.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from itertools import compress, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import ProtocolError, StateTypeError
from bedload.core.ids import KeyGroup
from bedload.keys.kinds import value_type
from bedload.state import Changes, RecordLayout, StateSpec, codec
from bedload.state.arrow import arrow_type, decoded_column
from bedload.state.encoded import encoded_column
from bedload.state.kinds import VariableKind
from bedload.state.lasting import times_patch
from bedload.state.number_columns import NumberColumns
from bedload.state.patches import Patch, has_patches, pack_patches, patch_encoder
from bedload.state.types import OpaqueNode, OptionalNode, StructNode

GROUP = "bedload_group"
OP = "bedload_op"
PATCHES = "bedload_patch"

PUT, PATCH, REMOVE = 0, 1, 2
"""What a row of a delta is: the key's whole state, changes of some variables, or the end of the key."""

Groups = npt.NDArray[np.int16]


def key_column(position: int) -> str:
    """The name of a key column."""
    return f"bedload_key_{position}"


class StateVariable(NamedTuple):
    """A state variable as it is written down for those who do not have the operator's code."""

    name: str
    kind: VariableKind
    type: str
    """Its declared type, as text."""
    field: pa.Field
    """Its column."""


def describe(specs: Sequence[StateSpec]) -> tuple[StateVariable, ...]:
    """The variables of an operator on rows."""
    return tuple(
        StateVariable(spec.name, _kind(spec), str(spec.type), field)
        for spec, field in zip(specs, codec.arrow_schema(specs), strict=True)
    )


def _kind(spec: StateSpec) -> VariableKind:
    node = spec.type.item if isinstance(spec.type, OptionalNode) else spec.type
    if isinstance(node, StructNode):
        return VariableKind.STRUCT
    return VariableKind.OPAQUE if isinstance(node, OpaqueNode) else spec.kind


# --- both layouts ---


def delta_batch(
    groups: npt.NDArray[np.integer[Any]],
    ops: npt.NDArray[np.int8],
    keys: Sequence[pa.Array],
    variables: dict[str, pa.Array],
    patches: pa.Array | None = None,
) -> pa.RecordBatch:
    """A delta from its columns, sorted by key group."""
    columns = {GROUP: pa.array(groups, pa.int16()), OP: pa.array(ops, pa.int8())}
    columns |= {key_column(i): key for i, key in enumerate(keys)} | variables
    if patches is not None:
        columns[PATCHES] = patches
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return sorted_by_group(batch, groups)


def sorted_by_group(batch: pa.RecordBatch, groups: npt.NDArray[np.integer[Any]]) -> pa.RecordBatch:
    """The batch in the order of these key groups; rows of a group stay in theirs."""
    if (groups[1:] >= groups[:-1]).all():
        return batch
    # SUBTLE: a stable sort of 16-bit integers is a radix sort, several times as fast as of wider ones.
    return batch.take(pa.array(np.argsort(groups.astype(np.int16), kind="stable")))


class Installable(NamedTuple):
    """A batch in state form, taken apart."""

    groups: Groups
    spans: list[tuple[KeyGroup, int, int]]
    """Each key group that has rows, with its first row and the row after its last."""
    keys: list[pa.Array]
    state: pa.RecordBatch


def installable(state: pa.RecordBatch, keys: int, groups: Collection[KeyGroup]) -> Installable:
    """Check that a batch is in state form with so many key columns, and holds nothing but these key groups."""
    names = [GROUP, *map(key_column, range(keys))]
    missing = [name for name in names if name not in state.schema.names]
    if missing:
        raise ProtocolError(
            f"state cannot be installed without the columns {', '.join(missing)}; "
            f"it has {', '.join(state.schema.names)}"
        )
    column: Groups = state.column(GROUP).to_numpy(zero_copy_only=False)
    state = sorted_by_group(state, column)
    column = state.column(GROUP).to_numpy(zero_copy_only=False)
    known = sorted(set(groups))
    firsts, ends = (np.searchsorted(column, np.array(known, column.dtype), side) for side in ("left", "right"))
    found = [span for span in zip(known, firsts.tolist(), ends.tolist(), strict=True) if span[1] < span[2]]
    if sum(end - first for _, first, end in found) < len(column):
        other = int(np.setdiff1d(column, np.array(known, np.int64))[0])
        raise ProtocolError(f"state of key group {other} came with an install of other key groups")
    return Installable(column, found, [state.column(name) for name in names[1:]], state)


class Incoming(NamedTuple):
    """A batch of whole keys in delta form, taken apart: the keys with state, and those that have none any more."""

    groups: Groups
    keys: list[pa.Array]
    state: pa.RecordBatch
    gone_groups: Groups
    gone_keys: list[pa.Array]


def incoming(state: pa.RecordBatch, keys: int) -> Incoming:
    """Check that a batch is in delta form with so many key columns, and that each of its rows is a whole key."""
    names = [GROUP, OP, *map(key_column, range(keys))]
    missing = [name for name in names if name not in state.schema.names]
    if missing:
        raise ProtocolError(
            f"state cannot be taken in without the columns {', '.join(missing)}; it has {', '.join(state.schema.names)}"
        )
    state = sorted_by_group(state, state.column(GROUP).to_numpy(zero_copy_only=False))
    ops = state.column(OP).to_numpy(zero_copy_only=False)
    removed = ops == REMOVE
    if not ((ops == PUT) | removed).all():
        raise ProtocolError("state cannot be taken in as patches: only PUT and REMOVE rows are whole keys")
    if not removed.any():
        put, gone = state, state.slice(0, 0)
    else:
        put, gone = state.filter(pa.array(~removed)), state.filter(pa.array(removed))
    (groups, found), (gone_groups, gone_keys) = (
        (part.column(GROUP).to_numpy(zero_copy_only=False), [part.column(name) for name in names[2:]])
        for part in (put, gone)
    )
    return Incoming(groups, found, put, gone_groups, gone_keys)


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of one schema, of which there is at least one, as one."""
    if len(batches) == 1:
        return batches[0]
    names, columns = batches[0].schema.names, zip(*(batch.columns for batch in batches), strict=True)
    return pa.RecordBatch.from_arrays([pa.concat_arrays(parts) for parts in columns], names=names)


def spans(groups: Groups) -> list[tuple[KeyGroup, int, int]]:
    """Each key group of a sorted column, with its first row and the row after its last."""
    if not len(groups):
        return []
    cuts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
    return [(KeyGroup(int(groups[first])), first, end) for first, end in pairwise(cuts)]


# --- rows ---


class Written(NamedTuple):
    """What an epoch changed in one key group of rows; all lists are of live objects and their before-images."""

    group: KeyGroup
    created: list[Any]
    changed: list[Any]
    images: list[tuple[Any, ...]]
    """Of ``changed``."""
    masks: list[int]
    """Of ``changed``: which variables, as bits."""
    removed: list[Any]
    """Keys."""


def rows_delta(
    layout: RecordLayout, written: Sequence[Written], key_types: Sequence[pa.DataType]
) -> pa.RecordBatch | None:
    """The delta of key groups in ascending order; None if nothing changed."""
    rows: list[Any] = []
    for part in written:
        rows += part.created
        rows += part.changed
    gone = [key for part in written for key in part.removed]
    if not rows and not gone:
        return None
    keys = list(map(_key_of, rows))
    columns, ops, patches = _patched(layout, written, rows, keys)
    numbers = [part.group for part in written]
    groups = np.repeat(numbers, [len(part.created) + len(part.changed) for part in written])
    if gone:
        groups = np.concatenate((groups, np.repeat(numbers, [len(part.removed) for part in written])))
        ops = np.concatenate((ops, np.full(len(gone), REMOVE, np.int8)))
        columns = {name: _extended(column, len(gone)) for name, column in columns.items()}
        patches = None if patches is None else _extended(patches, len(gone))
    return delta_batch(groups, ops, key_arrays(keys + gone, key_types), columns, patches)


def rows_state(
    layout: RecordLayout,
    numbers: NumberColumns,
    rows: Sequence[Any],
    keys: list[Any],
    groups: Groups,
    key_types: Sequence[pa.DataType],
) -> pa.RecordBatch:
    """The whole sealed state of objects in delta form; a key whose object is None is removed."""
    there = [row is not None for row in rows]
    gone = [] if all(there) else [key for key, has in zip(keys, there, strict=True) if not has]
    ops = np.zeros(len(keys), np.int8)
    if gone:
        rows, keys = list(compress(rows, there)), [*compress(keys, there), *gone]
        mask = np.array(there)
        groups = np.concatenate((groups[mask], groups[~mask]))
        ops[len(rows) :] = REMOVE
    columns, made = {}, numbers.of(rows)
    for spec in layout.specs:
        column = made.get(spec.name)
        if column is None:
            column = whole_column(spec, list(map(attrgetter(spec.name), rows)), keys[: len(rows)])
        columns[spec.name] = _extended(column, len(gone)) if gone else column
    return delta_batch(groups, ops, key_arrays(keys, key_types), columns)


def key_arrays(keys: Sequence[Any], types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Keys as :func:`~bedload.keys.freeze_keys` made them, back as columns."""
    parts: Any = [keys] if len(types) == 1 else list(zip(*keys, strict=True)) or [()] * len(types)
    return [pa.array(part, value_type(kind)) for part, kind in zip(parts, types, strict=True)]


def plain_columns(specs: Sequence[StateSpec], state: pa.RecordBatch) -> dict[str, list[Any]]:
    """The plain values of the variables that a batch has."""
    found = {}
    for spec in specs:
        if spec.name not in state.schema.names:
            continue
        column = state.column(spec.name)
        if not column.type.equals(arrow_type(spec.type)):
            raise StateTypeError(
                f"state variable {spec.name!r} is stored as {column.type}, but {spec.type} is declared; "
                "declare the type that it was stored with"
            )
        found[spec.name] = decoded_column(spec.type, column)
    return found


_key_of = attrgetter("_bedload_key")


def whole_column(
    spec: StateSpec, values: list[Any], keys: Sequence[Any], rows: int | None = None, at: Any = ()
) -> pa.Array:
    """A column of whole values; with ``rows`` it is so long, null but for the rows ``at``."""
    try:
        return encoded_column(spec.type, values, rows, at)
    except (StateTypeError, ValueError, TypeError, OverflowError, pa.ArrowException):
        # The slow way finds which one it is, and names it with its key.
        codec.encode((spec,), [{spec.name: value} for value in values], keys)
        raise


def _extended(column: pa.Array, nulls: int) -> pa.Array:
    return pa.concat_arrays([column, pa.nulls(nulls, column.type)])


def _patched(
    layout: RecordLayout, written: Sequence[Written], rows: list[Any], keys: list[Any]
) -> tuple[dict[str, pa.Array], npt.NDArray[np.int8], pa.Array | None]:
    """The columns of whole values, and for rows that are not whole the patches."""
    everything = (1 << len(layout.specs)) - 1
    masks: list[int] = []
    images: list[tuple[Any, ...] | None] = []
    for part in written:
        masks += [everything] * len(part.created)
        masks += part.masks
        images += [None] * len(part.created)
        images += part.images
    cells, patched = _cells(layout, rows, masks, images, keys)
    columns = {}
    for i, spec in enumerate(layout.specs):
        at = [row for row, mask in enumerate(masks) if mask >> i & 1]
        if patched[i]:
            at = [row for row in at if row not in patched[i]]
        values = list(map(attrgetter(spec.name), map(rows.__getitem__, at)))
        columns[spec.name] = whole_column(spec, values, [keys[row] for row in at], len(rows), at)
    ops = np.fromiter((cell is not None for cell in cells), np.int8, len(cells))
    return columns, ops, pa.array(cells, pa.binary()) if ops.any() else None


def _cells(
    layout: RecordLayout,
    rows: list[Any],
    masks: list[int],
    images: list[tuple[Any, ...] | None],
    keys: list[Any],
) -> tuple[list[bytes | None], list[set[int]]]:
    """The packed patches of each row, None for a row that is whole; and by variable the rows with a patch of it."""
    everything = (1 << len(layout.specs)) - 1
    names = functools.cache(lambda mask: [name for i, name in enumerate(layout.names) if mask >> i & 1])
    unpatched = functools.cache(lambda mask: None if mask == everything else pack_patches(dict.fromkeys(names(mask))))
    cells: list[bytes | None] = list(map(unpatched, masks))
    found: list[set[int]] = [set() for _ in layout.specs]
    of_times = {} if layout.expiries is None else {it.expiry: it.name for it in layout.expiries.variables}
    containers = [
        (i, 1 << i, spec.name, attrgetter(spec.name), patch_encoder(spec.type), found[i].add, of_times.get(spec.name))
        for i, spec in enumerate(layout.specs)
        if has_patches(spec.type)
    ]
    if not containers:
        return cells, found
    for row, (obj, mask, image) in enumerate(zip(rows, masks, images, strict=True)):
        if image is None:
            continue
        patches: dict[str, Patch | None] = {}
        try:
            for i, bit, name, get, encode, add, entries in containers:
                # A container that was replaced is written whole, like one whose changes say that they are no less.
                if not mask & bit or (value := get(obj)) is not image[i]:
                    continue
                made = times_patch(of_map, value) if entries and (of_map := patches.get(entries)) else None
                if made is None and isinstance(changes := value._bl_changes(), Changes):
                    made = encode(changes)
                if made is not None:
                    patches[name] = made
                    add(row)
            if patches:
                cells[row] = pack_patches(dict.fromkeys(names(mask)) | patches)
        except StateTypeError as bad:
            raise StateTypeError(f"the state of key {keys[row]!r} ({', '.join(names(mask))}): {bad.message}") from None
    return cells, found
