"""A checkpoint's storage in memory, and what can go wrong with one.

Invariants of :class:`MemoryStorage` are those of every :class:`~bedload.checkpoint.storage.Storage`. A
:class:`TroubledStorage` fails while there is an outage: before it did what it was asked to, or after, when only the
answer is lost. Which call fails depends on nothing but the seed, the call and the time, since restores read files in
threads, whose order is nobody's to choose.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import xxhash

from bedload.checkpoint import paths
from bedload.checkpoint.marks import create_by_marks
from bedload.checkpoint.storage import Buffers, Storage, failed, joined
from tests.simulator.chance import Chance

_T = TypeVar("_T")


class MemoryStorage:
    """Files in a dictionary."""

    def __init__(self, url: str = "memory://simulated") -> None:
        self.url = url
        self.files: dict[str, bytes] = {}

    def read(self, path: str) -> bytes:
        """The content of a file."""
        try:
            return self.files[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def write(self, path: str, data: Buffers) -> None:
        """Write a file, whole."""
        self.files[path] = joined(data)

    def create(self, path: str, data: Buffers) -> bool:
        """Write a file if there is none of that path."""
        value = joined(data)
        return self.files.setdefault(path, value) == value

    def copy(self, source: str, target: str) -> None:
        """Have the content of a file under another path, too."""
        self.files[target] = self.read(source)

    def exists(self, path: str) -> bool:
        """Whether there is a file of that path."""
        return path in self.files

    def list(self, folder: str) -> list[str]:
        """The names directly in a folder, sorted."""
        start = f"{folder}/" if folder else ""
        found = {path[len(start) :].partition("/")[0] for path in [*self.files] if path.startswith(start)}
        return sorted(found)

    def sizes(self, folder: str) -> dict[str, int]:
        """The files directly in a folder, with their sizes."""
        start = f"{folder}/" if folder else ""
        found = {p[len(start) :]: len(data) for p, data in [*self.files.items()] if p.startswith(start)}
        return {name: size for name, size in found.items() if "/" not in name}

    def size(self, path: str) -> int:
        """The size of a file."""
        return len(self.read(path))

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files; those that are not there are fine."""
        for path in paths:
            self.files.pop(path, None)


def damage(storage: MemoryStorage, chance: Chance) -> tuple[str, str]:
    """Cut off, empty, garble or delete a file of an operator; which one, and what was done to it."""
    known = sorted(path for path in storage.files if path.startswith(f"{paths.OPERATORS}/"))
    if not known:
        return "nothing", "there"
    path = chance.pick(known)
    data = storage.files[path]
    match how := chance.pick(["deleted", "empty", "cut off", "garbled"]):
        case "deleted":
            del storage.files[path]
        case "empty":
            storage.files[path] = b""
        case "cut off":
            storage.files[path] = data[: chance.number(0, max(0, len(data) - 1))]
        case _:
            at = chance.number(0, max(0, len(data) - 1))
            storage.files[path] = data[:at] + bytes(255 - byte for byte in data[at : at + 8]) + data[at + 8 :]
    return path, how


@dataclass
class Outages:
    """When a storage fails, and how often a call fails then."""

    seed: int
    now: Callable[[], float]
    times: list[tuple[float, float, float]] = field(default_factory=list)
    """From, until, and the share of calls that fail."""

    def strike(self, operation: str, path: str) -> str | None:
        """``before`` or ``after`` the deed, if the call fails."""
        now = self.now()
        likely = max((share for start, end, share in self.times if start <= now < end), default=0.0)
        if not likely:
            return None
        dice = xxhash.xxh3_64_intdigest(f"{self.seed} {operation} {path} {now}".encode()) % 1000
        if dice >= likely * 1000:
            return None
        return "before" if dice % 2 else "after"


class _Wrapped(abc.ABC):
    """A storage around another one."""

    def __init__(self, inner: Storage) -> None:
        self.url = inner.url
        self._inner = inner

    @abc.abstractmethod
    def _call(self, operation: str, path: str, deed: Callable[[], _T]) -> _T:
        """Do it, or whatever else happens."""

    def read(self, path: str) -> bytes:
        """The content of a file."""
        return self._call("read", path, lambda: self._inner.read(path))

    def write(self, path: str, data: Buffers) -> None:
        """Write a file, whole."""
        self._call("write", path, lambda: self._inner.write(path, data))

    def create(self, path: str, data: Buffers) -> bool:
        """Write a file if there is none of that path."""
        return self._call("create", path, lambda: self._inner.create(path, data))

    def copy(self, source: str, target: str) -> None:
        """Have the content of a file under another path, too."""
        self._call("copy", source, lambda: self._inner.copy(source, target))

    def exists(self, path: str) -> bool:
        """Whether there is a file of that path."""
        return self._call("look for", path, lambda: self._inner.exists(path))

    def list(self, folder: str) -> list[str]:
        """The names directly in a folder."""
        return self._call("list", folder, lambda: self._inner.list(folder))

    def sizes(self, folder: str) -> dict[str, int]:
        """The files directly in a folder, with their sizes."""
        return self._call("list", folder, lambda: self._inner.sizes(folder))

    def size(self, path: str) -> int:
        """The size of a file."""
        return self._call("look for", path, lambda: self._inner.size(path))

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files."""
        self._call("delete", paths[0] if paths else "", lambda: self._inner.delete(paths))


class TroubledStorage(_Wrapped):
    """A storage that fails now and then."""

    def __init__(self, inner: Storage, outages: Outages) -> None:
        super().__init__(inner)
        self._outages = outages

    def _call(self, operation: str, path: str, deed: Callable[[], _T]) -> _T:
        fails = self._outages.strike(operation, path)
        if fails == "after":
            deed()
        if fails:
            raise failed(operation, self.url, path, OSError("the simulated store does not answer"))
        return deed()


class CarelessStorage(_Wrapped):
    """A storage without an exclusive create: marks decide who gets a file (:mod:`bedload.checkpoint.marks`)."""

    def _call(self, operation: str, path: str, deed: Callable[[], _T]) -> _T:
        return deed()

    def create(self, path: str, data: Buffers) -> bool:
        """Write a file if there is none of that path."""
        return create_by_marks(self._inner, path, joined(data), self._inner.list)

    def list(self, folder: str) -> list[str]:
        """The names directly in a folder, without marks."""
        return [name for name in self._inner.list(folder) if not name.startswith(".")]

    def sizes(self, folder: str) -> dict[str, int]:
        """The files directly in a folder, without marks."""
        return {name: size for name, size in self._inner.sizes(folder).items() if not name.startswith(".")}


class SlowStorage(_Wrapped):
    """A storage as one process sees it: ``pause`` lets time go by before and after each call, or ends all."""

    def __init__(self, inner: Storage, pause: Callable[[str, str], None]) -> None:
        super().__init__(inner)
        self._pause = pause

    def _call(self, operation: str, path: str, deed: Callable[[], _T]) -> _T:
        self._pause(f"before {operation}", path)
        result = deed()
        self._pause(f"after {operation}", path)
        return result
