"""``python -m bedload.testing.simulate``: run simulations by seed, and replay one with its story."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence

from bedload.testing.simulator import Report, simulate


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; 1 if a seed failed."""
    parser = argparse.ArgumentParser(
        prog="python -m bedload.testing.simulate",
        description="Simulate the epoch protocol from a seed: crashes, retries, zombies, restarts; and where state is "
        "in a checkpoint, lost workers, lost and paused programs, set back queries, a failing store.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="one seed")
    which.add_argument("--seeds", type=_range, metavar="FROM:TO", help="many seeds, TO excluded")
    parser.add_argument("--moves", action="store_true", help="change the cluster while it runs")
    parser.add_argument("--trace", action="store_true", help="print every message and event")
    options = parser.parse_args(arguments)
    seeds = [options.seed] if options.seed is not None else options.seeds
    failed, faults, endings, modes, changes, stages = [], *(Counter[str]() for _ in range(5))
    for seed in seeds:
        try:
            report = simulate(seed, moves=options.moves, tracing=options.trace)
        except AssertionError as error:
            failed.append(seed)
            print(error)
            continue
        faults += report.faults
        changes += report.changes
        stages += report.stages
        endings.update(report.endings.values())
        modes[_mode(report)] += 1
        if len(seeds) == 1:
            _tell(report)
    if len(seeds) > 1:
        print(f"{len(seeds)} seeds, {len(failed)} failed")
        print("state: " + ", ".join(f"{count} {mode}" for mode, count in modes.most_common()))
        print("faults: " + ", ".join(f"{count} {fault}" for fault, count in faults.most_common()))
        print("queries: " + ", ".join(f"{count} {ending}" for ending, count in endings.most_common()))
        if options.moves:
            print("changes: " + ", ".join(f"{count} {change}" for change, count in changes.most_common()))
            print("stages: " + ", ".join(f"{count} {stage}" for stage, count in stages.most_common()))
    return 1 if failed else 0


def _tell(report: Report) -> None:
    for line in report.story:
        print(line)
    print(
        f"seed {report.seed}: {report.kind.name} on {report.workers} workers, state {_mode(report)}, "
        f"{report.attachments} attachments, {report.events} events, {report.turns} turns, "
        f"{report.committed} epochs committed, {report.aborted} turns rolled back"
    )
    print("faults: " + (", ".join(f"{n} {fault}" for fault, n in report.faults.items() if n) or "none"))
    print("queries: " + ", ".join(f"{query} {ending}" for query, ending in report.endings.items()))
    if report.changes:
        print("changes: " + ", ".join(f"{n} {change}" for change, n in report.changes.items()))


def _mode(report: Report) -> str:
    return "in a checkpoint" if report.durable else "in memory only"


def _range(text: str) -> range:
    first, _, last = text.partition(":")
    try:
        return range(int(first), int(last))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write FROM:TO, such as 0:500") from None


if __name__ == "__main__":
    raise SystemExit(main())
