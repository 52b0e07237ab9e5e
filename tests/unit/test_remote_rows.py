"""Rows in a remote store: turns that do not count, workers that were given up, state that is handed over or found.

Everything runs against the store in memory and against a real Redis, which have to do the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.redis_server import MISSING, RedisProcess, available
from tests.remotes import MemoryRemote, MemoryServer
from tests.shelves import drop, listed

import bedload as bl
from bedload.core.errors import RemoteStoreError
from bedload.core.ids import NO_TURN, KeyGroup, OperatorName, Turn, WorkerId
from bedload.state import RecordLayout
from bedload.store.cache import Cache
from bedload.store.remote_table import Moved, RemoteTable
from bedload.store.selection import Selection
from bedload.worker.operator import Operator, make_shared, state_of
from bedload.worker.redis_remote import RedisServer

GROUPS = [KeyGroup(0), KeyGroup(1)]
NAMES = itertools.count()


class Count(Operator):
    total: int = bl.value(0)


class Wider(Operator):
    total: int = bl.value(0)
    text: str = bl.value("")


class Worker:
    """A worker's table, which runs turns as its machine does."""

    def __init__(self, remote: Any, operator: type[Operator] = Count, memory: int = 0) -> None:
        self.remote = remote
        self.table = RemoteTable(OperatorName("count"), remote, Cache(memory))
        layout = RecordLayout(state_of(operator))
        self.table.bind(layout, make_shared(operator, {}, layout, self.table.slots)[1], 1, [pa.string()])

    def turn(self, turn: int, base: int, groups: Any = GROUPS, **keys: int) -> None:
        """Add to keys, and seal."""
        self.table.stand(Turn(turn), Turn(base), groups)
        self.table.begin(groups)
        for key, number in keys.items():
            (store, some), *_ = self.table.ready([(self.table._store(group_of(key)), [key])])
            (row,) = store.touch(some)
            row.total += number
            if row.total == 0:
                store.forget([key])
        self.table.seal()
        self.table.write(Turn(turn), lambda group: True)

    def run(self, turn: int, base: int, **keys: int) -> None:
        """The same, and it counts."""
        self.turn(turn, base, **keys)
        self.table.commit()
        while self.table.untidy:
            self.table.tidy_disk()

    def state(self) -> dict[str, int]:
        return {key: state["total"] for key, state in self.table.snapshot()}


def group_of(key: str) -> KeyGroup:
    return KeyGroup(ord(key) % 2)


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisProcess | None]:
    process = RedisProcess() if available() else None
    yield process
    if process is not None:
        process.close()


@pytest.fixture(params=["memory", "redis"])
def worker(request: pytest.FixtureRequest, redis: RedisProcess | None) -> Callable[..., Worker]:
    """Makes workers that share a store."""
    if request.param == "memory":
        server = MemoryServer()
        return lambda *more: Worker(MemoryRemote(server), *more)
    if redis is None:
        pytest.skip(MISSING)
    name, numbers = f"op{next(NAMES)}", itertools.count()
    return lambda *more: Worker(RedisServer(redis.url, WorkerId(next(numbers))).open(name), *more)


def test_what_a_turn_wrote_that_does_not_count_is_gone(worker: Callable[..., Worker]) -> None:
    one = worker()
    one.run(1, 0, a=1, b=2)
    one.turn(2, 1, a=10, c=10, b=-2)
    one.table.abort()
    assert one.state() == {"a": 1, "b": 2}
    assert one.table.sizes().keys == 2
    one.run(3, 1, d=5)
    other = worker()
    assert other.table.find(GROUPS, Turn(3), Turn(3)) == GROUPS
    assert other.state() == {"a": 1, "b": 2, "d": 5}


def test_state_is_found_at_the_turn_and_at_the_one_before_and_at_no_other(worker: Callable[..., Worker]) -> None:
    one = worker()
    for turn in (1, 2, 3):
        one.run(turn, turn - 1, a=turn)
    assert worker().table.find(GROUPS, Turn(1), Turn(3)) == []
    same = worker()
    assert same.table.find(GROUPS, Turn(3), Turn(3)) == GROUPS
    assert same.state() == {"a": 6}
    before = worker()
    assert before.table.find(GROUPS, Turn(2), Turn(3)) == GROUPS
    assert before.state() == {"a": 3}
    assert worker().table.find(GROUPS, Turn(3), Turn(3)) == [], "what was undone does not come back"


def test_what_was_read_by_nobody_is_read_when_it_is_wanted(worker: Callable[..., Worker]) -> None:
    worker().run(1, 0, a=1, b=2, c=3)
    other = worker()
    other.table.find(GROUPS, Turn(1), Turn(1))
    assert other.table.place.figures.read == 0
    assert other.table.sizes().keys == 3
    other.run(2, 1, a=1)
    assert other.table.place.figures.read == 1


def test_state_of_another_shape_is_not_found(worker: Callable[..., Worker]) -> None:
    worker().run(1, 0, a=1)
    assert worker(Wider).table.find(GROUPS, Turn(1), Turn(1)) == []


def test_a_worker_that_was_given_up_writes_nothing(worker: Callable[..., Worker]) -> None:
    old, new = worker(), worker()
    old.run(1, 0, a=1)
    new.table.find(GROUPS, Turn(1), Turn(2))
    with pytest.raises(RemoteStoreError, match="another worker has taken it over"):
        old.turn(2, 1, a=100)
    new.run(3, 1, a=5)
    assert new.state() == {"a": 6}
    late = worker()
    assert late.table.find(GROUPS, Turn(1), Turn(2)) == [], "a turn that it has not heard of has begun"
    new.run(4, 3, a=1)


def test_a_place_that_stands_at_an_old_turn_again_is_not_replaced_by_who_was_given_up(
    worker: Callable[..., Worker],
) -> None:
    old, new = worker(), worker()
    new.turn(2, 0, b=1)
    new.table.abort()
    assert new.state() == {}
    with pytest.raises(RemoteStoreError, match="another worker has taken it over"):
        old.turn(1, 0, b=5)
    new.run(3, 0, b=2)
    assert new.state() == {"b": 2}


def test_a_seal_that_failed_is_undone_before_the_next_one() -> None:
    server = MemoryServer()
    one = Worker(MemoryRemote(server))
    one.run(1, 0, a=1, b=2)
    follow = server.follow

    def fails(order: list[Any]) -> Any:
        answer = follow(order)
        if order[0] == b"seal":
            raise RemoteStoreError("it was done, and nobody heard of it")
        return answer

    server.follow = fails  # type: ignore[method-assign]
    with pytest.raises(RemoteStoreError):
        one.turn(2, 1, a=10, b=10)
    one.table.abort()
    server.follow = follow  # type: ignore[method-assign]
    one.remote.broken = True
    with pytest.raises(RemoteStoreError):
        one.turn(3, 1, c=3)
    one.table.abort()
    one.remote.broken = False
    one.run(4, 1, a=100)
    assert one.state() == {"a": 101, "b": 2}


def test_an_older_state_of_the_store_is_noticed() -> None:
    server = MemoryServer()
    one = Worker(MemoryRemote(server))
    one.run(1, 0, a=1)
    before = {name: dict(data) for name, data in server.data.items()}
    one.run(2, 1, a=1)
    server.data = before
    with pytest.raises(RemoteStoreError, match="of another turn"):
        one.run(3, 2, a=1)
    assert Worker(MemoryRemote(server)).table.find(GROUPS, Turn(2), Turn(2)) == []


def test_a_store_that_was_wiped_is_not_taken_for_empty(worker: Callable[..., Worker]) -> None:
    one = worker()
    one.run(1, 0, a=1)
    if isinstance(one.remote, MemoryRemote):
        one.remote.server.data.clear()
    else:
        one.remote._server.call([("FLUSHALL",)])
    with pytest.raises(RemoteStoreError, match="is not there any more"):
        one.state()
    with pytest.raises(RemoteStoreError, match="is not there any more"):
        one.run(2, 1, a=1)


def test_many_changes_are_written_and_undone_in_slices(worker: Callable[..., Worker], monkeypatch: Any) -> None:
    monkeypatch.setattr("bedload.store.remote_rows._AT_ONCE", 2)
    monkeypatch.setattr("bedload.store.remote.MOST_UNDONE", 2)
    one = worker()
    many = dict.fromkeys("abcdefghij", 1)
    one.run(1, 0, **many)
    one.turn(2, 1, **dict.fromkeys("abcdefgh", -1), **dict.fromkeys("klmnop", 5))
    one.table.abort()
    assert one.state() == many
    one.turn(3, 1, **dict.fromkeys("abcdefgh", -1))
    other = worker()
    assert other.table.find(GROUPS, Turn(1), Turn(3)) == GROUPS
    assert other.state() == many


def test_a_key_group_is_handed_over_without_its_keys(worker: Callable[..., Worker]) -> None:
    old, new = worker(), worker()
    old.run(1, 0, a=1, b=2, d=4)
    shelf = listed(old.table.shelve(Selection([KeyGroup(0)])))
    assert len(shelf.hashes) == 0
    places = shelf.places()
    assert shelf.places() == places, "it may have to be said twice"
    moved = {group: Moved(*where) for group, where in places.items()}
    new.table.adopt(moved)
    new.table.adopt(moved)
    drop(shelf)
    assert new.state() == {"b": 2, "d": 4}
    assert old.state() == {"a": 1}
    new.turn(2, 1, [KeyGroup(0)], b=10)
    new.table.commit()
    assert new.state() == {"b": 12, "d": 4}


def test_a_key_group_comes_to_a_guest_of_it(worker: Callable[..., Worker]) -> None:
    old, new = worker(), worker()
    old.run(1, 0, b=1, d=2)
    new.table.stand(Turn(1), Turn(0), [])
    new.table.begin(GROUPS)
    (row,) = new.table._store(KeyGroup(0)).touch(["f"])
    row.total = 7
    new.table.seal()
    new.table.write(Turn(1), lambda group: True)
    new.table.commit()
    new.table.adopt(old.table.places([KeyGroup(0)]))
    assert new.state() == {"b": 1, "d": 2, "f": 7}
    assert new.table.sizes().keys == 3
    new.run(2, 1, b=1, f=1)
    assert new.state() == {"b": 2, "d": 2, "f": 8}
    assert worker().table.find([KeyGroup(0)], Turn(2), Turn(2)) == [0]


def test_timers_are_not_left_behind() -> None:
    class Timed(Count):
        def on_timer(self, key: str, timer: bl.Timer, ctx: bl.Context) -> None:
            pass

    server = MemoryServer()
    one = Worker(MemoryRemote(server), Timed)
    one.run(1, 0, b=1)
    assert Worker(MemoryRemote(server), Timed).table.find(GROUPS, Turn(1), Turn(1)) == []
    assert not one.table.shelve(Selection(GROUPS)).by_place


def test_what_was_handed_over_and_has_changed_since_is_not_taken(worker: Callable[..., Worker]) -> None:
    old, new = worker(), worker()
    old.run(1, 0, b=1)
    at = next(iter(old.table.places([KeyGroup(0)]).values()))
    with pytest.raises(RemoteStoreError, match="not there as it was handed over"):
        new.table.adopt({KeyGroup(0): at._replace(stamp=b"7")})


def test_a_place_of_which_keys_went_away_is_not_found_before_the_next_turn(worker: Callable[..., Worker]) -> None:
    one = worker()
    one.run(1, 0, b=1, d=2)
    one.table.stores[KeyGroup(0)].discard(["d"])
    assert worker().table.find([KeyGroup(0)], Turn(1), Turn(1)) == []
    one.run(2, 1, b=1)
    assert worker().table.find([KeyGroup(0)], Turn(2), Turn(2)) == [0]


def test_a_key_group_that_is_not_all_here_is_not_found(worker: Callable[..., Worker]) -> None:
    one = worker()
    one.turn(1, 0, b=1)
    one.table.commit()
    one.table.stand(Turn(2), Turn(1), GROUPS)
    one.table.begin(GROUPS)
    (row,) = one.table._store(KeyGroup(0)).touch(["d"])
    row.total = 1
    one.table.seal()
    one.table.write(Turn(2), lambda group: False)
    one.table.commit()
    assert worker().table.find(GROUPS, Turn(2), Turn(2)) == []


def test_places_that_were_replaced_are_removed_when_nobody_can_need_them() -> None:
    server = MemoryServer()
    for turn in range(1, 6):
        one = Worker(MemoryRemote(server))
        assert one.table.find(GROUPS, NO_TURN, Turn(turn)) == []
        one.run(turn + 1, 0, b=turn)
        assert one.state() == {"b": turn}
        places = [name for name in server.data if name.startswith(b"x:0:") and not name.endswith(b":u")]
        assert len(places) <= 2


def test_who_hands_keys_over_one_by_one_goes_on_with_what_it_had(worker: Callable[..., Worker]) -> None:
    old, new = worker(), worker()
    old.run(1, 0, b=1, d=2)
    old.turn(2, 1, b=5)
    old.table.abort()
    state = {"b": 1, "d": 2}
    for turn, key in ((3, "b"), (4, "d")):
        new.table.stand(Turn(turn), Turn(turn - 1), [KeyGroup(0)])
        store: Any = new.table._store(KeyGroup(0))
        store.put([key], {"total": [state[key]]})
        new.turn(turn, turn - 1 if turn > 3 else 1, [KeyGroup(0)], **{key: 10})
        new.table.commit()
        old.turn(turn, turn - 1 if turn > 3 else 1, [KeyGroup(1)], a=1)
        old.table.commit()
        assert old.state() == {**state, "a": turn - 2}
    assert new.state() == {"b": 11, "d": 12}
