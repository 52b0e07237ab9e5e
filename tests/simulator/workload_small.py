"""The simulated operator of small values alone: the same rows as the others, as a few numbers per key.

Its rows may be at rest (:mod:`bedload.store.resting`), where those of the operators with containers never are.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any, ClassVar

import pyarrow as pa

from bedload import state as bl
from bedload.core.ids import OperatorName
from bedload.worker.operator import Context, Operator
from bedload.worker.row_runtime import Deployment
from bedload.worker.rows import Rows
from tests.simulator.workload import FORGET_AT, INPUT, OUTPUT, Harm, Poison, SimulatedFailure, check_time

_BITS = 5
"""Of the number of rows of a source: a key with many is forgotten."""


def shift_of(source: int) -> int:
    """Where the number of rows of a source is; there are six sources of each of two queries at most."""
    query, number = divmod(source, 10)
    return _BITS * (6 * query + number - (number > 4))


def digest_of(seen: dict[int, list[int]]) -> int:
    """A number for the rows of a key, that depends on the order of each source's."""
    return sum((place + 1) * (source * 1000 + seq) for source, seqs in seen.items() for place, seq in enumerate(seqs))


class _Small(Operator):
    poison: ClassVar[Poison] = Poison()
    changed: ClassVar[bool] = False

    count: int = bl.value(0)
    digest: int = bl.value(0)
    last: float | None = bl.value(None)
    """The number of some row, halved; None: there was none."""

    def setup(self, ctx: Context) -> None:
        self.poison.setup()

    def close(self) -> None:
        self.poison.close()

    def process(self, key: Any, rows: Rows, ctx: Context) -> None:
        check_time(ctx)
        for row in rows:
            self.count += 1
            packed = self.places()
            place = packed >> shift_of(row.source) & 31
            self.keep(packed + (1 << shift_of(row.source)))
            self.digest += (place + 1) * (row.source * 1000 + row.seq)
            self.last = row.seq / 2
            if self.changed:
                self.touched += 1  # type: ignore[attr-defined]
            match self.poison.touch(row.source, row.seq):
                case Harm.FORGET:
                    ctx.forget()
                    raise SimulatedFailure("the key is forgotten, and then this")
                case Harm.MISFIT:
                    self.count = "not a number"  # type: ignore[assignment]
                case _:
                    pass

    def result(self, key: Any, ctx: Context) -> Iterable[Any] | None:
        if self.count >= FORGET_AT:
            ctx.forget()
        sources = sum(bool(self.places() >> _BITS * i & 31) for i in range(12))
        return key, sources, self.count, self.count

    def places(self) -> int:
        """How many rows each source had, five bits each. The variable has one name or another."""
        raise NotImplementedError

    def keep(self, places: int) -> None:
        """Set that."""
        raise NotImplementedError


_AS_IT_WAS = {
    "__annotations__": {"tally": int},
    "tally": bl.value(0, renamed_from="totals"),
    "places": lambda self: self.tally,
    "keep": lambda self, places: setattr(self, "tally", places),
}
_CHANGED = {
    "__annotations__": {"totals": int, "touched": int},
    "totals": bl.value(0, renamed_from="tally"),
    "touched": bl.value(0),
    "places": lambda self: self.totals,
    "keep": lambda self, places: setattr(self, "totals", places),
    "changed": True,
}


def small_deployment(poison: Poison, name: OperatorName, *, changed: bool) -> Deployment:
    """An operator of a simulation; ``changed``: with a variable more, and another name for one."""
    members: dict[str, Any] = {"poison": poison, **(_CHANGED if changed else _AS_IT_WAS)}
    operator = types.new_class("_Small", (_Small,), exec_body=lambda body: body.update(members))
    assert issubclass(operator, Operator)
    return Deployment(name, operator, (0,), tuple(INPUT.names), OUTPUT, (pa.string(),))


def misfit(seen: dict[int, list[int]], actual: dict[str, Any]) -> str | None:
    """What is wrong with the state of a key that has had these rows, if anything is."""
    count = sum(map(len, seen.values()))
    places = sum(len(seqs) << shift_of(source) for source, seqs in seen.items())
    wanted = {"count": count, "digest": digest_of(seen), "places": places}
    found = {"count": actual["count"], "digest": actual["digest"], "places": actual.get("tally", actual.get("totals"))}
    if found != wanted:
        return f"{found}, not {wanted}"
    if not 0 <= actual.get("touched", 0) <= count:
        return f"touched {actual['touched']} times, with {count} rows"
    halves = {seqs[-1] / 2 for seqs in seen.values()}
    return None if actual["last"] in halves else f"last is {actual['last']}, and not one of {halves}"
