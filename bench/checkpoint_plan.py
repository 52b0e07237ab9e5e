"""What the checkpoint benchmark measures, in which order, and which ratios come out of it. Pure.

Invariants:
- What is compared runs one after the other, and in each round in the opposite order, so that a slow spell of the
  machine hits both.
- A ratio of things that run in every round is the median of the rounds' ratios: two runs of one round have more in
  common than medians of all.
- A ratio needs both sides; one that was not measured is left out.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from bench.checkpoint_fill import MAP, FillRun
from bench.checkpoint_restore import DELTAS, LAYOUTS, RestoreRun
from bench.checkpoint_throughput import BUILDS, STATES, ThroughputRun
from bench.report import Result, short_count

Part = Literal["throughput", "fill", "restart", "restore"]

FEW_KEYS, SOME_KEYS, MANY_KEYS = 10_000, 100_000, 1_000_000
BATCH_ROWS = 500_000
CHANGED = 10_000
OWN, PEER = "bedload-aggregate", "spark-native-rocksdb"

TARGETS: Mapping[str, tuple[str, float]] = {
    "durable_vs_memory_10k": (">=", 0.85),
    "durable_vs_memory_1m": (">=", 0.85),
    "bytes_vs_changed": ("<=", 1.5),
    "restart_vs_spark": (">=", 3.0),
}
"""By ratio. Others are told without one."""


@dataclass(frozen=True)
class Job:
    """One measurement in a process of its own."""

    part: Part
    system: str
    params: Mapping[str, Any]
    target: str
    run: Mapping[str, Any]
    place: str
    """The folder of its state; jobs that go on with the same state have the same."""
    shown: str
    """The figure that says most, and how to print it."""

    @property
    def label(self) -> str:
        """For the console."""
        rest = [f"{value:,} {name}" if isinstance(value, int) else str(value) for name, value in self._told]
        return ", ".join([self.part, self.system, *rest])

    @property
    def _told(self) -> list[tuple[str, Any]]:
        return [(name.replace("_", " "), value) for name, value in self.params.items() if name != "part"]


def plan_round(number: int, quick: bool, parts: Collection[str]) -> list[Job]:
    """The jobs of one round, numbered from 0: what does not change between rounds is in the first alone."""
    jobs: list[Job] = []
    if "throughput" in parts:
        jobs += _throughput(number, quick)
    if number == 0:
        jobs += [job for job in _fills(quick) if "bytes" in parts or ("restart" in parts and _restarted(job))]
    if "restart" in parts:
        jobs += _restarts(number, quick)
    if "restore" in parts and number == 0:
        jobs += _restores(quick)
    return jobs


def _restarted(job: Job) -> bool:
    return bool(job.run["keys"] == MANY_KEYS)


def _throughput(number: int, quick: bool) -> list[Job]:
    systems = [OWN] if quick else list(BUILDS)
    states = STATES if number % 2 == 0 else STATES[::-1]
    settle = 2 if quick else 3
    batches = {FEW_KEYS: 5 if quick else 10, MANY_KEYS: 4 if quick else 8}
    runs = [
        ThroughputRun(system, state, keys, BATCH_ROWS, settle, batches[keys])
        for keys in batches
        for system in systems
        for state in states
    ]
    return [
        Job(
            "throughput",
            run.system,
            run.params,
            "bench.checkpoint_throughput:measure",
            asdict(run),
            f"throughput-{run.system}-{run.state}-{run.keys}",
            "{rows_per_s:,.0f} rows/s",
        )
        for run in runs
    ]


def _fill_runs(quick: bool) -> list[FillRun]:
    epochs = 4 if quick else 10
    runs = [FillRun(PEER, MANY_KEYS, CHANGED, epochs), FillRun(OWN, MANY_KEYS, CHANGED, epochs)]
    runs.append(FillRun(OWN, SOME_KEYS, CHANGED, epochs))
    return runs if quick else [*runs, FillRun(MAP, SOME_KEYS, CHANGED, epochs)]


def _fills(quick: bool) -> list[Job]:
    return [
        Job(
            "fill",
            run.system,
            run.params,
            "bench.checkpoint_fill:fill",
            asdict(run),
            run.place,
            "state made" if run.system == PEER else "{bytes_vs_changed:.2f} bytes written per byte changed",
        )
        for run in _fill_runs(quick)
    ]


def _restarts(number: int, quick: bool) -> list[Job]:
    runs = [run for run in _fill_runs(quick) if run.keys == MANY_KEYS]
    return [
        Job(
            "restart",
            run.system,
            {"part": "restart", "keys": run.keys},
            "bench.checkpoint_restart:restart",
            asdict(run),
            run.place,
            "{restart_s:.1f} s; the query alone {query_restart_s:.1f} s, warm {warm_restart_s:.1f} s",
        )
        for run in (runs if number % 2 == 0 else runs[::-1])
    ]


def _restores(quick: bool) -> list[Job]:
    runs = [
        RestoreRun(layout, MANY_KEYS, deltas, 5 if quick else 10)
        for layout in (LAYOUTS[:1] if quick else LAYOUTS)
        for deltas in (0, DELTAS)
    ]
    return [
        Job(
            "restore",
            f"bedload-{'aggregate' if run.layout == 'columns' else 'operator'}",
            run.params,
            "bench.checkpoint_restore:measure",
            asdict(run),
            f"restore-{run.layout}-{run.deltas}",
            "{restore_keys_per_s:,.0f} keys/s",
        )
        for run in runs
    ]


# --- ratios


def ratios_of(rounds: Sequence[Sequence[Result]]) -> dict[str, float]:
    """The ratios, by name; see the module."""
    found: dict[str, float | None] = {}
    for prefix, system in (("", OWN), ("operator_", "bedload-operator")):
        for keys in (FEW_KEYS, MANY_KEYS):
            same = {"part": "throughput", "keys": keys}
            found[f"{prefix}durable_vs_memory_{short_count(keys)}"] = _over(
                rounds,
                "rows_per_s",
                (system, {**same, "state": "durable"}),
                (system, {**same, "state": "memory"}),
            )
    for name, system, keys in (("", OWN, MANY_KEYS), ("_100k", OWN, SOME_KEYS), ("_map", MAP, SOME_KEYS)):
        at = {"part": "bytes", "keys": keys}
        found[f"bytes_vs_changed{name}"] = _first(rounds, system, at, "bytes_vs_changed")
    restarted = {"part": "restart"}
    for kind in ("", "query_", "warm_"):
        found[f"{kind}restart_vs_spark"] = _over(rounds, f"{kind}restart_s", (PEER, restarted), (OWN, restarted))
    for name, deltas in (("restore_vs_raw_read", 0), ("restore_with_deltas_vs_raw_read", DELTAS)):
        at = {"part": "restore", "layout": "columns", "deltas": deltas}
        own, raw = (_first(rounds, OWN, at, f"{what}_keys_per_s") for what in ("restore", "raw"))
        found[name] = None if own is None or raw is None else own / raw
    return {name: value for name, value in found.items() if value is not None}


def verdict(name: str, value: float) -> str:
    """How a ratio compares with its target."""
    if name not in TARGETS:
        return ""
    sign, bound = TARGETS[name]
    met = value >= bound if sign == ">=" else value <= bound
    return f"{sign} {bound:g}: {'met' if met else 'missed'}"


Which = tuple[str, Mapping[str, Any]]


def _over(rounds: Sequence[Sequence[Result]], figure: str, above: Which, below: Which) -> float | None:
    each = []
    for results in rounds:
        one, other = (_find(results, *which, figure) for which in (above, below))
        if one is not None and other is not None:
            each.append(one / other)
    return median(each) if each else None


def _first(rounds: Sequence[Sequence[Result]], system: str, params: Mapping[str, Any], figure: str) -> float | None:
    found = (_find(results, system, params, figure) for results in rounds)
    return next((value for value in found if value is not None), None)


def _find(results: Sequence[Result], system: str, params: Mapping[str, Any], figure: str) -> float | None:
    for result in results:
        if result.system == system and all(result.params.get(name) == value for name, value in params.items()):
            return result.figures.get(figure)
    return None
