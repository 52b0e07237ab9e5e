"""The operators of the golden checkpoints, each before and after a change, and what is done to their state.

Nothing here may change once files of a version are there: it is what reads them.
"""

import datetime as dt
import zoneinfo
from collections import Counter, deque
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

import bedload as bl
from bedload.core.ids import OperatorName
from bedload.operators.aggregates import Aggregates
from bedload.worker.column_runtime import ColumnDeployment
from bedload.worker.row_runtime import Deployment

NAME = OperatorName("Golden state")
GROUPS = 4

ROW_KEYS = (pa.string(),)
COLUMN_KEYS = (pa.int64(), pa.string())
COLUMN_INPUT = pa.schema(
    [
        ("id", pa.int64()),
        ("site", pa.string()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("price", pa.decimal128(12, 2)),
        ("name", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
    ]
)


@dataclass
class Point:
    x: int
    label: str | None = None


@dataclass
class Point2:
    across: float = field(default=0.0, metadata={"renamed_from": "x"})
    label: str | None = None
    tags: list[str] = field(default_factory=lambda: ["new"])


@dataclass(frozen=True)
class Place:
    name: str
    at: tuple[int, int] = (0, 0)


class Scripted(bl.Operator):
    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        for row in rows:
            SCRIPTS[row.step](self, ctx)


class Rows(Scripted):
    flag: bool = bl.value(False)
    n: int = bl.value(0)
    x: float = bl.value(0.0)
    text: str = bl.value("")
    data: bytes = bl.value(b"")
    day: dt.date = bl.value(dt.date(1970, 1, 1))
    moment: dt.datetime = bl.value(dt.datetime(1970, 1, 1))
    span: dt.timedelta = bl.value(dt.timedelta())
    amount: Decimal = bl.value(Decimal("0.00"))
    maybe: int | None = bl.value()
    pair: tuple[int, str] = bl.value((0, ""))
    many: tuple[float, ...] = bl.value(())
    recent: list[int] = bl.list(maxlen=3)
    points: list[Point] = bl.list()
    seen: set[str] = bl.set()
    counts: Counter[str] = bl.counter()
    last: deque[float] = bl.deque(maxlen=2)
    queues: dict[str, deque[int]] = bl.map()
    table: dict[str, int] = bl.map()
    sparse: dict[int | None, str] = bl.map()
    places: dict[Place, Point] = bl.map()
    point: Point = bl.value(Point(0))
    place: Place | None = bl.value()
    packed: Any = bl.value(None, codec="msgspec")
    pickled: Any = bl.value(None, codec="pickle")


class Rows2(Scripted):
    flag: bool = bl.value(False)
    n: float = bl.value(0.0)
    x: float | None = bl.value()
    title: str = bl.value("", renamed_from="text")
    recent: list[float] = bl.list(maxlen=2)
    points: list[Point2] = bl.list()
    counts: Counter[str] = bl.counter()
    table: dict[str, float | None] = bl.map()
    places: dict[Place, Point2] = bl.map()
    point: Point2 = bl.value(Point2())
    pickled: Any = bl.value(None, codec="pickle")
    added: list[str] = bl.list()
    since: dt.date = bl.value(dt.date(2024, 2, 29))


def rows_deployment(version: int) -> Deployment:
    operator = (Rows, Rows2)[version - 1]
    return Deployment(NAME, operator, (0,), ("key", "step"), pa.schema([]), ROW_KEYS)


def column_input(version: int) -> pa.Schema:
    wide = pa.field("price", pa.decimal128(14, 2))
    return COLUMN_INPUT if version == 1 else COLUMN_INPUT.set(4, wide)


def columns_deployment(version: int) -> ColumnDeployment:
    functions = {
        "rows": bl.agg.count(),
        "total": bl.agg.sum("n"),
        "mean": bl.agg.mean("x"),
        "spent": bl.agg.sum("price"),
        "first_name": bl.agg.min("name"),
        "latest": bl.agg.max("at"),
        "days": bl.agg.max("day"),
        "names": bl.agg.collect_list("name", 5),
    }
    if version == 2:
        del functions["days"]
        functions |= {"smallest": bl.agg.min("x"), "spread": bl.agg.std("n")}
    logic = Aggregates(functions, column_input(version), [0, 1], ["id", "site"])
    return ColumnDeployment(NAME, logic, (0, 1), COLUMN_KEYS, GROUPS)


# --- what happens: a list of epochs, each a list of key and step ---


def _fill(op: Any, ctx: Any) -> None:
    op.flag, op.n, op.x, op.text, op.data = True, 2**40, -0.5, "Straße", b"\x00\xff"
    op.day, op.span, op.amount, op.maybe = (
        dt.date(2024, 2, 29),
        dt.timedelta(days=-1, microseconds=5),
        Decimal("1.50"),
        7,
    )
    op.moment = dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    op.pair, op.many = (3, "three"), (1.0, 2.5)
    op.recent.extend([1, 2, 3])
    op.points.extend([Point(1, "one"), Point(2)])
    op.seen.update({"a", "b"})
    op.counts.update("abracadabra")
    op.last.extend([1.5, 2.5, 3.5])
    op.queues["open"] = deque([1, 2], 5)
    op.table.update({"one": 1, "two": 2, "three": 3})
    op.sparse.update({None: "none", 1: "one"})
    op.places[Place("home", (1, 2))] = Point(5, "five")
    op.point = Point(8, "eight")
    op.place = Place("here")
    op.packed = {"list": [1, 2.5, None], "text": "x"}
    op.pickled = {"tuple": (1, 2)}


def _change(op: Any, ctx: Any) -> None:
    op.recent.append(4)
    op.points.append(Point(3))
    op.points[0].label = "first"
    op.seen.discard("a")
    op.seen.add("c")
    op.counts["z"] += 2
    del op.counts["a"]
    op.last.appendleft(0.5)
    op.queues["open"].append(3)
    op.table["two"] = 22
    del op.table["one"]
    op.table["four"] = 4
    op.sparse[2] = "two"
    op.places[Place("home", (1, 2))].x = 6
    op.point.x = 9


def _count(op: Any, ctx: Any) -> None:
    op.n += 1


def _forget(op: Any, ctx: Any) -> None:
    ctx.forget()


def _change2(op: Any, ctx: Any) -> None:
    op.n += 0.5
    op.recent.append(9.5)
    op.points.append(Point2(7.5, "seven", []))
    op.point.tags.append("more")
    op.table["half"] = None
    op.title += "!"
    op.added.append("added")


SCRIPTS = {0: _fill, 1: _change, 2: _count, 3: _forget, 4: _change2}

ROW_EPOCHS: dict[int, list[list[tuple[str, int]]]] = {
    1: [[("a", 0), ("b", 2), ("c", 0), ("d", 2)], [("a", 1), ("b", 2), ("e", 0)], [("c", 1), ("d", 3)]],
    2: [[("a", 4), ("f", 4)], [("a", 4), ("e", 4), ("b", 3)]],
}


def _row(number: int, site: str | None) -> dict[str, Any]:
    at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=number)
    return {
        "id": number % 5,
        "site": site,
        "n": number * 3,
        "x": number / 4,
        "price": Decimal(number) / 100 + Decimal("0.00"),
        "name": None if number % 3 == 0 else f"name {number}",
        "at": at,
        "day": at.date(),
    }


COLUMN_EPOCHS: dict[int, list[list[dict[str, Any]]]] = {
    1: [
        [_row(n, "x") for n in range(12)],
        [_row(n, None) for n in range(12, 20)],
        [_row(n, "x") for n in range(20, 24)],
    ],
    2: [[_row(n, "x") for n in range(24, 30)], [_row(n, "y") for n in range(30, 36)]],
}
