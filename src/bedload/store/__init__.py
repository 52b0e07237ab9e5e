"""Key-group stores: one holds the state of one key group and hides how it is laid out."""

from bedload.store.base import Changes, KeyGroupStore, Sizes
from bedload.store.rows import RowStore

__all__ = ["Changes", "KeyGroupStore", "RowStore", "Sizes"]
