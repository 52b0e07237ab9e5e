"""A worker's part in a checkpoint: writing at the seal, reading state back, and snapshots beside the work.

Invariants:

- A seal is acknowledged only if, after its segment was written, no newer attachment had claimed the checkpoint and
  nobody had given the turn up. Whoever claims or gives up does so first and looks for segments second. So one of the
  two sees the other, and a turn is never both acknowledged and passed over.
- Reading and compaction never run on the worker's own thread: their result, or failure, comes back as an event.
- Every call to the store has a deadline (:mod:`bedload.checkpoint.deadlines`), and a child that hangs is ended.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Set
from typing import Any, TypeAlias

import msgspec

from bedload.checkpoint import paths
from bedload.checkpoint.fence import check_fence
from bedload.checkpoint.intact import advise
from bedload.checkpoint.orders import decode_order
from bedload.checkpoint.pools import THREADS, Pools
from bedload.checkpoint.segments import SegmentMeta, write_segment
from bedload.checkpoint.storage import Storage, open_storage
from bedload.core.errors import BedloadError, CheckpointDamaged, CheckpointError, EpochAborted
from bedload.core.ids import Generation, KeyGroup, OperatorName, Ticket, WorkerId
from bedload.protocol import messages as m
from bedload.worker.durability import Hurry, Load, Loaded, LoadFailed, Seal

AHEAD = 4
"""Chunks that were delivered and are not put in: with those that are being read, about a hundred megabytes. As many
again may be in a hurry, as these are put in first."""
_PATIENCE_SECONDS = 600.0
"""A child that has given no sign of life for so long is ended. It gives one for each file and chunk that it has read;
before the first one it starts Python and reads the records, and each call to the store has a deadline of its own."""
_END_SECONDS = 10.0
_LISTEN_SECONDS = 1.0
"""How often a child is listened to."""
NICENESS, NICENESS_ASKED = 10, 3
"""Of a child. Beside one thread of the query on the same core, Linux gives it a tenth, and one that somebody waits for
a third; on a core that nobody else wants it has all."""
SHARE = 0.5
"""Of a core, at most, for a child that nobody waits for."""


class Place(msgspec.Struct, frozen=True):
    """Where a worker finds the checkpoint."""

    url: str
    generation: Generation
    options: dict[str, Any] = {}

    def open(self) -> Storage:
        """The storage there."""
        return open_storage(self.url, self.options)


class CheckpointDurability:
    """Writes what an epoch changed."""

    def __init__(self, storage: Storage, generation: Generation) -> None:
        self._storage = storage
        self._generation = generation

    def persist(self, seal: Seal) -> int:
        """Write the segment of a worker and turn, and make sure that it counts."""
        worker, operator, epoch, turn = seal.worker, seal.operator, seal.epoch, seal.turn
        path = paths.delta(operator, turn, worker)
        meta = SegmentMeta(operator=operator, turn=turn, worker=worker, epoch=epoch, query=seal.query)
        written = write_segment(self._storage, path, seal.delta(), meta)
        # SUBTLE: after the write, not before it. See the invariants.
        check_fence(self._storage, self._generation)
        if self._storage.exists(paths.abandoned(operator, turn)):
            raise EpochAborted(f"operator {operator}: epoch {epoch} was given up while worker {worker} sealed it")
        return written


class _Reading:
    """An order that is being read: what of it is in a hurry, and how much was delivered that is not put in."""

    def __init__(self) -> None:
        self.first: set[KeyGroup] = set()
        """Key groups that somebody waits for, or has waited for."""
        self._given: set[KeyGroup] = set()
        self._ahead = self._hasty = 0
        """Chunks that were delivered and are not put in, and those of them that were in a hurry."""
        self._change = threading.Condition()

    def hurry(self, groups: tuple[KeyGroup, ...]) -> None:
        """Somebody waits for these."""
        with self._change:
            self.first.update(groups)
            self._change.notify()

    def give(self, news: Loaded, deliver: Callable[[Loaded], None]) -> None:
        """Deliver it as soon as there is room; or at once, so that what is in a hurry can come, if that has room."""
        with self._change:
            self._change.wait_for(
                lambda: self._ahead < AHEAD or (self._hasty < AHEAD and not self.first <= self._given)
            )
            self._given.update(news.groups)
            hasty = int(not self.first.isdisjoint(news.groups))
            self._ahead += 1
            self._hasty += hasty
        # The worker lets go of it when it is put in, and when it is not wanted any more: there is no third way.
        weakref.finalize(news, self._taken, hasty).atexit = False
        deliver(news)

    def _taken(self, hasty: int) -> None:
        with self._change:
            self._ahead -= 1
            self._hasty -= hasty
            self._change.notify()


class Loader:
    """Reads state back in the background, not much faster than the worker puts it in."""

    def __init__(self, storage: Storage, generation: Generation) -> None:
        self._storage = storage
        self._generation = generation
        self._orders: dict[tuple[OperatorName, Ticket], _Reading] = {}

    def hurry(self, message: Hurry) -> None:
        """These key groups of an order come first; if it is read already, that is over."""
        reading = self._orders.get((message.operator, message.ticket))
        if reading is not None:
            reading.hurry(message.groups)

    def start(self, order: Load, deliver: Callable[[Loaded | LoadFailed], None]) -> None:
        """Read what an order says; ``deliver`` gets it, some key groups at a time, on another thread."""
        self._orders[order.operator, order.ticket] = _Reading()
        threading.Thread(target=self._run, args=(order, deliver), name="bedload-load", daemon=True).start()

    def _run(self, order: Load, deliver: Callable[[Loaded | LoadFailed], None]) -> None:
        try:
            reading = self._orders[order.operator, order.ticket]
            for news in load(self._storage, self._generation, order, first=reading.first):
                reading.give(news, deliver)
        except BedloadError as error:
            deliver(LoadFailed(order.operator, order.ticket, error))
        except Exception as error:
            problem = CheckpointError(f"operator {order.operator}: its state could not be read: {error!r}")
            deliver(LoadFailed(order.operator, order.ticket, problem))
        finally:
            del self._orders[order.operator, order.ticket]


def load(
    storage: Storage,
    generation: Generation,
    order: Load,
    *,
    first: Set[int] = frozenset(),
    threads: int | None = None,
    pools: Pools = THREADS,
) -> Iterator[Loaded]:
    """Read what an order says, some key groups at a time: what is in ``first`` by then before the rest."""
    # Compiled code comes with it, which a worker without state to read back can do without.
    from bedload.checkpoint.restore import Restore

    wanted = decode_order(order.plan)
    read = 0

    def progress(_done: int, _total: int, size: int) -> None:
        nonlocal read
        read = size

    target = wanted.schemas[wanted.target]
    restore = Restore(
        storage, order.operator, target, wanted.plan, schemas=wanted.schemas, threads=threads, pools=pools
    )
    expected = restore.expected(order.groups)
    try:
        for groups, state in restore.chunks(order.groups, first=first, progress=progress):
            named = tuple(KeyGroup(group) for group in groups)
            yield Loaded(order.operator, order.ticket, named, state, read, expected)
            expected = 0
    except CheckpointDamaged as error:
        check_fence(storage, generation)  # a newer attachment deletes what its own state does not need
        raise advise(storage, order.operator, order.base, error) from error


Deliver: TypeAlias = Callable[[m.Compacting | m.Compacted, bytes | None], None]


class Compactor:
    """Writes snapshots in child processes of low priority."""

    def __init__(self, worker: WorkerId, place: Place, patience: float = _PATIENCE_SECONDS) -> None:
        self._worker = worker
        self._place = place
        self._patience = patience
        self._children: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def start(self, message: m.Compact, deliver: Deliver) -> None:
        """Compact some key groups; ``deliver`` gets how far it is, and the answer, on another thread."""
        threading.Thread(target=self._run, args=(message, deliver), name="bedload-compact", daemon=True).start()

    def close(self) -> None:
        """End the children: a snapshot without a manifest counts for nothing."""
        self._closed = True
        for child in list(self._children):
            child.kill()

    def _run(self, message: m.Compact, deliver: Deliver) -> None:
        try:
            parts = msgspec.msgpack.encode(self._compact(message, deliver))
        except Exception as error:
            problem = error if isinstance(error, BedloadError) else CheckpointError(f"a compaction failed: {error!r}")
            wire = m.WireError.of(problem)
            deliver(m.Compacted(self._worker, message.operator, message.ticket, wire), None)
            return
        deliver(m.Compacted(self._worker, message.operator, message.ticket, None), parts)

    def _compact(self, message: m.Compact, deliver: Deliver) -> Any:
        from bedload.checkpoint.compaction import COMMAND, Job, Step, decode_result, encode_job, last_step

        place = self._place
        job = Job(
            url=place.url,
            options=place.options,
            operator=message.operator,
            turn=message.turn,
            groups=message.groups,
            niceness=NICENESS_ASKED if message.asked else NICENESS,
            share=None if message.asked else SHARE,
        )
        told: Step | None = None

        def heard(output: bytes) -> None:
            nonlocal told
            step = last_step(output)
            if step is not None and step != told:
                told = step
                who = self._worker, message.operator, message.ticket
                deliver(m.Compacting(*who, step.groups, step.keys, step.bytes), None)

        # SUBTLE: a worker inside a Spark task may have found its packages by ways that a child does not know of.
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        child = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
        self._children.add(child)
        try:
            if self._closed:
                child.kill()
            output, errors = self._listen(child, encode_job(job), heard)
        finally:
            self._children.discard(child)
        if not output.strip():  # signs of life are no result
            tail = errors.decode(errors="replace")[-2000:]
            raise CheckpointError(f"a compaction ended with code {child.returncode} and no result: {tail}")
        return decode_result(output)

    def _listen(
        self, child: subprocess.Popen[bytes], job: bytes, heard: Callable[[bytes], None]
    ) -> tuple[bytes, bytes]:
        """What a child says in the end, and meanwhile. One that gives no sign of life for a while is ended."""
        given: bytes | None = job
        said, silent, wait = b"", 0.0, min(_LISTEN_SECONDS, self._patience)
        while silent < self._patience:
            try:
                return child.communicate(given, timeout=wait)
            except subprocess.TimeoutExpired as expired:
                given = None  # it is on its way
                before, said = said, expired.output or b""
                silent = 0.0 if len(said) > len(before) else silent + wait
                heard(said)
        child.kill()
        # What the system does not end is left behind: the answer must not wait for it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=_END_SECONDS)
        raise CheckpointError(
            f"a compaction (process {child.pid}) gave no sign of life for {self._patience:g} seconds and was ended. "
            f"The state is safe, and will be compacted later; look at the load of the machine and of the store"
        )
