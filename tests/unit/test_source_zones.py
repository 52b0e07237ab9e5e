"""What Spark sees of datetimes: timestamps, timestamps without a zone, or structs, and that before it reads a value."""

from __future__ import annotations

import dataclasses
import datetime as dt
import zoneinfo
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import BooleanType, LongType, StringType, StructType, TimestampNTZType, TimestampType
from tests.checkpoint_states import OPERATOR
from tests.evolving import SCRIPT, deployment, operator, schema_for
from tests.golden.make import NAME
from tests.source_states import Recorded

import bedload as bl
from bedload.checkpoint import paths
from bedload.core.errors import CheckpointDamaged, SchemaError
from bedload.core.ids import Epoch, KeyGroup, WorkerId
from bedload.keys import hash_columns, key_groups
from bedload.spark.source import BedloadSource, StateReader
from bedload.spark.source_columns import columns_of, zones_in
from bedload.spark.source_options import Changes, SourceOptions
from bedload.spark.source_read import partitions_of, read
from bedload.spark.source_view import View, resolve
from bedload.spark.source_zones import zones_shown

GROUPS = 8
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
NOON = dt.datetime(2024, 7, 1, 12)
AWARE_NOON = NOON.replace(tzinfo=dt.UTC)
MOMENT = StructType().add("wall", TimestampNTZType()).add("zone", StringType()).add("fold", BooleanType())
STRUCT = "struct<wall:timestamp_ntz,zone:string,fold:boolean>"


@dataclasses.dataclass
class Visit:
    n: int = 0
    at: dt.datetime | None = None


Clock = operator(
    "Clock",
    at=(dt.datetime | None, bl.value()),
    times=(dict[str, dt.datetime], bl.map()),
    visits=(list[Visit], bl.list()),
    grid=(np.ndarray, bl.array((2, 2), "int16")),
)


class Clocks:
    """A checkpoint of operators that have datetimes."""

    def __init__(self, folder: Path, cls: Any = Clock) -> None:
        self.folder = str(folder)
        self.runtime = deployment(cls).start(WorkerId(0))
        self.writer = Recorded(folder, schema_for(cls))

    def epoch(self, **steps: Any) -> None:
        """What is done to keys ``k1``, ``k2``, …"""
        SCRIPT[:] = list(steps.values())
        keys = pa.array([int(name[1:]) for name in steps], pa.int64())
        groups = pa.array(key_groups(hash_columns([keys]), GROUPS), pa.int16())
        numbers = pa.array(range(len(steps)), pa.int64())
        self.runtime.begin(Epoch(len(self.writer.records)), [KeyGroup(group) for group in range(GROUPS)])
        self.runtime.apply(pa.RecordBatch.from_arrays([keys, numbers, groups], ["key", "step", "bedload_group"]))
        self.runtime.seal()
        delta = self.runtime.delta()
        assert delta is not None
        self.runtime.commit()
        self.writer.turn(delta)

    def view(self, **options: Any) -> View:
        return resolve(SourceOptions(self.folder, **options))


def put(name: str, value: Any) -> Any:
    return lambda op, ctx: setattr(op, name, value)


def add(key: str, value: Any) -> Any:
    return lambda op, ctx: op.times.__setitem__(key, value)


def types_of(view: View) -> dict[str, str]:
    schema = columns_of(view.schema, zones=zones_shown(view)).schema
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def rows_of(view: View) -> dict[int, dict[str, Any]]:
    columns = columns_of(view.schema, zones=zones_shown(view), changes=view.feed is not None)
    names = [variable.name for variable in view.schema.variables]
    batches = [columns.batch(found) for groups in partitions_of(view) for found in read(view, groups, names)]
    return {row["car"]: row for batch in batches for row in batch.to_pylist()}


def test_what_has_no_datetimes_yet_is_a_timestamp(tmp_path: Path) -> None:
    made = Clocks(tmp_path)
    made.epoch(k1=lambda op, ctx: op.grid.__setitem__((0, 1), 7))
    assert types_of(made.view()) == {
        "car": "bigint",
        "at": "timestamp",
        "times": "map<string,timestamp>",
        "visits": "array<struct<n:bigint,at:timestamp>>",
        "grid": "array<array<smallint>>",
        "key_group": "int",
    }
    assert rows_of(made.view())[1]["grid"] == [[0, 7], [0, 0]]


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(
    ("values", "kind", "shown"),
    [
        ([NOON], "timestamp_ntz", [NOON]),
        ([NOON.replace(tzinfo=dt.UTC)], "timestamp", [NOON.replace(tzinfo=dt.UTC)]),
        (
            [NOON.replace(tzinfo=BERLIN), NOON.replace(tzinfo=dt.UTC)],
            "timestamp",
            [NOON.replace(hour=10, tzinfo=dt.UTC), NOON.replace(tzinfo=dt.UTC)],
        ),
        (
            [NOON, NOON.replace(tzinfo=BERLIN)],
            STRUCT,
            [{"wall": NOON, "zone": None, "fold": False}, {"wall": NOON, "zone": "Europe/Berlin", "fold": False}],
        ),
    ],
)
def test_zones_are_found_in_whole_values_and_in_patches(
    tmp_path: Path, compacted: bool, values: list[Any], kind: str, shown: list[Any]
) -> None:
    made = Clocks(tmp_path)
    made.epoch(k1=add("zero", values[0]))
    for i, value in enumerate(values):
        made.epoch(k1=add(f"a{i}", value))  # a patch
        made.epoch(k1=lambda op, ctx, v=value: op.visits.append(Visit(at=v)))
        made.epoch(**{f"k{i + 1}": put("at", value)})
    if compacted:
        made.writer.snapshot(len(made.writer.records) - 1)
    view = made.view()
    assert (view.plan.snapshot is not None) == compacted
    found = types_of(view)
    assert found["at"] == kind
    assert found["times"] == f"map<string,{kind}>"
    assert found["visits"] == f"array<struct<n:bigint,at:{kind}>>"
    rows = rows_of(view)
    assert [rows[i + 1]["at"] for i in range(len(values))] == shown
    assert [dict(rows[1]["times"])[f"a{i}"] for i in range(len(values))] == shown
    assert [visit["at"] for visit in rows[1]["visits"]] == shown


def test_a_table_is_what_it_was_when_it_was_loaded(tmp_path: Path) -> None:
    made = Clocks(tmp_path)
    made.epoch(k1=put("at", NOON))
    made.epoch(k1=put("at", NOON.replace(tzinfo=dt.UTC)))
    assert types_of(made.view(batch=0))["at"] == "timestamp_ntz"
    assert types_of(made.view())["at"] == STRUCT, "a value that was replaced may still count, until the next snapshot"
    made.writer.snapshot(1)
    assert types_of(made.view())["at"] == "timestamp"


def test_the_change_feed_looks_at_all_of_its_epochs(tmp_path: Path) -> None:
    made = Clocks(tmp_path)
    made.epoch(k1=put("at", NOON))
    made.epoch(k2=put("at", NOON.replace(tzinfo=dt.UTC)))
    assert types_of(made.view(changes=Changes(0, 0)))["at"] == "timestamp_ntz"
    feed = made.view(changes=Changes(0, 1))
    assert types_of(feed)["at"] == STRUCT
    assert rows_of(feed)[2]["at"]["zone"] == "+00:00"


def test_only_the_variable_that_is_wanted_is_looked_at(tmp_path: Path) -> None:
    made = Clocks(tmp_path)
    made.epoch(k1=put("at", NOON))
    assert zones_shown(made.view(variable="grid")) == {}
    assert zones_shown(made.view(variable="at")) == {"at": ""}


def test_datetimes_of_older_schemas_count_under_their_old_names(tmp_path: Path) -> None:
    made = Clocks(tmp_path)
    made.epoch(k1=put("at", NOON))
    late = operator(
        "Clock",
        since=(dt.datetime | None, bl.value(renamed_from="at")),
        new=(dt.datetime, bl.value(NOON.replace(tzinfo=dt.UTC))),
        times=(dict[str, dt.datetime], bl.map()),
        visits=(list[Visit], bl.list()),
    )
    schema = msgspec.structs.replace(schema_for(late), base=1)
    made.writer.schema = made.writer.checkpoint.add_schema(OPERATOR, schema)
    made.runtime = deployment(late).start(WorkerId(0))
    made.epoch(k2=put("since", None))
    assert types_of(made.view()) == {
        "car": "bigint",
        "since": "timestamp_ntz",
        "new": "timestamp",
        "times": "map<string,timestamp>",
        "visits": "array<struct<n:bigint,at:timestamp>>",
        "key_group": "int",
    }
    assert rows_of(made.view())[1]["since"] == NOON


def become(made: Clocks, cls: Any, base: int) -> None:
    """Go on with another definition."""
    schema = msgspec.structs.replace(schema_for(cls), base=base)
    made.writer.schema = made.writer.checkpoint.add_schema(OPERATOR, schema)
    made.runtime = deployment(cls).start(WorkerId(0))


@dataclasses.dataclass
class Stop:
    n: int = 0


@dataclasses.dataclass
class NaiveStop(Stop):
    at: dt.datetime = NOON


@dataclasses.dataclass
class AwareStop(Stop):
    at: dt.datetime = AWARE_NOON


def stops(cls: type) -> Any:
    return operator("Stops", stop=(cls | None, bl.value()))


@pytest.mark.parametrize("compacted", [False, True])
def test_defaults_of_the_schemas_in_between_count(tmp_path: Path, compacted: bool) -> None:
    made = Clocks(tmp_path, stops(Stop))
    made.epoch(k1=put("stop", Stop(1)))
    if compacted:
        made.writer.snapshot(0)
    become(made, stops(NaiveStop), 1)
    made.epoch(k2=put("stop", None))
    assert types_of(made.view())["stop"] == "struct<n:bigint,at:timestamp_ntz>"
    become(made, stops(AwareStop), 2)
    made.epoch(k3=put("stop", None))
    assert types_of(made.view())["stop"] == f"struct<n:bigint,at:{STRUCT}>"
    assert rows_of(made.view())[1]["stop"]["at"]["zone"] is None, "as it began when it was new"


def test_a_default_counts_only_where_a_variable_begins(tmp_path: Path) -> None:
    made = Clocks(tmp_path, operator("Late", at=(dt.datetime, bl.value(NOON))))
    made.epoch(k1=put("at", AWARE_NOON))
    become(made, operator("Late", at=(dt.datetime, bl.value(NOON)), n=(int, bl.value(0))), 1)
    made.epoch(k2=put("at", AWARE_NOON))
    assert types_of(made.view())["at"] == "timestamp"


def test_a_snapshot_of_version_1_does_not_tell_so_it_shows_structs() -> None:
    folder = Path(__file__).parents[1] / "golden" / "v1" / "rows" / "checkpoint"
    view = resolve(SourceOptions(str(folder), operator=NAME, batch=1))
    assert view.plan.snapshot is not None
    assert types_of(view)["moment"] == STRUCT
    newer = Path(__file__).parents[1] / "golden" / "v2" / "rows" / "checkpoint"
    assert types_of(resolve(SourceOptions(str(newer), operator=NAME, batch=1)))["utc"] == "timestamp"


# --- as Spark asks ---


def source_of(made: Clocks, **options: str) -> BedloadSource:
    return BedloadSource({"path": made.folder, **options})


def test_a_schema_that_is_given_is_not_looked_up(tmp_path: Path) -> None:
    made = Clocks(tmp_path)
    made.epoch(k1=put("at", NOON.replace(tzinfo=BERLIN)))
    whole = source_of(made).schema()
    assert whole["at"].dataType.simpleString() == "timestamp"
    for kind in (TimestampType(), MOMENT):
        wanted = StructType().add("car", LongType()).add("at", kind)
        reader = source_of(made).reader(wanted)
        assert isinstance(reader, StateReader)
        rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        assert [row["car"] for row in rows] == [1]
        assert rows[0]["at"] == (
            NOON.replace(hour=10, tzinfo=dt.UTC)
            if kind == TimestampType()
            else {"wall": NOON, "zone": "Europe/Berlin", "fold": False}
        )


def test_a_schema_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    made = Clocks(tmp_path)
    made.epoch(k1=put("at", NOON.replace(tzinfo=BERLIN)))
    with pytest.raises(SchemaError, match="column 'at' of the state is timestamp, not bigint"):
        source_of(made).reader(StructType().add("at", LongType()))
    reader = source_of(made).reader(StructType().add("at", TimestampNTZType()))
    with pytest.raises(
        SchemaError, match="'at' was to be read as timestamps without a zone, and holds datetimes of an"
    ):
        [list(reader.read(part)) for part in reader.partitions()]
    made.epoch(k1=put("at", NOON))
    reader = source_of(made).reader(StructType().add("at", TimestampType()))
    with pytest.raises(SchemaError, match=r"read as timestamps of a zone, .*leave the schema out"):
        [list(reader.read(part)) for part in reader.partitions()]


def test_types_tell_zones(tmp_path: Path) -> None:
    schema = schema_for(Clock)
    for zones in ({"at": "UTC", "times": "", "visits": "*"}, {"at": "*", "times": "UTC", "visits": ""}):
        assert zones_in(schema, columns_of(schema, zones=zones).schema) == zones


def test_files_that_are_deleted_while_zones_are_looked_for_are_replaced_by_a_snapshot(tmp_path: Path) -> None:
    made = Clocks(tmp_path)
    made.epoch(k1=put("at", NOON))
    made.epoch(k2=put("at", NOON))
    source = source_of(made)
    source._resolved()
    made.writer.snapshot(1)
    for record in made.writer.records:
        for worker in record.workers:
            (tmp_path / paths.delta(OPERATOR, record.turn, worker)).unlink()
    assert source.schema()["at"].dataType.simpleString() == "timestamp_ntz"


def test_a_damaged_file_is_an_error_at_once(tmp_path: Path) -> None:
    made = Clocks(tmp_path)
    made.epoch(k1=put("at", NOON))
    source = source_of(made)
    source._resolved()
    record = made.writer.records[0]
    for worker in record.workers:
        file = tmp_path / paths.delta(OPERATOR, record.turn, worker)
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointDamaged, match=r"the segment .* is damaged"):
        source.schema()
