"""The epoch protocol under some hundreds of seeds, and proof that the simulator would notice."""

from __future__ import annotations

import pytest

from bedload.testing import Scenario, simulate
from bedload.testing.faults import ALWAYS, BUDGETS
from bedload.testing.simulate import main

CHUNK = 50
FAULTS = sorted({*BUDGETS, "noise", "poison", "second query"})


@pytest.mark.parametrize("start", range(0, 600, CHUNK))
def test_state_and_outputs_are_exactly_once_whatever_happens(start: int) -> None:
    for seed in range(start, start + CHUNK):
        simulate(seed)


def test_without_faults_every_query_finishes_and_no_turn_is_rolled_back() -> None:
    for seed in range(20):
        report = simulate(seed, Scenario(frozenset(), 0.0))
        assert report.endings == {"A": "finished"}
        assert report.aborted == 0
        assert report.committed > 0


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_survived_when_it_comes_often(fault: str) -> None:
    scenario = Scenario(ALWAYS | {fault}, 0.3)
    happened = sum(simulate(seed, scenario).faults[fault] for seed in range(2000, 2015))
    assert happened > 0


def test_a_seed_is_one_story() -> None:
    stories = [simulate(7, tracing=True).story for _ in range(2)]
    assert stories[0] == stories[1]
    assert stories[0] != simulate(8, tracing=True).story


def test_the_command_line_runs_and_tells(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0:3"]) == 0
    assert "3 seeds, 0 failed" in capsys.readouterr().out
    assert main(["--seed", "3", "--trace"]) == 0
    assert "coordinator -> worker 0: Begin(" in capsys.readouterr().out


def test_the_command_line_refuses_what_is_not_a_range(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--seeds", "17"])
    assert "FROM:TO" in capsys.readouterr().err
