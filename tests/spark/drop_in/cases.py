"""Behaviours that take a query of their own, or none: the registry. ``cases_*`` fill it.

A behaviour is the same on both engines unless it says why it is not; then it says what each of them shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.spark.drop_in.engines import BEDLOAD, SPARK, Program, Seen

CALL, LIFE, ROWS_AND_KEYS = "The call", "What is called when", "Rows and keys"
INITIAL, OUTPUT, EVENT_TIME = "Initial state", "Output", "Event time of the output"
BATCH, ERRORS, RESTART = "Batch DataFrames", "Errors", "Restarts and changes of the processor"
MEANS = "Other means of Spark's in a processor"

LATER = (BATCH, ERRORS, RESTART)
"""Sections whose queries are run in a test file of their own."""


@dataclass(frozen=True)
class Query:
    """Behaviours that one query shows."""

    name: str
    section: str
    what: tuple[str, ...]
    build: Callable[[Path], Program]
    check: Callable[[Seen], None] | None = None
    """What must be so on each engine."""
    equal: bool = True
    """The outputs of each key and batch are the same on both, in their order."""
    fails: str = ""
    """What the error says on Spark; without it there is none."""
    bedload_fails: str | None = None
    """What it says on Bedload, where that is something else; empty if there is none."""
    why: str = ""
    batch: bool = False
    """It runs on a batch DataFrame."""

    def failure(self, engine: str) -> str:
        return self.fails if engine == SPARK or self.bedload_fails is None else self.bedload_fails


@dataclass(frozen=True)
class Call:
    """A behaviour that the call alone shows: what it gives, or class and condition of what it raises."""

    name: str
    section: str
    what: str
    code: Callable[[Any], Any]
    gives: Any
    bedload: Any
    why: str

    def expected(self, engine: str) -> Any:
        return self.bedload if engine == BEDLOAD else self.gives


QUERIES: list[Query] = []
CALLS: list[Call] = []
_SAME = object()


def query(section: str, *what: str, **more: Any) -> Callable[[Callable[[Path], Program]], Callable[[Path], Program]]:
    """Register a query; the function makes its program."""

    def register(build: Callable[[Path], Program]) -> Callable[[Path], Program]:
        assert build.__name__ not in {it.name for it in QUERIES}, build.__name__
        QUERIES.append(Query(build.__name__, section, what, build, **more))
        return build

    return register


def call(
    section: str, what: str, *, gives: Any, bedload: Any = _SAME, why: str = ""
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Register a call."""
    assert (bedload is _SAME) == (not why), "what differs has a reason"

    def register(code: Callable[[Any], Any]) -> Callable[[Any], Any]:
        assert code.__name__ not in {it.name for it in CALLS}, code.__name__
        CALLS.append(Call(code.__name__, section, what, code, gives, gives if bedload is _SAME else bedload, why))
        return code

    return register


def rows(*batches: Sequence[tuple[Any, ...]]) -> list[Sequence[tuple[Any, ...]]]:
    """Batches, for reading."""
    return list(batches)
