"""What expires on rows: each kind of variable, keys, event time, timers, results, stored state with other TTLs."""

from __future__ import annotations

import datetime as dt
import heapq
from collections import Counter, deque
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.simulator.chance import Chance
from tests.unit import test_heritage

import bedload as bl
from bedload.checkpoint.evolution import Evolution
from bedload.checkpoint.records import OperatorSchema
from bedload.core.epoch import Due, EpochTime
from bedload.core.errors import StateTypeError
from bedload.core.ids import Epoch, KeyGroup, OperatorName, WorkerId
from bedload.protocol.split import with_groups
from bedload.testing import InProcessCluster, OperatorHarness
from bedload.worker.operator import state_of
from bedload.worker.row_runtime import Deployment, OperatorRuntime
from bedload.worker.state_schema import state_schema

TEN: Any = {"ttl": "10 milliseconds"}
ALL = [KeyGroup(i) for i in range(4)]


@dataclass
class Point:
    x: int = 0


def harness_of(operator: type[bl.Operator], **more: Any) -> OperatorHarness:
    return OperatorHarness(operator, schema="key string", key="key", input="key string", **more)


def doing(**variables: tuple[Any, Any]) -> type[bl.Operator]:
    """An operator with these variables (annotation, declaration) that does the next of its steps with each row."""
    steps: list[Any] = []

    def process(self: Any, key: Any, rows: Any, ctx: Any) -> None:
        for _ in rows:
            steps.pop(0)(self)

    members = {name: made for name, (_, made) in variables.items()}
    annotations = {name: kind for name, (kind, _) in variables.items()}
    body = {"__annotations__": annotations, "process": process, "STEPS": steps, **members}
    return type(bl.Operator)("Doing", (bl.Operator,), body)


def after(kind: Any, declared: Any, *epochs: tuple[int, Any]) -> list[Any]:
    """The value of a variable after each epoch: at a time, with a step or none."""
    operator: Any = doing(x=(kind, declared))
    harness, found = harness_of(operator), []
    for now, step in epochs:
        harness.now = now
        if step is not None:
            operator.STEPS.append(step)
        harness.run_epoch([("a",)] if step is not None else [])
        state = harness.state("a")
        found.append(state and state["x"])
    return found


def test_a_value_goes_back_to_its_default() -> None:
    def set_(o: Any) -> None:
        o.x = 5

    def same(o: Any) -> None:
        o.x = o.x

    epochs = [(0, set_), (9, None), (10, None), (11, set_), (20, same), (29, None), (30, None)]
    assert after(int, bl.value(3, **TEN), *epochs) == [5, 5, 3, 5, 5, 5, 3]


def test_a_write_in_the_epoch_in_which_it_expires_starts_it_anew_and_it_lives_on() -> None:
    def add(o: Any) -> None:
        o.x += 1

    assert after(int, bl.value(0, **TEN), (0, add), (10, add), (19, None), (20, None)) == [1, 1, 1, 0]


def test_entries_of_a_map_expire_by_themselves() -> None:
    def put(**entries: int) -> Any:
        return lambda o: o.x.update(entries)

    found = after(dict[str, int], bl.map(**TEN), (0, put(a=1, b=2)), (5, put(b=2)), (10, None), (15, None))
    assert found == [{"a": 1, "b": 2}, {"a": 1, "b": 2}, {"b": 2}, {}]


def test_a_change_inside_of_an_entry_is_a_write_of_it() -> None:
    def grow(o: Any) -> None:
        o.x.setdefault("a", []).append(1)

    found = after(dict[str, list[int]], bl.map(**TEN), (0, grow), (6, grow), (12, grow), (22, None))
    assert found == [{"a": [1]}, {"a": [1, 1]}, {"a": [1, 1, 1]}, {}]


def test_an_element_that_is_added_again_lives_on() -> None:
    def add(o: Any) -> None:
        o.x.add("a")

    assert after(set[str], bl.set(**TEN), (0, add), (9, add), (18, None), (19, None)) == [{"a"}, {"a"}, {"a"}, set()]


def test_counts_expire_by_themselves() -> None:
    found = after(
        Counter[str],
        bl.counter(**TEN),
        (0, lambda o: o.x.update("aab")),
        (5, lambda o: o.x.subtract("b")),
        (10, None),
        (15, None),
    )
    assert found == [Counter(a=2, b=1), Counter(a=2, b=0), Counter(b=0), Counter()]


def test_items_of_a_list_take_their_expiries_along() -> None:
    def sort(o: Any) -> None:
        o.x.sort()

    found = after(
        list[int],
        bl.list(**TEN),
        (0, lambda o: o.x.append(9)),
        (4, lambda o: o.x.extend([5, 7])),
        (6, sort),
        (10, None),
        (12, lambda o: o.x.__setitem__(0, 5)),
        (14, None),
        (22, None),
    )
    assert found == [[9], [9, 5, 7], [5, 7, 9], [5, 7], [5, 7], [5], []]


def test_items_of_a_deque_take_their_expiries_along() -> None:
    found = after(
        deque[int],
        bl.deque(maxlen=3, **TEN),
        (0, lambda o: o.x.extend([1, 2, 3])),
        (5, lambda o: o.x.append(4)),
        (6, lambda o: o.x.rotate(1)),
        (10, None),
    )
    assert [list(it) for it in found] == [[1, 2, 3], [2, 3, 4], [4, 2, 3], [4]]


def test_items_of_a_heap_expire_wherever_they_are() -> None:
    found = after(
        bl.Heap[int],
        bl.heap(**TEN),
        (0, lambda o: o.x.push(5)),
        (4, lambda o: [o.x.push(n) for n in (9, 1, 7)]),
        (10, None),
        (12, lambda o: o.x.pop()),
        (14, None),
    )
    assert [sorted(it) for it in found] == [[5], [1, 5, 7, 9], [1, 7, 9], [7, 9], []]


def test_a_dataclass_and_an_array_go_back_as_a_whole() -> None:
    def move(o: Any) -> None:
        o.x.x = 4

    assert after(Point, bl.value(Point(), **TEN), (0, move), (9, move), (18, None), (19, None)) == [
        *[Point(4)] * 3,
        Point(0),
    ]

    def write(o: Any) -> None:
        o.x[1] = 4

    def assign(o: Any) -> None:
        o.x = np.array([0.0, 4.0])

    found = after(np.ndarray, bl.array(2, **TEN), (0, write), (9, assign), (18, write), (19, None))
    assert [it.tolist() for it in found] == [[0, 4], [0, 4], [0, 4], [0, 0]]


def test_reading_counts_if_it_is_asked_for() -> None:
    def look(o: Any) -> None:
        o.x.get("a")

    def put(o: Any) -> None:
        o.x.update(a=1, b=2)

    read = bl.map(refresh="read", **TEN)
    assert after(dict[str, int], read, (0, put), (9, look), (10, None), (19, None)) == [
        {"a": 1, "b": 2},
        {"a": 1, "b": 2},
        {"a": 1},
        {},
    ]
    assert after(dict[str, int], bl.map(**TEN), (0, put), (9, look), (10, None))[-1] == {}


READ: Any = {"refresh": "read", **TEN}


@pytest.mark.parametrize(
    ("kind", "declared", "remove"),
    [
        (dict[str, int], bl.map(**READ), lambda x: x.pop("b")),
        (dict[str, int], bl.map(**READ), lambda x: x.popitem()),
        (Counter[str], bl.counter(**READ), lambda x: x.__delitem__("b")),
        (Counter[str], bl.counter(**READ), lambda x: x.__isub__(Counter("b"))),
    ],
)
def test_to_remove_an_entry_reads_no_other(kind: Any, declared: Any, remove: Any) -> None:
    found = after(kind, declared, (0, lambda o: o.x.update(a=1, b=1)), (9, lambda o: remove(o.x)), (10, None))
    assert found == [{"a": 1, "b": 1}, {"a": 1}, {}]


class Counts(bl.Operator):
    n: int = bl.value(0)
    seen: dict[int, int] = bl.map(ttl="5 milliseconds")

    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        self.n += len(rows)
        self.seen[self.n] = 1

    def on_timer(self, key: Any, timer: Any, ctx: Any) -> Any:
        return key, -1, len(self.seen)

    def result(self, key: Any, ctx: Any) -> Any:
        return key, self.n, len(self.seen)


class Setting(Counts):
    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        super().process(key, rows, ctx)
        ctx.timers.processing.set(ctx.now + 10)


def counting(operator: type[bl.Operator] = Counts, **more: Any) -> OperatorHarness:
    return OperatorHarness(operator, schema="key string, n long, seen long", key="key", input="key string", **more)


def made(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in rows)


def test_a_key_without_rows_is_gone_and_what_expires_gives_no_output() -> None:
    harness = counting(**TEN)
    assert made(harness.run_epoch([("a",), ("b",)])) == [("a", 1, 1), ("b", 1, 1)]
    harness.now = 5
    assert made(harness.run_epoch([("b",)])) == [("b", 2, 1)]
    assert harness.state["a"] == {"n": 1, "seen": {}, "bedload_timers": (), "bedload_ttl_seen": {}, "bedload_ttl": 10}
    harness.now = 10
    assert harness.run_epoch([]) == []
    assert set(harness.snapshot()) == {"b"}
    assert made(harness.run_epoch([("a",)])) == [("a", 1, 1)]


def test_timers_of_a_key_go_with_it_and_see_what_is_left_of_one_that_stays() -> None:
    gone, stays = counting(Setting, **TEN), counting(Setting, ttl="11 milliseconds")
    for harness, fires in ((gone, []), (stays, [("a", -1, 0), ("a", 1, 0)])):
        harness.run_epoch([("a",)])
        harness.now = 10
        assert made(harness.run_epoch([])) == fires
        assert (harness.state("a") is None) == (harness is gone)


def test_by_event_time_it_counts_from_the_first_watermark() -> None:
    operator: Any = doing(x=(dict[str, int], bl.map(clock="event", **TEN)), y=(int, bl.value(0, clock="event", **TEN)))
    harness = harness_of(operator)

    def write(o: Any) -> None:
        o.x["a"], o.y = 1, 4

    operator.STEPS.append(write)
    harness.now = 10**9
    harness.run_epoch([("a",)])
    for watermark, there in ((0, True), (5000, True), (5009, True), (5010, False)):
        harness.watermark = watermark
        harness.run_epoch([])
        assert (harness.state["a"]["x"], harness.state["a"]["y"]) == (({"a": 1}, 4) if there else ({}, 0))


def test_an_aborted_epoch_has_expired_and_renewed_nothing() -> None:
    harness = counting(**TEN)
    harness.run_epoch([("a",), ("b",)])
    before = harness.snapshot()
    harness.now = 10
    for _ in range(2):
        harness.feed([("a",)])
        harness.seal()
        harness.abort()
        assert harness.snapshot() == before
    harness.run_epoch([])
    assert harness.snapshot() == {}


def test_keys_and_entries_expire_at_whichever_worker_they_are() -> None:
    cluster = InProcessCluster(
        Counts,
        schema="key string, n long, seen long",
        key="key",
        input="key string",
        workers=1,
        key_groups=8,
        ttl="1 second",
    )
    keys = [f"k{i}" for i in range(20)]
    cluster.run_epoch([[{"key": key} for key in keys]])
    cluster.rescale(3)
    cluster.now = 500
    cluster.run_epoch([[{"key": "k3"}]])
    assert {key: state["seen"] for key, state in cluster.snapshot().items()} == {
        key: {2: 1} if key == "k3" else {} for key in keys
    }
    cluster.now = 1000
    cluster.run_epoch([[]])
    assert set(cluster.snapshot()) == {"k3"}


def test_an_owner_of_before_says_what_is_due_at_a_time_that_it_has_not_heard_of_yet() -> None:
    for clock, later in (("processing", EpochTime(0, 11)), ("event", EpochTime(11, 0))):
        old = one(v=(int, bl.value(0, ttl="10 milliseconds", clock=clock))).start(WorkerId(0))  # type: ignore[arg-type]
        epoch(old, 0, now=1, watermark=1, step=lambda o: setattr(o, "v", 5))
        assert len(old.due_hashes(ALL, EpochTime(10, 10))) == 0
        assert len(old.due_hashes(ALL, later)) == 1  # the question may come before the time of the turn


def test_containers_in_a_tuple_are_assigned_and_changed_in_place() -> None:
    def assign(o: Any) -> None:
        o.x = (1, [2])

    def grow(o: Any) -> None:
        o.x[1].append(3)

    for kind, default in ((tuple[int, list[int]], (0, [])), (tuple[int, list[int]] | None, None)):
        found = after(kind, bl.value(default, **TEN), (0, assign), (5, grow), (14, None), (15, None))
        assert found == [(1, [2]), (1, [2, 3]), (1, [2, 3]), default]


def add_one(o: Any) -> None:
    o.x[0] = o.x[0] + 1


@pytest.mark.parametrize(
    ("kind", "declared"),
    [(np.ndarray, bl.array(1, "int64", **TEN)), (Any, bl.value([0], codec="msgspec", **TEN))],
)
def test_what_expired_and_is_changed_in_place_to_what_it_was_lives_on(kind: Any, declared: Any) -> None:
    found = after(kind, declared, (0, add_one), (10, add_one), (17, None), (19, None), (20, None))
    assert [list(it) for it in found] == [[1], [1], [1], [1], [0]]


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        (list[int], bl.list(maxlen=3, **TEN)),
        (deque[int], bl.deque(maxlen=3, **TEN)),
        (bl.Heap[int], bl.heap(maxlen=3, **TEN)),
    ],
)
def test_of_more_items_than_there_may_be_those_that_stay_expire(kind: Any, declared: Any) -> None:
    def assign(o: Any) -> None:
        o.x = [1, 2, 3, 4, 5]

    def put(o: Any) -> None:
        (o.x.push if isinstance(o.x, bl.Heap) else o.x.append)(6)

    found = after(kind, declared, (0, assign), (5, put), (9, None), (10, None), (15, None))
    assert [sorted(it) for it in found] == [[3, 4, 5], [4, 5, 6], [4, 5, 6], [6], []]


@pytest.mark.parametrize("seed", range(970_000_000, 970_000_020))
def test_a_heap_of_items_that_do_not_all_compare_is_as_heapq_leaves_it(seed: int) -> None:
    rng = Chance(seed)
    model: list[Any] = []

    def tried(do: Any, *args: Any) -> Any:
        try:
            return do(*args)
        except (TypeError, IndexError) as error:
            return type(error)

    def step(o: Any) -> None:
        ways = [
            (o.x.push, heapq.heappush, True),
            (o.x.pop, heapq.heappop, False),
            (o.x.pushpop, heapq.heappushpop, True),
            (o.x.replace, heapq.heapreplace, True),
        ]
        for _ in range(rng.number(1, 12)):
            method, function, takes = rng.pick([ways[0], *ways])
            item = [(rng.number(0, 2), rng.pick(["a", "b", None]))] if takes else []
            assert tried(method, *item) == tried(function, model, *item)
            assert list(o.x) == model

    steps = [(now, step) for now in range(3)]
    after(bl.Heap[tuple[int, str | None]], bl.heap(**TEN), *steps)


@dataclass(eq=False)
class Unequal:
    x: float = float("nan")


@pytest.mark.parametrize(("kind", "default"), [(float, float("nan")), (Unequal, Unequal())])
def test_a_default_that_does_not_equal_itself_is_a_default(kind: Any, default: Any) -> None:
    def set_(o: Any) -> None:
        o.x = 5.0 if kind is float else Unequal(5.0)

    deployment = one(x=(kind, bl.value(default, **TEN)))
    runtime = deployment.start(WorkerId(0))
    epoch(runtime, 0, now=0, step=set_)
    epoch(runtime, 1, now=10)
    for number, found in enumerate((runtime, restored(runtime, deployment))):
        epoch(found, number + 2, now=11)
        assert dict(found.snapshot())["a"]["bedload_ttl_x"] == 0
        assert found.next_due() == Due(None, None)


NAN = float("nan")


@pytest.mark.parametrize(
    ("kind", "declared", "step"),
    [
        (dict[float, int], bl.map(**TEN), lambda o: o.x.update({NAN: 1, 2.0: 1})),
        (set[float], bl.set(**TEN), lambda o: o.x.update({NAN, 2.0})),
        (set[tuple[int, float]], bl.set(**TEN), lambda o: o.x.add((1, NAN))),
        (Counter[float], bl.counter(**TEN), lambda o: o.x.update([NAN])),
    ],
)
def test_entries_of_nan_expire_when_they_were_stored_and_came_back(kind: Any, declared: Any, step: Any) -> None:
    deployment = one(x=(kind, declared))
    old = deployment.start(WorkerId(0))
    epoch(old, 0, now=0, step=step)
    new = restored(old, deployment)
    epoch(new, 1, now=9)
    assert dict(new.snapshot())["a"]["x"]
    epoch(new, 2, now=10)
    state = dict(new.snapshot())["a"]
    assert (len(state["x"]), len(state["bedload_ttl_x"])) == (0, 0)
    assert new.next_due() == Due(None, None)


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        (int, 0, 1),
        (float, 0.5, 1.5),
        (str, "", "x"),
        (bool, False, True),
        (int | None, None, 0),
        (dt.datetime, dt.datetime(2020, 1, 1), dt.datetime(2021, 1, 1)),
        (dt.timedelta, dt.timedelta(0), dt.timedelta(1)),
        (Decimal, Decimal("1.0"), Decimal(2)),
        (tuple[int, int], (0, 0), (0, 1)),
    ],
)
def test_of_keys_that_come_to_rest_only_those_that_have_something_are_looked_at(
    kind: Any, default: Any, value: Any
) -> None:
    def assign(o: Any) -> None:
        o.x = value

    before, after = one(x=(kind, bl.value(default))), one(x=(kind, bl.value(default, **TEN)))
    old = before.start(WorkerId(0))
    epoch(old, 0, now=10, step=assign, also=20)
    new = restored(old, after)
    found = len(new.due_hashes(ALL, EpochTime(0, 20)))
    assert found == (21 if isinstance(value, tuple | dt.datetime) else 1)  # these are structs, and not compared
    for number, now in enumerate((20, 29, 30)):
        epoch(new, number + 1, now)
        assert dict(new.snapshot())["a"]["x"] == (default if now == 30 else value)
    assert new.next_due() == Due(None, None)


def test_in_an_epoch_before_any_watermark_it_is_known_what_the_first_one_makes_due() -> None:
    """As in the first epoch of a query that was started anew: the watermark begins at 0 again."""
    deployment = one(x=(dict[str, int], bl.map(ttl="10 milliseconds", clock="event")))
    runtime = deployment.start(WorkerId(0))
    epoch(runtime, 0, now=1, watermark=50, step=lambda o: o.x.update(a=1))
    assert runtime.next_due() == Due(watermark=60)
    epoch(runtime, 1, now=2, watermark=0)
    assert runtime.next_due() == Due(watermark=60)
    epoch(runtime, 2, now=3, watermark=60)
    assert dict(runtime.snapshot())["a"]["x"] == {}
    assert runtime.next_due() == Due()


# --- another TTL on state that is there, as a checkpoint gives it ---


def one(**kinds: Any) -> Deployment:
    schema = pa.schema([("key", pa.string())])
    return Deployment(OperatorName("Doing"), doing(**kinds), (0,), ("key",), schema, (pa.string(),))


def stored(ttl: str | None, clock: Any = None) -> Deployment:
    lives: Any = {"ttl": ttl, "clock": clock}
    kinds: Any = {
        "m": (dict[str, int], bl.map(**lives)),
        "i": (list[int], bl.list(**lives)),
        "v": (int, bl.value(0, **lives)),
    }
    operator = doing(**kinds)
    return Deployment(
        OperatorName("Doing"), operator, (0,), ("key",), pa.schema([("key", pa.string())]), (pa.string(),)
    )


def schema_of(deployment: Deployment) -> OperatorSchema:
    return state_schema(deployment, ["car"], [pa.string()], 4, state_of(deployment.operator))


def epoch(runtime: OperatorRuntime, number: int, now: int, step: Any = None, watermark: int = 0, also: int = 0) -> None:
    """An epoch: with a row of the key ``a``, which does a step; ``also`` so many other keys that do nothing."""
    runtime.begin(Epoch(number), ALL)
    runtime.set_time(EpochTime(watermark, now))
    if step is not None:
        runtime.deployment.operator.STEPS.append(step)  # type: ignore[attr-defined]
        runtime.apply(with_groups(pa.record_batch({"key": ["a"]}), (0,), 4))
    if also:
        runtime.deployment.operator.STEPS.extend([lambda o: None] * also)  # type: ignore[attr-defined]
        runtime.apply(with_groups(pa.record_batch({"key": [str(i) for i in range(also)]}), (0,), 4))
    runtime.seal()
    runtime.commit()


def left(runtime: OperatorRuntime) -> tuple[Any, ...]:
    (state,) = dict(runtime.snapshot()).values()
    return state["m"], list(state["i"]), state["v"]


def write(o: Any) -> None:
    o.m["a"], o.v = 1, 5
    o.i.append(7)


def restored(old: OperatorRuntime, *new: Deployment) -> OperatorRuntime:
    """State as it comes back under another declaration, or after several that each ran for a while."""
    from tests.shelves import shelved

    from bedload.store.deltas import OP

    shelf = shelved(old, ALL)
    batch, _ = shelf.collect_range(0, len(shelf.hashes))
    way = [schema_of(old.deployment), *map(schema_of, new)]
    state = batch.drop_columns([OP])
    runtime = new[-1].start(WorkerId(0))
    runtime.install(ALL, state if way[0] == way[1] else Evolution(way).apply(state))
    return runtime


FULL, EMPTY = ({"a": 1}, [7], 5), ({}, [], 0)


@pytest.mark.parametrize(
    ("before", "after", "there"),
    [
        ((None,), ("10 milliseconds",), {100: FULL, 109: FULL, 110: EMPTY}),  # added: from the first epoch on
        (("50 milliseconds",), ("10 milliseconds",), {59: FULL, 60: EMPTY}),  # what was written keeps its end
        (("10 milliseconds", "event"), ("10 milliseconds",), {100: FULL, 109: FULL, 110: EMPTY}),  # another clock
        (("50 milliseconds",), (None,), {60: FULL, 10**9: FULL}),  # removed
    ],
)
def test_a_ttl_is_added_changed_and_removed_on_state_that_is_there(before: Any, after: Any, there: Any) -> None:
    old = stored(*before).start(WorkerId(0))
    epoch(old, 0, now=10, step=write, watermark=10)
    new = restored(old, stored(*after))
    for number, (now, wanted) in enumerate(there.items()):
        epoch(new, number + 1, now, watermark=11)
        assert left(new) == wanted, now


def test_another_length_counts_for_what_is_written_from_then_on() -> None:
    old = stored("50 milliseconds").start(WorkerId(0))
    epoch(old, 0, now=10, step=write)
    new = restored(old, stored("10 milliseconds"))
    epoch(new, 1, 20, step=lambda o: o.m.update(b=2))
    epoch(new, 2, 30)
    assert left(new) == FULL
    epoch(new, 3, 60)
    assert left(new) == EMPTY


def test_new_code_with_another_length_goes_on_with_state_in_memory() -> None:
    runtime = stored("50 milliseconds").start(WorkerId(0))
    epoch(runtime, 0, now=10, step=write)
    runtime.redeploy(stored("10 milliseconds"))
    epoch(runtime, 1, 20, step=lambda o: setattr(o, "v", 6))
    epoch(runtime, 2, 30)
    assert left(runtime) == ({"a": 1}, [7], 0)


def test_new_code_may_count_reads() -> None:
    def of(refresh: Any) -> Deployment:
        kinds: Any = {
            "m": (dict[str, int], bl.map(refresh=refresh, **TEN)),
            "i": (list[int], bl.list(refresh=refresh, **TEN)),
            "v": (int, bl.value(0, refresh=refresh, **TEN)),
        }
        schema = pa.schema([("key", pa.string())])
        return Deployment(OperatorName("Doing"), doing(**kinds), (0,), ("key",), schema, (pa.string(),))

    def look(o: Any) -> None:
        assert (o.m.get("a"), o.i[0], o.v) == (1, 7, 5)

    runtime = of("write").start(WorkerId(0))
    epoch(runtime, 0, now=10, step=write)
    runtime.redeploy(of("read"))
    epoch(runtime, 1, 15, step=look)
    epoch(runtime, 2, 20)
    assert left(runtime) == FULL
    runtime.redeploy(of("write"))
    epoch(runtime, 3, 24, step=look)
    epoch(runtime, 4, 25)
    assert left(runtime) == EMPTY


def test_a_variable_that_is_renamed_keeps_its_expiries_or_gets_its_first() -> None:
    def of(name: str, ttl: Any, before: str | None) -> Deployment:
        kinds: Any = {name: (dict[str, int], bl.map(renamed_from=before, ttl=ttl))}
        schema = pa.schema([("key", pa.string())])
        return Deployment(OperatorName("Doing"), doing(**kinds), (0,), ("key",), schema, (pa.string(),))

    for ttl, ends in (("10 milliseconds", 20), (None, 40)):
        old = of("m", ttl, None).start(WorkerId(0))
        epoch(old, 0, now=10, step=lambda o: o.m.update(a=1))
        new = restored(old, of("n", "10 milliseconds", "m"))
        for number, now in enumerate((ends - 10, ends - 1, ends)):
            epoch(new, number + 1, now)
            assert dict(new.snapshot())["a"]["n"] == ({"a": 1} if now < ends else {})


MAP: Any = dict[str, int]
LIVES: Any = {"m": (MAP, bl.map(**TEN))}


@pytest.mark.parametrize("last", [LIVES, {**LIVES, "more": (int, bl.value(0))}])
def test_expiries_from_before_a_ttl_was_removed_do_not_come_back(last: Any) -> None:
    old = one(**LIVES).start(WorkerId(0))
    epoch(old, 0, now=10, step=lambda o: o.m.update(a=1))
    new = restored(old, one(m=(MAP, bl.map())), one(**last))
    for number, (now, there) in enumerate({100: {"a": 1}, 109: {"a": 1}, 110: {}}.items()):
        epoch(new, number + 1, now)
        assert dict(new.snapshot())["a"]["m"] == there


@pytest.mark.parametrize(("kind", "made"), [(MAP, bl.map), (list[int], bl.list)])
def test_a_new_variable_has_no_expiries_of_one_that_had_its_name(kind: Any, made: Any) -> None:
    old = one(**LIVES).start(WorkerId(0))
    epoch(old, 0, now=10, step=lambda o: o.m.update(a=1))
    new = restored(old, one(n=(MAP, bl.map(renamed_from="m")), m=(kind, made(**TEN))))
    epoch(new, 1, now=20)
    state = dict(new.snapshot())["a"]
    assert (state["n"], len(state["m"]), len(state["bedload_ttl_m"])) == ({"a": 1}, 0, 0)
    assert new.next_due() == Due(None, None)


def test_expiries_follow_their_variable_when_a_ttl_comes_after_it_was_renamed() -> None:
    old = one(**LIVES).start(WorkerId(0))
    epoch(old, 0, now=10, step=lambda o: o.m.update(a=1))
    renamed: Any = {"n": (MAP, bl.map(renamed_from="m")), **LIVES}
    middle = restored(old, one(**renamed))
    epoch(middle, 1, now=15, step=lambda o: o.m.update(b=1))
    new = restored(middle, one(n=(MAP, bl.map(renamed_from="m", **TEN)), **LIVES))
    epoch(new, 2, now=20)
    epoch(new, 3, now=25)
    state = dict(new.snapshot())["a"]
    assert (state["n"], state["m"], state["bedload_ttl_n"]) == ({"a": 1}, {}, {"a": 30})


@pytest.mark.parametrize(("kind", "make"), [(list[int], bl.list), (deque[int], bl.deque)])
def test_with_a_smaller_maxlen_the_last_items_keep_their_expiries(kind: Any, make: Any) -> None:
    old = one(x=(kind, make(5, **TEN))).start(WorkerId(0))
    for number, now in enumerate((0, 2, 4)):
        epoch(old, number, now, step=lambda o: o.x.append(len(o.x)))
    new = restored(old, one(x=(kind, make(2, **TEN))))
    for number, (now, there) in enumerate({11: [1, 2], 12: [2], 14: []}.items()):
        epoch(new, number + 3, now)
        assert list(dict(new.snapshot())["a"]["x"]) == there


def test_a_variable_that_is_deleted_has_nothing_that_expires() -> None:
    operator: Any = doing(
        m=(dict[str, int], bl.map(**TEN)), i=(list[int], bl.list(**TEN)), p=(Point, bl.value(Point(), **TEN))
    )
    harness = harness_of(operator)

    def fill(o: Any) -> None:
        o.m["a"], o.p.x = 1, 4
        o.i.append(1)

    def delete(o: Any) -> None:
        del o.m, o.i, o.p

    operator.STEPS[:] = [fill, delete]
    harness.run_epoch([("a",)])
    harness.now = 5
    harness.run_epoch([("a",)])
    state = harness.state["a"]
    assert (state["m"], state["i"], state["p"]) == ({}, [], Point())
    assert (state["bedload_ttl_m"], state["bedload_ttl_i"]) == ({}, [])


@pytest.mark.parametrize(("name", "value"), [("m", 5), ("i", 5), ("m", {1: 1}), ("v", "x")])
def test_a_value_of_another_type_is_refused_by_the_name_of_its_variable(name: str, value: Any) -> None:
    operator: Any = doing(m=(dict[str, int], bl.map(**TEN)), i=(list[int], bl.list(**TEN)), v=(int, bl.value(0, **TEN)))
    operator.STEPS.append(lambda o: setattr(o, name, value))
    with pytest.raises(StateTypeError, match=f"'{name}'"):
        harness_of(operator).run_epoch([("a",)])


def test_keys_of_arrays_expire_when_apply_has_a_ttl() -> None:
    class Sum(bl.VectorOperator):
        n: int = bl.value(0)

        def process(self, batch: Any, state: Any, ctx: Any) -> Any:
            return {"n": state["n"] + np.bincount(batch.index, minlength=len(state["n"]))}

        def result(self, keys: Any, state: Any, ctx: Any) -> Any:
            return {"key": keys, "n": state["n"]}

    harness = OperatorHarness(Sum, schema="key string, n long", key="key", input="key string", **TEN)
    assert made(harness.run_epoch([("a",), ("b",)])) == [("a", 1), ("b", 1)]
    harness.now = 9
    harness.run_epoch([("b",)])
    harness.now = 10
    assert harness.run_epoch([]) == []
    assert set(harness.snapshot()) == {"b"}


@pytest.mark.filterwarnings("error")
def test_expiries_go_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_heritage, "schema_of", lambda ttl: schema_of(stored(ttl)))
    found = [test_heritage.taken_over(tmp_path, ttl) for ttl in (None, "1 hour", "2 hours", None)]  # type: ignore[arg-type]
    assert [lineage.schema.number for lineage in found] == [1, 2, 2, 3]
