"""Variables of operators on arrays that expire, against a dict: in every history of epochs, aborts and moves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples

import bedload as bl
from bedload.core.epoch import EpochTime
from bedload.core.ids import Epoch, KeyGroup, WorkerId
from bedload.protocol.split import with_groups
from bedload.testing.applied import an_operator
from bedload.testing.input import InputFormat, as_schema

GROUPS = 4
ALL = [KeyGroup(group) for group in range(GROUPS)]
TTL = 10
BY_TIME, BY_EVENT = 1, 2


class Lasting(bl.VectorOperator):
    """Counts calls about a key, for a while, in variables that a batch names."""

    by_time: int = bl.value(0, ttl="10 milliseconds")
    by_event: int = bl.value(7, ttl="10 milliseconds", clock="event", refresh="read")

    def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
        what = int(batch.numpy("what")[0])
        new = {"by_time": state["by_time"] + 1} if what & BY_TIME else {}
        return new | ({"by_event": state["by_event"] + 1} if what & BY_EVENT else {})


class Call(NamedTuple):
    """A batch: some keys, and which variables are returned."""

    keys: list[int]
    what: int


class Turn(NamedTuple):
    """An epoch; ``later`` may be less than 0: clocks are set back. ``moves``: all state goes elsewhere after it."""

    later: int
    watermark: int
    calls: list[Call]
    commits: bool
    moves: bool


@dataclass
class Key:
    """A key of the model. An end of 0 is not counted, and None is none."""

    by_time: int = 0
    time_end: int | None = 0
    by_event: int = 7
    event_end: int | None = 0

    def expire(self, time: EpochTime) -> None:
        if self.time_end and self.time_end <= time.processing:
            self.by_time, self.time_end = 0, None
        if self.event_end and self.event_end <= time.watermark:
            self.by_event, self.event_end = 7, None

    def count(self, time: EpochTime) -> None:
        if self.time_end == 0:
            self.time_end = time.processing + TTL
        if self.event_end == 0:
            self.event_end = _event_end(time)

    def call(self, what: int, time: EpochTime) -> None:
        if what & BY_TIME:
            self.by_time, self.time_end = self.by_time + 1, time.processing + TTL
        if what & BY_EVENT or self.event_end is not None:
            self.event_end = _event_end(time)
        if what & BY_EVENT:
            self.by_event += 1

    def state(self) -> dict[str, Any]:
        values: dict[str, Any] = {"by_time": self.by_time, "by_event": self.by_event}
        return values | {"bedload_ttl_by_time": self.time_end, "bedload_event_ttl_by_event": self.event_end}


def _event_end(time: EpochTime) -> int:
    return time.watermark + TTL if time.watermark else 0


@dataclass
class Model:
    """All keys."""

    keys: dict[int, Key] = field(default_factory=dict)

    def copy(self) -> Model:
        return Model({key: replace(it) for key, it in self.keys.items()})

    def run(self, calls: list[Call], time: EpochTime) -> None:
        for it in self.keys.values():
            it.expire(time)
        for keys, what in calls:
            for key in set(keys):
                self.keys.setdefault(key, Key()).call(what, time)
        for it in self.keys.values():
            it.count(time)


calls = st.builds(Call, st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(0, 3))
turns = st.builds(
    Turn,
    st.integers(-8, 12),
    st.integers(0, 12),
    st.lists(calls, max_size=3),
    st.booleans() | st.just(True),
    st.booleans(),
)


@given(st.lists(turns, max_size=12))
@examples(150)
def test_what_expires_is_what_a_dict_says(history: list[Turn]) -> None:
    form = InputFormat(as_schema("key long, what long", "input"), "key", GROUPS)
    deployment = an_operator(Lasting, "key long").apply(form).deployment
    runtime: Any = deployment.start(WorkerId(0))
    model, time = Model(), EpochTime()
    for epoch, turn in enumerate(history):
        time = EpochTime(time.watermark + turn.watermark, max(0, time.processing + turn.later))
        after = model.copy()
        after.run(turn.calls, time)
        runtime.begin(Epoch(epoch), ALL)
        runtime.set_time(time)
        for keys, what in turn.calls:
            batch = pa.record_batch({"key": keys, "what": [what] * len(keys)})
            runtime.apply(with_groups(batch, [0], GROUPS))
        runtime.seal()
        runtime._table.check()
        if not turn.commits:
            runtime.abort()
        else:
            runtime.commit()
            model = after
        assert dict(runtime.snapshot()) == {key: it.state() for key, it in model.keys.items()}
        if turn.moves:
            other: Any = deployment.start(WorkerId(1))
            table = runtime._table
            slots = table.committed_slots()
            state = table.extract(slots)
            names = [name for name in state.schema.names if not name.startswith("key")]
            other._table.put(state.columns[:1], table.index.group_of(slots), state.select(names))
            runtime = other
