"""Checkpoints that were written once are read for ever, and what is written now is what was written then.

If this fails after a change: files that are out there cannot be read any more, or others than before are written. Make
the change readable, or raise the version of the format and keep reading the old one. The files of a released
version are never written again (``tests/golden/make.py``).
"""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.golden.make import LAYOUTS, NAME, OPERATORS, make, start, state_of_runtime

from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.compaction import restore_at
from bedload.checkpoint.records import VERSION
from bedload.checkpoint.segments import decode_segment
from bedload.checkpoint.storage import open_storage
from bedload.core.ids import Turn

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=OPERATORS)
def version(request: pytest.FixtureRequest) -> int:
    """Of the format."""
    return int(request.param)


def opened(version: int, layout: str) -> Checkpoint:
    return Checkpoint.open(open_storage(str(GOLDEN / f"v{version}" / layout / "checkpoint")))


def expected(version: int, layout: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"v{version}" / layout / "expected.json").read_text())
    return found


def test_there_are_files_of_every_version() -> None:
    assert sorted(path.name for path in GOLDEN.glob("v*")) == [f"v{version}" for version in range(1, VERSION + 1)]
    assert list(OPERATORS) == list(range(1, VERSION + 1))


def test_the_state_at_every_turn_is_what_the_workers_had(version: int, layout: str) -> None:
    checkpoint, wanted = opened(version, layout), expected(version, layout)
    history = checkpoint.load_history(NAME)
    assert history.head == int(wanted["head"])
    assert [str(turn) for turn in history.chain()][::-1] == list(wanted["turns"])
    for turn, found in wanted["turns"].items():
        runtime = start(OPERATORS[version], layout, found["schema"], checkpoint, Turn(int(turn)))
        assert json.loads(json.dumps(state_of_runtime(runtime))) == found["state"]


def test_the_changed_operator_goes_on_from_the_state_before_the_change(version: int, layout: str) -> None:
    checkpoint, wanted = opened(version, layout), expected(version, layout)
    last = max(turn for turn, found in wanted["turns"].items() if found["schema"] == 1)
    runtime = start(OPERATORS[version], layout, 2, checkpoint, Turn(int(last)))
    found = dict(json.loads(json.dumps([[str(key), row] for key, row in state_of_runtime(runtime)])))
    assert found.keys() == {str(key) for key, _ in wanted["turns"][last]["state"]}
    row = dict(found["a"]["dict"]) if layout == "rows" else dict(next(iter(found.values()))["dict"])
    if layout == "rows" and version == 2:
        assert row["here"] == {
            "datetime": repr(OPERATORS[2].dt.datetime(2024, 10, 27, 2, 30, tzinfo=OPERATORS[2].BERLIN))
        }
        assert row["weights"] == {"float64": [[-1.0, -1.0, -1.0], [3.0, 5.0, 7.0]]}
        assert row["tallies"] == {"int64": [0, 1, 254, 255]}
        assert row["since"] == {"datetime": "datetime.datetime(2024, 2, 29, 0, 0, tzinfo=datetime.timezone.utc)"}
    elif layout == "rows":
        assert row["title"] == "Straße"
        assert row["recent"] == [{"float": "3.0"}, {"float": "4.0"}]
        assert row["point"] == {"Point2": {"across": {"float": "9.0"}, "label": "eight", "tags": ["new"]}}
        assert row["since"] == {"date": "datetime.date(2024, 2, 29)"}
    else:
        assert row["count(n)"] == 0
        assert row["min(x)"] is None
        assert "max(day)" not in row


def test_it_is_read_without_the_operator(version: int, layout: str) -> None:
    """By a reader that has the files alone."""
    checkpoint, wanted = opened(version, layout), expected(version, layout)
    restore, schema = restore_at(checkpoint, NAME, Turn(int(wanted["head"])))
    table = restore.table()
    assert table.num_rows == len(wanted["turns"][wanted["head"]]["state"])
    assert [variable.name for variable in schema.variables] == table.schema.names[1 + len(schema.key_names) :]


def test_what_is_written_now_is_what_was_written_then(layout: str, tmp_path: Path) -> None:
    make(tmp_path, OPERATORS[VERSION], layout)
    then, now = (described(folder / layout / "checkpoint") for folder in (GOLDEN / f"v{VERSION}", tmp_path))
    assert now.keys() == then.keys()
    for path, content in then.items():
        assert now[path] == content, path
    assert json.loads((tmp_path / layout / "expected.json").read_text()) == expected(VERSION, layout)


def test_datetimes_of_one_zone_are_timestamps_in_its_snapshot() -> None:
    folder = next((GOLDEN / "v2" / "rows" / "checkpoint").rglob("snapshots/*-*"))
    kinds = {name: pq.read_table(folder / name).schema.field(name).type for name in ("utc", "local", "naive", "never")}
    assert kinds == {
        "utc": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us", "Europe/Berlin"),
        "naive": pa.timestamp("us"),
        "never": pa.timestamp("us", "UTC"),
    }
    assert pa.types.is_struct(pq.read_table(folder / "mixed").schema.field("mixed").type)
    assert str(pq.read_table(folder / "by_name").schema.field("by_name").type.item_type) == "timestamp[us, tz=-03:30]"
    assert pq.read_table(folder / "visits").schema.field("visits").type.value_type.field("at").type == kinds["utc"]


# --- files, but for what depends on the versions of libraries: sizes, checksums, the bytes of Arrow and Parquet ---


def described(folder: Path) -> dict[str, Any]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = re.sub(r"-[0-9a-f]{16}\.parquet$", "-*.parquet", path.relative_to(folder).as_posix())
            found[name] = _content(path)
    return found


def _content(path: Path) -> Any:
    if path.suffix == ".json":
        return _without_sizes(msgspec.json.decode(path.read_bytes()))
    if path.suffix == ".arrow":
        meta, batch = decode_segment(pa.py_buffer(path.read_bytes()), str(path))
        kept = batch.drop_columns(["pickled"]) if "pickled" in batch.schema.names else batch
        return meta, str(batch.schema), _rows(kept)
    if path.suffix == ".parquet":
        file = pq.ParquetFile(path)
        rows = "pickled" if path.parent.name == "pickled" else _rows(file.read())
        return str(file.schema).partition("\n")[2], str(file.schema_arrow), file.num_row_groups, rows
    return path.read_bytes()


def _rows(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows, with the members of a set sorted: the order of strings in a Python set is another in every process."""
    rows: list[dict[str, Any]] = table.to_pylist()
    return [row | {"seen": sorted(row["seen"])} if row.get("seen") else row for row in rows]


def _without_sizes(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_sizes(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {}
    for name, item in value.items():
        if name in ("bytes", "xxh3", "operator"):  # the last one came later, and older versions look it over
            continue
        if name == "path":
            item = re.sub(r"-[0-9a-f]{16}\.parquet$", "-*.parquet", item)
        elif name in ("arrow", "key_types"):
            item = str(pa.ipc.read_schema(pa.py_buffer(_bytes(item))))
        elif name == "default" and item is not None:
            with pa.ipc.open_stream(_bytes(item)) as reader:
                (column,) = reader.read_all().columns
            item = str(column.type), None if value.get("name") == "pickled" else column.to_pylist()
        made[name] = _without_sizes(item)
    return made


def _bytes(text: str) -> bytes:
    return msgspec.convert(text, bytes)
