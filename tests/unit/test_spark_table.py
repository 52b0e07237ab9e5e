"""Tables that a cluster tells about itself: how they read in a terminal and in a notebook."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

from bedload.migration.record import MoveRecord
from bedload.spark.cluster import _EPOCHS, _MAIN_OF_EPOCHS
from bedload.spark.moves import MAIN_COLUMNS, table_schema
from bedload.spark.table import Table


def table(
    rows: list[dict[str, Any]], schema: str = "kind string, keys bigint, seconds double", main: Any = ()
) -> Table:
    return Table(None, schema, rows, main)  # type: ignore[arg-type]


def test_a_table_prints_with_numbers_to_the_right() -> None:
    rows = [
        {"kind": "rescale", "keys": 1234567, "seconds": 0.01234},
        {"kind": "pin", "keys": 1, "seconds": None},
    ]
    assert str(table(rows)).splitlines() == [
        "kind          keys  seconds",
        "rescale  1,234,567    0.012",
        "pin              1        -",
    ]
    assert repr(table(rows)) == str(table(rows))


def test_the_main_columns_are_printed_and_the_others_are_still_there() -> None:
    made = table([{"kind": "pin", "keys": 1, "seconds": 2.0}], main=("kind", "seconds"))
    assert str(made).splitlines() == [
        "kind  seconds",
        "pin     2.000",
        "(1 more columns: .show(all_columns=True), .df(), or the dicts themselves)",
    ]
    assert made.columns == ["kind", "keys", "seconds"]
    assert made[0]["keys"] == 1


def test_a_long_table_shows_its_end_and_an_empty_one_says_so() -> None:
    lines = str(table([{"kind": "pin", "keys": n, "seconds": 0.0} for n in range(30)])).splitlines()
    assert (lines[1].split()[1], lines[20].split()[1]) == ("10", "29")
    assert lines[21:] == ["(the last 20 of 30 rows)"]
    assert str(table([])).splitlines() == ["kind  keys  seconds", "(no rows)"]


def test_values_are_short_and_readable() -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    row = {"a": "x" * 60, "b": True, "c": 12345.6, "d": when, "e": "two\nlines", "f": {1: 2}}
    shown = str(table([row], "a string, b boolean, c double, d timestamp, e string, f map<int, bigint>")).splitlines()[
        1
    ]
    assert "x" * 25 + "..." in shown
    assert "x" * 26 not in shown
    assert "true" in shown
    assert "12,345.600" in shown
    assert f"{when.astimezone():%Y-%m-%d %H:%M:%S}" in shown
    assert "two lines" in shown
    assert "{1: 2}" in shown


def test_in_a_notebook_it_is_a_table_with_everything_escaped() -> None:
    shown = table([{"kind": "<b>", "keys": 1, "seconds": 0.5}], main=("kind", "keys"))._repr_html_()
    assert shown == (
        "<table><tr><th>kind</th><th>keys</th></tr><tr><td>&lt;b&gt;</td><td>1</td></tr></table>"
        "<p>(1 more columns: .show(all_columns=True), .df(), or the dicts themselves)</p>"
    )


def test_the_main_columns_are_columns_of_the_history_and_of_the_epochs() -> None:
    assert set(MAIN_COLUMNS) <= {*MoveRecord.__struct_fields__}
    assert set(MAIN_COLUMNS) <= set(table([], table_schema()).columns)
    epochs = table([], _EPOCHS).columns
    assert set(_MAIN_OF_EPOCHS) <= set(epochs)
    assert "busy" in epochs, "a map's own comma parts no columns"


class Session:
    """Cannot be copied or pickled, as a Spark session cannot."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("there is no other")


@pytest.mark.parametrize("take", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["copy", "pickle"])
def test_a_table_can_be_kept_and_shipped_as_a_plain_list(take: Any) -> None:
    taken = take(Table(Session(), "a int", [{"a": 1}]))  # type: ignore[arg-type]
    assert taken == [{"a": 1}]
    assert type(taken) is list
