"""Datetimes are timestamps where one zone has them all, and come back as exactly the same values."""

from __future__ import annotations

import dataclasses
import datetime as dt
import zoneinfo
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.checkpoint_states import ME, OPERATOR, read_part
from tests.evolving import Evolving, column_of, operator, schema_for

import bedload as bl
from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.filing import Filing
from bedload.checkpoint.records import FileInfo, Manifest, OperatorSchema, SnapshotPart, manifest_of
from bedload.checkpoint.snapshots import write_part, write_parts
from bedload.checkpoint.storage import open_storage
from bedload.checkpoint.strays import stray_files
from bedload.checkpoint.timestamps import (
    NAIVE,
    NO_STAMP,
    UTC,
    has_datetimes,
    stamped,
    stamped_type,
    unstamped,
    zone_for,
    zone_shown,
    zones_of,
)
from bedload.checkpoint.uniform import is_uniform, uniform, zones_before
from bedload.core.errors import CheckpointDamaged, StateTypeError
from bedload.state import codec
from bedload.state.moments import MOMENT, decode_moment, encode_moment
from bedload.worker.operator import state_of

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
ZONES = [
    None,
    dt.UTC,
    zoneinfo.ZoneInfo("UTC"),
    BERLIN,
    zoneinfo.ZoneInfo("America/Sao_Paulo"),
    zoneinfo.ZoneInfo("Africa/Monrovia"),
    dt.timezone(dt.timedelta(hours=-3, minutes=-30)),
    dt.timezone(dt.timedelta(seconds=3723, microseconds=5)),
]
AUTUMN = dt.datetime(2024, 10, 27, 2, 30)
"""A clock in Berlin shows it twice."""
SPRING = dt.datetime(2024, 3, 31, 2, 30)
"""A clock in Berlin never shows it."""


def exactly(value: dt.datetime | None) -> Any:
    return None if value is None else (value.replace(tzinfo=None), value.fold, repr(value.tzinfo))


def column(values: list[dt.datetime | None]) -> pa.Array:
    return pa.array([None if value is None else encode_moment(value) for value in values], MOMENT)


def moments(found: pa.Array) -> list[Any]:
    return [exactly(None if value is None else decode_moment(value)) for value in found.to_pylist()]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.none() | st.tuples(st.datetimes(), st.sampled_from([0, 0, 0, 1])), max_size=4),
    st.lists(st.sampled_from(ZONES), min_size=1, max_size=2),
)
@example([(AUTUMN, 0), (AUTUMN, 1)], [BERLIN])
@example([(SPRING, 0)], [BERLIN])
@example([(dt.datetime.min, 0), (dt.datetime.max, 0)], [dt.UTC])
@example([(dt.datetime.min, 0)], [BERLIN])
@example([(dt.datetime.max, 0)], [zoneinfo.ZoneInfo("America/Sao_Paulo")])
def test_what_becomes_a_timestamp_comes_back(found: list[Any], zones: list[Any]) -> None:
    values = [
        None if it is None else it[0].replace(tzinfo=zones[i % len(zones)], fold=it[1]) for i, it in enumerate(found)
    ]
    given = column(values)
    zone = zone_for(zones_of(given))
    there = {repr(value.tzinfo) for value in values if value is not None}
    if len(there) > 1:
        assert zone == NO_STAMP
    if zone == NO_STAMP:
        return
    made = stamped(given, zone)
    made.validate(full=True)
    assert made.type == stamped_type(MOMENT, zone)
    back = unstamped(made, MOMENT, zone)
    back.validate(full=True)
    assert back.type == MOMENT
    assert moments(back) == [exactly(value) for value in values]
    for value, stamp in zip(values, made.cast(pa.int64()).to_pylist(), strict=True):
        if value is not None and value.tzinfo is not None and 1900 < value.year < 2100:
            assert stamp == (value - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("values", "zone", "shown"),
    [
        ([], UTC, UTC),
        ([None], UTC, UTC),
        ([AUTUMN], NAIVE, NAIVE),
        ([AUTUMN.replace(fold=1)], NO_STAMP, NAIVE),
        ([AUTUMN.replace(tzinfo=dt.UTC)], "+00:00", UTC),
        ([AUTUMN.replace(tzinfo=zoneinfo.ZoneInfo("UTC"))], "UTC", UTC),
        ([AUTUMN.replace(tzinfo=dt.UTC, fold=1)], NO_STAMP, UTC),
        ([AUTUMN.replace(tzinfo=BERLIN), AUTUMN.replace(tzinfo=BERLIN, fold=1)], "Europe/Berlin", UTC),
        ([AUTUMN.replace(day=1, tzinfo=BERLIN, fold=1)], NO_STAMP, UTC),
        ([SPRING.replace(tzinfo=BERLIN)], NO_STAMP, UTC),
        ([AUTUMN.replace(tzinfo=BERLIN), AUTUMN.replace(tzinfo=dt.UTC)], NO_STAMP, UTC),
        ([AUTUMN, None, AUTUMN.replace(tzinfo=dt.UTC)], NO_STAMP, NO_STAMP),
        ([dt.datetime.min, dt.datetime.max], NAIVE, NAIVE),
        ([dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)], "+00:00", UTC),
        ([dt.datetime.min.replace(tzinfo=BERLIN)], NO_STAMP, UTC),
        ([dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=5)))], NO_STAMP, UTC),
        ([dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-5)))], NO_STAMP, UTC),
    ],
)
def test_which_zone_says_it_all(values: list[Any], zone: str, shown: str) -> None:
    found = zones_of(column(values))
    assert zone_for(found) == zone
    assert zone_shown(found) == shown
    assert zones_of(column(values), exact=False) == found - {NO_STAMP}


def test_arrow_gets_a_zone_that_it_knows() -> None:
    kinds = {zone: stamped_type(MOMENT, zone).tz for zone in ("", "+00:00", "-03:30", "Europe/Berlin", "+01:02:03")}
    assert kinds == {
        "": None,
        "+00:00": "UTC",
        "-03:30": "-03:30",
        "Europe/Berlin": "Europe/Berlin",
        "+01:02:03": "UTC",
    }


NESTED = pa.map_(pa.string(), pa.list_(pa.struct([("n", pa.int64()), ("at", MOMENT)])))
PLACE = {"n": 1, "at": encode_moment(AUTUMN.replace(tzinfo=BERLIN))}


def test_datetimes_are_found_at_any_depth_and_not_beyond_a_slice() -> None:
    naive = {"n": 2, "at": encode_moment(AUTUMN)}
    whole = pa.array([[("a", [PLACE, {"n": 3, "at": None}]), ("b", None)], None, [], [("c", [naive])]], NESTED)
    assert zones_of(whole) == {"Europe/Berlin", NAIVE}
    for part, zones in ((whole.slice(0, 3), {"Europe/Berlin"}), (whole.slice(1, 2), set()), (whole.slice(3), {NAIVE})):
        assert zones_of(part) == zones
        zone = zone_for(zones)
        made = stamped(part, zone)
        made.validate(full=True)
        assert made.type == stamped_type(NESTED, zone)
        assert not has_datetimes(made.type)
        assert unstamped(made, NESTED, zone).to_pylist() == part.to_pylist()


def test_a_struct_that_looks_like_a_datetime_is_none() -> None:
    """A dataclass of the user's may have a wall, a zone and a fold."""
    kind = pa.struct([("wall", MOMENT), ("zone", pa.string()), ("fold", pa.bool_())])
    given = pa.array([{"wall": encode_moment(AUTUMN), "zone": "x", "fold": True}, None], kind)
    made = stamped(given, NAIVE)
    assert made.type == MOMENT
    assert unstamped(made, kind, NAIVE).to_pylist() == given.to_pylist()


def test_datetimes_of_a_zone_that_is_not_known_here_stay_structs() -> None:
    """Whoever has no database of zones can compact all the same; who looks at values is told what to do."""
    given = pa.array([{"wall": AUTUMN, "zone": "Nowhere/Else", "fold": False}], MOMENT)
    assert zones_of(given) == {"Nowhere/Else", NO_STAMP}
    for look in (lambda: stamped(given, UTC), lambda: decode_moment(given[0].as_py())):
        with pytest.raises(StateTypeError, match=r"the time zone 'Nowhere/Else' is not known .*install .*tzdata"):
            look()


# --- files ---


@dataclasses.dataclass
class Visit:
    at: dt.datetime
    note: str = ""


Clock = operator(
    "Clock",
    at=(dt.datetime | None, bl.value()),
    by_name=(dict[str, dt.datetime], bl.map()),
    by_time=(dict[dt.datetime, int], bl.map()),
    visit=(Visit | None, bl.value()),
    n=(int, bl.value(0)),
)
SCHEMA = schema_for(Clock)


def rows_of(values: list[Any]) -> list[dict[str, Any]]:
    return [
        {"at": v, "by_name": {} if v is None else {"x": v}, "by_time": {} if v is None else {v: 1}}
        | {"visit": None if v is None else Visit(v), "n": i}
        for i, v in enumerate(values)
    ]


def batch_of(values: list[Any]) -> pa.RecordBatch:
    found = column_of(Clock, rows_of(values))
    return found.sort_by("bedload_group") if found.num_rows else found


def infos(part: SnapshotPart) -> dict[str, Any]:
    return {name: info.zone for name, info in part.files.items() if info.zone is not msgspec.UNSET}


def test_a_snapshot_has_timestamps_and_gives_datetimes(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    values = [AUTUMN.replace(tzinfo=BERLIN), None, AUTUMN.replace(tzinfo=BERLIN, fold=1)]
    part = write_part(storage, "s", SCHEMA, batch_of(values))
    assert infos(part) == dict.fromkeys(["at", "by_name", "by_time", "visit"], "Europe/Berlin")
    found = {name: pq.read_table(tmp_path / "s" / info.path) for name, info in part.files.items()}
    stamp = pa.timestamp("us", "Europe/Berlin")
    assert found["at"].schema.field("at").type == stamp
    assert found["by_name"].schema.field("by_name").type.item_type == stamp
    assert found["by_time"].schema.field("by_time").type.key_type == stamp
    assert found["visit"].schema.field("visit").type.field("at").type == stamp
    back = read_part(storage, "s", SCHEMA, part, part.groups)
    assert sorted(back.to_pylist(), key=repr) == sorted(batch_of(values).to_pylist(), key=repr)
    assert back.schema.types == batch_of(values).schema.types


def test_a_file_goes_on_as_the_snapshot_before_it(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    aware, naive = [AUTUMN.replace(tzinfo=dt.UTC)], [AUTUMN]
    for values, before, zone in (
        (aware, None, "+00:00"),
        ([None], None, UTC),
        ([None], NAIVE, NAIVE),
        ([None], NO_STAMP, NO_STAMP),
        (naive, NO_STAMP, NO_STAMP),
        (naive, "+00:00", NAIVE),
        (aware + naive, "+00:00", NO_STAMP),
    ):
        part = write_part(storage, "s", SCHEMA, batch_of(values), zones={} if before is None else {"at": before})
        assert infos(part)["at"] == zone
        back = read_part(storage, "s", SCHEMA, part, part.groups)
        assert sorted(back.to_pylist(), key=repr) == sorted(batch_of(values).to_pylist(), key=repr)


def test_files_without_a_zone_are_read_as_structs(tmp_path: Path) -> None:
    """As version 1 wrote them."""
    storage = open_storage(str(tmp_path))
    part = write_part(storage, "s", SCHEMA, batch_of([AUTUMN]), zones=dict.fromkeys(["at", "visit"], NO_STAMP))
    old = {n: FileInfo(path=i.path, bytes=i.bytes, xxh3=i.xxh3) for n, i in part.files.items() if n in ("at", "visit")}
    read = read_part(storage, "s", SCHEMA, msgspec.structs.replace(part, files=old), part.groups, ["at", "visit"])
    assert read.column("at").to_pylist() == batch_of([AUTUMN]).column("at").to_pylist()


def test_a_file_that_is_not_what_the_manifest_says_is_damaged(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    part = write_part(storage, "s", SCHEMA, batch_of([AUTUMN]), zones={"at": NO_STAMP})
    files = part.files | {"at": msgspec.structs.replace(part.files["at"], zone=UTC)}
    with pytest.raises(CheckpointDamaged, match=r"its column 'at' is struct<.*>, and not struct"):
        read_part(storage, "s", SCHEMA, msgspec.structs.replace(part, files=files), part.groups)


# --- files that are alike ---


class Made:
    """A checkpoint of a :class:`Clock` on real runtimes, and its snapshots."""

    def __init__(self, folder: Path) -> None:
        self.storage = open_storage(str(folder))
        self.checkpoint = Checkpoint.open(self.storage, ME)
        self.checkpoint.claim()
        self.evolving = Evolving(self.storage, Clock)
        self.schema = self.checkpoint.add_schema(OPERATOR, SCHEMA)

    def epoch(self, values: dict[int, Any]) -> None:
        def put(value: Any) -> Any:
            def step(op: Any, ctx: Any) -> None:
                op.at = value
                op.visit = None if value is None else Visit(value)
                if value is not None:
                    op.by_name["x"] = value

            return step

        self.evolving.epoch(*((key, put(value)) for key, value in values.items()))

    def snapshot(self, target_bytes: int = 1) -> Manifest:
        """In parts of one key group, as by workers who do not know of each other."""
        record = self.evolving.writer.records[-1]
        folder = paths.snapshot(OPERATOR, record.turn)
        restore = self.evolving.restore()
        before = zones_before(restore.snapshot)
        chunks = restore.chunks(chunk_groups=1)
        parts = write_parts(self.storage, folder, self.schema, chunks, target_bytes=target_bytes, zones=before)
        made = Filing(self.checkpoint).write_manifest(OPERATOR, manifest_of(record, self.schema, parts))
        assert not stray_files(self.storage, folder, made.parts)
        self.evolving.manifests.append(made)
        return made

    def forms(self, manifest: Manifest, name: str = "at") -> set[str]:
        """The types in a snapshot's folder of a variable, as whoever reads Parquet sees them."""
        folder = Path(self.storage.url.removeprefix("file://")) / paths.snapshot(OPERATOR, manifest.turn) / name
        return {str(pq.read_table(file).schema.field(name).type) for file in folder.iterdir()}


KEYS = range(12)


def test_files_of_a_variable_become_alike_when_their_zones_differ(tmp_path: Path) -> None:
    made = Made(tmp_path)
    aware = AUTUMN.replace(tzinfo=dt.UTC)
    made.epoch({key: None if key % 2 else aware for key in KEYS})
    one = made.snapshot()
    assert made.forms(one) == {"timestamp[us, tz=UTC]"}
    made.epoch({3: AUTUMN})
    two = made.snapshot()
    assert made.forms(two) == {"struct<wall: timestamp[us], zone: string, fold: bool>"}
    assert all("struct<wall" in form for form in made.forms(two, "by_name"))
    assert made.evolving.restored() == made.evolving.state()
    made.epoch({3: aware})
    three = made.snapshot()
    assert made.forms(three) == made.forms(two), "it goes on as it was"
    made.epoch({4: aware.replace(year=2025)})
    assert made.forms(made.snapshot()) == {"timestamp[us, tz=UTC]"}, "and is what it can be, one snapshot later"
    assert made.evolving.restored() == made.evolving.state()


def test_all_values_of_a_variable_may_change_their_zone(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for zone in (None, dt.UTC, BERLIN, None):
        made.epoch({key: AUTUMN.replace(tzinfo=zone, fold=1 if zone is BERLIN else 0) for key in KEYS})
        assert len(made.forms(made.snapshot())) == 1
        assert made.evolving.restored() == made.evolving.state()
        assert {exactly(state["at"]) for state in made.evolving.restored().values()} == {
            exactly(state["at"]) for state in made.evolving.state().values()
        }


def test_a_manifest_that_is_there_already_counts(tmp_path: Path) -> None:
    """The first attempt made it, and was told that it had not; the files that it replaced are gone."""
    made = Made(tmp_path)
    made.epoch({key: None if key % 2 else AUTUMN for key in KEYS})
    record = made.evolving.writer.records[-1]
    folder = paths.snapshot(OPERATOR, record.turn)
    parts = write_parts(
        made.storage, folder, made.schema, made.evolving.restore().chunks(chunk_groups=1), target_bytes=1
    )
    manifest = manifest_of(record, made.schema, parts)
    assert not is_uniform(manifest)
    first = Filing(made.checkpoint).write_manifest(OPERATOR, manifest)
    assert is_uniform(first)
    assert first.bytes == sum(info.bytes for part in first.parts for info in part.files.values())
    again = Filing(made.checkpoint).write_manifest(OPERATOR, manifest)
    assert again.parts == first.parts


def test_older_files_do_not_tell_their_zones(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    part = write_part(storage, "s", SCHEMA, batch_of([AUTUMN]))
    old = {name: FileInfo(path=info.path, bytes=info.bytes, xxh3=info.xxh3) for name, info in part.files.items()}
    silent = msgspec.structs.replace(part, files=part.files | {"at": old["at"]})
    manifest = Manifest(turn=1, schema=1, query="q", epoch=0, parts=(silent,), bytes=0, rows=1, committed={})  # type: ignore[arg-type]
    assert zones_before(manifest) == dict.fromkeys(["by_name", "by_time", "visit"], NAIVE)
    assert zones_before(None) == {}
    assert is_uniform(manifest)
    assert uniform(storage, OPERATOR, SCHEMA, manifest).parts == manifest.parts


def test_columns_that_look_like_datetimes_are_left_alone(tmp_path: Path) -> None:
    from tests.checkpoint_states import schema_of, state

    schema = schema_of({"car": pa.int64()}, {"at": MOMENT})
    part = write_part(open_storage(str(tmp_path)), "s", schema, state(schema, {1: {"at": encode_moment(AUTUMN)}}))
    assert infos(part) == {}
    assert isinstance(schema, OperatorSchema)
    assert codec.arrow_schema(state_of(Clock)).field("at").type == MOMENT
