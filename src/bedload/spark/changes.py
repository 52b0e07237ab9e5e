"""Changes of a running cluster as users see them: what they ask for, a handle on it, and what came of it.

Invariants: a wish that is wrong whatever the cluster looks like is refused by the call itself
(:class:`DefinitionError`), and so is one that the coordinator refuses at once; one that had to wait is refused when
its turn comes, by :meth:`Change.wait`. A handle asks the coordinator and keeps no state of its own.
"""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from bedload.control.phases import ChangePhase
from bedload.control.seen import Seen
from bedload.control.wish import Kind, Wish
from bedload.core.errors import (
    BedloadError,
    ClusterStopped,
    DefinitionError,
    MoveCancelled,
    Timeout,
    UnknownOperator,
)
from bedload.core.ids import NO_CHANGE, ChangeId, KeyGroup, KeyHash, OperatorName, WorkerId
from bedload.migration import AUTO, Auto, Strategy, strategy_named
from bedload.migration.record import MoveRecord
from bedload.migration.strategies import restarts
from bedload.spark.results import MoveResult, size_of

_SHOWN_EVERY_SECONDS = 0.1
WAIT_SECONDS = 3600.0
"""How long to wait for what a cluster does in the background, unless told."""


class Carrier(Protocol):
    """Who carries changes out: the driver."""

    def change(self, wish: Wish) -> tuple[ChangeId, Future[tuple[MoveRecord, ...]]]:
        """Take a wish: its number, and what became of it."""
        ...

    def cancel(self, number: ChangeId) -> bool:
        """Call a change off; whether that could still be done."""
        ...

    def seen(self, number: ChangeId) -> Seen:
        """Where a change is, how much of it is done, and what it waits for."""
        ...


class Keyed(Protocol):
    """An operator's state, as far as keys go."""

    def hash_of(self, key: Any) -> KeyHash:
        """The hash of a key."""
        ...


class Change:
    """A change of a running cluster, under way or over. The query goes on meanwhile."""

    def __init__(self, carrier: Carrier, number: ChangeId, what: str, future: Future[tuple[MoveRecord, ...]]) -> None:
        self.number = number
        self.what = what
        self._carrier = carrier
        self._future = future

    def wait(self, timeout: float = WAIT_SECONDS) -> MoveResult:
        """Return what it did when it is over; raises what went wrong, or :class:`Timeout` after so many seconds."""
        try:
            return MoveResult(self.what, self._future.result(timeout))
        except TimeoutError:
            if self._future.done():
                raise
            raise self._late(timeout) from None

    def _late(self, timeout: float) -> Timeout:
        return Timeout(
            f"{self.what} is not over after {timeout:g} seconds ({self.stage}); it goes on. Wait longer, or call "
            f"cancel() while nothing has moved. State moves between two epochs: if a query has failed in one, start it "
            f"again"
        )

    @property
    def done(self) -> bool:
        """Whether it is over, well or not."""
        return self._future.done()

    @property
    def result(self) -> MoveResult | None:
        """What it did; None if it is not over. Raises what went wrong."""
        return self.wait(0) if self.done else None

    @property
    def progress(self) -> float:
        """How much of it is done, from 0 to 1: while state moves, by its bytes."""
        return self._seen().progress

    @property
    def stage(self) -> str:
        """Where it is, in words: what happens, or what it waits for."""
        return _stage(self._seen())

    @property
    def waits_for(self) -> str:
        """What has to happen before it goes on, such as the end of an epoch; empty if it is being worked on."""
        return self._seen().waits_for

    def cancel(self) -> bool:
        """Call it off if nothing has moved yet; whether that could be done. Then :meth:`wait` raises MoveCancelled."""
        return not self.done and self._carrier.cancel(self.number)

    def show(self, timeout: float = WAIT_SECONDS) -> MoveResult:
        """Show its progress until it is over: a bar in a terminal, plain lines elsewhere. Else as :meth:`wait`."""
        console = Console()
        deadline = time.monotonic() + timeout
        if console.is_terminal:
            self._show_bar(console, deadline)
        else:
            self._show_lines(deadline)
        if not self.done:
            raise self._late(timeout)
        result = self.wait(0)
        print(result)
        return result

    def __str__(self) -> str:
        seen = self._seen()
        if not self.done:  # it may be by now
            return f"{self.what}: {_where(seen)}"
        error = self._future.exception()
        if error is None:
            return str(self.wait(0))
        return f"{self.what}: {'called off' if isinstance(error, MoveCancelled) else f'failed: {error}'}"

    def __repr__(self) -> str:
        return f"<{str(self).splitlines()[0]}>"

    def _repr_html_(self) -> str:
        bar = "" if self.done else f'<progress value="{self.progress:.3f}"></progress> '
        return f"{bar}<pre>{html.escape(str(self))}</pre>"

    def _seen(self) -> Seen:
        if self.done:
            return Seen(ChangePhase.OVER, 1.0)
        try:
            return self._carrier.seen(self.number)
        except ClusterStopped:
            return Seen(ChangePhase.OVER, 1.0)

    def _show_bar(self, console: Console, deadline: float) -> None:
        parts = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        with Progress(*parts, console=console, transient=True) as bar:
            task = bar.add_task(self.what, total=1.0)
            while not self.done and time.monotonic() < deadline:
                seen = self._seen()
                bar.update(task, completed=seen.progress, description=f"{self.what}: {_stage(seen)}")
                time.sleep(_SHOWN_EVERY_SECONDS)

    def _show_lines(self, deadline: float) -> None:
        said = None
        while not self.done and time.monotonic() < deadline:
            seen = self._seen()
            news = _stage(seen), int(seen.progress * 10)
            if news != said:
                print(f"{self.what}: {_where(seen)}", file=sys.stdout, flush=True)
                said = news
            time.sleep(_SHOWN_EVERY_SECONDS)


def _stage(seen: Seen) -> str:
    return f"waits for {seen.waits_for}" if seen.waits_for else seen.phase.value


def _where(seen: Seen) -> str:
    """All of it on one line."""
    sent = f", {size_of(seen.sent)} sent" if seen.sent else ""
    return f"{seen.progress:.0%}{sent}, {_stage(seen)}"


class Wishes:
    """Makes wishes out of what users ask for, and handles of what becomes of them."""

    def __init__(
        self,
        carrier: Carrier,
        states: Mapping[OperatorName, Keyed],
        members: Callable[[], tuple[int, bool]],
        room: Callable[[int], None],
    ) -> None:
        """``members``: how many workers there are, and whether a change is under way; ``room``: raise if it lacks."""
        self._carrier = carrier
        self._states = states
        self._members = members
        self._room = room

    def rescale(self, workers: int, strategy: str | Strategy | None) -> Change:
        """So many workers."""
        if not _is_count(workers) or workers < 1:
            raise DefinitionError(f"rescale({workers!r}): give the number of workers that there shall be, at least 1")
        how = strategy_named(strategy)
        what = f"rescale to {workers} worker{'s' if workers > 1 else ''}"
        now, busy = self._members()
        if now == workers and not busy and not restarts(how):
            nothing: Future[tuple[MoveRecord, ...]] = Future()
            nothing.set_result(())
            return Change(self._carrier, NO_CHANGE, what, nothing)
        if workers > now:
            self._room(workers)
        return self._ask(what, Kind.RESCALE, how, workers=workers)

    def move(
        self,
        keys: Iterable[Any] | None,
        key_groups: Iterable[int] | None,
        to: int | str,
        operator: str | type | None,
        strategy: str | Strategy | None,
    ) -> Change:
        """Keys, or key groups, to a worker."""
        if (keys is None) == (key_groups is None):
            raise DefinitionError("move(): give either keys=[...] or key_groups=[...], and to=<worker>")
        if keys is not None:
            return self._place(Kind.MOVE, _several(keys, "keys"), to, "to", operator, strategy)
        assert key_groups is not None
        groups = _several(key_groups, "key_groups")
        if bad := [group for group in groups if not _is_count(group)]:
            raise DefinitionError(f"move(key_groups=...): {bad[0]!r} is not the number of a key group")
        name = self._operator(operator)
        what = f"move of {len(groups)} key group{'s' if len(groups) > 1 else ''} of {name} to worker {to}"
        wanted = tuple(KeyGroup(group) for group in dict.fromkeys(groups))
        how = _in_place(strategy_named(strategy), "move()")
        return self._ask(what, Kind.MOVE, how, worker=_worker(to, "to"), operator=name, groups=wanted)

    def drain(self, worker: int, strategy: str | Strategy | None) -> Change:
        """A worker leaves."""
        how = strategy_named(strategy)
        return self._ask(f"drain of worker {worker}", Kind.DRAIN, how, worker=_worker(worker, "worker"))

    def rebalance(self, strategy: str | Strategy | None) -> Change:
        """Even loads."""
        return self._ask("rebalance", Kind.REBALANCE, _in_place(strategy_named(strategy), "rebalance()"))

    def pin(
        self, keys: list[Any], worker: int | str, operator: str | type | None, strategy: str | Strategy | None
    ) -> Change:
        """Keys live with a worker."""
        return self._place(Kind.PIN, keys, worker, "worker", operator, strategy)

    def _place(
        self,
        kind: Kind,
        keys: list[Any],
        worker: int | str,
        argument: str,
        operator: str | type | None,
        strategy: str | Strategy | None,
    ) -> Change:
        name = self._operator(operator)
        hashes = self._hashes(name, keys)
        how = _in_place(strategy_named(strategy), "move(keys=...)" if kind is Kind.MOVE else "pin()")
        what = f"{kind.value} of {_keys(keys)} of {name} to worker {worker}"
        return self._ask(what, kind, how, worker=_worker(worker, argument), operator=name, keys=hashes)

    def unpin(self, keys: list[Any], operator: str | type | None, strategy: str | Strategy | None) -> Change:
        """Keys live with their key groups again."""
        name = self._operator(operator)
        hashes = self._hashes(name, keys)
        how = _in_place(strategy_named(strategy), "unpin()")
        return self._ask(f"unpin of {_keys(keys)} of {name}", Kind.UNPIN, how, operator=name, keys=hashes)

    def _ask(self, what: str, kind: Kind, strategy: Strategy | Auto, **more: Any) -> Change:
        number, future = self._carrier.change(Wish(kind, strategy, what=what, **more))
        if future.done():
            error = future.exception()
            if isinstance(error, BedloadError):
                raise error
        return Change(self._carrier, number, what, future)

    def _operator(self, operator: str | type | None) -> OperatorName:
        known = ", ".join(sorted(self._states)) or "none"
        if operator is not None:
            name = OperatorName(operator if isinstance(operator, str) else operator.__name__)
            if name not in self._states:
                raise UnknownOperator(f"no operator {name!r} was applied on this cluster; there are: {known}")
            return name
        if not self._states:
            raise DefinitionError(
                "no operator was applied on this cluster yet, so it has no keys: cluster.apply(...) one first"
            )
        if len(self._states) != 1:
            raise DefinitionError(f"say whose keys are meant (operator=...): the operators of this cluster are {known}")
        return next(iter(self._states))

    def _hashes(self, name: OperatorName, keys: list[Any]) -> tuple[KeyHash, ...]:
        state = self._states[name]
        return tuple(dict.fromkeys(state.hash_of(key) for key in keys))


def _in_place(strategy: Strategy | Auto, what: str) -> Strategy | Auto:
    if strategy is not AUTO and strategy.restart:
        raise DefinitionError(
            f"{what} by {strategy.name}: starting all workers anew is for rescale() and drain(); use another strategy"
        )
    return strategy


def _several(items: Iterable[Any], what: str) -> list[Any]:
    if isinstance(items, str | bytes):
        raise DefinitionError(f"move({what}={items!r}): give several in a list, {what}=[{items!r}]")
    try:
        found = list(items)
    except TypeError:
        raise DefinitionError(f"move({what}={items!r}): give several in a list, {what}=[{items!r}]") from None
    if not found:
        raise DefinitionError(f"move({what}=[]): name at least one")
    return found


def _worker(worker: int | str, name: str) -> WorkerId:
    if isinstance(worker, str) and worker.strip().isdecimal():
        raise DefinitionError(f"{name}={worker!r}: workers are numbers, {name}={int(worker)}; see cluster.workers")
    if isinstance(worker, str):
        raise DefinitionError(
            f"{name}={worker!r}: give the number of a worker, one of cluster.workers. A name would be that of a site, "
            f"a place with workers of its own, and all workers of this cluster are in one"
        )
    if not _is_count(worker):
        raise DefinitionError(f"{name}={worker!r}: give the number of a worker, one of cluster.workers")
    return WorkerId(worker)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _keys(keys: list[Any]) -> str:
    return f"key {keys[0]!r}" if len(keys) == 1 else f"{len(keys)} keys"
