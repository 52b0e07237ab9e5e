"""Aggregates whose idle keys go: when a key is gone, what a row of it finds, and what a TTL on old state does."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit import test_heritage

import bedload as bl
from bedload.checkpoint.evolution import Evolution
from bedload.checkpoint.records import OperatorSchema
from bedload.core.epoch import EpochTime
from bedload.core.errors import DefinitionError
from bedload.core.ids import Epoch, KeyGroup, WorkerId
from bedload.operators.aggregates import Aggregates
from bedload.state.timers import TimerClock
from bedload.store.deltas import PUT, REMOVE
from bedload.testing import InProcessCluster, OperatorHarness
from bedload.worker.column_runtime import ColumnDeployment
from bedload.worker.expiry import KeyTtl
from bedload.worker.state_schema import state_schema

GROUPS = 8
ALL = [KeyGroup(group) for group in range(GROUPS)]


def made(ttl: Any = "10 milliseconds", clock: Any = None, **more: Any) -> OperatorHarness:
    functions = more or {"n": bl.agg.count()}
    return OperatorHarness.aggregate(
        key="key", input="key string, v long", key_groups=GROUPS, ttl=ttl, clock=clock, **functions
    )


def row(key: str, v: int = 1) -> dict[str, Any]:
    return {"key": key, "v": v}


def counts(harness: OperatorHarness) -> dict[str, int]:
    (column,) = {name for state in harness.snapshot().values() for name in state if "count" in name} or {""}
    return {key: state[column] for key, state in harness.snapshot().items()}


def test_a_key_without_rows_is_gone_when_its_time_is_over() -> None:
    harness = made()
    harness.now = 100
    harness.run_epoch([row("a"), row("b")])
    harness.now = 105
    assert harness.run_epoch([row("b")]) == [{"key": "b", "n": 2}]
    harness.now = 109
    assert harness.run_epoch() == []
    assert counts(harness) == {"a": 1, "b": 2}
    harness.now = 110
    assert harness.run_epoch() == []
    assert counts(harness) == {"b": 2}
    assert harness.state("a") is None


def test_a_row_in_the_epoch_in_which_the_key_expires_starts_it_anew_and_it_lives_on() -> None:
    harness = made()
    harness.now = 100
    harness.run_epoch([row("a")] * 3)
    harness.now = 110
    assert harness.run_epoch([row("a")], [row("a")]) == [{"key": "a", "n": 2}]
    harness.now = 119
    assert harness.run_epoch([row("a")]) == [{"key": "a", "n": 3}]
    assert counts(harness) == {"a": 3}


def test_an_epoch_that_is_rolled_back_has_expired_nothing() -> None:
    harness = made()
    harness.run_epoch([row("a"), row("b")])
    harness.now = 10
    for _ in range(2):
        harness.feed([row("a")])
        assert harness.seal() == [{"key": "a", "n": 1}]
        harness.abort()
        assert counts(harness) == {"a": 1, "b": 1}
    harness.run_epoch()
    assert counts(harness) == {}


def test_what_an_epoch_expires_is_in_its_delta() -> None:
    harness = made()
    harness.run_epoch([row("a"), row("b"), row("c")])
    harness.now = 10
    harness.feed([row("b")])
    harness.seal()
    runtime = harness._runtime
    assert runtime is not None
    delta = runtime.delta()
    assert delta is not None
    ops = dict(zip(delta.column("bedload_key_0").to_pylist(), delta.column("bedload_op").to_pylist(), strict=True))
    assert ops == {"a": REMOVE, "b": PUT, "c": REMOVE}


def test_a_refresh_that_changes_no_aggregate_gives_no_output_but_keeps_the_key() -> None:
    harness = made(top=bl.agg.max("v"))
    assert harness.run_epoch([row("a", 5)]) == [{"key": "a", "top": 5}]
    harness.now = 8
    assert harness.run_epoch([row("a", 3)]) == []
    harness.now = 15
    harness.run_epoch()
    assert harness.state("a") is not None


def test_event_time_counts_from_the_first_watermark() -> None:
    harness = made(clock="event")
    harness.now = 10**9
    harness.run_epoch([row("a"), row("b")])
    harness.run_epoch()
    assert counts(harness) == {"a": 1, "b": 1}
    harness.watermark = 5000
    harness.run_epoch([row("b")])
    assert counts(harness) == {"a": 1, "b": 2}
    harness.watermark = 5009
    harness.run_epoch([row("b")])
    harness.watermark = 5010
    harness.run_epoch()
    assert counts(harness) == {"b": 3}


def test_keys_from_before_the_ttl_count_from_the_first_epoch_with_it() -> None:
    plain, timed = made(ttl=None), made()
    plain.run_epoch([row("a"), row("b")])
    timed.run_epoch()
    assert plain._runtime is not None
    assert timed._applied is not None
    table = plain._runtime._table  # type: ignore[attr-defined]
    slots = table.committed_slots()
    state, groups = table.extract(slots), table.index.group_of(slots)
    runtime = timed._applied.deployment.start(WorkerId(0))
    runtime._table.put(state.columns[:1], groups, state)  # type: ignore[attr-defined]
    for epoch, (now, there) in enumerate([(1000, 2), (1009, 2), (1010, 0)]):
        runtime.begin(Epoch(epoch), ALL)
        runtime.set_time(EpochTime(processing=now))
        runtime.seal()
        runtime.commit()
        assert runtime.keys == there


def test_keys_expire_at_whichever_worker_they_are() -> None:
    cluster = InProcessCluster.aggregate(
        key="key", input="key string", workers=1, key_groups=GROUPS, ttl=dt.timedelta(seconds=1), n=bl.agg.count()
    )
    keys = [f"k{i}" for i in range(20)]
    cluster.run_epoch([[{"key": key} for key in keys]])
    cluster.rescale(3)
    cluster.now = 500
    cluster.run_epoch([[{"key": "k3"}]])
    cluster.now = 1000
    cluster.run_epoch([[]])
    assert set(cluster.snapshot()) == {"k3"}


def test_rows_that_are_combined_ahead_refresh_as_well() -> None:
    harness = made()
    harness.run_epoch([row("a")] * 50)
    harness.now = 9
    assert harness.run_epoch([row("a")] * 50) == [{"key": "a", "n": 100}]
    harness.now = 18
    assert harness.run_epoch([row("a")] * 50) == [{"key": "a", "n": 150}]


def test_the_expiry_is_a_number_of_the_state() -> None:
    assert KeyTtl.of("1 hour") == KeyTtl(3_600_000)
    spec = KeyTtl(1).spec
    assert (spec.name, spec.type, spec.initial) == ("bedload_ttl", pa.int64(), 0)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ttl": "soon"}, "ttl='soon' is no duration"),
        ({"ttl": 5}, "give a duration"),
        ({"ttl": "1 hour", "clock": "wall"}, "clock='wall'"),
        ({"ttl": None, "clock": "event"}, "without a ttl"),
        ({"ttl": bl.agg.count()}, "give a duration"),
    ],
)
def test_what_is_no_ttl_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        made(**given)


@pytest.mark.filterwarnings("error")
def test_a_ttl_is_added_changed_and_removed_on_stored_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def schema_of(ttl: Any) -> OperatorSchema:
        logic = Aggregates({"n": bl.agg.count()}, pa.schema([("car", pa.string())]), [0], ["car"])
        deployment = ColumnDeployment(test_heritage.NAME, logic, (0,), (pa.string(),), 8, ttl=ttl)
        return state_schema(deployment, ["car"], [pa.string()], 8)

    monkeypatch.setattr(test_heritage, "schema_of", schema_of)
    event = KeyTtl(1, TimerClock.EVENT)
    found = [test_heritage.taken_over(tmp_path, ttl) for ttl in (None, KeyTtl(1), KeyTtl(2), event, None)]  # type: ignore[arg-type]
    assert [lineage.schema.number for lineage in found] == [1, 2, 2, 3, 4]
    way = [schema_of(None), schema_of(KeyTtl(1)), schema_of(event)]
    state = pa.record_batch(
        {"bedload_group": pa.array([0], pa.int16()), "bedload_key_0": ["a"], "count()": [3], "bedload_ttl": [77]}
    )
    assert Evolution(way[1:]).apply(state).column("bedload_event_ttl").to_pylist() == [0]
    assert Evolution(way[:2]).apply(state.select([0, 1, 2])).column("bedload_ttl").to_pylist() == [0]
    assert Evolution([way[1], way[0]]).apply(state).schema.names == state.schema.names[:3]
