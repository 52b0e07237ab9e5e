"""A tracked heap beside heapq on a plain list, through random operations, commits, aborts and snapshots."""

from __future__ import annotations

import copy
import dataclasses
import heapq
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.applied_changes import apply_changes

from bedload import state as bl
from bedload.core.errors import StateTypeError
from bedload.state import Journal, codec
from bedload.state.handling import handling
from bedload.state.types import HeapNode, TypeNode, parse_type
from bedload.testing import InProcessCluster, OperatorHarness
from bedload.worker.operator import Context, Operator
from bedload.worker.rows import Rows

FAST = settings(max_examples=150, deadline=None)
SIZES = st.sampled_from([0, 1, 2, 5, 63, 64, 65, 70, 200])
NUMBERS = st.integers(0, 40)


@dataclasses.dataclass(order=True)
class Job:
    at: int
    tags: list[int] = dataclasses.field(default_factory=list, compare=False)


class Model:
    """heapq on a plain list."""

    def __init__(self, items: list[Any], maxlen: int | None) -> None:
        self.items, self.maxlen = items, maxlen

    def push(self, item: Any) -> None:
        if self.maxlen is not None and len(self.items) >= self.maxlen:
            heapq.heappushpop(self.items, item)
        else:
            heapq.heappush(self.items, item)

    def pop(self) -> Any:
        return heapq.heappop(self.items)

    def pushpop(self, item: Any) -> Any:
        return heapq.heappushpop(self.items, item)

    def replace(self, item: Any) -> Any:
        return heapq.heapreplace(self.items, item)

    def extend(self, items: list[Any]) -> None:
        for item in items:
            self.push(item)

    def clear(self) -> None:
        self.items.clear()

    def peek(self) -> Any:
        return self.items[0]

    def nsmallest(self, n: int) -> Any:
        return heapq.nsmallest(n, self.items)

    def nlargest(self, n: int) -> Any:
        return heapq.nlargest(n, self.items)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["push", "pushpop", "replace"]), st.tuples(NUMBERS)),
        st.tuples(st.just("extend"), st.tuples(st.lists(NUMBERS, max_size=5))),
        st.tuples(st.sampled_from(["pop", "pop", "peek", "clear"]), st.just(())),
        st.tuples(st.sampled_from(["nsmallest", "nlargest"]), st.tuples(st.integers(0, 4))),
        st.tuples(st.sampled_from(["commit", "abort", "snapshot", "touch a child"]), st.just(())),
    ),
    max_size=40,
)


def call(target: Any, name: str, args: Any) -> Any:
    try:
        return copy.deepcopy(getattr(target, name)(*args))
    except (IndexError, TypeError) as error:
        return type(error), str(error)


def run(node: TypeNode, items: list[Any], maxlen: int | None, make: Any, history: list[Any]) -> None:
    journal, how = Journal(), handling(node)
    assert how is not None
    model = Model(copy.deepcopy(items), maxlen)
    tracked = how.adopt(items, journal, None, None)
    committed, backup = copy.deepcopy(model.items), copy.deepcopy(model.items)
    for name, args in history:
        if name == "commit":
            backup = apply_changes(backup, tracked._bl_changes())
            assert how.differs(tracked) == (model.items != committed) or make is not int
            journal.commit()
            committed = copy.deepcopy(model.items)
            assert encoded(node, backup) == encoded(node, committed)
        elif name == "abort":
            journal.abort()
            model.items[:] = copy.deepcopy(committed)
        elif name == "snapshot":
            assert encoded(node, how.committed(tracked)) == encoded(node, committed)
        elif name == "touch a child":
            if make is Job and len(tracked):
                at = len(tracked) // 2
                tracked[at].tags.append(1)
                model.items[at].tags.append(1)
        else:
            given_args = [[make(v) for v in a] if isinstance(a, list) else make(a) for a in args]
            if name.startswith("n"):
                given_args = list(args)
            expected, got = call(model, name, copy.deepcopy(given_args)), call(tracked, name, given_args)
            assert got == expected, name
        assert encoded(node, how.plain(tracked)) == encoded(node, model.items)
        assert tracked == model.items
        assert list(tracked) == model.items
        assert len(tracked) == len(model.items)
        assert repr(tracked) == repr(model.items)
    assert type(how.plain(tracked)) is list
    journal.abort()
    assert encoded(node, how.plain(tracked)) == encoded(node, committed)


def encoded(node: TypeNode, value: list[Any]) -> Any:
    """The items with all that is in them, and in which order."""
    from bedload.state.arrow import encoder

    return encoder(node)(value)


def heap_of(size: int, maxlen: int | None, make: Any) -> list[Any]:
    items = [make(i * 7 % 31) for i in range(size)][: maxlen or size]
    heapq.heapify(items)
    return items


@FAST
@given(SIZES, st.sampled_from([None, 3, 66, 90]), STEPS)
def test_a_heap_does_what_heapq_does(size: int, maxlen: int | None, history: list[Any]) -> None:
    node = dataclasses.replace(parse_type(bl.Heap[int], "t"), maxlen=maxlen)  # type: ignore[type-var]
    run(node, heap_of(size, maxlen, int), maxlen, int, history)


@FAST
@given(SIZES, STEPS)
def test_items_that_are_equal_and_can_change_stay_in_the_order_of_heapq(size: int, history: list[Any]) -> None:
    run(parse_type(bl.Heap[Job], "t"), heap_of(size, None, Job), None, Job, history)


@given(st.lists(NUMBERS, max_size=90), st.sampled_from([None, 1, 5]))
def test_a_list_becomes_a_heap_and_a_heap_stays_as_it_is(items: list[int], maxlen: int | None) -> None:
    how = handling(HeapNode(parse_type(int, "t"), maxlen))
    assert how is not None
    tracked = how.adopt(items, Journal(), None, None)
    assert sorted(tracked) == sorted(items)[-(maxlen or len(items)) :] if items else not tracked
    again = how.adopt(tracked.copy(), Journal(), None, None)
    assert again.copy() == tracked.copy()
    assert [tracked.pop() for _ in range(len(tracked))] == sorted(again)


@pytest.mark.parametrize("size", [3, 100])
@pytest.mark.parametrize("name", ["push", "pop", "replace", "pushpop"])
def test_a_comparison_that_raises_leaves_something_to_roll_back(size: int, name: str) -> None:
    class Moody(int):
        fails = False

        def __lt__(self, other: int) -> bool:
            if Moody.fails:
                raise RuntimeError("not today")
            return int(self) < int(other)

    Moody.fails = False
    how, journal = handling(parse_type(bl.Heap[int], "t")), Journal()
    assert how is not None
    tracked = how.adopt([Moody(i) for i in range(size)], journal, None, None)
    before = tracked.copy()
    Moody.fails = True
    with pytest.raises(RuntimeError):
        getattr(tracked, name)(*() if name == "pop" else (Moody(1),))
    Moody.fails = False
    if size > 64:
        assert tracked.copy() == before
    journal.abort()
    assert tracked.copy() == before


def test_it_is_a_list_in_arrow_and_a_copy_is_a_plain_list() -> None:
    class Queue(Operator):
        queue: bl.Heap[tuple[int, str]] = bl.heap()

    specs = Queue.__bedload_specs__
    assert codec.arrow_schema(specs).field("queue").type == pa.list_(
        pa.struct([("f0", pa.int64()), ("f1", pa.string())])
    )
    how = handling(specs[0].type)
    assert how is not None
    tracked = how.adopt([(2, "b"), (1, "a")], Journal(), None, None)
    assert type(copy.copy(tracked)) is list
    assert type(copy.deepcopy(tracked)) is list
    assert pickle.loads(pickle.dumps(tracked)) == [(1, "a"), (2, "b")]
    (row,) = codec.decode(specs, codec.encode(specs, [{"queue": tracked}]))
    assert row == {"queue": [(1, "a"), (2, "b")]}


@pytest.mark.parametrize(
    ("annotation", "declared", "problem"),
    [
        (bl.Heap[dict[str, int]], bl.heap(), "have no order"),
        (bl.Heap[set[int]], bl.heap(), "have no order"),
        (bl.Heap[int | None], bl.heap(), "have no order"),
        (list[int], bl.heap(), r"annotate it as in bl\.Heap"),
        (bl.Heap[int], bl.list(), "does not fit"),
        (bl.Heap[int], bl.value([]), "use bl.list"),
        (bl.Heap[int], bl.value(0), r"use bl\.heap\(\)"),
        (bl.Heap, bl.heap(), "does not say what it holds"),
        (bl.Heap[int], bl.heap(maxlen=0), "maxlen is 0"),
    ],
)
def test_what_cannot_be_declared_is_refused(annotation: Any, declared: Any, problem: str) -> None:
    with pytest.raises(StateTypeError, match=problem):
        bl.build_specs("Op", {"q": annotation}, {"q": declared})


class Deadlines(Operator):
    queue: bl.Heap[int] = bl.heap()
    top: bl.Heap[float] = bl.heap(maxlen=3)
    lanes: dict[str, bl.Heap[int]] = bl.map()

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        for row in rows:
            self.queue.push(row.x)
            self.top.push(float(row.x))
            self.lanes.setdefault("a", []).push(-row.x)  # type: ignore[arg-type]
            if row.x % 5 == 0:
                yield key, self.queue.pop()


IN = {"k": pa.string(), "x": pa.int64()}
OUT = {"k": pa.string(), "n": pa.int64()}


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [{"k": f"key {n % 7}", "x": n} for n in numbers]


def test_heaps_of_an_operator_move_with_their_keys_and_go_back_with_an_abort() -> None:
    cluster = InProcessCluster(Deadlines, schema=OUT, key="k", input=IN)
    alone = OperatorHarness(Deadlines, schema=OUT, key="k", input=IN)
    for first in range(0, 600, 60):
        numbers = [n * 37 % 601 for n in range(first, first + 60)]
        cluster.run_epoch([rows(*numbers)])
        alone.run_epoch(rows(*numbers))
        alone.feed(rows(*reversed(numbers)))
        alone.abort()
        if first == 240:
            cluster.rescale(4)
        if first == 420:
            cluster.rescale(1)
    assert cluster.snapshot() == alone.snapshot()
    state = alone.state("key 1")
    assert state is not None
    assert state["queue"] == sorted(state["queue"]) or state["queue"][0] == min(state["queue"])
    assert len(state["top"]) == 3


def test_a_wrong_type_in_a_heap_fails_the_epoch() -> None:
    class Odd(Operator):
        queue: bl.Heap[int] = bl.heap()

        def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
            self.queue.push(rows[0].x / 2)

    h = OperatorHarness(Odd, schema=OUT, key="k", input=IN)
    with pytest.raises(StateTypeError, match=r"queue.*Heap\[int\].*key 'key 3'"):
        h.run_epoch(rows(3))
