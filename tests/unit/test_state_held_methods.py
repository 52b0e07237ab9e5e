"""A method that was looked up once and called many times: ``add = self.seen.add``, as loops are often written."""

from __future__ import annotations

import copy
from collections import Counter, deque
from typing import Any

import pytest

from bedload import state as bl
from bedload.core.ids import KeyGroup
from bedload.state import RecordLayout
from bedload.state.settling import Settling
from bedload.store import RowStore
from bedload.worker.operator import Operator, make_shared, state_of


class Held(Operator):
    numbers: list[int] = bl.list()
    last: list[int] = bl.list(maxlen=5)
    by_name: dict[int, int] = bl.map()
    nested: dict[int, list[int]] = bl.map()
    seen: set[int] = bl.set()
    tally: Counter[int] = bl.counter()
    recent: deque[int] = bl.deque(maxlen=200)


def plain(row: Any) -> dict[str, Any]:
    return {name: copy.deepcopy(getattr(row, name)) for name in RecordLayout(state_of(Held)).names}


CALLS: dict[str, tuple[str, str, list[tuple[Any, ...]]]] = {
    "list.append": ("numbers", "append", [(1,), (2,), (3,)]),
    "list.pop": ("numbers", "pop", [(), ()]),
    "list.insert": ("numbers", "insert", [(0, 5), (0, 6)]),
    "list.extend": ("numbers", "extend", [([1, 2],), ([3],)]),
    "bounded append": ("last", "append", [(1,), (2,), (3,)]),
    "map.setdefault": ("by_name", "setdefault", [(-1, 1), (-2, 2), (0, 9)]),
    "map.__setitem__": ("by_name", "__setitem__", [(0, 100), (-1, 1), (0, 101)]),
    "map.pop": ("by_name", "pop", [(0,), (1,)]),
    "map.update": ("by_name", "update", [({0: 7},), ({-5: 5},)]),
    "nested setdefault": ("nested", "setdefault", [(-1, [1]), (-2, [2])]),
    "set.add": ("seen", "add", [(-1,), (-2,), (-1,)]),
    "set.discard": ("seen", "discard", [(0,), (1,)]),
    "counter.update": ("tally", "update", [([1, 1],), ([2],)]),
    "deque.append": ("recent", "append", [(1,), (2,)]),
    "deque.popleft": ("recent", "popleft", [(), ()]),
    "deque.appendleft": ("recent", "appendleft", [(1,), (2,)]),
}


@pytest.mark.parametrize("size", [3, 150], ids=["small", "large"])
@pytest.mark.parametrize("call", sorted(CALLS))
def test_a_held_method_keeps_the_before_image(call: str, size: int) -> None:
    layout = RecordLayout(state_of(Held))
    _, row_type = make_shared(Held)
    store = RowStore(KeyGroup(0), layout, row_type)
    (row,) = store.touch(["k"])
    row.numbers.extend(range(size))
    row.last.extend(range(5))
    row.by_name.update({i: i for i in range(size)})
    row.nested.update({i: [i] for i in range(size)})
    row.seen.update(range(size))
    row.tally.update(range(size))
    row.recent.extend(range(size))
    store.seal(Settling(layout))
    store.commit()
    before = plain(row)

    name, method, arguments = CALLS[call]
    for ending in (store.abort, store.commit):
        (row,) = store.touch(["k"])
        held = getattr(getattr(row, name), method)
        model = copy.deepcopy(before[name])
        for given in arguments:
            held(*given)
            getattr(model, method)(*given)
        expected = list(model)[-5:] if name == "last" else model
        assert getattr(row, name) == expected
        assert store.read(["k"]) == [before]
        store.seal(Settling(layout))
        ending()
    assert store.read(["k"]) == [{**before, name: expected}]
