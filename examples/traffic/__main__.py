"""``python -m examples.traffic``: run the traffic demo, watch it, and check what came out.

Exits with 0 if the check is good, with 1 if it is not or the run failed, with 130 if it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.live import Live

import bedload as bl
from bedload.core.clock import Clock, SystemClock
from bedload.core.errors import BedloadError
from bedload.spark.supervisor import Supervised
from examples.traffic.check import check_sink, check_state, sample, shown
from examples.traffic.measure import CarState, Monitor, Snapshot
from examples.traffic.moves import Moves, latency_table
from examples.traffic.operators import OUTPUT, Trip
from examples.traffic.oracle import Oracle
from examples.traffic.reports import MAX_SEGMENTS, Traffic, car_name
from examples.traffic.session import Interrupt, start_session, tail
from examples.traffic.source import TrafficSource
from examples.traffic.victim import Victim
from examples.traffic.view import line, render, report

CORES = 2
SAMPLE = 200
LOOK_SECONDS = 0.25
COMMIT_SECONDS = 10.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; the exit code."""
    args = _parser().parse_args(argv)
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="bedload-demo-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        # The terminal is the view's: what the cluster has to say about the worker that is killed goes to a file.
        log = logging.getLogger("bedload")
        log.propagate = False
        log.addHandler(logging.FileHandler(folder / "bedload.log"))
        try:
            traffic = Traffic(
                cars=args.cars,
                segments=args.segments,
                rate=args.rate,
                total=args.rate * args.seconds,
                partitions=min(CORES, args.cars),
                seed=args.seed,
            )
            summary = _run(
                traffic,
                args.workers,
                folder,
                console,
                plain=args.plain,
                kill=not args.no_kill,
                move=not args.no_move,
            )
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130
        except (BedloadError, PySparkException) as error:
            print(f"the demo failed: {error}", file=sys.stderr)
            if isinstance(error, PySparkException):  # ours say all there is to say
                print(f"the end of Spark's log:\n{tail(folder / 'spark.log')}", file=sys.stderr)
            return 1
    if args.json is not None:
        args.json.write_text(json.dumps(summary, indent=2) + "\n")
    return 0 if summary["check"]["ok"] else 1


def _run(
    traffic: Traffic, workers: int, folder: Path, console: Console, *, plain: bool, kill: bool, move: bool
) -> dict[str, Any]:
    console.print(f"Starting Spark {pyspark.__version__} on {CORES} cores ...")
    spark = start_session(folder, CORES)
    try:
        console.print(f"Starting {workers} worker{'s' if workers != 1 else ''} and the query ...")
        state = (folder / "state").as_uri()
        with Interrupt() as interrupt, bl.attach(spark, workers=workers, checkpoint=state) as cluster:
            running = _start(spark, cluster, traffic, folder)
            clock = SystemClock()
            victim = Victim(cluster, int(traffic.total * 0.6), clock) if kill else None
            moves = Moves(cluster, workers, watched_car(traffic), traffic.total) if move else None
            try:
                monitor = _watch(running, cluster, traffic, console, interrupt, clock, victim, moves, plain=plain)
                if moves is not None:
                    moves.finish()
                running.query.processAllAvailable()
                _await_commit(running, cluster, monitor)
            finally:
                running.stop()
            for event in monitor.events:
                console.print(f"event     {event}", soft_wrap=True)
            overall = monitor.overall()
            console.print(report(overall), soft_wrap=True)
            moved = [] if moves is None else moves.report()
            if moved:
                console.print(latency_table(moved), soft_wrap=True)
            check = _check(spark, cluster, Oracle(traffic), folder, console)
    finally:
        spark.stop()
    return {
        "parameters": {**asdict(traffic), "workers": workers},
        "versions": {
            "bedload": bl.__version__,
            "spark": pyspark.__version__,
            "python": platform.python_version(),
        },
        **asdict(overall),
        "events": monitor.events,
        "moves": moved,
        "restarts": running.restarts,
        "check": check,
    }


def _start(spark: SparkSession, cluster: bl.Cluster, traffic: Traffic, folder: Path) -> Supervised:
    spark.dataSource.register(TrafficSource)
    cars = spark.readStream.format(TrafficSource.name()).options(**traffic.options()).load()
    trips = cluster.apply(cars, key="car", operator=Trip, schema=OUTPUT)
    return cluster.run(
        trips.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("path", str(folder / "sink"))
    )


def _watch(
    running: Supervised,
    cluster: bl.Cluster,
    traffic: Traffic,
    console: Console,
    interrupt: Interrupt,
    clock: Clock,
    victim: Victim | None,
    moves: Moves | None,
    *,
    plain: bool,
) -> Monitor:
    """Show the run until all of the traffic went through."""
    monitor = Monitor(traffic.total, traffic.rate, cluster.workers)
    watched = watched_car(traffic)

    def look() -> Snapshot:
        monitor.take_progress(running.query.recentProgress)
        monitor.take_epochs(cluster.epochs())
        monitor.take_workers(cluster.workers)
        # Not both at once, so that one can see what each does.
        killing = victim is not None and victim.busy
        if moves is not None:
            moves.look(monitor.rows, hold=killing)
        if victim is not None and not (moves is not None and moves.busy):
            victim.look(monitor.rows)
        monitor.events[:] = happened(victim, moves)
        found = cluster.state(Trip).get(watched)
        return monitor.snapshot(None if found is None else CarState(watched, int(found.epoch), dict(found)))

    def follow(show: Callable[[Snapshot], None], seconds: float) -> None:
        due = clock.monotonic() + seconds
        while monitor.rows < traffic.total and not _ended(running):
            interrupt.check()
            snapshot = look()
            if clock.monotonic() >= due:
                due += seconds
                show(snapshot)
        show(look())

    if plain or not console.is_terminal or console.options.ascii_only:
        follow(lambda snapshot: print(line(snapshot), flush=True), 1.0)
    else:
        with Live(render(monitor.snapshot()), console=console, auto_refresh=False) as live:
            follow(lambda snapshot: live.update(render(snapshot), refresh=True), LOOK_SECONDS)
    return monitor


def watched_car(traffic: Traffic) -> str:
    """The car whose live state is shown, and which is moved."""
    return car_name(min(17, traffic.cars - 1))


def happened(victim: Victim | None, moves: Moves | None) -> list[str]:
    """What happened besides epochs, oldest first as far as that matters."""
    first = [] if moves is None else moves.events[:2]
    last = [] if moves is None else moves.events[2:]
    return [*first, *([] if victim is None else victim.events), *last]


def _ended(running: Supervised) -> bool:
    """Whether the query ended within a short while. Raises what it failed with."""
    return running.await_termination(LOOK_SECONDS)


def _await_commit(running: Supervised, cluster: bl.Cluster, monitor: Monitor) -> None:
    """Wait until the cluster, too, has the last epoch as committed; then take what it has come to."""
    query = str(running.query.id)
    waited = 0.0
    while cluster.committed(Trip.__name__).get(query, -1) < monitor.last_epoch and waited < COMMIT_SECONDS:
        _ended(running)
        waited += LOOK_SECONDS
    monitor.take_epochs(cluster.epochs())
    monitor.take_workers(cluster.workers)
    monitor.take_keys({row["worker"]: row["keys"] for row in cluster.stores()})


def _check(spark: SparkSession, cluster: bl.Cluster, oracle: Oracle, folder: Path, console: Console) -> dict[str, Any]:
    cars = sample(range(oracle.traffic.cars), SAMPLE)
    differences = check_state(oracle, cars, cluster.state(Trip).get)
    # Spark's own reader: it knows which of the files its sink has committed.
    table = spark.read.parquet(str(folder / "sink")).toArrow()
    differences += check_sink(oracle, table)
    seen = len(oracle.seen())
    if differences:
        console.print(f"check: FAILED, {len(differences)} differences from the oracle", style="bold red")
        for difference in shown(differences):
            print(f"  {difference}")
    else:
        console.print(
            f"check: OK, {len(cars):,} states and {table.num_rows:,} outputs of {seen:,} cars equal the oracle's",
            style="bold green",
            soft_wrap=True,
        )
    return {
        "ok": not differences,
        "states": len(cars),
        "cars": seen,
        "outputs": table.num_rows,
        "differences": shown(differences),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.traffic",
        description=(
            "Cars report their speed through a Spark stream; a Bedload operator keeps each car's trip; the "
            "terminal shows throughput, epochs, workers and one car's live state. While the stream goes on, the demo "
            "adds two workers, moves one car to another worker, kills a worker (kill -9), and takes the two workers "
            "away again. At the end it shows what happened to latency meanwhile, and checks state and outputs "
            "against an oracle that uses neither Bedload nor Spark."
        ),
    )
    add = parser.add_argument
    add("--cars", type=_positive, default=5000, metavar="N", help="number of cars, the keys (default: %(default)s)")
    add("--rate", type=_positive, default=20_000, metavar="N", help="rows per second (default: %(default)s)")
    add("--workers", type=_positive, default=2, metavar="N", help="Bedload workers (default: %(default)s)")
    add("--seconds", type=_positive, default=45, metavar="N", help="length of the traffic (default: %(default)s)")
    add(
        "--segments",
        type=_positive,
        default=40,
        metavar="N",
        help=f"road segments, at most {MAX_SEGMENTS} (default: %(default)s)",
    )
    add("--seed", type=int, default=7, metavar="N", help="another number, other traffic (default: %(default)s)")
    add("--no-kill", action="store_true", help="kill no worker")
    add("--no-move", action="store_true", help="move no state")
    add("--plain", action="store_true", help="one line per second instead of the live view, for logs")
    add("--json", type=_new_file, metavar="FILE", help="write the summary to a file")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def _new_file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():  # better now than after the run
        raise argparse.ArgumentTypeError(f"{text} cannot be written: its folder is missing, or it is one")
    return path


if __name__ == "__main__":
    sys.exit(main())
