"""Whatever raises in a move fails it where somebody waits for it: no key is lost, and nothing is done by name only.

An :class:`InProcessCluster` has no checkpoint, so what was handed over comes back, or the cluster says that it is over.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa
import pytest

import bedload as bl
from bedload.core.errors import BedloadError, MoveFailed, WorkerStartFailed
from bedload.core.ids import WorkerId
from bedload.core.limits import Limits
from bedload.migration import STRATEGIES
from bedload.migration.pace import Pace
from bedload.testing import InProcessCluster
from bedload.worker.hosted import Hosted
from bedload.worker.moving import Moving
from bedload.worker.row_runtime import OperatorRuntime

MOVING = [name for name in STRATEGIES if name != "stop_restart"]
KEYS = 300


class Count(bl.Operator):
    """Counts the rows of a key."""

    n: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        self.n += len(rows)
        return key, self.n


def cluster(operator: type[bl.Operator] = Count) -> InProcessCluster:
    made = InProcessCluster(
        operator,
        key="k",
        schema={"k": pa.int64(), "n": pa.int64()},
        input={"k": pa.int64()},
        workers=2,
        key_groups=16,
        limits=Limits(ship_keys=7),
    )
    epoch(made)
    return made


def epoch(it: InProcessCluster, keys: int = KEYS) -> None:
    it.run_epoch([[{"k": key} for key in range(keys)]])


def fail_once(patch: pytest.MonkeyPatch, where: Any, name: str, nth: int) -> list[int]:
    """The n-th call raises, and those after it do not."""
    original, calls = getattr(where, name), [0]

    def call(self: Any, *arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == nth:
            raise ValueError("a value that does not fit its type")
        return original(self, *arguments)

    patch.setattr(where, name, call)
    return calls


@pytest.mark.parametrize("strategy", MOVING)
@pytest.mark.parametrize("nth", [1, 2, 5, 9])
@pytest.mark.parametrize("where", ["collect", "send", "take in"])
def test_an_exception_in_a_move_is_told_and_no_key_is_lost(
    strategy: str, nth: int, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = cluster()
    places = {
        "collect": (Pace, "collect"),
        "send": (Moving, "_out"),
        "take in": (OperatorRuntime, "take_in"),
    }
    calls = fail_once(monkeypatch, *places[where], nth)
    problem: BedloadError | None = None
    try:
        it.rescale(4, strategy)
        for _ in range(4):
            epoch(it)
    except BedloadError as error:
        problem = error
    if it.coordinator.error is not None:
        assert isinstance(it.coordinator.error, MoveFailed)
        assert "a value that does not fit its type" in str(it.coordinator.error)
        assert it.coordinator.error.message.count("cluster has ended") == 1
        return
    assert calls[0] >= nth
    assert isinstance(problem, MoveFailed), f"{problem!r}"
    assert "a value that does not fit its type" in problem.message
    assert it.moves[-1].outcome == problem.message
    done = int(it.epoch)
    it.restart()
    epoch(it)
    assert it.snapshot() == {key: {"n": done + 1} for key in range(KEYS)}
    it.rescale(3, "all_at_once")  # and the cluster can be changed
    epoch(it)
    assert it.snapshot() == {key: {"n": done + 2} for key in range(KEYS)}


@pytest.mark.parametrize("strategy", MOVING)
def test_before_anything_flipped_the_cluster_is_as_it_was(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    it = cluster()
    fail_once(monkeypatch, Moving, "_make_sender", 1)
    with contextlib.suppress(MoveFailed):
        it.rescale(4, strategy)
        epoch(it)
    outcome = it.moves[-1].outcome
    assert "could not send state of operator Count: ValueError: a value" in outcome
    assert outcome.endswith("Nothing has moved: the cluster is as it was")
    it.restart()
    done = int(it.epoch)
    epoch(it)
    assert set(it.workers) == {0, 1}
    assert it.coordinator.members.owning == (0, 1)
    assert it.snapshot() == {key: {"n": done + 1} for key in range(KEYS)}


def test_a_worker_that_cannot_say_what_its_state_weighs_fails_the_change(monkeypatch: pytest.MonkeyPatch) -> None:
    it = cluster()
    fail_once(monkeypatch, Hosted, "weigh", 1)
    with pytest.raises(MoveFailed, match=r"could not weigh state.*Nothing has moved"):
        it.rescale(4)
    epoch(it)
    assert set(it.workers) == {0, 1}


class Picky(Count):
    """Runs at the first two workers only."""

    def setup(self, ctx: Any) -> None:
        if ctx.worker >= 2:
            raise RuntimeError("too many connections")


@pytest.mark.parametrize("strategy", MOVING)
def test_a_newcomer_whose_setup_fails_takes_nothing(strategy: str) -> None:
    it = cluster(Picky)
    with pytest.raises(WorkerStartFailed, match="too many connections"):
        it.rescale(3, strategy)
    epoch(it)
    assert set(it.workers) == {0, 1}
    assert it.coordinator.workers.keys() == {WorkerId(0), WorkerId(1)}
    assert it.snapshot() == {key: {"n": 2} for key in range(KEYS)}
