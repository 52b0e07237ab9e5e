"""How the live values of a variable are handled: those of one with a TTL know what an epoch has written in them."""

from __future__ import annotations

from typing import Final

from bedload.state.handling import Handling, handling
from bedload.state.journal import differs, is_dirty
from bedload.state.kinds import VariableKind
from bedload.state.lasting import lasting_entries, times_of_entries
from bedload.state.lasting_sequences import lasting_items
from bedload.state.specs import StateSpec
from bedload.state.ttl import is_expiry
from bedload.state.types import MapNode

ENTRIES: Final = (VariableKind.MAP, VariableKind.COUNTER, VariableKind.SET)
"""Kinds whose entries or elements expire one by one."""
ITEMS: Final = (VariableKind.LIST, VariableKind.DEQUE, VariableKind.HEAP)
"""Kinds whose items do."""


def live_handling(spec: StateSpec) -> Handling | None:
    """How the values of a variable are handled: its containers know what was written if their entries expire."""
    how = handling(spec.type)
    if how is not None and is_expiry(spec.name) and isinstance(spec.type, MapNode):
        return how._replace(adopt=times_of_entries(spec.type))
    if how is None or spec.ttl is None or spec.kind not in (*ENTRIES, *ITEMS):
        return how
    make = lasting_entries if spec.kind in ENTRIES else lasting_items
    return how._replace(adopt=make(spec.type, spec.ttl.refresh == "read"), dirty=is_dirty, differs=differs)


def counts_reads(spec: StateSpec) -> bool:
    """Whether the containers of a variable have to know what is read."""
    return spec.ttl is not None and spec.ttl.refresh == "read" and spec.kind in (*ENTRIES, *ITEMS)
