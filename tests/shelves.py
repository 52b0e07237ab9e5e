"""Shelves in tests: made as a move makes them, and listed and dropped to the end, a few keys at a time."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol, TypeVar

import numpy as np

from bedload.core.ids import KeyGroup
from bedload.store.entries import Hashes
from bedload.store.selection import Selection
from bedload.store.shelf import NO_HASHES, Shelf

AnyShelf = TypeVar("AnyShelf", bound=Shelf)


class Shelves(Protocol):
    """A table, or a runtime."""

    def shelve(self, selection: Selection) -> Any:
        """Its keys that are meant."""


def meant(groups: Collection[KeyGroup], only: Hashes | None = None, without: Hashes | None = None) -> Selection:
    """Key groups, some of their keys, or all but some."""
    if only is not None:
        return Selection((), single=groups, only=only)
    return Selection(groups) if without is None else Selection(groups, without)


def shelved(source: Shelves, groups: Collection[KeyGroup], **which: Hashes | None) -> Any:
    """A shelf on which all keys are that are meant."""
    return listed(source.shelve(meant(groups, **which)))


def listed(shelf: AnyShelf, at_once: int = 3) -> AnyShelf:
    """List all of it."""
    while not shelf.listed:
        shelf.list_some(at_once)
    return shelf


def note(shelf: Shelf, at_once: int = 3) -> Hashes:
    """Seal an epoch, and note all that it touched."""
    shelf.sealed()
    return noted(shelf, at_once)


def noted(shelf: Shelf, at_once: int = 3) -> Hashes:
    """Note what is to be noted."""
    found = [NO_HASHES]
    while shelf.unnoted:
        found.append(shelf.note_some(at_once))
    return np.concatenate(found)


def drop(shelf: Shelf) -> None:
    """Drop all of it."""
    while not shelf.drop_some(1):
        pass
