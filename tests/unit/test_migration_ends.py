"""The two ends of a move, over a channel that breaks: the new owner never takes a key for here whose state is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bedload.core.ids import KeyGroup, Turn, WorkerId
from bedload.core.limits import LIMITS, Limits
from bedload.migration import STRATEGIES
from bedload.migration.holdings import Holdings
from bedload.migration.lane import WINDOW, Parcel
from bedload.migration.parking import Parking
from bedload.migration.receiver import Receiver, Receiving, whole_only
from bedload.migration.sender import Sender, Sending
from bedload.protocol.messages import Lot
from bedload.store.shelf import Listed

GROUPS = 4
KEYS = 24
OLD, NEW = WorkerId(0), WorkerId(1)
MOVED = (KeyGroup(0), KeyGroup(2))
LOT = Lot(OLD, NEW, MOVED)


class Time:
    """Goes on by itself, so that nothing waits for ever."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.01
        return self.now

    def wall(self) -> float:
        return self.now

    def processor(self) -> float:
        return self.monotonic()


class Store:
    """State of the old owner: a number per key, with an epoch that may be under way."""

    def __init__(self) -> None:
        self.committed: dict[int, int] = {}
        self.current: dict[int, int] = {}
        self.touched: set[int] = set()
        self.sealed = False

    def write(self, key: int, value: int) -> None:
        self.touched.add(key)
        if value:
            self.current[key] = value
        else:
            self.current.pop(key, None)

    def end(self, commit: bool) -> None:
        if commit:
            self.committed = dict(self.current)
        else:
            self.current = dict(self.committed)
        self.touched, self.sealed = set(), False


class FakeShelf:
    """A shelf of that store."""

    nbytes_hint = 8.0
    by_place: frozenset[KeyGroup] = frozenset()

    def __init__(self, store: Store, *, named: bool = True) -> None:
        self.named = named
        self._store = store
        self._keys: list[int] = []
        self._begun: list[int] = []
        self._pending: list[int] = []
        self._unnoted: list[int] = []
        self.expected = sum(key % GROUPS in MOVED for key in store.current)

        self.whole = 0

    @property
    def listed(self) -> bool:
        return len(self._begun) == len(MOVED) and not self._pending

    def list_some(self, keys: int, first: Any = None) -> Listed:
        whole, touched = [], []
        while keys and not self.listed:
            if not self._pending:
                unlisted = [group for group in sorted(MOVED) if group not in self._begun]
                self._begun.append(first if first in unlisted else unlisted[0])
                held = sorted({*self._store.current, *self._store.committed})
                self._pending = [key for key in held if key % GROUPS == self._begun[-1]]
            part, self._pending = self._pending[:keys], self._pending[keys:]
            self._keys += [key for key in part if key not in self._keys]
            touched += [key for key in part if key in self._store.touched]
            keys -= len(part)
            if not self._pending:
                whole.append(KeyGroup(self._begun[-1]))
                self.whole = len(self._keys)
        return Listed(tuple(whole), np.array(touched, np.int64))

    def covers(self, groups: Any) -> Any:
        return np.isin(groups, self._begun[:-1] if self._pending else self._begun)

    @property
    def hashes(self) -> Any:
        assert self.named, "keys without names"
        return np.array(self._keys, np.int64)

    @property
    def groups(self) -> Any:
        return np.array([key % GROUPS for key in self._keys], np.int16)

    def sealed(self) -> None:
        self._unnoted += [key for key in sorted(self._store.touched) if key % GROUPS in self._begun]

    @property
    def unnoted(self) -> int:
        return len(self._unnoted)

    def note_some(self, keys: int) -> Any:
        noted, self._unnoted = self._unnoted[:keys], self._unnoted[keys:]
        self._keys += [key for key in dict.fromkeys(noted) if key not in self._keys]
        return np.array(noted, np.int64)

    def fitting(self, hashes: Any, most: int) -> int:
        return len(hashes)

    def fitting_in_range(self, first: int, count: int, most: int) -> int:
        return count

    def collect(self, hashes: Any) -> Any:
        store = self._store
        known = [key for key in hashes.tolist() if key in self._keys]
        left = [key for key in known if key in store.touched and not store.sealed]
        given = [key for key in known if key not in left]
        if not given:
            return None, np.array(left, np.int64)
        values = [store.current.get(key, 0) for key in given]
        return pa.RecordBatch.from_pydict({"key": given, "value": values}), np.array(left, np.int64)

    def collect_range(self, first: int, count: int) -> Any:
        return self.collect(np.array(self._keys[first : first + count], np.int64))

    def let_go(self, keys: int) -> bool:
        raise AssertionError("not here")

    def drop_some(self, keys: int) -> bool:
        raise AssertionError("not here")


class Move:
    """Both ends and what is between them."""

    def __init__(self, strategy: str, store: Store, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.terms = STRATEGIES[strategy].terms
        self.clock = Time()
        self.store = store
        self.holdings = Holdings()
        self.receiver = Receiver(1, Parking(self.holdings))
        self.there: dict[int, int] = {}
        self.turn = 0
        self.base = Turn(0)
        self.flipped = False
        self.lane: list[Parcel] = []
        self.receipts: list[int] = []
        self.sender = self._make() if self.terms.copy_ahead else None

    def _make(self) -> Sender:
        shelve = lambda lot: FakeShelf(self.store, named=not whole_only(self.terms))  # noqa: E731
        return Sender(1, self.terms, (LOT,), shelve, GROUPS, self.clock, self.limits)

    def pump(self) -> None:
        if self.sender is not None:
            copying = not self.sender.flipped
            for parcel in self.sender.next(1.0)[0]:
                # As on the wire: while copying ahead, hashes are not sent along.
                self.lane.append(parcel._replace(hashes=parcel.hashes[:0]) if copying else parcel)
            self.sender.becomes_copied()
            self.sender.check()

    def deliver(self) -> None:
        if not self.lane:
            return
        parcel = self.lane.pop(0)
        receiver, now = self.receiver, self.clock.monotonic()
        self.receipts.append(parcel.number)
        if receiver.is_repeat(OLD, parcel.number):
            return
        if parcel.base is not None:
            said = OLD, parcel.number, parcel.base, parcel.hashes, now
            receiver.handed_over(*said, first=parcel.first, more=parcel.more)
        else:
            state = [] if parcel.state is None else parcel.state.to_pylist()
            keep = receiver.wanted(OLD, np.array([row["key"] for row in state], np.int64))
            for row, wanted in zip(state, keep, strict=True):
                if wanted:
                    self.there.pop(row["key"], None)
                    if row["value"]:
                        self.there[row["key"]] = row["value"]
            hashes = parcel.hashes
            settled = hashes[receiver.wanted(OLD, hashes)] if receiver.phase is not Receiving.EARLY else hashes
            receiver.arrived(
                OLD, parcel.number, settled, parcel.state, parcel.groups, parcel.last, now, ahead=parcel.ahead
            )
        self.check()

    def acknowledge(self) -> None:
        if self.receipts and self.sender is not None:
            self.sender.taken(NEW, self.receipts.pop(0), 1.0)

    def tear(self, arrives: int) -> None:
        """The connection breaks; some of what was on it arrives all the same."""
        if self.sender is None:
            return
        self.lane = self.lane[:arrives]
        while self.lane:
            self.deliver()
        self.receipts = []
        self.sender.broken(NEW)

    def epoch(self, writes: list[tuple[int, int]], *, commit: bool, between: list[str]) -> None:
        self.turn += 1
        for key, value in writes:
            if not (self.flipped and key % GROUPS in MOVED):
                self.store.write(key, value)
        self.act(between)
        self.store.sealed = True
        if self.sender is not None:
            self.sender.sealed(Turn(self.turn))
        self.act(between)
        self.store.end(commit)
        if self.sender is not None:
            self.sender.committed() if commit else self.sender.aborted()
        if commit:
            self.base = Turn(self.turn)

    def flip(self, *, new_owner_first: bool) -> None:
        self.flipped = True
        steps = [self._flip_old, self._flip_new]
        for step in reversed(steps) if new_owner_first else steps:
            step()

    def _flip_old(self) -> None:
        if self.sender is None:
            self.sender = self._make()
        self.sender.flip(self.base)
        self.pump()

    def _flip_new(self) -> None:
        self.wanted = {key: value for key, value in self.store.committed.items() if key % GROUPS in MOVED}
        self.receiver.flip(self.base, [LOT], self.terms, self.clock.monotonic())
        self.check()

    def act(self, steps: list[str]) -> None:
        for step in steps:
            match step:
                case "pump":
                    self.pump()
                case "deliver":
                    self.deliver()
                case "acknowledge":
                    self.acknowledge()
                case "exchange":
                    for _ in range(30):
                        self.pump()
                        self.deliver()
                        self.acknowledge()
                case "want":
                    if self.sender is not None and self.flipped:
                        self.sender.want(NEW, np.array([2, 5, 8, 20], np.int64))
                case _:
                    self.tear(int(step))
            if self.sender is not None:
                self.sender.check()
            self.receiver.check()

    def check(self) -> None:
        """Whatever is here has the state at the flip."""
        self.receiver.check()
        self.holdings.check()
        if self.receiver.phase is Receiving.EARLY:
            return
        for key in range(KEYS):
            if key % GROUPS in MOVED and not self.holdings.absent(
                KeyGroup(key % GROUPS), lambda key=key: np.array([key], np.int64)
            ):
                assert self.there.get(key) == self.wanted.get(key), f"key {key} is taken for here"

    def drain(self) -> None:
        assert self.sender is not None
        for _ in range(2000):
            if self.receiver.complete:
                break
            self.act(["pump", "deliver", "acknowledge"])
        assert self.receiver.complete
        assert self.there == self.wanted


STEPS = ["pump", "pump", "deliver", "deliver", "acknowledge", "exchange", "want", "0", "1"]
steps = st.lists(st.sampled_from(STEPS), max_size=8)
writes = st.lists(st.tuples(st.integers(0, KEYS - 1), st.integers(0, 9)), max_size=8)
epochs = st.lists(st.tuples(writes, st.booleans(), steps), max_size=4)


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "stop_restart"])
@settings(max_examples=60, deadline=None)
@given(before=epochs, after=epochs, between=steps, new_owner_first=st.booleans(), first=writes)
def test_the_new_owner_has_the_state_at_the_flip_and_never_takes_a_key_for_here_too_early(
    strategy: str,
    before: list[tuple[list[tuple[int, int]], bool, list[str]]],
    after: list[tuple[list[tuple[int, int]], bool, list[str]]],
    between: list[str],
    new_owner_first: bool,
    first: list[tuple[int, int]],
) -> None:
    store = Store()
    for key, value in [*((key, key + 1) for key in range(0, KEYS, 2)), *first]:
        store.write(key, value)
    store.end(commit=True)
    move = Move(strategy, store, Limits(ship_keys=3))
    for changes, commit, acts in before:
        move.epoch(changes, commit=commit, between=acts)
    move.act(between)
    move.flip(new_owner_first=new_owner_first)
    for changes, commit, acts in after:
        move.epoch(changes, commit=commit, between=acts)
    move.drain()


@pytest.mark.parametrize("strategy", ["seamless", "hybrid"])
@pytest.mark.parametrize("new_owner_first", [True, False])
@pytest.mark.parametrize("between", [["pump", "deliver"], ["pump"], ["exchange"], ["pump", "deliver", "1"]])
def test_what_was_copied_of_a_rolled_back_epoch_after_the_hand_over_does_not_count(
    strategy: str, new_owner_first: bool, between: list[str]
) -> None:
    store = Store()
    for key in range(0, KEYS, 2):
        store.write(key, 1)
    store.end(commit=True)
    move = Move(strategy, store)
    move.epoch([(2, 5)], commit=True, between=["exchange"] * 5)  # sealed: copied, and handed over
    assert move.receiver._from(OLD).handed == Turn(1)
    move.epoch([(2, 9), (14, 7)], commit=False, between=between)  # sealed, copied, rolled back
    move.flip(new_owner_first=new_owner_first)
    move.drain()
    assert move.there[2] == 5


def test_what_somebody_waits_for_goes_first() -> None:
    store = Store()
    for key in range(0, 4000, 2):
        store.write(key, 1)
    store.end(commit=True)
    move = Move("adaptive", store)
    move.flip(new_owner_first=True)
    assert move.sender is not None
    move.lane.clear()
    move.sender.want(NEW, np.array([3998, 3996], np.int64))
    while len(move.lane) < 2:
        move.pump()
    assert {*move.lane[0].hashes.tolist(), *move.lane[1].hashes.tolist()} == {3996, 3998}


def test_no_more_than_a_few_messages_are_under_way() -> None:
    store = Store()
    for key in range(0, 4000, 2):
        store.write(key, 1)
    store.end(commit=True)
    move = Move("all_at_once", store)
    move.flip(new_owner_first=True)
    for _ in range(50):
        move.pump()
    assert len(move.lane) == WINDOW


def test_nothing_is_said_of_a_key_that_lives_elsewhere_than_its_group() -> None:
    """Both may leave for the same worker; feeders name the keys that they have rows of by group."""
    store = Store()
    here, elsewhere = 4, 8  # of one key group
    store.write(here, 1)
    store.end(commit=True)
    lot = Lot(OLD, NEW, MOVED, stay=(elsewhere,))
    sender = Sender(1, STRATEGIES["adaptive"].terms, (lot,), lambda _: FakeShelf(store), GROUPS, Time())
    sender.flip(Turn(0))
    sender.want_any(np.array([elsewhere, here], np.int64), GROUPS)
    sent: list[int] = []
    for _ in range(10):
        sent += [key for parcel in sender.next(1.0)[0] for key in parcel.hashes.tolist()]
    assert sent == [here]


def test_keys_of_a_key_group_that_is_not_listed_are_put_aside_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many steps it takes to list the key group, what somebody waits for is not looked at in each."""
    store = Store()
    for key in range(0, 40_000, 2):
        store.write(key, 1)
    store.end(commit=True)
    shelf, asked = FakeShelf(store), 0
    covers = shelf.covers

    def counted(groups: Any) -> Any:
        nonlocal asked
        asked += len(groups)
        return covers(groups)

    monkeypatch.setattr(shelf, "covers", counted)
    sender = Sender(1, STRATEGIES["lazy"].terms, (LOT,), lambda _: shelf, GROUPS, Time())
    sender.flip(Turn(1))
    wanted = np.arange(2, 4000, 4)
    sender.want(NEW, wanted)
    got: set[int] = set()
    before = 0
    while not got >= set(wanted.tolist()):
        parcels, delay = sender.next(1.0)
        assert parcels or delay is not None, "it waits for nothing"
        for parcel in parcels:
            before = before or asked
            got.update(parcel.hashes.tolist())
            sender.taken(NEW, parcel.number, 1.0)
    assert before <= 2 * len(wanted)


@pytest.mark.parametrize("strategy", ["seamless", "hybrid"])
def test_what_changes_as_fast_as_it_is_copied_does_not_keep_a_move_from_its_end(strategy: str) -> None:
    store = Store()
    mine = [key for key in range(KEYS) if key % GROUPS in MOVED]
    for key in mine:
        store.write(key, 1)
    store.end(commit=True)
    move = Move(strategy, store, Limits(ship_keys=3))
    assert move.sender is not None
    for number in range(1, 8):
        if move.sender.phase is Sending.COPIED:
            break
        move.epoch([(key, number) for key in mine], commit=True, between=[])
        move.act(["pump", "deliver", "acknowledge"] * 6)
    assert move.sender.phase is Sending.COPIED
    move.flip(new_owner_first=False)
    move.drain()


@pytest.mark.parametrize("steps", [5, 20])
def test_what_changes_faster_than_it_is_noted_does_not_keep_a_move_from_its_end(steps: int) -> None:
    """In each epoch all keys change, and there are steps for few of them: of copying, or of noting what changed."""
    store = Store()
    keys = [key for key in range(500) if key % GROUPS in MOVED]
    for key in keys:
        store.write(key, 1)
    store.end(commit=True)
    terms, limits = STRATEGIES["seamless"].with_(share=1.0).terms, Limits(ship_keys=20)
    sender = Sender(1, terms, (LOT,), lambda _: FakeShelf(store), GROUPS, Time(), limits)
    for number in range(2, 200):
        for key in keys:
            store.write(key, number)
        store.sealed = True
        sender.sealed(Turn(number))
        store.end(commit=True)
        sender.committed()
        for _ in range(steps):
            for parcel in sender.next(1.0)[0]:
                sender.taken(NEW, parcel.number, 1.0)
            if sender.becomes_copied():
                return
    raise AssertionError("it comes to no end")


@pytest.mark.parametrize("waits", [True, False])
def test_keys_that_an_epoch_holds_do_not_keep_others_from_being_copied(waits: bool) -> None:
    store = Store()
    mine = [key for key in range(KEYS) if key % GROUPS in MOVED]
    for key in mine:
        store.write(key, 1)
    store.end(commit=True)
    move = Move("seamless", store, Limits(ship_keys=3))
    move.act(["exchange"] * 3)
    assert move.sender is not None
    move.epoch([(key, 2) for key in mine], commit=True, between=[])
    held = mine[:5]
    for key in held:
        store.write(key, 3)
    move.act(["exchange"] * 3)
    assert move.there == {key: 1 if key in held else 2 for key in mine}
    store.end(commit=False)
    move.sender.aborted()
    if waits:
        move.act(["exchange"] * 3)
        assert move.there == dict.fromkeys(mine, 2), "they are looked at again"
    move.flip(new_owner_first=False)
    move.drain()
