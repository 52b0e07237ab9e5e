"""Which moves are measured: strategies, sizes of state, skews, and for how long. Pure.

Invariants: every strategy gets the same load and the same state as the others of its setting; a sweep changes one thing
and keeps the rest.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

SPARK = "spark-offline-repartition"
CONTROL = "no_move"
"""Nothing is asked for: what the figures of a strategy are on this machine without any move."""
FLIGHT = "flight-loopback"
OURS = "seamless"
LIVE = ("all_at_once", "progressive", "lazy", "hybrid", "adaptive", "seamless")
RESTARTING = ("stop_restart", SPARK)
STRATEGIES = (CONTROL, "stop_restart", *LIVE, SPARK)

SIZES = (10, 100, 1000)
SKEWS = (0.0, 1.0, 1.5)
VALUE_BYTES = 1000
RATE = 8_000.0
"""Rows/s: about a third of what the slowest of the systems can take with values of 1 kB on two cores."""

ROWS, FIELDS, COLUMNS = "rows", "fields", "columns"
FIELD_COUNT = 15
FIELD_BYTES = 8 * FIELD_COUNT
OVERHEAD = 16
"""Bytes of a key and its count."""

SWEEPS = ("size", "keys", "value", "skew")
BASE_MB, BASE_KEYS = 100, 10_000
KEYS = (10_000, 100_000, 1_000_000)
VALUES = (100, 1_000, 10_000)

PARTS = ("moves", "columns")
COLUMN_RATE = 500.0
"""Rows/s while the speed of the transfer itself is measured."""
COLUMN_STRATEGIES = ("all_at_once", "seamless")


@dataclass(frozen=True)
class Timing:
    """How long a case runs."""

    steady_s: float
    """Before the request, once the stream has caught up with its start."""
    hold_s: float
    """After it is stable."""
    patience_s: float
    """At most, from the end of the move until that."""
    timeout_s: float
    """For any single step."""


FULL = Timing(8.0, 5.0, 60.0, 300.0)
QUICK = Timing(4.0, 3.0, 15.0, 120.0)


@dataclass(frozen=True)
class Case:
    """One move, under one load."""

    strategy: str
    state_mb: float
    skew: float
    value_bytes: int = VALUE_BYTES
    layout: str = ROWS
    rate: float = RATE
    part: str = "moves"

    @property
    def keys(self) -> int:
        """How many keys make up the state."""
        return max(round(self.state_mb * 1e6 / (self.value_bytes + OVERHEAD)), 1)

    @property
    def params(self) -> dict[str, Any]:
        """What identifies it in the report."""
        return {
            "part": self.part,
            "state_mb": self.state_mb,
            "skew": skew_name(self.skew),
            "layout": self.layout,
            "keys": self.keys,
            "value_bytes": self.value_bytes,
            "rate": self.rate,
        }

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.strategy}, {self.state_mb:g} MB in {self.keys:,} keys, {skew_name(self.skew)}, {self.layout}"

    def as_json(self) -> dict[str, Any]:
        """For the way to the isolated run."""
        return asdict(self)


def skew_name(skew: float) -> str:
    """How the report calls a distribution of keys."""
    return "uniform" if skew == 0 else f"zipf {skew:.1f}"


def plan_cases(
    *, quick: bool, sweep: str | None, strategies: Sequence[str], parts: Sequence[str], rate: float
) -> list[Case]:
    """All cases of a run, settings in order of size, and within a setting one strategy after the other."""
    cases = []
    if "moves" in parts:
        settings = _settings(quick, sweep)
        for setting in settings:
            size, value, skew = setting
            # One look at the noise is enough for a quick run.
            chosen = [name for name in strategies if name != CONTROL or not quick or setting == settings[-1]]
            cases += [Case(strategy, size, skew, value, ROWS, rate) for strategy in chosen]
    if "columns" in parts and sweep is None:
        chosen = [name for name in COLUMN_STRATEGIES if name in strategies]
        # The first one holds nothing back, and so shows what the layouts can do.
        for name in chosen[:1] if quick else chosen:
            cases += [
                Case(name, BASE_MB, 0.0, FIELD_BYTES, layout, COLUMN_RATE, "columns") for layout in (FIELDS, COLUMNS)
            ]
    return cases


def _settings(quick: bool, sweep: str | None) -> list[tuple[float, int, float]]:
    """(MB of state, bytes of a value, skew)."""
    if sweep == "size":
        return [(size, VALUE_BYTES, 0.0) for size in (SIZES[:2] if quick else SIZES)]
    if sweep == "skew":
        return [(BASE_MB, VALUE_BYTES, skew) for skew in SKEWS]
    if sweep == "keys":
        return [(BASE_MB, BASE_MB * 1_000_000 // keys - OVERHEAD, 0.0) for keys in (KEYS[:2] if quick else KEYS)]
    if sweep == "value":
        return [(BASE_KEYS * (value + OVERHEAD) / 1e6, value, 0.0) for value in VALUES]
    if quick:
        return [(SIZES[0], VALUE_BYTES, 0.0), (SIZES[1], VALUE_BYTES, 0.0), (SIZES[1], VALUE_BYTES, SKEWS[-1])]
    return [(size, VALUE_BYTES, skew) for size in SIZES for skew in SKEWS]
