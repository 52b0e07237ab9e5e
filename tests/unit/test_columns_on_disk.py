"""Columns on disk: arrays whose slabs leave memory, the budget that they have, and disks that are full or fail."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.disks import PAGE, Slabs
from tests.thorough import examples

from bedload.core.errors import LocalDiskError
from bedload.core.ids import KeyGroup, WorkerId
from bedload.store.cache import SLICE, Cache
from bedload.store.columns import ColumnSpec, ColumnTable
from bedload.store.columns.paged import PagedArray
from bedload.store.columns.paged_table import PagedTable
from bedload.store.columns.pager import Pager
from bedload.worker import local_slabs
from bedload.worker.local_slabs import FileBacking, file_pages
from bedload.worker.local_stores import LEAST, LocalStores

GROUPS = 4
N = ColumnSpec("n", pa.int64(), 0)
AT = ColumnSpec("at", pa.int64(), times=True)


class Disk:
    """Where a table has its files."""

    def __init__(self, memory: int = 0) -> None:
        self.cache = Cache(memory)
        self.files: list[Slabs] = []
        self.pages = 0
        self.pager = Pager(self.cache, lambda: self.pages, PAGE)

    def table(self, *columns: ColumnSpec, key: pa.DataType | None = None) -> PagedTable:
        return PagedTable([key or pa.int64()], columns or (N,), GROUPS, self.pager, self.make, block=4)

    def make(self) -> Slabs:
        self.files.append(Slabs())
        return self.files[-1]

    def settle(self) -> None:
        """What can leave does."""
        while self.pager.untidy:
            self.pager.tidy()

    def let_go(self) -> None:
        for table in self.pager._tables:
            for array in table.arrays:
                array.let_go()


def add(table: ColumnTable, keys: Any, number: int = 1) -> None:
    """Add to each of these keys."""
    column = pa.array(keys)
    for part in table.batches(len(column)):
        some = column.slice(part.start, part.stop - part.start)
        slots = table.locate([some], np.array([hash(key) % GROUPS for key in some.to_pylist()]))
        np.add.at(table.values("n"), slots, number)


def found(table: ColumnTable, keys: Any) -> dict[Any, int]:
    """What is committed."""
    states = [(key, table.read(KeyGroup(hash(key) % GROUPS), [key])[0]) for key in keys]
    return {key: it["n"] for key, it in states if it is not None}


# --- arrays ---


STEPS = st.one_of(
    st.tuples(st.just("resize"), st.integers(0, 4000)),
    st.tuples(st.just("write"), st.integers(0, 4000)),
    st.tuples(st.just("lay"), st.integers(0, 10)),
    st.tuples(st.just("take"), st.integers(0, 10)),
    st.tuples(st.just("let go"), st.just(0)),
)


@examples(60)
@given(st.lists(STEPS, max_size=60), st.sampled_from([None, 3]))
def test_an_array_holds_what_it_would_hold_in_memory(steps: list[tuple[str, int]], width: int | None) -> None:
    array = PagedArray(np.int32, width, PAGE, Slabs, slots=True)
    model: Any = np.zeros((0, *([] if width is None else [width])), np.int32)
    for number, (what, where) in enumerate(steps, 1):
        laid = array.laid()
        match what:
            case "resize":
                kept = min(where, len(model))
                array.resize(where)
                model = np.concatenate([model[:kept], array.array[kept:]])  # what is new may be old, or zero
            case "write" if where < len(model):
                model[where:] = array.array[where:] = number
            case "lay" if where < len(laid) and not laid[where]:
                array.lay_down(where)
            case "take" if where < len(laid) and laid[where]:
                array.take_up(where)
            case "let go":
                array.let_go()
        assert (array.array == model).all()
        assert 0 <= array.laid_bytes <= array.nbytes
        assert (array.laid_bytes > 0) == bool(array.laid().any())
    array.close()


def test_what_an_array_leaves_is_given_back_on_the_disk(tmp_path: Path) -> None:
    array = PagedArray(np.int64, None, 1 << 16, lambda: FileBacking(str(tmp_path), "a test"), slots=True)
    array.resize(100_000)
    array.array[:] = 7
    for slab in range(len(array.laid())):
        array.lay_down(slab)
    assert array.disk_bytes >= array.nbytes == array.laid_bytes
    array.resize(10_000)
    assert array.disk_bytes <= 3 << 16
    array.resize(100_000)
    assert (array.array[:10_000] == 7).all()
    assert not array.array[20_000:].any()
    array.close()
    assert list(tmp_path.iterdir()) == [], "the file has no name"


def test_an_array_that_is_emptied_leaves_other_memory_alone() -> None:
    arrays = [PagedArray(np.int64, None, PAGE, Slabs, slots=True) for _ in range(3)]
    for array in arrays:
        array.resize(3000)
        array.array[:] = 5
        for slab in range(len(array.laid())):
            array.lay_down(slab)
    bases = [array._base for array in arrays]
    arrays[1].resize(0)
    assert [array._base for array in arrays] == bases
    assert not arrays[1].laid_bytes
    arrays[1].resize(3000)
    assert arrays[1].laid().any() == bool(arrays[1].laid_bytes)
    assert not arrays[1].array[PAGE:].any()
    assert all((array.array == 5).all() for array in (arrays[0], arrays[2]))


def test_an_array_may_outgrow_what_it_has_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PagedArray, "reserved", 1)
    monkeypatch.setattr("bedload.store.columns.memory._RESERVED", 1 << 22)
    array = PagedArray(np.int64, None, PAGE, Slabs, slots=True)
    array.resize(1000)
    array.array[:] = np.arange(1000)
    array.lay_down(0)
    array.resize(1 << 20)
    assert array.array[:1000].tolist() == list(range(1000))
    assert not array.laid().any()
    array.lay_down(1)
    assert array.array[:1000].tolist() == list(range(1000))
    array.close()


# --- the budget ---


def test_what_is_held_stays_within_the_budget_and_nothing_is_lost() -> None:
    disk = Disk(40 * PAGE)
    table = disk.table()
    for epoch in range(5):
        table.begin([])
        add(table, range(epoch * 4000, (epoch + 1) * 4000), epoch)
        table.seal()
        table.commit()
        disk.settle()
        assert disk.pager.held_bytes <= 40 * PAGE
    stats = table.stats()
    assert stats.keys == 20_000
    assert stats.memory_keys < stats.keys
    assert min(stats.disk_bytes, stats.evictions, stats.written_bytes) > 0
    table.check()
    assert found(table, range(0, 20_000, 999)) == {key: key // 4000 for key in range(0, 20_000, 999)}
    table.give_up()
    assert all(file.closed for file in disk.files)
    assert disk.cache.others == 0


def test_with_room_enough_nothing_is_written() -> None:
    disk = Disk(1 << 30)
    table = disk.table()
    add(table, range(5000))
    table.seal()
    table.commit()
    disk.settle()
    assert disk.files == []
    assert table.stats().disk_bytes == 0


def test_what_has_become_hot_comes_back_to_memory() -> None:
    disk = Disk(60 * PAGE)
    table = disk.table()
    add(table, range(20_000))
    table.seal()
    table.commit()
    disk.settle()
    for _ in range(6):
        table.begin([])
        add(table, list(range(300)) * 10)
        table.seal()
        table.commit()
        disk.settle()
    (values,) = (it for it in table._memory.arrays if it.array is table.values("n"))
    first = int(table.find([pa.array([0])], np.array([0]))[0]) * 8 // PAGE
    assert not values.laid()[first : first + 1].any()
    assert found(table, [0, 299, 300, 19_999]) == {0: 61, 299: 61, 300: 1, 19_999: 1}
    table.check()


def test_pages_of_what_is_on_disk_go_when_they_are_too_many() -> None:
    disk = Disk(8 * PAGE)
    table = disk.table()
    add(table, range(5000))
    disk.settle()
    gone: list[PagedArray] = []
    for array in table._memory.arrays:
        array._backing.let_go = lambda *_, it=array: gone.append(it)  # type: ignore
    disk.pages += PAGE
    disk.pager.look(table._memory)
    assert gone == []
    disk.pages += 2 * PAGE
    disk.pager.look(table._memory)
    assert gone
    gone.clear()
    disk.pager.look(table._memory)
    assert gone == [], "what is left is of others"


def test_rows_and_columns_share_a_budget() -> None:
    disk = Disk(100 * PAGE)
    table = disk.table()
    add(table, range(4000))
    assert disk.cache.others > 0
    disk.cache.used = disk.cache.most
    assert disk.pager.most == disk.cache.most // 4
    disk.settle()
    assert disk.pager.held_bytes <= disk.cache.most // 4
    assert disk.cache.over
    disk.cache.used = 0
    assert not disk.cache.over


def test_an_abort_and_times_that_are_due_find_what_is_on_disk() -> None:
    disk = Disk()
    table = disk.table(N, AT)
    slots = table.locate([pa.array(range(3000))], np.zeros(3000, np.int32))
    table.times("at").put(slots, np.arange(3000))
    table.seal()
    table.commit()
    disk.settle()
    table.begin([])
    slots = table.locate([pa.array(range(2000))], np.zeros(2000, np.int32))
    table.times("at").put(slots, np.full(2000, 5))
    add(table, range(4000))
    disk.settle()
    disk.let_go()
    table.abort()
    disk.let_go()
    assert len(table.times("at").due(1234)) == 1235
    assert table.sizes().keys == 3000
    table.check()


# --- a disk that does not do what it should ---


def test_a_full_disk_fails_the_batch_and_the_next_one_goes_on() -> None:
    disk = Disk(20 * PAGE)
    table = disk.table()
    add(table, range(2000))
    table.seal()
    table.commit()
    disk.settle()
    for file in disk.files:
        file.full = True
    table.begin([])
    with pytest.raises(LocalDiskError, match="full"):
        add(table, list(range(20_000)) * 20)
    table.abort()
    assert found(table, [1, 1999, 2000]) == {1: 1, 1999: 1}
    for file in disk.files:
        file.full = False
    table.begin([])
    add(table, range(20_000))
    table.seal()
    table.commit()
    disk.settle()
    assert found(table, [1, 1999, 2000]) == {1: 2, 1999: 2, 2000: 1}
    table.check()


@pytest.fixture
def backing(tmp_path: Path) -> Iterator[FileBacking]:
    made = FileBacking(str(tmp_path), "operator op, worker 3")
    yield made
    made.close()


def laid_down(backing: FileBacking) -> PagedArray:
    array = PagedArray(np.int64, None, 1 << 16, lambda: backing, slots=True)
    array.resize(50_000)
    array.array[:] = np.arange(50_000)
    array.lay_down(0)
    return array


def test_no_room_is_found_out_before_a_file_takes_the_place_of_memory(
    backing: FileBacking, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = laid_down(backing)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("posix_fallocate", "pwrite"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(LocalDiskError, match=r"worker 3: .* could not be written .* Make room"):
                array.lay_down(1)
        assert not array.laid()[1]
        assert backing.lost is None
    array.lay_down(1)
    assert (array.array == np.arange(50_000)).all()


def test_what_the_system_could_not_write_is_lost(backing: FileBacking, monkeypatch: pytest.MonkeyPatch) -> None:
    array = laid_down(backing)
    backing.check()
    assert backing.lost is None

    class Failing:
        def sync_file_range(self, *_: Any) -> int:
            ctypes.set_errno(errno.EIO)
            return -1

    with monkeypatch.context() as patch:
        patch.setattr(local_slabs, "_libc", Failing)
        backing.check()
    assert "was lost" in str(backing.lost)
    assert "Input/output error" in str(backing.lost)
    assert len(array) == 50_000


def test_nothing_is_written_to_the_checkpoint_that_may_be_made_of_what_was_lost() -> None:
    disk = Disk()
    table = disk.table()
    add(table, range(3000))
    disk.settle()
    table.seal()
    assert table.delta() is not None
    disk.files[1].lost = LocalDiskError("was lost")
    with pytest.raises(LocalDiskError, match="was lost"):
        table.delta()


def test_what_cannot_be_read_back_is_lost(backing: FileBacking, monkeypatch: pytest.MonkeyPatch) -> None:
    array = laid_down(backing)
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    with pytest.raises(LocalDiskError, match="was lost"):
        array.take_up(0)
    assert array.laid()[0]
    assert backing.lost is not None


def test_a_worker_says_what_its_columns_have_lost(tmp_path: Path) -> None:
    made = LocalStores(WorkerId(0), "aaaa", LEAST, str(tmp_path))
    file = made.slabs("op")
    assert made.lost is None
    file.lost = LocalDiskError("it was lost")
    assert made.lost is file.lost
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(LocalDiskError, match="could not be written"):
        FileBacking(str(tmp_path / "none"), "a test")


def test_pages_of_files_are_counted(backing: FileBacking) -> None:
    array = laid_down(backing)
    array.let_go()
    assert array.array[:100].sum() == 4950
    assert file_pages() > 0


# --- slices of rows ---


def test_slices_follow_the_time_that_they_take() -> None:
    times = iter([0.0, 0.040, 1.0, 1.040, 2.0, 2.001])
    cache = Cache(0, lambda: next(times))
    sizes = [cache.slice]
    for _ in range(3):
        cache.used = 1
        cache.make_room(1)
        sizes.append(cache.slice)
    assert sizes[0] == SLICE
    assert sizes[0] > sizes[1] > sizes[2] < sizes[3]
