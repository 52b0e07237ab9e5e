"""What a simulation runs: operators, and the rows of every epoch.

Rows carry (key, source, seq): ``seq`` counts the rows of a source, so that a lost, repeated or reordered row
shows in the state by name. There is an operator for each way in which outputs leave. All keep the same
state, of several types, so that the before-images of each are put back by every rolled-back epoch.
"""

from __future__ import annotations

import collections
import datetime as dt
import enum
import types
import zoneinfo
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from bedload import state as bl
from bedload.core.epoch import EpochTime
from bedload.core.ids import Epoch, KeyHash, OperatorName, QueryId
from bedload.keys import hash_columns
from bedload.testing.input import InputFormat
from bedload.worker.operator import Context, Operator
from bedload.worker.row_runtime import Deployment
from bedload.worker.rows import Rows
from bedload.worker.runtime import Startable
from tests.simulator.chance import Chance

NAME = OperatorName("Simulated")
OTHER = OperatorName("Other")
"""The second operator, where there are two."""
KEYS = tuple("abcdefgh")
MORE_KEYS = (*KEYS, *"ijko")
"""With these, what moves has several keys in most key groups."""
KEY_GROUPS = 8
RECENT = 3
FORGET_AT = 7
"""A key of any but a ``PROCESS`` operator with so many rows is forgotten at the end of the epoch."""

OUTPUT = pa.schema([("key", pa.string()), ("source", pa.int64()), ("seq", pa.int64()), ("count", pa.int64())])
INPUT = pa.schema([("key", pa.string()), ("source", pa.int64()), ("seq", pa.int64()), ("noise", pa.int64())])
FORM = InputFormat(INPUT, "key", KEY_GROUPS)
GROUP_OF = {key: FORM.group(key) for key in MORE_KEYS}
HASH_OF = {key: KeyHash(int(value)) for key, value in zip(MORE_KEYS, hash_columns([pa.array(MORE_KEYS)]), strict=True)}


class Kind(enum.Enum):
    """When an operator's outputs leave."""

    PROCESS = "as they are made"
    RESULT = "at the seal, one per changed key"
    GROUPED = "at the seal, process called once per key"
    COLUMNS = "at the seal, one per changed key, from columns"
    SMALL = "at the seal, one per changed key, of small values alone"
    TIMED = "at the seal, one per timer that fires"
    ARRAYS = "at the seal, one per timer that fires, from arrays"
    EXPIRING = "at the seal, one per changed key, from columns whose keys expire"
    LASTING = "at the seal, one per key with rows, of keys and entries that expire"
    PROCESSOR = "at the seal, one per key with rows and one per timer that fires, of a processor of Spark's"


def drawn_kind(chance: Chance, apart: Chance) -> Kind:
    """Any kind. What is drawn ``apart`` leaves all else that a seed draws as it was without it."""
    kind = chance.pick([Kind.PROCESS, Kind.RESULT, Kind.GROUPED, Kind.COLUMNS])
    if kind is Kind.GROUPED:
        return Kind.TIMED if apart.happens(0.6) else Kind.PROCESSOR if apart.happens(0.6) else Kind.GROUPED
    if kind is Kind.COLUMNS:
        return apart.pick([Kind.COLUMNS, Kind.ARRAYS, Kind.EXPIRING])
    if kind is Kind.RESULT and apart.happens(0.6):
        return Kind.LASTING if apart.happens(0.5) else Kind.SMALL
    return kind


def time_of(epoch: Epoch) -> EpochTime:
    """The time of an epoch, which Spark logs once and for all: most often a second after that of the one before.

    Now and then the watermark stands still, and catches up later. The machine's clock leaps, and is set back later; or
    it is set back, and catches up.
    """
    still = 1000 if epoch % 3 == 2 else 0
    astray = 6000 if epoch % 5 == 3 else -1700 if epoch % 4 == 2 else 0
    return EpochTime(watermark=epoch * 1000 - still, processing=epoch * 1000 + 500 + astray)


def check_time(ctx: Context) -> None:
    """Raise if an operator is told a wrong time."""
    told, right = EpochTime(ctx.watermark, ctx.now), time_of(ctx.epoch)
    assert told == right, f"{ctx}: the time is {told}, and not {right}"


def moment(source: int, seq: int) -> dt.datetime:
    """The time of a row: naive, or of one of two zones."""
    zone = (None, dt.UTC, zoneinfo.ZoneInfo("Europe/Berlin"))[(source + seq // 4) % 3]
    return dt.datetime(2024, 10, 27, 2, seq % 60, tzinfo=zone, fold=zone is not None and zone is not dt.UTC and seq % 2)


class Row(NamedTuple):
    """One input row."""

    key: str
    source: int
    seq: int


class SimulatedFailure(Exception):
    """What the simulated user code raises."""


class Harm(enum.Enum):
    """What user code does wrong."""

    RAISE = "it raises"
    EXIT = "it ends the process, or tries to"
    FORGET = "it forgets the key, and then raises"
    MISFIT = "it leaves a value in the state that is not of the declared type"


class Poison:
    """Where the operator does wrong, and how many more times."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], tuple[Harm, int]] = {}
        """Rows that it does wrong on."""
        self.setups: set[int] = set()
        self.closes: set[int] = set()
        """Calls of ``setup`` and ``close`` that raise, counted over all workers."""
        self.bites = 0
        self._setups = self._closes = 0

    def touch(self, source: int, seq: int) -> Harm | None:
        """Raise if the row is poisoned; or say what else is to be done."""
        harm, left = self.rows.get((source, seq), (Harm.RAISE, 0))
        if not left:
            return None
        self.rows[source, seq] = harm, left - 1
        self.bites += 1
        if harm is Harm.EXIT:
            raise SystemExit(f"row {seq} of source {source} ends the process")
        if harm is Harm.RAISE:
            raise SimulatedFailure(f"row {seq} of source {source} is poisoned")
        return harm

    def setup(self) -> None:
        """An operator is set up."""
        self._setups += 1
        if self._setups in self.setups:
            raise SimulatedFailure(f"setup number {self._setups} is poisoned")

    def close(self) -> None:
        """An operator is closed."""
        self._closes += 1
        if self._closes in self.closes:
            raise SimulatedFailure(f"close number {self._closes} is poisoned")

    def end(self) -> None:
        """No harm is done any more."""
        self.rows, self.setups, self.closes = {}, set(), set()


class _Simulated(Operator):
    poison: ClassVar[Poison] = Poison()
    changed: ClassVar[bool] = False

    count: int = bl.value(0)
    seen: dict[int, list[int]] = bl.map()
    recent: collections.deque[int] = bl.deque(maxlen=RECENT)
    sums: np.ndarray = bl.array(2, "int64")
    """How many rows, and the sum of their numbers."""
    latest: dict[int, dt.datetime] = bl.map()
    """Of each source, as :func:`moment` says; of several zones, so that files of a snapshot do not agree on one."""

    def tallied(self) -> Counter[int]:
        """The rows of each source. The state variable has one name or another (see :func:`make_deployment`)."""
        raise NotImplementedError

    def setup(self, ctx: Context) -> None:
        self.poison.setup()

    def close(self) -> None:
        self.poison.close()

    def take(self, row: Any, ctx: Context) -> None:
        check_time(ctx)
        self.count += 1
        self.seen.setdefault(row.source, []).append(row.seq)
        self.tallied()[row.source] += 1
        if self.changed:
            self.touched += 1  # type: ignore[attr-defined]
        self.recent.append(row.source * 1000 + row.seq)
        part = self.sums[1:]
        part += row.seq
        self.sums[0] += 1
        self.latest[row.source] = moment(row.source, row.seq)
        # After the changes, so that a failure leaves some behind to be rolled back.
        match self.poison.touch(row.source, row.seq):
            case Harm.FORGET:
                ctx.forget()
                raise SimulatedFailure("the key is forgotten, and then this")
            case Harm.MISFIT:
                self.recent[-1] = "not a number"  # type: ignore[assignment]
            case _:
                pass


_AS_IT_WAS = {
    "__annotations__": {"tally": Counter[int]},
    "tally": bl.counter(renamed_from="totals"),
    "tallied": lambda self: self.tally,
}
_CHANGED = {
    "__annotations__": {"totals": Counter[int], "touched": int},
    "totals": bl.counter(renamed_from="tally"),
    "touched": bl.value(0),
    "tallied": lambda self: self.totals,
    "changed": True,
}


class _Process(_Simulated):
    def process(self, key: Any, rows: Rows, ctx: Context) -> Iterable[Any]:
        for row in rows:
            self.take(row, ctx)
            yield key, row.source, row.seq, self.count


class _Result(_Simulated):
    def process(self, key: Any, rows: Rows, ctx: Context) -> None:
        for row in rows:
            self.take(row, ctx)

    def result(self, key: Any, ctx: Context) -> Iterable[Any]:
        if self.count >= FORGET_AT:
            ctx.forget()
        return key, len(self.seen), self.tallied().total(), self.count


class _Grouped(_Simulated):
    grouped = True

    def process(self, key: Any, rows: Rows, ctx: Context) -> Iterable[Any]:
        # Containers that are assigned instead of changed in place are tracked, too.
        self.seen = {source: list(seqs) for source, seqs in self.seen.items()}
        for row in rows:
            self.take(row, ctx)
        yield key, len(rows), self.tallied().total(), self.count
        if self.count >= FORGET_AT:
            ctx.forget()


_OPERATORS: dict[Kind, type[_Simulated]] = {
    Kind.PROCESS: _Process,
    Kind.RESULT: _Result,
    Kind.GROUPED: _Grouped,
}


class Layout(enum.Enum):
    """Which operators there are, and how queries use them."""

    ONE = "one operator, of all queries"
    BESIDE = "two operators in every query, each with sources of its own"
    CHAINED = "two operators in every query, the second on the outputs of the first"
    APART = "a query for each of two operators, both at once"


def make_deployment(kind: Kind, poison: Poison, name: OperatorName = NAME, *, changed: bool = False) -> Startable:
    """An operator of a simulation, with its own poison.

    As it is ``changed`` by its user it has a variable more, and another one has another name; and back again.
    """
    if kind in (Kind.COLUMNS, Kind.EXPIRING):
        from tests.simulator.workload_columns import column_deployment  # compiled code: only who needs it waits

        return column_deployment(poison, name, changed=changed, expiring=kind is Kind.EXPIRING)
    if kind is Kind.ARRAYS:
        from tests.simulator.workload_arrays import arrays_deployment

        return arrays_deployment(poison, name, changed=changed)
    if kind is Kind.SMALL:
        from tests.simulator.workload_small import small_deployment

        return small_deployment(poison, name, changed=changed)
    if kind is Kind.LASTING:
        from tests.simulator.workload_lasting import lasting_deployment

        return lasting_deployment(poison, name, changed=changed)
    if kind is Kind.PROCESSOR:
        from tests.simulator.workload_processor import processor_deployment  # pyspark: only who needs it waits

        return processor_deployment(poison, name, changed=changed)
    if kind is Kind.TIMED:
        from tests.simulator.workload_timed import timed_deployment

        return timed_deployment(poison, name, changed=changed)
    base = _OPERATORS[kind]
    members: dict[str, Any] = {"poison": poison, **(_CHANGED if changed else _AS_IT_WAS)}
    operator = types.new_class(base.__name__, (base,), exec_body=lambda body: body.update(members))
    assert issubclass(operator, Operator)
    return Deployment(name, operator, (0,), tuple(INPUT.names), OUTPUT, (pa.string(),))


Chain = tuple[OperatorName, ...]
"""Operators, in the order in which rows go through them."""


@dataclass
class EpochPlan:
    """The input of one epoch: batches of rows for each source partition."""

    partitions: list[list[list[Row]]]
    tasks: list[list[int]]
    """Which partitions a task runs in turn; more than one after a downstream ``coalesce``."""
    chains: list[Chain]
    """The operators that the rows of each partition go through."""

    def rows(self, operator: OperatorName) -> list[Row]:
        """All rows of an operator, each source's in order."""
        mine = zip(self.partitions, self.chains, strict=True)
        return [row for batches, chain in mine if operator in chain for batch in batches for row in batch]

    def feeders(self, operator: OperatorName) -> int:
        """How many feeders an operator has."""
        return sum(operator in chain for chain in self.chains)


@dataclass
class QueryPlan:
    """The input of a query, the same for every run of it."""

    query: QueryId
    epochs: list[EpochPlan]
    operators: tuple[OperatorName, ...] = (NAME,)
    _cache: dict[tuple[Epoch, int, int], list[pa.RecordBatch]] = field(default_factory=dict)

    def quiet(self, operator: OperatorName) -> set[Epoch]:
        """The epochs in which an operator has no feeder."""
        return {Epoch(number) for number, plan in enumerate(self.epochs) if not plan.feeders(operator)}

    def batches(self, epoch: Epoch, partition: int, noise: int) -> list[pa.RecordBatch]:
        """The Arrow batches of a partition; another ``noise`` gives the same rows with other bytes or cuts."""
        known = self._cache.get((epoch, partition, noise))
        if known is None:
            parts = self.epochs[epoch].partitions[partition]
            if noise % 2:
                rows = [row for batch in parts for row in batch]
                parts = [rows] if rows else []
            known = [_batch(rows, noise) for rows in parts]
            self._cache[epoch, partition, noise] = known
        return known


def _batch(rows: list[Row], noise: int) -> pa.RecordBatch:
    """Rows as a feeder gets them."""
    keys, sources, numbers = zip(*rows, strict=True)
    columns = zip((keys, sources, numbers, [noise] * len(rows)), INPUT.types, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(values, kind) for values, kind in columns], schema=INPUT)


def fed(outputs: list[dict[str, Any]]) -> pa.RecordBatch:
    """What an operator made, as the feeder of the next one gets it."""
    return _batch([Row(row["key"], row["source"], row["seq"]) for row in outputs], 0)


def plan_query(
    chance: Chance,
    query: QueryId,
    number: int,
    epochs: int,
    keys: tuple[str, ...] = KEYS,
    most_sources: int = 4,
    *,
    first: int = 0,
) -> QueryPlan:
    """Make up the input of a query."""
    sources = chance.number(1, most_sources)
    names = [number * 10 + first + source for source in range(sources)]
    next_seq = dict.fromkeys(names, 0)
    hot = chance.pick(keys)
    plans = []
    for index in range(epochs):
        # An epoch without partitions: Spark runs it, but no task of the operator does.
        empty = 0 < index < epochs - 1 and chance.happens(0.08)
        partitions = []
        for source in [] if empty else names:
            batches = []
            for _ in range(chance.number(0, 3)):
                rows = []
                for _ in range(chance.number(1, 3)):
                    key = hot if chance.happens(0.4) else chance.pick(keys)
                    rows.append(Row(key, source, next_seq[source]))
                    next_seq[source] += 1
                batches.append(rows)
            partitions.append(batches)
        chains: list[Chain] = [(NAME,)] * len(partitions)
        plans.append(EpochPlan(partitions, _tasks(chance, len(partitions)), chains))
    return QueryPlan(query, plans)


def lay_out(chance: Chance, layout: Layout, plans: dict[QueryId, QueryPlan], keys: tuple[str, ...]) -> None:
    """Make the plans of queries on one operator into those of another layout."""
    for number, plan in enumerate(plans.values()):
        match layout:
            case Layout.APART if number:
                _rename(plan, (OTHER,))
            case Layout.CHAINED:
                _rename(plan, (NAME, OTHER))
            case Layout.BESIDE:
                others = plan_query(chance, plan.query, number, len(plan.epochs), keys, 2, first=5)
                for mine, more in zip(plan.epochs, others.epochs, strict=True):
                    count = len(mine.partitions)
                    mine.partitions += more.partitions
                    mine.chains += [(OTHER,)] * len(more.partitions)
                    mine.tasks += [[count + partition for partition in task] for task in more.tasks]
                plan.operators = (NAME, OTHER)
            case _:
                pass


def _rename(plan: QueryPlan, chain: tuple[OperatorName, ...]) -> None:
    plan.operators = chain
    for epoch in plan.epochs:
        epoch.chains = [chain] * len(epoch.partitions)


def _tasks(chance: Chance, partitions: int) -> list[list[int]]:
    if partitions > 1 and chance.happens(0.25):
        count = chance.number(1, partitions - 1)
        return [list(range(task, partitions, count)) for task in range(count)]
    return [[partition] for partition in range(partitions)]
