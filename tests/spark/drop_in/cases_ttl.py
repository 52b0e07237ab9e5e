"""Time to live: by processing time, of a value, of each element of a list and of each entry of a map.

Batch ``n`` is ``n`` seconds after the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.spark.drop_in.engines import STEP
from tests.spark.drop_in.small import EVENT, NONE, PROCESSING, Now, items, pairs, small, value

TTL = "TTL"
LONG = 1_000_000


@small(TTL, "a value is there until the batch whose time is that of its write and the TTL, or later",
       value("n int", STEP * 3 // 2), value("n int", 2 * STEP), value("n int", LONG),
       sees=[[], [(7,), (7,), (7,)], [None, None, False, False, (7,)]], mode=PROCESSING)  # fmt: skip
def ttl_of_a_value(short: Any, exact: Any, long: Any, now: Now) -> Iterator[Any]:
    if now.batch == 0:
        for it in (short, exact, long):
            it.update((7,))
        return
    yield short.get()
    yield exact.get()
    if now.batch == 2:
        yield short.exists()
        yield exact.exists()
    yield long.get()


@small(TTL, "a write renews a value, a read does not", value("n int", STEP * 3 // 2), value("n int", STEP * 3 // 2),
       sees=[[], [(0,), (0,)], [(1,), None], [None, None]], mode=PROCESSING)  # fmt: skip
def ttl_renewed(written: Any, read: Any, now: Now) -> Iterator[Any]:
    if now.batch > 0:
        yield written.get()
        yield read.get()
    if now.batch == 0:
        read.update((0,))
    if now.batch < 2:
        written.update((now.batch,))


@small(TTL, "what has expired can be written again, and `clear` of it does nothing", value("n int", STEP // 2),
       sees=[[(0,)], [None, (1,)], [None, None, (2,)]], mode=PROCESSING)  # fmt: skip
def ttl_written_again(n: Any, now: Now) -> Iterator[Any]:
    if now.batch > 0:
        yield n.get()
    if now.batch == 2:
        n.clear()
        yield n.get()
    n.update((now.batch,))
    yield n.get()


@small(TTL, "each element of a list expires by itself: an append renews only what it appends",
       items("n int", STEP * 3 // 2),
       sees=[[[(0,)]], [[(0,), (1,), (11,)]], [[(1,), (11,), (2,)], True], [[(2,)], True], [[], False]],
       mode=PROCESSING)  # fmt: skip
def ttl_of_a_list(xs: Any, now: Now) -> Iterator[Any]:
    if now.batch < 3:
        xs.appendValue((now.batch,))
    if now.batch == 1:
        xs.appendList([(11,)])
    yield list(xs.get())
    if now.batch > 1:
        yield xs.exists()


@small(TTL, "`put` of a list renews all that it puts", items("n int", STEP * 3 // 2),
       sees=[[[(0,)]], [[(0,), (1,)]], [[(0,), (1,)]], [[]]], mode=PROCESSING)  # fmt: skip
def ttl_of_a_list_that_is_put(xs: Any, now: Now) -> Iterator[Any]:
    if now.batch == 0:
        xs.put([(0,)])
    elif now.batch == 1:
        xs.put([*xs.get(), (1,)])
    yield list(xs.get())


@small(TTL, "each entry of a map expires by itself, for every method", pairs("k string", "n int", STEP * 3 // 2),
       sees=[
           [[(("x",), (0,)), (("y",), (0,))]],
           [[(("x",), (1,)), (("y",), (0,))]],
           [[(("x",), (1,))], [("x",)], [(1,)], None, False, True, True],
           [[], [], [], None, False, False, False],
       ], mode=PROCESSING)  # fmt: skip
def ttl_of_a_map(m: Any, now: Now) -> Iterator[Any]:
    if now.batch < 2:
        m.updateValue(("x",), (now.batch,))
    if now.batch == 0:
        m.updateValue(("y",), (0,))
    yield sorted(m.iterator())
    if now.batch > 1:
        yield sorted(m.keys())
        yield sorted(m.values())
        yield m.getValue(("y",))
        yield m.containsKey(("y",))
        yield m.containsKey(("x",))
        yield m.exists()


@small(TTL, "what is removed and written again lives from its last write", pairs("k int", "n int", STEP * 3 // 2),
       items("n int", STEP * 3 // 2), sees=[[], [], [[((1,), (1,))], [(1,)]], [[], []]], mode=PROCESSING)  # fmt: skip
def ttl_after_removal(m: Any, xs: Any, now: Now) -> Iterator[Any]:
    if now.batch < 2:
        m.removeKey((1,))
        m.updateValue((1,), (now.batch,))
        xs.clear()
        xs.appendValue((now.batch,))
    else:
        yield list(m.iterator())
        yield list(xs.get())


@small(TTL, "an expired value does not come back with a timer's handler", value("n int", STEP * 3 // 2),
       sees=[[], [(0,)], [None]], mode=PROCESSING, silent=[1, 2])  # fmt: skip
def ttl_seen_by_timers(n: Any, now: Now) -> Iterator[Any]:
    if now.fired is None:
        n.update((0,))
        now.handle.registerTimer(now.now + STEP)
        now.handle.registerTimer(now.now + 2 * STEP)
    else:
        yield n.get()


@small(TTL, "a TTL of `None` or 0 is none", value("n int", None), value("n int", 0), items("n int", 0),
       pairs("n int", "n int", 0), sees=[[], [], [(1,), (1,), [(1,)], [((1,), (1,))]]],
       mode=PROCESSING, silent=[1])  # fmt: skip
def ttl_of_zero(none: Any, zero: Any, xs: Any, m: Any, now: Now) -> Iterator[Any]:
    if now.batch == 0:
        none.update((1,))
        zero.update((1,))
        xs.appendValue((1,))
        m.updateValue((1,), (1,))
    else:
        yield none.get()
        yield zero.get()
        yield list(xs.get())
        yield list(m.iterator())


for _mode in (NONE, EVENT):

    @small(TTL, f"0 is none in mode {_mode} too", value("n int", 0), sees=[[], [(1,)]], mode=_mode)
    def ttl_of_zero_without_processing_time(n: Any, now: Now) -> Iterator[Any]:
        if now.batch == 0:
            n.update((1,))
        else:
            yield n.get()
