"""Many simulations on all cores.

Each process runs one chunk of seeds and ends, so that memory does not grow; it tells of every seed as it is done. A
seed that takes too long fails: it is interrupted within its process, or, if it does not come back from compiled code,
its process is ended from here. A process that dies fails the seed that it was at; another one goes on with the rest.

Invariant: every seed that was asked for is told of once, unless the pool is closed before.
"""

from __future__ import annotations

import gc
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from bedload.core.clock import Clock, SystemClock
from tests.simulator.simulation import Report, simulate

_PRELOAD = ["tests.simulator.pool", "tests.simulator.workload_columns", "bedload.checkpoint.restore"]
"""What processes have when they begin: also, code that changes meanwhile does not reach those that begin later."""
CHUNK = 250
"""Seeds of one process."""
PATIENCE = 6.0
"""A process that says nothing for so many times the limit of a seed is ended: the machine may have other work."""
_COLLECT_EVERY = 25
"""Seeds between two garbage collections: a run is short, and collects nothing by itself."""
_SAID = 2000
"""Characters of an error that are kept."""


@dataclass(frozen=True)
class Task:
    """One simulation."""

    seed: int
    moves: bool

    @property
    def command(self) -> str:
        """What repeats it."""
        return f"python -m tests.simulator --seed {self.seed}{' --moves' if self.moves else ''}"


@dataclass(frozen=True)
class Outcome:
    """What came of a simulation."""

    task: Task
    error: str | None = None
    tallies: dict[str, Counter[str]] = field(default_factory=dict)
    """What happened, by kind: faults, endings, changes, phases, where state was."""


Run = Callable[[Task, float], Outcome]
"""Runs one simulation within a limit."""


def run(task: Task, limit: float) -> Outcome:
    """Run one simulation; what is wrong is in the outcome."""
    try:
        report = simulate(task.seed, moves=task.moves, limit=limit)
    except AssertionError as error:
        return Outcome(task, str(error))
    return Outcome(task, None, tallies_of(report))


def tallies_of(report: Report) -> dict[str, Counter[str]]:
    """What is counted over many simulations."""
    return {
        "state": Counter(["in a checkpoint" if report.durable else "in memory only"]),
        "layout": Counter([report.layout.name]),
        "faults": +report.faults,
        "queries": Counter(report.endings.values()),
        "changes": report.changes,
        "phases": report.phases,
    }


class Pool:
    """Processes that run simulations."""

    def __init__(
        self,
        tasks: Iterable[Task],
        *,
        jobs: int,
        limit: float,
        chunk: int = CHUNK,
        run: Run = run,
        clock: Clock | None = None,
    ) -> None:
        self._tasks = iter(tasks)
        self._jobs = jobs
        self._limit = limit
        self._chunk = chunk
        self._run = run
        self._clock = clock or SystemClock()
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOAD)
        self._back: deque[Task] = deque()
        """Tasks of processes that died before they came to them."""
        self._running: dict[Connection, _Process] = {}

    def outcomes(self, pause: float = 1.0) -> Iterator[Outcome | None]:
        """Every outcome as it comes; None now and then, so that whoever looks on can say that it goes on."""
        try:
            while self._start():
                for connection in wait(list(self._running), timeout=pause):
                    assert isinstance(connection, Connection)
                    yield from self._hear(connection)
                yield from self._end_stuck()
                yield None
        finally:
            self.close()

    def close(self) -> None:
        """End all processes, whatever they are doing."""
        for process in self._running.values():
            process.end()
        self._running.clear()

    def _start(self) -> bool:
        """Have as many processes as are wanted; False if there is nothing to do any more."""
        while len(self._running) < self._jobs and (chunk := self._next_chunk()):
            here, there = self._context.Pipe(duplex=False)
            child = self._context.Process(target=_work, args=(there, chunk, self._limit, self._run), daemon=True)
            child.start()
            there.close()
            self._running[here] = _Process(child, here, deque(chunk), self._clock.monotonic())
        return bool(self._running)

    def _next_chunk(self) -> list[Task]:
        chunk: list[Task] = []
        while len(chunk) < self._chunk:
            task = self._back.popleft() if self._back else next(self._tasks, None)
            if task is None:
                break
            chunk.append(task)
        return chunk

    def _hear(self, connection: Connection) -> Iterator[Outcome]:
        process = self._running[connection]
        try:
            outcome = connection.recv()
        except (EOFError, OSError):
            yield from self._gone(process, "its process died")
            return
        assert isinstance(outcome, Outcome)
        assert process.left.popleft() == outcome.task
        process.heard = self._clock.monotonic()
        yield outcome

    def _gone(self, process: _Process, why: str) -> Iterator[Outcome]:
        del self._running[process.connection]
        code = process.end()
        if process.left:
            yield Outcome(process.left.popleft(), f"{why} (exit code {code})")
        self._back += process.left

    def _end_stuck(self) -> Iterator[Outcome]:
        # The first seed of a process waits for what is compiled, too.
        latest = self._clock.monotonic() - PATIENCE * self._limit
        for process in [it for it in self._running.values() if it.heard < latest]:
            yield from self._gone(process, f"its process said nothing for {PATIENCE * self._limit:g} s and was ended")


@dataclass
class _Process:
    process: BaseProcess
    connection: Connection
    left: deque[Task]
    """The first one is under way."""
    heard: float

    def end(self) -> int | None:
        """It is not needed, or to be waited for, any more."""
        if self.left:
            self.process.kill()
        self.process.join()
        self.connection.close()
        return self.process.exitcode


def _work(connection: Connection, tasks: list[Task], limit: float, run: Run) -> None:
    """One process: the tasks, one after another."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    gc.freeze()
    for number, task in enumerate(tasks):
        outcome = run(task, limit)
        if outcome.error is not None and len(outcome.error) > _SAID:
            outcome = Outcome(task, f"{outcome.error[:_SAID]}…", outcome.tallies)
        connection.send(outcome)
        if number % _COLLECT_EVERY == _COLLECT_EVERY - 1:
            gc.collect()
    connection.close()
