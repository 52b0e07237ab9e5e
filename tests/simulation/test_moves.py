"""State moves while queries run, under some hundreds of seeds: every strategy, every wish, every loss.

``make simulate`` draws many more.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from tests.simulator import Scenario
from tests.simulator.__main__ import main
from tests.simulator.faults import ALWAYS, DURABLE, DURABLE_MOVES, MOVES
from tests.simulator.simulation import simulate

import bedload as bl
from bedload.migration import STRATEGIES
from bedload.testing import InProcessCluster

CHUNK = 50
KINDS = ["rescale", "move", "drain", "rebalance", "pin", "unpin"]
STAGES = {"COPYING", "DUE", "FLIPPED", "ARRIVED", "ENDING"}


@pytest.mark.parametrize("start", [*range(0, 250, CHUNK), 500])
def test_state_and_outputs_are_exactly_once_while_state_moves(start: int) -> None:
    for seed in range(start, start + CHUNK):
        simulate(seed, moves=True)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("strategy", sorted({*STRATEGIES} - {"stop_restart"}))
def test_without_faults_every_strategy_moves_all_without_rolling_back(strategy: str, durable: bool) -> None:
    changes: Counter[str] = Counter()
    phases: Counter[str] = Counter()
    for seed in range(8):
        report = simulate(seed, Scenario(frozenset(), 0.0, durable, 3, (strategy,), ("rescale", "move", "pin")))
        assert report.endings == {"A": "finished"}
        assert report.aborted == 0
        changes += report.changes
        phases += report.phases
    assert {change.partition(" ")[2] for change in changes} <= {f"{strategy}: done", f"{strategy}: MoveRefused"}
    wanted = STAGES if STRATEGIES[strategy].copy_ahead else STAGES - {"COPYING"}
    assert wanted <= phases.keys()


def test_without_other_faults_a_restart_of_all_workers_costs_no_state() -> None:
    changes: Counter[str] = Counter()
    for seed in range(10):
        report = simulate(seed, Scenario(frozenset(), 0.0, True, 3, ("stop_restart",)))
        assert report.endings == {"A": "finished"}
        changes += report.changes
    assert changes["rescale stop_restart: done"] > 0


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_wish_comes_true_under_the_usual_faults(kind: str, durable: bool) -> None:
    done: Counter[str] = Counter()
    for seed in range(4000, 4006):
        done += simulate(seed, Scenario(ALWAYS, 0.12, durable, 3, (), (kind,))).changes
    assert any(change.startswith(kind) and change.endswith(": done") for change in done)


@pytest.mark.parametrize("fault", sorted(MOVES))
def test_every_fault_of_a_move_is_survived_when_it_comes_often(fault: str) -> None:
    wishes = () if fault in ("broken neighbour", "repeated shipment", "failed flip") else ("rescale",)
    scenario = Scenario(ALWAYS | {fault}, 0.3, moves=3, wishes=wishes)
    reports = [simulate(seed, scenario) for seed in range(2000, 2010)]
    assert sum(report.faults[fault] for report in reports) > 0
    endings = {ending for report in reports for ending in report.endings.values()}
    # Without a checkpoint, state that is between two owners and can reach neither is lost, and that is said.
    lost = {"WorkerLost"} | ({"MoveFailed"} if fault == "failing move" else set())
    assert endings <= {"finished"} | lost
    if fault != "lost newcomer":  # the loss of what was handed over for good is the end
        assert sum("WorkerLost" in report.endings.values() for report in reports) <= len(reports) // 2


@pytest.mark.parametrize("fault", sorted({*MOVES, *DURABLE_MOVES}))
def test_with_a_checkpoint_every_fault_of_a_move_is_survived(fault: str) -> None:
    scenario = Scenario(ALWAYS | {fault}, 0.3, durable=True, moves=3)
    reports = [simulate(seed, scenario) for seed in range(2000, 2006)]
    assert sum(report.faults[fault] for report in reports) > 0
    assert {ending for report in reports for ending in report.endings.values()} == {"finished"}


@pytest.mark.parametrize("start", range(3000, 3020, 10))
def test_all_faults_together_are_survived_while_state_moves(start: int) -> None:
    faults = ALWAYS | DURABLE.keys() | MOVES.keys() | DURABLE_MOVES.keys() | {"second query"}
    for seed in range(start, start + 10):
        simulate(seed, Scenario(faults, 0.12, durable=True, moves=4))


@pytest.mark.parametrize("durable", [False, True])
def test_a_seed_with_moves_is_one_story(durable: bool) -> None:
    scenario = Scenario(ALWAYS | MOVES.keys() | DURABLE_MOVES.keys(), 0.2, durable, moves=3)
    stories = [simulate(7, scenario, tracing=True).story for _ in range(2)]
    assert stories[0] == stories[1]
    assert stories[0] != simulate(8, scenario, tracing=True).story


def test_the_command_line_tells_of_moves(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0:12", "--moves"]) == 0
    told = capsys.readouterr().out
    assert "12 seeds, 0 failed" in told
    assert "changes: " in told
    assert "FLIPPED" in told


class _Count(bl.Operator):
    count: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        for _ in rows:
            self.count += 1
        return key, self.count


@pytest.mark.parametrize("strategy", sorted({*STRATEGIES} - {"stop_restart"}))
def test_a_cluster_in_one_process_can_be_changed_while_it_runs(strategy: str) -> None:
    cluster = InProcessCluster(
        _Count, schema={"key": pa.int64(), "n": pa.int64()}, key="key", input={"key": pa.int64()}, key_groups=16
    )
    rows = [[{"key": key} for key in range(40)]]
    changes = [
        lambda: cluster.rescale(4, strategy),
        lambda: cluster.pin([3, 5], 3, strategy),
        lambda: cluster.move([0, 1, 2], 1, strategy),
        lambda: cluster.drain(0, strategy),
        lambda: cluster.unpin([3], strategy),
        lambda: cluster.rescale(1, strategy),
    ]
    for epoch, change in enumerate(changes, start=1):
        change()
        outputs = cluster.run_epoch(rows)
        assert sorted((row["key"], row["n"]) for row in outputs) == [(key, epoch) for key in range(40)]
        assert all(cluster.state(key) == {"count": epoch} for key in range(40))
    cluster.run_epoch(rows)
    assert [record.outcome for record in cluster.moves] == ["done"] * len(changes)
    assert list(cluster.workers) == [1]
    assert cluster.snapshot() == {key: {"count": 7} for key in range(40)}
