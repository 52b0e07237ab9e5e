"""Records come back equal; what is damaged or from the future says so."""

from __future__ import annotations

import json

import msgspec
import pyarrow as pa
import pytest

from bedload.checkpoint.records import (
    Claim,
    FileInfo,
    Format,
    Manifest,
    OperatorSchema,
    Record,
    SnapshotPart,
    TurnRecord,
    Variable,
    decode,
    encode,
    pack_owners,
    pack_schema,
)
from bedload.core.errors import CheckpointDamaged, CheckpointVersion
from bedload.core.ids import Epoch, Generation, QueryId, Turn, WorkerId

VARIABLE = Variable(name="n", type="int", arrow=pack_schema(pa.schema([pa.field("n", pa.int64())])), kind="value")
SCHEMA = OperatorSchema(
    number=1,
    layout="rows",
    key_names=("car",),
    key_types=pack_schema(pa.schema([("car", pa.string())])),
    key_groups=8,
    variables=(VARIABLE,),
)
TURN = TurnRecord(
    turn=Turn(1 << 32 | 2),
    parent=Turn(1 << 32 | 1),
    generation=Generation(1),
    query=QueryId("q"),
    run="r",
    epoch=Epoch(3),
    location="s3://x",
    schema=1,
    owners=pack_owners([0, 0, 1, 1, 1, 0]),
    workers=(WorkerId(0), WorkerId(1)),
    committed={"q": Epoch(2), "other": Epoch(9)},
)
PART = SnapshotPart(groups=(0, 1), rows=5, files={"n": FileInfo(path="n/part-00000.parquet", bytes=9, xxh3="00ff" * 4)})
MANIFEST = Manifest(
    turn=Turn(5),
    schema=1,
    query=QueryId("q"),
    epoch=Epoch(3),
    parts=(PART,),
    bytes=9,
    rows=5,
    committed={"q": Epoch(3)},
)
CLAIM = Claim(generation=Generation(1), token="t", when=1.5, host="h", pid=7, bedload="0.1.0")
ALL: list[Record] = [Format(id="a"), CLAIM, SCHEMA, TURN, MANIFEST]


def _id(record: Record) -> str:
    return type(record).__name__


@pytest.mark.parametrize("record", ALL, ids=_id)
def test_a_record_comes_back_equal(record: Record) -> None:
    assert decode(type(record), encode(record), "x") == record


@pytest.mark.parametrize("record", ALL, ids=_id)
def test_a_record_that_is_cut_short_is_damaged_at_its_path(record: Record) -> None:
    data = encode(record)
    for end in (0, 1, len(data) // 2, len(data) - 1):
        with pytest.raises(CheckpointDamaged, match=r"s3://b/x\.json") as caught:
            decode(type(record), data[:end], "s3://b/x.json")
        assert caught.value.path == "s3://b/x.json"


@pytest.mark.parametrize("record", ALL, ids=_id)
def test_a_record_with_any_bit_flipped_is_damaged_or_comes_back_equal(record: Record) -> None:
    data = encode(record)
    for at in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        try:
            found = decode(type(record), bytes(flipped), "x")
        except CheckpointDamaged:
            continue
        assert found == record


@pytest.mark.parametrize("record", ALL, ids=_id)
def test_what_is_not_text_at_all_is_damaged(record: Record) -> None:
    with pytest.raises(CheckpointDamaged):
        decode(type(record), b"\xff\xfe\x00", "x")


@pytest.mark.parametrize("record", ALL, ids=_id)
def test_a_later_version_is_said_before_anything_else_is_looked_at(record: Record) -> None:
    with pytest.raises(CheckpointVersion, match="version 3"):
        decode(type(record), b'{"version": 3, "turn": "of a new kind"}', "x")


def test_a_later_version_says_what_to_install() -> None:
    with pytest.raises(CheckpointVersion, match=r'pip install -U "bedload>=9\.1"'):
        decode(Format, b'{"version": 3, "bedload": "9.1"}', "x")


@pytest.mark.parametrize("record", ALL, ids=_id)
def test_fields_of_a_later_version_are_looked_over(record: Record) -> None:
    plain = json.loads(encode(record))
    assert decode(type(record), json.dumps({**plain, "new": [1]}), "x") == record


def test_a_record_of_another_kind_is_damaged() -> None:
    with pytest.raises(CheckpointDamaged, match="a turn's record"):
        decode(TurnRecord, encode(MANIFEST), "x")


def test_a_turn_cannot_build_upon_one_that_is_not_before_it() -> None:
    plain = json.loads(encode(TURN))
    with pytest.raises(CheckpointDamaged, match="cannot build upon"):
        decode(TurnRecord, json.dumps({**plain, "parent": plain["turn"]}), "x")


def test_owners_are_packed_in_runs() -> None:
    assert TURN.owners == ((0, 2), (1, 3), (0, 1))
    assert TURN.owner_of_groups == (0, 0, 1, 1, 1, 0)


def test_the_last_epochs_as_of_a_turn_have_its_own() -> None:
    assert TURN.last_epochs == {"q": 3, "other": 9}


def test_arrow_types_come_back() -> None:
    assert VARIABLE.field == pa.field("n", pa.int64())
    assert SCHEMA.keys == pa.schema([("car", pa.string())])


def test_the_text_of_version_1() -> None:
    """Golden: what was once written must stay readable."""
    text = (
        '{"kind":"turn","turn":4294967298,"parent":4294967297,"generation":1,"query":"q","run":"r","epoch":3,'
        '"location":"s3://x","schema":1,"owners":[[0,2],[1,3],[0,1]],"workers":[0,1],"committed":{"other":9,"q":2},"version":1}'
    )
    then = msgspec.structs.replace(TURN, version=1)
    assert decode(TurnRecord, text.encode(), "x") == then
    assert json.loads(encode(then)) == json.loads(text) | {"xxh3": "4e6cd62f032632ca"}
    assert json.loads(encode(TURN)) == json.loads(text) | {"xxh3": "acd06d54a1ef8d93", "version": 2}
