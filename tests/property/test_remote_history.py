"""Random lives of state in a remote store: turns that count or not, calls that fail, workers that are given up.

A model knows the state at each turn. What a worker has is the state at the turn that it stands on, or it says that it
has lost it; and what is found is the state that was asked for, or nothing.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.remotes import MemoryRemote, MemoryServer
from tests.thorough import examples

from bedload import state as bl
from bedload.core.errors import RemoteStoreError
from bedload.core.ids import KeyGroup, OperatorName, Turn
from bedload.state import RecordLayout
from bedload.store import remote, remote_rows
from bedload.store.cache import Cache
from bedload.store.remote_table import RemoteTable
from bedload.worker.operator import Operator, make_shared, state_of

GROUPS = [KeyGroup(0), KeyGroup(1)]
KEYS = "abcd"
State = dict[str, int]


class Count(Operator):
    total: int = bl.value(0)


class Flaky(MemoryRemote):
    """The next calls fail, some after they were followed."""

    fails: int | None = None
    after = False

    def _one(self, order: list[Any]) -> list[Any]:
        if self.fails is None:
            return super()._one(order)
        if self.fails > 0:
            self.fails -= 1
            return super()._one(order)
        if self.after:
            super()._one(order)
        raise RemoteStoreError("it does not answer")


class Worker:
    def __init__(self, server: MemoryServer) -> None:
        self.remote = Flaky(server)
        self.table = RemoteTable(OperatorName("count"), self.remote, Cache(0))
        layout = RecordLayout(state_of(Count))
        self.table.bind(layout, make_shared(Count, {}, layout, self.table.slots)[1], 1, [pa.string()])
        self.base = 0

    def seal(self, turn: int, changes: State) -> None:
        table = self.table
        table.stand(Turn(turn), Turn(self.base), GROUPS)
        table.begin(GROUPS)
        for key, number in changes.items():
            (store, some), *_ = table.ready([(table._store(KeyGroup(KEYS.index(key) % 2)), [key])])
            (row,) = store.touch(some)
            if number:
                row.total = number
            else:
                store.forget(some)
        table.seal()
        table.write(Turn(turn), lambda group: True)

    def state(self) -> State:
        return {key: state["total"] for key, state in self.table.snapshot()}


changes = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 3), max_size=3)
step = st.one_of(
    st.tuples(st.just("count"), changes),
    st.tuples(st.just("abort"), changes),
    st.tuples(st.just("fail"), changes, st.integers(0, 4), st.booleans()),
    st.tuples(st.just("zombie"), changes, st.integers(0, 5)),
    st.tuples(st.just("replace"), st.integers(0, 2)),
    st.tuples(st.just("set back"), st.integers(1, 3)),
    st.tuples(st.just("move")),
)


@given(st.lists(step, max_size=20))
@examples(300)
def test_what_is_there_is_the_state_at_the_turn_or_is_not_found(steps: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote_rows, "_AT_ONCE", 1)
        patch.setattr(remote, "MOST_UNDONE", 1)
        _live(steps)


def _live(steps: list[Any]) -> None:
    server = MemoryServer()
    at: dict[int, State] = {0: {}}
    turn, now, given_up = 0, Worker(server), list[tuple[Worker, int]]()

    def replaced(worker: Worker, base: int) -> Worker:
        """Another one stands at that turn: with what is found, and else with what a checkpoint has."""
        nonlocal turn
        turn += 1
        given_up.append((worker, turn))  # it is in the middle of that
        new = Worker(server)
        new.base = base
        found = new.table.find(GROUPS, Turn(base), Turn(turn))
        expected = at[base]
        mine = {key: n for key, n in expected.items() if KeyGroup(KEYS.index(key) % 2) in found}
        assert new.state() == mine, f"of turn {base}"
        rest = [group for group in GROUPS if group not in found]
        for group in rest:
            keys = sorted(key for key in expected if KEYS.index(key) % 2 == group)
            if keys:
                store: Any = new.table._store(group)
                store.put(keys, {"total": [expected[key] for key in keys]})
        return new

    def checked() -> None:
        assert now.state() == at[now.base]
        assert now.table.sizes().keys == len(at[now.base])

    for kind, *said in steps:
        known = at[now.base]
        if kind in ("count", "abort", "fail"):
            turn += 1
            changed = {key: n for key, n in said[0].items() if n or key in known}
            if kind == "fail":
                now.remote.fails, now.remote.after = said[1], said[2]
            try:
                now.seal(turn, changed)
                failed = kind == "abort"
            except RemoteStoreError:
                assert kind == "fail"
                failed = True
            now.remote.fails = None
            if failed:
                now.table.abort()
            else:
                now.table.commit()
                at[turn] = {key: n for key, n in (known | changed).items() if n}
                now.base = turn
            while now.table.untidy:
                now.table.tidy_disk()
        elif kind == "zombie" and given_up:
            old, then = given_up[said[1] % len(given_up)]
            with suppress(RemoteStoreError):  # or it writes where nobody looks
                old.seal(then, {key: n for key, n in said[0].items() if n})
            old.table.abort()
        elif kind == "replace":
            now = replaced(now, now.base)
        elif kind == "set back":
            now = replaced(now, sorted(at)[-min(said[0], len(at))])
        elif kind == "move":
            new = Worker(server)
            new.base = now.base
            new.table.adopt(now.table.places(GROUPS))
            now = new
        checked()
