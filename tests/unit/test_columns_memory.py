"""Memory of column tables: it is counted exactly, it is little, and what leaves gives its memory back."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bedload.core.ids import KeyGroup
from bedload.keys import hash_columns, key_groups
from bedload.store.columns import ColumnSpec, ColumnTable, byte_kernels, memory
from bedload.store.columns.memory import GrowingArray
from bedload.store.columns.values import Objects

N = ColumnSpec("n", pa.int64(), 0)


def arrays_in(item: Any, seen: set[int]) -> list[np.ndarray]:
    """Every array that an object holds, however deep."""
    if id(item) in seen or isinstance(item, str | bytes | int | float | type | pa.DataType):
        return []
    seen.add(id(item))
    if isinstance(item, np.ndarray):
        return [item]
    parts: list[Any] = []
    if isinstance(item, dict):
        parts = [*item.keys(), *item.values()]
    elif isinstance(item, list | tuple | set | frozenset):
        parts = list(item)
    else:
        for kind in type(item).__mro__:
            parts += [getattr(item, name) for name in kind.__dict__.get("__slots__", ()) if hasattr(item, name)]
        parts += vars(item).values() if hasattr(item, "__dict__") else []
    return [array for part in parts for array in arrays_in(part, seen)]


def held(table: ColumnTable) -> int:
    """Bytes of all arrays, those that overlap counted once."""
    ranges = sorted(np.lib.array_utils.byte_bounds(array) for array in arrays_in(table, set()) if array.size)
    total, end = 0, 0
    for low, high in ranges:
        total += max(0, high - max(low, end))
        end = max(end, high)
    return total


def constants(table: ColumnTable) -> int:
    """Bytes of the values that new keys have: not state."""
    return sum(column._initial.nbytes for column in table._values)


def locate(table: ColumnTable, keys: pa.Array, groups: int) -> Any:
    return table.locate([keys], key_groups(hash_columns([keys]), groups))


@pytest.mark.parametrize("step", [64, 5000])
def test_the_counted_bytes_are_those_of_all_arrays(step: int) -> None:
    columns = [N, ColumnSpec("x", pa.float32()), ColumnSpec("label", pa.string()), ColumnSpec("on", pa.bool_(), True)]
    table = ColumnTable([pa.string(), pa.int64(), pa.decimal128(38, 2)], columns, 16)
    for epoch in range(4):
        numbers = np.arange(epoch * step, epoch * step + 2 * step)
        keys = [pa.array(numbers).cast(kind) for kind in table.words.types]
        slots = table.locate(keys, numbers % 16)
        assert table.nbytes == held(table) - constants(table)
        table.delete(slots[: step // 2])
        table.commit()
        assert table.nbytes == held(table) - constants(table)
    table.drop([KeyGroup(3)])
    assert table.nbytes == held(table) - constants(table)


def test_a_count_takes_less_than_64_bytes_per_key() -> None:
    keys, groups = 1_000_000, 256
    numbers = pa.array(np.arange(keys))
    of_group = key_groups(hash_columns([numbers]), groups)
    tables = [ColumnTable([pa.int64()], [N], groups) for _ in range(2)]
    for begin in range(0, keys, 100_000):
        part, part_groups = numbers.slice(begin, 100_000), of_group[begin : begin + 100_000]
        for half, table in enumerate(tables):
            mine = part_groups // 128 == half
            slots = table.locate([part.filter(pa.array(mine))], part_groups[mine])
            table.values("n")[slots] += 1
    # All keys are touched, so this is with all before-images.
    assert sum(table.nbytes for table in tables) / keys <= 64
    for table in tables:
        table.commit()
        assert table.nbytes / table.index.live <= 48
    assert sum(table.index.live for table in tables) == keys


def test_the_room_of_before_images_is_given_back() -> None:
    table = ColumnTable([pa.int64()], [N], 8)
    numbers = pa.array(np.arange(400_000))
    locate(table, numbers, 8)
    table.commit()
    idle = table.nbytes
    locate(table, numbers, 8)
    assert table.nbytes > idle + 400_000 * 8
    table.commit()
    assert table.nbytes == idle


def test_blocks_of_a_dropped_group_are_taken_by_others() -> None:
    table = ColumnTable([pa.int64()], [N], 4, block=8)
    for group in (0, 1, 2):
        table.locate([pa.array(np.arange(1000))], np.full(1000, group))
    table.commit()
    room = table.index.capacity
    table.drop([KeyGroup(1)])
    table.check()
    assert table.index.capacity == room
    table.locate([pa.array(np.arange(1000))], np.full(1000, 3))
    table.commit()
    table.check()
    assert table.index.capacity == room


def test_memory_at_the_end_of_a_table_goes_back() -> None:
    table = ColumnTable([pa.string()], [N, ColumnSpec("label", pa.string())], 4)
    empty = table.nbytes
    names = pa.array([f"name {i}" for i in range(50_000)])
    for group in range(4):
        table.locate([names], np.full(len(names), group))
        table.commit()
    full = table.nbytes
    for group in (3, 2):
        table.drop([KeyGroup(group)])
    table.check()
    assert table.nbytes < 0.75 * full
    for group in (1, 0):
        table.drop([KeyGroup(group)])
    for _ in range(2):  # the first may have begun before the last keys went
        while not table.tidy(1000):
            table.check()
    # What is left is room for the next epoch, and some blocks.
    assert table.nbytes < empty + 2_000_000


def test_hash_tables_shrink_with_their_keys() -> None:
    table = ColumnTable([pa.int64()], [N], 4)
    numbers = pa.array(np.arange(60_000))
    locate(table, numbers, 4)
    table.commit()
    large = table.index._tables.nbytes
    table.delete(locate(table, numbers.slice(0, 59_000), 4))
    table.commit()
    table.check()
    assert table.index._tables.nbytes < large / 8
    assert (table.find([numbers.slice(59_000)], key_groups(hash_columns([numbers.slice(59_000)]), 4)) >= 0).all()


def test_strings_of_keys_that_went_are_forgotten() -> None:
    table = ColumnTable([pa.string()], [N], 4)
    sizes = []
    for epoch in range(40):
        names = pa.array([f"session {epoch} {i}" for i in range(5000)])
        slots = locate(table, names, 4)
        table.commit()
        locate(table, names, 4)
        table.delete(slots)
        table.commit()
        sizes.append(table.words.nbytes)
    table.check()
    assert max(sizes[20:]) <= max(sizes[:20])


def test_values_of_a_dictionary_that_no_row_has_are_forgotten() -> None:
    table = ColumnTable([pa.string()], [N], 4)
    sizes = []
    for epoch in range(40):
        values = pa.array([f"{epoch} {i}" for i in range(5000)])
        # All rows have the same key, but the dictionary has many.
        keys = pa.DictionaryArray.from_arrays(pa.array(np.zeros(5000, np.int32)), values)
        table.delete(table.locate([keys], np.zeros(5000)))
        table.commit()
        sizes.append(table.words.nbytes)
    assert max(sizes[20:]) <= max(sizes[:20])


def test_a_free_slot_holds_on_to_no_object() -> None:
    table = ColumnTable([pa.int64()], [ColumnSpec("label", pa.string())], 4)
    slots = table.locate([pa.array([1, 2])], np.zeros(2))
    table.values("label")[slots] = "text"
    table.commit()
    table.delete(table.locate([pa.array([1])], np.zeros(1)))
    table.commit()
    table.discard(slots[1:])
    assert not [value for value in table.values("label") if value is not None]


# --- the arrays themselves ---


@pytest.mark.parametrize("held", [True, False])
def test_objects_stay_when_their_array_grows_and_go_when_it_shrinks(held: bool) -> None:
    column = Objects(object)
    column.resize(3)
    thing = object()
    column.array[:] = [thing, "b", thing]
    known = sys.getrefcount(thing)
    view = column.array[1:] if held else None
    for length in (5, 100_000, 40, 3):
        column.resize(length)
        assert column.array[:3].tolist() == [thing, "b", thing]
        assert not any(column.array[3:])
        assert set(column.array[3:].tolist()) <= {None}
    if view is not None:
        assert view.tolist() == ["b", thing], "whoever looks at the old one sees what was there"
    del view
    assert sys.getrefcount(thing) == known
    column.resize(1)
    assert sys.getrefcount(thing) == known - 1


@pytest.mark.parametrize("reserved", [True, False])
def test_an_array_keeps_what_it_has_and_new_room_is_zero(reserved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not reserved:
        monkeypatch.setattr(memory, "_reserve", lambda size: None)
    array = GrowingArray(np.int32, 2)
    array.resize(10)
    array.array[:] = 7
    for length in (100, 20_000, 5_000_000, 30, 0, 50):
        kept = min(length, len(array))
        array.resize(length)
        assert array.array.shape == (length, 2)
        assert (array.array[: min(kept, 10)] == 7).all()
        assert not array.array[10:].any()
    assert array.nbytes == 50 * 8


def test_a_reserved_array_grows_where_it_is() -> None:
    array = GrowingArray(np.int64)
    array.resize(10_000)
    old = array.array
    old[:] = 1
    array.resize(1_000_000)
    assert np.shares_memory(old, array.array)
    assert not array.array[10_000:].any()


def test_an_array_outgrows_its_reservation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_RESERVED", 2**16)
    array = GrowingArray(np.int64)
    array.resize(8000)
    array.array[:] = np.arange(8000)
    array.resize(80_000)
    assert array.array[:8000].tolist() == list(range(8000))
    assert not array.array[8000:].any()


def test_the_end_of_an_epoch_does_not_sweep_for_all_keys_that_came_in_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = 4
    table = ColumnTable([pa.string()], [N], groups)

    def put(first: int, count: int) -> None:
        keys = [pa.array([f"key {i}" for i in range(first, first + count)])]
        state = pa.record_batch({"n": np.zeros(count, np.int64)})
        table.put(keys, key_groups(hash_columns(keys), groups), state)

    put(0, 200_000)
    table.drop([KeyGroup(0), KeyGroup(1), KeyGroup(2)])  # a sweep begins
    for first in range(200_000, 350_000, 1000):
        put(first, 1000)
    steps: list[str] = []
    for name in ("forget", "slide"):
        kernel = getattr(byte_kernels, name)
        monkeypatch.setattr(byte_kernels, name, lambda *given, kernel=kernel: (steps.append(""), kernel(*given))[1])
    table.commit()
    assert len(steps) < 20, "the epoch waits for a sweep over all"
    table.check()


@pytest.mark.parametrize("reserved", [True, False])
def test_what_is_written_to_here_and_there_is_zero_elsewhere(reserved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not reserved:
        monkeypatch.setattr(memory, "_reserve", lambda size: None)
    made = memory.scattered(1 << 20, np.int64)
    assert len(made) == 1 << 20
    made[:: 1 << 12] = 7
    assert np.count_nonzero(made) == (1 << 20) >> 12
