"""Whatever operator code does to what expires, in any history, it is what a plain model says: entry by entry, by time.

The model holds each entry beside its expiry. The state under test goes through commits, rolled-back epochs, moves to
another worker and restores; epochs are random batches of operations on random keys.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shelves import drop, shelved
from tests.simulator.chance import Chance

import bedload as bl
from bedload.core.epoch import EpochTime
from bedload.core.ids import Epoch, KeyGroup, OperatorName, WorkerId
from bedload.protocol.split import with_groups
from bedload.state.timers import TimerClock
from bedload.state.ttl import Ttl
from bedload.store.deltas import OP
from bedload.worker.row_runtime import Deployment, OperatorRuntime

GROUPS = 4
ALL = [KeyGroup(i) for i in range(GROUPS)]
TTL = 7
KEYS = "abc"

Real, Model = Callable[[Any], None], Callable[[Any, int], None]
SCRIPT: list[Real] = []
"""What the rows of the epoch under way do."""


@dataclasses.dataclass
class Point:
    x: int = 0


def operator_of(refresh: Any, clock: Any, *, small: bool) -> type[bl.Operator]:
    lives: Any = {"ttl": f"{TTL} milliseconds", "clock": clock, "refresh": refresh}

    def process(self: Any, key: Any, rows: Any, ctx: Any) -> None:
        for row in rows:
            self.rows += 1
            SCRIPT[row.op](self)

    if small:

        class Small(bl.Operator):
            rows: int = bl.value(0)
            v: int = bl.value(3, **lives)

        Small.process = process  # type: ignore[method-assign]
        return Small

    class Each(bl.Operator):
        rows: int = bl.value(0)
        v: int = bl.value(3, **lives)
        m: dict[str, int] = bl.map(**lives)
        n: dict[str, list[int]] = bl.map(**lives)
        s: set[int] = bl.set(**lives)
        c: Counter[str] = bl.counter(**lives)
        i: list[int] = bl.list(**lives)
        d: deque[int] = bl.deque(maxlen=4, **lives)
        h: bl.Heap[int] = bl.heap(maxlen=6, **lives)
        p: Point = bl.value(Point(), **lives)
        w: np.ndarray = bl.array(2, "int64", **lives)

    Each.process = process  # type: ignore[method-assign]
    return Each


class Entries(dict[Any, list[Any]]):
    """Entry to value and expiry."""


class Wanted:
    """What a key must have: of each variable the entries with their expiries."""

    def __init__(self) -> None:
        self.rows, self.key = 0, 0
        self.v: list[Any] = [3, 0]
        self.p: list[Any] = [0, 0]
        self.w: list[Any] = [[0, 0], 0]
        self.m, self.n, self.s, self.c = Entries(), Entries(), Entries(), Entries()
        self.i: list[list[Any]] = []
        self.d: list[list[Any]] = []
        self.h: list[list[Any]] = []

    def open(self, now: int, fresh: int) -> None:
        """An epoch that has begun to count: what is due is gone, what is not counted counts."""
        for name, default in (("v", 3), ("p", 0), ("w", [0, 0])):
            value, at = getattr(self, name)
            if at and at <= now:
                setattr(self, name, [default, 0])
            elif not at and value != default:
                setattr(self, name, [value, fresh])
        for entries in (self.m, self.n, self.s, self.c):
            for key, (value, at) in list(entries.items()):
                entries[key] = [value, at or fresh]
                if at and at <= now:
                    del entries[key]
        for name in "idh":
            setattr(self, name, [[v, at or fresh] for v, at in getattr(self, name) if not at or at > now])

    def check(self, state: dict[str, Any], hidden: str) -> None:
        def expiry(name: str) -> Any:
            return state[f"{hidden}_{name}"]

        assert state["rows"] == self.rows
        assert [state["v"], expiry("v")] == self.v
        if "m" not in state:
            return
        assert [state["p"].x, expiry("p")] == self.p
        assert [state["w"].tolist(), expiry("w")] == self.w
        for name in "mnsc":
            wanted: Entries = getattr(self, name)
            found = set(wanted) if name == "s" else {key: value for key, (value, _) in wanted.items()}
            assert state[name] == found, name
            assert expiry(name) == {key: at for key, (_, at) in wanted.items() if at}, name
        for name in "idh":
            pairs = [[v, at] for v, at in zip(state[name], expiry(name), strict=True)]
            assert (sorted(pairs) if name == "h" else pairs) == (
                sorted(getattr(self, name)) if name == "h" else getattr(self, name)
            ), name


def ops(rng: Chance, numbers: Any, *, small: bool, reads: bool) -> tuple[Real, Model]:
    """One thing to do, and what it does to the model: to entries, with the expiry that a write gives."""
    k, x, i = rng.pick("xyzuvw"), rng.number(0, 4), rng.number(0, 5)
    fresh = next(numbers)
    more = {rng.pick("xyzuvw"): rng.number(0, 8) for _ in range(rng.number(0, 3))}
    few = {rng.number(0, 4) for _ in range(rng.number(0, 3))}

    def put(entries: Entries, key: Any, value: Any, at: int) -> None:
        entries[key] = [value, at]

    def assign(self: Any, name: str, value: Any) -> None:
        setattr(self, name, value)

    values: list[tuple[Real, Model]] = [
        (lambda o: assign(o, "v", x), lambda w, at: assign(w, "v", [x, at])),
        (lambda o: assign(o, "v", o.v), lambda w, at: assign(w, "v", [w.v[0], at])),
        (lambda o: None, lambda w, at: None),
    ]
    if reads:
        values.append((lambda o: o.v, lambda w, at: w.v.__setitem__(1, at)))
    if small:
        return rng.pick(values)

    def same(name: str) -> tuple[Real, Model]:
        def real(o: Any) -> None:
            found = getattr(o, name)
            if k in found:
                found[k] = found[k]

        def model(w: Any, at: int) -> None:
            if k in getattr(w, name):
                getattr(w, name)[k][1] = at

        return real, model

    def gone(name: str, real: Real, key: Any) -> tuple[Real, Model]:
        return real, lambda w, at: getattr(w, name).pop(key, None)

    def updated(w: Any, at: int) -> None:
        for key, value in more.items():
            put(w.m, key, value, at)

    def counted(w: Any, sign: int, at: int) -> None:
        for key, value in more.items():
            put(w.c, key, w.c.get(key, [0])[0] + sign * value, at)

    def added(w: Any, at: int) -> None:
        counted(w, 1, at)
        for key in [key for key, (value, _) in w.c.items() if value <= 0]:
            del w.c[key]

    def toggled(w: Any, at: int) -> None:
        for value in few:
            if value in w.s:
                del w.s[value]
            else:
                put(w.s, value, value, at)

    def kept(w: Any, at: int) -> None:
        for value in list(w.s):
            if value not in few:
                del w.s[value]

    entries: list[tuple[Real, Model]] = [
        (lambda o: o.m.__setitem__(k, x), lambda w, at: put(w.m, k, x, at)),
        same("m"),
        gone("m", lambda o: o.m.pop(k, None), k),
        (lambda o: o.m.update(more), updated),
        (lambda o: o.m.clear(), lambda w, at: w.m.clear()),
        (lambda o: assign(o, "m", dict(more)), lambda w, at: (w.m.clear(), updated(w, at))),
        (lambda o: o.m.setdefault(k, x), lambda w, at: w.m.setdefault(k, [x, at])),
        (
            lambda o: o.n.setdefault(k, []).append(x),
            lambda w, at: put(w.n, k, [*w.n.get(k, [[]])[0], x], at),
        ),
        same("n"),
        gone("n", lambda o: o.n.pop(k, None), k),
        (lambda o: o.s.add(x), lambda w, at: put(w.s, x, x, at)),
        gone("s", lambda o: o.s.discard(x), x),
        (lambda o: o.s.update(few), lambda w, at: [put(w.s, e, e, at) for e in few]),
        (lambda o: o.s.symmetric_difference_update(few), toggled),
        (lambda o: o.s.intersection_update(few), kept),
        (lambda o: o.s.clear(), lambda w, at: w.s.clear()),
        (lambda o: o.c.update([k]), lambda w, at: put(w.c, k, w.c.get(k, [0])[0] + 1, at)),
        (lambda o: o.c.update(more), lambda w, at: counted(w, 1, at)),
        (lambda o: o.c.subtract(more), lambda w, at: counted(w, -1, at)),
        same("c"),
        gone("c", lambda o: o.c.pop(k, None), k),
        (lambda o: setattr(o.p, "x", x), lambda w, at: assign(w, "p", [x, at])),
        (lambda o: assign(o, "p", Point(x)), lambda w, at: assign(w, "p", [x, at])),
        (lambda o: assign(o, "w", np.full(2, x)), lambda w, at: assign(w, "w", [[x, x], at])),
        (lambda o: o.w.__setitem__(0, o.w[0] + 1), lambda w, at: assign(w, "w", [[w.w[0][0] + 1, w.w[0][1]], at])),
        (lambda o: o.c.__iadd__(Counter(more)), added),
    ]

    def each(name: str, do: Callable[[Any], Any], alike: Callable[[Any, int], Any]) -> tuple[Real, Model]:
        def real(o: Any) -> None:
            do(getattr(o, name))

        def model(w: Any, at: int) -> None:
            items = getattr(w, name)
            alike(items, at)
            if name == "d":
                del items[: max(0, len(items) - 4)]

        return real, model

    def at_place(do: Callable[[Any, int], None]) -> Callable[..., None]:
        def run(items: Any, *at: Any) -> None:
            if items:
                do(items, i % len(items), *at)

        return run

    def rotated(items: list[Any]) -> None:
        items[:] = items[-(x % len(items)) :] + items[: -(x % len(items))] if items and x % len(items) else items

    def pushed_left(items: Any, at: int) -> None:
        items.insert(0, [x, at])
        del items[4:]

    both: list[tuple[Real, Model]] = []
    for name in "id":
        both += [
            each(name, lambda it: it.append(x), lambda it, at: it.append([x, at])),
            each(name, lambda it: it.extend(list(few)), lambda it, at: it.extend([e, at] for e in list(few))),
            each(name, at_place(lambda it, p: it.__delitem__(p)), lambda it, at: at_place(lambda t, p: t.pop(p))(it)),
            each(
                name,
                at_place(lambda it, p: it.__setitem__(p, it[p])),
                lambda it, at: at_place(lambda t, p: t[p].__setitem__(1, at))(it),
            ),
            each(
                name,
                at_place(lambda it, p: it.__setitem__(p, x)),
                lambda it, at: at_place(lambda t, p: t.__setitem__(p, [x, at]))(it),
            ),
            each(name, lambda it: it.reverse(), lambda it, at: it.reverse()),
            each(name, lambda it: it.clear(), lambda it, at: it.clear()),
        ]
    both += [
        each("i", lambda it: it.insert(i, x), lambda it, at: it.insert(i, [x, at])),
        each("i", lambda it: it.sort(), lambda it, at: it.sort(key=lambda pair: pair[0])),
        each("i", lambda it: it.sort(reverse=True), lambda it, at: it.sort(key=lambda pair: pair[0], reverse=True)),
        each("i", lambda it: it.__imul__(2), lambda it, at: it.extend([v, at] for v, _ in list(it))),
        each("i", lambda it: it.__setitem__(slice(1, 3), [7]), lambda it, at: it.__setitem__(slice(1, 3), [[7, at]])),
        each("i", lambda it: it.pop() if it else None, lambda it, at: it.pop() if it else None),
        each("d", lambda it: it.appendleft(x), pushed_left),
        each("d", lambda it: it.popleft() if it else None, lambda it, at: it.pop(0) if it else None),
        each("d", lambda it: it.rotate(x), lambda it, at: rotated(it)),
        (lambda o: assign(o, "i", [x, i]), lambda w, at: assign(w, "i", [[x, at], [i, at]])),
    ]

    def smallest(items: Any) -> None:
        if items:
            items.remove(min(items))

    def pushed(items: Any, at: int) -> None:
        items.append([fresh, at])
        if len(items) > 6:
            smallest(items)

    heaps = [
        each("h", lambda it: it.push(fresh), pushed),
        each("h", lambda it: it.pop() if it else None, lambda it, at: smallest(it)),
        each("h", lambda it: it.pushpop(fresh), lambda it, at: (it.append([fresh, at]), smallest(it))),
        each(
            "h",
            lambda it: it.replace(fresh) if it else None,
            lambda it, at: (smallest(it), it.append([fresh, at])) if it else None,
        ),
    ]
    reading: list[tuple[Real, Model]] = []
    if reads:

        def renewed(w: Any, at: int) -> None:
            if k in w.m:
                w.m[k][1] = at

        def all_renewed(name: str) -> Model:
            def model(w: Any, at: int) -> None:
                found = getattr(w, name)
                for pair in found.values() if isinstance(found, dict) else found:
                    pair[1] = at

            return model

        reading = [
            (lambda o: o.m.get(k), renewed),
            (lambda o: k in o.m, renewed),
            (lambda o: o.m[k] if o.m.get(k) is not None else None, renewed),
            (lambda o: list(o.m.items()), all_renewed("m")),
            (lambda o: list(o.s), all_renewed("s")),
            (lambda o: list(o.i), all_renewed("i")),
            (lambda o: list(o.d), all_renewed("d")),
            (lambda o: list(o.h), all_renewed("h")),
            (lambda o: o.p.x, all_of_value("p")),
        ]
        # What only a write means is of no use here: to know what it writes it reads.
        entries = [entries[at] for at in range(len(entries)) if at not in (1, 6, 7, 8, 19)]
        both, heaps = [both[0], both[6], both[7]], heaps[:1]
    return rng.pick([*values, *entries, *both, *heaps, *reading])


def all_of_value(name: str) -> Model:
    return lambda w, at: getattr(w, name).__setitem__(1, at)


class Side:
    """A worker."""

    def __init__(self, deployment: Deployment) -> None:
        self.runtime: OperatorRuntime = deployment.start(WorkerId(0))
        self.keys: set[str] = set()


FORM = pa.schema([("key", pa.string()), ("op", pa.int64())])


class Meeting:
    """An epoch, as keys see it when they are first touched."""

    def __init__(self, state: dict[str, Wanted], now: int, begun: bool, key_ttl: bool) -> None:
        self._state, self._now, self._begun, self._key_ttl = state, now, begun, key_ttl
        self._met = set[str]()

    def __call__(self, key: str) -> None:
        state = self._state.get(key)
        if key in self._met or state is None or not self._begun:
            self._met.add(key)
            return
        self._met.add(key)
        if self._key_ttl and 0 < state.key <= self._now:
            del self._state[key]
            return
        state.key = (state.key or self._now + TTL + 4) if self._key_ttl else 0
        state.open(self._now, self._now + TTL)


def history(seed: int, *, refresh: Any, clock: Any, small: bool, key_ttl: bool) -> None:
    rng = Chance(seed)
    operator = operator_of(refresh, clock, small=small)
    which = TimerClock(clock)
    lives = Ttl(TTL + 4, which) if key_ttl else None
    deployment = Deployment(
        OperatorName("Each"),
        operator,
        (0,),
        ("key", "op"),
        pa.schema([("key", pa.string())]),
        (pa.string(),),
        ttl=lives,
    )
    hidden = "bedload_ttl" if clock == "processing" else "bedload_event_ttl"
    sides = [Side(deployment), Side(deployment)]
    here, wanted = 0, dict[str, Wanted]()
    now, numbers = (0 if clock == "event" and rng.happens(0.5) else 10), iter(range(10**6))
    numbers_of_heaps = ((n * 7919) % 10007 for n in numbers)
    for number in range(rng.number(3, 15)):
        now += rng.pick([0, 1, 2, 3, 8]) if now else rng.pick([0, 0, 20])
        if clock == "processing" and rng.happens(0.15):
            now = max(1, now - rng.number(1, 9))  # a machine's clock is set back
        time = EpochTime(now, 5) if clock == "event" else EpochTime(0, now)
        begun = clock == "processing" or now > 0
        at = now + TTL if begun else 0
        runtime = sides[here].runtime
        for attempt in range(rng.pick([1, 1, 2])):
            after = copy.deepcopy(wanted)
            runtime.begin(Epoch(number), ALL)
            runtime.set_time(time)
            meet = Meeting(after, now, begun, key_ttl)
            for _ in range(rng.number(0, 2)):
                SCRIPT.clear()
                rows = []
                for _ in range(rng.number(1, 8)):
                    key = rng.pick(KEYS)
                    meet(key)
                    real, model = ops(rng, numbers_of_heaps, small=small, reads=refresh == "read")
                    rows.append((key, len(SCRIPT)))
                    SCRIPT.append(real)
                    state = after.setdefault(key, Wanted())
                    state.rows += 1
                    state.key = (now + TTL + 4 if begun else 0) if key_ttl else 0
                    model(state, at)
                keys, numbers_of_ops = zip(*rows, strict=True)
                batch = pa.record_batch([pa.array(keys), pa.array(numbers_of_ops)], schema=FORM)
                runtime.apply(with_groups(batch, (0,), GROUPS))
            for key in list(after):
                meet(key)
            runtime.seal()
            if attempt == 0 and rng.happens(0.4):
                runtime.abort()
                assert {key: state["rows"] for key, state in runtime.snapshot()} == {
                    k: w.rows for k, w in wanted.items()
                }
                continue
            runtime.delta()
            runtime.commit()
            wanted = after
            break
        found = dict(runtime.snapshot())
        assert found.keys() == wanted.keys()
        for key, state in found.items():
            wanted[key].check(state, hidden)
            if key_ttl:
                assert state[hidden] == wanted[key].key
        if rng.happens(0.4):  # to another worker, or to a new one, as after a restore
            shelf = shelved(runtime, ALL)
            batch, _ = shelf.collect_range(0, len(shelf.hashes))
            if rng.happens(0.5):
                here = 1 - here
                if batch is not None:
                    sides[here].runtime.take_in(batch)
                drop(shelf)
                runtime.drop(ALL)
            else:
                sides[here] = Side(deployment)
                sides[here].runtime.install(ALL, None if batch is None else batch.drop_columns([OP]))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(["processing", "event"]), st.booleans(), st.booleans())
def test_entries_and_keys_live_as_a_model_says(seed: int, clock: str, small: bool, key_ttl: bool) -> None:
    history(seed, refresh="write", clock=clock, small=small, key_ttl=key_ttl)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(["processing", "event"]), st.booleans())
def test_with_reading_counted_too(seed: int, clock: str, small: bool) -> None:
    history(seed, refresh="read", clock=clock, small=small, key_ttl=False)
