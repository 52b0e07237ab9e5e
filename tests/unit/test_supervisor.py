"""A supervised query: what is tried again, how long it waits, and when it gives up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.patience import PATIENCE

from bedload.core import errors
from bedload.core.errors import BedloadError, ClusterStopped, DefinitionError, OperatorNotShippable, WorkerLost
from bedload.spark.failures import is_final
from bedload.spark.supervisor import Supervised, starter

PASSES = [
    errors.EpochAborted,
    errors.StoreError,
    errors.WorkerLost,
    errors.WorkerUnreachable,
    errors.StaleAttempt,
    errors.NotDeterministic,
]
FINAL = [
    errors.CheckpointDamaged,
    errors.CheckpointForeign,
    errors.CheckpointVersion,
    errors.ClusterStopped,
    errors.EpochIncomplete,
    errors.EpochMismatch,
    errors.EpochNotRetained,
    errors.Fenced,
    errors.KeyTypeError,
    errors.NullKey,
    errors.OperatorBusy,
    errors.OperatorFailed,
    errors.SchemaChanged,
]


class Failed(Exception):
    """What Spark raises: the Python error is in its text."""

    def __init__(self, kind: type[BedloadError], text: str = "what happened") -> None:
        super().__init__(
            f"Job aborted. Traceback (most recent call last):\nbedload.core.errors.{kind.__name__}: {text}"
        )


class Query:
    """A query that has ended already, well or with an error; or one that runs until it is stopped."""

    def __init__(self, error: BaseException | None = None, *, runs: bool = False, seconds: float = 0.0) -> None:
        self.id, self.name = "4711", "trips"
        self.error = error
        self.isActive = runs
        self.seconds = seconds
        self.stopped = False
        self.clock: Time | None = None

    def exception(self) -> BaseException | None:
        if self.clock is not None:
            self.clock.now += self.seconds
        return self.error

    def stop(self) -> None:
        self.isActive = False
        self.stopped = True


class Time:
    """A clock that stands still but for the time that queries say they ran."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def processor(self) -> float:
        return self.now


def supervise(
    steps: list[Query | Exception],
    *,
    restarts: int = 10,
    down: Callable[[], BedloadError | None] = lambda: None,
    pause: Callable[[float], bool] | None = None,
) -> tuple[Supervised, list[float], list[Query]]:
    """Run these queries one after the other; an exception is what a start raises. Gives the pauses as well."""
    clock, pauses, started = Time(), list[float](), list[Query]()
    queue = iter(steps)

    def start() -> Any:
        step = next(queue)
        if isinstance(step, Exception):
            raise step
        started.append(step)
        step.clock = clock
        return step

    def waits(seconds: float) -> bool:
        pauses.append(seconds)
        return False

    run = Supervised(
        start,
        down,
        restarts=restarts,
        first_pause=0.5,
        longest_pause=4.0,
        forget_after=60.0,
        clock=clock,
        pause=pause or waits,
    )
    return run, pauses, started


def test_a_query_that_ends_well_is_not_started_again() -> None:
    run, pauses, started = supervise([Query()])
    assert run.await_termination(PATIENCE)
    assert (run.restarts, pauses, len(started), run.exception()) == (0, [], 1, None)


def test_pauses_double_up_to_the_longest_and_the_run_goes_on_after() -> None:
    failed = [Query(Failed(errors.WorkerLost)) for _ in range(6)]
    run, pauses, _ = supervise([*failed, Query()])
    assert run.await_termination(PATIENCE)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert run.restarts == 6
    assert not run.active


def test_after_too_many_failures_in_a_row_the_last_one_is_raised() -> None:
    run, pauses, started = supervise([Query(Failed(errors.StoreError, f"number {n}")) for n in range(9)], restarts=3)
    with pytest.raises(errors.StoreError, match="number 3"):
        run.await_termination(PATIENCE)
    assert len(pauses) == 3
    assert len(started) == 4
    assert "number 3" in str(run.exception())


def test_a_long_run_ends_the_row_of_failures() -> None:
    lost = Failed(errors.WorkerLost)
    run, pauses, _ = supervise([Query(lost), Query(lost), Query(lost, seconds=61), Query(lost), Query()], restarts=2)
    assert run.await_termination(PATIENCE)
    assert pauses == [0.5, 1.0, 0.5, 1.0]


@pytest.mark.parametrize("kind", FINAL)
def test_what_would_come_again_ends_the_run_at_once(kind: type[BedloadError]) -> None:
    run, pauses, started = supervise([Query(Failed(kind)), Query()])
    with pytest.raises(kind, match="what happened"):
        run.await_termination(PATIENCE)
    assert pauses == []
    assert len(started) == 1


@pytest.mark.parametrize("kind", PASSES)
def test_what_may_pass_is_tried_again(kind: type[BedloadError]) -> None:
    run, pauses, _ = supervise([Query(Failed(kind)), Query()])
    assert run.await_termination(PATIENCE)
    assert pauses == [0.5]


def test_a_failure_that_is_not_ours_is_tried_again() -> None:
    run, pauses, _ = supervise([Query(OSError("the executor is gone")), Query()])
    assert run.await_termination(PATIENCE)
    assert pauses == [0.5]


def test_a_cluster_that_is_down_ends_the_run_with_its_own_reason() -> None:
    reason = WorkerLost("20 workers were lost")
    run, pauses, _ = supervise([Query(Failed(errors.EpochAborted)), Query()], down=lambda: reason)
    with pytest.raises(WorkerLost, match="20 workers"):
        run.await_termination(PATIENCE)
    assert pauses == []


def test_a_start_that_fails_counts_as_a_failure_of_the_query() -> None:
    run, pauses, started = supervise([Query(Failed(errors.WorkerLost)), OSError("no route"), OSError("again"), Query()])
    assert run.await_termination(PATIENCE)
    assert pauses == [0.5, 1.0, 2.0]
    assert (run.restarts, len(started)) == (3, 2)


def test_a_start_that_fails_for_good_ends_the_run() -> None:
    run, pauses, _ = supervise([Query(Failed(errors.WorkerLost)), OperatorNotShippable("no module"), Query()])
    with pytest.raises(OperatorNotShippable):
        run.await_termination(PATIENCE)
    assert pauses == [0.5]


def test_the_first_start_fails_as_any_start_does() -> None:
    with pytest.raises(ValueError, match="no such table"):
        supervise([ValueError("no such table")])


def test_a_stop_ends_the_query_and_the_pause_before_the_next_one() -> None:
    running = Query(runs=True)
    run, _, started = supervise([running])
    assert run.active
    assert not run.await_termination(0.01)
    run.stop()
    assert running.stopped
    assert not run.active
    assert run.exception() is None

    waits, goes_on = threading.Event(), threading.Event()

    def pause(_: float) -> bool:
        waits.set()
        goes_on.wait(PATIENCE)
        return True

    run, _, started = supervise([Query(Failed(errors.WorkerLost)), Query()], pause=pause)
    assert waits.wait(PATIENCE)
    assert run.active, "a query that waits to be started again is not over"
    goes_on.set()
    run.stop()
    assert len(started) == 1


def test_a_session_that_is_gone_ends_the_run() -> None:
    class Gone(Query):
        @property
        def isActive(self) -> bool:  # type: ignore[override]
            raise ConnectionRefusedError("no JVM")

        @isActive.setter
        def isActive(self, value: bool) -> None:
            pass

    run, pauses, _ = supervise([Gone(), Query()])
    with pytest.raises(ClusterStopped, match="the Spark session of the query is gone"):
        run.await_termination(PATIENCE)
    assert pauses == []


def test_a_run_tells_how_it_goes() -> None:
    running = Query(runs=True)
    running.name = None  # type: ignore[assignment]
    run, _, _ = supervise([Query(Failed(errors.WorkerLost, "worker 1 was lost\nits log")), running])
    while run.query is not running:
        threading.Event().wait(0.01)
    assert repr(run) == "<query 4711: runs, started again 1 time (last for WorkerLost: worker 1 was lost)>"
    run.stop()
    assert repr(run) == "<query 4711: over, started again 1 time>"
    run, _, _ = supervise([Query(Failed(errors.NullKey, "3 rows have null\nmore"))])
    with pytest.raises(errors.NullKey):
        run.await_termination(PATIENCE)
    assert repr(run) == "<query trips: failed: NullKey: 3 rows have null>"
    run, _, _ = supervise([Query()])
    run.await_termination(PATIENCE)
    assert repr(run) == "<query trips: over>"


def test_errors_are_known_by_their_names_in_a_traceback_and_by_themselves() -> None:
    assert is_final(Failed(errors.Fenced))
    assert is_final(errors.Fenced("taken over"))
    assert not is_final(errors.WorkerLost("bedload.core.errors.Fenced is only mentioned"))
    assert not is_final(RuntimeError("bedload.core.errors.NoSuchError"))


def test_only_a_writer_or_a_function_can_be_run() -> None:
    with pytest.raises(DefinitionError, match=r"without start"):
        starter("a query")
    function = lambda: None  # noqa: E731
    assert starter(function) is function
