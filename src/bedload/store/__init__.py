"""Stores: they hold the state of an operator at a worker, by key group, and hide how and where it lies."""

from bedload.store.base import Changes, KeyGroupStore, MakeStore, Sizes, StateTable
from bedload.store.rows import RowStore, row_slots

__all__ = ["Changes", "KeyGroupStore", "MakeStore", "RowStore", "Sizes", "StateTable", "row_slots"]
