"""What a feeder makes of its rows before it sends them."""

import numpy as np
import pyarrow as pa
import pytest

from bedload.keys import groups_in, hash_columns, key_groups
from bedload.operators import aggregates as agg
from bedload.protocol.combining import Combining

GROUPS = 16
SCHEMA = pa.schema([("x", pa.int64()), ("site", pa.string()), ("car", pa.int64())])
KEY = (2, 1)


def rows(cars: int, count: int = 200) -> pa.RecordBatch:
    number = np.arange(count)
    sites = pa.array([None if n % cars % 7 == 3 else f"site{n % cars}" for n in number.tolist()])
    return pa.RecordBatch.from_arrays([pa.array(number), sites, pa.array(number % cars)], schema=SCHEMA)


def combining(ahead: bool = True) -> Combining:
    logic = agg.Aggregates({"n": agg.count(), "m": agg.max("x")}, SCHEMA, KEY, ["car", "site"])
    return Combining(logic if ahead else None, KEY, GROUPS)


def groups_of(batch: pa.RecordBatch, key: tuple[str, str]) -> list[int]:
    return key_groups(hash_columns([batch.column(name) for name in key]), GROUPS).tolist()


@pytest.mark.parametrize("ahead", [True, False])
def test_what_is_sent_has_the_key_group_of_each_row_wherever_the_key_is(ahead: bool) -> None:
    it = combining(ahead)
    sent = it.rows(rows(cars=20))
    assert sent.num_rows == (20 if ahead else 200)
    assert [sent.schema.names[i] for i in it.key] == ["car", "site"]
    assert groups_in(sent).tolist() == groups_of(sent, ("car", "site"))
    assert len(set(groups_in(sent).tolist())) > 5
    assert sent.schema.names[-1] == "__bedload_group"


def test_rows_that_are_not_worth_combining_are_sent_as_they_are() -> None:
    it = combining()
    given = rows(cars=150)
    sent = it.rows(given)
    assert sent.drop_columns(["__bedload_group"]) == given
    assert groups_in(sent).tolist() == groups_of(given, ("car", "site"))
    assert it.rows(rows(cars=2)).num_rows == 200, "the first batch decides for all"


def test_a_batch_without_rows_has_the_column_too() -> None:
    sent = combining(ahead=False).rows(rows(cars=1).slice(200))
    assert (sent.num_rows, sent.schema.names[-1]) == (0, "__bedload_group")
