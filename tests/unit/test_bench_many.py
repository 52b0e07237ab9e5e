"""The benchmark of many operators, partitions and workers: its sizes, its slopes and its verdicts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# `bench` is not part of the package: it is found from the root of the repository.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.many import GRID, LARGE, parse, ratios_of, slopes, tables
from bench.report import Report, Result, Status


def measured(workers: int, partitions: int, extra: float = 0.0) -> Result:
    params = {"part": "alone", "workers": workers, "partitions": partitions}
    cost = 7.0 + 3 * workers + 2 * partitions + extra * workers * partitions
    return Result("coordinator", params, Status.OK, {"coordinator_ms": cost, "bytes": cost, "messages": cost})


def test_slopes_are_those_of_a_linear_cost() -> None:
    found = slopes([measured(*size) for size in GRID], "coordinator_ms")
    assert list(found) == pytest.approx([7.0, 3.0, 2.0])


def test_a_linear_cost_meets_its_target_and_a_product_does_not() -> None:
    small = [measured(*size) for size in GRID]
    assert ratios_of([*small, measured(*LARGE)])["large_cpu_vs_slopes"] == pytest.approx(1.0)
    assert ratios_of([*small, measured(*LARGE, extra=0.01)])["large_cpu_vs_slopes"] > 1.3


def test_the_share_is_that_of_the_worst_run() -> None:
    runs = [Result("chained", {"part": "spark"}, Status.OK, {"coordinator_share": it}) for it in (0.01, 0.2, 0.05)]
    failed = Result("queries", {"part": "spark"}, Status.FAILED, {}, "no")
    report = Report("many", [*runs, failed], (), ratios_of([*runs, failed]))
    assert report.ratios == {"coordinator_share_of_epoch": 0.2}
    assert "missed" in list(tables(report))[-1].columns[2]._cells[0]  # type: ignore[operator]


def test_quick_is_smaller() -> None:
    quick, whole = parse(["--quick"]), parse([])
    assert (quick.workers, quick.operators, quick.partitions) == ([4, 8], 4, 40)
    assert (whole.workers, whole.operators, whole.partitions) == ([8, 16, 32], 8, 200)


@pytest.mark.parametrize("wrong", [["--layouts", "ring"], ["--parts", "none"], ["--partitions", "13"]])
def test_what_cannot_be_run_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(wrong)
    assert wrong[0] in capsys.readouterr().err
