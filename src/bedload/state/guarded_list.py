"""Lists that C code does not accept as lists.

``heapq`` and other C code write into a list past its methods, so a tracked list would not see it: the change would be
neither rolled back nor written to a backup. C code may do so with whatever has the flag of ``list`` and its
subclasses in its type, and refuses everything else with a ``TypeError``. So tracked lists do not have that flag. To
Python code they stay subclasses of ``list``: ``isinstance``, iteration, indexing and the methods do not ask for it.

What it costs: C code that only reads, and insists on the flag, refuses them too. That is ``json.dumps`` and the like,
which take a copy: ``json.dumps(self.items[:])``. Comparisons, ``+`` and iteration ask for it as well, and are written
again in :mod:`bedload.state.tracked_list`; an iterator goes through the list as it was when it was made.

Why not a check at the seal: it would have to look at every list of every key that has rows, and know what was in it.

The flag is found where the interpreter keeps it, by looking for the word of a type object that is its ``__flags__``.
Where that is not found, lists are left as they are.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Final

LIST_SUBCLASS: Final = 1 << 25
"""``Py_TPFLAGS_LIST_SUBCLASS``, part of Python's stable ABI."""

_WORD = ctypes.sizeof(ctypes.c_ulong)


def guard(*classes: type[Any]) -> None:
    """Take the flag of lists from classes."""
    at = _place_of_flags()
    if at is None:
        return
    for cls in classes:
        word = ctypes.c_ulong.from_address(id(cls) + at)
        word.value &= ~LIST_SUBCLASS
        assert not cls.__flags__ & LIST_SUBCLASS


@cache
def _place_of_flags() -> int | None:
    """Where in a type object its flags are; None if that cannot be said for sure."""
    samples = (int, list, dict, str, tuple, type, object, type("Sample", (), {}), type("Items", (list,), {}))
    found = [
        at
        for at in range(0, object.__basicsize__ + 64 * _WORD, _WORD)
        if all(ctypes.c_ulong.from_address(id(cls) + at).value == cls.__flags__ for cls in samples)
    ]
    return found[0] if len(found) == 1 and list.__flags__ & LIST_SUBCLASS else None
