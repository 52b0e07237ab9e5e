"""The benchmark of transformWithState: its plan, its load, its verdicts and its report; nothing here starts Spark."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

pytest.importorskip("psutil", reason="the benchmarks need the bench extra")

from bench.isolate import Outcome
from bench.report import Result, Status
from bench.tws import cases_of, judged, make_report, parse, result_of, tables
from bench.tws_pieces import Pieces
from bench.tws_plan import (
    BATCH_ROWS,
    BEDLOAD,
    FLOOR_ROWS,
    FORMS,
    KEYS,
    NAMES,
    SPARK,
    SYSTEMS,
    Case,
    compared,
    floor_of,
    key_expression,
    least_rate,
    plan_cases,
    plan_quick,
    verdicts_of,
)
from bench.tws_processors import PROCESSORS


def found(
    system: str, name: str = "map", form: str = "rows", keys: int = 10_000, rows: int = 50_000, **more: float
) -> Result:
    figures = {"rows_per_s": 1000.0, "cpu_s_per_m_rows": 80.0, "peak_rss_mb": 500.0, "trigger_s": 3.0}
    figures |= {"busy_cores_before": 0.0, **more}
    return Result(system, Case(system, name, form, keys, rows).params, Status.OK, figures)


def floor(system: str, seconds: float) -> Result:
    return found(system, "count", "rows", FLOOR_ROWS, FLOOR_ROWS, trigger_s=seconds)


# --- the plan


def test_both_engines_run_every_processor_in_both_forms_at_all_sizes_side_by_side() -> None:
    cases = plan_cases(NAMES, FORMS, KEYS, BATCH_ROWS, SYSTEMS)
    assert len(set(cases)) == len(cases) == 2 + 2 * len(NAMES) * len(FORMS) * len(KEYS) * len(BATCH_ROWS)
    for spark, mine in zip(cases[::2], cases[1::2], strict=True):
        assert (spark.system, mine.system) == (SPARK, BEDLOAD)
        assert spark.params == mine.params
    assert [case.floor for case in cases[:3]] == [True, True, False]


def test_a_quick_run_has_what_targets_are_for_in_small_batches() -> None:
    quick, full = plan_quick(SYSTEMS), plan_cases(NAMES, FORMS, KEYS, BATCH_ROWS, SYSTEMS)
    assert set(quick) < set(full)
    assert {(case.keys, case.batch_rows) for case in quick if not case.floor} == {(10_000, 50_000)}
    assert {case.name for case in quick if case.form == "rows"} == set(NAMES)


def test_every_case_has_a_processor() -> None:
    assert set(PROCESSORS) == {(name, form) for name in NAMES for form in FORMS}


def test_all_keys_are_there_before_anything_is_measured_and_slow_engines_get_fewer_batches_of_the_same_size() -> None:
    slow, fast = (Case(system, "map", "rows", 200_000, 50_000) for system in SYSTEMS)
    for full in (True, False):
        assert slow.batches(full)[0] > slow.fill_batches == fast.fill_batches == 4
        assert slow.batches(full)[1] < fast.batches(full)[1]


def numbers_of(keys: int, batch_rows: int, pauses: bool, first: int, end: int) -> list[int]:
    """The keys of some source rows: DuckDB stands in for Spark, with Spark's functions as its own."""
    duckdb = pytest.importorskip("duckdb")
    sql = re.sub(r"(\d)L\b", r"\1", key_expression(keys, batch_rows, pauses, "r")).replace(" div ", " // ")
    with duckdb.connect() as db:
        db.execute("CREATE MACRO pmod(a, b) AS ((a % b) + b) % b")
        db.execute("CREATE MACRO xxhash64(a, b) AS (hash(a) % 1000000007)::BIGINT")
        rows = db.execute(f"SELECT {sql} FROM range({first}, {end}) AS t(r)").fetchnumpy()
    (column,) = rows.values()
    return [int(number) for number in column]


def test_the_first_rows_hold_each_key_once_and_later_ones_any_key() -> None:
    for pauses in (False, True):
        assert sorted(numbers_of(400, 4000, pauses, 0, 400)) == list(range(400))
    assert set(numbers_of(400, 4000, False, 4000, 8000)) == set(range(400))


def test_with_pauses_a_key_is_heard_for_two_batches_and_silent_for_two() -> None:
    heard = [set(numbers_of(400, 4000, True, batch * 4000, (batch + 1) * 4000)) for batch in range(1, 9)]
    for key in range(400):
        pattern = "".join("x" if key in batch else "." for batch in heard)
        assert pattern in "xx..xx..xx..xx..", "a part of it"
    with pytest.raises(ValueError, match="a multiple of 4"):
        key_expression(10, 100, True)


@given(st.integers(1, 50), st.integers(1, 100), st.booleans())
def test_any_number_of_keys_is_a_load(keys: int, batch: int, pauses: bool) -> None:
    keys = keys * 4 if pauses else keys
    assert set(numbers_of(keys, 100, pauses, batch * 100, batch * 100 + 100)) <= set(range(keys))


# --- verdicts


def test_ratios_are_of_the_very_same_case_and_the_bound_is_that_of_an_empty_trigger() -> None:
    results = [
        *(floor(SPARK, 0.4), floor(BEDLOAD, 0.25)),
        *(found(SPARK), found(BEDLOAD, rows_per_s=9000.0, cpu_s_per_m_rows=8.0, peak_rss_mb=250.0)),
        found(SPARK, rows=500_000),
        found(BEDLOAD, "list"),
    ]
    ((params, ratios),) = compared(results)
    assert (params["processor"], params["batch_rows"]) == ("map", 50_000)
    assert ratios == {"rate": 9.0, "cpu": 10.0, "memory": 0.5, "bound": 12.0}
    assert floor_of(results, SPARK) == 0.4


def test_targets_are_for_ten_thousand_keys_by_processor_and_form() -> None:
    assert [least_rate(name, "rows") for name in NAMES] == [5, 10, 10, 10, 10]
    assert [least_rate(name, "pandas") for name in NAMES] == [4, 8, 8, 8, 8]
    assert verdicts_of([found(SPARK, keys=200_000), found(BEDLOAD, keys=200_000)]) == []
    rate, cpu = verdicts_of([found(SPARK), found(BEDLOAD, rows_per_s=10_000.0, cpu_s_per_m_rows=20.0)])
    assert (rate.value, rate.least, rate.met, rate.bound) == (10.0, 10.0, True, None)
    assert (cpu.value, cpu.least, cpu.met) == (4.0, 8.0, False)


def test_what_failed_is_in_no_verdict() -> None:
    bad = Result(BEDLOAD, Case(BEDLOAD, "map", "rows", 10_000, 50_000).params, Status.FAILED, {}, "it broke")
    assert verdicts_of([found(SPARK), bad]) == []


# --- the report


def outcome(value: dict[str, Any] | None, kind: str = "") -> Outcome:
    return Outcome(value, kind, "why" if kind else "", 1.0, 0.0, 2.0, Path("log.txt"))


def test_a_case_without_an_answer_says_why() -> None:
    case = Case(SPARK, "map", "rows", 10_000, 50_000)
    assert result_of(case, outcome(None, "WrongAnswer")).status is Status.WRONG
    assert result_of(case, outcome(None, "NotAvailable")).status is Status.UNAVAILABLE
    assert result_of(case, outcome(None, "Timeout")).status is Status.FAILED
    assert result_of(case, outcome(None, "Timeout"), boxed=True).status is Status.UNAVAILABLE
    value = {"rows_per_s": 5, "wall_rows_per_s": 4, "cpu_s_per_m_rows": 3, "trigger_s_median": 2}
    assert result_of(case, outcome(value)).figures["trigger_s"] == 2


def test_a_result_that_is_not_sparks_is_wrong_whatever_its_figures() -> None:
    mine = found(BEDLOAD)
    same = {(SPARK, "map", "rows"): "a", (BEDLOAD, "map", "rows"): "a"}
    assert judged(mine, same) == judged(mine, {}) == mine
    wrong = judged(mine, {**same, (BEDLOAD, "map", "rows"): "b"})
    assert (wrong.status, wrong.figures) == (Status.WRONG, {})
    assert judged(found(SPARK), {**same, (BEDLOAD, "map", "rows"): "b"}).status is Status.OK


def text_of(results: Sequence[Result]) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    for table in tables(make_report([results], True)):
        console.print(table)
    return console.export_text()


def test_the_report_has_figures_ratios_verdicts_and_what_bounds_them() -> None:
    text = text_of([floor(SPARK, 0.4), floor(BEDLOAD, 1.0), found(SPARK), found(BEDLOAD, rows_per_s=2000.0)])
    assert "2.0x" in text
    assert "out of reach: the trigger" in text, "3 s against 1 s cannot be ten times"
    assert "MISSED" in text, "the CPU"
    text = text_of([floor(SPARK, 0.4), floor(BEDLOAD, 0.1), found(SPARK), found(BEDLOAD, rows_per_s=20_000.0)])
    assert "met" in text


def test_the_json_has_targets_bounds_and_ratios() -> None:
    results = [floor(SPARK, 0.4), floor(BEDLOAD, 0.25), found(SPARK), found(BEDLOAD, rows_per_s=9000.0)]
    json = make_report([results, results], False).as_json()
    assert json["settings"]["rounds"] == 2
    assert json["settings"]["targets"]["rows/s, map, rows, 50k rows a batch"] == ">= 10"
    assert json["settings"]["bounds"] == {"rows/s, map, rows, 50k rows a batch": 12.0}
    assert json["ratios"]["rate_map_rows_10k_50k"] == 9.0


def test_the_command_line_names_processors_forms_and_sizes_and_refuses_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = parse(["--names", "map,ttl", "--forms", "rows", "--keys", "10_000", "--batch-rows", "500000"])
    cases = cases_of(options)
    assert {(c.name, c.form, c.keys, c.batch_rows) for c in cases if not c.floor} == {
        ("map", "rows", 10_000, 500_000),
        ("ttl", "rows", 10_000, 500_000),
    }
    assert {c.name for c in cases_of(parse(["--quick", "--names", "list"])) if not c.floor} == {"list"}
    with pytest.raises(SystemExit):
        parse(["--names", "flink"])
    assert "no flink" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse(["--resume"])
    assert "needs --json" in capsys.readouterr().err


def test_without_options_a_run_has_all_that_targets_are_for_and_a_full_one_more_keys() -> None:
    default, full = cases_of(parse([])), cases_of(parse(["--full"]))
    assert {(c.name, c.form, c.batch_rows) for c in default if not c.floor} == {
        (name, form, rows) for name in NAMES for form in FORMS for rows in BATCH_ROWS
    }
    assert {c.keys for c in default if not c.floor} == {10_000}
    assert {c.keys for c in full if not c.floor} == set(KEYS)


# --- in pieces


def test_a_run_that_was_cut_off_goes_on_with_what_it_has(tmp_path: Path) -> None:
    file = tmp_path / "out" / "tws.json"
    first, other = Case(SPARK, "map", "rows", 10_000, 50_000), Case(BEDLOAD, "map", "rows", 10_000, 50_000)
    pieces = Pieces.begin(file, resume=False)
    pieces.add(0, first, found(SPARK), "abc")
    pieces.add(0, other, Result(BEDLOAD, other.params, Status.FAILED, {}, "it broke"), None)
    with (tmp_path / "out" / "tws.json.part").open("a") as out:
        out.write('{"case": "0/bedl')

    again = Pieces.begin(file, resume=True)
    assert again.find(0, first) == (found(SPARK), "abc")
    assert again.find(1, first) is None, "another round"
    assert again.find(0, other) is None, "it failed, and runs again"
    again.add(0, other, found(BEDLOAD), "abc")
    assert Pieces.begin(file, resume=True).find(0, other) == (found(BEDLOAD), "abc")

    assert Pieces.begin(file, resume=False).find(0, first) is None, "not asked to go on"
    again.end()
    assert not list((tmp_path / "out").iterdir())
