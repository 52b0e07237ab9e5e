"""The demo's figures, and the pictures and lines made of them."""

import datetime as dt
import io
from collections import Counter
from typing import Any

import pytest
from examples.traffic.measure import CarState, Latency, Monitor, Snapshot, WorkerLoad
from examples.traffic.view import line, render, report, sparkline
from rich.console import Console

CAR = CarState(
    "car-17",
    12,
    {
        "count": 1_204,
        "total": 1_204 * 61.5,
        "top": 96.5,
        "seen": dt.datetime(2026, 1, 1, 0, 0, 19, tzinfo=dt.UTC),
        "recent": [10.0, 20.0, 40.0],
        "segments": {"A-3": 4, "A-4": 2},
        "bands": Counter(slow=5, fast=1),
        "route": ["A-3", "A-4"],
    },
)
SNAPSHOT = Snapshot(
    rows=412_000,
    total=900_000,
    target=20_000,
    throughput=20_113.4,
    history=(5_000.0, 20_000.0),
    epochs=13,
    latency=Latency(7.0, 0.51, 0.49, 1.1, 1.2),
    workers=(WorkerLoad(0, 2_511, 0.41), WorkerLoad(1, 2_489, 0.05)),
    car=CAR,
)
EMPTY = Snapshot(0, 900_000, 20_000, 0.0, (), 0, None, ())


def drawn(renderable: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=100, color_system=None, legacy_windows=False)
    console.print(renderable)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def progress(epoch: int, second: float, rows: int, took: int, **more: int) -> dict[str, Any]:
    began = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=second)
    return {
        "batchId": epoch,
        "timestamp": began.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "numInputRows": rows,
        "durationMs": {"triggerExecution": took, "addBatch": took - 1, **more},
    }


def ended(epoch: int, keys: dict[int, int], busy: dict[int, float], committed: bool = True) -> dict[str, Any]:
    return {"epoch": epoch, "committed": committed, "rows": 1, "keys": keys, "busy": busy}


def test_the_view_shows_every_figure_of_the_snapshot() -> None:
    text = "\n".join(drawn(render(SNAPSHOT)))
    for figure in (
        "412,000 of 900,000 rows",
        "20,113 rows/s",
        "last 0.51 s   median 0.49 s   max 1.20 s",
        "13 epochs",
        "41% busy     2,511 keys",
        "5% busy     2,489 keys",
        "1,204 reports, mean 61.5 km/h, top 96.5   live at epoch 12",
        "A-3 → A-4   at 00:00:19",
        "2 visited   1 fast, 5 slow",
    ):
        assert figure in text


def test_the_view_of_a_run_without_an_epoch_says_that_it_waits() -> None:
    text = "\n".join(drawn(render(EMPTY)))
    assert "waiting for the first" in text
    assert "no committed state yet" in text


def test_the_view_keeps_its_width_and_its_height_from_the_start() -> None:
    first, later = drawn(render(Monitor(900_000, 20_000, [0, 1]).snapshot())), drawn(render(SNAPSHOT))
    assert len(first) == len(later)
    assert {len(row) for row in later} == {80}


def test_a_line_is_ascii_and_has_the_same_figures() -> None:
    text = line(SNAPSHOT)
    assert text.isascii()
    assert text == (
        "412000/900000 rows | 20113 rows/s | 13 epochs | epoch 0.51 s (median 0.49) | worker 0: 2511 keys, 41% busy"
        " | worker 1: 2489 keys, 5% busy | car-17@12: n=1204 mean=61.5"
    )
    assert line(EMPTY) == "0/900000 rows | waiting for the first epoch, for which Spark starts Python"


def test_a_sparkline_is_as_high_as_the_share_of_the_largest() -> None:
    assert sparkline([0, 4, 8]) == "▁▅█"
    assert sparkline([4], top=8) == "▅"
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"


def test_an_epoch_counts_once_however_often_it_is_reported() -> None:
    monitor = Monitor(1_000, 100, [0, 1])
    monitor.take_progress([progress(0, 0, 100, 500), progress(1, 0.5, 50, 500)])
    monitor.take_progress([progress(1, 0.5, 50, 500)])
    assert (monitor.rows, monitor.last_epoch) == (150, 1)


def test_an_idle_trigger_is_no_epoch() -> None:
    monitor = Monitor(1_000, 100, [0, 1])
    idle = progress(3, 0, 0, 10)
    del idle["durationMs"]["addBatch"]
    monitor.take_progress([idle])
    assert (monitor.rows, monitor.last_epoch) == (0, -1)
    assert monitor.snapshot().latency is None


def test_throughput_counts_the_time_between_triggers_too() -> None:
    monitor = Monitor(1_000, 100, [0, 1])
    monitor.take_progress([progress(0, 0, 100, 500), progress(1, 1.5, 300, 500)])
    snapshot = monitor.snapshot()
    assert snapshot.history == (pytest.approx(200), pytest.approx(200))
    assert snapshot.throughput == pytest.approx(200)


def test_busy_is_a_share_of_the_time_and_keys_are_of_the_latest_epoch() -> None:
    monitor = Monitor(1_000, 100, [0, 1])
    monitor.take_progress([progress(0, 0, 100, 1_000), progress(1, 1, 100, 1_000)])
    monitor.take_epochs([ended(0, {0: 5, 1: 6}, {0: 0.2, 1: 0.0}), ended(1, {0: 7, 1: 6}, {0: 0.4, 1: 1.0})])
    monitor.take_epochs([ended(2, {0: 99, 1: 99}, {0: 9.0, 1: 9.0}, committed=False)])
    snapshot = monitor.snapshot()
    assert snapshot.epochs == 2
    assert snapshot.workers == (WorkerLoad(0, 7, pytest.approx(0.3)), WorkerLoad(1, 6, pytest.approx(0.5)))


def test_at_the_end_keys_are_where_they_have_moved_to_since_the_last_epoch() -> None:
    monitor = Monitor(100, 100, [0, 1, 2])
    monitor.take_progress([progress(0, 0, 100, 1_000)])
    monitor.take_epochs([ended(0, {0: 5, 1: 6, 2: 7}, {0: 0.2})])
    monitor.take_workers([0, 1])
    monitor.take_keys({0: 8, 1: 10})
    assert [(load.worker, load.keys) for load in monitor.overall().workers] == [(0, 8), (1, 10)]


def test_the_overall_figures_span_the_run_and_tell_the_first_epoch_apart() -> None:
    monitor = Monitor(600, 100, [0])
    monitor.take_progress([progress(0, 0, 100, 3_000), progress(1, 3, 100, 500), progress(2, 3.5, 400, 1_500)])
    monitor.take_epochs([ended(epoch, {0: 5}, {0: busy}) for epoch, busy in enumerate((3.0, 0.5, 1.0))])
    overall = monitor.overall()
    assert (overall.rows, overall.epochs, overall.seconds, overall.rows_per_second) == (600, 3, 5.0, 250.0)
    latency = overall.latency
    assert (latency.first, latency.last, latency.median, latency.max) == (3.0, 1.5, 1.0, 1.5)
    text = report(overall)
    assert text.isascii()
    assert "600 in 5.0 s; 250 rows/s after epoch 0" in text
    assert "3; p50 1.00 s" in text
    assert "5 keys, 75% busy" in text


def test_the_first_epoch_is_all_there_is_of_a_run_of_one() -> None:
    monitor = Monitor(100, 100, [0])
    monitor.take_progress([progress(0, 0, 100, 3_000)])
    assert monitor.overall().latency == Latency(3.0, 3.0, 3.0, 3.0, 3.0)


def test_a_run_without_an_epoch_has_no_overall_figures() -> None:
    with pytest.raises(ValueError, match="no epoch"):
        Monitor(1, 1, [0]).overall()
