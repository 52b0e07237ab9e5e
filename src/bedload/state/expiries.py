"""When entries expire: the hidden variables that say so, and what is done to the object of a key because of them.

Beside each variable with a TTL lies a hidden one: of a map, a counter or a set a map from entry to time, of a list, a
deque or a heap the list of the times of its items, of all others a time. The time is in milliseconds since 1970; an
entry without one, or with 0, is not counted yet. So expiries are rolled back, written, moved and restored as all state
is. A key with a TTL has one time, `bedload_ttl` or `bedload_event_ttl`, as it has in columns.

Invariants, at the end of an epoch: what the epoch has written has the expiry that the time of the epoch gives; nothing
else has another one than before; what is not there has none.

The time of an epoch is one value. So what is due can be taken out once, before operator code sees the key, and what is
written can be counted once, in the seal: nothing is done with the write itself. Scalars are the exception: of one that
was assigned again nothing would tell, so their attribute is a property that sets the expiry, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from bedload.core.epoch import EpochTime
from bedload.state.alike import alike, pair_entries, plain_form, was_changed
from bedload.state.arrays import differ
from bedload.state.handling import handling
from bedload.state.heap import Heap
from bedload.state.journal import MISSING, Journal
from bedload.state.kinds import VariableKind
from bedload.state.lasting import count_puts
from bedload.state.lasting_sequences import NEW
from bedload.state.live import ENTRIES, ITEMS
from bedload.state.specs import StateSpec
from bedload.state.timers import EXPIRIES, TimerClock
from bedload.state.ttl import CODE, UNCOUNTED, Ttl, is_expiry, reached
from bedload.state.types import CounterNode, ListNode, MapNode, ScalarNode, SetNode

if TYPE_CHECKING:
    from bedload.state.record import RecordLayout

NEVER: Final = 2**63 - 1
ARMED: Final = {TimerClock.PROCESSING: "_bedload_armed", TimerClock.EVENT: "_bedload_event_armed"}
"""Slots of an object: before when nothing of it is due, as far as the index of its store knows."""

_INT = ScalarNode(int)


def hidden_name(name: str, clock: TimerClock) -> str:
    """The variable of when the entries of a variable expire. An expiry by one clock means nothing by the other."""
    return f"{EXPIRIES[clock]}_{name}"


def with_expiries(specs: tuple[StateSpec, ...], key: Ttl | None = None) -> tuple[StateSpec, ...]:
    """Variables, and behind them those of their expiries; ``key`` is the TTL of whole keys."""
    hidden = [_hidden(spec, spec.ttl) for spec in specs if spec.ttl is not None]
    if key is not None:
        hidden.append(StateSpec(EXPIRIES[key.clock], VariableKind.VALUE, _INT, UNCOUNTED, None, None, ttl=key))
    return (*specs, *hidden)


def _hidden(spec: StateSpec, ttl: Ttl) -> StateSpec:
    name = hidden_name(spec.name, ttl.clock)
    before = None if spec.renamed_from is None else hidden_name(spec.renamed_from, ttl.clock)
    if spec.kind in ITEMS:
        most = None if spec.kind is VariableKind.HEAP else spec.maxlen
        return StateSpec(name, VariableKind.LIST, ListNode(_INT, most), None, most, None, before)
    if spec.kind in ENTRIES:
        assert isinstance(spec.type, MapNode | CounterNode | SetNode)
        entry = spec.type.item if isinstance(spec.type, SetNode) else spec.type.key
        # Its entries are those of the variable, which are checked there.
        return StateSpec(name, VariableKind.MAP, MapNode(entry, _INT), None, None, None, before, checked=True)
    return StateSpec(name, VariableKind.VALUE, _INT, UNCOUNTED, None, None, before)


class _Lasting:
    """A variable that expires, or of which entries do."""

    __slots__ = ("at", "begun", "clock", "expiry", "index", "name", "now", "place", "slot", "ttl", "variable", "when")

    def __init__(self, ttl: Ttl, variable: Any, expiry: str, index: int, when: int, place: int) -> None:
        self.ttl = ttl
        self.clock = ttl.clock
        self.name, self.expiry = variable.name, expiry
        self.index, self.when = index, when
        """Of the variable and of its expiry, in an image."""
        self.place = place
        """Of the variable, on an object."""
        self.variable = variable
        self.slot = ARMED[ttl.clock]
        self.at, self.now, self.begun = UNCOUNTED, 0, False

    def begin(self, time: EpochTime) -> None:
        """An epoch begins."""
        self.at, self.now, self.begun = self.ttl.expiry(time), self.clock.now(time), self.ttl.begun(time)

    def first(self, row: Any) -> int:
        """When something of an object expires first; 0: something is not counted; :data:`NEVER`."""
        return self.first_of(getattr(row, self.name), getattr(row, self.expiry))

    def first_of(self, value: Any, expiry: Any) -> int:
        """The same for a value and its expiries."""
        raise NotImplementedError

    def expire(self, row: Any, journal: Journal) -> None:
        """Take out what is due of an object, if anything is, and begin to count what is not counted."""
        raise NotImplementedError

    def stamp(self, row: Any, before: tuple[Any, ...] | None) -> bool:
        """Count what the epoch has written in an object; whether there was anything. ``before``: None if it is new."""
        raise NotImplementedError

    def stamp_all(self, rows: Iterable[Any], absent: Any) -> list[Any]:
        """The same for many, with their images; those that are due earlier than the index knows."""
        written = [row for row in rows if self.stamp(row, None if row._bedload_image is absent else row._bedload_image)]
        return self._earlier(written if self.begun else rows)

    def _earlier(self, rows: Iterable[Any]) -> list[Any]:
        slot, at = self.slot, self.at
        earlier = [row for row in rows if at < getattr(row, slot)]
        for row in earlier:
            setattr(row, slot, at)
        return earlier


class _Key(_Lasting):
    """The key itself."""

    __slots__ = ()

    def first_of(self, value: Any, expiry: Any) -> int:
        return int(expiry)

    def stamp(self, row: Any, before: tuple[Any, ...] | None) -> bool:
        return before is None or getattr(row, self.expiry) != before[self.index]


class _Value(_Lasting):
    """A variable that goes back to its default."""

    __slots__ = ("_default",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._default = self.variable.spec.fresh_default()

    def first_of(self, value: Any, expiry: Any) -> int:
        if expiry:
            return int(expiry)
        return NEVER if self._is_default(value) else UNCOUNTED

    def _is_default(self, value: Any) -> bool:
        variable = self.variable
        if variable.encode is not None:
            return bool(variable.encode(value) == variable.encode(self._default))
        if variable.array is not None:
            return not differ(value, self._default)
        return alike(variable.spec.type, plain_form(value), self._default)

    def expire(self, row: Any, journal: Journal) -> None:
        first = self.first(row)
        if first == UNCOUNTED:
            setattr(row, self.expiry, self.at)
        elif first <= self.now:
            setattr(row, self.name, self.variable.fresh(journal, id(row) + self.place))
            setattr(row, self.expiry, UNCOUNTED)

    def stamp(self, row: Any, before: tuple[Any, ...] | None) -> bool:
        old = UNCOUNTED if before is None else before[self.when]
        if self._in_place(row, before):
            setattr(row, self.expiry, self.at)
        new = getattr(row, self.expiry)
        return bool(new != UNCOUNTED and new != old)

    def _in_place(self, row: Any, before: tuple[Any, ...] | None) -> bool:
        """Whether the value was changed in place; assignments have set the expiry already."""
        variable, value = self.variable, getattr(row, self.name, MISSING)
        if value is MISSING:
            return False
        if variable.live is not None:
            return was_changed(value)
        if variable.encode is None and variable.array is None:
            return False
        expired = before is not None and getattr(row, self.expiry) == UNCOUNTED != before[self.when]
        if before is None or expired:  # SUBTLE: then it was the default, and may be by now what it was before
            return not self._is_default(value)
        old = before[self.index]
        return differ(value, old) if variable.encode is None else bool(variable.encode(value) != old)

    def watch(self, cls: Any) -> None:
        """Have assignments to the attribute set its expiry, and reads where they count."""
        place, expiry = getattr(cls, self.name), getattr(cls, self.expiry)
        put, mark, get = place.__set__, expiry.__set__, place.__get__
        only_code = self.variable.array is not None  # what goes round operator code assigns arrays, too

        def assign(row: Any, value: Any) -> None:
            put(row, value)
            mark(row, self.at)

        def assign_in_code(row: Any, value: Any) -> None:
            put(row, value)
            if CODE.runs:
                mark(row, self.at)

        def read(row: Any) -> Any:
            if CODE.runs:
                mark(row, self.at)
            return get(row)

        reader = read if self.ttl.refresh == "read" else get
        setattr(cls, self.name, property(reader, assign_in_code if only_code else assign, place.__delete__))


class _Entries(_Lasting):
    """A map, a counter or a set."""

    __slots__ = ("_parts",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._parts = attrgetter(self.name, self.expiry, "_bedload_image")

    def stamp_all(self, rows: Iterable[Any], absent: Any) -> list[Any]:
        if self.at == UNCOUNTED:
            return super().stamp_all(rows, absent)
        try:
            done, others = count_puts(rows, self._parts, self.index, absent, self.at)
        except AttributeError:  # code has deleted the attribute of some
            return super().stamp_all(rows, absent)
        return self._earlier(done) + super().stamp_all(others, absent)

    def first_of(self, value: Any, expiry: Any) -> int:
        return UNCOUNTED if len(expiry) < len(value) else min(expiry.values(), default=NEVER)

    def expire(self, row: Any, journal: Journal) -> None:
        value, expiry = getattr(row, self.name), getattr(row, self.expiry)
        if len(expiry) < len(value):
            value._bl_renew([key for key in value if not expiry.get(key)])
        if due := [key for key, at in expiry.items() if at <= self.now]:
            for key in due:
                if key not in value:  # nothing else would ever take it out
                    del expiry[key]
            value._bl_drop(due)

    def stamp(self, row: Any, before: tuple[Any, ...] | None) -> bool:
        value, expiry = getattr(row, self.name, ()), getattr(row, self.expiry)
        if before is None or value is not before[self.index]:
            # It may have been deleted, or be of another type: then whoever seals does or says what is right.
            written: Iterable[Any] = value if isinstance(value, dict | set) else ()
            gone: Iterable[Any] = [key for key in expiry if key not in written]
        elif value._bl_log is None:
            return False
        else:
            written, gone = value._bl_written(), value._bl_gone()
        if self.at == UNCOUNTED:
            gone, written = (*gone, *written), ()
        if written:
            expiry._bl_put(written, self.at)
        for key in gone:
            expiry.pop(key, None)
        return bool(written)


class _Items(_Lasting):
    """A list, a deque or a heap."""

    __slots__ = ("_item",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._item = handling(self.variable.spec.type.item)

    def first_of(self, value: Any, expiry: Any) -> int:
        return UNCOUNTED if len(expiry) != len(value) else min(expiry, default=NEVER)

    def expire(self, row: Any, journal: Journal) -> None:
        value, expiry = getattr(row, self.name), list(getattr(row, self.expiry))
        if len(expiry) != len(value):
            value._bl_renew(range(len(value)))
        elif any(at <= self.now for at in expiry):
            value._bl_renew([place for place, at in enumerate(expiry) if at == UNCOUNTED])
            value._bl_drop([place for place, at in enumerate(expiry) if UNCOUNTED < at <= self.now])

    def stamp(self, row: Any, before: tuple[Any, ...] | None) -> bool:
        value, expiry = getattr(row, self.name, ()), getattr(row, self.expiry)
        if before is None or value is not before[self.index]:
            size = len(value) if isinstance(value, list | deque | Heap) else 0
            made = [self.at] * min(size, self.variable.spec.maxlen or size)  # what is more goes when it is adopted
        elif value._bl_log is None:
            return False
        else:
            log, how = value._bl_log, self._item
            old = list(expiry) if expiry._bl_log is None else expiry._bl_committed()
            old = old if len(old) == len(log) else [UNCOUNTED] * len(log)
            made = [self.at if tag == NEW else old[tag] for tag in log.tags]
            if how is not None:
                made = [self.at if how.dirty(item) else at for item, at in zip(list(value), made, strict=True)]
        if made != list(expiry):
            if made[: len(expiry)] == list(expiry):
                expiry.extend(made[len(expiry) :])
            else:
                expiry[:] = made
        return bool(made)


class Expiries:
    """All that expires of an operator on rows."""

    def __init__(self, layout: RecordLayout, variables: Sequence[Any], numbers: Sequence[int]) -> None:
        self.key: _Lasting | None = None
        """The TTL of whole keys."""
        self.variables: list[_Lasting] = []
        for i, variable in enumerate(variables):
            spec: StateSpec = variable.spec
            if spec.ttl is None:
                continue
            if is_expiry(spec.name):
                self.key = _Key(spec.ttl, variable, spec.name, i, i, numbers[i])
                continue
            kind = _Entries if spec.kind in ENTRIES else _Items if spec.kind in ITEMS else _Value
            expiry = hidden_name(spec.name, spec.ttl.clock)
            self.variables.append(kind(spec.ttl, variable, expiry, i, layout.names.index(expiry), numbers[i]))
        self.all = [*self.variables, *([] if self.key is None else [self.key])]
        self.clocks = tuple({it.clock: None for it in self.all})
        self.hidden = frozenset(it.expiry for it in self.all)
        """The variables of expiries."""
        self.watches_code = any(it.ttl.refresh == "read" or it.variable.array is not None for it in self.variables)
        """Whether it has to be known when operator code runs."""
        self.time = EpochTime(0, 0)

    def begin(self, time: EpochTime) -> None:
        """The time of the epoch that has begun."""
        self.time = time
        for it in self.all:
            it.begin(time)

    def now(self, clock: TimerClock) -> int | None:
        """What a clock says in the epoch; None: nothing yet."""
        return reached(clock, self.time)

    def watch(self, cls: Any) -> None:
        """Make the class of the per-key objects one whose attributes know when they are assigned."""
        for it in self.variables:
            if isinstance(it, _Value):
                it.watch(cls)

    def fresh(self, row: Any) -> None:
        """An object is new: nothing of it is in the index of its store."""
        for clock in self.clocks:
            setattr(row, ARMED[clock], NEVER)

    def renew(self, rows: Iterable[Any]) -> None:
        """These keys have rows."""
        if self.key is not None:
            name, at = self.key.expiry, self.key.at
            for row in rows:
                setattr(row, name, at)

    def first_by(self, clock: TimerClock) -> Callable[[Any], int]:
        """What says when something of an object expires first by a clock: as :meth:`_Lasting.first`."""
        each = [it.first for it in self.all if it.clock is clock]
        return each[0] if len(each) == 1 else lambda row: min(first(row) for first in each)

    def pair(self, values: Mapping[str, Sequence[Any]]) -> None:
        """The plain values of keys that are about to be put in: what says when something expires gets to mean it."""
        for it in self.variables:
            if isinstance(it, _Entries) and it.name in values and it.expiry in values:
                pair_entries(it.variable.spec.type, values[it.name], values[it.expiry])

    def firsts_of(self, clock: TimerClock, count: int, values: Mapping[str, Sequence[Any]]) -> list[int]:
        """The same for many keys, of their plain values; what may be uncounted is taken for that."""
        found = [NEVER] * count
        for it in self.all:
            if it.clock is clock:
                expiries = values.get(it.expiry)
                if expiries is None:
                    return [UNCOUNTED] * count
                pairs = zip(values.get(it.name, expiries), expiries, found, strict=True)
                found = [min(it.first_of(value, expiry), first) for value, expiry, first in pairs]
        return found

    def ripe(self, row: Any) -> bool:
        """Whether something of an object is due, or has to be counted from now on."""
        return any(it.begun and it.first(row) <= it.now for it in self.all)

    def expire(self, row: Any, journal: Journal) -> bool:
        """Take out what is due of an open object, and begin to count what is not; False: all of the key is due."""
        key = self.key
        if key is not None and key.begun:
            first = key.first(row)
            if first == UNCOUNTED:
                setattr(row, key.expiry, key.at)
            elif first <= key.now:
                return False
        for it in self.variables:
            if it.begun:
                it.expire(row, journal)
        return True
