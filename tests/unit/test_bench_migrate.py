"""The pure parts of the migration benchmark: the load, the figures, the plan, the report."""

import math
import sys
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

# `bench` is not part of the package: it is found from the root of the repository.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.isolate import WrongAnswer
from bench.migrate import Measured, make_report, parse, ratios_of
from bench.migrate_bedload import recorded
from bench.migrate_load import FILL_ROWS, NEVER, Schedule, cut, row_of, zipf_position
from bench.migrate_measure import (
    Beat,
    Epoch,
    NotSteady,
    beats_of,
    before,
    during,
    epochs_of,
    row_latencies,
    spike,
    stabilise,
    stream_figures,
)
from bench.migrate_plan import (
    BASE_KEYS,
    BASE_MB,
    COLUMNS,
    CONTROL,
    FIELDS,
    OURS,
    OVERHEAD,
    QUICK,
    SPARK,
    STRATEGIES,
    SWEEPS,
    Case,
    plan_cases,
)
from bench.migrate_plots import fullest, write_plots
from bench.report import Result, Status

from bedload.migration.record import MoveRecord

T0 = 1_000_000.0
offsets = st.integers(0, 10**9)
times = st.floats(0, 1e5)


# --- the load


@given(st.integers(1, 10**6), st.lists(st.floats(0.001, 50), max_size=30))
def test_every_row_that_is_due_is_handed_out_once_however_late_the_epochs_are(rate: int, pauses: list[float]) -> None:
    schedule, now, at, handed = Schedule(T0, rate), T0, 0, 0
    for pause in pauses:
        now += pause
        end = schedule.latest(at, now)
        handed += end - at
        at = end
    due = math.floor((now - T0) * rate) + 1 if pauses else 0
    assert handed == at == due


@given(offsets, st.integers(1, 10**5), times)
def test_an_epoch_never_holds_a_row_before_it_is_due(offset: int, rate: int, later: float) -> None:
    schedule = Schedule(T0, rate)
    end = schedule.latest(offset, T0 + later)
    assert end >= offset
    if end > offset:
        assert schedule.due(end - 1) <= T0 + later + 1e-6


def test_nothing_is_due_before_the_start_and_filling_rows_are_due_at_once() -> None:
    assert Schedule(T0, 100.0).latest(0, T0 - 1) == 0
    filling = Schedule(NEVER, 100.0, fill=2 * FILL_ROWS + 5)
    steps = [-filling.fill]
    while steps[-1] < 0:
        steps.append(filling.latest(steps[-1], T0))
    assert steps == [-2 * FILL_ROWS - 5, -FILL_ROWS - 5, -5, 0]
    assert filling.latest(0, T0) == 0


@given(st.integers(-(10**6), 10**6), st.integers(0, 10**5), st.integers(1, 8))
def test_parts_of_an_epoch_cover_it_without_overlap(first: int, rows: int, parts: int) -> None:
    ranges = cut(first, first + rows, parts)
    assert sum(b - a for a, b in ranges) == rows
    assert len(ranges) == min(parts, rows)
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    assert not ranges or (ranges[0][0], ranges[-1][1]) == (first, first + rows)


def rank(keys: int, skew: float, u: float) -> int:
    made = zipf_position(keys, skew).format(u=repr(u))
    return min(math.floor(eval(made, {"exp": math.exp, "power": pow}) + 0.5), keys)


@given(st.integers(2, 10**6), st.sampled_from([1.0, 1.5]), st.floats(0, 1, exclude_max=True))
def test_skewed_ranks_are_keys_that_exist(keys: int, skew: float, u: float) -> None:
    assert 1 <= rank(keys, skew, u) <= keys


@pytest.mark.parametrize("skew", [1.0, 1.5])
def test_skewed_ranks_follow_zipfs_law(skew: float) -> None:
    keys, draws = 1000, 100_000
    seen = Counter(rank(keys, skew, (i + 0.5) / draws) for i in range(draws))
    total = sum(k**-skew for k in range(1, keys + 1))
    for k in (1, 2, 5, 20, 100):
        assert seen[k] / draws == pytest.approx(k**-skew / total, rel=0.15)


@pytest.mark.parametrize(("offset", "row"), [(None, None), ("null", None), ('{"row": 7}', 7), ({"row": -3}, -3)])
def test_offsets_of_progress_events_are_row_numbers(offset: Any, row: int | None) -> None:
    assert row_of(offset) == row


# --- the figures


def steadily(rate: float = 100.0, *ends: float) -> list[Epoch]:
    """Epochs that end at these times, each with the rows that were due when the one before ended."""
    found, first = [], 0
    for last, end in zip((T0, *ends), ends, strict=False):
        upto = max(round((last - T0) * rate), first + 1)
        found.append(Epoch(first, upto, last, end))
        first = upto
    return found


def every_half_second(start: float, stop: float) -> list[float]:
    return [T0 + start + 0.5 * i for i in range(int((stop - start) / 0.5) + 1)]


def event(batch: int, first: int | None, end: int, began: float, seconds: float) -> dict[str, Any]:
    return {
        "batchId": batch,
        "timestamp": datetime.fromtimestamp(began, UTC).isoformat().replace("+00:00", "Z"),
        "durationMs": {"triggerExecution": round(seconds * 1000)},
        "sources": [
            {"startOffset": None if first is None else f'{{"row": {first}}}', "endOffset": f'{{"row": {end}}}'}
        ],
    }


def test_progress_of_several_runs_is_one_series_in_which_a_replay_counts_once() -> None:
    events = [
        event(0, None, 0, T0, 1.0),
        event(1, 0, 10, T0 + 1, 0.5),
        event(2, 10, 10, T0 + 1.5, 0.1),
        event(3, 10, 30, T0 + 2, 0.5),
        event(3, 10, 30, T0 + 9, 0.25),
    ]
    epochs = epochs_of(events, fill=50)
    assert [(e.first, e.end) for e in epochs] == [(-50, 0), (0, 10), (10, 30)]
    assert epochs[-1].ended == pytest.approx(T0 + 9.25)
    assert len(beats_of(epochs, Schedule(T0, 10.0, 50))) == 1, "filling has no due times, and the first no epoch before"


def test_time_in_which_nothing_ran_belongs_to_the_epoch_after_it() -> None:
    ends = [*every_half_second(0.5, 5), *every_half_second(15, 20)]
    beats = beats_of(steadily(100.0, *ends), Schedule(T0, 100.0))
    assert max(b.seconds for b in beats) == pytest.approx(10.0)
    steady, moving = before(beats, T0 + 5.1, 4.0), during(beats, T0 + 5.1, T0 + 6)
    assert spike(steady, moving) == pytest.approx(20.0)


def test_rows_that_came_due_in_a_gap_keep_their_whole_latency() -> None:
    ends = [*every_half_second(0.5, 5), *every_half_second(15, 30)]
    beats = beats_of(steadily(100.0, *ends), Schedule(T0, 100.0))
    figures = stream_figures(beats, T0 + 5.1, T0 + 15, 4.0, hold=3.0)
    assert figures["gap_s"] == pytest.approx(10.0)
    assert figures["latency_ms_max"] >= 10_000
    assert figures["steady_epoch_ms"] == pytest.approx(500, abs=1)


beats = st.builds(
    lambda ended, seconds, newest, more, rows: Beat(ended, seconds, newest + more, newest, rows),
    times,
    st.floats(0.01, 10),
    st.floats(0, 10),
    st.floats(0, 10),
    st.integers(1, 10**6),
)


@given(st.lists(beats, min_size=1, max_size=20))
def test_percentiles_over_rows_rise_and_stay_within_what_was_seen(series: list[Beat]) -> None:
    p50, p99, worst = row_latencies(series, (50, 99, 100))
    assert min(b.newest for b in series) - 1e-9 <= p50 <= p99 <= worst
    assert worst == pytest.approx(max(b.oldest for b in series))


def test_percentiles_weigh_epochs_by_their_rows() -> None:
    many, few = Beat(T0, 1, 1.0, 1.0, 990), Beat(T0 + 1, 1, 9.0, 9.0, 10)
    assert row_latencies([many, few], (50, 98, 99.5)) == [1.0, 1.0, 9.0]


def series(*latencies: float) -> list[Beat]:
    """A beat each second from the request's second 0 on; the latencies in seconds."""
    return [Beat(T0 + i, 1.0, latency, latency, 10) for i, latency in enumerate(latencies, 1)]


STEADY = [Beat(T0 - i, 1.0, 1.0, 1.0, 10) for i in range(3, 0, -1)]


@pytest.mark.parametrize(
    ("latencies", "expected"),
    [
        ((1, 1.05, 1, 1, 1), 0.0),
        ((3, 2, 1, 1, 1, 1), 2.0),
        ((1, 1, 5, 1, 1, 1), 3.0),
        ((1, 1, 1, 5, 1), 0.0),
        ((2, 1, 1), None),
        ((5, 5, 5, 5, 5), None),
        ((), None),
    ],
    ids=["never left", "comes down", "late spike", "spike after the hold", "too short", "never comes down", "nothing"],
)
def test_stable_is_from_when_latency_stays_near_what_it_was(
    latencies: tuple[float, ...], expected: float | None
) -> None:
    assert stabilise(series(*latencies), STEADY, T0, hold=3.0) == expected


@given(st.lists(st.floats(0.1, 5), min_size=1, max_size=30), st.floats(1, 10))
def test_after_the_stable_moment_no_latency_in_the_hold_is_over_the_limit(values: list[float], hold: float) -> None:
    found = stabilise(series(*values), STEADY, T0, hold=hold)
    if found is not None:
        held = [b for b in series(*values) if found < b.ended - T0 < found + hold]
        assert all(b.oldest <= 1.1 for b in held)
        assert found == 0 or any(b.ended - T0 == found and b.oldest > 1.1 for b in series(*values))


def test_a_move_that_ends_between_two_commits_is_judged_by_the_epoch_it_fell_into() -> None:
    around = during(series(1, 1, 1), T0 + 1.2, T0 + 1.3)
    assert [b.ended for b in around] == [T0 + 2]
    assert [b.ended for b in during(series(1, 1, 1), T0 + 0.5, T0 + 2.5)] == [T0 + 1, T0 + 2, T0 + 3]


def test_too_little_before_the_request_is_refused() -> None:
    with pytest.raises(NotSteady, match="2 epochs"):
        before(STEADY[1:], T0, 4.0)


# --- the plan


def planned(*arguments: str) -> list[Case]:
    o = parse(arguments)
    return plan_cases(quick=o.quick, sweep=o.sweep, strategies=o.strategies, parts=o.parts, rate=o.rate)


@pytest.mark.parametrize("flags", [(), ("--quick",), *(("--sweep", sweep) for sweep in SWEEPS)])
def test_every_strategy_meets_the_same_settings(flags: tuple[str, ...]) -> None:
    moves = [case for case in planned(*flags) if case.part == "moves"]
    by_strategy = {name: [c.params for c in moves if c.strategy == name] for name in STRATEGIES if name != CONTROL}
    assert all(settings == by_strategy[SPARK] != [] for settings in by_strategy.values())
    assert any(case.strategy == CONTROL for case in moves)


def test_a_sweep_changes_one_thing() -> None:
    for sweep, fixed in (
        ("size", lambda c: (c.value_bytes, c.skew)),
        ("skew", lambda c: (c.state_mb, c.keys, c.value_bytes)),
        ("keys", lambda c: (c.state_mb, c.skew)),
        ("value", lambda c: (c.keys, c.skew)),
    ):
        cases = planned("--sweep", sweep)
        assert len({fixed(c) for c in cases}) == 1, sweep
        assert len({(c.state_mb, c.keys, c.value_bytes, c.skew) for c in cases}) == 3, sweep


def test_state_weighs_what_it_should() -> None:
    assert all(
        c.keys * (c.value_bytes + OVERHEAD) / 1e6 == pytest.approx(c.state_mb, rel=0.001)
        for flags in ((), *(("--sweep", sweep) for sweep in SWEEPS))
        for c in planned(*flags)
    )
    assert {c.keys for c in planned("--sweep", "value")} == {BASE_KEYS}


def test_rows_and_columns_are_moved_with_the_same_state() -> None:
    cases = [c for c in planned("--quick") if c.part == "columns"]
    assert [c.layout for c in cases] == [FIELDS, COLUMNS]
    assert len({(c.strategy, c.state_mb, c.keys, c.rate) for c in cases}) == 1


def test_an_unknown_strategy_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--strategies", "seamless,teleport"])
    assert "no strategy teleport; there are no_move, stop_restart" in capsys.readouterr().err


# --- the report


def ok(strategy: str, state_mb: float = BASE_MB, skew: float = 0.0, **figures: float) -> Result:
    return Result(strategy, Case(strategy, state_mb, skew).params, Status.OK, figures)


def test_ratios_say_how_many_times_as_much_the_others_cost_in_the_same_setting() -> None:
    results = [
        ok(OURS, gap_s=0.5, latency_ms_max=500.0, stoppage_ms_p99=5.0),
        ok(SPARK, gap_s=8.0, latency_ms_max=9000.0, stabilise_s=3.0),
        ok(SPARK, state_mb=10, gap_s=3.0),
        ok(CONTROL, latency_ms_max=400.0),
    ]
    assert ratios_of(results) == {
        f"gap_spark_vs_{OURS}_100mb_uniform": 16.0,
        f"latency_max_spark_vs_{OURS}_100mb_uniform": 18.0,
    }


@pytest.mark.parametrize(("other", "compared"), [("lazy", True), ("stop_restart", False), (SPARK, False)])
def test_stoppage_at_the_workers_is_never_set_against_a_gap_between_commits(other: str, compared: bool) -> None:
    found = ratios_of([ok(OURS, stoppage_ms_p99=5.0), ok(other, stoppage_ms_p99=5000.0)])
    assert bool(found) is compared


def record(**more: Any) -> MoveRecord:
    known = {
        "moved_keys": 10,
        "moved_bytes": 2_000_000,
        "duration_s": 2.0,
        "handover_s": 2.0,
        "asked_keys": 4,
        "stoppage_ms_max": 30.0,
    }
    return MoveRecord(**{"number": 1, "kind": "rescale", "operator": "kept", "strategy": OURS, **known, **more})


@pytest.mark.parametrize(
    ("facts", "restarts", "why"),
    [
        ({"moved_keys": 0, "moved_bytes": 0}, 0, "no key was moved"),
        ({"from_checkpoint": True}, 0, "a worker was lost"),
        ({"outcome": "called off"}, 0, "called off"),
        ({}, 1, "started again"),
    ],
)
def test_a_live_move_that_was_none_has_no_figures(facts: dict[str, Any], restarts: int, why: str) -> None:
    with pytest.raises(WrongAnswer, match=why):
        recorded(Case(OURS, 10, 0.0), record(**facts), 0.5, restarts)


def test_where_no_key_had_rows_on_its_way_none_was_stopped_and_a_note_says_so() -> None:
    asked = recorded(Case(OURS, 10, 0.0), record(), 0.5, 0)
    nobody = recorded(Case(OURS, 10, 0.0), record(asked_keys=0, stoppage_ms_max=0.0), 0.5, 0)
    assert (asked["stoppage_ms_max"], asked["unavailable_s"], asked["mb_per_s"]) == (30.0, 0.03, 1.0)
    assert nobody["stoppage_ms_max"] == 0.0
    measured = Measured()
    said = {"figures": {**nobody, "stabilise_s": 1.0}, "series": [], "case": Case(OURS, 10, 0.0).as_json()}
    assert measured.add(said).note == "no rows met it"


def test_what_stops_the_query_is_stopped_for_as_long_as_nothing_is_committed() -> None:
    found = recorded(Case("stop_restart", 10, 0.0), record(moved_keys=0, asked_keys=0), 7.0, 2)
    assert (found["stoppage_ms_p50"], found["stoppage_ms_max"], found["unavailable_s"]) == (7000.0, 7000.0, 7.0)


def test_the_speed_of_a_transfer_is_compared_with_rows_and_with_flight() -> None:
    def transfer(system: str, layout: str, speed: float) -> Result:
        return Result(system, {"part": "columns", "layout": layout}, Status.OK, {"mb_per_s": speed})

    results = [
        transfer(OURS, FIELDS, 50.0),
        transfer(OURS, COLUMNS, 200.0),
        transfer("flight-loopback", "buffers", 1000.0),
    ]
    assert ratios_of(results) == {
        f"columns_vs_rows_mb_per_s_{OURS}": 4.0,
        f"columns_vs_flight_mb_per_s_{OURS}": 0.2,
    }


def test_a_case_that_failed_has_a_reason_and_no_figures() -> None:
    measured = Measured()
    case = Case(OURS, 10, 0.0)
    measured.add({"case": case.as_json(), "kind": "WrongAnswer", "error": "3 rows too many"})
    (result,) = make_report(measured, parse([]), QUICK).results
    assert (result.status, result.note, result.figures) == (Status.WRONG, "3 rows too many", {})


def test_a_stream_that_does_not_settle_is_said_so() -> None:
    measured = Measured()
    said = {"figures": {"spike": 2.0}, "series": [[0.0, 1.0]], "case": Case(OURS, 10, 0.0).as_json()}
    assert measured.add(said).note == "did not settle"
    assert measured.add({**said, "figures": {"spike": 2.0, "stabilise_s": 1.0}}).note == ""


# --- the plots


def test_plots_are_drawn_for_what_was_measured_and_only_for_that(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figures = {"stoppage_ms_p50": 0.0, "stoppage_ms_p99": 12.0, "stoppage_ms_max": 30.0, "stabilise_s": 1.5}
    one = [ok(OURS, **figures), ok(SPARK, **figures)]
    points = [[-1.0, 400.0], [0.5, 900.0], [99.0, 5.0]]
    lines = [{"strategy": r.system, **r.params, "points": points} for r in one]
    drawn = write_plots(one, lines, tmp_path / "one")
    assert [path.name for path in drawn] == ["migrate-latency.png", "migrate-stoppage.png"]
    more = [*one, ok(OURS, state_mb=10, **figures), ok(OURS, skew=1.5, **figures)]
    drawn = write_plots(more, lines, tmp_path / "more")
    assert {path.name for path in drawn} == {f"migrate-{n}.png" for n in ("latency", "stoppage", "size", "skew")}
    assert all(path.stat().st_size > 5_000 for path in drawn)
    assert write_plots([], [], tmp_path / "none") == []


def test_latency_is_drawn_for_the_setting_with_most_strategies() -> None:
    results = [ok(OURS, state_mb=1000), ok(OURS), ok(SPARK), ok(OURS, skew=1.5), ok(SPARK, skew=1.5)]
    assert fullest(results) == (BASE_MB, "uniform", 1000)
