"""What the benchmark of time measures, in which order, and which ratios come out of it. Pure.

Invariants:
- What is compared runs one after the other, and in each round in the opposite order, so that a slow spell of the
  machine hits both.
- A ratio is the median of the rounds' ratios, and needs both sides; one that was not measured is left out.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench import timers_beat
from bench.report import Result
from bench.timers_spark import SPARK

PARTS = ("timers", "ttl", "queries", "beat")
FEW_KEYS, MANY_KEYS = 10_000, 1_000_000
EPOCH_ROWS = 491_520
MAP_KEYS, MAP_ROWS = 20_000, 100_000
BATCH_ROWS = 50_000
"""Of the queries beside Spark's `transformWithState`, whose cost is per key and batch."""

TARGETS: Mapping[str, tuple[str, float]] = {
    "columns_timers_vs_plain": (">=", 0.8),
    "columns_timers_moved_vs_plain": (">=", 0.8),
    "rows_timers_vs_plain": (">=", 0.6),
    "columns_bytes_per_timer": ("<=", 32.0),
    "map_ttl_vs_plain": (">=", 0.7),
    "beat_trigger_ms_more": ("<=", timers_beat.TARGETS["trigger_ms_more"]),
    "beat_quiet_cpu_ms_per_s_more": ("<=", timers_beat.TARGETS["quiet_cpu_ms_per_s_more"]),
}
"""By ratio or figure. Others are told without one."""


@dataclass(frozen=True)
class Job:
    """One measurement in a process of its own."""

    part: str
    system: str
    variant: str
    target: str
    run: Mapping[str, Any]
    shown: str
    """The figure that says most, and how to print it."""
    slow: bool = False

    @property
    def params(self) -> dict[str, Any]:
        """What identifies it in the report."""
        return {"part": self.part, "variant": self.variant}

    @property
    def label(self) -> str:
        """For the console and for its folder."""
        return "-".join(it for it in (self.part, self.system, self.variant.replace(" ", "")) if it)


def plan_round(number: int, quick: bool, parts: Collection[str]) -> list[Job]:
    """The jobs of one round, numbered from 0."""
    order = 1 if number % 2 == 0 else -1
    found: list[Job] = []
    for part, jobs in (("timers", _timers), ("ttl", _ttl), ("queries", _queries), ("beat", _beat)):
        if part in parts:
            found += list(jobs(quick, number))[::order]
    return found


def _worker(part: str, system: str, variant: str, **run: Any) -> Job:
    run |= {"system": system, "variant": variant}
    return Job(part, system, variant, "bench.timers_worker:measure", run, "{rows_per_s:,.0f} rows per CPU second")


def _timers(quick: bool, number: int) -> Iterator[Job]:
    for system, epochs in (("columns", 6 if quick else 12), ("rows", 2 if quick else 4)):
        for variant in ("plain", "kept", "moved"):
            yield _worker("timers", system, variant, keys=MANY_KEYS, rows=EPOCH_ROWS, settle=2, epochs=epochs)


def _ttl(quick: bool, number: int) -> Iterator[Job]:
    for system in ("map", "aggregate", "arrays"):
        keys, rows = (MAP_KEYS, MAP_ROWS) if system == "map" else (MANY_KEYS, EPOCH_ROWS)
        for variant in ("plain", "ttl"):
            yield _worker("ttl", system, variant, keys=keys, rows=rows, settle=14, epochs=5 if quick else 10)


def _queries(quick: bool, number: int) -> Iterator[Job]:
    for variant in ("timers", "ttl") if quick else ("plain", "timers", "ttl"):
        for system in ("columns", "rows", SPARK):
            slow = system == SPARK
            batches = (3 if quick else 5) if slow else (15 if quick else 40)
            run = {"system": system, "variant": variant, "keys": FEW_KEYS, "batch_rows": BATCH_ROWS}
            run |= {"warmup": 2 if slow else 8, "batches": batches}
            yield Job("queries", system, variant, "bench.timers_spark:measure", run, "{rows_per_s:,.0f} rows/s")


def _beat(quick: bool, number: int) -> Iterator[Job]:
    for it in timers_beat.jobs(quick):
        shown = "{cpu_ms:.0f} ms of CPU per second" if it.part == "quiet" else "{trigger_ms:.0f} ms per trigger"
        yield Job("beat", it.system, it.variant, "bench.timers_beat:measure", it.run, shown)


# --- ratios


def ratios_of(rounds: Sequence[Sequence[Result]]) -> dict[str, float]:
    """What is compared, by name; see the module."""
    found: dict[str, float | None] = {}
    for system in ("columns", "rows"):
        plain = ("timers", system, "plain")
        for name, variant in (("timers", "kept"), ("timers_moved", "moved")):
            found[f"{system}_{name}_vs_plain"] = _over(rounds, "rows_per_s", ("timers", system, variant), plain)
        more = _more(rounds, "state_mb", ("timers", system, "kept"), plain)
        found[f"{system}_bytes_per_timer"] = None if more is None else more * 1e6 / MANY_KEYS
        found[f"{system}_million_timers_per_s"] = _figure(rounds, "fired_m_per_s", ("timers", system, "kept"))
    for system in ("map", "aggregate", "arrays"):
        found[f"{system}_ttl_vs_plain"] = _over(rounds, "rows_per_s", ("ttl", system, "ttl"), ("ttl", system, "plain"))
    for system in ("columns", "rows"):
        for variant in ("plain", "timers", "ttl"):
            both = ("queries", system, variant), ("queries", SPARK, variant)
            found[f"{system}_vs_transform_with_state_{variant}"] = _over(rounds, "rows_per_s", *both)
    for name, which, figure in timers_beat.COMPARED:
        found[f"beat_{name}"] = _worst_more(rounds, figure, which)
    return {name: value for name, value in found.items() if value is not None}


def verdict(name: str, value: float) -> str:
    """How a figure compares with its target."""
    if name not in TARGETS:
        return ""
    sign, bound = TARGETS[name]
    met = value >= bound if sign == ">=" else value <= bound
    return f"{sign} {bound:g}: {'met' if met else 'missed'}"


Which = tuple[str, str, str]
"""Part, system and variant."""


def _over(rounds: Sequence[Sequence[Result]], figure: str, above: Which, below: Which) -> float | None:
    return _median((one / other if other else None) for one, other in _pairs(rounds, figure, above, below))


def _more(rounds: Sequence[Sequence[Result]], figure: str, one: Which, other: Which) -> float | None:
    return _median(a - b for a, b in _pairs(rounds, figure, one, other))


def _worst_more(rounds: Sequence[Sequence[Result]], figure: str, variants: Sequence[str]) -> float | None:
    """What a beat adds, in the variant in which it is most."""
    each = (_more(rounds, figure, ("beat", "beat", it), ("beat", "without", it)) for it in variants)
    return max((value for value in each if value is not None), default=None)


def _figure(rounds: Sequence[Sequence[Result]], figure: str, which: Which) -> float | None:
    return _median(_find(results, which, figure) for results in rounds)


def _pairs(rounds: Sequence[Sequence[Result]], figure: str, one: Which, other: Which) -> Iterator[tuple[float, float]]:
    for results in rounds:
        found, against = _find(results, one, figure), _find(results, other, figure)
        if found is not None and against is not None:
            yield found, against


def _median(values: Any) -> float | None:
    found = [value for value in values if value is not None]
    return median(found) if found else None


def _find(results: Sequence[Result], which: Which, figure: str) -> float | None:
    part, system, variant = which
    for it in results:
        if (it.params["part"], it.system, it.params["variant"]) == (part, system, variant):
            return it.figures.get(figure)
    return None
