"""The pure parts of the scale benchmark: the plan, the figures, the verdicts, the report."""

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

# `bench` is not part of the package: it is found from the root of the repository.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.isolate import Outcome, WrongAnswer
from bench.report import Result, Status
from bench.scale import TABLES, busy_cores, make_report, parse, result_of, steps_in, tables
from bench.scale_measure import (
    Beat,
    beats_of,
    during,
    keys_at,
    longest_of,
    move_figures,
    restore_figures,
    stream_figures,
    worker_figures,
)
from bench.scale_page import BEGIN, END, figures_text, write_page
from bench.scale_plan import (
    CHANGED,
    COLUMNS,
    FILL_KEYS,
    QUICK,
    ROWS,
    ROWS_PER_EPOCH,
    SPARK,
    SYSTEMS,
    TARGET_KEYS,
    Case,
    growth,
    numbers_expression,
    plan_cases,
    verdicts_of,
    with_memory_per_key,
)
from bench.scale_plots import QUESTIONS, points_of, write_plots

MOVE = {
    "outcome": "done",
    "from_checkpoint": False,
    "moved_keys": 500,
    "moved_bytes": 8_000_000,
    "duration_s": 1.5,
    "slice_ms_longest": 4.0,
    "slices_ms": {"list": 4.0, "take in": 2.0},
}


def found(state: str, keys: int, **figures: float) -> Result:
    return Result(SYSTEMS[state], {"state": state, "keys": keys}, Status.OK, figures)


def failed(state: str, keys: int) -> Result:
    return Result(SYSTEMS[state], {"state": state, "keys": keys}, Status.FAILED, {}, "it broke")


def beats(*seconds: float) -> list[Beat]:
    return [Beat(at, 100 + sum(seconds[: at + 1]), one) for at, one in enumerate(seconds)]


# --- the plan


def test_sizes_go_to_thirty_million_columns_ten_million_rows_and_ten_million_of_spark() -> None:
    cases = plan_cases(False, list(SYSTEMS), None)
    most = {system: max(case.keys for case in cases if case.system == system) for system in SYSTEMS}
    assert most == {COLUMNS: 30_000_000, ROWS: 10_000_000, SPARK: 10_000_000}
    assert min(case.keys for case in cases) == 100_000
    assert len(set(cases)) == len(cases)


def test_a_quick_run_has_fewer_sizes_and_still_the_one_that_targets_are_for() -> None:
    quick, full = plan_cases(True, list(SYSTEMS), None), plan_cases(False, list(SYSTEMS), None)
    assert set(quick) < set(full)
    assert Case(COLUMNS, TARGET_KEYS) in quick


def test_small_states_come_first_and_larger_ones_than_asked_for_do_not_come() -> None:
    cases = plan_cases(False, [COLUMNS, ROWS], 1_000_000)
    assert [case.keys for case in cases] == sorted(case.keys for case in cases)
    assert {(case.system, case.keys) for case in cases} == {
        (system, keys) for system in (COLUMNS, ROWS) for keys in (100_000, 1_000_000)
    }


def test_a_state_of_fewer_keys_than_an_epoch_changes_is_refused() -> None:
    with pytest.raises(ValueError, match="an epoch changes"):
        Case(COLUMNS, CHANGED - 1)


@given(st.integers(CHANGED, 50_000_000), st.integers(0, 100))
def test_filling_brings_each_key_once_and_every_epoch_after_it_the_same_rows(keys: int, more: int) -> None:
    case = Case(ROWS, keys)
    assert (case.fill_epochs - 1) * FILL_KEYS < keys <= case.fill_epochs * FILL_KEYS
    assert case.rows(case.fill_epochs - 1) == keys
    assert case.rows(case.fill_epochs + more) - case.rows(case.fill_epochs - 1) == (more + 1) * ROWS_PER_EPOCH


def test_rows_within_the_filling_epochs_are_not_known() -> None:
    with pytest.raises(ValueError, match="bring the keys"):
        Case(COLUMNS, 10_000_000).rows(0)


def numbers_of(case: Case, first: int, end: int) -> list[int]:
    """The numbers of the keys of some source rows: DuckDB stands in for Spark, with Spark's functions as its own."""
    duckdb = pytest.importorskip("duckdb")
    sql = re.sub(r"(\d)L\b", r"\1", numbers_expression(case, "r")).replace(" div ", " // ")
    sql = sql.replace("array()", "[]").replace("array(", "list_value(")
    with duckdb.connect() as db:
        db.execute("CREATE MACRO pmod(a, b) AS ((a % b) + b) % b")
        db.execute("CREATE MACRO sequence(a, b) AS generate_series(a, b)")
        rows = db.execute(f"SELECT unnest({sql}) FROM range({first}, {end}) AS t(r)").fetchnumpy()
    (column,) = rows.values()
    return [int(number) for number in column]


@pytest.mark.parametrize("keys", [100_000, 333_333, 2_500_001])
def test_filling_holds_each_key_once_and_an_epoch_after_it_so_many_different_ones(keys: int) -> None:
    case = Case(COLUMNS, keys)
    filling = case.fill_epochs * ROWS_PER_EPOCH
    assert sorted(numbers_of(case, 0, filling)) == list(range(keys))
    for epoch in (case.fill_epochs, case.fill_epochs + 7):
        found = numbers_of(case, epoch * ROWS_PER_EPOCH, (epoch + 1) * ROWS_PER_EPOCH)
        assert (len(found), len(set(found))) == (ROWS_PER_EPOCH, CHANGED)
        assert min(found) >= 0
        assert max(found) < keys


# --- figures


def event(batch: int, second: int, ms: int) -> dict[str, Any]:
    return {"batchId": batch, "timestamp": f"2026-01-01T00:00:{second:02}Z", "durationMs": {"triggerExecution": ms}}


def test_an_epoch_lasts_from_the_commit_before_it_to_its_own() -> None:
    series = beats_of([event(4, 1, 500), event(6, 9, 250), event(5, 3, 500)])
    assert [beat.batch for beat in series] == [5, 6]
    assert [beat.seconds for beat in series] == pytest.approx([2.0, 5.75])


def test_rows_per_second_are_those_of_all_steady_epochs_together() -> None:
    figures = stream_figures(beats(0.2, 0.2, 0.6), 100)
    assert figures["rows_per_s"] == pytest.approx(300)
    assert figures["epoch_ms_p50"] == pytest.approx(200)
    assert 200 < figures["epoch_ms_p99"] <= 600


def epoch(number: int, sealing: dict[int, float], size: int, committed: bool = True) -> dict[str, Any]:
    figures = {"sealing": sealing, "busy": {at: 2 * s for at, s in sealing.items()}, "keys": dict.fromkeys(sealing, 5)}
    return {"epoch": number, "committed": committed, "bytes": size, **figures}


def test_keys_are_those_of_the_committed_attempt() -> None:
    assert keys_at([epoch(3, {0: 1.0, 1: 1.0}, 1), epoch(3, {}, 0, False), epoch(4, {}, 0, False)], 3) == 10


def test_a_seal_is_the_slowest_workers_of_the_attempt_that_was_committed() -> None:
    rows = [epoch(3, {0: 9.0, 1: 9.0}, 1, False), epoch(3, {0: 0.01, 1: 0.03}, 50), epoch(4, {0: 0.05, 1: 0.01}, 70)]
    assert worker_figures(rows, [3, 4]) == {
        "seal_ms": pytest.approx(40),
        "bytes_per_epoch": 60,
        "worker_ms": pytest.approx(80),
    }
    with pytest.raises(WrongAnswer, match="2 of 3 epochs"):
        worker_figures(rows, [3, 4, 5])


def test_the_epochs_of_a_move_are_those_of_which_some_part_lies_within_it() -> None:
    series = beats(1, 1, 1, 1)  # from 100 to 104
    assert [beat.batch for beat in during(series, 101.5, 102.5)] == [1, 2]
    assert [beat.batch for beat in during(series, 101.0, 102.0)] == [1]
    assert during(series, 104.0, 105.0) == []


def test_a_move_is_compared_with_as_many_epochs_as_it_lasted() -> None:
    steady = beats(1, 1, 1, 5, 1, 1, 1)
    assert longest_of(steady, 1) == 1
    assert longest_of(steady, 4) == 5
    assert longest_of(steady, 100) == 5


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=30), st.integers(1, 40))
def test_more_epochs_never_have_a_shorter_longest_one(seconds: list[float], epochs: int) -> None:
    steady = beats(*seconds)
    assert min(seconds) <= longest_of(steady, epochs) <= longest_of(steady, len(seconds)) == max(seconds)


def test_the_figures_of_a_move_have_its_slices_by_kind() -> None:
    figures = move_figures(MOVE, beats(1, 1, 1), beats(1, 1.2))
    assert figures["move_vs_no_move"] == pytest.approx(1.2)
    assert (figures["move_s"], figures["moved_mb"], figures["slice_ms_longest"]) == (1.5, 8.0, 4.0)
    assert (figures["slice_ms_list"], figures["slice_ms_take in"]) == (4.0, 2.0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"outcome": "called off"}, "ended as 'called off'"),
        ({"from_checkpoint": True}, "a worker was lost"),
        ({"moved_keys": 0}, "no key was moved"),
    ],
)
def test_what_was_no_move_has_no_figures(change: dict[str, Any], why: str) -> None:
    with pytest.raises(WrongAnswer, match=why):
        move_figures({**MOVE, **change}, beats(1, 1), beats(1))


def test_a_move_that_no_epoch_saw_has_no_figures() -> None:
    with pytest.raises(WrongAnswer, match="no epoch"):
        move_figures(MOVE, beats(1, 1), [])


def test_a_restore_is_compared_with_the_plain_read_of_as_many_bytes() -> None:
    figures = restore_figures(3.0, 200e6, 100_000_000, 1.0)
    assert (figures["raw_read_s"], figures["restore_vs_raw"], figures["restore_mb"]) == (2.0, 1.5, 200.0)


def test_memory_per_key_is_what_keys_beyond_the_smallest_state_take() -> None:
    results = [
        found(COLUMNS, 100_000, workers_mb=100.0),
        found(COLUMNS, 1_100_000, workers_mb=150.0),
        found(ROWS, 1_000_000, workers_mb=500.0),
        found(SPARK, 1_000_000, rows_per_s=1.0),
        failed(ROWS, 10_000_000),
    ]
    found_bytes = [result.figures.get("memory_per_key") for result in with_memory_per_key(results)]
    assert found_bytes == [None, pytest.approx(50.0), None, None, None]


# --- verdicts


def test_growth_is_the_worst_size_over_the_smallest() -> None:
    assert growth({1: 10.0, 10: 14.0, 100: 12.0}) == pytest.approx(1.4)
    assert growth({1: 10.0, 10: 5.0, 100: 20.0}, inverse=True) == pytest.approx(2.0)
    assert growth({1: 10.0, 10: 8.0}) == pytest.approx(0.8)
    assert growth({1: 10.0}) is None
    assert growth({1: 0.0, 10: 1.0}) is None


def verdict(results: list[Result], part: str) -> Any:
    (one,) = [it for it in verdicts_of(results) if part in it.name]
    return one.value, one.met


def test_flat_is_up_to_1_3() -> None:
    results = [found(COLUMNS, 100_000, seal_ms=10.0, bytes_per_epoch=100.0, rows_per_s=900.0)]
    results += [found(COLUMNS, 1_000_000, seal_ms=12.9, bytes_per_epoch=131.0, rows_per_s=600.0)]
    assert verdict(results, "seal, 100k to 1m keys") == (pytest.approx(1.29), True)
    assert verdict(results, "bytes per epoch") == (pytest.approx(1.31), False)
    assert verdict(results, "rows/s") == (pytest.approx(1.5), False)


def test_the_longest_slice_is_that_of_the_worst_size() -> None:
    results = [found(ROWS, 100_000, slice_ms_longest=31.0), found(ROWS, 1_000_000, slice_ms_longest=4.0)]
    assert verdict(results, "slice of a move, ms, at 100k keys") == (31.0, False)


def test_absolute_targets_are_for_ten_million_keys() -> None:
    figures = {"move_vs_no_move": 1.2, "snapshot_s": 11.0, "snapshot_beside_s": 19.0, "restore_vs_raw": 2.0}
    assert verdicts_of([found(COLUMNS, 1_000_000, **figures)]) == []
    results = [found(COLUMNS, TARGET_KEYS, **figures)]
    assert verdict(results, "no_move") == (1.2, True)
    assert verdict(results, "snapshot, idle") == (11.0, False)
    assert verdict(results, "beside") == (19.0, True)
    assert verdict(results, "raw read") == (2.0, True)
    assert [it.name for it in verdicts_of([found(ROWS, TARGET_KEYS, **figures)])] == [
        "bedload, rows: longest epoch in a move / no_move, 10m keys"
    ]


def test_what_failed_and_what_is_sparks_is_in_no_verdict() -> None:
    results = [found(COLUMNS, 100_000, seal_ms=1.0), failed(COLUMNS, 1_000_000)]
    results += [found(SPARK, 100_000, seal_ms=1.0), found(SPARK, 1_000_000, seal_ms=9.0)]
    assert verdicts_of(results) == []


# --- the report


def outcome(value: dict[str, Any] | None, kind: str = "", busy: float = 0.0) -> Outcome:
    return Outcome(value, kind, "why" if kind else "", 1.0, busy, 2.0, Path("log.txt"))


def test_a_case_without_an_answer_says_why() -> None:
    case = Case(ROWS, 100_000)
    assert result_of(case, outcome(None, "WrongAnswer")).status is Status.WRONG
    assert result_of(case, outcome(None, "NotAvailable")).status is Status.UNAVAILABLE
    assert result_of(case, outcome(None, "Timeout")).status is Status.FAILED
    assert result_of(case, outcome({"rows_per_s": 5})).figures["rows_per_s"] == 5


def test_cores_that_something_else_had_during_the_run_count_before_those_before_it() -> None:
    assert busy_cores([failed(ROWS, 100_000)]) == 0
    results = [
        found(ROWS, 100_000, busy_cores_before=0.1),
        found(ROWS, 1_000_000, busy_cores_before=0.9, others_cores=0.4),
    ]
    assert busy_cores(results) == 0.4


def test_only_whole_lines_that_are_steps_are_shown(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert steps_in(log) == []
    log.write_text("WARN something\nstep: fill\nstep: move\nstep: hal", encoding="utf-8")
    assert steps_in(log) == ["fill", "move"]


def everything(state: str, keys: int) -> Result:
    names = {line.figure for question in QUESTIONS for line in question.lines} - {"memory_per_key"}
    return found(state, keys, workers_mb=keys / 1e4, busy_cores_before=0.0, **dict.fromkeys(names, 2.0))


def test_tables_show_every_case_and_the_verdicts_whether_they_were_met() -> None:
    results = [everything(COLUMNS, 100_000), everything(COLUMNS, TARGET_KEYS), failed(ROWS, 100_000)]
    report = make_report(results, True, QUICK)
    console = Console(width=200, record=True, file=io.StringIO())
    for table in tables(report):
        console.print(table)
    text = console.export_text()
    assert "10,000,000" in text
    assert "failed: it broke" in text
    assert "snapshot, idle, s, 10m keys" in text
    assert "met" in text
    assert set(report.as_json()["settings"]["targets"]) == set(report.ratios)


def test_every_question_has_a_plot_and_what_was_not_measured_is_missing(tmp_path: Path) -> None:
    results = with_memory_per_key([everything(COLUMNS, 100_000), everything(COLUMNS, 1_000_000), failed(ROWS, 100_000)])
    for question in QUESTIONS:
        lines = points_of(results, question)
        assert {system for system, _ in lines} == {COLUMNS}
    pytest.importorskip("matplotlib")
    assert [path.name for path in write_plots(results, tmp_path)] == [f"scale-{q.name}.png" for q in QUESTIONS]
    assert write_plots([failed(ROWS, 100_000)], tmp_path / "none") == []


def test_the_page_gets_the_figures_between_its_marks_and_keeps_the_rest(tmp_path: Path) -> None:
    results = [everything(COLUMNS, TARGET_KEYS), found(SPARK, 100_000, rows_per_s=7.0), failed(ROWS, 100_000)]
    report = make_report(results, True, QUICK)
    text = figures_text(report, TABLES, 1.25, ["scale-rows.png"])
    assert "**other work kept 1.2 cores busy**" in text
    assert "nothing else on the machine" in figures_text(report, TABLES, 0.1, [])
    assert text.count("| bedload, columns | 10,000,000 |") == len(TABLES)
    assert text.count("| spark native, RocksDB |") == 1, "it has no snapshots and no moves"
    assert "failed |" in text
    assert "![scale-rows.png](images/scale-rows.png)" in text
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    for _ in range(2):
        write_page(page, text)
        assert page.read_text(encoding="utf-8") == f"before\n{BEGIN}\n\n{text}\n{END}\nafter\n"
    page.write_text("no marks", encoding="utf-8")
    with pytest.raises(ValueError, match="each once"):
        write_page(page, text)


def test_the_page_about_benchmarks_has_the_marks() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert (page.count(BEGIN), page.count(END)) == (1, 1)


def test_the_command_line_names_systems_and_refuses_others(capsys: pytest.CaptureFixture[str]) -> None:
    options = parse(["--quick", "--systems", "rows,spark", "--most-keys", "1000000"])
    assert (options.quick, options.systems, options.most_keys) == (True, [ROWS, SPARK], 1_000_000)
    assert parse([]).systems == [COLUMNS, ROWS, SPARK]
    with pytest.raises(SystemExit):
        parse(["--systems", "flink"])
    assert "no system flink" in capsys.readouterr().err
