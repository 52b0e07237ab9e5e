"""Timers of operators on rows: what fires when, in which order, and what of it an epoch that does not count leaves."""

from __future__ import annotations

import datetime as dt
import gc
from collections.abc import Iterable
from typing import Any

import pytest

import bedload as bl
from bedload.core.errors import BedloadError, DefinitionError, OperatorFailed, StateTypeError
from bedload.testing import OperatorHarness
from bedload.worker import firing

OUT = "key string, at long, name string, clock string, n long"


class Session(bl.Operator):
    """Ends when the watermark is 100 ms past its last row."""

    n: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: bl.Context) -> None:
        self.n += len(rows)
        ctx.timers.set(max(row.ts for row in rows) + 100)

    def on_timer(self, key: Any, timer: bl.Timer, ctx: bl.Context) -> Iterable[Any]:
        yield key, timer.at, timer.name, timer.clock, self.n
        ctx.forget()


class Orders(bl.Operator):
    """Does what its rows say."""

    n: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: bl.Context) -> None:
        for row in rows:
            timers = ctx.timers.processing if row.clock == "processing" else ctx.timers
            if row.at is None:
                timers.delete(row.name)
            else:
                timers.set(row.at, row.name)

    def on_timer(self, key: Any, timer: bl.Timer, ctx: bl.Context) -> Iterable[Any]:
        self.n += 1
        if timer.name.startswith("again"):
            ctx.timers.set(timer.at, "once more")
        if timer.name == "delete b":
            ctx.timers.delete("b")
        if timer.name == "for ever":
            ctx.timers.set(timer.at, timer.name)
        if timer.name == "raise":
            raise ValueError("no")
        yield key, timer.at, timer.name, timer.clock, self.n


def sessions() -> OperatorHarness:
    return OperatorHarness(Session, schema=OUT, key="key", input="key string, ts long")


class Told:
    """A harness of :class:`Orders`."""

    def __init__(self) -> None:
        form = "key string, at long, name string, clock string"
        self.harness = OperatorHarness(Orders, schema=OUT, key="key", input=form)

    def set(self, *orders: tuple[str, int | None, str], clock: str = "event") -> list[tuple[Any, ...]]:
        return self._fired([{"key": k, "at": at, "name": name, "clock": clock} for k, at, name in orders])

    def at(self, watermark: int, now: int = 0) -> list[tuple[Any, ...]]:
        self.harness.watermark, self.harness.now = watermark, now
        return self._fired([])

    def _fired(self, rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return [(row["key"], row["at"], row["name"]) for row in self.harness.run_epoch(rows)]


def test_a_key_without_rows_fires_when_the_watermark_is_there() -> None:
    harness = sessions()
    assert harness.run_epoch([{"key": "a", "ts": 0}, {"key": "b", "ts": 50}]) == []
    harness.watermark = 99
    assert harness.run_epoch([]) == []
    harness.watermark = 100
    assert [row["key"] for row in harness.run_epoch([])] == ["a"]
    assert set(harness.snapshot()) == {"b"}


def test_a_timer_that_is_set_again_moves() -> None:
    harness = sessions()
    harness.run_epoch([{"key": "a", "ts": 0}])
    harness.run_epoch([{"key": "a", "ts": 70}])
    harness.watermark = 169
    assert harness.run_epoch([]) == []
    harness.watermark = 170
    assert harness.run_epoch([]) == [{"key": "a", "at": 170, "name": "", "clock": "event", "n": 2}]


def test_timers_fire_in_the_order_of_time_and_then_of_keys() -> None:
    told = Told()
    told.set(("c", 5, "x"), ("a", 5, "x"), ("b", 5, "x"), ("a", 5, "y"), ("d", 6, ""))
    fired = told.at(10)
    assert fired == [("a", 5, "x"), ("a", 5, "y"), ("b", 5, "x"), ("c", 5, "x"), ("d", 6, "")]


def test_a_timer_that_was_deleted_does_not_fire() -> None:
    told = Told()
    told.set(("a", 5, "x"), ("a", 5, "y"))
    told.set(("a", None, "x"), ("a", None, "never set"))
    assert told.at(10) == [("a", 5, "y")]


def test_the_clocks_are_apart() -> None:
    told = Told()
    told.set(("a", 5, "x"))
    told.set(("a", 7, "x"), clock="processing")
    assert told.at(0, now=100) == [("a", 7, "x")]
    assert told.at(100, now=0) == [("a", 5, "x")]


def test_one_in_the_past_fires_at_the_end_of_the_epoch() -> None:
    told = Told()
    told.at(100)
    assert told.set(("a", 5, "x"), ("b", -7, "y")) == [("b", -7, "y"), ("a", 5, "x")]


def test_one_that_is_set_while_firing_and_is_due_fires_in_the_same_epoch() -> None:
    told = Told()
    told.set(("a", 5, "again"), ("a", 9, "later"), ("b", 5, "x"))
    assert told.at(10) == [("a", 5, "again"), ("a", 5, "once more"), ("b", 5, "x"), ("a", 9, "later")]


def test_one_that_an_earlier_call_deleted_does_not_fire() -> None:
    told = Told()
    told.set(("a", 5, "delete b"), ("a", 6, "b"))
    assert told.at(10) == [("a", 5, "delete b")]


def test_timers_that_set_themselves_for_ever_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firing, "MOST", 100)
    told = Told()
    told.set(("a", 5, "for ever"))
    with pytest.raises(DefinitionError, match=r"100 times for key 'a' in one epoch.*due already") as failed:
        told.at(10)
    assert failed.value.details["key"] == "a"


def test_an_error_that_is_forgotten_later_takes_no_key_from_a_call_under_way() -> None:
    """What it holds on to, as generators of the call that raised, may be freed at any moment."""
    held: list[BaseException] = []

    class Fails(Session):
        def process(self, key: Any, rows: Any, ctx: bl.Context) -> None:
            if rows[0].ts < 0:
                raise ValueError("no")
            held.clear()
            gc.collect()
            super().process(key, rows, ctx)

    harness = OperatorHarness(Fails, schema=OUT, key="key", input="key string, ts long")
    try:
        harness.run_epoch([{"key": "a", "ts": -1}])
    except OperatorFailed as failed:
        held.append(failed)
    assert held
    harness.run_epoch([{"key": "a", "ts": 0}])
    assert harness.state["a"]["bedload_timers"] == (bl.Timer(100),)


def test_what_on_timer_raises_names_the_key() -> None:
    told = Told()
    told.set(("a", 5, "raise"))
    with pytest.raises(
        OperatorFailed, match=r"on_timer of operator Orders, key 'a', epoch 1, .* raised ValueError: no"
    ):
        told.at(10)


def test_an_epoch_that_does_not_count_leaves_its_timers() -> None:
    told = Told()
    told.set(("a", 5, "again"), ("b", 20, "x"))
    harness = told.harness
    harness.watermark = 10
    harness.feed([{"key": "b", "at": 1, "name": "x", "clock": "event"}])
    assert len(harness.seal()) == 3
    harness.abort()
    assert told.at(10) == [("a", 5, "again"), ("a", 5, "once more")]
    assert told.at(20) == [("b", 20, "x")]


def test_a_name_may_be_any_text() -> None:
    told = Told()
    told.set(("a", 5, "ü"), ("a", 5, "\0"))
    assert told.at(10) == [("a", 5, "\0"), ("a", 5, "ü")]


def test_a_timer_is_fired_once() -> None:
    told = Told()
    told.set(("a", 5, "x"))
    assert told.at(10) == [("a", 5, "x")]
    assert told.at(11) == []


def test_timers_are_listed_by_when_they_fire() -> None:
    seen: list[list[bl.Timer]] = []

    class Lists(Orders):
        def process(self, key: Any, rows: Any, ctx: bl.Context) -> None:
            super().process(key, rows, ctx)
            seen.append(ctx.timers.list())

    form = "key string, at long, name string, clock string"
    harness = OperatorHarness(Lists, schema=OUT, key="key", input=form)
    harness.run_epoch([{"key": "a", "at": at, "name": str(at), "clock": "event"} for at in (7, 5, 6)])
    assert [timer.at for timer in seen[0]] == [5, 6, 7]


def test_state_shows_the_timers() -> None:
    told = Told()
    told.set(("a", 5, "x"))
    assert told.harness.state["a"]["bedload_timers"] == (bl.Timer(5, "x"),)


# --- what is refused ---


class Bad(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: bl.Context) -> None:
        for row in rows:
            match row.what:
                case "bool":
                    ctx.timers.set(True)
                case "float":
                    ctx.timers.set(1.5)  # type: ignore[arg-type]
                case "micro":
                    ctx.timers.set(1_704_067_200_000_000)
                case "half a pair":
                    ctx.timers.set(1, "\ud800")
                case "name":
                    ctx.timers.set(1, 7)  # type: ignore[arg-type]
                case "delete":
                    ctx.timers.delete(7)  # type: ignore[arg-type]
                case "delete half a pair":
                    ctx.timers.processing.delete("\ud800")
                case "late":
                    ctx.is_late(dt.datetime(2024, 1, 1))
                case "late null":
                    ctx.is_late(None)
                case _:
                    self.n += 1

    def result(self, key: Any, ctx: bl.Context) -> None:
        ctx.timers.set(1)

    def on_timer(self, key: Any, timer: bl.Timer, ctx: bl.Context) -> None:
        pass


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("bool", "give milliseconds since 1970 as an int"),
        ("float", "give milliseconds since 1970 as an int"),
        ("micro", "no time in milliseconds"),
        ("name", "the name of a timer is a str"),
        ("half a pair", "without surrogates"),
        ("delete", r"timers.delete\(7\): the name of a timer is a str"),
        ("delete half a pair", "without surrogates"),
        ("late", r"is_late\(datetime.datetime\(2024, 1, 1, 0, 0\)\): give milliseconds since 1970"),
        ("late null", r"is_late\(None\): give milliseconds"),
        ("result", "is for process and on_timer"),
    ],
)
def test_what_is_no_timer_is_refused(what: str, why: str) -> None:
    harness = OperatorHarness(Bad, schema="n long", key="key", input="key string, what string")
    with pytest.raises(DefinitionError, match=why):
        harness.run_epoch([{"key": "a", "what": what}])


def test_an_operator_without_on_timer_is_told_what_is_missing() -> None:
    class Without(bl.Operator):
        def process(self, key: Any, rows: Any, ctx: bl.Context) -> None:
            ctx.timers.set(1)

    harness = OperatorHarness(Without, schema="n long", key="key", input="key string")
    with pytest.raises(BedloadError, match="has no on_timer"):
        harness.run_epoch([{"key": "a"}])


def test_setup_has_no_key_to_set_timers_for() -> None:
    class Early(Session):
        def setup(self, ctx: bl.Context) -> None:
            ctx.timers.set(1)

    with pytest.raises(BedloadError, match="is for process and on_timer"):
        OperatorHarness(Early, schema=OUT, key="key", input="key string, ts long")


def test_names_of_our_own_are_reserved() -> None:
    with pytest.raises(StateTypeError, match="'bedload_' are reserved"):

        class Taken(bl.Operator):
            bedload_timers: int = bl.value(0)


def test_on_timer_has_to_take_what_it_is_given() -> None:
    class Short(bl.Operator):
        def process(self, key: Any, rows: Any, ctx: bl.Context) -> None: ...

        def on_timer(self, key: Any, ctx: bl.Context) -> None: ...  # type: ignore[override]

    with pytest.raises(DefinitionError, match=r"on_timer must be callable as on_timer\(self, key, timer, ctx\)"):
        OperatorHarness(Short, schema="n long", key="key", input="key string")
