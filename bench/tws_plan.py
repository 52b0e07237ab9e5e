"""What the benchmark of ``transformWithState`` measures, and what its figures have to be. Pure.

Invariants:
- Both engines run the same cases, and a case of one is only compared with the very same case of the other.
- A verdict speaks of what was measured alone: a case that failed, or was not asked for, is not in it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.report import Result, Status, short_count
from bench.source import SCATTER, SEED

SPARK, BEDLOAD = "spark", "bedload"
SYSTEMS = (SPARK, BEDLOAD)
NAMES = ("count", "map", "list", "timers", "ttl")
FORMS = ("rows", "pandas")
KEYS = (10_000, 200_000)
BATCH_ROWS = (50_000, 500_000)
TARGET_KEYS = 10_000
"""The number of keys that targets are for."""
PRODUCTS = 10
FLOOR_ROWS = 2
"""Rows of an almost empty trigger: one in each partition."""


@dataclass(frozen=True)
class Case:
    """One processor on one load, in one engine."""

    system: str
    name: str
    form: str
    keys: int
    batch_rows: int

    @property
    def fill_batches(self) -> int:
        """How many triggers it takes until every key was seen."""
        return -(-self.keys // self.batch_rows)

    @property
    def floor(self) -> bool:
        """Whether it measures what a trigger costs that has hardly anything to do."""
        return self.batch_rows == FLOOR_ROWS

    def batches(self, full: bool) -> tuple[int, int]:
        """How many triggers warm up and how many are measured; Spark's take seconds each.

        SUBTLE: a slow engine gets fewer batches, never smaller ones: what it pays is per key and batch. A fast one
        gets more to warm up in, since the JVM compiles by time: with four, its triggers took a third longer.
        """
        if self.floor:
            return 5, 10
        slow = self.system == SPARK
        settle, measured = ((2, 3) if full else (1, 2)) if slow else (10, 10)
        return self.fill_batches + settle, measured

    @property
    def pauses(self) -> bool:
        """Whether keys are silent for a while, as timers need."""
        return self.name == "timers"

    @property
    def params(self) -> dict[str, Any]:
        """What identifies the measurement in the report."""
        return {"processor": self.name, "form": self.form, "keys": self.keys, "batch_rows": self.batch_rows}

    @property
    def label(self) -> str:
        """For people."""
        if self.floor:
            return f"{self.system}, an almost empty trigger"
        sizes = f"{short_count(self.keys)} keys, {short_count(self.batch_rows)} rows a batch"
        return f"{self.system}, {self.name}, {self.form}, {sizes}"

    def as_json(self) -> dict[str, Any]:
        """For the way to the isolated run."""
        return asdict(self)


def plan_cases(
    names: Sequence[str], forms: Sequence[str], keys: Sequence[int], batch_rows: Sequence[int], systems: Sequence[str]
) -> list[Case]:
    """All cases of a round; the engines side by side, so that a slow spell of the machine hits both."""
    floors = [Case(system, "count", "rows", FLOOR_ROWS, FLOOR_ROWS) for system in systems]
    return floors + [
        Case(system, name, form, k, rows)
        for k in keys
        for rows in batch_rows
        for form in forms
        for name in names
        for system in systems
    ]


def plan_quick(systems: Sequence[str]) -> list[Case]:
    """What takes some minutes: every processor in the Row form, one in the pandas form, small batches."""
    cases = plan_cases(NAMES, FORMS, (TARGET_KEYS,), (BATCH_ROWS[0],), systems)
    return [case for case in cases if case.form == "rows" or case.name == "count"]


# --- the load


def key_expression(keys: int, batch_rows: int, pauses: bool, row: str = "value") -> str:
    """The SQL expression for the key of row number `row`: each key once first, then spread by hash.

    With `pauses` a key has rows in two batches, none in two more, and so on; half of the keys are heard in each.
    """
    spread = f"pmod(xxhash64({row}, {SEED}), {keys}L)"
    if pauses:
        if keys % 4:
            raise ValueError(f"{keys} keys: with pauses they are a multiple of 4")
        number = f"pmod(xxhash64({row}, {SEED}), {keys // 2}L)"
        spread = f"({number} div 2) * 4 + pmod(({row} div {batch_rows}) + {number} % 2, 4)"
    return f"CASE WHEN {row} < {keys} THEN pmod({row} * {SCATTER}L, {keys}L) ELSE {spread} END"


# --- the verdicts


@dataclass(frozen=True)
class Verdict:
    """A ratio, what it has to be at least, and what bounds it."""

    name: str
    value: float
    least: float
    bound: float | None = None
    """What an engine would reach that does nothing but Bedload's trigger."""

    @property
    def met(self) -> bool:
        """Whether it is reached."""
        return self.value >= self.least


CPU_LEAST = 8.0


def least_rate(name: str, form: str) -> float:
    """How many times Spark's rows per second there have to be."""
    if name == "count":
        return 5.0 if form == "rows" else 4.0
    return 10.0 if form == "rows" else 8.0


def of_case(results: Sequence[Result], system: str, params: Mapping[str, Any]) -> Mapping[str, float] | None:
    """The figures of a case, if it has some."""
    for result in results:
        if result.system == system and result.status is Status.OK and dict(result.params) == dict(params):
            return result.figures
    return None


def floor_of(results: Sequence[Result], system: str) -> float | None:
    """What an almost empty trigger of an engine takes, in seconds."""
    found = of_case(results, system, Case(system, "count", "rows", FLOOR_ROWS, FLOOR_ROWS).params)
    return None if found is None else found["trigger_s"]


def compared(results: Sequence[Result]) -> Iterator[tuple[Mapping[str, Any], dict[str, float]]]:
    """Of each case that both engines have figures of: rows/s, CPU and memory as ratios, and the bound of the first."""
    floor = floor_of(results, BEDLOAD)
    for result in results:
        if result.system != BEDLOAD or result.status is not Status.OK or result.params["batch_rows"] == FLOOR_ROWS:
            continue
        spark = of_case(results, SPARK, result.params)
        if spark is None:
            continue
        mine = result.figures
        ratios = {
            "rate": mine["rows_per_s"] / spark["rows_per_s"],
            "cpu": spark["cpu_s_per_m_rows"] / mine["cpu_s_per_m_rows"],
            "memory": mine["peak_rss_mb"] / spark["peak_rss_mb"],
        }
        if floor is not None:
            ratios["bound"] = spark["trigger_s"] / floor
        yield result.params, ratios


def verdicts_of(results: Sequence[Result]) -> list[Verdict]:
    """Every target that something was measured for."""
    found = []
    for params, ratios in compared(results):
        if params["keys"] != TARGET_KEYS:
            continue
        where = f"{params['processor']}, {params['form']}, {short_count(params['batch_rows'])} rows a batch"
        least = least_rate(params["processor"], params["form"])
        found.append(Verdict(f"rows/s, {where}", ratios["rate"], least, ratios.get("bound")))
        found.append(Verdict(f"CPU, {where}", ratios["cpu"], CPU_LEAST))
    return found
