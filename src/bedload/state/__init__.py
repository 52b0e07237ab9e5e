"""State types that behave like Python's own, tracked by one mechanism: the before-image log.

A declaration (``bl.list(maxlen=20)``) and an annotation make a frozen :class:`StateSpec`. A
:class:`RecordLayout` puts the variables on per-key objects: scalars as plain attributes, containers as
tracked subclasses of the builtins. A :class:`Journal` knows what changed in the epoch, and commits or
aborts it. :mod:`codec <bedload.state.codec>` turns plain values into typed Arrow columns and back.

C code that writes into lists past their methods, as ``heapq`` does, refuses tracked ones: a priority queue is a
``bl.heap()``.
"""

from bedload.state import codec, tracked_struct  # noqa: F401 - registers the family of dataclasses
from bedload.state.changes import (
    Changes,
    MapChanges,
    SequenceChanges,
    SetChanges,
    StructChanges,
)
from bedload.state.heap import Heap
from bedload.state.journal import Journal, Tracked
from bedload.state.record import RecordLayout
from bedload.state.specs import Declaration, StateSpec, array, build_specs, counter, deque, heap, value
from bedload.state.specs import list_ as list  # noqa: A004 - public as bl.list
from bedload.state.specs import map_ as map  # noqa: A004 - public as bl.map
from bedload.state.specs import set_ as set  # noqa: A004 - public as bl.set
from bedload.state.tracked_deque import TrackedDeque
from bedload.state.tracked_heap import TrackedHeap
from bedload.state.tracked_list import TrackedList
from bedload.state.tracked_map import TrackedCounter, TrackedMap
from bedload.state.tracked_set import TrackedSet
from bedload.state.types import TypeNode

__all__ = [
    "Changes",
    "Declaration",
    "Heap",
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
    "TrackedHeap",
    "TrackedList",
    "TrackedMap",
    "TrackedSet",
    "TypeNode",
    "array",
    "build_specs",
    "codec",
    "counter",
    "deque",
    "heap",
    "list",
    "map",
    "set",
    "value",
]
