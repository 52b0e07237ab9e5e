"""Patches of single variables, applied to encoded values as Arrow holds them, so that no class of the user's is needed.

What a patch looks like, and how it is packed, is in :mod:`bedload.state.patches`, which writes them. Here they are
applied to what Arrow's ``to_pylist`` gives, many patches of a value at a time.

Invariants: applying the patches of an epoch to the encoded value of before gives the encoded value of after, the order
of a dict included; what a patch does not name is the same object as before.

Entries are found by the equality of their encoded keys, in which NaN equals NaN and minus zero equals zero. (Where
equal keys may be encoded in two ways, as decimals are, the writer writes the whole value.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from bedload.core.errors import CheckpointDamaged, StateTypeError
from bedload.state.patches import unpack_patches

Convert: TypeAlias = Callable[[Any], Any]

_NAN = object()


def decode_patch(data: bytes) -> dict[str, list[Any] | None]:
    """Which variables a PATCH row changes, and how."""
    try:
        decoded: Any = unpack_patches(data)
    except (msgspec.MsgspecError, StateTypeError) as bad:
        raise CheckpointDamaged(f"a patch cannot be read: {bad}") from bad
    if not isinstance(decoded, dict):
        raise CheckpointDamaged(f"a patch is a {type(decoded).__name__} and not a map of variables")
    found: dict[str, list[Any] | None] = decoded
    return found


def apply_patches(kind: pa.DataType, value: Any, patches: Sequence[list[Any]]) -> Any:
    """The encoded value after these patches, oldest first."""
    if value is None:
        raise CheckpointDamaged(f"a patch of {patches[0][0]!r} meets a variable that is null")
    done = 0
    try:
        while done < len(patches):
            # Patches of one form go together, so that a large container is taken apart and built once.
            form, end = patches[done][0], done + 1
            while end < len(patches) and patches[end][0] == form:
                end += 1
            value = _FORMS[form](kind, value, patches[done:end])
            done = end
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as bad:
        raise CheckpointDamaged(f"a patch {patches[done]!r:.200} does not fit a value of type {kind}: {bad}") from bad
    return value


def _map(kind: pa.DataType, value: Any, patches: Sequence[list[Any]]) -> Any:
    as_list = not pa.types.is_map(kind)
    if as_list:
        key_type, item_type = kind.value_type.field("key").type, kind.value_type.field("value").type
        pairs = [(entry["key"], entry["value"]) for entry in value]
    else:
        key_type, item_type, pairs = kind.key_type, kind.item_type, value
    to_key, to_item, identity = from_message(key_type), from_message(item_type), _identity(key_type)
    entries = {identity(key): (key, item) for key, item in pairs}
    for _, removed, put in patches:
        for key in removed:
            entries.pop(identity(to_key(key)), None)
        for key, item in put:
            known = to_key(key)
            name = identity(known)
            # As in a dict, the key that came first stays.
            entries[name] = (entries[name][0] if name in entries else known, to_item(item))
    if as_list:
        return [{"key": key, "value": item} for key, item in entries.values()]
    return list(entries.values())


def _set(kind: pa.DataType, value: Any, patches: Sequence[list[Any]]) -> Any:
    to_item, identity = from_message(kind.value_type), _identity(kind.value_type)
    items = {identity(item): item for item in value}
    for _, added, removed in patches:
        for item in map(to_item, removed):
            items.pop(identity(item), None)
        for item in map(to_item, added):
            items.setdefault(identity(item), item)
    return list(items.values())


def _sequence(kind: pa.DataType, value: Any, patches: Sequence[list[Any]]) -> Any:
    if pa.types.is_struct(kind):  # a deque that carries its own maxlen
        return {**value, "items": _sequence(kind.field("items").type, value["items"], patches)}
    to_item = from_message(kind.value_type)
    items: list[Any] = value
    for _, start, kept, head, tail, replaced in patches:
        if not 0 <= start <= start + kept <= len(items):
            raise IndexError(f"it keeps {kept} from position {start} of {len(items)} items")
        middle = items[start : start + kept]
        for index, item in replaced:
            middle[index] = to_item(item)
        items = [*map(to_item, head), *middle, *map(to_item, tail)]
    return items


def _struct(kind: pa.DataType, value: Any, patches: Sequence[list[Any]]) -> Any:
    fields = dict(value)
    for _, changed, deleted in patches:
        for name, item in changed.items():
            fields[name] = from_message(kind.field(name).type)(item)
        for name in deleted:
            fields[name] = None
    return fields


_FORMS: dict[Any, Callable[[pa.DataType, Any, Sequence[list[Any]]], Any]] = {
    "map": _map,
    "set": _set,
    "seq": _sequence,
    "struct": _struct,
}


# --- what came through MessagePack, as Arrow takes it ---


@cache
def from_message(kind: pa.DataType) -> Convert:
    """Turns what was unpacked into what Arrow takes: MessagePack has no tuples, and entries of a map must be some."""
    return _converter(kind) or _as_is


def _as_is(value: Any) -> Any:
    return value


def _converter(kind: pa.DataType) -> Convert | None:
    """None if MessagePack gives it as Arrow takes it."""
    if pa.types.is_map(kind):
        key, item = from_message(kind.key_type), from_message(kind.item_type)
        return _optional(lambda entries: [(key(k), item(v)) for k, v in entries])
    if pa.types.is_struct(kind):
        fields = [(field.name, made) for field in kind if (made := _converter(field.type)) is not None]
        if not fields:
            return None
        return _optional(lambda value: {**value, **{name: made(value[name]) for name, made in fields}})
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        made = _converter(kind.value_type)
        return None if made is None else _optional(lambda items: [made(item) for item in items])
    return None


def _optional(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


# --- what makes two encoded keys the same ---


@cache
def _identity(kind: pa.DataType) -> Convert:
    """Turns an encoded value into one with a hash, the same for equal keys."""
    if pa.types.is_floating(kind):
        return lambda value: _NAN if value != value else value
    if pa.types.is_struct(kind):
        parts = [(field.name, _identity(field.type)) for field in kind]
        return _optional(lambda value: tuple(part(value[name]) for name, part in parts))
    if pa.types.is_list(kind):
        part = _identity(kind.value_type)
        return _optional(lambda items: tuple(map(part, items)))
    return _as_is
