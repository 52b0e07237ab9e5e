"""The simulator's storage keeps what every storage keeps, and fails when and as it should."""

from __future__ import annotations

import pytest
from tests.simulator.storage import MemoryStorage, Outages, SlowStorage, TroubledStorage

from bedload.core.errors import StoreError


def test_files_are_read_as_they_were_written_and_listed_by_folder() -> None:
    storage = MemoryStorage()
    storage.write("a/b/one", [b"1", b"2"])
    storage.write("a/two", b"xyz")
    assert storage.read("a/b/one") == b"12"
    assert (storage.list(""), storage.list("a"), storage.list("none")) == (["a"], ["b", "two"], [])
    assert storage.sizes("a") == {"two": 3}
    assert (storage.size("a/two"), storage.exists("a/two"), storage.exists("a")) == (3, True, False)


def test_a_file_that_is_not_there_is_not_found_and_its_deletion_is_fine() -> None:
    storage = MemoryStorage()
    storage.write("there", b"")
    storage.delete(["there", "not there"])
    with pytest.raises(FileNotFoundError):
        storage.read("there")


def test_only_the_first_creates_a_file_and_may_say_so_again() -> None:
    storage = MemoryStorage()
    assert storage.create("claim", b"mine")
    assert not storage.create("claim", b"yours")
    assert storage.create("claim", b"mine")
    assert storage.read("claim") == b"mine"


def test_a_storage_fails_only_while_there_is_an_outage() -> None:
    now = [0.0]
    storage = TroubledStorage(MemoryStorage(), Outages(1, lambda: now[0], [(1.0, 2.0, 1.0)]))
    storage.write("file", b"1")
    now[0] = 1.5
    with pytest.raises(StoreError, match="read"):
        storage.read("file")
    now[0] = 2.0
    assert storage.read("file") == b"1"


def test_a_write_that_fails_may_have_been_done_or_not() -> None:
    done = set()
    for seed in range(20):
        inner = MemoryStorage()
        storage = TroubledStorage(inner, Outages(seed, lambda: 0.0, [(0.0, 1.0, 1.0)]))
        with pytest.raises(StoreError):
            storage.write("file", b"1")
        done.add(inner.exists("file"))
    assert done == {True, False}


def test_who_waits_at_a_call_is_asked_before_and_after_it() -> None:
    inner, said = MemoryStorage(), []
    storage = SlowStorage(inner, lambda where, path: said.append((where, path, inner.exists("file"))))
    storage.write("file", b"1")
    assert said == [("before write", "file", False), ("after write", "file", True)]
