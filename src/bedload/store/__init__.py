"""Stores: they hold the state of an operator at a worker, by key group, and hide how and where it lies."""

from bedload.store.base import Changes, KeyGroupStore, MakeStore, Sizes, StateTable
from bedload.store.rows import ROW_SLOTS, RowStore

__all__ = ["ROW_SLOTS", "Changes", "KeyGroupStore", "MakeStore", "RowStore", "Sizes", "StateTable"]
