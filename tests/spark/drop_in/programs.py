"""A processor that does what it is told: random programs over the handle, as rows of the input.

An operation is a list: a method's name and its arguments, for one of the state variables. A row has some of them, as
JSON. What they give comes out as text; a map's order is not promised, so what iterates over one is sorted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from tests.spark.drop_in.engines import PANDAS, STEP, TEXT, Program
from tests.spark.drop_in.small import EVENT, NONE, PROCESSING

SCHEMA = "k string, ops string, ts timestamp"
TTL = STEP * 3 // 2


class Told(StatefulProcessor):
    """Has a value, a list and a map, each with and, in mode ProcessingTime, without a TTL; and timers."""

    def __init__(self, mode: str, form: str) -> None:
        self._mode, self._form = mode, form

    def init(self, handle: Any) -> None:
        self._handle = handle
        ttl = TTL if self._mode == PROCESSING else None
        self._states = {
            "value": handle.getValueState("value", "n long, s string"),
            "list": handle.getListState("list", "n long, s string"),
            "map": handle.getMapState("map", "k long", "n long, s string"),
            "short value": handle.getValueState("short_value", "n long, s string", ttl),
            "short list": handle.getListState("short_list", "n long, s string", ttl),
            "short map": handle.getMapState("short_map", "k long", "n long, s string", ttl),
        }

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        found = initialState.itertuples(index=False) if self._form == PANDAS else [initialState]
        for row in found:
            for _ in self._run(key, json.loads(row.ops), timerValues, ""):
                """What it sees is not told; what it leaves is."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        if self._form == PANDAS:
            rows = (row for frame in rows for row in frame.itertuples(index=False))
        # The order of rows within a key is not promised: they are taken by time.
        ordered = sorted(rows, key=lambda row: (row.ts, row.ops))
        yield from self._run(key, [op for row in ordered for op in json.loads(row.ops)], timerValues, "")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        at = expiredTimerInfo.getExpiryTimeInMs()
        # What a timer does depends on its time alone, so that it is the same on both engines.
        ops: list[Any] = [["value", "get"], ["value", "update", at % 7, "timer"], ["timers", "list"]]
        if at % 3 == 0:
            ops.append(["timers", "registerTimer", at % 5 * STEP])
        if at % 4 == 0:
            ops += [["short map", "updateValue", at % 3, at % 11, "timer"], ["short list", "appendValue", 1, "t"]]
        if at % 5 == 0:
            ops.append(["timers", "deleteTimer", (at // 10) % 4 * 100])
        yield from self._run(key, ops, timerValues, f"timer {at}")

    def _run(self, key: Any, ops: list[Any], times: Any, before: str) -> Iterator[Any]:
        clock = times.getCurrentWatermarkInMs() if self._mode == EVENT else times.getCurrentProcessingTimeInMs()
        said = [before] if before else []
        for which, method, *arguments in ops:
            found = self._timers(method, arguments, clock) if which == "timers" else self._do(which, method, arguments)
            said.append(f"{which} {method} {found!r}")
        if self._form == PANDAS:
            import pandas as pd  # type: ignore[import-untyped]

            yield pd.DataFrame({"k": key[0], "text": said}, dtype=object)
        else:
            yield from (Row(k=key[0], text=text) for text in said)

    def _timers(self, method: str, arguments: list[Any], clock: int) -> Any:
        if self._mode == NONE:
            return None
        if method == "list":
            return sorted(self._handle.listTimers())
        return getattr(self._handle, method)(clock + arguments[0])

    def _do(self, which: str, method: str, arguments: list[Any]) -> Any:
        state = self._states[which]
        if method in ("put", "appendList"):
            return getattr(state, method)([tuple(it) for it in arguments[0]])
        if method in ("update", "appendValue"):
            return getattr(state, method)(tuple(arguments))
        if method == "updateValue":
            return state.updateValue((arguments[0],), tuple(arguments[1:]))
        if method in ("getValue", "containsKey", "removeKey"):
            found = getattr(state, method)((arguments[0],))
            return tuple(found) if method == "getValue" and found is not None else found
        if method in ("iterator", "keys", "values"):
            return sorted(getattr(state, method)(), key=repr)
        found = getattr(state, method)()
        return list(found) if which.endswith("list") and method == "get" else found


# --- programs

_numbers = st.none() | st.integers(-(2**40), 2**40)
_texts = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=3)
_entries = st.tuples(_numbers, _texts).map(list)
_keys = st.integers(-2, 3)
_values = st.sampled_from(["value", "short value"])
_lists = st.sampled_from(["list", "short list"])
_maps = st.sampled_from(["map", "short map"])

OPERATIONS = st.one_of(
    st.tuples(_values, st.sampled_from(["get", "exists", "clear"])),
    st.tuples(_values, st.just("update"), _numbers, _texts),
    st.tuples(_lists, st.sampled_from(["get", "exists", "clear"])),
    st.tuples(_lists, st.sampled_from(["put", "appendList"]), st.lists(_entries, min_size=1, max_size=4)),
    st.tuples(_lists, st.just("appendValue"), _numbers, _texts),
    st.tuples(_maps, st.sampled_from(["exists", "iterator", "keys", "values", "clear"])),
    st.tuples(_maps, st.sampled_from(["getValue", "containsKey", "removeKey"]), _keys),
    st.tuples(_maps, st.just("updateValue"), _keys, _numbers, _texts),
    st.tuples(
        st.just("timers"), st.sampled_from(["registerTimer", "deleteTimer"]), st.integers(-10, 40).map((100).__mul__)
    ),
    st.tuples(st.just("timers"), st.just("list")),
).map(list)
LOOK = [
    *(["value", "get"], ["list", "get"], ["map", "iterator"]),
    *(["short value", "get"], ["short list", "get"], ["short map", "iterator"], ["timers", "list"]),
]
"""What the last batch asks every key: its whole state."""
KEYS = [f"k{number}" for number in range(6)]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A program of some batches, that is stopped and replayed here and there."""
    from tests.spark.drop_in.cases_output import after

    mode = draw(st.sampled_from([NONE, PROCESSING, EVENT]))
    form = draw(st.sampled_from(["rows", PANDAS]))
    length = draw(st.integers(3, 5))
    batches = []
    for batch in range(length):
        rows = draw(
            st.lists(st.tuples(st.sampled_from(KEYS), st.lists(OPERATIONS, min_size=1, max_size=6)), max_size=12)
        )
        late = draw(st.sampled_from([0, 0, 2 * STEP]))  # in mode EventTime such rows are dropped
        times = [after(batch * STEP + at - late * (at % 3 == 2)) for at in range(len(rows))]
        batches.append([(key, json.dumps(ops), at) for at, (key, ops) in zip(times, rows, strict=True)])
    batches.append([(key, json.dumps(LOOK), after(length * STEP)) for key in KEYS])
    some = st.frozensets(st.integers(1, length), max_size=1)
    known = draw(st.dictionaries(st.sampled_from([*KEYS, "only"]), st.lists(OPERATIONS, min_size=1, max_size=4)))
    initial = [(json.dumps(ops), key) for key, ops in known.items()]
    return Program(
        Told(mode, form),
        batches,
        SCHEMA,
        output=TEXT,
        form=form,
        time_mode=mode,
        watermark=("ts", "0 seconds"),
        initial=("ops string, key string", initial, ("key",)) if draw(st.booleans()) else None,
        stops=draw(some),
        fails=draw(st.frozensets(st.integers(0, length), max_size=1)),
        files=draw(st.sampled_from([1, 2])),
    )
