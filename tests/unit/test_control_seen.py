"""What is shown of a change of the cluster: how much of it is done, what it waits for, and what is put on record."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.test_control_changes import moving, released, results, stop, weighed, wish
from tests.unit.test_control_durable import NAME, Rig
from tests.unit.test_control_transfer import W0, W1, flipped
from tests.unit.test_control_transfer import Rig as TransferRig
from tests.unit.transport_kit import HandClock

from bedload.control.change import Change
from bedload.control.phases import ChangePhase, TransferPhase
from bedload.control.seen import Seen
from bedload.control.standing import Phase
from bedload.control.tally import Tally
from bedload.control.wish import Kind, Wish
from bedload.core.errors import MoveCancelled, MoveRefused
from bedload.core.ids import ChangeId, KeyGroup, KeyHash, MoveId, OperatorName, Ticket, WorkerId
from bedload.migration import strategy_named
from bedload.migration.sender import Sender
from bedload.protocol import messages as m
from bedload.store.shelf import Listed

MB = 1 << 20


def seen(rig: Rig, number: int = 0) -> Seen:
    return rig.coordinator.changes.seen(ChangeId(number))


# --- progress ---


def sent(rig: TransferRig, sent: int, left: int, move: int | None = None) -> None:
    rig.it.progressed(m.Progressed(W0, OperatorName("Count"), MoveId(rig.move if move is None else move), sent, left))


def test_while_state_is_copied_ahead_progress_goes_with_its_bytes() -> None:
    rig = TransferRig("seamless")
    assert rig.it.progress == 0.0
    rig.go_on()
    assert (rig.phase, rig.it.progress) == (TransferPhase.COPYING, 0.0)
    found = []
    for done in range(5):
        sent(rig, done * MB, (4 - done) * MB)
        found.append(rig.it.progress)
    assert found == pytest.approx([0.0, 0.225, 0.45, 0.675, 0.9])
    rig.at.phase = Phase.OPEN
    rig.copied()
    assert (rig.phase, rig.it.progress) == (TransferPhase.DUE, 0.9)


def test_without_a_copy_ahead_progress_goes_with_the_bytes_after_the_flip() -> None:
    rig = flipped()
    assert (rig.phase, rig.it.progress) == (TransferPhase.FLIPPED, 0.0)
    sent(rig, 3 * MB, MB)
    assert rig.it.progress == pytest.approx(0.95 * 0.75)
    sent(rig, 9 * MB, 0, move=99)
    assert rig.it.progress == pytest.approx(0.95 * 0.75), "word of another move says nothing about this one"
    rig.arrived()
    assert rig.it.progress > 0.95


def test_progress_is_of_all_old_owners_and_does_not_go_back_within_a_step() -> None:
    tally = Tally()
    lots = [m.Lot(WorkerId(source), WorkerId(9), (KeyGroup(source),)) for source in (0, 1)]
    tally.begins(lots)

    def share(worker: int, sent: int, left: int) -> float:
        tally.progressed(m.Progressed(WorkerId(worker), NAME, MoveId(0), sent, left))
        return tally.share(TransferPhase.COPYING, ahead=True) / 0.9

    assert share(0, 1, 0) == 0.5, "the other one has said nothing yet"
    assert share(1, 1, 98) == 0.5
    assert share(1, 89, 10) == 0.9
    tally.begins(lots)
    assert tally.share(TransferPhase.COPYING, ahead=True) == 0.0


def test_bytes_of_steps_that_are_over_and_of_the_one_under_way_are_added_up() -> None:
    tally = Tally()
    lot = m.Lot(W0, W1, (KeyGroup(0),))
    for _ in range(2):
        tally.begins([lot])
        tally.progressed(m.Progressed(W0, NAME, MoveId(0), 70, 30))
        tally.arrived(m.Arrived(W1, NAME, MoveId(0), 5, 100, 0, 0), None)
    assert tally.sent == 200
    tally.begins([lot])
    tally.progressed(m.Progressed(W0, NAME, MoveId(0), 70, 30))
    assert tally.sent == 270


def test_an_operator_counts_for_as_much_as_it_has_state() -> None:
    small, large = TransferRig("seamless"), TransferRig()
    small.go_on()
    change = Change(ChangeId(0), "user", Wish(Kind.REBALANCE), members=(W0,))
    change.transfers = {OperatorName("small"): small.it, OperatorName("large"): large.it}
    for name, size in (("small", 0), ("large", 998)):
        said = m.Weighed(W0, OperatorName(name), Ticket(0), {}, 1, size, 0.0, 0.0)
        change.weights[OperatorName(name)] = {W0: said}
    change.weights[OperatorName("small")] = {W0: m.Weighed(W0, OperatorName("small"), Ticket(0), {}, 1, 998, 0.0, 0.0)}
    large.it.phase = TransferPhase.DONE
    assert change.progress == pytest.approx(0.5)


class Shelf:
    """1000 keys of 10 kB each."""

    named = True
    by_place: frozenset[KeyGroup] = frozenset()
    nbytes_hint = 10_000.0
    hashes = np.arange(1000)
    groups = np.zeros(1000, np.int16)
    listed = False
    expected = whole = 1000
    unnoted = 0

    def list_some(self, keys: int, first: KeyGroup | None = None) -> Listed:
        self.listed = True
        return Listed((KeyGroup(0),), np.empty(0, np.int64))

    def fitting(self, hashes: np.ndarray, most: int) -> int:
        return len(hashes)

    def fitting_in_range(self, first: int, count: int, most: int) -> int:
        return count

    def collect_range(self, first: int, count: int) -> tuple[pa.RecordBatch, np.ndarray]:
        return pa.record_batch({"x": [b"." * 10_000] * count}), np.empty(0, np.int64)


@pytest.mark.parametrize("strategy", ["seamless", "all_at_once"])
def test_an_old_owner_says_how_far_it_is_now_and_then(strategy: str) -> None:
    terms = strategy_named(strategy).terms
    sender = Sender(MoveId(0), terms, (m.Lot(W0, W1, (KeyGroup(0),)),), lambda _: Shelf(), 1, HandClock())  # type: ignore[arg-type, return-value]
    if strategy == "all_at_once":
        sender.flip(0)  # type: ignore[arg-type]
    said, parcels = [], 0
    for _ in range(1000):
        found, _ = sender.next(1.0)
        parcels += len(found)
        for parcel in found:
            sender.taken(W1, parcel.number, 1.0)
        if (news := sender.news()) is not None:
            said.append(news)
    assert 5 <= len(said) <= 10, "ten megabytes, and at most one word for each"
    assert [left for _, left in said] == sorted((left for _, left in said), reverse=True)
    assert all(9_900_000 < done + left < 10_100_000 for done, left in said)
    assert parcels > len(said)


# --- what it waits for ---


def test_a_change_in_line_names_those_before_it() -> None:
    rig = Rig()
    wish(rig, "rescale", "all_at_once", workers=3, what="rescale to 3 workers")
    wish(rig, "rebalance", "all_at_once")
    wish(rig, "drain", "all_at_once", worker=WorkerId(0))
    assert seen(rig).waits_for == "worker 2 to start"
    assert seen(rig, 1) == Seen(ChangePhase.QUEUED, waits_for="the change before it (rescale to 3 workers)")
    assert seen(rig, 2).waits_for == "the changes before it (rescale to 3 workers, the rebalance)"
    assert seen(rig, 7) == Seen(ChangePhase.OVER, 1.0)


def test_workers_that_have_not_said_what_there_is_are_named() -> None:
    rig = Rig()
    rig.whole(0)
    rig.progress(0)
    wish(rig, "rebalance", "all_at_once")
    assert seen(rig).waits_for == "workers 0, 1 to say what there is to move, between two batches of rows"
    weighed(rig)


@pytest.mark.parametrize("strategy", ["all_at_once", "stop_restart"])
def test_the_epoch_that_has_to_end_is_named_and_whether_a_query_runs(strategy: str) -> None:
    rig = Rig()
    rig.whole(0)
    if strategy == "stop_restart":
        wish(rig, "rescale", strategy, workers=1)
    else:
        wish(rig, "move", strategy, worker=WorkerId(1), groups=(KeyGroup(0),))
        weighed(rig)
    assert seen(rig).waits_for == f"the end of epoch 0 of {NAME}"
    if strategy == "all_at_once":
        stop(rig)
        assert seen(rig).waits_for == (
            f"Spark's word on epoch 0 of {NAME}: no query runs on it. Start the query again to have it soon"
        )
    rig.progress(0)
    assert seen(rig).waits_for == ""


def test_a_move_whose_state_is_on_its_way_waits_for_nobody_and_then_for_the_commit() -> None:
    rig = moving()
    assert (seen(rig).phase, seen(rig).waits_for) == (ChangePhase.MOVING, "")
    arrived = m.Arrived(WorkerId(1), NAME, MoveId(0), 1, 2_000, 0, 0)
    rig.did(rig.coordinator.from_worker(arrived, np.zeros(1).tobytes()))
    assert (seen(rig).waits_for, seen(rig).sent) == (f"the end of epoch 1 of {NAME}", 2_000)


def test_a_lost_worker_is_waited_for_and_then_its_state() -> None:
    rig = Rig()
    rig.whole(0)
    rig.progress(0)
    rig.lose(1)
    wish(rig, "move", "all_at_once", worker=WorkerId(1), groups=(KeyGroup(0),))
    weighed(rig)
    assert seen(rig).waits_for == "worker 1 to be replaced"
    rig.join(1)
    assert seen(rig).waits_for == f"the state of {NAME} to be read back from the checkpoint"


def test_word_of_what_was_sent_reaches_the_change() -> None:
    rig = moving(epoch=False)
    rig.did(rig.coordinator.from_worker(m.Progressed(WorkerId(0), NAME, MoveId(0), 3 * MB, MB)))
    assert (seen(rig).sent, seen(rig).progress) == (3 * MB, pytest.approx(0.95 * 0.75))


def test_whoever_cannot_leave_before_an_epoch_ends_is_named() -> None:
    rig = Rig(5)
    rig.whole(0)
    rig.progress(0)
    rig.stage += 1
    rig.open(1)
    rig.recorded()
    wish(rig, "drain", "all_at_once", worker=WorkerId(4))
    weighed(rig)
    assert rig.coordinator.changes.current is not None
    assert not rig.told(m.Flip), "worker 4 has nothing"
    assert seen(rig) == Seen(
        ChangePhase.MOVING, 0.99, f"the end of epoch 1 of {NAME}, before which worker 4 cannot leave"
    )
    rig.seal()
    rig.progress(1)
    assert [over.error for over in results(rig.steps)] == [None]


def test_a_change_that_is_being_called_off_keeps_its_progress_and_says_whom_it_waits_for() -> None:
    rig = moving("seamless", epoch=False)
    rig.did(rig.coordinator.from_worker(m.Progressed(WorkerId(0), NAME, MoveId(0), MB, MB)))
    assert seen(rig).progress == pytest.approx(0.45)
    could, steps = rig.coordinator.cancel(ChangeId(0))
    rig.did(steps)
    assert could
    assert seen(rig).progress == pytest.approx(0.45)
    assert seen(rig).waits_for == "workers 0, 1 to drop the copies"
    released(rig)
    assert seen(rig) == Seen(ChangePhase.OVER, 1.0)


def test_what_was_seen_of_the_progress_is_not_taken_back_when_a_worker_is_lost() -> None:
    rig = moving("seamless", epoch=False)
    rig.did(rig.coordinator.from_worker(m.Progressed(WorkerId(0), NAME, MoveId(0), MB, MB)))
    assert seen(rig).progress == pytest.approx(0.45)
    rig.lose(1)
    assert seen(rig).progress == pytest.approx(0.45)


# --- what is put on record ---


def test_what_the_call_itself_refuses_is_not_put_on_record_and_what_is_refused_in_line_is() -> None:
    rig = Rig()
    rig.whole(0)
    rig.progress(0)
    wish(rig, "drain", "all_at_once", worker=WorkerId(9))
    assert [(type(over.error), over.records) for over in results(rig.steps)] == [(MoveRefused, ())]
    wish(rig, "rebalance", "all_at_once")
    wish(rig, "drain", "all_at_once", worker=WorkerId(9))
    weighed(rig)
    assert [it.outcome for over in results(rig.steps)[1:] for it in over.records] == [
        "done",
        "there is no worker 9 to drain; there are 0, 1",
    ]


def test_what_is_under_way_when_the_cluster_ends_is_put_on_record() -> None:
    rig = moving("seamless", epoch=False)
    wish(rig, "rebalance", "all_at_once")
    steps = rig.coordinator.failed(MoveRefused("a newer attachment has the checkpoint"))
    assert [(it.kind, it.outcome) for over in results(steps) for it in over.records] == [
        ("move", "a newer attachment has the checkpoint"),
        ("rebalance", "a newer attachment has the checkpoint"),
    ]


def test_a_change_that_was_called_off_is_named() -> None:
    rig = moving("seamless", epoch=False)
    wish(rig, "rescale", "all_at_once", workers=5, what="rescale to 5 workers")
    rig.did(rig.coordinator.cancel(ChangeId(1))[1])
    rig.did(rig.coordinator.cancel(ChangeId(0))[1])
    released(rig)
    assert [str(over.error) for over in results(rig.steps)] == [
        "rescale to 5 workers was called off before it began",
        "the move was called off; nothing had moved",
    ]


def test_a_change_that_was_called_off_in_line_has_its_worker_counts() -> None:
    rig = Rig(3)
    rig.whole(0)
    wish(rig, "rebalance", "all_at_once")
    wish(rig, "rescale", "all_at_once", workers=5)
    could, steps = rig.coordinator.cancel(ChangeId(1))
    assert could
    (over,) = results(rig.did(steps))
    assert isinstance(over.error, MoveCancelled)
    assert [(it.workers_before, it.workers_after) for it in over.records] == [(3, 3)]


def test_keys_that_are_moved_are_put_on_record_as_a_move() -> None:
    rig = Rig()
    rig.whole(0)
    rig.progress(0)
    wish(rig, "move", "all_at_once", worker=WorkerId(1), operator=NAME, keys=(KeyHash(12345),))
    weighed(rig)
    assert [pin.key for pin in rig.epochs.routing.pins] == [12345]
    if rig.told(m.Flip):
        arrived = m.Arrived(WorkerId(1), NAME, MoveId(0), 1, 1, 0, 0)
        rig.did(rig.coordinator.from_worker(arrived, np.zeros(1).tobytes()))
        released(rig)
    (over,) = results(rig.steps)
    assert [(it.kind, it.outcome) for it in over.records] == [("move", "done")]


def test_an_unpin_of_what_is_not_pinned_says_so() -> None:
    rig = Rig()
    rig.whole(0)
    rig.progress(0)
    wish(rig, "unpin", "all_at_once", operator=NAME, keys=(KeyHash(1),), what="unpin of key 'a' of Count")
    wish(rig, "unpin", "all_at_once", keys=(KeyHash(1), KeyHash(2)))
    one, two = (over.error for over in results(rig.steps))
    assert isinstance(one, MoveRefused)
    assert one.message == (
        "unpin of key 'a' of Count: there is nothing to do, since no such key is pinned: it lives with its key group. "
        "A pin also ends with its worker"
    )
    assert isinstance(two, MoveRefused)
    assert two.message.startswith(f"unpin of keys of {NAME}: there is nothing to do")


def test_a_change_that_is_over_is_all_done() -> None:
    # It ends between the question of whether it is over and the one of where it is.
    assert Rig().coordinator.changes.seen(ChangeId(7)) == Seen(ChangePhase.OVER, 1.0)
