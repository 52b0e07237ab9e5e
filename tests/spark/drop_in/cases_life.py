"""What is called when; and the initial state."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from tests.spark.drop_in.cases import INITIAL, LIFE, query
from tests.spark.drop_in.cases_call import Counts
from tests.spark.drop_in.engines import PANDAS, START, Program, Seen


class Told(StatefulProcessor):
    """Says for each call which object was called, and how often before."""

    def __init__(self, closed: Path) -> None:
        self._closed = closed

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._me, self._calls, self._left = uuid.uuid4().hex, 0, 0  # noqa: TID251  tells objects apart
        self._n = handle.getValueState("n", "n long")

    def _call(self, what: str, key: Any) -> Row:
        self._calls += 1
        return Row(k=f"{key[0]}", text=f"{self._me} {self._calls} {what}")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self._calls += 1
        self._left += 1

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() - 1 - key[0] % 7)
        yield self._call(f"rows {self._left}", key)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield self._call(f"timer {expiredTimerInfo.getExpiryTimeInMs()}", key)

    def close(self) -> None:
        (self._closed / self._me).touch()


def life_is_as_promised(closed: Path, initial: set[str]) -> Any:
    def check(seen: Seen) -> None:
        objects: dict[str, list[tuple[int, int, list[str], int]]] = defaultdict(list)
        for epoch, made in seen.epochs.items():
            for key, text in made:
                me, calls, what = text.split(" ", 2)
                objects[me].append((epoch, int(calls), what.split(), int(key)))
        assert objects
        for me, calls in objects.items():
            assert len({epoch for epoch, *_ in calls}) == 1, "an object lives for one batch"
            calls.sort(key=lambda it: it[1])
            numbers = [number for _, number, *_ in calls]
            assert numbers == list(range(numbers[0], numbers[0] + len(calls))), "each call once"
            kinds = [what[0] for _, _, what, _ in calls]
            assert kinds == sorted(kinds), "all rows before all timers"
            rows, timers = ([key for _, _, what, key in calls if what[0] == kind] for kind in ("rows", "timer"))
            assert rows == sorted(set(rows)), "keys ascend, each once"
            assert len(timers) == len(set(timers)), "each timer once"
            times = [int(what[1]) for _, _, what, _ in calls if what[0] == "timer"]
            assert times == sorted(times), "timers of all keys in the order of time"
            assert (closed / me).exists(), "close is called"
        first = [text.split() for _, text in seen.epochs[0]]
        lefts: dict[str, set[str]] = defaultdict(set)
        for me, _, what, *left in first:
            if what == "rows":
                lefts[me].update(left)
        assert all(len(it) == 1 for it in lefts.values()), "all initial states before all rows"
        assert sum(int(next(iter(it))) for it in lefts.values()) <= len(initial)

    return check


KEYS = (5, -3, 256, 1, 70000, 2)
_closed: list[Path] = []


def check_life(seen: Seen) -> None:
    life_is_as_promised(_closed[-1], {"5", "9"})(seen)


@query(
    LIFE,
    "`init`, then all initial states, then all rows, keys ascending, then all expired timers, then `close`",
    "timers of all keys fire in the order of time",
    "`handleInputRows` is called once for each key that has rows in the batch",
    "an object serves one batch: what is set on `self` is gone in the next",
    equal=False,
    check=check_life,
)
def life_of_a_processor(place: Path) -> Program:
    closed = place / "closed"
    closed.mkdir(parents=True)
    _closed.append(closed)
    batch = [(key, n) for n in range(2) for key in KEYS]
    return Program(
        Told(closed),
        [batch, batch[:5], batch],
        schema="k long, v long",
        time_mode="ProcessingTime",
        initial=("k long, n long", [(5, 1), (9, 1)], ("k",)),
    )


class Reads(StatefulProcessor):
    """Reads its rows as its key says."""

    def init(self, handle: Any) -> None:
        self._n = handle.getValueState("n", "n long")
        self._seen = handle.getListState("seen", "key string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        (name,) = key
        self._seen.appendValue((name,))
        if name == "list":
            return [Row(k=name, text=str(len(list(rows)))), Row(k=name, text="more")]
        if name == "nothing":
            return []
        return self._generator(name, rows)

    def _generator(self, name: str, rows: Any) -> Iterator[Row]:
        self._n.update((len(name),))  # a generator runs under its own key
        if name == "first":
            yield Row(k=name, text=str(sorted(next(rows).asDict())))
        elif name == "twice":
            yield Row(k=name, text=str(sorted(row.v for row in rows)))
            yield Row(k=name, text=str(list(rows)))
            yield Row(k=name, text=str(rows is iter(rows)))
        elif name != "unread":
            yield Row(k=name, text=str(sum(1 for _ in rows)))
        yield Row(k=name, text=f"{self._n.get()} {list(self._seen.get())}")


@query(
    LIFE,
    "rows are an iterator of one pass; what is left unread is skipped",
    "a handler returns any iterable, also a list; a generator runs under its key",
    "`handleInitialState`, `handleExpiredTimer` and `close` may be left out",
)
def reading_of_rows(place: Path) -> Program:
    batch = [(name, n) for name in ("first", "list", "nothing", "twice", "unread", "all") for n in range(3)]
    return Program(Reads(), [batch, batch], time_mode="ProcessingTime")


class ReturnsNone(Counts):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return None


@query(LIFE, "a handler that returns `None` fails", fails="'NoneType' object is not iterable", equal=False)
def returning_none(place: Path) -> Program:
    return Program(ReturnsNone(), [[("a", 1)]])


class Positional(Counts):
    """Its parameters stand in another order: Spark gives them by name."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self._handle.registerTimer(1)
        return iter(())

    def init(self, handle: Any) -> None:
        self._handle = handle

    def handleExpiredTimer(self, expiredTimerInfo: Any, key: Any, timerValues: Any) -> Iterator[Row]:
        yield Row(k=key[0], text=f"{expiredTimerInfo.getExpiryTimeInMs()} {timerValues.getCurrentWatermarkInMs()}")


@query(LIFE, "`handleExpiredTimer` gets its arguments by name")
def timers_by_name(place: Path) -> Program:
    return Program(Positional(), [[("a", 1)]], time_mode="ProcessingTime")


# --- initial state


class Begins(StatefulProcessor):
    """A count that begins with what it is given."""

    def __init__(self, form: str) -> None:
        self._form = form

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._n = handle.getValueState("n", "n long")
        self._given = handle.getListState("given", "text string")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        found = initialState if self._form != PANDAS else initialState.itertuples(index=False)
        for row in [found] if self._form != PANDAS else found:
            old = self._n.get()
            self._n.update((int(row.n) + (0 if old is None else old[0]),))
        columns = list(initialState.columns) if self._form == PANDAS else [*initialState.__fields__]
        size = len(initialState) if self._form == PANDAS else 1
        times = timerValues.getCurrentProcessingTimeInMs() - START, timerValues.getCurrentWatermarkInMs()
        self._given.appendValue((f"{key} {type(key) is tuple} {columns} {size} {times}",))
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 500)

    def _said(self, key: Any, text: str) -> Any:
        if self._form != PANDAS:
            return Row(k=key[0], text=text)
        import pandas as pd  # type: ignore[import-untyped]

        return pd.DataFrame({"k": [key[0]], "text": [text]})

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield self._said(key, f"{sum(1 for _ in rows)} {self._n.get()} {list(self._given.get())}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        at = expiredTimerInfo.getExpiryTimeInMs() - START
        yield self._said(key, f"timer {at} {self._n.get()} {list(self._given.get())}")


def _initial(form: str) -> Program:
    return Program(
        Begins(form),
        [[("a", 1), ("a", 2), ("new", 1)], [("a", 1), ("only", 1)], [("a", 1)]],
        form=form,
        time_mode="ProcessingTime",
        initial=("n long, name string", [(10, "a"), (20, "a"), (7, "only")], ("name",)),
        stops=frozenset({2}),
    )


@query(
    INITIAL,
    "Row form: `handleInitialState` is called for each row, with the key, a `Row` of all columns and the first batch's "
    "times",
    "its key columns may have other names and places",
    "of a key that only the initial state has, `handleInputRows` is not called",
    "timers that `handleInitialState` sets fire",
    "it is given in the first batch alone, not after a restart",
)
def initial_rows(place: Path) -> Program:
    return _initial("rows")


@query(INITIAL, "pandas form: `handleInitialState` is called with a DataFrame of the key's rows")
def initial_frames(place: Path) -> Program:
    return _initial(PANDAS)


@query(
    INITIAL,
    "its key columns may have other types",
    equal=False,
    bedload_fails="cast the one or the other",
    why="it is refused at the call: in Spark some keys get their state and others do not, as partitions fall",
)
def initial_keys_of_another_type(place: Path) -> Program:
    initial = ("k int, n long", [(1, 1)], ("k",))
    output = "k long, text string"
    return Program(
        Begins("rows"), [[(1, 1)]], "k long, v long", output=output, time_mode="ProcessingTime", initial=initial
    )
