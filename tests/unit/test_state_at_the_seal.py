"""What the end of an epoch refuses: values of other types than declared, in whatever they are."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from bedload import state as bl
from bedload.core.errors import StateTypeError
from bedload.testing import InProcessCluster, OperatorHarness
from bedload.worker.operator import Context, Operator
from bedload.worker.rows import Rows

IN = {"k": pa.string(), "what": pa.string()}
OUT = {"k": pa.string()}
LARGE = 200


@dataclasses.dataclass
class Point:
    x: int = 0
    path: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Fixed:
    x: int = 0


class Everything(Operator):
    n: int = bl.value(0)
    x: float = bl.value(0.0)
    text: str = bl.value("")
    flag: bool = bl.value(False)
    raw: bytes = bl.value(b"")
    day: dt.date = bl.value(dt.date(2026, 1, 1))
    moment: dt.datetime = bl.value(dt.datetime(2026, 1, 1))
    span: dt.timedelta = bl.value(dt.timedelta())
    price: Decimal = bl.value(Decimal(0))
    maybe: int | None = bl.value(None)
    pair: tuple[int, str] = bl.value((0, ""))
    many: tuple[int, ...] = bl.value(())
    fixed: Fixed = bl.value(Fixed())
    point: Point = bl.value(Point())
    items: list[int] = bl.list()
    texts: dict[str, str] = bl.map()
    lists: dict[str, list[int]] = bl.map()
    seen: set[str] = bl.set()
    tally: collections.Counter[str] = bl.counter()
    last: collections.deque[float] = bl.deque(maxlen=300)
    packed: Any = bl.value(None, codec="pickle")

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        for row in rows:
            CHANGES[row.what](self)


def _set(name: str, value: Any) -> Any:
    return lambda state: setattr(state, name, value)


CHANGES: dict[str, Any] = {
    "int, a text": _set("n", "x"),
    "int, a null": _set("n", None),
    "int, 64 bits": _set("n", 2**63),
    "int, a fraction": _set("n", 1.5),
    "float, a text": _set("x", "1.0"),
    "float, a null": _set("x", None),
    "float, too large": _set("x", 10**400),
    "text, a number": _set("text", 1),
    "text, half a pair": _set("text", "\ud800"),
    "flag, a number": _set("flag", 1),
    "bytes, a text": _set("raw", "x"),
    "date, a datetime": _set("day", dt.datetime(2026, 1, 1)),
    "datetime, a date": _set("moment", dt.date(2026, 1, 1)),
    "timedelta, too long": _set("span", dt.timedelta.max),
    "datetime, not a time": _set("moment", pd.NaT),
    "datetime, nanoseconds": _set("moment", pd.Timestamp("2026-01-01 00:00:00.000000001")),
    "timedelta, nanoseconds": _set("span", pd.Timedelta(1, "ns")),
    "decimal, a float": _set("price", 1.0),
    "optional, a text": _set("maybe", "x"),
    "tuple, a text": _set("pair", ("x", "x")),
    "tuple, too short": _set("pair", (1,)),
    "tuple, a list": _set("pair", [1, "a"]),
    "tuple of many": _set("many", (1, 2, "x")),
    "frozen dataclass": _set("fixed", Fixed("x")),  # type: ignore[arg-type]
    "another dataclass": _set("fixed", Point()),
    "dataclass field": lambda state: setattr(state.point, "x", "x"),
    "dataclass field, deleted": lambda state: state.point.__dict__.pop("x", None) or delattr(state.point, "path"),
    "dataclass, list in it": lambda state: state.point.path.append("x"),
    "list, append": lambda state: state.items.append("x"),
    "list, 64 bits": lambda state: state.items.append(2**64),
    "list, null": lambda state: state.items.append(None),
    "list, assigned": _set("items", [1, "x"]),
    "list, a text assigned": _set("items", "12"),
    "list, large, append": lambda state: (state.items.extend(range(LARGE)), state.items.append("x")),
    "map, value": lambda state: state.texts.__setitem__("a", 1),
    "map, key": lambda state: state.texts.__setitem__(1, "a"),
    "map, null": lambda state: state.texts.update(a=None),
    "map of lists": lambda state: state.lists.setdefault("a", []).append("x"),
    "map of lists, a new one": lambda state: state.lists.__setitem__("b", ["x"]),
    "set": lambda state: state.seen.add(1),
    "counter": lambda state: state.tally.update({"a": 1.5}),
    "deque": lambda state: state.last.append("x"),
    "pickle": _set("packed", lambda: None),
    "good": lambda state: _good(state),
    "nothing": lambda state: None,
}
BAD = [what for what in CHANGES if what not in ("good", "nothing")]


def _good(state: Any) -> None:
    state.n, state.x, state.text, state.maybe = True, 3, "\N{SNOWMAN}", 7
    state.items += [1, 2]
    state.lists["a"] = [1]
    state.point.path.append(4)
    state.texts["a"] = "b"
    state.seen.add("a")
    state.tally["a"] += 1
    state.last.append(1)
    state.moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def fill(state: Any) -> None:
    """Make every container a large one."""
    state.items = list(range(LARGE))
    state.texts = {str(i): "" for i in range(LARGE)}
    state.lists = {str(i): [i] for i in range(LARGE)}
    state.seen = {str(i) for i in range(LARGE)}
    state.tally = collections.Counter({str(i): i for i in range(LARGE)})
    state.last = collections.deque(map(float, range(LARGE)), 300)
    state.point.path = list(range(LARGE))


CHANGES["fill"] = fill


def row(key: str, what: str) -> dict[str, Any]:
    return {"k": key, "what": what}


@pytest.mark.parametrize("first", ["nothing", "good", "fill"])
@pytest.mark.parametrize("what", BAD)
def test_a_value_of_another_type_fails_the_epoch_and_is_named(what: str, first: str) -> None:
    h = OperatorHarness(Everything, schema=OUT, key="k", input=IN)
    h.run_epoch([row("a", first), row("b", first)])
    before = h.snapshot()
    with pytest.raises(StateTypeError, match=r"operator Everything, epoch 1.*key 'b'"):
        h.run_epoch([row("a", "good"), row("b", what)])
    assert h.snapshot() == before
    h.run_epoch([row("a", "good"), row("b", "good")])
    assert h.state("b")["n"] == 1  # type: ignore[index]


@pytest.mark.parametrize("what", ["int, a null", "list, append", "map of lists"])
def test_it_fails_the_epoch_of_a_cluster_in_memory_too(what: str) -> None:
    cluster = InProcessCluster(Everything, schema=OUT, key="k", input=IN)
    cluster.run_epoch([[row("a", "good")]])
    before = cluster.snapshot()
    with pytest.raises(StateTypeError, match="key 'b'"):
        cluster.run_epoch([[row("a", "good"), row("b", what)]])
    cluster.restart()
    assert cluster.snapshot() == before
    cluster.run_epoch([[row("b", "good")]])
    cluster.rescale(3)
    assert set(cluster.snapshot()) == {"a", "b"}


def test_what_an_epoch_did_not_change_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from bedload.state.tracked_list import TrackedList

    h = OperatorHarness(Everything, schema=OUT, key="k", input=IN)
    h.run_epoch([row("a", "fill")])
    seen: list[int] = []

    def looked(self: Any) -> Any:
        seen.append(len(self))
        return iter(self[:])

    monkeypatch.setattr(TrackedList, "__iter__", looked)
    monkeypatch.setattr(TrackedList, "__reversed__", looked)
    h.run_epoch([row("a", "good")])
    assert LARGE not in seen
    assert LARGE + 2 not in seen
