"""What options of the data source mean, and which state they choose."""

from __future__ import annotations

import pickle
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StructType
from tests.checkpoint_states import COUNTS, ME, OPERATOR, QUERY, delta, schema_of
from tests.source_states import Recorded

from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.storage import open_storage
from bedload.core.errors import (
    CheckpointError,
    CheckpointForeign,
    DefinitionError,
    EpochNotRetained,
    SchemaError,
    UnknownOperator,
)
from bedload.core.ids import OperatorName
from bedload.spark.source_columns import columns_of
from bedload.spark.source_options import Changes, SourceOptions, parse_options
from bedload.spark.source_view import resolve


@pytest.fixture
def writer(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path, COUNTS)


def put(n: int) -> pa.RecordBatch:
    return delta(COUNTS, {key: {"n": n} for key in range(10)})


# --- options ---


def test_options_are_taken_in_any_case_and_keys_and_storage_options_are_decoded() -> None:
    found = parse_options(
        {
            "path": "s3://b/c",
            "OPERATORNAME": "Trip",
            "batchid": "7",
            "keys": '[["a", 1], ["b", 2]]',
            "storage.key": "0123",
            "storage.anon": "TRUE",
            "storage.client_kwargs": '{"endpoint_url": "http://x"}',
        }
    )
    assert found == SourceOptions(
        url="s3://b/c",
        storage={"key": "0123", "anon": True, "client_kwargs": {"endpoint_url": "http://x"}},
        operator="Trip",
        batch=7,
        keys=(("a", 1), ("b", 2)),
    )


def test_a_change_feed_has_a_first_batch_and_may_have_a_last() -> None:
    given = {"path": "x", "readChangeFeed": "true", "changeStartBatchId": "2"}
    assert parse_options(given).changes == Changes(2, None)
    assert parse_options(given | {"changeEndBatchId": "5"}).changes == Changes(2, 5)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "give the checkpoint to read"),
        ({"path": "x", "batch": "3"}, "no option batch; there are operatorName"),
        ({"path": "x", "batchId": "last"}, "batchId='last' is not a batch number"),
        ({"path": "x", "readChangeFeed": "true"}, "needs changeStartBatchId"),
        ({"path": "x", "changeStartBatchId": "1"}, "are for option readChangeFeed"),
        ({"path": "x", "readChangeFeed": "yes"}, "neither true nor false"),
        ({"path": "x", "readChangeFeed": "true", "changeStartBatchId": "1", "batchId": "2"}, "leave batchId out"),
        ({"path": "x", "readChangeFeed": "true", "changeStartBatchId": "3", "changeEndBatchId": "2"}, "is before"),
        ({"path": "x", "keys": "car-1"}, "is not JSON"),
        ({"path": "x", "keys": '"car-1"'}, "is not a list"),
        ({"path": "x", "storage.client_kwargs": "{endpoint"}, "starts like JSON"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        parse_options(options)


# --- which state ---


def test_without_a_batch_the_newest_complete_turn_is_read(writer: Recorded, tmp_path: Path) -> None:
    writer.turn(put(1))
    second = writer.turn(put(2))
    torn = writer.turn(put(3))
    writer.storage.delete([paths.delta(OPERATOR, torn.turn, torn.workers[1])])
    view = resolve(SourceOptions(str(tmp_path)))
    assert (view.turn, view.operator) == (second.turn, OPERATOR)
    assert pickle.loads(pickle.dumps(view)) == view


def test_a_batch_chooses_the_state_after_it(writer: Recorded, tmp_path: Path) -> None:
    turns = [writer.turn(put(n)).turn for n in range(4)]
    assert [resolve(SourceOptions(str(tmp_path), batch=n)).turn for n in range(4)] == turns


def test_a_batch_that_is_not_there_says_what_is(writer: Recorded, tmp_path: Path) -> None:
    for n in range(3):
        writer.turn(put(n))
    for batch in (-1, 3):
        with pytest.raises(
            EpochNotRetained, match=f"after batch {batch} is not there; .*batches 0 to 2 of query query"
        ):
            resolve(SourceOptions(str(tmp_path), batch=batch))


def test_batches_that_were_collected_are_not_there(writer: Recorded, tmp_path: Path) -> None:
    for n in range(6):
        writer.turn(put(n))
    writer.snapshot(3)
    writer.collect(2)
    assert resolve(SourceOptions(str(tmp_path), batch=3)).plan.snapshot is not None
    with pytest.raises(EpochNotRetained, match="batches 3 to 5"):
        resolve(SourceOptions(str(tmp_path), batch=2))
    with pytest.raises(EpochNotRetained, match="batches 3 to 5"):
        resolve(SourceOptions(str(tmp_path), changes=Changes(2, None)))
    feed = resolve(SourceOptions(str(tmp_path), changes=Changes(3, None))).feed
    assert feed is not None
    assert [record.epoch for record in feed] == [3, 4, 5]


def test_of_several_queries_one_has_to_be_named(writer: Recorded, tmp_path: Path) -> None:
    first = writer.turn(put(0))
    second = writer.turn(put(1))
    other = msgspec.structs.replace(second, query="other", epoch=0, committed={QUERY: 0})
    writer.checkpoint.write_turn(OPERATOR, other)
    with pytest.raises(DefinitionError, match="several queries have a batch 0: other, query"):
        resolve(SourceOptions(str(tmp_path), batch=0))
    assert resolve(SourceOptions(str(tmp_path), batch=0, query="other")).turn == second.turn
    assert resolve(SourceOptions(str(tmp_path), batch=0, query=QUERY)).turn == first.turn
    assert resolve(SourceOptions(str(tmp_path), query=QUERY)).turn == first.turn
    with pytest.raises(DefinitionError, match="several queries: other, query"):
        resolve(SourceOptions(str(tmp_path), changes=Changes(0, None)))
    with pytest.raises(DefinitionError, match="no state of query 'third'; there is state of: other, query"):
        resolve(SourceOptions(str(tmp_path), query="third"))


def test_operators_are_listed_when_the_one_that_is_meant_is_not_clear(writer: Recorded, tmp_path: Path) -> None:
    writer.turn(put(0))
    writer.checkpoint.add_schema(OperatorName("Other"), COUNTS)
    with pytest.raises(DefinitionError, match="several operators: Other, Trip"):
        resolve(SourceOptions(str(tmp_path)))
    with pytest.raises(UnknownOperator, match="no operator 'Tripp'; there are: Other, Trip"):
        resolve(SourceOptions(str(tmp_path), operator="Tripp"))
    with pytest.raises(EpochNotRetained, match="operator Other has no state yet"):
        resolve(SourceOptions(str(tmp_path), operator="Other"))
    assert resolve(SourceOptions(str(tmp_path), operator="Trip")).operator == OPERATOR


def test_an_unknown_variable_is_refused_with_those_that_there_are(writer: Recorded, tmp_path: Path) -> None:
    writer.turn(put(0))
    with pytest.raises(DefinitionError, match="no state variable 'm'; there are: n"):
        resolve(SourceOptions(str(tmp_path), variable="m"))


def test_a_folder_without_a_checkpoint_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(CheckpointForeign, match="there is no checkpoint at"):
        resolve(SourceOptions(str(tmp_path / "none")))
    assert not (tmp_path / "none").exists()
    Checkpoint.open(open_storage(str(tmp_path / "empty")), ME)
    with pytest.raises(CheckpointError, match="has no operators yet"):
        resolve(SourceOptions(str(tmp_path / "empty")))


# --- columns ---


def test_columns_are_keys_then_variables_then_the_key_group() -> None:
    schema = schema_of({"car": pa.string()}, {"n": pa.int64(), "seen": pa.map_(pa.string(), pa.int64())})
    assert columns_of(schema).schema.simpleString() == (
        "struct<car:string,n:bigint,seen:map<string,bigint>,key_group:int>"
    )
    assert columns_of(schema, ["n"], changes=True).schema.fieldNames() == [
        "batch_id",
        "change_type",
        "car",
        "n",
        "key_group",
    ]


def test_names_that_are_taken_are_evaded_whatever_their_case() -> None:
    schema = schema_of(
        {"N": pa.int64(), "key_n": pa.int64()}, {"n": pa.int64(), "KEY_GROUP": pa.int64(), "batch_id": pa.int64()}
    )
    assert columns_of(schema, changes=True).schema.fieldNames() == [
        "bedload_batch_id",
        "change_type",
        "key_key_N",
        "key_n",
        "n",
        "KEY_GROUP",
        "batch_id",
        "bedload_key_group",
    ]


def test_columns_that_the_user_wrote_down_are_the_only_ones() -> None:
    schema = schema_of({"car": pa.int64()}, {"n": pa.int64(), "m": pa.int64()})
    chosen = columns_of(schema).select(StructType().add("M", LongType()))
    assert chosen.sources == ("m",)
    with pytest.raises(SchemaError, match="'m' of the state is bigint, not int"):
        columns_of(schema).select(StructType().add("m", IntegerType()))
    with pytest.raises(SchemaError, match="no column 'x'; it has car, n, m, key_group"):
        columns_of(schema).select(StructType().add("x", LongType()))
