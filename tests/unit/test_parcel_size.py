"""What is sent at a time is bounded in bytes, whatever came before it."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.shelves import listed
from tests.unit.transport_kit import HandClock

from bedload import state as bl
from bedload.core.errors import TooLarge
from bedload.core.ids import KeyGroup, MoveId, OperatorName, Turn, WorkerId
from bedload.keys import hash_columns
from bedload.migration.lots import shelve
from bedload.migration.pace import MOST_BYTES
from bedload.migration.receiver import whole_only
from bedload.migration.sender import Sender
from bedload.migration.strategies import STRATEGIES
from bedload.protocol.messages import Lot
from bedload.state import RecordLayout
from bedload.state.encoded import encoded_column
from bedload.state.weight import has_width, weigher, weight_of
from bedload.store import shelf as shelf_module
from bedload.store.columns import ColumnSpec, ColumnTable
from bedload.store.deltas import PUT, delta_batch
from bedload.store.resting import RestingStore
from bedload.store.row_table import RowTable
from bedload.store.selection import Selection
from bedload.worker.operator import Operator, make_shared, state_of

FEW, LARGE = 2000, 1 << 18
OLD, NEW = WorkerId(0), WorkerId(1)
"""Key group 0 has small keys, key group 1 large ones."""
BOTH = (KeyGroup(0), KeyGroup(1))


class Text(Operator):
    s: str = bl.value("")

    def process(self, key: Any, rows: Any, ctx: Any) -> None: ...


class Notes(Operator):
    notes: list[str] = bl.list()

    def process(self, key: Any, rows: Any, ctx: Any) -> None: ...


class Count(Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: Any) -> None: ...


def filled(layout: str, large: int = LARGE, many: int = 60) -> Any:
    groups = np.repeat(np.array([0, 1], np.int16), [FEW, many])
    numbers = range(FEW + many)
    words = ["x"] * FEW + ["y" * large] * many
    keys = pa.array(numbers, pa.int64())
    match layout:
        case "strings":
            table: Any = ColumnTable([pa.int64()], [ColumnSpec("s", pa.string())], 2)
            state = {"s": pa.array(words)}
        case "lists":
            kind = pa.list_(pa.int64())
            table = ColumnTable([pa.int64()], [ColumnSpec("s", kind)], 2)
            state = {"s": pa.array([[1] * (len(word) // 8) for word in words], kind)}
        case "long keys":
            table = ColumnTable([pa.string()], [ColumnSpec("n", pa.int64(), 0)], 2)
            keys = pa.array([f"{number}{word}" for number, word in zip(numbers, words, strict=True)])
            state = {"n": pa.array(numbers, pa.int64())}
        case "rows":
            table = rows(Text, pa.int64())
            state = {"s": pa.array(words)}
        case "rows of lists":
            table = rows(Notes, pa.int64())
            state = {"notes": pa.array([[word] for word in words])}
        case "rows with long keys":
            table = rows(Count, pa.string())
            keys = pa.array([f"{number}{word}" for number, word in zip(numbers, words, strict=True)])
            state = {"n": pa.array(numbers, pa.int64())}
    table.take_in(delta_batch(groups, np.full(len(groups), PUT, np.int8), [keys], state))
    return table


def rows(operator: type[Operator], key: pa.DataType) -> RowTable:
    table = RowTable(OperatorName("rows"), RestingStore)
    table.bind(RecordLayout(state_of(operator)), make_shared(operator)[1], 1, [key])
    return table


layouts = pytest.mark.parametrize(
    "layout", ["strings", "lists", "long keys", "rows", "rows of lists", "rows with long keys"]
)


@layouts
@pytest.mark.parametrize("strategy", ["seamless", "adaptive", "all_at_once"])
def test_large_keys_after_small_ones_go_in_bounded_parcels(layout: str, strategy: str) -> None:
    table = filled(layout)
    terms = STRATEGIES[strategy].with_(share=1.0).terms
    lot = Lot(OLD, NEW, BOTH)
    named = not whole_only(terms)
    sender = Sender(MoveId(1), terms, (lot,), lambda it: shelve(table, it, named=named), 2, HandClock())
    if not terms.copy_ahead:
        sender.flip(Turn(1))
    sizes: list[int] = []
    keys = 0
    for _ in range(10_000):
        parcels, _ = sender.next(1.0)
        for parcel in parcels:
            sender.taken(NEW, parcel.number, 1.0)
            if parcel.state is not None:
                sizes.append(parcel.state.nbytes)
                keys += parcel.state.num_rows
        if sender.becomes_copied() or any(parcel.last for parcel in parcels):
            break
    assert keys == FEW + 60
    assert max(sizes) <= 2 * MOST_BYTES + LARGE
    assert len(sizes) <= 60


@layouts
@pytest.mark.parametrize("named", [True, False])
def test_a_shelf_says_how_many_keys_fit(layout: str, named: bool) -> None:
    shelf = listed(filled(layout, many=4).shelve(Selection(BOTH, named=named)))
    assert shelf.fitting_in_range(0, FEW, 1 << 20) == FEW
    assert shelf.fitting_in_range(FEW, 4, 1 << 20) in (2, 4)
    assert shelf.fitting_in_range(FEW, 4, 1 << 19) in (1, 2)
    assert shelf.fitting_in_range(FEW, 4, 1 << 10) == 1, "one at least"
    assert shelf.fitting_in_range(FEW, 0, 1 << 10) == 0
    if named:
        assert shelf.fitting(shelf.hashes[FEW:], 1 << 10) == 1
        assert shelf.fitting(shelf.hashes[:FEW], 1 << 20) == FEW


@layouts
@pytest.mark.parametrize("named", [True, False])
def test_a_key_that_cannot_be_sent_is_named(layout: str, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf_module, "LARGEST", LARGE // 2)
    shelf = listed(filled(layout, many=1).shelve(Selection(BOTH, named=named)))
    with pytest.raises(TooLarge, match=f"the state of key '?{FEW}.* keep less under one key"):
        shelf.fitting_in_range(FEW, 1, 1 << 10)


def test_keys_that_are_gone_count_by_what_is_kept_of_them() -> None:
    table = filled("long keys", many=4)
    shelf = listed(table.shelve(Selection(BOTH)))
    keys = [pa.array([f"{number}{'y' * LARGE}" for number in range(FEW, FEW + 4)])]
    table.discard(table.find(keys, np.ones(4, np.int64)))
    assert shelf.fitting(hash_columns(keys), 1 << 19) == 1


@dataclass
class Point:
    name: str
    at: tuple[int, str] = (0, "")


class Every(Operator):
    number: int = bl.value(0)
    text: str = bl.value("")
    data: bytes = bl.value(b"")
    maybe: str | None = bl.value(None)
    price: Decimal = bl.value(Decimal(0))
    when: dt.datetime | None = bl.value(None)
    pair: tuple[int, str] = bl.value((0, ""))
    some: tuple[str, ...] = bl.value(())
    numbers: list[int] = bl.list()
    nested: dict[str, list[str]] = bl.map()
    tally: Counter[str] = bl.counter()
    names: set[str] = bl.set()
    recent: Any = bl.value(None, codec="pickle")
    point: Point = bl.value(Point(""))
    vector: np.ndarray = bl.array(4)


SPECS = {spec.name: spec for spec in state_of(Every)}

VALUES: dict[str, Any] = {
    "number": 7,
    "text": "t" * 10_000,
    "data": b"d" * 10_000,
    "maybe": "m" * 10_000,
    "price": Decimal("1." + "3" * 10_000),
    "when": dt.datetime(2024, 1, 1),
    "pair": (1, "p" * 10_000),
    "some": ("s" * 5_000, "s" * 5_000),
    "numbers": list(range(1000)),
    "nested": {"k" * 1000: ["v" * 1000, "w" * 5_000]},
    "tally": Counter({"c" * 5_000: 2, "d": 3}),
    "names": {"n" * 5_000, "o" * 4_000},
    "recent": {"anything": ["x" * 10_000]},
    "point": Point("n" * 3000, (1, "a" * 4000)),
    "vector": np.zeros(4),
}


@pytest.mark.parametrize("name", list(VALUES))
def test_a_weight_is_near_what_a_value_takes(name: str) -> None:
    node, values = SPECS[name].type, [VALUES[name]] * 3
    taken = encoded_column(node, values).nbytes
    assert taken / 2 <= weigher(node)(values) <= 4 * taken + 1000


@pytest.mark.parametrize("value", ["x" * 1000, b"x" * 1000, ["x" * 500, {"k": "y" * 500}], {"k" * 1000: 1}])
def test_values_of_any_type_have_a_weight(value: Any) -> None:
    assert 2000 <= weight_of([value, None, value]) <= 2300


def test_which_types_have_a_width() -> None:
    wide = [pa.int8(), pa.decimal128(10, 2), pa.binary(16), pa.dictionary(pa.int32(), pa.int64())]
    assert all(map(has_width, wide))
    assert not any(map(has_width, [pa.string(), pa.list_(pa.int64()), pa.dictionary(pa.int32(), pa.string())]))
