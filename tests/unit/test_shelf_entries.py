"""The entries of a shelf, found by hash, against a plain list."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedload.store.columns import entry_kernels
from bedload.store.columns.compiled_entries import CompiledEntries
from bedload.store.entries import Entries, Hashes

few = st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)
many = st.lists(st.lists(few, max_size=40), max_size=5)


Make = Callable[[], Entries]
KINDS: list[Make] = [
    Entries,
    CompiledEntries,
    partial(CompiledEntries, 64, np.array([60, 0, 1, 3])),  # of four key groups, and not as it comes
]


def made(kind: Make, parts: list[list[int]]) -> Entries:
    entries = kind()
    for part in parts:
        first = len(entries)
        numbers = entries.add(np.array(part, np.int64), np.zeros(len(part), np.int16))
        assert numbers.tolist() == list(range(first, first + len(part)))
    return entries


@pytest.mark.parametrize("kind", KINDS)
@given(many, st.lists(few, max_size=40))
def test_entries_are_found_by_hash_each_once(kind: Make, parts: list[list[int]], asked: list[int]) -> None:
    entries, hashes = made(kind, parts), [h for part in parts for h in part]
    known = [*asked, *hashes[:3], *hashes[:3]]
    found = entries.find(np.array(known, np.int64)).tolist()
    assert sorted(found) == [i for i, h in enumerate(hashes) if h in known]
    assert sorted(entries.find(np.array(known, np.int64)).tolist()) == sorted(found), "the second search differs"
    assert entries.hashes.tolist() == hashes
    assert entries.any_shared == (len(set(hashes)) < len(hashes))


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(st.lists(st.integers(0, 300), max_size=40), max_size=12), st.lists(st.integers(0, 320), max_size=30))
def test_entries_are_found_by_hash_and_key_group(kind: Make, parts: list[list[int]], asked: list[int]) -> None:
    entries, hashes = kind(), [h for part in parts for h in part]
    for part in parts:
        entries.add(np.array(part, np.int64), np.array(part, np.int64).astype(np.int16) // 20)
    wanted = np.array(asked, np.int64)
    found = entries.find(wanted, wanted.astype(np.int16) // 20).tolist()
    assert sorted(found) == [i for i, h in enumerate(hashes) if h in asked]


@pytest.mark.parametrize("kind", KINDS)
@given(many, st.integers(1, 5))
def test_ranges_give_all_entries_of_a_hash_with_the_first(kind: Make, parts: list[list[int]], step: int) -> None:
    entries, hashes = made(kind, parts), [h for part in parts for h in part]
    for first in range(0, len(hashes) + step, step):
        expected = [
            i for i, h in enumerate(hashes) if first <= hashes.index(h) < first + step
        ]  # an entry comes with the first one of its hash
        assert sorted(entries.span(first, step).tolist()) == expected
    assert entries.span(0, -1).tolist() == []


@pytest.mark.parametrize("kind", KINDS)
def test_many_entries_are_all_found(kind: Make) -> None:
    hashes = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 20_000)
    entries = kind()
    for part in np.split(hashes, 7 * np.arange(1, 100)):
        entries.add(part, np.zeros(len(part), np.int16))
    order = np.random.default_rng(2).permutation(len(hashes))
    assert sorted(entries.find(hashes[order]).tolist()) == sorted(order.tolist())
    assert not entries.any_shared


def test_to_add_few_is_no_sort_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    sort = np.argsort

    def counted(array: Hashes, **how: Any) -> Any:
        sizes.append(len(array))
        return sort(array, **how)

    monkeypatch.setattr(np, "argsort", counted)
    entries, hashes = Entries(), np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 16384)
    for part in np.split(hashes, 1024):
        entries.add(part, np.zeros(len(part), np.int16))
    assert sum(sizes) < 32 * len(hashes), "each part was sorted with all before it"
    assert sorted(entries.find(hashes).tolist()) == list(range(len(hashes)))


def test_nothing_is_read_where_there_are_no_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not compiled, it says so where it reads beyond an array.
    monkeypatch.setattr(entry_kernels, "find", entry_kernels.find.py_func)  # type: ignore[attr-defined]
    assert CompiledEntries().find(np.array([1, 2, 3], np.int64)).tolist() == []


def test_the_memory_of_a_table_is_given_back_some_at_a_time() -> None:
    entries = CompiledEntries(100_000)
    entries.add(np.arange(100_000), np.zeros(100_000, np.int16))
    steps = 1
    while not entries.let_go(10_000):
        steps += 1
    assert steps > 5
    assert not entries._table.any(), "what is given back is zero"
