import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

# `bench` is not part of the package: it is found from the root of the repository.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.counter import make_report, parse, plan_runs
from bench.isolate import ROOT
from bench.report import Column, Report, Result, Status, median_of_rounds, ratio, short_count
from bench.source import SCATTER, fill_batches
from bench.spark_run import rate_of

rates = st.floats(min_value=1, max_value=1e9)


def ok(system: str, rate: float, keys: int = 10_000) -> Result:
    return Result(system, {"keys": keys}, Status.OK, {"rows_per_s": rate, "busy_cores_before": 0.0})


def test_json_form_is_flat_and_has_the_named_parts(tmp_path: Path) -> None:
    report = Report("counter", [ok("a", 2.0)], [], {"a_vs_b_10k": 1.23456}, {"quick": True}, {"cores": 2})
    report.write_json(tmp_path / "deep" / "out.json")
    said = json.loads((tmp_path / "deep" / "out.json").read_text(encoding="utf-8"))
    assert said == {
        "bench": "counter",
        "settings": {"quick": True},
        "machine": {"cores": 2},
        "results": [{"system": "a", "status": "ok", "keys": 10_000, "rows_per_s": 2.0, "busy_cores_before": 0.0}],
        "ratios": {"a_vs_b_10k": 1.2346},
    }


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.WRONG, Status.FAILED])
def test_a_result_that_is_not_ok_cannot_carry_figures(status: Status) -> None:
    with pytest.raises(ValueError, match="cannot carry figures"):
        Result("a", {}, status, {"rows_per_s": 1.0})


@given(st.lists(rates, min_size=3, max_size=3).map(sorted))
def test_rounds_are_reported_by_their_median(values: list[float]) -> None:
    shuffled = [values[2], values[0], values[1]]
    assert median_of_rounds([ok("a", v) for v in shuffled]).figures["rows_per_s"] == values[1]


def test_the_counter_shows_the_slowest_and_the_fastest_round_beside_the_median() -> None:
    rounds = [[ok("bedload-aggregate", rate)] for rate in (3.0, 1.0, 2.0)]
    report = make_report(rounds, parse(["--keys", "10000"]), "")
    (figures,) = (result.figures for result in report.results)
    assert [figures[name] for name in ("rows_per_s_min", "rows_per_s", "rows_per_s_max")] == [1.0, 2.0, 3.0]
    assert {"rows_per_s_min", "rows_per_s_max", "cpu_s_per_m_rows"} <= {column.name for column in report.columns}


def test_processor_time_is_that_of_the_whole_session_also_of_what_has_ended() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    text = (
        "import subprocess, sys\nfrom bench.isolate import cpu_seconds\nbefore = cpu_seconds()\n"
        f"subprocess.run([sys.executable, '-c', {burn!r}], check=True)\nprint(cpu_seconds() - before)"
    )
    command = [sys.executable, "-c", text]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60, start_new_session=True)
    assert float(made.stdout) >= 0.25


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_failure_in_any_round_is_what_is_reported(position: int) -> None:
    rounds = [ok("a", 1.0), ok("a", 2.0)]
    rounds.insert(position, Result("a", {"keys": 1}, Status.WRONG, {}, "3 keys wrong"))
    merged = median_of_rounds(rounds)
    assert (merged.status, merged.note, dict(merged.figures)) == (Status.WRONG, "3 keys wrong", {})


@given(rates, rates, rates)
def test_a_ratio_is_taken_against_the_best_of_the_peers(own: float, one: float, other: float) -> None:
    results = [ok("own", own), ok("one", one), ok("other", other), ok("other", 10 * one, keys=5)]
    found = ratio(results, "own", ("one", "other"), "rows_per_s", keys=10_000)
    assert found == own / max(one, other)


def test_a_ratio_needs_both_sides_measured() -> None:
    absent = Result("peer", {"keys": 10_000}, Status.FAILED, {}, "crash")
    assert ratio([ok("own", 1.0), absent], "own", ("peer",), "rows_per_s", keys=10_000) is None
    assert ratio([absent, ok("peer", 1.0)], "own", ("peer",), "rows_per_s", keys=10_000) is None


def test_counts_are_short_in_names_only_where_they_are_round() -> None:
    assert [short_count(n) for n in (10_000, 1_000_000, 1_500_000, 1_234, 999, 0)] == [
        "10k",
        "1m",
        "1500k",
        "1234",
        "999",
        "0",
    ]


def test_the_table_shows_figures_and_says_why_there_are_none() -> None:
    bad = Result("absent", {"keys": 7}, Status.UNAVAILABLE, {}, "[red] is not markup")
    columns = [Column("keys", "keys", "{:,}"), Column("rows_per_s", "rows/s", "{:,.0f}")]
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(Report("b", [ok("fast", 1_234_567.0), bad], columns).table())
    text = console.export_text()
    assert "1,234,567" in text
    assert "not available: [red] is not markup" in text


def test_the_counter_names_its_ratios_for_system_peer_and_keys() -> None:
    rates_of = {"bedload-operator": 6.0, "spark-native-rocksdb": 3.0, "spark-tws-rows": 1.0, "spark-tws-pandas": 2.0}
    report = make_report([[ok(name, rate) for name, rate in rates_of.items()]], parse(["--keys", "10000"]), "")
    assert report.ratios == {"bedload_operator_vs_native_rocksdb_10k": 2.0, "bedload_operator_vs_tws_10k": 3.0}
    assert [r.figures["vs_native_rocksdb"] for r in report.results] == [2.0, 1.0, 0.333, 0.667]


def test_slow_systems_run_with_many_keys_only_when_named() -> None:
    def at_a_million(*arguments: str) -> set[str]:
        return {run.system for run in plan_runs(parse(arguments)) if run.keys == 1_000_000}

    assert "spark-tws-rows" not in at_a_million()
    assert at_a_million("--systems", "spark-tws-rows") == {"spark-tws-rows"}


@given(st.integers(1, 3_000_000), st.sampled_from([[], ["--quick"], ["--large"], ["--quick", "--large"]]))
def test_every_system_gets_the_same_batches_and_a_full_state(keys: int, flags: list[str]) -> None:
    runs = plan_runs(parse(["--keys", str(keys), *flags]))
    assert len({run.batch_rows for run in runs}) == 1
    assert all(run.warmup * run.batch_rows >= keys and run.batches > 0 for run in runs)


@given(st.integers(1, 3_000), st.integers(1, 500))
def test_filling_visits_every_key_once_and_no_batch_more_than_needed(keys: int, batch_rows: int) -> None:
    assert {row * SCATTER % keys for row in range(keys)} == set(range(keys))
    batches = fill_batches(keys, batch_rows)
    assert (batches - 1) * batch_rows < keys <= batches * batch_rows


def event(batch: int, milliseconds: int) -> dict[str, object]:
    return {
        "batchId": batch,
        "numInputRows": 100,
        "timestamp": f"2020-01-01T00:00:{batch:02d}.000Z",
        "durationMs": {"triggerExecution": milliseconds},
    }


def test_a_rate_is_rows_over_whole_triggers_after_the_warm_up() -> None:
    rate = rate_of([event(0, 9_999), event(1, 400), event(2, 600), event(3, 9_999)], warmup=1, batches=2)
    assert (rate.rows, rate.rows_per_s, rate.slowest_trigger_s) == (200, 200.0, 0.6)
    # Batch 2 began one second after batch 1, though that took 0.4 s: the gap counts against the wall rate.
    assert rate.wall_rows_per_s == 200 / 1.6


def test_a_missing_progress_event_is_an_error_and_not_a_better_rate() -> None:
    with pytest.raises(RuntimeError, match=r"no progress event for batches \[2\]"):
        rate_of([event(1, 400), event(3, 400)], warmup=1, batches=3)
