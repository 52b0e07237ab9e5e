"""What a container said that changed, applied to a copy: how tests show that nothing was left out."""

import collections
import dataclasses
from typing import Any

from bedload.state.changes import MapChanges, SequenceChanges, SetChanges, StructChanges
from bedload.state.journal import MISSING


def apply_changes(target: Any, changes: Any) -> Any:
    """Apply what changed to a plain or tracked value, in place where it can be, and give the result."""
    if isinstance(changes, MapChanges):
        for key in changes.removed:
            dict.pop(target, key, None) if type(target) is dict else target.pop(key, None)
        if isinstance(target, collections.Counter):
            for key, value in changes.put.items():
                target[key] = value
        else:
            target.update(changes.put)
        return target
    if isinstance(changes, SetChanges):
        target.difference_update(changes.removed)
        target.update(changes.added)
        return target
    if isinstance(changes, SequenceChanges):
        return _apply_sequence(target, changes)
    if isinstance(changes, StructChanges):
        for name, value in changes.fields.items():
            if value is MISSING:
                object.__delattr__(target, name)
            elif dataclasses.is_dataclass(target) and _frozen(target):
                object.__setattr__(target, name, value)
            else:
                setattr(target, name, value)
        return target
    return changes


def _frozen(target: Any) -> bool:
    return bool(type(target).__dataclass_params__.frozen)


def _apply_sequence(target: Any, changes: SequenceChanges) -> Any:
    end = changes.start + changes.kept
    if isinstance(target, list):
        del target[end:]
        del target[: changes.start]
        for index, value in changes.items.items():
            target[index] = value
        target[:0] = changes.head
        target.extend(changes.tail)
        return target
    for _ in range(len(target) - end):
        target.pop()
    for _ in range(changes.start):
        target.popleft()
    for index, value in changes.items.items():
        target[index] = value
    target.extendleft(reversed(changes.head))
    target.extend(changes.tail)
    return target
