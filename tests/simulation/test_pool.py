"""Many simulations on all cores: none is left out, and what goes wrong with one stays with it."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from multiprocessing.process import BaseProcess

import msgspec
import psutil
import pytest
from tests.simulator.pool import Outcome, Pool, Task
from tests.simulator.pool import run as run_simulation
from tests.simulator.time_limit import TookTooLong, time_limit

from bedload.core.clock import SystemClock

command = import_module("tests.simulator.__main__")
"""The module: the package has a function of that name."""


def run(task: Task, limit: float) -> Outcome:
    """Stands for a simulation; runs in another process."""
    match task.seed:
        case 3:
            return Outcome(task, "it is wrong")
        case 5:
            os._exit(7)
        case 8:
            os.kill(os.getpid(), signal.SIGSTOP)  # as one that does not come back from compiled code
    return Outcome(task, None, {"faults": Counter(["crash"])})


class Standstill(SystemClock):
    """Time that passes only while all processes of a pool are stopped: a slow one is not taken for one of them."""

    def __init__(self) -> None:
        self.pool: Pool | None = None
        self._now = 0.0

    def monotonic(self) -> float:
        running = [] if self.pool is None else [it.process for it in self.pool._running.values()]
        if running and all(_is_stopped(process) for process in running):
            self._now += 1000.0
        return self._now


def _is_stopped(process: BaseProcess) -> bool:
    try:
        return bool(psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def outcomes(tasks: list[Task]) -> Iterator[Outcome]:
    clock = Standstill()
    pool = clock.pool = Pool(tasks, limit=100.0, run=run, jobs=2, chunk=4, clock=clock)
    return (outcome for outcome in pool.outcomes(pause=0.1) if outcome is not None)


def test_every_seed_is_told_of_once_whatever_becomes_of_its_process() -> None:
    tasks = [Task(seed, moves) for seed in range(10) for moves in (False, True)]
    found = list(outcomes(tasks))
    assert sorted((it.task.seed, it.task.moves) for it in found) == [
        (seed, moves) for seed in range(10) for moves in (0, 1)
    ]
    errors = {it.task.seed: it.error for it in found if it.error is not None}
    assert errors.keys() == {3, 5, 8}
    assert errors[3] == "it is wrong"
    assert "died (exit code 7)" in errors[5]
    assert "said nothing" in errors[8]


def test_a_pool_that_is_left_ends_its_processes() -> None:
    pool = Pool([Task(8, False)] * 4, limit=1000.0, jobs=2, chunk=2, run=run)
    told = pool.outcomes(pause=0.1)
    assert next(told) is None
    children = [it.process for it in pool._running.values()]
    told.close()  # type: ignore[attr-defined]
    assert [child.exitcode for child in children] == [-signal.SIGKILL] * 2


def goes_round() -> None:
    try:
        with time_limit(0.2):
            while True:
                pass
    except Exception:
        pytest.fail("simulated code must not catch it")


def test_a_loop_inside_one_event_comes_to_an_end_and_says_where_it_was() -> None:
    with pytest.raises(TookTooLong, match="goes_round"):
        goes_round()


def test_a_limit_counts_work_and_not_waiting() -> None:
    with time_limit(0.2):
        time.sleep(0.3)


def test_failing_seeds_are_listed_with_the_command_that_repeats_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "Pool", lambda tasks, **options: Pool(tasks, **options | {"run": run}))
    assert command.main(["--seeds", "2:5"]) == 1
    told = capsys.readouterr().out
    assert "failed: python -m tests.simulator --seed 3 --trace\n    it is wrong" in told
    assert "failed: python -m tests.simulator --seed 3 --moves --trace" in told
    assert "3 seeds, 2 failed (plain and with moves; 6 simulations in" in told
    assert command.main(["--seeds", "5", "--moves", "--json"]) == 1
    result = msgspec.json.decode(capsys.readouterr().out)
    assert (result["seeds"], result["done"], [it["seed"] for it in result["failed"]]) == (5, 5, [3])
    assert result["tallies"] == {"faults": {"crash": 4}}


def test_it_stops_when_too_many_seeds_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "Pool", lambda tasks, **options: Pool(tasks, **options | {"run": run}))
    assert command.main(["--seeds", "3:400", "--jobs", "1", "--most-failures", "1"]) == 1
    assert "simulations have not run" in capsys.readouterr().out


def test_an_interruption_tells_what_is_known_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(tasks: object, **options: object) -> object:
        class Interrupted:
            def outcomes(self) -> Iterator[Outcome]:
                yield Outcome(Task(0, True))
                raise KeyboardInterrupt

        return Interrupted()

    monkeypatch.setattr(command, "Pool", interrupted)
    assert command.main(["--seeds", "9", "--moves"]) == 130
    assert "interrupted: 8 simulations have not run" in capsys.readouterr().out


def test_a_seed_is_repeated_by_what_its_failure_says() -> None:
    assert run_simulation(Task(3, False), 60.0).error is None
    assert Task(3, True).command == "python -m tests.simulator --seed 3 --moves"
