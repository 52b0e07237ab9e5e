"""What the scale benchmark measures, and what its figures have to be. Pure.

Invariants:
- The load is the same at every size: an epoch has `ROWS_PER_EPOCH` rows of exactly `CHANGED` different keys, which lie
  anywhere in the state. So whatever grows from size to size grows with the state, not with the change.
- Keys are hashes: 8 bytes in every file, whatever the size, as ids of the real world are.
- A verdict speaks of what was measured alone: a size that failed, or was not asked for, is not in it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.report import Result, Status, short_count
from bench.source import SCATTER

COLUMNS, ROWS, SPARK = "columns", "rows", "spark"
SYSTEMS = {COLUMNS: "bedload, columns", ROWS: "bedload, rows", SPARK: "spark native, RocksDB"}
ROWS_PER_EPOCH = 200_000
CHANGED = 50_000
FILL_KEYS = 2_000_000
"""Keys that one epoch brings while the state is filled, at most."""
M = 1_000_000
FULL_SIZES = {COLUMNS: (100_000, M, 3 * M, 10 * M, 30 * M), ROWS: (100_000, M, 10 * M), SPARK: (100_000, M, 10 * M)}
QUICK_SIZES = {COLUMNS: (100_000, M, 10 * M), ROWS: (100_000, M), SPARK: (M,)}
TARGET_KEYS = 10 * M
"""The size that absolute targets are for."""


@dataclass(frozen=True)
class Timing:
    """How many epochs of each kind."""

    settle: int
    """Before anything is measured: the JVM compiles what it runs often."""
    steady: int
    timeout_s: float = 600.0
    """For any single step."""


FULL, QUICK = Timing(20, 60), Timing(10, 24)


@dataclass(frozen=True)
class Case:
    """A state of one size in one system."""

    system: str
    keys: int

    def __post_init__(self) -> None:
        if self.keys < CHANGED:
            raise ValueError(f"{self.keys} keys: an epoch changes {CHANGED}")

    @property
    def fill_epochs(self) -> int:
        """How many epochs bring the keys."""
        return -(-self.keys // FILL_KEYS)

    def rows(self, batch: int) -> int:
        """How many rows there are up to the end of a batch: each key once, then as many for every epoch."""
        if batch + 1 < self.fill_epochs:
            raise ValueError(f"batch {batch} is one of the {self.fill_epochs} that bring the keys")
        return self.keys + (batch + 1 - self.fill_epochs) * ROWS_PER_EPOCH

    @property
    def label(self) -> str:
        """For people."""
        return f"{SYSTEMS[self.system]}, {short_count(self.keys)} keys"

    def as_json(self) -> dict[str, Any]:
        """For the way to the isolated run."""
        return asdict(self)


def plan_cases(quick: bool, systems: Sequence[str], most_keys: int | None) -> list[Case]:
    """All cases of a run, small states first: what is wrong shows early."""
    sizes = QUICK_SIZES if quick else FULL_SIZES
    cases = [Case(system, keys) for system in systems for keys in sizes[system]]
    return sorted((c for c in cases if most_keys is None or c.keys <= most_keys), key=lambda case: case.keys)


# --- the load


KEY = "xxhash64(number) AS key"
"""The key with a number: keys in a row, as numbers are, would take hardly any room in files."""


def numbers_expression(case: Case, row: str = "value") -> str:
    """The SQL expression for the numbers of the keys of source row `row`: an array of one, or of some while it fills.

    The first epochs hold every key once, in order. An epoch after them holds `CHANGED` keys, as often as its rows
    suffice for, that no order of filling has near one another.
    """
    filling = case.fill_epochs * ROWS_PER_EPOCH
    each = -(-case.keys // filling)
    last = f"least({row} * {each} + {each}, {case.keys}L) - 1"
    some = f"CASE WHEN {row} * {each} < {case.keys}L THEN sequence({row} * {each}, {last}) ELSE array() END"
    number = f"({row} div {ROWS_PER_EPOCH}) * {CHANGED}L + {row} % {CHANGED}"
    return f"CASE WHEN {row} < {filling} THEN {some} ELSE array(pmod(({number}) * {SCATTER}L, {case.keys}L)) END"


def mark_expression(key: str = "key") -> str:
    """A number for each key: counts that add up by chance do not when each is multiplied by it."""
    return f"pmod({key}, 1009)"


# --- the verdicts


@dataclass(frozen=True)
class Verdict:
    """A figure, and what it may be at most."""

    name: str
    value: float
    limit: float

    @property
    def met(self) -> bool:
        """Whether it is within its limit."""
        return self.value <= self.limit


FLAT = 1.3
FLAT_FIGURES: Mapping[str, str] = {
    "rows_per_s": "rows/s",
    "epoch_ms_p50": "epoch p50",
    "seal_ms": "seal",
    "bytes_per_epoch": "bytes per epoch",
    "memory_per_key": "memory per key",
}
"""What must not grow with the state."""
AT_TARGET: Mapping[str, tuple[str, float, tuple[str, ...]]] = {
    "move_vs_no_move": ("longest epoch in a move / no_move", 1.3, (COLUMNS, ROWS)),
    "snapshot_s": ("snapshot, idle, s", 10.0, (COLUMNS,)),
    "snapshot_beside_s": ("snapshot beside the query, s", 20.0, (COLUMNS,)),
    "restore_vs_raw": ("restore / raw read", 2.0, (COLUMNS,)),
}
SLICE_MS = 20.0


def verdicts_of(results: Sequence[Result]) -> list[Verdict]:
    """Every target that something was measured for."""
    return [verdict for system in (COLUMNS, ROWS) for verdict in _of_system(system, by_size(results, system))]


def with_memory_per_key(results: Sequence[Result]) -> list[Result]:
    """The results, those of larger states with bytes per key: what their workers have more than with the smallest.

    What a worker has before its first key, for code and buffers, is in neither.
    """
    found = []
    for result in results:
        sizes = by_size(results, result.params["state"])
        keys, least = result.params["keys"], min(sizes, default=0)
        figures = dict(result.figures)
        if "workers_mb" in figures and keys > least:
            more = figures["workers_mb"] - sizes[least]["workers_mb"]
            figures["memory_per_key"] = max(more, 0.0) * 1e6 / (keys - least)
        found.append(Result(result.system, result.params, result.status, figures, result.note))
    return found


def by_size(results: Sequence[Result], system: str) -> dict[int, Mapping[str, float]]:
    """The figures of a system by the number of keys, in their order."""
    found = [r for r in results if r.params["state"] == system and r.status is Status.OK]
    return {r.params["keys"]: r.figures for r in sorted(found, key=lambda r: r.params["keys"])}


def growth(values: Mapping[int, float], inverse: bool = False) -> float | None:
    """The worst of several sizes over the smallest size; None if there are not two. `inverse`: less is worse."""
    if len(values) < 2:
        return None
    first = values[min(values)]
    rest = [value for keys, value in values.items() if keys != min(values)]
    worst, base = (first, min(rest)) if inverse else (max(rest), first)
    return worst / base if base > 0 else None


def _of_system(system: str, sizes: Mapping[int, Mapping[str, float]]) -> Iterator[Verdict]:
    name = SYSTEMS[system]
    for figure, title in FLAT_FIGURES.items():
        values = {keys: found[figure] for keys, found in sizes.items() if figure in found}
        grown = growth(values, inverse=figure == "rows_per_s")
        if grown is not None:
            span = f"{short_count(min(values))} to {short_count(max(values))} keys"
            yield Verdict(f"{name}: {title}, {span}", grown, FLAT)
    slices = {keys: found["slice_ms_longest"] for keys, found in sizes.items() if "slice_ms_longest" in found}
    if slices:
        worst = max(slices, key=slices.__getitem__)
        yield Verdict(f"{name}: longest slice of a move, ms, at {short_count(worst)} keys", slices[worst], SLICE_MS)
    for figure, (title, limit, systems) in AT_TARGET.items():
        if system in systems and figure in sizes.get(TARGET_KEYS, {}):
            yield Verdict(f"{name}: {title}, {short_count(TARGET_KEYS)} keys", sizes[TARGET_KEYS][figure], limit)
