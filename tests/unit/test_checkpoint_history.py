"""The history's answers on histories small enough to draw."""

from __future__ import annotations

import pytest

from bedload.checkpoint import paths
from bedload.checkpoint.history import Base, CompactionSettings, Garbage, History
from bedload.checkpoint.records import FileInfo, Manifest, SnapshotPart, TurnRecord
from bedload.core.errors import EpochNotRetained
from bedload.core.ids import NO_EPOCH, Epoch, Generation, OperatorName, QueryId, Turn, WorkerId

OPERATOR = OperatorName("Trip")
A, B = QueryId("a"), QueryId("b")


def record(
    turn: int,
    parent: int | None,
    epoch: int,
    query: str = "a",
    workers: int = 1,
    committed: dict[str, int] | None = None,
) -> TurnRecord:
    before = {query: epoch - 1} if epoch else {}
    return TurnRecord(
        turn=Turn(turn),
        parent=None if parent is None else Turn(parent),
        generation=Generation(0),
        query=QueryId(query),
        run="r",
        epoch=Epoch(epoch),
        location="",
        schema=1,
        owners=((0, 8),),
        workers=tuple(WorkerId(n) for n in range(workers)),
        committed={q: Epoch(e) for q, e in (before if committed is None else committed).items()},
    )


def manifest(turn: int, epoch: int, query: str = "a", size: int = 10) -> Manifest:
    part = SnapshotPart(
        groups=(0,), rows=1, files={"n": FileInfo(path="n/part-00000.parquet", bytes=size, xxh3="0" * 16)}
    )
    return Manifest(
        turn=Turn(turn),
        schema=1,
        query=QueryId(query),
        epoch=Epoch(epoch),
        parts=(part,),
        bytes=size,
        rows=1,
        committed={query: Epoch(epoch)},
    )


def line(length: int) -> History:
    """Turns 1, 2, ... of epochs 0, 1, ..., each sealed."""
    history = History(OPERATOR)
    for turn in range(1, length + 1):
        history.add(record(turn, turn - 1 or None, turn - 1))
        history.sealed(Turn(turn), 10)
    return history


def test_an_empty_history_starts_from_the_empty_state() -> None:
    history = History(OPERATOR)
    assert history.head is None
    assert history.chain() == []
    assert history.base_for(A, Epoch(0)) == Base(None)
    assert history.base_for(A, Epoch(1)) is None
    assert history.last_epoch(A) == NO_EPOCH
    assert history.restore_plan(None) == (None, [])
    assert history.garbage(1).paths == []


def test_a_turn_counts_when_the_last_of_its_segments_is_there() -> None:
    one = paths.delta(OPERATOR, Turn(1), WorkerId(0)).rpartition("/")[2]
    two = paths.delta(OPERATOR, Turn(1), WorkerId(1)).rpartition("/")[2]
    assert History(OPERATOR, [record(1, None, 0, workers=2)], {one: 5}).head is None
    history = History(OPERATOR, [record(1, None, 0, workers=2)], {one: 5, two: 7, "stranger": 1})
    assert history.head == 1
    assert history.delta_bytes(Turn(1)) == 12


def test_segments_without_a_record_count_for_nothing() -> None:
    name = paths.delta(OPERATOR, Turn(1), WorkerId(0)).rpartition("/")[2]
    assert History(OPERATOR, [], {name: 5}).head is None


def test_a_turn_without_workers_counts_at_once() -> None:
    history = line(3)
    history.add(record(4, 1, 0, workers=0))
    assert history.chain() == [4, 1]


def test_a_replay_leaves_the_former_attempt_beside_the_chain() -> None:
    history = line(2)
    history.add(record(3, 1, 1))
    assert history.chain() == [2, 1], "not sealed yet"
    history.sealed(Turn(3), 10)
    assert history.chain() == [3, 1]
    assert history.turn_of(A, Epoch(1)) == 3
    assert history.restore_plan(Turn(2)).deltas == [history.record(Turn(1)), history.record(Turn(2))]


def test_the_epoch_of_the_head_starts_from_its_parent_as_spark_may_ask_again() -> None:
    history = line(3)
    assert history.base_for(A, Epoch(3)) == Base(Turn(3))
    assert history.base_for(A, Epoch(2)) == Base(Turn(2))
    assert history.base_for(A, Epoch(0)) == Base(None)
    assert history.base_for(A, Epoch(4)) is None


def test_a_query_set_back_goes_on_from_there_and_forgets_what_came_after() -> None:
    history = line(5)
    base = history.base_for(A, Epoch(1))
    assert base == Base(Turn(1))
    history.add(record(6, 1, 1))
    history.sealed(Turn(6), 10)
    assert history.last_epoch(A) == 1
    assert history.chain() == [6, 1]


def test_an_epoch_that_the_chain_passed_over_is_not_known() -> None:
    history = line(1)
    history.add(record(2, 1, 5, committed={"a": 0}))
    history.sealed(Turn(2), 1)
    assert history.base_for(A, Epoch(3)) is None
    assert history.base_for(A, Epoch(5)) == Base(Turn(1))


def test_queries_that_follow_each_other_share_the_chain() -> None:
    history = line(2)
    history.add(record(3, 2, 0, "b", committed={"a": 1}))
    history.sealed(Turn(3), 1)
    assert history.last_epochs() == {"a": 1, "b": 0}
    assert history.base_for(B, Epoch(0)) == Base(Turn(2))
    assert history.base_for(A, Epoch(2)) == Base(Turn(3))
    # Setting one back takes the other's epochs since then with it.
    assert history.base_for(A, Epoch(1)) == Base(Turn(1))


def test_what_the_workers_hold_may_be_another_turn_than_the_head() -> None:
    history = line(3)
    assert history.base_for(A, Epoch(2), tip=Turn(2)) == Base(Turn(2))
    assert history.last_epoch(A, tip=Turn(2)) == 1
    assert history.chain(tip=Turn(2)) == [2, 1]


def test_a_restore_takes_the_nearest_snapshot_and_the_deltas_since() -> None:
    history = line(5)
    history.snapshot(manifest(2, 1))
    history.snapshot(manifest(4, 3))
    assert history.restore_plan(Turn(5)) == (manifest(4, 3), [history.record(Turn(5))])
    assert history.restore_plan(Turn(4)) == (manifest(4, 3), [])
    assert history.restore_plan(Turn(3)) == (manifest(2, 1), [history.record(Turn(3))])
    assert history.restore_plan(Turn(1)) == (None, [history.record(Turn(1))])


def test_a_snapshot_alone_is_a_state() -> None:
    history = History(OPERATOR, manifests=[manifest(7, 4)])
    assert history.head == 7
    assert history.restore_plan(Turn(7)) == (manifest(7, 4), [])
    assert history.base_for(A, Epoch(5)) == Base(Turn(7))
    assert history.base_for(A, Epoch(4)) is None, "the state before it is not there"
    assert history.last_epoch(A) == 4


def test_garbage_is_what_no_retained_epoch_needs() -> None:
    history = line(6)
    history.snapshot(manifest(3, 2))
    garbage = history.garbage(retain_epochs=2)
    assert garbage.floor == 4
    assert garbage.turns == {1, 2, 3}
    assert garbage.snapshots == set()
    history.snapshot(manifest(4, 3))
    garbage = history.garbage(retain_epochs=2)
    assert garbage.snapshots == {3}
    assert garbage.paths[0] == paths.manifest(OPERATOR, Turn(3)), "promises go first"
    history.forget(garbage)
    assert history.chain() == [6, 5, 4]
    assert history.garbage(2).paths == []


def test_without_a_snapshot_nothing_on_the_chain_is_garbage() -> None:
    history = line(50)
    assert history.garbage(1).paths == []


def test_abandoned_attempts_older_than_what_is_retained_are_garbage() -> None:
    history = line(2)
    for turn, parent in ((3, 1), (4, 3), (5, 4)):
        history.add(record(turn, parent, turn - 2))
        history.sealed(Turn(turn), 1)
    assert history.garbage(2).turns == {2}
    assert history.garbage(3).turns == set(), "it is not older than the oldest retained"


def test_state_that_was_given_up_stays_for_as_long_as_an_epoch_would() -> None:
    history = line(3)
    for turn, parent in ((4, None), (5, 4), (6, 5)):
        history.add(record(turn, parent, turn - 4))
        history.sealed(Turn(turn), 1)
    assert history.garbage(3).paths == []
    assert history.garbage(2).turns == {1, 2, 3}


def test_the_parent_of_the_head_is_always_retained() -> None:
    history = line(4)
    history.snapshot(manifest(3, 2))
    history.snapshot(manifest(4, 3))
    garbage = history.garbage(retain_epochs=0)
    history.forget(garbage)
    assert history.base_for(A, Epoch(3)) == Base(Turn(3))
    assert history.restore_plan(Turn(3)).snapshot == manifest(3, 2)


def test_what_is_being_read_is_not_garbage() -> None:
    history = line(6)
    history.snapshot(manifest(2, 1))
    history.snapshot(manifest(5, 4))
    garbage = history.garbage(1, keep=[Turn(3)])
    assert garbage.floor == 3
    assert garbage.turns == {1, 2}
    assert garbage.snapshots == set()


def test_what_a_turn_under_way_builds_upon_is_not_garbage() -> None:
    history = line(6)
    history.snapshot(manifest(1, 0))
    history.snapshot(manifest(5, 4))
    history.add(record(7, 2, 2))
    history.forget(history.garbage(1))
    history.sealed(Turn(7), 1)
    assert history.chain() == [7, 2, 1]
    assert history.restore_plan(Turn(7)).snapshot == manifest(1, 0)


def test_an_epoch_that_is_not_retained_says_which_are() -> None:
    history = line(6)
    history.snapshot(manifest(4, 3))
    history.forget(history.garbage(1))
    with pytest.raises(EpochNotRetained, match=r"Trip: .*turn 2 .*query a: epochs 3 to 5"):
        history.restore_plan(Turn(2))
    with pytest.raises(EpochNotRetained, match="no state is retained"):
        History(OPERATOR).restore_plan(Turn(2))


def test_a_snapshot_is_due_when_deltas_outgrow_it() -> None:
    settings = CompactionSettings(ratio=2.0, floor_bytes=25, max_turns=100)
    assert not line(2).needs_compaction(settings)
    assert line(3).needs_compaction(settings)
    history = line(3)
    history.snapshot(manifest(1, 0, size=10))
    assert not history.needs_compaction(settings), "20 bytes are below the floor"
    history.add(record(4, 3, 3))
    history.sealed(Turn(4), 10)
    assert history.needs_compaction(settings)
    history.snapshot(manifest(2, 1, size=10))
    assert not history.needs_compaction(settings)


def test_a_snapshot_is_due_after_many_turns_if_they_weigh_something_and_after_more_whatever_they_weigh() -> None:
    settings = CompactionSettings(ratio=1e9, floor_bytes=10**9, max_turns=3, small_ratio=0.125, most_turns=6)
    assert not line(3).needs_compaction(settings)
    assert line(4).needs_compaction(settings)
    for size, due in ((320, 5), (321, 6), (1000, 8)):
        found = []
        for length in range(9):
            history = line(length)
            history.snapshot(manifest(1, 0, size=size))
            found.append(history.needs_compaction(settings))
        assert found.index(True) == due, f"{size} bytes, of which each turn changes 10"


@pytest.mark.parametrize(("max_turns", "bound"), [(10**9, 1.5), (10, 9.0)])
@pytest.mark.parametrize("growing", [False, True])
@pytest.mark.parametrize("state", [1, 100, 10_000])
def test_what_snapshots_write_is_bounded_by_what_has_changed(
    state: int, growing: bool, max_turns: int, bound: float
) -> None:
    settings = CompactionSettings(floor_bytes=0, max_turns=max_turns, most_turns=10**9)
    history, size, deltas, snapshots = History(OPERATOR), 0, 0, 0
    for turn in range(1, 3000):
        changed = 10 if turn > 1 else state
        history.add(record(turn, turn - 1 or None, turn - 1))
        history.sealed(Turn(turn), changed)
        deltas += changed
        size += changed if growing or turn == 1 else 0
        if history.needs_compaction(settings):
            history.snapshot(manifest(turn, turn - 1, size=size))
            snapshots += size
    assert 0 < snapshots <= bound * deltas


@pytest.mark.parametrize("most", range(1, 9))
def test_slices_of_garbage_are_all_of_it_promises_first_and_the_last_tells_the_floor(most: int) -> None:
    garbage = Garbage(Turn(9), frozenset({Turn(1)}), frozenset(), ("p1", "p2", "p3"), ("f1", "f2", "f3", "f4"))
    slices = garbage.slices(most)
    assert [path for piece in slices for path in piece.paths] == garbage.paths
    assert max(len(piece.paths) for piece in slices) == min(most, 7)
    assert [piece.floor for piece in slices] == [None] * (len(slices) - 1) + [Turn(9)]
    assert Garbage(None).slices(most) == []
