"""``python -m tests.simulator``: run simulations by seed, on all cores, and repeat one with its story."""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TextIO

import msgspec

from bedload.core.clock import Clock, SystemClock
from tests.simulator.pool import CHUNK, Outcome, Pool, Task, tallies_of
from tests.simulator.simulation import Report, simulate

LIMIT = 20.0
"""Seconds of processor time that a seed may take; it takes a hundredth of that."""
MOST_FAILURES = 100
"""After so many it stops: something is wrong with all of them."""
_INTERRUPTED = 130
_SHOWN = 20
"""Failures that are told of with what went wrong; of the others the command is enough."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; 1 if a seed failed."""
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        return _one(options.seed, moves=options.moves, trace=options.trace, limit=options.limit)
    modes = [True] if options.moves else [False] if options.plain else [False, True]
    return _many(
        options.seeds,
        modes,
        jobs=options.jobs,
        limit=options.limit,
        most_failures=options.most_failures,
        json=options.json,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulator",
        description="Simulate whole clusters from seeds: crashes, retries, zombies, restarts, state that moves; and "
        "where state is in a checkpoint, lost workers, lost and paused programs, set back queries, a failing store. "
        "Of many seeds each runs twice, plain and with moves, unless --plain or --moves says which. The exit code "
        "is 1 if a seed failed.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="one seed, plain or with --moves, told in full")
    which.add_argument("--seeds", type=_seeds, metavar="N|FROM:TO", help="many seeds on all cores; TO is excluded")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--moves", action="store_true", help="change the cluster while it runs")
    mode.add_argument("--plain", action="store_true", help="do not change the cluster")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every message and event")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    parser.add_argument(
        "--limit", type=float, default=LIMIT, help=f"seconds of processor time for a seed (default: {LIMIT:g})"
    )
    parser.add_argument(
        "--most-failures", type=int, default=MOST_FAILURES, help=f"stop after so many (default: {MOST_FAILURES})"
    )
    parser.add_argument("--json", action="store_true", help="with --seeds: tell the result as JSON")
    return parser


def _one(seed: int, *, moves: bool, trace: bool, limit: float) -> int:
    try:
        report = simulate(seed, moves=moves, tracing=trace, limit=limit)
    except AssertionError as error:
        print(error)
        return 1
    _tell(report)
    return 0


def _tell(report: Report) -> None:
    for line in report.story:
        print(line)
    tallies = tallies_of(report)
    print(
        f"seed {report.seed}: {report.layout.value} ({report.kind.name}) on {report.workers} workers, "
        f"state {next(iter(tallies['state']))}, "
        f"{report.attachments} attachments, {report.events} events, {report.turns} turns, "
        f"{report.committed} epochs committed, {report.aborted} turns rolled back"
    )
    print("faults: " + (", ".join(f"{n} {fault}" for fault, n in tallies["faults"].items()) or "none"))
    print("queries: " + ", ".join(f"{query} {ending}" for query, ending in report.endings.items()))
    if report.changes:
        print("changes: " + ", ".join(f"{n} {change}" for change, n in report.changes.items()))


# --- many ---


@dataclass
class Sum:
    """What came of many simulations so far."""

    seeds: int
    wanted: int
    """Simulations that are to run."""
    done: int = 0
    failed: list[Outcome] = field(default_factory=list)
    tallies: dict[str, Counter[str]] = field(default_factory=dict)
    seconds: float = 0.0
    interrupted: bool = False

    def add(self, outcome: Outcome) -> None:
        """One more."""
        self.done += 1
        if outcome.error is not None:
            self.failed.append(outcome)
        for name, tally in outcome.tallies.items():
            self.tallies.setdefault(name, Counter()).update(tally)

    @property
    def rate(self) -> float:
        """Simulations a second."""
        return self.done / self.seconds if self.seconds else 0.0

    def line(self) -> str:
        """How far it is."""
        left = f"{_time((self.wanted - self.done) / self.rate)} left" if self.done else "starting"
        share = f"{self.done:,} of {self.wanted:,} done ({self.done / self.wanted:.0%})"
        return f"{share}, {len(self.failed)} failed, {self.rate:.1f} a second, {left}"


def _many(seeds: range, modes: list[bool], *, jobs: int, limit: float, most_failures: int, json: bool) -> int:
    clock = SystemClock()
    total = Sum(len(seeds), len(seeds) * len(modes))
    started = clock.monotonic()
    chunk = max(1, min(CHUNK, total.wanted // (4 * jobs)))
    progress = _Progress(sys.stderr, clock)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: it tells what is known so far
    try:
        pool = Pool(_tasks(seeds, modes, chunk), jobs=jobs, limit=limit, chunk=chunk)
        for outcome in pool.outcomes():
            if outcome is not None:
                total.add(outcome)
            total.seconds = clock.monotonic() - started
            if outcome is not None and outcome.error is not None:
                progress.say(f"failed: {outcome.task.command}")
            progress.tell(total)
            if len(total.failed) >= most_failures:
                total.interrupted = True
                break
    except KeyboardInterrupt:
        total.interrupted = True
    finally:
        signal.signal(signal.SIGTERM, before)
    total.seconds = clock.monotonic() - started
    progress.end()
    print(_as_json(total) if json else _as_text(total, modes))
    if total.failed:
        return 1
    return _INTERRUPTED if total.interrupted else 0


def _tasks(seeds: range, modes: list[bool], chunk: int) -> Iterator[Task]:
    """Both modes side by side, so that what is known after a while is known of both."""
    for start in range(seeds.start, seeds.stop, chunk):
        for moves, seed in itertools.product(modes, range(start, min(seeds.stop, start + chunk))):
            yield Task(seed, moves)


def _as_text(total: Sum, modes: list[bool]) -> str:
    how = "plain and with moves" if len(modes) > 1 else "with moves" if modes[0] else "plain"
    lines = [
        f"{name}: " + ", ".join(f"{n} {it}" for it, n in t.most_common()) for name, t in total.tallies.items() if t
    ]
    for number, outcome in enumerate(sorted(total.failed, key=lambda it: (it.task.moves, it.task.seed))):
        lines.append(f"failed: {outcome.task.command} --trace")
        if number < _SHOWN:
            lines += [f"    {line}" for line in str(outcome.error).splitlines()]
    lines.append(
        f"{total.seeds} seeds, {len(total.failed)} failed ({how}; {total.done} simulations in {_time(total.seconds)}, "
        f"{total.rate:.1f} a second)"
    )
    if total.interrupted:
        lines.append(f"interrupted: {total.wanted - total.done} simulations have not run")
    return "\n".join(lines)


def _as_json(total: Sum) -> str:
    told = {
        "seeds": total.seeds,
        "wanted": total.wanted,
        "done": total.done,
        "interrupted": total.interrupted,
        "seconds": round(total.seconds, 1),
        "failed": [
            {"seed": it.task.seed, "moves": it.task.moves, "error": it.error, "command": it.task.command}
            for it in total.failed
        ],
        "tallies": total.tallies,
    }
    return msgspec.json.format(msgspec.json.encode(told), indent=2).decode()


class _Progress:
    """Says how far it is: on a terminal in one line that changes, elsewhere in a line now and then."""

    def __init__(self, out: TextIO, clock: Clock) -> None:
        self._out = out
        self._clock = clock
        self._terminal = out.isatty()
        self._every = 0.5 if self._terminal else 30.0
        self._last = clock.monotonic()

    def tell(self, total: Sum) -> None:
        """Say it, unless it was just said."""
        now = self._clock.monotonic()
        if now - self._last >= self._every:
            self._last = now
            self._out.write(f"\r\x1b[K{total.line()}" if self._terminal else f"{total.line()}\n")
            self._out.flush()

    def say(self, line: str) -> None:
        """Say something that stays."""
        self.end()
        self._out.write(f"{line}\n")
        self._out.flush()

    def end(self) -> None:
        """The line that changes is not needed any more."""
        if self._terminal:
            self._out.write("\r\x1b[K")
            self._out.flush()


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _seeds(text: str) -> range:
    first, colon, last = text.partition(":")
    try:
        found = range(int(first), int(last)) if colon else range(int(text))
    except ValueError:
        found = range(0)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: write a count, such as 500, or FROM:TO, such as 1000:1500")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
