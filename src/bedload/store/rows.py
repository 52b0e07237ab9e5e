"""State as one Python object per key: the layout for :class:`~bedload.worker.operator.Operator`.

The before-image of a key is taken when it is first touched in an epoch: a shallow copy of its
attributes. Containers log their own entries (see :mod:`bedload.state`); all containers of the store
share one journal, which aborts or commits them together.

``touch`` is the hot path: it runs once per key and sub-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from bedload.core.errors import ProtocolError
from bedload.core.ids import KeyGroup
from bedload.state import Journal, RecordLayout, apply_changes, codec
from bedload.store.base import Changes, Sizes

_ABSENT: Any = object()
"""The before-image of a key that had no state."""


class RowStore:
    """One key group; ``row`` is the class of the per-key objects, ``layout`` knows their attributes."""

    __slots__ = ("_before", "_gone", "_journal", "_layout", "_row", "_rows", "group")

    def __init__(self, group: KeyGroup, layout: RecordLayout, row: type) -> None:
        self.group = group
        self._layout = layout
        self._row = row
        self._journal = Journal()
        self._rows: dict[Any, Any] = {}
        self._before: dict[Any, Any] = {}
        self._gone: dict[Any, Any] = {}

    # --- what operator code runs on ---

    def touch(self, keys: Iterable[Any]) -> list[Any]:
        """The live objects of these keys, made if need be, with their before-images taken."""
        rows, before, image, row_type = self._rows, self._before, self._layout.image, self._row
        found = []
        add = found.append
        for key in keys:
            row = rows.get(key)
            if row is None:
                row = rows[key] = row_type.__new__(row_type)
                self._layout.fill(row, self._journal)
                if key not in before:
                    before[key] = _ABSENT
            elif key not in before:
                before[key] = image(row)
            add(row)
        return found

    def forget(self, key: Any) -> None:
        """Remove a touched key's state in this epoch."""
        row = self._rows.pop(key)
        if self._before[key] is not _ABSENT:
            self._gone.setdefault(key, row)

    def changed(self) -> list[tuple[Any, Any]]:
        """Keys that exist and whose state differs from the committed one, with their live objects.

        Call it after the epoch's operator code ran: it also adopts plain containers that the code
        assigned.
        """
        layout, rows, gone = self._layout, self._rows, self._gone
        adopt, differs = layout.adopt, layout.changed
        found = []
        for key, image in self._before.items():
            row = rows.get(key)
            if row is None:
                continue
            adopt(row)
            if image is _ABSENT or key in gone or differs(row, image):
                found.append((key, row))
        return found

    def rebind(self, row: type) -> None:
        """New code for the same state: the live objects change their class."""
        self._row = row
        for item in (*self._rows.values(), *self._gone.values()):
            item.__class__ = row

    # --- KeyGroupStore ---

    def begin(self) -> None:
        """Check that the last epoch was ended."""
        if self._before:
            raise ProtocolError(f"key group {self.group}: an epoch began before the last one ended")

    def commit(self) -> None:
        """Drop the before-images."""
        self._journal.commit()
        self._before = {}
        self._gone = {}

    def abort(self) -> None:
        """Put the before-images back."""
        rows, restore = self._rows, self._layout.restore
        for key, image in self._before.items():
            if image is _ABSENT:
                rows.pop(key, None)
            else:
                row = self._gone.get(key)
                if row is None:
                    row = rows[key]
                else:
                    rows[key] = row
                restore(row, image)
        self._journal.abort()
        self._before = {}
        self._gone = {}

    def changes(self) -> Changes:
        """The changed entries, for the backup."""
        layout, before = self._layout, self._before
        entries: dict[Any, dict[str, Any]] = {}
        created = set()
        for key, row in self.changed():
            fresh = before[key] is _ABSENT or key in self._gone
            entries[key] = layout.changes(row, None if fresh else before[key])
            if fresh:
                created.add(key)
        removed = tuple(key for key, image in before.items() if image is not _ABSENT and key not in self._rows)
        return Changes(self.group, entries, frozenset(created), removed)

    def replay(self, changes: Changes) -> None:
        """Apply one epoch's changes to the committed state."""
        for key in changes.removed:
            self._rows.pop(key, None)
        for key, entries in changes.entries.items():
            if key in changes.created:
                state = dict(entries)
            else:
                state = self._layout.plain(self._rows[key])
                for name, change in entries.items():
                    state[name] = apply_changes(state[name], change)
            self._load(key, state)

    def read(self, key: Any) -> dict[str, Any] | None:
        """The committed state of a key."""
        image = self._before.get(key)
        if image is _ABSENT:
            return None
        row = self._gone.get(key)
        if row is None:
            row = self._rows.get(key)
        return None if row is None else self._layout.snapshot(row, image)

    def snapshot(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """The committed state of every key."""
        for key in self._committed_keys():
            state = self.read(key)
            if state is not None:
                yield key, state

    def extract(self, keys: Iterable[Any] | None = None) -> tuple[list[Any], pa.RecordBatch]:
        """The committed state of these keys, or of all, as Arrow."""
        wanted = self._committed_keys() if keys is None else keys
        pairs = [(key, state) for key in wanted if (state := self.read(key)) is not None]
        return [key for key, _ in pairs], codec.encode(self._layout.specs, [state for _, state in pairs])

    def install(self, keys: list[Any], state: pa.RecordBatch) -> None:
        """Put in what another store extracted."""
        self.begin()
        for key, values in zip(keys, codec.decode(self._layout.specs, state), strict=True):
            self._load(key, values)

    def discard(self, keys: Iterable[Any] | None = None) -> None:
        """Drop these keys, or all."""
        self.begin()
        if keys is None:
            self._rows = {}
        else:
            for key in keys:
                self._rows.pop(key, None)

    def sizes(self) -> Sizes:
        """How much is there."""
        return Sizes(len(self._rows), len(self._before))

    def _committed_keys(self) -> list[Any]:
        return [*self._rows, *(key for key in self._gone if key not in self._rows)]

    def _load(self, key: Any, state: dict[str, Any]) -> None:
        row = self._row.__new__(self._row)
        self._layout.load(row, state, self._journal)
        self._rows[key] = row
