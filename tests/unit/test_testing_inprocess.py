"""The in-process cluster: workers, retries, second actions, restarts and losses, on the real machines."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from bedload import state as bl
from bedload import strategies
from bedload.core.clock import Clock
from bedload.core.errors import EpochIncomplete, NotDeterministic, OperatorFailed, WorkerLost
from bedload.testing import InProcessCluster
from bedload.worker.operator import Context, Operator
from bedload.worker.rows import Rows


class Count(Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        for row in rows:
            if row.speed < 0:
                raise ValueError("backwards")
            self.n += 1
            yield key, self.n


class CountAtSeal(Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: Rows, ctx: Context) -> None:
        self.n += len(rows)

    def result(self, key: Any, ctx: Context) -> Any:
        return key, self.n


def make(operator: type[Operator] = Count, workers: int = 2, clock: Clock | None = None) -> InProcessCluster:
    return InProcessCluster(
        operator,
        schema={"car": pa.string(), "n": pa.int64()},
        key="car",
        input={"car": pa.string(), "speed": pa.float64()},
        workers=workers,
        key_groups=8,
        clock=clock,
    )


def cars(names: str, speed: float = 1.0) -> list[dict[str, Any]]:
    return [{"car": name, "speed": speed} for name in names]


def counts(outputs: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return sorted((row["car"], row["n"]) for row in outputs)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("operator", [Count, CountAtSeal])
def test_partitions_and_workers_add_up(operator: type[Operator], workers: int) -> None:
    cluster = make(operator, workers)
    first = cluster.run_epoch([cars("ab"), cars("bc"), []])
    assert dict(counts(first)) == {"a": 1, "b": 2, "c": 1}
    cluster.run_epoch([cars("a"), [cars("b"), cars("c")]], progress=False)
    cluster.run_epoch([cars("a")])
    assert cluster.snapshot() == {"a": {"n": 3}, "b": {"n": 3}, "c": {"n": 2}}
    assert [event.committed for event in cluster.ended] == [True, True, True]


def test_an_epoch_that_spark_has_not_told_of_is_committed_by_the_next_one() -> None:
    cluster = make()
    cluster.run_epoch([cars("a")], progress=False)
    assert cluster.state("a") is None
    cluster.run_epoch([cars("b")], progress=False)
    assert cluster.state("a") == {"n": 1}


def test_a_retry_after_a_crash_applies_nothing_twice() -> None:
    cluster = make()
    cluster.begin_epoch([[cars("ab"), cars("ab")], cars("a")])
    cluster.attempt(0, batches=1)
    outputs = cluster.attempt(0) + cluster.attempt(1)
    cluster.commit()
    assert counts(outputs) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)]
    assert cluster.snapshot() == {"a": {"n": 3}, "b": {"n": 2}}


def test_a_second_action_gets_the_same_outputs() -> None:
    cluster = make(CountAtSeal)
    cluster.begin_epoch([cars("ab"), cars("b")])
    first = cluster.action()
    assert cluster.action() == first
    cluster.commit()
    assert cluster.state("b") == {"n": 2}


def test_a_second_action_on_other_rows_is_refused() -> None:
    cluster = make()
    cluster.begin_epoch([cars("aab")])
    cluster.action()
    cluster.begin_epoch([cars("abb")])
    with pytest.raises(NotDeterministic, match="persist"):
        cluster.action()


def test_a_restart_replays_the_epoch_that_was_not_committed() -> None:
    cluster = make()
    cluster.run_epoch([cars("a")])
    cluster.begin_epoch([cars("a")])
    cluster.action()
    cluster.restart()
    assert counts(cluster.action()) == [("a", 2)]
    cluster.commit()
    assert cluster.state("a") == {"n": 2}


def test_a_failure_rolls_back_on_every_worker_and_a_restart_replays() -> None:
    cluster = make()
    cluster.run_epoch([cars("abcd")])
    before = cluster.snapshot()
    cluster.begin_epoch([cars("abcd"), cars("a", -1.0)])
    with pytest.raises(OperatorFailed, match="backwards"):
        cluster.action()
    assert cluster.snapshot() == before
    cluster.restart()
    cluster.begin_epoch([cars("abcd")])
    cluster.action()
    cluster.commit()
    assert cluster.state("a") == {"n": 2}


def test_a_partition_that_was_never_read_stops_the_query() -> None:
    cluster = make()
    cluster.begin_epoch([cars("a"), cars("b")])
    cluster.attempt(0)
    cluster.commit()
    with pytest.raises(EpochIncomplete):
        cluster.run_epoch([cars("a")])


@pytest.mark.parametrize(("given", "used"), [(None, "seamless"), ("lazy", "lazy"), ("auto", "adaptive")])
def test_a_strategy_means_the_same_as_on_a_real_cluster(given: str | None, used: str) -> None:
    cluster = make()
    cluster.run_epoch([cars("abcdefgh")])
    cluster.rescale(3, given)
    cluster.run_epoch([cars("abcdefgh")])
    (record,) = cluster.moves
    assert (record.kind, record.strategy, record.outcome) == ("rescale", used, "done")
    assert bool(record.why) == (given == "auto")
    assert {key: state["n"] for key, state in cluster.snapshot().items()} == dict.fromkeys("abcdefgh", 2)


def test_the_loss_of_a_worker_ends_the_cluster() -> None:
    cluster = make()
    cluster.run_epoch([cars("abcdefgh")])
    lost = [key for key in "abcdefgh" if key in dict(cluster.workers[1].runtime(cluster.name).snapshot())]  # type: ignore[union-attr, index]
    assert lost
    cluster.kill(1)
    with pytest.raises(WorkerLost):
        cluster.run_epoch([cars("a")])
    with pytest.raises(WorkerLost):
        cluster.state(lost[0])
    assert cluster.snapshot().keys() == set("abcdefgh") - set(lost)


class Still:
    """A clock that a test owns. Whoever waits for it to go on by itself waits for ever."""

    looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        assert self.looks < 200_000, "the cluster waits for a clock that stands still"
        return 0.0

    def wall(self) -> float:
        return 0.0

    def processor(self) -> float:
        return self.monotonic()


def test_a_move_does_not_wait_for_bandwidth() -> None:
    cluster = make(clock=Still())
    many = [{"car": str(key), "speed": 1.0} for key in range(2000)]
    cluster.run_epoch([many])
    cluster.rescale(3, strategies["seamless"].with_(bandwidth=100.0))
    cluster.run_epoch([many])
    assert [it.outcome for it in cluster.moves] == ["done"]
