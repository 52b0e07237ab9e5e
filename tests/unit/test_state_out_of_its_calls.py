"""State that is changed where it must not be: by other keys, between epochs, and past its methods."""

from __future__ import annotations

import bisect
import dataclasses
import heapq
import json
from typing import Any

import pyarrow as pa
import pytest

from bedload import state as bl
from bedload.core.errors import OperatorFailed, StateNotOpen
from bedload.testing import OperatorHarness
from bedload.worker.operator import Context, Operator
from bedload.worker.rows import Rows

IN = {"k": pa.string(), "x": pa.int64(), "to": pa.string()}
OUT = {"k": pa.string()}


@dataclasses.dataclass
class Point:
    x: int = 0


class Leaky(Operator):
    """Keeps every key's containers where other keys find them."""

    items: list[int] = bl.list()
    seen: set[int] = bl.set()
    nested: dict[str, list[int]] = bl.map()
    point: Point = bl.value(Point())
    cache: dict[str, Any]

    def setup(self, ctx: Context) -> None:
        self.cache = {}

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        for row in rows:
            items, seen, nested, point = self.items, self.seen, self.nested, self.point
            if row.to is not None:
                items, seen, nested, point = self.cache[row.to]
            if row.x % 4 == 0:
                items.append(row.x)
            elif row.x % 4 == 1:
                seen.add(row.x)
            elif row.x % 4 == 2:
                nested.setdefault("a", []).append(row.x)
            else:
                point.x = row.x
        self.nested.setdefault("a", [])
        self.cache[key] = self.items, self.seen, self.nested, self.point


def row(key: str, x: int, to: str | None = None) -> dict[str, Any]:
    return {"k": key, "x": x, "to": to}


def harness(operator: type[Operator] = Leaky) -> OperatorHarness:
    return OperatorHarness(operator, schema=OUT, key="k", input=IN)


@pytest.mark.parametrize("groups", [1, 128])
def test_keys_of_one_batch_may_change_containers_of_each_other(groups: int) -> None:
    h = OperatorHarness(Leaky, schema=OUT, key="k", input=IN, key_groups=groups)
    h.run_epoch([row("a", 8), row("b", 8)])
    h.run_epoch([row("a", 1, to="b"), row("b", 5, to="a")])  # whichever is called first, the other is open
    assert [h.snapshot()[key]["seen"] for key in "ab"] == [{5}, {1}]


@pytest.mark.parametrize("x", [4, 5, 6, 7])
@pytest.mark.parametrize("groups", [1, 128])
def test_a_container_of_a_key_without_rows_cannot_be_changed(x: int, groups: int) -> None:
    h = OperatorHarness(Leaky, schema=OUT, key="k", input=IN, key_groups=groups)
    h.run_epoch([row("a", 8), row("b", 8)])
    before = h.snapshot()
    with pytest.raises(StateNotOpen, match=r"operator Leaky, epoch 1, key 'b'.*its key has no rows") as raised:
        h.run_epoch([row("b", x, to="a")])
    assert "self.cache[row.to]" in raised.value.message or "in process" in raised.value.message
    assert h.snapshot() == before


@pytest.mark.parametrize("x", [4, 5, 6, 7])
def test_a_refusal_that_operator_code_swallows_has_changed_nothing(x: int) -> None:
    class Deaf(Leaky):
        def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
            try:
                super().process(key, rows, ctx)
            except StateNotOpen:
                return

    h = harness(Deaf)
    h.run_epoch([row("a", 8), row("b", 8)])
    before = h.snapshot()
    h.run_epoch([row("b", x, to="a")])
    assert h.snapshot() == before


@pytest.mark.parametrize("x", [4, 5, 6, 7])
def test_a_change_of_another_key_that_has_rows_is_that_keys_change(x: int) -> None:
    h = harness()
    h.run_epoch([row("a", 8), row("b", 8)])
    before = h.snapshot()

    def epoch() -> None:
        h.feed([row("a", 12)])
        h.feed([row("b", x, to="a")])
        h.seal()

    epoch()
    (changed,) = [c.entries["a"] for c in h.changes() if "a" in c.entries]
    assert {"items"} < set(changed) or x == 4
    assert h.snapshot() == before
    h.abort()
    assert h.snapshot() == before
    epoch()
    h.commit()
    assert h.snapshot() != before
    assert h.state("a")["items"] == ([8, 12, 4] if x == 4 else [8, 12])  # type: ignore[index]


def test_containers_cannot_be_changed_between_epochs() -> None:
    class Closing(Leaky):
        def close(self) -> None:
            for items, *_ in self.cache.values():
                items.append(1)

    h = harness(Closing)
    h.run_epoch([row("a", 8)])
    before = h.snapshot()
    with pytest.raises((OperatorFailed, StateNotOpen), match="no rows"):
        h.close()
    assert h.snapshot() == before


def test_a_container_of_an_aborted_key_is_of_no_use_in_the_replay() -> None:
    h = harness()
    h.feed([row("a", 8)])
    h.abort()
    with pytest.raises(StateNotOpen):
        h.run_epoch([row("a", 12, to="a")])


KEPT: list[Any] = []


class Keeping(Operator):
    items: list[int] = bl.list()

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        KEPT.append(self.items)
        self.items.append(1)
        if any(row.x for row in rows):
            ctx.forget()


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_container_of_a_key_that_went_is_of_no_key_whatever_object_gets_its_id(forgotten: bool) -> None:
    KEPT.clear()
    h = harness(Keeping)
    if forgotten:
        h.run_epoch([row("a", 0)])
        h.run_epoch([row("a", 1)])
    else:
        h.feed([row("a", 0)])
        h.abort()
    assert {kept._bl_key for kept in KEPT} == {None}


def test_results_may_change_what_other_keys_have_and_it_is_checked_and_kept() -> None:
    class Late(Operator):
        items: list[int] = bl.list()
        all: list[Any]

        def setup(self, ctx: Context) -> None:
            self.all = []

        def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
            self.items.append(1)
            self.all.append(self.items)

        def result(self, key: Any, ctx: Context) -> Any:
            for items in self.all:
                items.append(len(items))
            return key, 0

    h = OperatorHarness(Late, schema={"k": pa.string(), "n": pa.int64()}, key="k", input=IN)
    h.feed([row("a", 1), row("b", 1), row("c", 1)])
    h.seal()
    written = {key: entries["items"] for c in h.changes() for key, entries in c.entries.items()}
    h.commit()
    assert written == {key: state["items"] for key, state in h.snapshot().items()}
    assert all(items == [1, 1, 2, 3] for items in written.values())


# --- C code that writes past the methods ---


def _heap(function: Any, *args: Any) -> Any:
    return lambda items: function(items, *args)


@pytest.mark.parametrize(
    "write",
    [
        _heap(heapq.heappush, 0),
        heapq.heappop,
        _heap(heapq.heapreplace, 0),
        _heap(heapq.heappushpop, 100),
        heapq.heapify,
    ],
)
@pytest.mark.parametrize("size", [1, 10, 200])
@pytest.mark.parametrize("changed", [False, True])
def test_heapq_refuses_a_state_list(write: Any, size: int, changed: bool) -> None:
    class Heap(Operator):
        heap: list[int] = bl.list()

        def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
            if not self.heap:
                self.heap = list(range(size))
                return
            if changed:
                self.heap.append(7)
            write(self.heap)

    h = harness(Heap)
    h.run_epoch([row("a", 1)])
    with pytest.raises(OperatorFailed, match=r"must be list, not TrackedList(.|\n)*declare bl.heap\(\)"):
        h.run_epoch([row("a", 2)])
    assert h.state("a") == {"heap": list(range(size))}


def test_what_else_c_code_does_with_lists_goes_through_the_methods_or_is_refused() -> None:
    class Bisect(Operator):
        items: list[int] = bl.list()

        def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
            for item in rows:
                bisect.insort(self.items, item.x)
            if rows[0].x == 13:
                json.dumps(self.items)

    h = harness(Bisect)
    h.run_epoch([row("a", 3), row("a", 1)])
    h.feed([row("a", 2)])
    h.abort()
    assert h.state("a") == {"items": [1, 3]}
    with pytest.raises(OperatorFailed, match=r"give it a copy, x\[:\]"):
        h.run_epoch([row("a", 13)])
