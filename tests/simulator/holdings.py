"""What a simulated worker should have of an operator: the keys that it owns, and the epochs that are in their state.

It follows the coordinator's word (``Begin``, ``Restore``, ``Flip``, ``Release``) as a reader of the protocol would, and
compares that with what the machine makes of it (:class:`bedload.migration.holdings.Holdings`).

Invariants that it keeps:

- a key comes to a worker by being handed over or read back, or with no state at all;
- a turn begins on the state that it should build upon, and changes no key but those that are the worker's own and here;
- ownership changes between two turns only;
- the machine knows what is the worker's own; in a turn it takes nothing else for that.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import numpy as np

from bedload.core.errors import RemoteStoreError
from bedload.core.ids import NO_TURN, Epoch, KeyGroup, QueryId, Turn, WorkerId, generation_of
from bedload.keys import RoutingTable
from bedload.protocol import messages as m
from bedload.store.remote_rows import RemoteStore
from bedload.store.remote_table import RemoteTable
from bedload.worker.hosted import Hosted
from bedload.worker.machine import Phase, WorkerMachine
from tests.applied_changes import apply_changes
from tests.simulator.oracle import History
from tests.simulator.watcher import Plain, Watcher
from tests.simulator.workload import GROUP_OF, HASH_OF


def keys_of(groups: Iterable[int], without: Iterable[int] = (), single: Iterable[int] = ()) -> set[str]:
    """The keys of key groups, but for those with some hashes; and those with other hashes."""
    groups, without, single = set(groups), set(without), set(single)
    whole = {key for key, group in GROUP_OF.items() if group in groups and HASH_OF[key] not in without}
    return whole | {key for key, value in HASH_OF.items() if value in single}


def on_its_way(hosted: Hosted, key: str) -> bool:
    """Whether a worker waits for the state of a key."""
    return hosted.holdings.absent(KeyGroup(GROUP_OF[key]), lambda: np.array([HASH_OF[key]]))


class Holdings:
    """The part of one worker process in the state of one operator."""

    def __init__(
        self, worker: WorkerId, name: str, machine: Callable[[], WorkerMachine], watcher: Watcher, *, durable: bool
    ) -> None:
        self.history: History = ()
        """The epochs whose state it should have."""
        self.keys: set[str] = set()
        """Those that it owns."""
        self.backup: Plain = {}
        """In memory only: all changes so far, applied to what was handed over."""
        self.worker = worker
        self.name = name
        self._operator = watcher.name
        self._machine = machine
        self._watcher = watcher
        self._durable = durable
        self._here: set[str] = set()
        self._may_begin = True
        self._told = NO_TURN
        """The last turn of which it was told."""
        self._unbegun = False
        """The last turn failed to begin, so the machine does not know what it would own."""
        self._flips: dict[int, tuple[set[str], set[str], History]] = {}
        """What came and what left with a move that is not over, and on what state."""
        self._sealed: tuple[Turn, tuple[QueryId, Epoch], Plain, set[str]] | None = None

    # --- what the coordinator says ---

    def told(self, message: m.Message) -> None:
        """Before the machine takes it."""
        match message:
            case m.Begin():
                self._begin(message)
            case m.Restore():
                self._restore(message)
            case m.Flip():
                self._flip(message)
            case m.Reset():
                self.history, self.keys, self.backup, self._here = (), set(), {}, set()
            case m.Release(move=move, called_off=called_off):
                came, left, then = self._flips.pop(move, (set(), set(), ()))
                if called_off:
                    # Later than the epoch after the flip that is the end of the cluster, and nobody wants them.
                    self.keys = (self.keys - came) | (left if self.history == then else set())

    def compare(self, message: m.Message) -> None:
        """After the machine has taken it."""
        hosted = self._machine()._hosted.get(self._operator)
        if hosted is None:
            return
        if isinstance(message, m.Begin):
            self._unbegun = hosted.phase is not Phase.OPEN
            assert self._unbegun or self._may_begin, f"{self.name} begins a turn without the state that it should have"
        if self._unbegun or hosted.restoring.error is not None or hosted.moving.failed in self._flips:
            return  # it knows that it does not have what it should have
        holdings = hosted.holdings
        holdings.check()
        unknown = {key for key in self.keys if not holdings.knows(GROUP_OF[key])}
        assert not unknown, f"{self.name} does not know that it owns {sorted(unknown)}, after {message}"
        if hosted.phase is Phase.OPEN:
            routing = self._watcher.routings[hosted.turn]
            assert holdings.owned == set(routing.groups_of(self.worker)), f"{self.name} owns {sorted(holdings.owned)}"
            guests = {GROUP_OF[key] for key in self.keys} - holdings.owned
            assert guests == holdings.guests, f"{self.name} has guests of {sorted(holdings.guests)}, not {guests}"

    def _begin(self, message: m.Begin) -> None:
        base, routing = self._watcher.base[message.turn], self._watcher.routings[message.turn]
        mine = self._owned_in(routing)
        self._told = message.turn
        if not self.keys or not mine:
            self.history = base  # it has taken no part, or takes none: it owns nothing, so it has all that it needs
        hosted = self._machine()._hosted.get(self._operator)
        self._may_begin = not mine or hosted is None or hosted.restoring.error is None
        if not self._may_begin:
            return  # it could not read what it should have, and has to refuse the turn
        where = f"{self.name} begins turn {message.turn}"
        assert self.history == base, f"{where} on {self.history}, not on {base}"
        new = mine - self.keys
        assert not new or not base, f"{where} with {sorted(new)}, which nobody handed over and it did not read back"
        self.keys = mine

    def _restore(self, message: m.Restore) -> None:
        there = self._watcher.histories[message.base]
        read = keys_of({*message.groups} - {*message.hosts}, message.away, message.guests)
        others = {key for key in self.keys - read if GROUP_OF[key] not in message.groups}
        hosted = self._machine()._hosted.get(self._operator)
        failed = hosted is not None and hosted.restoring.error is not None
        # What it had at another turn, or could not read, is not looked at; it must not begin a turn with it.
        self.keys = read | others if self.history == there and not failed else read
        self.history = there

    def _flip(self, message: m.Flip) -> None:
        hosted = self._machine()._hosted.get(self._operator)
        busy = hosted is not None and hosted.phase in (Phase.OPEN, Phase.SEALED)
        assert not busy, f"{self.name}: ownership changes in the middle of a turn: {message}"
        there = self._watcher.histories[message.base]
        last = self._watcher.routings.get(message.base)
        no_part = last is not None and not self._owned_in(last)
        if not self.keys or (no_part and self.history != there):
            # What it owned without state has passed to others without a word.
            self.keys, self.history = set(), there
        assert self.history == there, f"{self.name} has {self.history}, and {message} builds upon {there}"
        came, left = (
            {key for lot in lots for key in keys_of(lot.groups, lot.stay, lot.keys)}
            for lots in (message.arriving, message.leaving)
        )
        if not there:  # what is owned without state passes on without a word
            self.keys = (self.keys - came) | left
        assert left <= self.keys, f"{self.name} is to hand over {sorted(left - self.keys)}, which it does not own"
        assert not came & self.keys, f"{self.name} is handed {sorted(came & self.keys)}, which it owns"
        self._flips[message.move] = came, left, there
        self.keys = (self.keys - left) | came

    def _pass_on(self) -> None:
        """What it owned without state has passed to others without a word, once a turn on no state began without it.

        From then on copies of that may come to it ahead, which are not its own before they are handed over.
        """
        if not self.keys or self.history or self._flips:
            return
        # Of another attachment it hears nothing.
        mine = (turn for turn in self._watcher.routings if generation_of(turn) == generation_of(self._told))
        later = {turn for turn in mine if turn > self._told and not self._watcher.base[turn]}
        if any(not self._owned_in(self._watcher.routings[turn]) for turn in later):
            self.keys = set()

    def _owned_in(self, routing: RoutingTable) -> set[str]:
        return {key for key, value in HASH_OF.items() if routing.owner_of_key(value) == self.worker}

    # --- what is here ---

    def state(self) -> tuple[Plain, set[str]]:
        """The committed state that is here, and the keys that should be."""
        machine = self._machine()
        runtime, hosted = machine.runtime(self._operator), machine._hosted.get(self._operator)
        if runtime is None or hosted is None or hosted.restoring.error is not None:
            return {}, set()
        self._pass_on()
        here = {key for key in self.keys if not on_its_way(hosted, key)}
        try:
            with _left_alone(runtime):
                actual = {key: state for key, state in runtime.snapshot() if key in here}
        except RemoteStoreError:
            return {}, set()  # it was given up, or has lost it, and finds that out before it does anything with it
        if not self._durable:
            came = (here - self._here) & actual.keys()
            self.backup = {key: state for key, state in self.backup.items() if key in here and key in self._here}
            self.backup |= {key: copy.deepcopy(actual[key]) for key in came}
            assert self.backup.keys() == actual.keys(), f"{self.name}: the backup has other keys"
        self._here = here
        return actual, here

    @property
    def handed_something(self) -> bool:
        """Whether it has been handed keys by a move that is not over."""
        return any(came for came, _, _ in self._flips.values())

    def leftovers(self) -> set[str]:
        """Keys with state here that it does not own."""
        runtime = self._machine().runtime(self._operator)
        with suppress(RemoteStoreError), _left_alone(runtime):
            return set() if runtime is None else {key for key, _ in runtime.snapshot()} - self.keys
        return set()

    # --- epochs ---

    def sealing(self, epoch: tuple[QueryId, Epoch]) -> Plain:
        """A turn is being sealed: what it changed is the worker's own; the backup with it, in memory only."""
        runtime = self._machine().runtime(self._operator)
        assert runtime is not None
        _, here = self.state()
        backup = dict(self.backup)
        for change in runtime.changes():
            changed = {*change.entries, *change.removed}
            # A remote store may have lost in the seal what it was told in it: that is found out later.
            assert changed <= here or not here, (
                f"{self.name} at the seal of {epoch}: changed {sorted(changed - here)} of others"
            )
            if not self._durable:
                _apply(backup, change)
        if not self._durable:
            self._watcher.check_seal(f"{self.name} at the seal", (*self.history, epoch), backup, here)
        return backup

    def sealed(self, turn: Turn, epoch: tuple[QueryId, Epoch], backup: Plain) -> None:
        """A turn was sealed."""
        self._sealed = turn, epoch, backup, self._here

    def committed(self, turn: Turn) -> None:
        """A turn counts."""
        assert self._sealed is not None
        assert self._sealed[0] == turn, f"{self.name} committed turn {turn}, but sealed {self._sealed[0]}"
        _, epoch, backup, here = self._sealed
        later = {key: state for key, state in self.backup.items() if key not in here}
        self.backup = later | backup
        self.history = (*self.history, epoch)
        assert self.history == self._watcher.histories[turn]


@contextmanager
def _left_alone(runtime: Any) -> Iterator[None]:
    """What is to be undone in a remote store before it is read is not undone because somebody looks."""
    table = getattr(runtime, "_table", None)
    if not isinstance(table, RemoteTable):
        yield
        return
    server: Any = cast(Any, table.place.remote).server
    data = server.data
    server.data = {name: dict(held) for name, held in data.items()}
    stores = [cast(RemoteStore, store) for store in table.stores.values()]
    kept = [(store, store.at, store.expected, store.back, store.undoes) for store in stores]
    try:
        yield
    finally:
        server.data = data
        for store, at, expected, back, undoes in kept:
            store.at, store.expected, store.back, store.undoes = at, expected, back, undoes


def _apply(backup: Plain, change: Any) -> None:
    for key in change.removed:
        del backup[key]
    for key, entries in change.entries.items():
        state = {} if key in change.created else copy.deepcopy(backup[key])
        for name, entry in entries.items():
            state[name] = apply_changes(state[name], entry) if name in state else entry
        backup[key] = state
