"""Where a worker has the state that is not in memory, as its machine knows it."""

from __future__ import annotations

from typing import Protocol

from bedload.store.cache import Cache
from bedload.store.columns.pager import Pager
from bedload.store.disk import Disks
from bedload.store.remote import Remotes


class Stores(Protocol):
    """What all operators of a worker share; :class:`~bedload.worker.local_stores.LocalStores` at a real one.

    Whoever runs the worker's machine looks after each call of it whether state was lost. If so, the worker has to end,
    and nothing of the machine's answer is said, so that nobody takes it for done.
    """

    @property
    def disks(self) -> Disks:
        """Their disks."""
        ...

    @property
    def remotes(self) -> Remotes:
        """Stores apart from the workers."""
        ...

    @property
    def cache(self) -> Cache:
        """Their objects in memory."""
        ...

    @property
    def pager(self) -> Pager:
        """Their columns in memory."""
        ...
