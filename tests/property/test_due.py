"""The index of what is due gives everything that was put in, once and no later than it is due, in any history."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from bedload.store import due as module
from bedload.store.due import NEVER, Due

STEP = st.one_of(
    st.tuples(st.just("add"), st.integers(-5, 60)),
    st.tuples(st.just("extend"), st.lists(st.integers(-5, 60), max_size=12)),
    st.tuples(st.just("take"), st.integers(-5, 60)),
    st.tuples(st.just("put back"), st.none()),
)


@given(st.lists(STEP, max_size=40), st.sampled_from([1, 2, 5, 4096]))
def test_what_is_put_in_comes_out_when_it_is_due(steps: list[tuple[str, object]], loose: int) -> None:
    module._LOOSE, before = loose, module._LOOSE
    try:
        index, model, taken, number = Due(), [], ([], []), 0
        for step, value in steps:
            match step, value:
                case "add", int(at):
                    index.add(at, f"item {number}")
                    model.append((at, f"item {number}"))
                    number += 1
                case "extend", list(ats):
                    items = [f"item {number + i}" for i in range(len(ats))]
                    index.extend(ats, items)
                    model += zip(ats, items, strict=True)
                    number += len(ats)
                case "take", int(now):
                    assert sorted(index.seen(now)) == sorted(item for at, item in model if at <= now)
                    taken = index.take(now)
                    assert sorted(zip(*taken, strict=True)) == sorted((at, it) for at, it in model if at <= now)
                    model = [(at, item) for at, item in model if at > now]
                case _:
                    index.extend(*taken)
                    model += zip(*taken, strict=True)
                    taken = ([], [])
            assert len(index) == len(model)
            assert index.next <= min((at for at, _ in model), default=NEVER)
    finally:
        module._LOOSE = before


@example(
    [
        ("add", 0),
        ("add", 1),
        ("extend", 0),
        ("extend", 0),
        ("add", 0),
        ("add", 0),
        ("add", 1),
        ("take", 0),
        ("add", 0),
        ("extend", 0),
        ("take", -1),
        ("add", 0),
        ("add", 0),
        ("add", 8),
        ("take", 7),
    ]
)
@given(st.lists(st.tuples(st.sampled_from(["add", "extend", "take"]), st.integers(-5, 60)), max_size=80))
def test_many_entries_of_an_item_become_one_and_it_comes_out_no_later(steps: list[tuple[str, int]]) -> None:
    module._LOOSE, before = 2, module._LOOSE
    try:
        index, firsts = Due(), dict[tuple[int, str], int]()
        for number, (step, at) in enumerate(steps):
            some = [(number % 3, "a"), (at % 5, "b")]
            match step:
                case "add":
                    index.add(at, some[0])
                    firsts[some[0]] = min(at, firsts.get(some[0], NEVER))
                case "extend":
                    index.extend([at, at + 7], some)
                    firsts |= {item: min(at + 7 * i, firsts.get(item, NEVER)) for i, item in enumerate(some)}
                case _:
                    due = {item for item, first in firsts.items() if first <= at}
                    assert due <= set(index.seen(at))
                    taken = set(index.take(at)[1])
                    assert due <= taken
                    firsts = {item: first for item, first in firsts.items() if item not in due}
                    for item in taken & firsts.keys():  # an entry that was out of date: who takes it looks, and adds
                        index.add(firsts[item], item)
            assert len(index) <= 2 * 8 + 2, "8 items, and those that lie loose"
            assert index.next <= min(firsts.values(), default=NEVER)
    finally:
        module._LOOSE = before
