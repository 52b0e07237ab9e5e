"""Bytewax and Pathway as systems of the counter: the same rows, through engines that are not Spark.

Invariants:
- The keys are those of `bench.source`, in the same order and the same batches: `row_keys` is
  `key_expression` in NumPy, bit for bit.
- A peer counts in processes of its own, started from the isolated one, so its memory is counted and it
  is ended with it; those processes import nothing but NumPy and the peer.
- A rate is rows over the time from the moment the warm-up rows were counted to the moment all were.

Why another interpreter is allowed (`BENCH_PEERS_PYTHON`): Pathway asks for another version of pyarrow
than Bedload is measured with.

How each is run, as it does best on two cores: Bytewax as two processes with one worker each, since its
operators are Python and share a lock inside a process; Pathway with two threads of its own engine and its
own CSV reader, at most one batch ahead, since its Python source is several times slower. Bytewax has no key
types but strings, so its keys are strings. Both keep their state in memory here.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PYTHON_VARIABLE = "BENCH_PEERS_PYTHON"
INSTALL = "pip install bedload[bench-peers]"
PROCESSES = 2
TIMEOUT = 300.0
CHECK_KEYS, CHECK_BATCH_ROWS, CHECK_BATCHES = 10_000, 300_000, 2
COMMIT_MS = 20
LONGER = {"bytewax": 1, "pathway": 3}
"""How many times the batches to measure: Pathway's two readers commit in pairs, so few batches say little."""

Mark = tuple[float, int]
"""A moment, and how many rows had been counted by then."""


def row_keys(start: int, stop: int, keys: int) -> npt.NDArray[np.int64]:
    """The keys of the rows from `start` on, as `bench.source.key_expression` makes them."""
    from bedload.keys.xxh64 import hash_ints, hash_longs
    from bench.source import SCATTER, SEED

    rows = np.arange(start, stop, dtype=np.int64)
    first = np.full(len(rows), 42, np.uint64)  # Spark's seed; each further column is hashed with the hash before it
    hashes = hash_ints(np.full(len(rows), SEED, np.int32), hash_longs(rows, first)).view(np.int64)
    found: npt.NDArray[np.int64] = np.where(rows < keys, rows * SCATTER % keys, hashes % keys)
    return found


# --- inside the isolated process


def need(package: str) -> None:
    """Raise NotAvailable unless the interpreter for the peers can import it."""
    from bench.isolate import NotAvailable

    asked = subprocess.run([_python(), "-c", f"import {package}"], capture_output=True, text=True)
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or ["no message"])[-1]
        if "ModuleNotFoundError" not in last:
            raise NotAvailable(f"{package} cannot be imported: {last}")
        raise NotAvailable(INSTALL)


def measure(
    peer: str, keys: int, batch_rows: int, warmup: int, batches: int, check: bool, root: Path
) -> dict[str, Any]:
    """Check, if asked, then time one peer; the figures are those of a Spark run."""
    if check:
        _check(peer, root / "check")
    total, before = batch_rows * (warmup + batches * LONGER[peer]), batch_rows * warmup
    made = _run(peer, root / "timed", keys, batch_rows, total, keep=False)
    version = f"{peer} {made['version']}, state in memory only"
    return {**rate_of(made["marks"], before, total), "note": version, "java": ""}


def rate_of(logs: Sequence[Sequence[Mark]], before: int, total: int) -> dict[str, Any]:
    """The rate between the moment `before` rows were counted and the end, from the marks of each process."""
    counted = dict.fromkeys(range(len(logs)), 0)
    joined = []
    for at, process, rows in sorted((at, i, rows) for i, log in enumerate(logs) for at, rows in log):
        counted[process] = rows
        joined.append((at, sum(counted.values())))
    ended = joined[-1][1] if joined else 0
    if ended != total:
        from bench.isolate import WrongAnswer

        raise WrongAnswer(f"{ended:,} rows were counted instead of {total:,}")
    begin, already = next((at, rows) for at, rows in joined if rows >= before) if before else joined[0]
    end = next(at for at, rows in joined if rows == total)
    if already >= total or end <= begin:
        raise RuntimeError("all rows were counted at once: there is nothing between two moments to measure")
    rate = (total - already) / (end - begin)
    steps = [at for at, rows in joined if rows >= already and at <= end]
    slowest = max(b - a for a, b in pairwise(steps))
    return {"rows": total - already, "rows_per_s": rate, "wall_rows_per_s": rate, "slowest_trigger_s": slowest}


def _check(peer: str, root: Path) -> None:
    from bench.isolate import WrongAnswer

    total = CHECK_BATCH_ROWS * CHECK_BATCHES
    made = _run(peer, root, CHECK_KEYS, CHECK_BATCH_ROWS, total, keep=True)
    got = np.zeros(CHECK_KEYS, np.int64)
    for counts in made["counts"]:
        for key, n in counts.items():
            got[int(key)] += n  # a key that two processes counted shows as a sum, too
    truth = np.bincount(row_keys(0, total, CHECK_KEYS), minlength=CHECK_KEYS)
    wrong = np.flatnonzero(got != truth)
    if len(wrong):
        key = int(wrong[0])
        raise WrongAnswer(
            f"{len(wrong):,} of {CHECK_KEYS:,} keys wrong, such as key {key}: {got[key]}, not {truth[key]}"
        )


def _run(peer: str, root: Path, keys: int, batch_rows: int, total: int, keep: bool) -> dict[str, Any]:
    """Start the peer's processes on the first `total` rows; what each of them says."""
    root.mkdir(parents=True)
    job: dict[str, Any] = {"peer": peer, "batch_rows": batch_rows, "total": total, "keep": keep}
    rows = row_keys(0, total, keys)
    if peer == "bytewax":
        np.save(root / "keys.npy", rows)
        job |= {"keys": str(root / "keys.npy"), "addresses": _addresses(PROCESSES)}
    else:
        _write_files(root / "in", rows, batch_rows)
        job |= {"files": str(root / "in")}
    count = PROCESSES if peer == "bytewax" else 1
    answers = [root / f"answer-{i}.json" for i in range(count)]
    children = []
    for i, answer in enumerate(answers):
        arguments = json.dumps({**job, "process": i, "answer": str(answer)})
        environment = {**os.environ, "PATHWAY_THREADS": str(PROCESSES)}
        children.append(subprocess.Popen([_python(), "-m", "bench.counter_peers", arguments], env=environment))
    codes = [child.wait(TIMEOUT) for child in children]
    if any(codes) or not all(answer.exists() for answer in answers):
        raise RuntimeError(f"{peer} ended with {codes}")
    said = [json.loads(answer.read_text(encoding="utf-8")) for answer in answers]
    return {"version": said[0]["version"], **{name: [one[name] for one in said] for name in ("marks", "counts")}}


def _python() -> str:
    return os.environ.get(PYTHON_VARIABLE) or sys.executable


def _addresses(count: int) -> list[str]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{server.getsockname()[1]}" for server in sockets]


def _write_files(place: Path, rows: npt.NDArray[np.int64], batch_rows: int) -> None:
    place.mkdir()
    for number, begin in enumerate(range(0, len(rows), batch_rows)):
        file = place / f"{number:06}.csv"
        lines = "\n".join(map(str, rows[begin : begin + batch_rows].tolist()))
        file.write_text(f"key\n{lines}\n", encoding="utf-8")
        os.utime(file, (number, number))  # Pathway reads in the order of modification


# --- inside the peer's own processes


def _count_by_bytewax(job: dict[str, Any]) -> dict[str, Any]:
    import bytewax.operators as op  # type: ignore[import-not-found]
    from bytewax.dataflow import Dataflow  # type: ignore[import-not-found]
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition  # type: ignore[import-not-found]
    from bytewax.outputs import DynamicSink, StatelessSinkPartition  # type: ignore[import-not-found]
    from bytewax.testing import cluster_main  # type: ignore[import-not-found]

    batch_rows, keep = job["batch_rows"], job["keep"]
    keys = np.load(job["keys"], mmap_mode="r")
    counted = 0
    marks: list[Mark] = []
    last: dict[str, int] = {}

    class Part(StatefulSourcePartition):  # type: ignore[misc]
        def __init__(self, part: int) -> None:
            self._part, self._at = part, 0

        def next_batch(self) -> list[tuple[str, None]]:
            if self._at >= len(keys):
                raise StopIteration
            batch = keys[self._at : self._at + batch_rows][self._part :: PROCESSES]
            self._at += batch_rows
            return [(key, None) for key in map(str, batch.tolist())]

        def snapshot(self) -> int:
            return self._at

    class Source(FixedPartitionedSource):  # type: ignore[misc]
        def list_parts(self) -> list[str]:
            return [str(part) for part in range(PROCESSES)]

        def build_part(self, step_id: str, for_part: str, resume_state: Any) -> Part:
            return Part(int(for_part))

    class Count(op.StatefulBatchLogic):  # type: ignore[misc]
        __slots__ = ("n",)

        def __init__(self) -> None:
            self.n = 0

        def on_batch(self, values: list[None]) -> tuple[tuple[int], bool]:
            nonlocal counted
            rows = len(values)
            counted += rows
            self.n += rows
            return (self.n,), False

        def snapshot(self) -> int:
            return self.n

    class Output(StatelessSinkPartition):  # type: ignore[misc]
        def write_batch(self, items: list[tuple[str, int]]) -> None:
            marks.append((time.monotonic(), counted))
            if keep:
                last.update(items)

    class Sink(DynamicSink):  # type: ignore[misc]
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Output:
            return Output()

    flow = Dataflow("counter")
    rows = op.input("rows", flow, Source())
    op.output("out", op.stateful_batch("count", rows, lambda state: Count()), Sink())
    cluster_main(flow, job["addresses"], job["process"])
    return {"marks": marks, "counts": last}


def _count_by_pathway(job: dict[str, Any]) -> dict[str, Any]:
    import pathway as pw  # type: ignore[import-not-found]

    total, keep = job["total"], job["keep"]
    marks: list[Mark] = []
    last: dict[int, int] = {}

    def finish() -> None:
        # A streaming source never ends, and Pathway has no way to stop a run from inside.
        _answer(job, {"marks": marks, "counts": last})
        os._exit(0)

    def on_count(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        if is_addition:
            last[row["key"]] = row["n"]

    def on_count_end(time: int) -> None:
        if sum(last.values()) >= total:
            finish()

    def on_total(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        if is_addition:
            marks.append((monotonic(), row["rows"]))
            if row["rows"] >= total and not keep:
                finish()

    monotonic = time.monotonic
    schema = pw.schema_from_types(key=int)
    rows = pw.io.csv.read(
        job["files"], schema=schema, autocommit_duration_ms=COMMIT_MS, max_backlog_size=job["batch_rows"]
    )
    counts = rows.groupby(rows.key).reduce(rows.key, n=pw.reducers.count())
    if keep:
        pw.io.subscribe(counts, on_change=on_count, on_time_end=on_count_end)
    else:
        pw.io.null.write(counts)
    # The number of rows tells how far it is. It may be told before the counts of its commit are done, at the begin of
    # the measured rows as at their end, so the time between them is right.
    pw.io.subscribe(rows.reduce(rows=pw.reducers.count()), on_change=on_total)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    raise RuntimeError("Pathway stopped before all rows were counted")


def _answer(job: dict[str, Any], said: dict[str, Any]) -> None:
    from importlib import metadata

    said["version"] = metadata.version(job["peer"])
    partial = Path(job["answer"] + ".partial")
    partial.write_text(json.dumps(said), encoding="utf-8")
    partial.rename(job["answer"])


if __name__ == "__main__":
    asked: dict[str, Any] = json.loads(sys.argv[1])
    if asked["peer"] == "bytewax":
        _answer(asked, _count_by_bytewax(asked))
    else:
        _count_by_pathway(asked)
