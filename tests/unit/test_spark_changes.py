"""Handles on changes of a cluster, what is made of users' wishes, and how results read."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from bedload.control.phases import ChangePhase
from bedload.control.seen import Seen
from bedload.control.wish import Kind, Wish
from bedload.core.errors import DefinitionError, MoveCancelled, MoveFailed, MoveRefused, UnknownOperator
from bedload.core.ids import OperatorName
from bedload.migration import AUTO, STRATEGIES
from bedload.migration.record import MoveRecord
from bedload.spark.changes import Change, MoveResult, Wishes


class Carrier:
    """A driver that does what a test tells it."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.wishes: list[Wish] = []
        self.future: Future[tuple[MoveRecord, ...]] = Future()
        self.stages = [Seen(ChangePhase.QUEUED)]
        self.cancelled: list[int] = []
        self._refusal = refusal

    def change(self, wish: Wish) -> tuple[int, Future[tuple[MoveRecord, ...]]]:
        self.wishes.append(wish)
        if self._refusal is not None:
            self.future.set_exception(self._refusal)
        return 7, self.future

    def cancel(self, number: int) -> bool:
        self.cancelled.append(number)
        return True

    def seen(self, number: int) -> Seen:
        stage = self.stages.pop(0)
        if not self.stages:
            self.stages.append(stage)
            if stage.phase is ChangePhase.MOVING and not self.future.done():
                self.future.set_result(())
        return stage


class Hashed:
    def hash_of(self, key: int) -> int:
        return key * 1000


def wishes(carrier: Carrier, *operators: str, members: int = 2, busy: bool = False, room: int = 99) -> Wishes:
    def check(workers: int) -> None:
        if workers > room:
            raise MoveRefused("no room")

    return Wishes(carrier, {OperatorName(name): Hashed() for name in operators}, lambda: (members, busy), check)


def record(**more: object) -> MoveRecord:
    return MoveRecord(number=0, kind="rescale", operator="Trip", strategy="seamless", **more)  # type: ignore[arg-type]


# --- wishes ---


def test_keys_are_named_by_their_hash_and_each_once() -> None:
    carrier = Carrier()
    wishes(carrier, "Trip").move(iter([3, 5, 3]), None, 1, None, None)
    assert carrier.wishes == [Wish(Kind.MOVE, STRATEGIES["seamless"], worker=1, operator="Trip", keys=(3000, 5000))]  # type: ignore[arg-type]


def test_a_move_of_keys_is_a_move_and_a_pin_is_a_pin() -> None:
    carrier = Carrier()
    made = wishes(carrier, "Trip")
    assert made.move([3], None, 1, None, None).what == "move of key 3 of Trip to worker 1"
    assert made.pin([3], 1, None, None).what == "pin of key 3 of Trip to worker 1"
    assert [(wish.kind.value, wish.what) for wish in carrier.wishes] == [
        ("move", "move of key 3 of Trip to worker 1"),
        ("pin", "pin of key 3 of Trip to worker 1"),
    ]
    assert all(wish.pins for wish in carrier.wishes)
    with pytest.raises(DefinitionError, match=r"move\(keys=\.\.\.\) by stop_restart: .* is for rescale"):
        made.move([3], None, 1, None, "stop_restart")
    with pytest.raises(DefinitionError, match="to='edge': give the number of a worker"):
        made.move([3], None, "edge", None, None)


def test_an_operator_is_found_by_its_name_its_class_or_being_the_only_one() -> None:
    class Trip:
        pass

    for given in (None, "Trip", Trip):
        carrier = Carrier()
        wishes(carrier, "Trip").unpin([3], given, None)
        assert carrier.wishes[0].operator == "Trip"
    with pytest.raises(DefinitionError, match=r"operator=\.\.\.\): the operators of this cluster are A, B"):
        wishes(Carrier(), "A", "B").unpin([3], None, None)
    with pytest.raises(DefinitionError, match=r"no operator was applied .* yet.*: cluster\.apply\(\.\.\.\) one first"):
        wishes(Carrier()).unpin([3], None, None)
    with pytest.raises(UnknownOperator, match="there are: A"):
        wishes(Carrier(), "A").unpin([3], Trip, None)


def test_a_strategy_is_given_as_it_is_by_name_or_left_to_the_chooser() -> None:
    mine = STRATEGIES["lazy"].with_(bandwidth=1e6)
    for given, meant in ((None, STRATEGIES["seamless"]), ("lazy", STRATEGIES["lazy"]), (mine, mine), ("auto", AUTO)):
        carrier = Carrier()
        wishes(carrier, "Trip").rebalance(given)
        assert carrier.wishes[0].strategy is meant


def test_a_variant_of_a_strategy_keeps_what_is_not_named() -> None:
    mine = STRATEGIES["lazy"].with_(bandwidth=1e6).with_(share=0.5)
    assert (mine.bandwidth, mine.share) == (1e6, 0.5)
    assert mine.with_(bandwidth=None) == STRATEGIES["lazy"].with_(share=0.5)


def test_a_site_is_not_taken_for_a_worker() -> None:
    with pytest.raises(DefinitionError, match=r"to='edge': give the number .* A name would be that of a site, a place"):
        wishes(Carrier(), "A").move(None, [0], "edge", None, None)
    with pytest.raises(DefinitionError, match=r"^worker='1': workers are numbers, worker=1; see cluster\.workers$"):
        wishes(Carrier(), "A").pin([3], "1", None, None)


def test_as_many_workers_as_there_are_is_nothing_to_do_unless_something_is_under_way() -> None:
    carrier = Carrier()
    assert wishes(carrier, members=2).rescale(2, None).wait(0).records == ()
    assert not carrier.wishes
    wishes(carrier, members=2, busy=True).rescale(2, None)
    wishes(carrier, members=2).rescale(2, "stop_restart")
    assert [wish.workers for wish in carrier.wishes] == [2, 2]


def test_room_is_looked_for_before_anything_is_asked() -> None:
    carrier = Carrier()
    with pytest.raises(MoveRefused, match="no room"):
        wishes(carrier, room=3).rescale(4, None)
    assert not carrier.wishes
    wishes(carrier, members=5, room=3).rescale(4, None)
    assert len(carrier.wishes) == 1


def test_what_is_refused_at_once_is_raised_by_the_call() -> None:
    with pytest.raises(MoveRefused, match="no worker 9"):
        wishes(Carrier(MoveRefused("no worker 9")), "Trip").pin([3], 9, None, None)


# --- handles ---


def test_a_handle_follows_its_change_to_the_end() -> None:
    carrier = Carrier()
    change = Change(carrier, 7, "rescale to 3 workers", carrier.future)
    assert (change.done, change.result, change.progress) == (False, None, 0.0)
    assert repr(change) == "<rescale to 3 workers: 0%, waits for the change before it>"
    with pytest.raises(TimeoutError, match=r"rescale to 3 workers is not over after 0 seconds \(waits for"):
        change.wait(0)
    carrier.future.set_result((record(),))
    assert (change.done, change.progress, change.stage) == (True, 1.0, "over")
    assert change.result == MoveResult("rescale to 3 workers", (record(),))
    assert repr(change) == "<rescale to 3 workers: done in 0 ms>"
    assert str(change) == str(change.result)
    assert not change.cancel()
    assert not carrier.cancelled, "what is over is not called off"


def test_a_handle_of_a_change_that_failed_raises_why() -> None:
    carrier = Carrier()
    change = Change(carrier, 7, "drain of worker 1", carrier.future)
    assert change.cancel()
    assert carrier.cancelled == [7]
    carrier.future.set_exception(MoveCancelled("called off"))
    with pytest.raises(MoveCancelled):
        change.wait(0)
    with pytest.raises(MoveCancelled):
        _ = change.result
    assert repr(change) == "<drain of worker 1: called off>"


def test_a_handle_of_a_change_that_failed_shows_the_first_line_of_why() -> None:
    carrier = Carrier()
    change = Change(carrier, 7, "drain of worker 1", carrier.future)
    carrier.future.set_exception(MoveFailed("worker 1 could not send\nTraceback"))
    assert repr(change) == "<drain of worker 1: failed: worker 1 could not send>"
    assert str(change).splitlines()[1:] == ["Traceback"]


def test_a_handle_says_what_was_sent_and_what_it_waits_for() -> None:
    carrier = Carrier()
    carrier.stages = [Seen(ChangePhase.STARTING, 0.42, "the end of epoch 7 of <Trip>", 12_300_000)]
    change = Change(carrier, 7, "rescale to 3 workers", carrier.future)
    assert (change.progress, change.waits_for) == (0.42, "the end of epoch 7 of <Trip>")
    assert change.stage == "waits for the end of epoch 7 of <Trip>"
    assert str(change) == "rescale to 3 workers: 42%, 12.3 MB sent, waits for the end of epoch 7 of <Trip>"
    assert repr(change) == f"<{change}>"
    shown = change._repr_html_()
    assert '<progress value="0.420">' in shown
    assert "epoch 7 of &lt;Trip&gt;" in shown
    with pytest.raises(TimeoutError, match=r"not over after 0 seconds \(waits for the end of epoch 7"):
        change.wait(0)
    carrier.future.set_result(())
    assert change._repr_html_() == "<pre>rescale to 3 workers: done, no state moved</pre>"


def test_a_change_that_ends_while_it_is_printed_is_printed_as_over() -> None:
    carrier = Carrier()
    carrier.stages = [Seen(ChangePhase.MOVING)]  # which ends it
    assert str(Change(carrier, 7, "rebalance", carrier.future)) == "rebalance: done, no state moved"


def test_outside_a_terminal_progress_is_a_line_for_each_stage(capsys: pytest.CaptureFixture[str]) -> None:
    carrier = Carrier()
    start = Seen(ChangePhase.STARTING, waits_for="worker 2 to start")
    carrier.stages = [start, start, Seen(ChangePhase.WEIGHING), Seen(ChangePhase.MOVING, 0.4, sent=2000)]
    result = Change(carrier, 7, "rescale to 3 workers", carrier.future).show()
    assert result.records == ()
    assert capsys.readouterr().out.splitlines() == [
        "rescale to 3 workers: 0%, waits for worker 2 to start",
        "rescale to 3 workers: 0%, workers say what their key groups weigh",
        "rescale to 3 workers: 40%, 2.0 kB sent, state moves",
        "rescale to 3 workers: done, no state moved",
    ]


def test_in_a_terminal_progress_is_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    carrier = Carrier()
    carrier.stages = [Seen(ChangePhase.MOVING, 0.4)]
    Change(carrier, 7, "drain of worker 1", carrier.future).show()
    shown = capsys.readouterr().out
    assert "drain of worker 1: state moves" in shown
    assert "40%" in shown


# --- results ---


def test_a_result_sums_up_its_operators_and_tells_the_worst_stoppage() -> None:
    one = record(duration_s=1.5, moved_keys=10, moved_bytes=2000, stoppage_ms_p99=3.0, asked_keys=4)
    other = MoveRecord(
        number=0, kind="rescale", operator="Sum", strategy="adaptive", why="it is small", moved_keys=5,
        moved_bytes=1_500_000, stoppage_ms_p99=1.0, stoppage_ms_max=9.0, from_checkpoint=True,
    )  # fmt: skip
    result = MoveResult("rescale to 3 workers", (one, other))
    assert (result.duration_s, result.moved_keys, result.moved_bytes) == (1.5, 15, 1_502_000)
    assert (result.stoppage_ms_p50, result.stoppage_ms_p99, result.stoppage_ms_max) == (0.0, 3.0, 9.0)
    assert (result.strategy, result.why) == ("seamless, adaptive", "it is small")
    assert repr(result) == str(result), "it reads the same at a prompt"
    assert str(result).splitlines() == [
        "rescale to 3 workers: done in 1.5 s",
        "  Trip: 10 keys, 2.0 kB by seamless; stoppage p50 0.0, p99 3.0, max 0.0 ms over 4 keys with rows",
        "  Sum: 5 keys, 1.5 MB by adaptive; the rest was read from the checkpoint (it is small)",
    ]
