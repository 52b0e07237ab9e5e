"""A processor that does what it is told: random programs over the handle.

A program has state variables of random types, and a list of operations for each row: a row has the number of its list.
What the operations give comes out as text; a map's order is not promised, so what iterates over one is sorted.
Hypothesis draws the outline, and a seed for the values; so a batch can be large, and an outline still shrinks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tests.spark.drop_in.engines import PANDAS, ROWS, STEP, Program
from tests.spark.drop_in.random_values import Random, a_struct, a_type, given, plain
from tests.spark.drop_in.small import EVENT, NONE, PROCESSING

Op = tuple[Any, ...]
"""A method's name, for which of the state variables, and its arguments."""
NAMES = ("n", "my list", "größe", "class", "_hidden", "a.b", "N", "state_n", "value")
"""Of state variables; not all of them can be attributes."""
WHOLE = (ByteType, ShortType, IntegerType, LongType, BooleanType)
MOMENTS = (DateType, TimestampType, TimestampNTZType)
KEY_TYPES: tuple[DataType, ...] = (
    *(StringType(), LongType(), DateType(), DecimalType(10, 2), BooleanType(), ByteType(), BinaryType()),
    *(TimestampType(), TimestampNTZType()),
    StructType().add("a", StringType()).add("b", StructType().add("c", LongType()).add("d", DateType())),
)


def _text(value: Any) -> str:
    """As ``repr``, but for maps, which have no order."""
    if isinstance(value, dict):
        return "{" + ", ".join(sorted(f"{_text(key)}: {_text(inner)}" for key, inner in value.items())) + "}"
    if isinstance(value, Row) and hasattr(value, "__fields__"):
        return "Row(" + ", ".join(f"{name}={_text(it)}" for name, it in zip(value.__fields__, value, strict=True)) + ")"
    if type(value) in (tuple, list):
        return f"{type(value).__name__}({', '.join(map(_text, value))})"
    return repr(value)


@dataclass(frozen=True)
class Variable:
    """A state variable."""

    kind: str
    name: str
    schemas: tuple[StructType, ...]
    ttl: int | None


class Told(StatefulProcessor):
    """Does the operations of its rows, and those of the time when a timer fires."""

    def __init__(
        self,
        mode: str,
        form: str,
        variables: list[Variable],
        rows: list[list[Op]],
        timers: list[list[Op]],
        begins: bool,
    ) -> None:
        self._mode, self._form, self._variables, self._rows, self._timers = mode, form, variables, rows, timers
        self._begins = begins

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._states = [
            getattr(handle, f"get{it.kind}State")(it.name, *it.schemas, ttlDurationMs=it.ttl) for it in self._variables
        ]

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        found = initialState.itertuples(index=False) if self._form == PANDAS else [initialState]
        for row in sorted(found, key=lambda row: row.n):
            for _ in self._done(key, self._rows[row.n], timerValues):
                """What it sees is not told; what it leaves is."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        made = self._of_rows(key, rows, timerValues)
        return made if len(self._rows) % 2 else list(made)

    def _of_rows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        said = []
        if self._form == PANDAS:
            frames = list(rows)
            # With an initial state, its rows count among those of a frame on Spark, and where frames end is another.
            sizes = sum(map(len, frames)) if self._begins else sorted(map(len, frames))
            said.append(f"{sizes} {list(frames[0].columns)}")
            rows = (row for frame in frames for row in frame.itertuples(index=False))
        # The order of rows within a key is not promised.
        ordered = sorted(rows, key=lambda row: row.n)
        said += [f"{row.n} {_text(row.x)}" for row in ordered]
        yield from self._said(key, said)
        yield from self._said(key, self._done(key, [op for row in ordered for op in self._rows[row.n]], timerValues))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield from self._said(key, [f"timer {at}"])
        # What a timer does depends on its time alone, so that it is the same on both engines.
        yield from self._said(key, self._done(key, self._timers[at // 100 % len(self._timers)], timerValues))

    def _said(self, key: Any, texts: Any) -> Iterator[Any]:
        name = repr(tuple(key))
        if self._form == PANDAS:
            import pandas as pd  # type: ignore[import-untyped]

            yield pd.DataFrame({"k": name, "text": list(texts)}, dtype=object)
        else:
            yield from (Row(text=text, k=name) for text in texts)

    def _done(self, key: Any, ops: list[Op], times: Any) -> Iterator[str]:
        clock = times.getCurrentWatermarkInMs() if self._mode == EVENT else times.getCurrentProcessingTimeInMs()
        for method, which, *arguments in ops:
            if which is None:
                yield f"{method} {_text(self._timer(method, arguments, clock))}"
            else:
                found = self._do(method, self._states[which], self._variables[which].kind, arguments)
                yield f"{self._variables[which].name} {method} {_text(found)}"

    def _timer(self, method: str, arguments: list[Any], clock: int) -> Any:
        if self._mode == NONE:
            return None
        if method == "listTimers":
            return sorted(self._handle.listTimers())
        if method == "deleteTimers":  # while they are listed
            return len([self._handle.deleteTimer(at) for at in self._handle.listTimers()])
        if method == "duringTimers":  # one iterator that has begun before a change, and one that has not
            begun, waits = iter(self._handle.listTimers()), iter(self._handle.listTimers())
            first = next(begun, None)
            self._handle.registerTimer(clock + arguments[0])
            return sorted(begun) if first is None else sorted([first, *begun]), sorted(waits)
        return getattr(self._handle, method)(clock + arguments[0])

    def _do(self, method: str, state: Any, kind: str, arguments: list[Any]) -> Any:
        if method == "during":
            return self._during(state, kind, *arguments)
        if method == "removeEach":
            return len([state.removeKey(key) for key in state.keys()])  # noqa: SIM118
        found = getattr(state, method)(*arguments)
        if method in ("iterator", "keys", "values"):
            return sorted(found, key=_text)
        return list(found) if kind == "List" and method == "get" else found

    def _during(self, state: Any, kind: str, method: str, arguments: list[Any]) -> Any:
        """What an iterator gives that was begun before a change, and one that was asked for and not begun."""
        ask: Callable[[], Any] = state.get if kind == "List" else state.iterator
        begun, waits = iter(ask()), iter(ask())
        first = next(begun, None)
        getattr(state, method)(*arguments)
        return first is None, sorted(map(_text, [first, *begun])), sorted(map(_text, waits))


# --- programs


def _variables(random: Random, mode: str) -> list[Variable]:
    found = []
    for name in random.sample(NAMES, random.randint(1, 5)):
        kind = random.choice(("Value", "List", "Map"))
        schemas = (a_struct(random, 1, ()),) if kind == "Map" else ()
        ttl = random.choice((None, 0, STEP * 3 // 2, STEP, STEP * 3)) if mode == PROCESSING else None
        found.append(Variable(kind, name, (*schemas, a_struct(random)), ttl))
    return found


class _Operations:
    """Random operations on the variables of a program."""

    def __init__(self, random: Random, variables: list[Variable]) -> None:
        self._random, self._variables = random, variables
        # Few keys, so that they meet again.
        self._keys = [
            [given(random, it.schemas[0], key=True) for _ in range(4)] if it.kind == "Map" else [] for it in variables
        ]

    def some(self, most: int) -> list[Op]:
        return [self._one() for _ in range(self._random.randint(1, most))]

    def look(self) -> list[Op]:
        """All that there is of a key."""
        ways = {"Value": "get", "List": "get", "Map": "iterator"}
        return [*((ways[it.kind], at) for at, it in enumerate(self._variables)), ("listTimers", None)]

    def _one(self) -> Op:
        random = self._random
        if random.random() < 0.25:
            ways = ("registerTimer", "registerTimer", "deleteTimer", "listTimers", "deleteTimers", "duringTimers")
            return random.choice(ways), None, random.randrange(-10, 40) * 100
        at = random.randrange(len(self._variables))
        kind = self._variables[at].kind
        if kind != "Value" and random.random() < 0.15:
            method, *arguments = self._change(at, kind)
            return "during", at, method, arguments
        if random.random() < 0.5:
            method, *arguments = self._change(at, kind)
            return method, at, *arguments
        looks = {"Value": ("get", "exists"), "List": ("get", "exists"), "Map": ("iterator", "keys", "values", "exists")}
        if kind == "Map" and random.random() < 0.5:
            return random.choice(("getValue", "containsKey")), at, random.choice(self._keys[at])
        return random.choice(looks[kind]), at

    def _change(self, at: int, kind: str) -> Op:
        random, values = self._random, self._variables[at].schemas[-1]
        if random.random() < 0.15:
            return ("clear",)
        if kind == "Value":
            return "update", given(random, values)
        if kind == "List":
            method = random.choice(("put", "appendList", "appendValue"))
            if method == "appendValue":
                return method, given(random, values)
            return method, [given(random, values) for _ in range(random.randint(1, 4))]
        if random.random() < 0.2:
            return "removeKey", random.choice(self._keys[at])
        return "updateValue", random.choice(self._keys[at]), given(random, values)


def _key_values(random: Random, kinds: list[DataType], form: str) -> list[tuple[Any, ...]]:
    """Keys; nulls are another matter in the pandas form, where they make numbers floats and moments NaT."""
    nulls = [0 if form == PANDAS and isinstance(kind, (*WHOLE, *MOMENTS)) else 0.15 for kind in kinds]
    return [tuple(plain(random, kind, null) for kind, null in zip(kinds, nulls, strict=True)) for _ in range(8)]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A program of some batches, that is stopped and replayed here and there."""
    from tests.spark.drop_in.cases_output import after

    mode = draw(st.sampled_from([NONE, PROCESSING, EVENT]))
    form = draw(st.sampled_from([ROWS, PANDAS]))
    length = draw(st.integers(2, 4))
    counts = [draw(st.integers(0, 40)) for _ in range(length)]
    assume(sum(counts) > 10)
    most = draw(st.integers(1, 8))
    late = draw(st.sampled_from([0, 0, 2 * STEP]))  # in mode EventTime such rows are dropped
    beginning = draw(st.integers(0, 8))
    some = st.frozensets(st.integers(1, length), max_size=1)
    stops, fails = draw(some), draw(st.frozensets(st.integers(0, length), max_size=1))
    elsewhere = draw(st.frozensets(st.integers(1, length), max_size=1)) if draw(st.booleans()) else ()
    random = Random(draw(st.integers(0, 2**32)))

    variables = _variables(random, mode)
    operations = _Operations(random, variables)
    kinds = random.sample(KEY_TYPES, random.choice((1, 1, 2, 3)))
    keys = _key_values(random, kinds, form)
    echo = a_type(random)
    nulls = 0.0 if form == PANDAS else 0.15
    lists: list[list[Op]] = []

    def row(at: int, of: int, ops: list[Op]) -> tuple[Any, ...]:
        lists.append(ops)
        return (*keys[of], len(lists) - 1, plain(random, echo, nulls), after(at))

    batches = []
    for batch, count in enumerate(counts):
        batches.append(
            [
                row(batch * STEP + at - late * (at % 3 == 2), random.randrange(len(keys)), operations.some(most))
                for at in range(count)
            ]
        )
    batches.append([row(length * STEP, at, operations.look()) for at in range(len(keys))])
    names = [f"k{at}" for at in range(len(kinds))]
    typed = ", ".join(f"{name} {kind.simpleString()}" for name, kind in zip(names, kinds, strict=True))
    initial = []
    for key in {repr(key): key for key in keys[:beginning]}.values():
        lists.append(operations.some(most))
        initial.append((len(lists) - 1, *key))
    timers = [operations.some(4) for _ in range(5)]
    conf = {"spark.sql.streaming.transformWithStateInPySpark.maxStateRecordsPerBatch": random.choice(("2", "10000"))}
    if form == PANDAS:
        conf["spark.sql.execution.arrow.maxRecordsPerBatch"] = random.choice(("3", "10000"))
    return Program(
        Told(mode, form, variables, lists, timers, bool(initial)),
        batches,
        f"{typed}, n long, x {echo.simpleString()}, ts timestamp",
        tuple(names),
        form=form,
        time_mode=mode,
        watermark=("ts", "0 seconds"),
        initial=(f"n long, {typed}", initial, tuple(names)) if initial else None,
        conf=conf,
        stops=stops,
        fails=fails,
        then={batch: {} for batch in elsewhere},
        files=random.choice((1, 2)),
    )
