"""A filesystem whose calls fail or take long, as told by a file: ``faulty:///folder``.

It keeps local files, and is found by every process: the driver registers it, workers and their children find it by an
entry point, which is installed into a folder of the test's own that is on their path. What it does is told by
``faulty.json`` in the folder that :func:`install` made, and can be changed while it runs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

PROTOCOL = "faulty"
_CALLS = {"count": 0}
_LOCAL = LocalFileSystem()
"""Does the work: what it calls in turn is no call to the store."""


class FaultyFileSystem(LocalFileSystem):  # type: ignore[misc]
    """Local files behind a network that is not always there."""

    protocol = (PROTOCOL,)
    cachable = False
    local_file = False

    def __init__(self, control: str = "", **options: Any) -> None:
        super().__init__(auto_mkdir=True, **options)
        self._control = control

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return LocalFileSystem._strip_protocol(str(path).removeprefix(f"{PROTOCOL}://"))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        """Write a file whole, as object stores do."""
        self._meet("write")
        target = Path(self._strip_protocol(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{os.getpid()}-{time.monotonic_ns()}")
        part.write_bytes(value)
        part.replace(target)
        self._meet("answer")  # it is done, but nobody is told

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        """Read a file."""
        self._meet("read")
        return Path(self._strip_protocol(path)).read_bytes()

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Look at a file."""
        self._meet("look")
        return dict(_LOCAL.info(self._strip_protocol(path), **options))

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        """List a folder."""
        self._meet("list")
        return _LOCAL.ls(self._strip_protocol(path), detail=detail, **options)

    def rm_file(self, path: str) -> None:
        """Delete a file."""
        self._meet("delete")
        _LOCAL.rm_file(self._strip_protocol(path))

    def _meet(self, what: str) -> None:
        told = _told(self._control)
        _CALLS["count"] += 1
        if seconds := told.get("slow", 0):
            time.sleep(seconds)
        every = told.get("every", 0)
        if every and _CALLS["count"] % every == 0:
            raise OSError(f"the store is not there just now ({what})")


class Faults:
    """The test's hand on the store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "faulty.json"
        self.tell()

    @property
    def options(self) -> dict[str, Any]:
        """Of the storage."""
        return {"control": str(self._file)}

    def tell(self, **what: Any) -> None:
        """``every=n``: the n-th call of each process fails; ``slow=s``: every call takes so long."""
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(what))
        part.replace(self._file)


def register() -> None:
    """Make it known in this process."""
    fsspec.register_implementation(PROTOCOL, FaultyFileSystem, clobber=True)


def install(folder: Path) -> Faults:
    """Make it known to processes that have the folder on their path."""
    info = folder / "faulty_store-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-store\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[fsspec.specs]\n{PROTOCOL} = {__name__}:FaultyFileSystem\n")
    return Faults(folder)


@contextmanager
def installed(folder: Path) -> Iterator[Faults]:
    """Known in this process and in the workers that it starts."""
    register()
    faults = install(folder)
    root = str(Path(__file__).parents[2])
    added = [path for path in (str(folder), root) if path not in sys.path]
    sys.path[:0] = added
    try:
        yield faults
    finally:
        for path in added:
            sys.path.remove(path)


def _told(control: str) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(Path(control).read_text())
    except OSError:
        return {}
    return told
