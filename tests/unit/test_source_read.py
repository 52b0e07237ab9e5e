"""State and its changes are read as they were, from whatever files they are in by now."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checkpoint_states import COUNTS, OPERATOR, delta, groups_of_keys, schema_of
from tests.source_states import Baskets, Recorded

from bedload.checkpoint import paths
from bedload.core.errors import CheckpointDamaged, DefinitionError, EpochNotRetained
from bedload.spark import source_read
from bedload.spark.source_columns import columns_of
from bedload.spark.source_options import Changes, SourceOptions
from bedload.spark.source_read import partitions_of, read
from bedload.spark.source_view import View, resolve

EPOCHS = st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 4)), max_size=6), min_size=1, max_size=6)
"""Epochs of customers and items; an item below 0 ends the customer."""


def rows_of(view: View, variables: tuple[str, ...] | None = None) -> list[dict[str, Any]]:
    """All rows, as Spark would get them."""
    columns = columns_of(view.schema, variables, changes=view.feed is not None)
    names = [v.name for v in view.schema.variables if variables is None or v.name in variables]
    batches = [columns.batch(found) for groups in partitions_of(view) for found in read(view, groups, names)]
    return [row for batch in batches for row in batch.to_pylist()]


def as_state(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {row["customer"]: {"n": row["n"], "items": dict(row["items"]), "recent": row["recent"]} for row in rows}


@settings(max_examples=25, deadline=None)
@given(EPOCHS, st.integers(0, 5), st.booleans())
def test_every_state_is_read_as_it_was(epochs: list[Any], at: int, compacted: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = Baskets(Path(folder))
        for rows in epochs:
            made.epoch(rows)
        if compacted:
            made.writer.snapshot(min(at, len(epochs) - 1))
        for batch, state in enumerate(made.states):
            assert as_state(rows_of(resolve(SourceOptions(folder, batch=batch)))) == state


@settings(max_examples=40, deadline=None)
@given(EPOCHS, st.data())
def test_the_change_feed_has_for_each_epoch_the_changed_keys_as_they_were_after_it(
    epochs: list[Any], data: Any
) -> None:
    first = data.draw(st.integers(0, len(epochs) - 1))
    last = data.draw(st.integers(first, len(epochs) - 1))
    with tempfile.TemporaryDirectory() as folder:
        made = Baskets(Path(folder))
        for rows in epochs:
            made.epoch(rows)
        if data.draw(st.booleans()):
            made.writer.snapshot(first)
            made.writer.collect(len(epochs) - first)  # the state before the first epoch is gone
        found = rows_of(resolve(SourceOptions(folder, changes=Changes(first, last))))
    for epoch in range(first, last + 1):
        rows = {row["customer"]: row for row in found if row["batch_id"] == epoch}
        assert len(rows) == sum(row["batch_id"] == epoch for row in found)
        assert rows.keys() == made.changed[epoch]
        for key, row in rows.items():
            assert row["change_type"] == ("update" if key in made.states[epoch] else "delete")
            if key in made.states[epoch]:
                assert as_state([row])[key] == made.states[epoch][key]
            else:
                assert (row["n"], row["items"], row["recent"]) == (None, None, None)
    assert {row["batch_id"] for row in found} <= set(range(first, last + 1))


@pytest.fixture
def counts(tmp_path: Path) -> Recorded:
    writer = Recorded(tmp_path, COUNTS)
    for n in range(3):
        writer.turn(delta(COUNTS, {key: {"n": n} for key in range(40)}))
    return writer


def test_named_keys_are_read_from_their_key_groups_alone(counts: Recorded, tmp_path: Path) -> None:
    for options in (
        SourceOptions(str(tmp_path), keys=(7, 11)),
        SourceOptions(str(tmp_path), keys=(7, 11), changes=Changes(0, None)),
    ):
        view = resolve(options)
        assert {group for groups in partitions_of(view) for group in groups} == set(groups_of_keys(COUNTS, [7, 11]))
        assert {row["car"] for row in rows_of(view)} == {7, 11}
    assert rows_of(resolve(SourceOptions(str(tmp_path), keys=()))) == []


def test_keys_of_other_types_are_named_as_json_has_them(tmp_path: Path) -> None:
    import datetime
    import decimal

    schema = schema_of({"day": pa.date32(), "price": pa.decimal128(5, 2)}, {"n": pa.int64()})
    key = (datetime.date(2026, 1, 2), decimal.Decimal("1.50"))
    Recorded(tmp_path, schema).turn(delta(schema, {key: {"n": 1}, (key[0], decimal.Decimal("2.00")): {"n": 2}}))
    found = rows_of(resolve(SourceOptions(str(tmp_path), keys=(("2026-01-02", "1.5"),))))
    assert [(row["day"], row["price"], row["n"]) for row in found] == [(*key, 1)]
    with pytest.raises(DefinitionError, match="has 2 columns"):
        rows_of(resolve(SourceOptions(str(tmp_path), keys=("2026-01-02",))))
    with pytest.raises(DefinitionError, match="not values of the key column 'day'"):
        rows_of(resolve(SourceOptions(str(tmp_path), keys=(("soon", "1.5"),))))


def test_a_partition_is_what_one_worker_wrote_or_one_part_of_a_snapshot(counts: Recorded, tmp_path: Path) -> None:
    assert partitions_of(resolve(SourceOptions(str(tmp_path)))) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    counts.snapshot(2)
    view = resolve(SourceOptions(str(tmp_path)))
    assert view.plan.snapshot is not None
    assert partitions_of(view) == [sorted(part.groups) for part in view.plan.snapshot.parts]


def test_there_are_not_more_partitions_than_is_good(counts: Recorded, tmp_path: Path, monkeypatch: Any) -> None:
    counts.owners = list(range(8))
    counts.workers = 8
    counts.turn(delta(COUNTS, {1: {"n": 9}}))
    monkeypatch.setattr(source_read, "MAX_PARTITIONS", 3)
    found = partitions_of(resolve(SourceOptions(str(tmp_path))))
    assert len(found) == 3
    assert sorted(group for groups in found for group in groups) == list(range(8))


def test_files_that_were_collected_meanwhile_are_found_in_a_newer_snapshot(counts: Recorded, tmp_path: Path) -> None:
    view = resolve(SourceOptions(str(tmp_path), batch=1))
    counts.snapshot(1)
    for _ in range(3):
        counts.turn(delta(COUNTS, {1: {"n": 9}}))
    counts.collect(4)
    assert not counts.storage.exists(paths.delta(OPERATOR, counts.records[0].turn, counts.records[0].workers[0]))
    assert {row["n"] for row in rows_of(view)} == {1}


def test_state_that_is_gone_for_good_says_so_and_what_is_retained(counts: Recorded, tmp_path: Path) -> None:
    views = [
        resolve(SourceOptions(str(tmp_path), batch=0)),
        resolve(SourceOptions(str(tmp_path), changes=Changes(0, 1))),
    ]
    counts.snapshot(2)
    counts.turn(delta(COUNTS, {1: {"n": 9}}))
    counts.collect(1)
    for view in views:
        with pytest.raises(EpochNotRetained, match=r"deleted while .* read.*batches 2 to 3"):
            rows_of(view)


@pytest.mark.parametrize("options", [{}, {"changes": Changes(0, None)}])
def test_a_damaged_file_is_named(counts: Recorded, tmp_path: Path, options: dict[str, Any]) -> None:
    record = counts.records[0]
    path = tmp_path / paths.delta(OPERATOR, record.turn, record.workers[0])
    path.write_bytes(path.read_bytes()[:-30] + bytes(30))
    with pytest.raises(CheckpointDamaged, match=path.name):
        rows_of(resolve(SourceOptions(str(tmp_path), **options)))


def test_variables_that_are_not_wanted_are_not_read(tmp_path: Path) -> None:
    schema = schema_of({"car": pa.int64()}, {"n": pa.int64(), "m": pa.int64()})
    writer = Recorded(tmp_path, schema)
    writer.turn(delta(schema, {key: {"n": key, "m": -key} for key in range(9)}))
    writer.snapshot(0)
    for file in tmp_path.rglob("snapshots/*/m/*.parquet"):
        file.unlink()
    found = rows_of(resolve(SourceOptions(str(tmp_path), variable="n")), ("n",))
    assert {row["car"]: row["n"] for row in found} == {key: key for key in range(9)}
    assert set(found[0]) == {"car", "n", "key_group"}
