"""What the benchmark of time plans, checks and compares; and what it measures without Spark, on a small scale."""

import io
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

# `bench` is not part of the package: it is found from the root of the repository.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import timers_beat
from bench.isolate import WrongAnswer
from bench.report import Result, Status
from bench.timers import TABLES, make_report, parse, tables
from bench.timers_operators import CYCLE, START, STEP, due_at
from bench.timers_plan import MANY_KEYS, PARTS, TARGETS, plan_round, ratios_of, verdict
from bench.timers_spark import SPARK, check, expected_fires
from bench.timers_ttl import KEY_STEPS, MAP_STEPS
from bench.timers_worker import figures_of

from bedload.store.columns.times import Times
from bedload.worker.expiry import VariableTtl
from bedload.worker.firing import Firing

KEYS = 300


def found(part: str, system: str, variant: str, **figures: float) -> Result:
    return Result(system, {"part": part, "variant": variant}, Status.OK, figures)


def failed(part: str, system: str, variant: str) -> Result:
    return Result(system, {"part": part, "variant": variant}, Status.FAILED, {}, "it broke")


# --- the plan


@pytest.mark.parametrize("quick", [True, False])
def test_each_round_has_the_opposite_order_and_a_part_can_be_had_alone(quick: bool) -> None:
    for part in PARTS:
        labels = [[job.label for job in plan_round(number, quick, [part])] for number in range(2)]
        assert labels[0] == labels[1][::-1]
        assert len(set(labels[0])) == len(labels[0]) > 1
        assert {job.part for job in plan_round(0, quick, [part])} == {part}
    everything = [job.label for part in PARTS for job in plan_round(0, quick, [part])]
    assert [job.label for job in plan_round(0, quick, PARTS)] == everything


def test_what_is_compared_does_the_same_work() -> None:
    for part in ("timers", "ttl", "queries"):
        runs: dict[str, list[dict[str, Any]]] = {}
        for job in plan_round(0, False, [part]):
            runs.setdefault(job.system, []).append({k: v for k, v in job.run.items() if k != "variant"})
        for of_one in runs.values():
            assert all(run == of_one[0] for run in of_one)
    sizes = {(job.run["keys"], job.run["batch_rows"]) for job in plan_round(0, False, ["queries"])}
    assert sizes == {(10_000, 50_000)}
    assert all(job.run["settle"] > max(MAP_STEPS, KEY_STEPS) for job in plan_round(0, True, ["ttl"]))


# --- the load


@pytest.mark.parametrize("epoch", [0, 1, 99, 100, 12_345])
def test_a_timer_is_due_in_one_epoch_of_a_cycle_and_moves_with_each(epoch: int) -> None:
    watermark = START + epoch * STEP
    for key in range(CYCLE):
        at = due_at(key, watermark)
        due = next(e for e in range(epoch, epoch + CYCLE) if START + e * STEP >= at)
        assert due % CYCLE == key
        assert at != due_at(key, watermark + STEP)
    assert due_at(7, 0) == due_at(7, START)


def test_one_place_of_the_cycle_fires_in_each_batch_of_a_query() -> None:
    assert expected_fires("plain", 500, 9) == []
    fired = expected_fires("timers", 500, 3)
    assert sorted(fired) == sorted([*range(0, 500, 100), *range(1, 500, 100)])


def outputs(*rows: tuple[int, int, bool]) -> pa.Table:
    return pa.table({name: list(column) for name, column in zip(("key", "n", "fired"), zip(*rows, strict=True))})  # noqa: B905


def test_a_query_whose_counts_or_timers_are_wrong_has_no_figures() -> None:
    right = [(0, 1, False), (1, 1, False), (0, 2, False), (0, 2, True)]
    check(outputs(*right), {0: 2, 1: 1}, "timers", 2, 2)
    with pytest.raises(WrongAnswer, match="1 of 2 keys wrong, such as 1: 1, not 3"):
        check(outputs(*right), {0: 2, 1: 3}, "timers", 2, 2)
    for wrong in (right[:3], [*right, right[3]], [*right[:3], (1, 1, True)]):
        with pytest.raises(WrongAnswer, match="timers fired, which are not those that were due"):
            check(outputs(*wrong), {0: 2, 1: 1}, "timers", 2, 2)


# --- a worker


SUBJECTS = [
    *((system, variant) for system in ("rows", "columns") for variant in ("plain", "kept", "moved")),
    *((system, variant) for system in ("map", "arrays", "aggregate") for variant in ("plain", "ttl")),
]


@pytest.mark.parametrize(("system", "variant"), SUBJECTS)
def test_every_subject_is_measured_and_right(system: str, variant: str) -> None:
    entries = 20 if system == "map" else 1
    figures = figures_of(system, variant, KEYS, KEYS * entries // 4, 14, 2)
    assert figures["rows_per_s"] > 0
    assert ("fired_m_per_s" in figures) == (variant in ("kept", "moved"))
    assert ("all_expire_ms" in figures) == (variant == "ttl")
    if variant == "ttl":
        assert 0 < figures["expired_share"] < 0.1


def measured(system: str, variant: str) -> dict[str, float]:
    return figures_of(system, variant, KEYS, KEYS // 4, 14, 2)


def test_a_timer_that_does_not_fire_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Times.due
    monkeypatch.setattr(Times, "due", lambda self, now: original(self, now)[1:])
    with pytest.raises(WrongAnswer, match="timers fired, not"):
        measured("columns", "kept")
    monkeypatch.setattr(Firing, "run", lambda self, call: None)
    with pytest.raises(WrongAnswer, match="0 timers fired, not"):
        measured("rows", "moved")


def test_what_does_not_expire_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VariableTtl, "expire", lambda self, table, due, time: None)
    with pytest.raises(WrongAnswer, match="counts are wrong"):
        measured("arrays", "ttl")


# --- ratios


def timers(system: str, variant: str, rate: float, **more: float) -> Result:
    return found("timers", system, variant, rows_per_s=rate, **more)


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    rounds = [[timers("rows", "plain", 100.0), timers("rows", "kept", rate)] for rate in (50.0, 70.0, 90.0)]
    assert ratios_of(rounds) == {"rows_timers_vs_plain": pytest.approx(0.7)}


def test_memory_of_a_timer_is_what_state_with_timers_takes_more() -> None:
    plain, kept = (timers("columns", "plain", 1.0, state_mb=40.0), timers("columns", "kept", 1.0, state_mb=50.0))
    assert ratios_of([[plain, kept]])["columns_bytes_per_timer"] == pytest.approx(10e6 / MANY_KEYS)


def test_what_was_not_measured_is_in_no_ratio() -> None:
    assert ratios_of([[failed("timers", "rows", "plain"), timers("rows", "kept", 5.0)]]) == {}
    assert ratios_of([]) == {}


def test_spark_is_compared_variant_by_variant() -> None:
    results = [found("queries", "rows", "ttl", rows_per_s=90.0), found("queries", SPARK, "ttl", rows_per_s=30.0)]
    results += [found("queries", SPARK, "timers", rows_per_s=1.0)]
    assert ratios_of([results]) == {"rows_vs_transform_with_state_ttl": pytest.approx(3.0)}


def test_a_beat_is_judged_where_it_costs_most() -> None:
    fast, slow = timers_beat.QUIET
    results = [found("beat", "without", variant, cpu_ms=20.0) for variant in (fast, slow)]
    results += [found("beat", "beat", fast, cpu_ms=90.0), found("beat", "beat", slow, cpu_ms=25.0)]
    assert ratios_of([results]) == {"beat_quiet_cpu_ms_per_s_more": pytest.approx(70.0)}


def test_verdicts_say_met_or_missed() -> None:
    assert verdict("rows_timers_vs_plain", 0.6) == ">= 0.6: met"
    assert verdict("columns_bytes_per_timer", 33.0) == "<= 32: missed"
    assert verdict("rows_vs_transform_with_state_ttl", 3.0) == ""


# --- the report


def test_tables_show_what_was_measured_and_the_verdicts() -> None:
    results = [timers("columns", variant, rate, state_mb=1.0) for variant, rate in (("plain", 10.0), ("kept", 9.0))]
    results += [failed("ttl", "map", "ttl"), found("queries", SPARK, "timers", rows_per_s=5.0)]
    results += [found("beat", "beat", "due", trigger_ms=200.0)]
    report = make_report([[Result(r.system, r.params, r.status, {**r.figures}, r.note) for r in results]], True)
    console = Console(width=200, record=True, file=io.StringIO())
    for table in tables(report):
        console.print(table)
    text = console.export_text()
    assert "failed: it broke" in text
    assert "columns_timers_vs_plain" in text
    assert ">= 0.8: met" in text
    assert set(report.as_json()["settings"]["targets"]) == set(TARGETS)
    assert set(TABLES) == set(PARTS)


def test_the_command_line_names_parts_and_refuses_others(capsys: pytest.CaptureFixture[str]) -> None:
    options = parse(["--quick", "--parts", "ttl,beat"])
    assert (options.quick, options.parts, options.rounds) == (True, ["ttl", "beat"], 1)
    assert (parse([]).parts, parse([]).rounds) == (list(PARTS), 3)
    for wrong in (["--parts", "sleep"], ["--rounds", "0"]):
        with pytest.raises(SystemExit):
            parse(wrong)
    assert "no part sleep" in capsys.readouterr().err
