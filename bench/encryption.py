"""What encryption costs: frames between two processes, and rows of a query, plain beside TLS.

    python -m bench.encryption --quick
    python -m bench.encryption --frames-only --json out.json

Invariants:
- Plain and encrypted are measured in turn, round by round, each in a process tree of its own; medians are reported.
- Every frame that is timed was taken by the other end: it says so.
- A ratio is encrypted over plain of this run: 0.8 is four fifths of the plain speed, or of the plain time.

Why: connections are encrypted by default wherever they leave the machine, so whoever runs a cluster pays this.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from rich.console import Console

from bench.isolate import run_isolated
from bench.report import Column, Report, Result, Status, finish, machine_info, median_of_rounds, ratio

KINDS = ("plain", "tls")
RUN_SECONDS = 600.0
SMALL_BODY = 256
LARGE_BODY = 1 << 20
KEYS, BATCH_ROWS = 10_000, 500_000

FIGURES = {
    "round_trip_us": ("round trip µs", "{:,.0f}"),
    "small_frames_per_s": ("256 B frames/s", "{:,.0f}"),
    "large_mb_per_s": ("1 MiB bodies MB/s", "{:,.0f}"),
    "large_cpu_ms": ("CPU ms/MiB", "{:.2f}"),
    "connect_ms": ("connect ms", "{:.2f}"),
    "operator_rows_per_s": ("operator rows/s", "{:,.0f}"),
    "aggregate_rows_per_s": ("aggregate rows/s", "{:,.0f}"),
}
COLUMNS = tuple(Column(name, title, form) for name, (title, form) in FIGURES.items())

SERVER = """
import sys
import time
import msgspec
from bedload.transport import Credentials, Endpoint, Handler

class Counter(Handler):
    '''Answers every frame whose header is not empty by its own processor time, and says nothing about the others.'''
    def on_frame(self, peer, header, body):
        if header:
            peer.send(b"%f" % time.process_time())

credentials = msgspec.json.decode(sys.stdin.readline(), type=Credentials)
endpoint = Endpoint("127.0.0.1", credentials=credentials, handler=Counter())
print(endpoint.address, flush=True)
endpoint.run()
"""


# --- inside the isolated process


def frames(kind: str, quick: bool) -> dict[str, float]:
    """Frames to an endpoint in another process, and its answers."""
    from bedload.transport import Channel, Credentials

    credentials = Credentials.fresh(encrypted=kind == "tls")
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    scale = 1 if quick else 4
    try:
        server.stdin.write(msgspec.json.encode(credentials).decode() + "\n")
        server.stdin.flush()
        address = server.stdout.readline().strip()
        connects = []
        for _ in range(50 * scale):
            began = time.perf_counter()
            Channel.connect(address, credentials).close()
            connects.append(time.perf_counter() - began)
        with Channel.connect(address, credentials) as channel:
            trips = []
            for _ in range(2000 * scale):
                began = time.perf_counter()
                channel.send(b"?", (bytes(64),))
                channel.recv()
                trips.append(time.perf_counter() - began)
            small, _ = _stream(channel, SMALL_BODY, 20_000 * scale)
            large, processor = _stream(channel, LARGE_BODY, 500 * scale)
    finally:
        server.kill()
        server.wait()
    return {
        "round_trip_us": median(trips) * 1e6,
        "small_frames_per_s": small,
        "large_mb_per_s": large * LARGE_BODY / 1e6,
        "large_cpu_ms": processor * 1e3,
        "connect_ms": median(connects) * 1e3,
    }


def _stream(channel: Any, size: int, count: int) -> tuple[float, float]:
    """Frames a second, and processor seconds of both ends a frame; each batch is answered once it is all there."""
    body, batch = bytes(size), count // 20
    for _ in range(batch // 4):
        channel.send(b"", (body,))
    channel.send(b"ready")
    spent = float(channel.recv().header) + time.process_time()
    began = time.perf_counter()
    for _ in range(20):
        for _ in range(batch):
            channel.send(b"", (body,))
        channel.send(b"all here?")
        answer = channel.recv().header
    seconds = time.perf_counter() - began
    spent = float(answer) + time.process_time() - spent
    return 20 * batch / seconds, spent / (20 * batch)


def query(kind: str, quick: bool, workdir: str) -> dict[str, float]:
    """Rows a second of a running count, by an operator and by an aggregate."""
    import bedload as bl
    from bench import counter_bedload
    from bench.source import fill_batches, keyed_rows
    from bench.spark_run import make_session, run_timed

    root = Path(workdir)
    spark = make_session(f"encryption-{kind}", {}, root)
    warmup, batches = fill_batches(KEYS, BATCH_ROWS) + (1 if quick else 3), 3 if quick else 8
    found = {}
    try:
        for name in ("operator", "aggregate"):
            with bl.attach(spark, workers=counter_bedload.WORKERS, encrypt=kind == "tls") as cluster:
                out = getattr(counter_bedload, name)(cluster, keyed_rows(spark, KEYS, BATCH_ROWS))
                rate = run_timed(out, root / name, warmup, batches, RUN_SECONDS)
                found[f"{name}_rows_per_s"] = float(rate.as_json()["rows_per_s"])
    finally:
        spark.stop()
    return found


# --- around it


def measure(kind: str, options: argparse.Namespace, workdir: Path) -> Result:
    """Everything of one kind, once."""
    figures: dict[str, float] = {}
    parts: list[tuple[str, dict[str, Any]]] = [("frames", {})]
    if not options.frames_only:
        parts.append(("query", {"workdir": str(workdir / kind / "work")}))
    for part, more in parts:
        arguments = {"kind": kind, "quick": options.quick, **more}
        outcome = run_isolated(f"bench.encryption:{part}", arguments, workdir / kind / part, RUN_SECONDS)
        if outcome.value is None:
            return Result(kind, {}, Status.FAILED, {}, outcome.error)
        figures |= outcome.value
        figures["busy_cores_before"] = max(figures.get("busy_cores_before", 0.0), round(outcome.busy_cores, 2))
    return Result(kind, {}, Status.OK, figures)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if something failed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.encryption",
        description="What encryption costs: round trips, small and large frames, connections, and rows of a query.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer frames and batches, and one round")
    parser.add_argument("--frames-only", action="store_true", help="without the queries, so without Java")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds, median taken (3; 1 with --quick)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here as JSON too")
    options = parser.parse_args(arguments)
    rounds = options.rounds or (1 if options.quick else 3)
    console = Console(width=None if sys.stdout.isatty() else 150)
    workdir = Path(tempfile.mkdtemp(prefix="bedload-bench-"))
    found: dict[str, list[Result]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        for kind in KINDS:
            with console.status(f"round {number + 1} of {rounds}, {kind}"):
                found[kind].append(measure(kind, options, workdir / f"round-{number}"))
    results = [median_of_rounds(found[kind]) for kind in KINDS]
    ratios = {}
    for figure in FIGURES:
        value = ratio(results, "tls", ("plain",), figure)
        if value is not None:
            ratios[f"tls_vs_plain_{figure}"] = value
    settings = {"quick": options.quick, "rounds": rounds, "keys": KEYS, "batch_rows": BATCH_ROWS}
    title = f"plain and encrypted connections on loopback, median of {rounds} round(s)"
    report = Report("encryption", results, COLUMNS, ratios, settings, machine_info(), title)
    return finish(report, console, workdir, tables=report.tables(), json_file=options.json)


if __name__ == "__main__":
    sys.exit(main())
