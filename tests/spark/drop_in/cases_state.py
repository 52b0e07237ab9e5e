"""State variables: values, lists and maps, with every method that they have."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tests.spark.drop_in.small import Now, items, pairs, small, value

VALUE, LIST, MAP = "Value state", "List state", "Map state"

# --- a value


@small(VALUE, "`getValueState`: `get` of nothing gives `None`; `exists` is false", value("n int"), sees=[[None, False]])
def value_of_nothing(n: Any, now: Now) -> Iterator[Any]:
    yield n.get()
    yield n.exists()


@small(
    VALUE,
    "`update` sets all fields; `get` gives a tuple; it lasts from batch to batch",
    value("n int, s string"),
    sees=[[None, (0, "a"), True], [(0, "a"), (1, "a"), True], [(1, "a"), (2, "a"), True]],
)
def value_that_lasts(n: Any, now: Now) -> Iterator[Any]:
    yield n.get()
    n.update((now.batch, now.key))
    yield n.get()
    yield n.exists()


@small(VALUE, "`clear` removes it, of nothing too", value("n int"), sees=[[False, None], [None, False], [None]])
def value_cleared(n: Any, now: Now) -> Iterator[Any]:
    if now.batch == 0:
        n.clear()
        n.update((1,))
        n.clear()
        yield n.exists()
        n.update((2,))
        n.clear()
        yield n.get()
        n.update((3,))
        n.clear()
    elif now.batch == 1:
        yield n.get()
        yield n.exists()
        n.update((4,))
        n.clear()
    else:
        yield n.get()


@small(
    VALUE,
    "of one key is not that of another",
    value("n int"),
    sees={"a": [[None], [("a", 0)]], "b": [[None], [("b", 0)]], "c": [[None]]},
)
def value_of_each_key(n: Any, now: Now) -> Iterator[Any]:
    old = n.get()
    yield None if old is None else (now.key, old[0])
    n.update((now.batch,))


@small(VALUE, "with a null field exists", value("n int, s string"), sees=[[True, (None, None)], [(None, None)]])
def value_of_nulls(n: Any, now: Now) -> Iterator[Any]:
    if now.batch == 0:
        n.update((None, None))
        yield n.exists()
    yield n.get()


# --- a list


@small(
    LIST, "`getListState`: `get` of nothing is an empty iterator; `exists` is false", items("n int"), sees=[[[], False]]
)
def list_of_nothing(xs: Any, now: Now) -> Iterator[Any]:
    yield list(xs.get())
    yield xs.exists()


@small(
    LIST,
    "`appendValue` and `appendList` keep the order; elements are tuples; it lasts from batch to batch",
    items("n int"),
    sees=[
        [[(0,), (0,), (10,), (0,)], True],
        [[(0,), (0,), (10,), (0,), (1,), (1,), (11,), (1,)], True],
    ],
)
def list_appended(xs: Any, now: Now) -> Iterator[Any]:
    xs.appendValue((now.batch,))
    xs.appendList([(now.batch,), (now.batch + 10,)])
    xs.appendValue((now.batch,))
    yield list(xs.get())
    yield xs.exists()


@small(
    LIST,
    "`put` replaces all; `clear` removes all, of nothing too",
    items("s string, n int"),
    sees=[[[("x", 1), ("y", None)]], [[("x", 1), ("y", None)], [("z", 3)]], [[("z", 3)], [], False], [[]]],
)
def list_put(xs: Any, now: Now) -> Iterator[Any]:
    if now.batch == 0:
        xs.clear()
        xs.appendValue(("old", 0))
        xs.put([("x", 1), ("y", None)])
    else:
        yield list(xs.get())
    if now.batch == 1:
        xs.put([("z", 3)])
    if now.batch == 2:
        xs.clear()
        yield list(xs.get())
        yield xs.exists()
        return
    if now.batch < 2:
        yield list(xs.get())


@small(
    LIST,
    "an iterator is a snapshot as of its first `next`, not of the call of `get`",
    items("n int"),
    sees=[[(1,), [(2,)], [(1,), (2,), (3,), (4,)]]],
)
def list_iterator_is_a_snapshot(xs: Any, now: Now) -> Iterator[Any]:
    xs.put([(1,)])
    it = xs.get()
    xs.appendValue((2,))
    yield next(it)
    xs.appendList([(3,), (4,)])
    yield list(it)
    yield list(xs.get())


@small(
    LIST,
    "several iterators at once are independent; one that is used up stays so",
    items("n int"),
    sees=[[((1,), (1,)), ((2,), (2,)), [], []]],
)
def list_iterators_at_once(xs: Any, now: Now) -> Iterator[Any]:
    xs.put([(1,), (2,)])
    one, other = xs.get(), xs.get()
    yield next(one), next(other)
    yield next(one), next(other)
    yield list(one)
    yield list(one)


@small(
    LIST,
    "of 250 elements, in one call and one by one",
    items("n int, s string"),
    sees=[[250, (249, "249"), 500, (249, "again")], [500, (249, "again")]],
)
def list_that_is_long(xs: Any, now: Now) -> Iterator[Any]:
    if now.batch == 0:
        xs.put([(n, str(n)) for n in range(250)])
        found = list(xs.get())
        yield len(found)
        yield found[-1]
        for n in range(250):
            xs.appendValue((n, "again"))
    found = list(xs.get())
    yield len(found)
    yield found[-1]


# --- a map


@small(
    MAP,
    "`getMapState`: of nothing `getValue` gives `None`, `containsKey` and `exists` false, iterators nothing",
    pairs("k string", "n int"),
    sees=[[None, False, False, [], [], []]],
)
def map_of_nothing(m: Any, now: Now) -> Iterator[Any]:
    yield m.getValue(("x",))
    yield m.containsKey(("x",))
    yield m.exists()
    yield list(m.iterator())
    yield list(m.keys())
    yield list(m.values())


@small(
    MAP,
    "`updateValue` sets an entry; keys and values are tuples, pairs tuples of them; it lasts from batch to batch",
    pairs("k string", "n int"),
    sees=[
        [True, True, False, [(("a",), (0,))], [("a",)], [(0,)]],
        [True, True, False, [(("a",), (1,))], [("a",)], [(1,)]],
    ],
)
def map_updated(m: Any, now: Now) -> Iterator[Any]:
    m.updateValue((now.key,), (now.batch,))
    yield m.exists()
    yield m.containsKey((now.key,))
    yield m.containsKey(("other",))
    yield list(m.iterator())
    yield list(m.keys())
    yield list(m.values())


@small(
    MAP,
    "`getValue` gives a value that equals its tuple",
    pairs("k string, i int", "n int, s string"),
    sees=[[True, 1, "one"], [True, 1, "one"]],
)
def map_value_equals_its_tuple(m: Any, now: Now) -> Iterator[Any]:
    if now.batch == 0:
        m.updateValue(("x", 1), (1, "one"))
    found = m.getValue(("x", 1))
    yield found == (1, "one")
    yield found[0]
    yield found.s


@small(
    MAP,
    "`removeKey` removes an entry, one that is not there too; with the last one `exists` is false",
    pairs("k int", "n int"),
    sees=[[True, [((2,), (2,))], False], [False, [], True], [[((9,), (9,))]]],
)
def map_key_removed(m: Any, now: Now) -> Iterator[Any]:
    if now.batch == 0:
        m.updateValue((1,), (1,))
        m.updateValue((2,), (2,))
        m.removeKey((1,))
        m.removeKey((7,))
        yield m.exists()
        yield list(m.iterator())
        m.removeKey((2,))
        yield m.exists()
    elif now.batch == 1:
        yield m.exists()
        yield list(m.iterator())
        m.updateValue((9,), (9,))
        yield m.exists()
    else:
        yield list(m.iterator())


@small(MAP, "`clear` removes all, of nothing too", pairs("k int", "n int"), sees=[[False], [False, None]])
def map_cleared(m: Any, now: Now) -> Iterator[Any]:
    if now.batch == 0:
        m.clear()
        m.updateValue((1,), (1,))
        m.updateValue((2,), (2,))
        m.clear()
    yield m.exists()
    if now.batch == 1:
        yield m.getValue((1,))


@small(
    MAP,
    "`iterator`, `keys` and `values` go through the entries in one order, which is not promised",
    pairs("k int", "n int"),
    sees=[[True, [-1, 0, 1, 2, 256]]],
)
def map_order(m: Any, now: Now) -> Iterator[Any]:
    for n in (2, -1, 256, 0, 1):
        m.updateValue((n,), (n,))
    order = [key for key, _ in m.iterator()]
    yield order == list(m.keys()) == list(m.values())
    yield sorted(key for (key,) in order)


@small(
    MAP,
    "removing and changing entries while iterating is safe: an iterator is a snapshot as of its first `next`",
    pairs("k int", "n int"),
    sees=[[[((1,), (1,)), ((2,), (2,)), ((3,), (3,))], [((1,), (10,)), ((3,), (30,)), ((4,), (40,))]]],
)
def map_changed_while_iterating(m: Any, now: Now) -> Iterator[Any]:
    for n in (1, 2, 3):
        m.updateValue((n,), (n,))
    seen = []
    for (key,), found in m.iterator():
        seen.append(((key,), found))
        m.updateValue((key,), (key * 10,))
        m.updateValue((4,), (40,))
        m.removeKey((2,))
    yield sorted(seen)
    m.removeKey((2,))
    yield sorted(m.iterator())


@small(
    MAP,
    "keys with null fields, and keys of several fields",
    pairs("k string, n int", "v int"),
    sees=[[(1,), (2,), None, 2], [(1,), (2,), None, 2]],
)
def map_keys_with_nulls(m: Any, now: Now) -> Iterator[Any]:
    if now.batch == 0:
        m.updateValue((None, None), (1,))
        m.updateValue(("x", None), (2,))
    for key in ((None, None), ("x", None), (None, 1)):
        found = m.getValue(key)
        yield None if found is None else tuple(found)
    yield len(list(m.keys()))


@small(
    MAP,
    "0.0 and -0.0 are two keys, all NaN are one",
    pairs("d double", "n int"),
    sees=[[(1,), (2,), 3]],
    bedload=[[(2,), (2,), 2]],
    why="0.0 and -0.0 are one key, too",
)
def map_keys_that_are_zero(m: Any, now: Now) -> Iterator[Any]:
    for n, key in enumerate((0.0, -0.0, math.nan, float("nan")), 1):
        m.updateValue((key,), (n,))
    yield tuple(m.getValue((0.0,)))
    yield tuple(m.getValue((-0.0,)))
    yield len(list(m.keys()))


@small(
    MAP,
    "of 150 entries",
    pairs("k int", "s string"),
    sees=[[150], [150, "149"]],
)
def map_that_is_large(m: Any, now: Now) -> Iterator[Any]:
    if now.batch == 0:
        for n in range(150):
            m.updateValue((n,), (str(n),))
    yield sum(1 for _ in m.iterator())
    if now.batch == 1:
        yield m.getValue((149,))[0]
