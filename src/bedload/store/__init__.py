"""Key-group stores: one holds the state of one key group and hides how it is laid out."""

from bedload.store.base import Changes, KeyGroupStore, Sizes
from bedload.store.rows import ROW_SLOTS, RowStore

__all__ = ["ROW_SLOTS", "Changes", "KeyGroupStore", "RowStore", "Sizes"]
