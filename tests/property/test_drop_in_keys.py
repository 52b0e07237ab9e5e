"""Keys of processors of Spark's, among them structs and nulls: each is itself, through failures, deltas and restores.

So it is in memory, and where what no epoch touches leaves for a disk.

The oracle is a dict from what a key is to how many rows it had. Mistakes in how structs are kept are caught by it.
"""

from __future__ import annotations

import datetime as dt
import random  # noqa: TID251 - seeded by each test
from collections import Counter, deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import BooleanType, DataType, DateType, LongType, StringType, StructField, StructType
from tests.disks import MemoryDisks
from tests.processors import GROUPS, Worker, deployment
from tests.thorough import examples

from bedload.checkpoint.forms import StateForm
from bedload.checkpoint.merge import merge_checked
from bedload.core.epoch import EpochTime
from bedload.core.ids import Epoch, KeyGroup
from bedload.keys import kept_type
from bedload.protocol.split import with_groups
from bedload.spark.drop_in import key_parts, runtime
from bedload.spark.drop_in.key_parts import KeyPart, structs_of, unique
from bedload.state.arrow import arrow_type
from bedload.state.kinds import Store
from bedload.store.cache import Cache
from bedload.store.columns import key_words

SIMPLE: tuple[DataType, ...] = (LongType(), StringType(), DateType(), BooleanType())
EVERY = [KeyGroup(group) for group in range(GROUPS)]


def plain(value: Any) -> Any:
    """A key as the oracle knows it: a struct is a tuple, however the processor got it."""
    if isinstance(value, dict):
        return tuple(map(plain, value.values()))
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def rank(value: Any) -> Any:
    """By which Spark's order is Python's: nulls come first."""
    if isinstance(value, tuple):
        return (1, tuple(map(rank, value)))
    return (0,) if value is None else (1, value)


class Counts(StatefulProcessor):
    """A count for each key, and a timer for each odd one."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.n = handle.getValueState("n", StructType().add("n", LongType()))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        n = (self.n.get() or (0,))[0] + len(list(rows))
        self.n.update((n,))
        if n % 2:
            self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 1)
        yield Row(k=repr(plain(key)), n=n)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(k=repr(plain(key)), n=-self.n.get()[0])


class _Value:
    """What a column of Spark's gives for one row."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def isNotNull(self) -> _Value:
        return _Value(self.value is not None)

    def getField(self, name: str) -> _Value:
        return _Value(None if self.value is None else self.value[name])


def a_struct(chance: random.Random, depth: int = 1) -> StructType:
    kinds = [a_struct(chance, depth - 1) if depth and chance.random() < 0.3 else chance.choice(SIMPLE) for _ in "ab"]
    kinds = kinds[: chance.randint(1, 2)]
    return StructType([StructField(f"f{at}", kind, chance.random() < 0.7) for at, kind in enumerate(kinds)])


def a_value(chance: random.Random, kind: DataType, nullable: bool) -> Any:
    """Of few values, so that keys meet again; among them those that a null might be taken for."""
    if nullable and chance.random() < 0.3:
        return None
    if isinstance(kind, StructType):
        return {field.name: a_value(chance, field.dataType, field.nullable) for field in kind.fields}
    if isinstance(kind, LongType):
        return chance.choice((0, 1))
    if isinstance(kind, StringType):
        return chance.choice(("", "x"))
    return chance.random() < 0.5 if isinstance(kind, BooleanType) else dt.date(1970, 1, chance.choice((1, 2)))


class Run:
    """A worker that is restored now and then from what it wrote."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        kinds = [a_struct(chance), chance.choice(SIMPLE)]
        self._fields = [
            StructField(f"k{at}", kind, chance.random() < 0.7)
            for at, kind in enumerate(chance.choice((kinds, kinds[::-1], kinds[:1], kinds[1:])))
        ]
        parts = [KeyPart(it.name, at, it.dataType, it.nullable) for at, it in enumerate(self._fields)]
        self._parts = structs_of(parts)
        flat = [it for part in parts for it in key_parts._fields(_Value(None), part.kind, part.nullable, part.name)]  # type: ignore[arg-type]
        self._flat = unique([name for name, _ in flat]) if self._parts else []
        sample = [self._row({it.name: None for it in self._fields}, 0)[len(self._fields) + 1 :]]
        assert len(sample[0]) == len(self._flat)
        types = self._types()
        first = len(self._fields) + 1
        key = range(first, first + len(self._flat)) if self._parts else range(len(self._fields))
        names = self._flat or [it.name for it in self._fields]
        made = deployment(Counts(), "v long", "k string, n long", "EventTime", key=())
        self._shipped = replace(
            made,
            key=tuple(key),
            key_names=tuple(names),
            columns=(*(it.name for it in self._fields), "v"),
            key_types=tuple(kept_type(types[at]) for at in key),
            parts=self._parts,
            store=chance.choice((Store.MEMORY, Store.DISK)),
        )
        self._schema = pa.schema([(f"c{at}", kind) for at, kind in enumerate(types)])
        form = {spec.name: arrow_type(spec.type) for spec in self._shipped.specs}
        self._form = StateForm(self._shipped.key_types, form, GROUPS)
        self._base, self._deltas = self._form.empty(), list[pa.RecordBatch]()
        self._worker = self._started()
        self.counts, self.timers = Counter[Any](), dict[Any, int]()

    def _types(self) -> list[pa.DataType]:
        schema = to_arrow_schema(StructType([*self._fields, StructField("v", LongType())]), timezone="UTC")
        found = [field.type for field in schema]
        return found + [kind for part in self._parts for kind in _flat_types(part.kind, part.nullable)]

    def _row(self, key: dict[str, Any], v: int) -> list[Any]:
        flat = [
            column.value  # type: ignore[attr-defined]
            for part in self._parts
            for _, column in part.fields(_Value(key[part.name]))  # type: ignore[arg-type]
        ]
        return [*key.values(), v, *flat]

    def _started(self) -> Worker:
        stores = SimpleNamespace(disks=MemoryDisks(), cache=Cache(0))
        worker = Worker(self._shipped, "v long", durable=True, stores=stores)
        worker.runtime.install(EVERY, merge_checked(self._form, self._base, self._deltas))
        return worker

    def epoch(self, number: int) -> None:
        """Rows, which may be rolled back and come again; then the state may be restored."""
        chance = self._chance
        keys = [
            {it.name: a_value(chance, it.dataType, it.nullable) for it in self._fields}
            for _ in range(chance.randint(0, 12))
        ]
        for failed in (True, False) if chance.random() < 0.3 else (False,):
            self._begin(number, keys)
            made = self._worker.runtime.seal()
            if failed:
                self._worker.runtime.abort()
        outputs = [] if made is None else [tuple(row.values()) for row in made.to_pylist()]
        if (delta := self._worker.runtime.delta()) is not None:
            self._deltas.append(delta)
        self._worker.runtime.commit()
        while self._worker.runtime.untidy:
            self._worker.runtime.tidy()
        self._check(number, [tuple(map(plain, key.values())) for key in keys], outputs)
        if chance.random() < 0.3:
            if chance.random() < 0.5:  # as when a snapshot is made
                self._base, self._deltas = merge_checked(self._form, self._base, self._deltas), []
            self._worker = self._started()

    def _begin(self, number: int, keys: list[dict[str, Any]]) -> None:
        running = self._worker.runtime
        running.begin(Epoch(number), EVERY)
        running.set_time(EpochTime(number, number, 0))
        if keys:
            rows = zip(*(self._row(key, at) for at, key in enumerate(keys)), strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(rows, self._schema, strict=True)]
            running.apply(
                with_groups(pa.RecordBatch.from_arrays(arrays, schema=self._schema), self._shipped.key, GROUPS)
            )

    def _check(self, number: int, keys: list[Any], outputs: list[Any]) -> None:
        self.counts.update(keys)
        wanted = [(repr(key), self.counts[key]) for key in sorted(set(keys), key=rank)]
        for key in set(keys):
            if self.counts[key] % 2:
                self.timers.setdefault(key, number + 1)
        due = [key for key, at in self.timers.items() if at <= number]
        fired = Counter((repr(key), -self.counts[key]) for key in due)
        for key in due:
            del self.timers[key]
            if key in keys and self.counts[key] % 2:
                self.timers[key] = number + 1
        assert outputs[: len(wanted)] == wanted
        assert Counter(outputs[len(wanted) :]) == fired
        assert self._worker.runtime.keys == len(self.counts)


def _flat_types(kind: DataType, nullable: bool) -> list[pa.DataType]:
    if not isinstance(kind, StructType):
        return [to_arrow_schema(StructType().add("x", kind), timezone="UTC").field(0).type]
    there = [pa.bool_()] if nullable else []
    return there + [it for field in kind.fields for it in _flat_types(field.dataType, field.nullable)]


def run(seed: int) -> None:
    """Some epochs of a random key."""
    made = Run(random.Random(seed))
    for number in range(8):
        made.epoch(number)


@examples(25)
@given(st.integers(0, 2**32))
def test_each_key_is_itself(seed: int) -> None:
    run(seed)


# --- mistakes that are caught


def a_struct_that_is_null_is_one_of_nulls(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Value, "isNotNull", lambda self: _Value(True))


def fields_of_structs_are_mixed_up(patch: pytest.MonkeyPatch) -> None:
    original = key_parts._value
    patch.setattr(key_parts, "_value", lambda kind, nullable, fields: original(kind, not nullable, fields))


def timers_get_the_fields(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runtime, "with_timers", lambda types, form, parts: lambda key: key)


def null_is_taken_for_what_stands_under_it(patch: pytest.MonkeyPatch) -> None:
    original = key_words.KeyWords.__init__
    patch.setattr(key_words.KeyWords, "__init__", lambda self, types, nullable=False: original(self, types))


def structs_come_in_another_order(patch: pytest.MonkeyPatch) -> None:
    original = runtime.sort_rows
    patch.setattr(runtime, "sort_rows", lambda keys, groups: original(keys[::-1], groups))


@pytest.mark.parametrize(
    "mutate",
    [
        a_struct_that_is_null_is_one_of_nulls,
        fields_of_structs_are_mixed_up,
        timers_get_the_fields,
        null_is_taken_for_what_stands_under_it,
        structs_come_in_another_order,
    ],
)
def test_a_mistake_with_keys_is_caught(mutate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017, PT011 - a mistake may show in many ways
        deque(map(run, range(200)))
