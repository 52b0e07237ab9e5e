"""State types that behave like Python's own, tracked by one mechanism: the before-image log.

A declaration (``bl.list(maxlen=20)``) and an annotation make a frozen :class:`StateSpec`. A
:class:`RecordLayout` puts the variables on per-key objects: scalars as plain attributes, containers as
tracked subclasses of the builtins. A :class:`Journal` knows what changed in the epoch, and commits or
aborts it. :mod:`codec <bedload.state.codec>` turns plain values into typed Arrow columns and back.

What is not seen: C code that writes into a builtin past its methods, above all ``heapq`` on a list.
Work on a plain copy there and assign it back: ``h = self.heap[:]; heappush(h, x); self.heap = h``.
"""

from bedload.state import codec, tracked_struct  # noqa: F401 - registers the family of dataclasses
from bedload.state.changes import (
    Changes,
    MapChanges,
    SequenceChanges,
    SetChanges,
    StructChanges,
    apply_changes,
)
from bedload.state.journal import Journal, Tracked
from bedload.state.record import RecordLayout
from bedload.state.specs import Declaration, StateSpec, build_specs, counter, deque, value
from bedload.state.specs import list_ as list  # noqa: A004 - public as bl.list
from bedload.state.specs import map_ as map  # noqa: A004 - public as bl.map
from bedload.state.specs import set_ as set  # noqa: A004 - public as bl.set
from bedload.state.tracked_deque import TrackedDeque
from bedload.state.tracked_list import TrackedList
from bedload.state.tracked_map import TrackedCounter, TrackedMap
from bedload.state.tracked_set import TrackedSet
from bedload.state.types import TypeNode

__all__ = [
    "Changes",
    "Declaration",
    "Journal",
    "MapChanges",
    "RecordLayout",
    "SequenceChanges",
    "SetChanges",
    "StateSpec",
    "StructChanges",
    "Tracked",
    "TrackedCounter",
    "TrackedDeque",
    "TrackedList",
    "TrackedMap",
    "TrackedSet",
    "TypeNode",
    "apply_changes",
    "build_specs",
    "codec",
    "counter",
    "deque",
    "list",
    "map",
    "set",
    "value",
]
