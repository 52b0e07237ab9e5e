"""The record of every move: kept when the change ends, completed by later epochs, and read by later attachments."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bedload.checkpoint import paths
from bedload.control.instructions import EpochEnded
from bedload.core.errors import CheckpointError
from bedload.core.ids import Epoch, Generation, OperatorName, QueryId, RunId
from bedload.migration.record import CALM_EPOCHS, MoveRecord
from bedload.spark.keeper import Keeper
from bedload.spark.moves import Moves, table_schema

SECOND = 1.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + 1_000_000.0

    def processor(self) -> float:
        return self.now


def at_once(action: Callable[..., None], *arguments: Any) -> None:
    action(*arguments)


def record(number: int = 0, operator: str = "Trip", **more: Any) -> MoveRecord:
    return MoveRecord(number=number, kind="rescale", operator=operator, strategy="seamless", **more)


def epoch(began: float, seconds: float = SECOND, operator: str = "Trip", committed: bool = True) -> EpochEnded:
    return EpochEnded(
        OperatorName(operator), QueryId("q"), RunId("r"), Epoch(0), committed, began=began, seconds=seconds
    )


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return Keeper(str(tmp_path))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / paths.MOVES).iterdir())


def test_a_record_says_when_it_was_asked_for_and_what_the_epochs_before_took() -> None:
    moves = Moves(None, Clock(), at_once)
    epochs = [epoch(50.0), epoch(60.0, 3.0), epoch(70.0, committed=False), epoch(80.0, operator="Other")]
    kept = moves.add((record(began=90.0, duration_s=5.0),), epochs)
    assert kept[0].requested == 1_000_090.0
    assert kept[0].epoch_s_median == 2.0
    (row,) = moves.rows()
    assert row["requested"].timestamp() == 1_000_090.0
    assert row["attachment"] is None
    assert "began" not in row


def test_a_record_is_written_at_once_and_again_when_latency_is_stable(keeper: Keeper, tmp_path: Path) -> None:
    moves = Moves(keeper, Clock(), at_once)
    moves.add((record(began=90.0, duration_s=2.0),), [epoch(float(n)) for n in range(80, 89)])
    (name,) = files(tmp_path)
    assert name == "0000000001-0000000000-Trip.json"
    assert json.loads((tmp_path / paths.MOVES / name).read_text())["move"]["stabilise_s"] is None
    moves.epoch_ended(epoch(91.0, 4.0))
    for n in range(2 * CALM_EPOCHS):
        moves.epoch_ended(epoch(95.0 + n))
        moves.epoch_ended(epoch(95.0 + n, 9.0, operator="Other"))
    written = json.loads((tmp_path / paths.MOVES / name).read_text())["move"]
    assert written["stabilise_s"] == 5.0
    assert (written["spike"], written["epoch_s_longest"]) == (4.0, 4.0)
    assert moves.rows()[0]["stabilise_s"] == 5.0
    assert files(tmp_path) == [name]


def test_what_is_not_stable_yet_is_written_when_the_cluster_stops(keeper: Keeper, tmp_path: Path) -> None:
    moves = Moves(keeper, Clock(), at_once)
    moves.add((record(began=90.0, duration_s=2.0),), [epoch(80.0)])
    moves.epoch_ended(epoch(91.0, 4.0))
    moves.write_all()
    written = json.loads((tmp_path / paths.MOVES / files(tmp_path)[0]).read_text())["move"]
    assert (written["spike"], written["stabilise_s"]) == (4.0, None)


def test_a_change_that_failed_is_on_record_and_not_followed(keeper: Keeper) -> None:
    moves = Moves(keeper, Clock(), at_once)
    moves.add((record(outcome="called off", began=90.0),), [epoch(80.0)])
    for n in range(3 * CALM_EPOCHS):
        moves.epoch_ended(epoch(91.0 + n))
    assert [(row["outcome"], row["stabilise_s"]) for row in moves.rows()] == [("called off", None)]


def test_a_store_that_is_away_costs_the_record_and_nothing_else(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    moves = Moves(keeper, Clock(), at_once)

    def away(*_: Any) -> None:
        raise CheckpointError("the store is away")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "bedload"):
        patched.setattr(keeper, "write_move", away)
        moves.add((record(),), [])
    assert "the store is away" in caplog.text
    moves.write_all()
    assert len(files(tmp_path)) == 1, "it is written when the store is back"


def test_a_later_attachment_sees_the_moves_of_former_ones_before_its_own(keeper: Keeper, tmp_path: Path) -> None:
    Moves(keeper, Clock(), at_once).add((record(operator="a/b"), record(operator="Trip")), [])
    later = Keeper(str(tmp_path))
    moves = Moves(later, Clock(), at_once)
    moves.add((record(),), [])
    found = [(row["attachment"], row["operator"]) for row in moves.rows()]
    assert found == [(1, "Trip"), (1, "a/b"), (2, "Trip")]


def test_changes_are_in_the_order_of_the_calls_and_not_of_their_ends() -> None:
    moves = Moves(None, Clock(), at_once)
    for number in (14, 16, 15):
        moves.add((record(number), record(number, "Other")), [])
    assert [(row["number"], row["operator"]) for row in moves.rows()] == [
        (number, operator) for number in (14, 15, 16) for operator in ("Trip", "Other")
    ]


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b'{"kind": "turn"}', b'{"kind": "move", "generation": 1}'])
def test_a_file_that_is_not_the_record_of_a_move_is_left_out_with_a_warning(
    keeper: Keeper, tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    Moves(keeper, Clock(), at_once).add((record(),), [])
    keeper.checkpoint.storage.write(paths.move(Generation(1), 5, OperatorName("Trip")), content)
    keeper.checkpoint.storage.write(f"{paths.MOVES}/notes.txt", b"a stranger's")
    with caplog.at_level(logging.WARNING, "bedload"):
        assert [move.number for _, move in Keeper(str(tmp_path)).moves()] == [0]
    assert "0000000001-0000000005-Trip.json" in caplog.text
    assert "notes.txt" not in caplog.text


def test_the_name_of_a_file_tells_whose_move_it_is() -> None:
    path = paths.move(Generation(3), 12, OperatorName("a/b.c-d"))
    assert path.count("/") == 1
    assert paths.parse_move(path.partition("/")[2]) == (3, 12, "a/b.c-d")
    for stranger in (
        "x.json",
        "0000000001-1-Trip.json",
        "0000000001-0000000001-.json",
        "0000000001-0000000001-a.b.json",
    ):
        assert paths.parse_move(stranger) is None


def test_every_column_of_the_history_has_a_value_in_each_row() -> None:
    moves = Moves(None, Clock(), at_once)
    moves.add((record(),), [])
    assert list(moves.rows()[0]) == [column.split()[0] for column in table_schema().split(", ")]
