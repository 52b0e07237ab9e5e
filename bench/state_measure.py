"""Measuring one layout with one shape of state: the entry point of the isolated process.

Invariants:
- A layout is timed only after it went through a small history with the same state as plain dicts at every step:
  commits, an abort, reads of committed state inside an epoch, a repartition and a merge.
- A figure is the median of its repetitions, in nanoseconds per row, or per key that the operation is about.
- What is prepared for an operation is outside of its time; the garbage collector is set as in a worker.
"""

import ctypes
import gc
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pyarrow as pa

from bench.isolate import WrongAnswer
from bench.state_inputs import BATCH_ROWS, GROUPS, Inputs, Keys, Shape
from bench.state_layouts import LAYOUTS, DictLayout, Layout

FIRST_HALF = range(GROUPS // 2)
EPOCH_BATCHES = 2
POINT_READS = 2_000
MANY_READS = 10_000
WARM_KEYS, CHECK_KEYS, CHECK_ROWS = 20, 700, 3_000
MAX_REPETITIONS = 25
BATCHES = 6


class Stopwatch:
    """Collects figures: repeats an operation until there are enough repetitions, or the time is used up."""

    def __init__(self, least: int, seconds: float) -> None:
        self._least = least
        self._seconds = seconds
        self._found: dict[str, list[float]] = {}

    def rounds(self) -> "Rounds":
        """Counts repetitions of one group of operations."""
        return Rounds(self._least, self._seconds)

    def time(self, name: str, per: int, operation: Callable[[], Any]) -> Any:
        """Run an operation once, and note what it took per `per`."""
        began = time.perf_counter_ns()
        result = operation()
        self.note(name, (time.perf_counter_ns() - began) / per)
        return result

    def note(self, name: str, ns: float) -> None:
        """Keep a figure of one repetition."""
        self._found.setdefault(name, []).append(ns)

    def figures(self) -> dict[str, float]:
        """The medians."""
        return {f"{name}_ns": median(values) for name, values in self._found.items()}


class Rounds:
    """Iterates: at least so many times, then while there is time."""

    def __init__(self, least: int, seconds: float) -> None:
        self._least, self._seconds = least, seconds

    def __iter__(self) -> Any:
        began = time.perf_counter()
        for number in range(MAX_REPETITIONS):
            if number >= self._least and time.perf_counter() - began > self._seconds:
                return
            yield number


def measure(layout: str, kind: str, size: str, keys: int, least: int, seconds: float) -> dict[str, Any]:
    """Check a layout, then time it; figures by name."""
    shape = Shape(kind, size)
    make = LAYOUTS[layout]
    check(make, shape, WARM_KEYS)
    gc.freeze()
    gc.set_threshold(50_000, 20, 1_000_000)
    inputs = Inputs(shape, keys)
    with closing(make(shape)) as store:
        # SUBTLE: before the real check, which would leave free memory behind for the store to fill.
        before = memory()
        for part, states in inputs.states():
            store.fill(part, states)
        del part, states
        figures: dict[str, float] = {"bytes_per_key": (memory() - before) / keys}
        check(make, shape, CHECK_KEYS)
        batches = [inputs.batch(BATCH_ROWS[size]) for _ in range(BATCHES)]
        points, many = inputs.some(POINT_READS), inputs.some(MANY_READS)
        watch = Stopwatch(least, seconds)
        _time_reads(watch, store, points, many, keys)
        _time_epochs(watch, store, batches, points)
        _time_moves(watch, store, inputs.keys)
        figures |= watch.figures()
        figures["epoch_ns"] = figures["update_ns"] + figures.pop("commit_per_row_ns", 0.0)
        disk = getattr(store, "disk_bytes", None)
        if disk is not None:
            figures["disk_bytes_per_key"] = disk() / keys
    return figures


def _time_reads(watch: Stopwatch, store: Layout, points: Keys, many: Keys, keys: int) -> None:
    pairs = points.pairs()
    for _ in watch.rounds():
        watch.time("read", len(pairs), lambda: [store.read(group, key) for group, key in pairs])
        watch.time("read_many", len(many), lambda: store.read_many(many))
    for _ in watch.rounds():
        seen = watch.time("scan", keys, store.scan)
        if seen != keys:
            raise WrongAnswer(f"a scan saw {seen:,} keys instead of {keys:,}")


def _time_epochs(watch: Stopwatch, store: Layout, batches: list[Any], points: Keys) -> None:
    pairs = points.pairs()
    for number in watch.rounds():
        chosen = [batches[(number * EPOCH_BATCHES + i) % len(batches)] for i in range(EPOCH_BATCHES)]
        rows = sum(len(batch.keys) for batch in chosen)
        _update(watch, store, chosen, rows)
        if not store.epochs:
            continue
        touched = store.touched()
        began = time.perf_counter_ns()
        store.commit()
        took = time.perf_counter_ns() - began
        watch.note("commit", took / touched)
        watch.note("commit_per_row", took / rows)
        _update(watch, store, chosen, rows)
        watch.time("snapshot_read", len(pairs), lambda: [store.read(group, key) for group, key in pairs])
        watch.time("abort", store.touched(), store.abort)


def _update(watch: Stopwatch, store: Layout, chosen: list[Any], rows: int) -> None:
    began = time.perf_counter_ns()
    for batch in chosen:
        store.update(batch)
    watch.note("update", (time.perf_counter_ns() - began) / rows)


def _time_moves(watch: Stopwatch, store: Layout, keys: Keys) -> None:
    """Half of the key groups to another store, and back into the one that still has the other half."""
    moved = int(np.count_nonzero(keys.groups < len(FIRST_HALF)))
    for _ in watch.rounds():
        with closing(store.fresh()) as other:
            _move(watch, store, other, moved)
            watch.time("merge", moved, partial(_merge, other, store))


def _move(watch: Stopwatch, source: Layout, target: Layout, moved: int) -> None:
    began = time.perf_counter_ns()
    payload = watch.time("extract", moved, partial(source.extract, FIRST_HALF))
    watch.time("install", moved, partial(target.install, payload))
    source.discard(FIRST_HALF)
    watch.note("repartition", (time.perf_counter_ns() - began) / moved)


def _merge(source: Layout, target: Layout) -> None:
    target.install(source.extract(FIRST_HALF))
    source.discard(FIRST_HALF)


def check(make: Callable[[Shape], Layout], shape: Shape, keys: int) -> None:
    """Go through a small history beside plain dicts; raise WrongAnswer where they differ."""
    inputs = Inputs(shape, keys)
    with closing(make(shape)) as store, closing(store.fresh()) as other:
        model = DictLayout(shape)
        for part, states in inputs.states():
            store.fill(part, states)
        # States of containers are shared with the model otherwise.
        for part, states in Inputs(shape, keys).states():
            model.fill(part, states)
        _same("fill", store.state(), model.state())
        for _ in range(2):
            batch = inputs.batch(CHECK_ROWS)
            committed = model.state()
            store.update(batch)
            model.update(batch)
            if store.epochs:
                read = {key: store.read(group, key) for group, key in inputs.keys.pairs()}
                _same("read inside an epoch", read, committed)
            store.commit()
            _same("commit", store.state(), model.state())
        if store.epochs:
            store.update(inputs.batch(CHECK_ROWS))
            store.abort()
            _same("abort", store.state(), model.state())
        many = store.read_many(inputs.keys)
        if len(many) != keys or store.scan() != keys:
            raise WrongAnswer("reading many keys or scanning left some out")
        other.install(store.extract(FIRST_HALF))
        store.discard(FIRST_HALF)
        _same("repartition", store.state() | other.state(), model.state())
        if store.state().keys() & other.state().keys() or not other.state():
            raise WrongAnswer("after a repartition a key is in both stores, or none has moved")
        store.install(other.extract(FIRST_HALF))
        _same("merge", store.state(), model.state())
        batch = inputs.batch(CHECK_ROWS)
        store.update(batch)
        model.update(batch)
        store.commit()
        _same("update after a merge", store.state(), model.state())


def _same(step: str, got: dict[int, Any], truth: dict[int, Any]) -> None:
    if got == truth:
        return
    wrong = next(key for key in truth.keys() | got.keys() if got.get(key) != truth.get(key))
    raise WrongAnswer(f"after {step}: key {wrong} is {str(got.get(wrong))[:80]}, not {str(truth.get(wrong))[:80]}")


def memory() -> int:
    """Memory of this process alone, after what is not in use went back to the system."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return int(psutil.Process().memory_full_info().uss)
