"""The outputs of a turn that a worker keeps: a repeat of a task, and a second action on the batch, get them again.

They grow with the rows of the epoch, and hardly any of them is asked for again. So only the newest stay in memory; the
others go to a local file, oldest first and a slice at a time, so that no sub-batch waits for long.

Invariants:

- what comes back is what was kept, or an error: each output has a checksum;
- a file is of one turn, and ends with it. What is in it may be lost at any moment: a turn that has lost outputs which
  somebody asks for cannot answer, and the epoch has to be tried again;
- an epoch with few outputs touches no disk.

A file is an Arrow IPC stream: the schema, and then the outputs just as they are sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import cycle, islice
from typing import Protocol

import pyarrow as pa
import xxhash

from bedload.core.errors import LocalDiskError
from bedload.core.ids import Epoch
from bedload.protocol.messages import Body
from bedload.worker.allowance import Allowance, Holding, Take

_PART = 4
"""One part in so many of what an epoch may take is for outputs in memory: most of it is for before-images."""
_SLICES = 8
"""A slice is one part in so many of what may stay in memory."""


class ScratchFile(Protocol):
    """A local file."""

    def append(self, parts: Iterable[Body]) -> int:
        """Write these at its end; where the first begins. Raises OSError."""
        ...

    def read(self, at: int, size: int) -> Body:
        """So many bytes from there; fewer, if it ends before. Raises OSError."""
        ...

    def close(self) -> None:
        """Nobody needs it any more."""
        ...


class Scratch(Protocol):
    """Room for local files, which are gone when the worker is."""

    def file(self) -> ScratchFile:
        """A new one. Raises OSError."""
        ...


class Kept:
    """An output that is kept: in memory, or by its place in the file."""

    __slots__ = ("at", "body", "checksum", "size")

    def __init__(self, body: pa.Buffer) -> None:
        self.body: Body = body
        self.size: int = body.size
        self.at = self.checksum = 0


class Records:
    """The outputs that one operator keeps at a worker in a turn."""

    def __init__(
        self, allowance: Allowance | None = None, scratch: Scratch | None = None, most: int = 0, where: str = ""
    ) -> None:
        """About so many bytes stay in memory, at most; without a ``scratch`` all do. ``where`` is for errors."""
        self.allowance = allowance
        """What the epoch may take."""
        self.held = 0
        """Bytes in memory."""
        self.spilled = 0
        """Bytes in the file."""
        self._scratch, self._most, self._where = scratch, most, where
        self._part_bytes = max(most // _SLICES, 1)
        self._in_memory: deque[Kept] = deque()
        self._file: ScratchFile | None = None

    @classmethod
    def within(cls, allowance: Allowance, scratch: Scratch | None, most: int, where: str) -> Records:
        """Records of which a part of what the epoch may take stays in memory, and never more than ``most``."""
        limit = allowance.limit
        return cls(allowance, scratch, most if limit is None else min(most, limit // _PART), where)

    def keep(self, output: pa.RecordBatch) -> Kept:
        """Keep an output. Until the next one it is in memory, however large it is."""
        kept = Kept(output.serialize())
        self._in_memory.append(kept)
        self.held += kept.size
        if self._scratch is not None and self.held > self._most and len(self._in_memory) > 1:
            self._spill(self._scratch, output.schema)
        return kept

    def keep_parts(self, output: pa.RecordBatch) -> list[Kept]:
        """Keep an output in parts of about the size of a slice."""
        rows = max(1, output.num_rows * self._part_bytes // max(output.nbytes, 1))
        return [self.keep(output.slice(start, rows)) for start in range(0, output.num_rows, rows)]

    def dealing(self, shares: list[list[Kept]]) -> Take | None:
        """Give outputs of the seal to these as they are made, in turn; None: they are to come all at once."""
        if self._scratch is None:
            return None
        turns = cycle(shares)

        def give(output: pa.RecordBatch) -> None:
            for part in self.keep_parts(output):
                next(turns).append(part)

        return Take(self._part_bytes, give)

    def body(self, kept: Kept | None) -> Body:
        """An output as it is sent; None for none."""
        if kept is None or kept.body is not None:
            return None if kept is None else kept.body
        assert self._file is not None, "its turn is over"
        try:
            body = self._file.read(kept.at, kept.size)
        except OSError as error:
            raise self._lost(kept, str(error)) from error
        if len(body) != kept.size or xxhash.xxh3_64_intdigest(body) != kept.checksum:
            raise self._lost(kept, "they are not what was written")
        return body

    def wait(self, output: pa.RecordBatch) -> None:
        """These are of a sub-batch of which other rows wait: they are kept with the outputs of those."""
        self.held += output.nbytes

    def join(self, outputs: list[pa.RecordBatch]) -> Kept | None:
        """Keep outputs that waited, as one."""
        if not outputs:
            return None
        self.held -= sum(output.nbytes for output in outputs)
        return self.keep(outputs[0] if len(outputs) == 1 else pa.concat_batches(outputs))

    def check(self, epoch: Epoch, runtime: Holding) -> None:
        """Raise if the epoch has become too large."""
        if self.allowance is not None:
            self.allowance.hold(epoch, runtime, self.held)

    def clear(self) -> None:
        """The turn is over."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._in_memory.clear()
        self.held = self.spilled = 0

    def _spill(self, scratch: Scratch, schema: pa.Schema) -> None:
        """Write the oldest, as many as make room for a slice."""
        some, size, too_many = list[Kept](), 0, self.held - self._most + self._most // _SLICES
        for kept in islice(self._in_memory, len(self._in_memory) - 1):
            if size >= too_many:
                break
            some.append(kept)
            size += kept.size
        try:
            if self._file is None:
                self._file = scratch.file()
                self._file.append([schema.serialize()])
            at = self._file.append(kept.body for kept in some)
        except OSError as error:
            raise LocalDiskError(
                f"{self._where}: {size:,} bytes of outputs could not be written to a local file, after "
                f"{self.spilled:,}: {error}. Make room there, or attach with local_dir= on another disk; then start "
                f"the query again"
            ) from error
        for kept in some:
            kept.checksum = xxhash.xxh3_64_intdigest(kept.body)
            kept.at, kept.body = at, None
            at += kept.size
            self._in_memory.popleft()
        self.held -= size
        self.spilled += size

    def _lost(self, kept: Kept, why: str) -> LocalDiskError:
        return LocalDiskError(
            f"{self._where}: {kept.size:,} bytes of outputs in a local file were lost: {why}. Start the query again, "
            f"and the epoch is tried again; if it comes back, attach with local_dir= on another disk"
        )
