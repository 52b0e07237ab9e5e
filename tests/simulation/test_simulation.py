"""The epoch protocol under some hundreds of seeds, of which ``make simulate`` draws many more."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.simulator import Scenario
from tests.simulator.__main__ import main
from tests.simulator.faults import ALWAYS, BUDGETS, DURABLE
from tests.simulator.simulation import simulate

CHUNK = 50
FAULTS = sorted({*BUDGETS, "noise", "poison", "second query"})
NEEDS = {
    "killed in restore": {"lost workers", "lost driver"},
    "dead replacement": {"lost worker"},
    "no replacement": {"lost worker"},
}
"""What must happen for a fault to have an occasion."""


@pytest.mark.parametrize("start", [*range(0, 200, CHUNK), 300])
def test_state_and_outputs_are_exactly_once_whatever_happens(start: int) -> None:
    for seed in range(start, start + CHUNK):
        simulate(seed)


@pytest.mark.parametrize("durable", [False, True])
def test_without_faults_every_query_finishes_and_no_turn_is_rolled_back(durable: bool) -> None:
    for seed in range(12):
        report = simulate(seed, Scenario(frozenset(), 0.0, durable))
        assert report.endings == {"A": "finished"}
        assert report.aborted == 0
        assert report.committed > 0
        assert report.attachments == 1


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_survived_when_it_comes_often(fault: str) -> None:
    scenario = Scenario(ALWAYS | {fault}, 0.3)
    happened = sum(simulate(seed, scenario).faults[fault] for seed in range(2000, 2008))
    assert happened > 0


@pytest.mark.parametrize("fault", sorted(DURABLE))
def test_every_fault_of_a_checkpoint_is_survived_when_it_comes_often(fault: str) -> None:
    scenario = Scenario(ALWAYS | {fault} | NEEDS.get(fault, set()), 0.3, durable=True)
    reports = [simulate(seed, scenario) for seed in range(2000, 2006)]
    assert sum(report.faults[fault] for report in reports) > 0
    if fault != "set back":
        assert {ending for report in reports for ending in report.endings.values()} == {"finished"}


@pytest.mark.parametrize("start", range(3000, 3020, 10))
def test_all_faults_of_a_checkpoint_together_are_survived(start: int) -> None:
    scenario = Scenario(ALWAYS | DURABLE.keys() | {"second query"}, 0.12, durable=True)
    for seed in range(start, start + 10):
        simulate(seed, scenario)


@pytest.mark.parametrize("durable", [False, True])
def test_a_seed_is_one_story(durable: bool) -> None:
    scenario = Scenario(ALWAYS | DURABLE.keys() | {"second query"}, 0.3, durable)
    stories = [simulate(7, scenario, tracing=True).story for _ in range(2)]
    assert stories[0] == stories[1]
    assert stories[0] != simulate(8, scenario, tracing=True).story


def test_a_seed_is_one_story_in_every_process() -> None:
    command = [sys.executable, "-m", "tests.simulator", "--seed", "4142", "--moves", "--trace"]
    told = {
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": number, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for number in ("0", "5")
    }
    assert len(told) == 1


def test_the_command_line_runs_and_tells(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0:6", "--plain"]) == 0
    told = capsys.readouterr().out
    assert "6 seeds, 0 failed" in told
    assert "in memory only" in told
    assert "in a checkpoint" in told
    assert main(["--seed", "3", "--trace"]) == 0
    assert "coordinator -> worker 0: Begin(" in capsys.readouterr().out


@pytest.mark.parametrize("seeds", ["many", "7:7", "0", ":"])
def test_the_command_line_refuses_what_is_no_seeds(seeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--seeds", seeds])
    assert "FROM:TO" in capsys.readouterr().err
