"""What timers and TTL cost a worker: its own runtime, fed directly, in the process that is measured.

Invariants:
- What is compared does the same work but for the timers or the TTL: the same rows in the same order, epoch by epoch.
- An epoch is all that a worker does in one: batches, timers, results, what has expired, the delta for the checkpoint.
- A figure counts only if the whole state, and every call of a timer, is what plain NumPy says.
- Rates are over processor time, which is nearly the same when something else has a core. The garbage collector is set
  as in a worker.

Why without Spark: it takes most of the time of a trigger, so that ratios of whole queries hide what a worker pays.
"""

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import bedload as bl
from bedload.core.epoch import EpochTime
from bedload.core.ids import Epoch, KeyGroup, WorkerId
from bedload.keys import DEFAULT_KEY_GROUPS
from bedload.testing.applied import Applied, an_aggregate, an_operator
from bedload.testing.input import InputFormat, as_schema
from bedload.worker.runtime import Runtime
from bedload.worker.server import YOUNG
from bench import timers_operators as ops
from bench.isolate import WrongAnswer
from bench.state_measure import memory
from bench.timers_operators import CYCLE, SCHEMA, START, STEP

Ints = npt.NDArray[np.int64]
BATCH = 61_440
ROUNDS, ENOUGH_SECONDS = 3, 2.0
"""Epochs in which all timers fire: so many, or as many as take so long."""
FOREVER = 1_000_000
"""So many epochs later all has expired."""


@dataclass(frozen=True)
class Subject:
    """What runs, and what its state is expected to be."""

    make: Callable[[InputFormat], Applied]
    variable: str
    timers: bool = False
    ttl_steps: int | None = None
    entries: int = 1
    """Things with a count of their own in each key."""
    whole: bool = False
    """Whether the key goes with what expires."""


def _operator(operator: Any, **more: Any) -> Subject:
    return Subject(an_operator(operator, SCHEMA).apply, "n", **more)


def subject(system: str, variant: str) -> Subject:
    """What a system runs in a variant; made when it is needed, since declarations are checked then."""
    from bench import timers_ttl
    from bench.timers_ttl import ENTRIES, KEY_STEPS, MAP_STEPS

    lives: Any = f"{KEY_STEPS * STEP} milliseconds"
    made: dict[tuple[str, str], Callable[[], Subject]] = {
        ("rows", "plain"): lambda: _operator(ops.Count),
        ("rows", "kept"): lambda: _operator(ops.CountKept, timers=True),
        ("rows", "moved"): lambda: _operator(ops.CountMoved, timers=True),
        ("columns", "plain"): lambda: _operator(ops.Arrays),
        ("columns", "kept"): lambda: _operator(ops.ArraysKept, timers=True),
        ("columns", "moved"): lambda: _operator(ops.ArraysMoved, timers=True),
        ("map", "plain"): lambda: Subject(an_operator(timers_ttl.Visits, SCHEMA).apply, "seen", entries=ENTRIES),
        ("map", "ttl"): lambda: Subject(
            an_operator(timers_ttl.VisitsTtl, SCHEMA).apply, "seen", ttl_steps=MAP_STEPS, entries=ENTRIES
        ),
        ("arrays", "plain"): lambda: _operator(ops.Arrays),
        ("arrays", "ttl"): lambda: _operator(timers_ttl.ArraysTtl, ttl_steps=KEY_STEPS),
        ("aggregate", "plain"): lambda: Subject(an_aggregate({"n": bl.agg.count()}).apply, "count()"),
        ("aggregate", "ttl"): lambda: Subject(
            an_aggregate({"n": bl.agg.count()}, lives).apply, "count()", ttl_steps=KEY_STEPS, whole=True
        ),
    }
    return made[system, variant]()


def measure(system: str, variant: str, keys: int, rows: int, settle: int, epochs: int, seed: int = 1) -> dict[str, Any]:
    """The figures of one subject: the entry point of the isolated process."""
    gc.freeze()
    gc.set_threshold(*YOUNG)
    return figures_of(system, variant, keys, rows, settle, epochs, seed)


def figures_of(
    system: str, variant: str, keys: int, rows: int, settle: int, epochs: int, seed: int = 1
) -> dict[str, float]:
    """Fill the state, then time epochs, and what happens without rows."""
    what = subject(system, variant)
    form = InputFormat(as_schema("key long, entry long", "input"), "key", DEFAULT_KEY_GROUPS)
    applied = what.make(form)
    applied.deployment.prepare()
    worker = _Worker(applied, applied.deployment.start(WorkerId(0)))
    model = _Model(what, keys)
    load = _Load(keys, what.entries, seed)
    # The first batch of all is on key 0 alone: what is made for good then is not memory of the state.
    worker.epoch(model, [load.batch(np.zeros(1, np.int64), np.zeros(1, np.int64))])
    before = memory()
    for batch in load.all_of_it(rows):
        worker.epoch(model, [batch])
    figures: dict[str, float] = {"state_mb": (memory() - before) / 1e6}
    for _ in range(settle):
        worker.epoch(model, load.batches(rows))
    model.expired = 0
    took = [worker.epoch(model, load.batches(rows)) for _ in range(epochs)]
    figures |= {
        "rows_per_s": rows / median(cpu for cpu, _ in took),
        "epoch_ms": 1000 * median(cpu for cpu, _ in took),
        "epoch_wall_ms": 1000 * median(wall for _, wall in took),
    }
    if what.timers:
        figures |= _of_timers(worker, model, keys)
    if what.ttl_steps is not None:
        figures["expired_share"] = model.expired / epochs / (keys * what.entries)
    model.check(worker)
    if what.ttl_steps is not None:
        cpu, wall = worker.epoch(model, [], later=FOREVER)
        figures |= {"all_expire_ms": 1000 * cpu, "all_expire_wall_ms": 1000 * wall}
        model.check(worker)
    figures["nothing_due_ms"] = 1000 * median(worker.epoch(model, [], later=0)[0] for _ in range(5))
    return figures


def _of_timers(worker: "_Worker", model: "_Model", keys: int) -> dict[str, float]:
    """Epochs without rows: some timers are due, and all of them."""
    some = [worker.epoch(model, [])[0] for _ in range(5)]
    everyone: list[float] = []
    while len(everyone) < ROUNDS and sum(everyone) < ENOUGH_SECONDS:
        everyone.append(worker.epoch(model, [], later=CYCLE)[0])
    return {
        "some_fire_ms": 1000 * median(some),
        "all_fire_ms": 1000 * median(everyone),
        "fired_m_per_s": keys / median(everyone) / 1e6,
    }


class _Load:
    """Rows: each key and entry once, and then at random."""

    def __init__(self, keys: int, entries: int, seed: int) -> None:
        self._keys, self._entries = keys, entries
        self._chance = np.random.default_rng(seed)

    def all_of_it(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Every key and entry, in no order, in batches of about an epoch."""
        everything = self._chance.permutation(self._keys * self._entries)
        for at in range(0, len(everything), rows):
            part = everything[at : at + rows]
            yield self.batch(part // self._entries, part % self._entries)

    def batches(self, rows: int) -> list[pa.RecordBatch]:
        """The rows of an epoch."""
        found = []
        for at in range(0, rows, BATCH):
            size = min(BATCH, rows - at)
            found.append(
                self.batch(self._chance.integers(0, self._keys, size), self._chance.integers(0, self._entries, size))
            )
        return found

    @staticmethod
    def batch(keys: Ints, entries: Ints) -> pa.RecordBatch:
        return pa.record_batch({"key": keys, "entry": entries})


class _Worker:
    """The runtime of one worker, epoch by epoch."""

    def __init__(self, applied: Applied, runtime: Runtime) -> None:
        self._applied = applied
        self.runtime = runtime
        runtime.durable = True
        self._epoch = -1
        self._groups = [KeyGroup(group) for group in range(DEFAULT_KEY_GROUPS)]

    def epoch(self, model: "_Model", batches: list[pa.RecordBatch], later: int = 1) -> tuple[float, float]:
        """One epoch, so many steps after the one before; its processor time and its time, in seconds."""
        combining = self._applied.combining()
        sent = [combining.rows(batch) for batch in batches]
        self._epoch += 1
        model.pass_time(later)
        time_of_it = EpochTime(model.now, model.now)
        runtime, outputs = self.runtime, []
        began, busy = time.perf_counter(), time.process_time()
        runtime.begin(Epoch(self._epoch), self._groups)
        runtime.set_time(time_of_it)
        outputs += [runtime.apply(batch) for batch in sent]
        outputs.append(runtime.seal())
        runtime.delta()
        runtime.commit()
        took = time.process_time() - busy, time.perf_counter() - began
        model.take(batches, [it for it in outputs if it is not None])
        return took


class _Model:
    """What is right: plain arrays."""

    def __init__(self, what: Subject, keys: int) -> None:
        self._what, self._keys = what, keys
        self.epoch = START // STEP
        self.expired = 0
        self._n = np.zeros(keys * what.entries, np.int64)
        self._written = np.zeros(keys * what.entries, np.int64)
        self._next = np.full(keys, -1, np.int64)
        """The epoch in which a timer fires; -1: there is none yet."""

    @property
    def now(self) -> int:
        """The time of the epoch."""
        return self.epoch * STEP

    def pass_time(self, steps: int) -> None:
        """The next epoch begins; what has expired is gone."""
        self.epoch += steps
        if self._what.ttl_steps is not None:
            gone = (self._n > 0) & (self.epoch - self._written >= self._what.ttl_steps)
            self.expired += int(np.count_nonzero(gone))
            self._n[gone] = 0

    def take(self, batches: list[pa.RecordBatch], outputs: list[pa.RecordBatch]) -> None:
        """The rows of the epoch; and what it gave, of which timers are checked."""
        for batch in batches:
            keys, entries = (batch.column(i).to_numpy() for i in range(2))
            places = keys * self._what.entries + entries
            self._n += np.bincount(places, minlength=len(self._n))
            self._written[places] = self.epoch
            if self._what.timers:
                new = np.unique(keys[self._next[keys] < 0])
                self._next[new] = _due_epoch(new, self.epoch)
        if not self._what.timers:
            return
        due = np.flatnonzero((self._next >= 0) & (self._next <= self.epoch))
        fired = [it.filter(it.column("fired")) for it in outputs]
        found = np.sort(np.concatenate([it.column("key").to_numpy() for it in fired] or [np.empty(0, np.int64)]))
        if not np.array_equal(found, due):
            raise WrongAnswer(f"epoch {self.epoch}: {len(found)} timers fired, not {len(due)}, or not those")
        self._next[due] = _due_epoch(due, self.epoch + 1)

    def check(self, worker: _Worker) -> None:
        """Compare the whole state."""
        name, entries = self._what.variable, self._what.entries
        found = np.zeros(len(self._n), np.int64)
        for key, state in worker.runtime.snapshot():
            if entries == 1:
                found[key] = state[name]
            else:
                for entry, n in state[name].items():
                    found[key * entries + entry] = n
        wrong = np.flatnonzero(found != self._n)
        if len(wrong):
            at = wrong[0]
            raise WrongAnswer(
                f"{len(wrong):,} of {len(found):,} counts are wrong after epoch {self.epoch}, such as that of key "
                f"{at // entries}: {found[at]} instead of {self._n[at]}"
            )
        there = worker.runtime.keys
        if self._what.whole and there != np.count_nonzero(self._n):
            raise WrongAnswer(f"{there} keys have state, not {np.count_nonzero(self._n)}")


def _due_epoch(keys: Ints, epoch: int) -> Ints:
    """The epoch from this one on in which timers of keys are due."""
    return epoch + (keys - epoch) % CYCLE
