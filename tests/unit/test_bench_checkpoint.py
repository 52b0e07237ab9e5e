"""What the checkpoint benchmark plans, weighs and compares; and what it measures without Spark, on a small scale."""

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

# `bench` is not part of the package: it is found from the root of the repository.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import checkpoint_restore
from bench.checkpoint import PARTS, make_report, merged, parse, result_of, tables
from bench.checkpoint_fill import FILLING, KEY, MAP, FillRun, changed_bytes, changed_keys, weigh
from bench.checkpoint_plan import MANY_KEYS, OWN, PEER, TARGETS, Job, plan_round, ratios_of, verdict
from bench.checkpoint_restore import LAYOUTS, Written, measure
from bench.checkpoint_throughput import ThroughputRun
from bench.isolate import Outcome, WrongAnswer
from bench.report import Result, Status


def throughput(state: str, rate: float, keys: int = 10_000, system: str = OWN) -> Result:
    return Result(system, {"part": "throughput", "state": state, "keys": keys}, Status.OK, {"rows_per_s": rate})


def restart(system: str, seconds: float) -> Result:
    figures = {"restart_s": seconds, "query_restart_s": seconds / 2, "warm_restart_s": seconds / 4}
    return Result(system, {"part": "restart", "keys": MANY_KEYS}, Status.OK, figures)


def weighed(system: str, keys: int, value: float) -> Result:
    params = {"part": "bytes", "keys": keys, "changed": 10_000}
    return Result(system, params, Status.OK, {"bytes_vs_changed": value})


def read_back(deltas: int, own: float, raw: float) -> Result:
    params = {"part": "restore", "layout": "columns", "keys": MANY_KEYS, "deltas": deltas}
    return Result(OWN, params, Status.OK, {"restore_keys_per_s": own, "raw_keys_per_s": raw})


# --- the plan


@pytest.mark.parametrize("quick", [True, False])
def test_memory_and_durable_alternate_and_change_order_with_each_round(quick: bool) -> None:
    for number in range(3):
        states = [job.params["state"] for job in plan_round(number, quick, PARTS) if job.part == "throughput"]
        pair = ["memory", "durable"] if number % 2 == 0 else ["durable", "memory"]
        assert states == pair * (len(states) // 2)


@pytest.mark.parametrize("quick", [True, False])
def test_a_restart_goes_on_with_a_state_that_the_first_round_has_made(quick: bool) -> None:
    first = plan_round(0, quick, ["restart"])
    made = {job.place: at for at, job in enumerate(first) if job.part == "fill"}
    for number in range(3):
        for at, job in enumerate(plan_round(number, quick, ["restart"])):
            assert job.part == "restart" or number == 0
            assert job.place in made
            assert number > 0 or job.part == "fill" or at > made[job.place]


def test_what_does_not_change_between_rounds_is_measured_in_the_first_alone() -> None:
    assert {job.part for job in plan_round(0, False, PARTS)} == {"throughput", "fill", "restart", "restore"}
    assert {job.part for job in plan_round(1, False, PARTS)} == {"throughput", "restart"}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_can_be_measured_by_itself(part: str) -> None:
    assert {job.part for job in plan_round(0, False, [part])} - {"fill"} == {part} - {"bytes"}


def test_every_job_of_a_round_has_a_name_of_its_own_and_a_place_that_only_a_restart_shares() -> None:
    jobs = plan_round(0, False, PARTS)
    assert len({job.label for job in jobs}) == len(jobs)
    places = [job.place for job in jobs if job.part != "restart"]
    assert len(set(places)) == len(places)


@given(st.integers(1, 3_000_000), st.integers(1, 500_000), st.integers(0, 5))
def test_every_key_is_in_the_state_before_the_first_measured_batch(keys: int, batch_rows: int, settle: int) -> None:
    run = ThroughputRun(OWN, "memory", keys, batch_rows, settle, 1)
    assert run.warmup * batch_rows >= keys + settle * batch_rows - (batch_rows - 1)
    assert run.warmup * batch_rows >= keys


# --- what changes


@given(st.integers(1, 40), st.integers(1, 300), st.integers(0, 50))
def test_an_epoch_changes_as_many_different_keys_as_it_says(per_row: int, changed: int, epoch: int) -> None:
    keys = FILLING * changed * per_row
    found = changed_keys(keys, changed, FILLING + epoch)
    assert len(np.unique(found)) == changed
    assert 0 <= found.min() <= found.max() < keys


def test_keys_that_the_filling_epochs_cannot_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be filled"):
        FillRun(OWN, 1_000_001, 10_000, 3)


@given(st.integers(1, 20), st.integers(1, 200))
def test_a_changed_count_is_sixteen_bytes_whatever_the_state(per_row: int, changed: int) -> None:
    assert changed_bytes(OWN, FILLING * changed * per_row, changed, FILLING) == 16 * changed


def test_a_changed_entry_of_a_map_is_its_key_its_field_and_its_count() -> None:
    keys = [f"{KEY}{number}" for number in changed_keys(200, 10, FILLING).tolist()]
    strings = pa.array(keys).nbytes
    fields = pa.array([f"field-{int(key.removeprefix(KEY)) % 20}" for key in keys]).nbytes
    assert changed_bytes(MAP, 200, 10, FILLING) == strings + fields + 8 * 10


def test_what_an_epoch_wrote_is_its_segments_and_its_record(tmp_path: Path) -> None:
    written = Written(tmp_path / "bedload", "columns")
    plan = FillRun(OWN, 2_000, 100, 3)
    for epoch in range(FILLING):
        written.epoch(np.arange(epoch * 1_000, (epoch + 1) * 1_000))
    for epoch in range(FILLING, FILLING + plan.epochs):
        written.epoch(changed_keys(plan.keys, plan.changed, epoch))
    found = weigh(plan, tmp_path)
    folder = tmp_path / "bedload" / "operators" / "count"
    files = [*folder.glob("deltas/*-0000000004-w*.arrow"), *folder.glob("turns/*-0000000004.json")]
    assert len(files) == 3
    assert abs(found["bytes_per_epoch"] - sum(file.stat().st_size for file in files)) < 200
    assert found["changed_bytes"] == 1_600
    assert found["bytes_vs_changed"] == pytest.approx(found["bytes_per_epoch"] / 1_600)


def test_an_epoch_that_was_not_written_is_a_wrong_answer(tmp_path: Path) -> None:
    written = Written(tmp_path / "bedload", "columns")
    for _ in range(FILLING + 1):
        written.epoch(np.arange(200))
    with pytest.raises(WrongAnswer, match="1 of 2 epochs"):
        weigh(FillRun(OWN, 200, 100, 2), tmp_path)


# --- reading back


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("deltas", [0, 2])
def test_state_is_read_back_in_each_way_before_it_is_timed(layout: str, deltas: int, tmp_path: Path) -> None:
    figures = measure({"layout": layout, "keys": 2_000, "deltas": deltas, "repeats": 1}, str(tmp_path))
    assert set(figures) == {
        "raw_keys_per_s", "restore_keys_per_s", "install_keys_per_s", "restore_mb_per_s", "files_mb",
    }  # fmt: skip
    snapshot = sum(file.stat().st_size for file in tmp_path.rglob("*.parquet"))
    segments = sum(file.stat().st_size for file in tmp_path.rglob("*.arrow") if "-0000000001-w" not in file.name)
    assert figures["files_mb"] * 1e6 == pytest.approx(snapshot + segments)


def test_state_that_comes_back_wrong_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class ForgetsAKey(checkpoint_restore.Restore):
        def table(self, *args: Any, **options: Any) -> pa.Table:
            return super().table(*args, **options).slice(1)

    monkeypatch.setattr(checkpoint_restore, "Restore", ForgetsAKey)
    with pytest.raises(WrongAnswer, match="499 keys"):
        measure({"layout": "columns", "keys": 500, "deltas": 0, "repeats": 1}, str(tmp_path))


# --- ratios


def test_a_ratio_of_what_runs_in_every_round_is_the_median_of_the_rounds_ratios() -> None:
    rounds = [
        [throughput("memory", 100.0), throughput("durable", 90.0)],
        [throughput("durable", 10.0), throughput("memory", 20.0)],
        [throughput("memory", 50.0), throughput("durable", 40.0)],
    ]
    assert ratios_of(rounds) == {"durable_vs_memory_10k": 0.8}


def test_a_restart_that_takes_half_as_long_as_sparks_is_a_ratio_of_two() -> None:
    found = ratios_of([[restart(PEER, 8.0), restart(OWN, 4.0)]])
    assert found == {"restart_vs_spark": 2.0, "query_restart_vs_spark": 2.0, "warm_restart_vs_spark": 2.0}


def test_a_ratio_needs_both_sides_measured() -> None:
    failed = Result(PEER, {"part": "restart", "keys": MANY_KEYS}, Status.FAILED, {}, "crash")
    assert ratios_of([[failed, restart(OWN, 4.0)], [throughput("durable", 1.0)]]) == {}


def test_all_ratios_with_a_target_and_the_reported_ones_are_in_a_whole_run() -> None:
    everything = [
        *(throughput(state, 1.0, keys, system) for state in ("memory", "durable") for keys in (10_000, MANY_KEYS)
          for system in (OWN, "bedload-operator")),
        weighed(OWN, MANY_KEYS, 0.3), weighed(OWN, 100_000, 0.2), weighed(MAP, 100_000, 0.6),
        restart(OWN, 1.0), restart(PEER, 3.0), read_back(0, 3.0, 2.0), read_back(20, 1.0, 2.0),
    ]  # fmt: skip
    found = ratios_of([everything])
    assert {*TARGETS, "restore_vs_raw_read"} <= found.keys()
    assert (found["bytes_vs_changed"], found["bytes_vs_changed_100k"], found["bytes_vs_changed_map"]) == (0.3, 0.2, 0.6)
    assert (found["restore_vs_raw_read"], found["restore_with_deltas_vs_raw_read"]) == (1.5, 0.5)
    assert {"operator_durable_vs_memory_10k", "operator_durable_vs_memory_1m"} <= found.keys()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("durable_vs_memory_10k", 0.85, ">= 0.85: met"),
        ("durable_vs_memory_1m", 0.84, ">= 0.85: missed"),
        ("bytes_vs_changed", 1.5, "<= 1.5: met"),
        ("bytes_vs_changed", 1.6, "<= 1.5: missed"),
        ("restore_vs_raw_read", 0.1, ""),
    ],
)
def test_a_ratio_is_compared_with_its_target(name: str, value: float, said: str) -> None:
    assert verdict(name, value) == said


# --- the report


def job() -> Job:
    return next(job for job in plan_round(0, True, ["restore"]))


def outcome(value: dict[str, Any] | None, kind: str = "") -> Outcome:
    return Outcome(value, kind, "why", 100.0, 0.0, 2.0, Path("log"))


def test_a_job_without_an_answer_has_no_figures_and_says_why() -> None:
    bad = result_of(job().system, job().params, outcome(None, "WrongAnswer"))
    assert (bad.status, dict(bad.figures), bad.note) == (Status.WRONG, {}, "why")
    assert result_of(job().system, job().params, outcome(None, "Crash")).status is Status.FAILED


def test_rounds_are_merged_by_measurement_whatever_their_order() -> None:
    found = merged(
        [
            [throughput("memory", 1.0), throughput("durable", 10.0), restart(OWN, 5.0)],
            [throughput("durable", 30.0), throughput("memory", 3.0)],
        ]
    )
    assert [next(iter(result.figures.values())) for result in found] == [2.0, 20.0, 5.0]


def test_the_tables_show_each_part_and_every_target() -> None:
    good = [throughput("memory", 2_000.0), throughput("durable", 1_000.0), restart(OWN, 1.0), restart(PEER, 4.0)]
    filled = Result(PEER, {"part": "bytes", "keys": MANY_KEYS, "changed": 10_000}, Status.OK, {"run_s": 1.0})
    report = make_report([[*good, filled, read_back(0, 3e6, 2e6)]], parse(["--quick"]))
    console = Console(width=150, record=True, file=io.StringIO())
    for table in tables(report):
        console.print(table)
    text = console.export_text()
    assert "2,000" in text
    assert ">= 0.85: missed" in text
    assert ">= 3: met" in text
    assert "bytes written per epoch" not in text, "what only makes a state has nothing to show"
    said = report.as_json()
    assert said["ratios"]["durable_vs_memory_10k"] == 0.5
    assert said["settings"]["targets"]["restart_vs_spark"] == ">= 3"


def test_rounds_are_one_in_a_quick_run_and_three_otherwise_unless_asked() -> None:
    assert [parse(a).rounds for a in ([], ["--quick"], ["--quick", "--rounds", "2"])] == [3, 1, 2]


def test_a_part_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--parts", "restart,speed"])
    assert "no part speed" in capsys.readouterr().err
