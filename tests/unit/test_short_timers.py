"""Timers on the object of a key: in short form, whoever looks at them sees them in full."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from bedload.state.arrow import arrow_type, decoded_column, encode_all
from bedload.state.encoded import encoded_column
from bedload.state.specs import TIMERS
from bedload.state.timers import (
    Timer,
    TimerClock,
    Timers,
    first_due,
    in_full,
    in_order,
    put_timers,
    set_alone,
    short,
    take_out,
    timers_on,
)

FAR = 2**62
TIMER = st.builds(Timer, st.integers(-FAR, FAR), st.sampled_from(["", "", "x"]), st.sampled_from(TimerClock))
SOME = st.lists(TIMER, max_size=3, unique_by=lambda timer: timer[1:]).map(lambda some: in_order(tuple(some)))
NODE = TIMERS.type


@given(SOME, SOME)
def test_what_is_short_says_the_same_and_has_one_form(timers: Timers, others: Timers) -> None:
    assert in_full(short(timers)) == timers
    assert short(in_full(short(timers))) == short(timers)
    assert (short(timers) == short(others)) == (timers == others)
    assert bool(short(timers)) == bool(timers)


def test_most_keys_have_a_number() -> None:
    assert [type(short((Timer(at, "", clock),))) for at in (-5, 0, 7) for clock in TimerClock] == [int] * 6
    assert short((Timer(7, "x"),)) == (Timer(7, "x"),)


@given(st.lists(SOME, max_size=6), st.integers(0, 3))
def test_a_column_is_that_of_the_timers_in_full(values: list[Timers], more: int) -> None:
    alone = pa.array(encode_all(NODE, values), arrow_type(NODE))
    assert alone.equals(pa.array(encode_all(NODE, list(map(short, values))), arrow_type(NODE)))
    made = encoded_column(NODE, list(map(short, values)))
    assert made.equals(alone)
    assert decoded_column(NODE, made) == values
    spread = encoded_column(NODE, list(map(short, values)), len(values) + more, list(range(more, len(values) + more)))
    spread.validate(full=True)
    assert spread.to_pylist() == [None] * more + alone.to_pylist()


@given(st.lists(st.builds(lambda at, clock: (Timer(at, "", clock),), st.integers(-9, 9), st.sampled_from(TimerClock))))
def test_a_column_of_numbers_alone_is_that_of_the_timers_in_full(values: list[Timers]) -> None:
    made = encoded_column(NODE, list(map(short, values)))
    made.validate(full=True)
    assert made.equals(pa.array(encode_all(NODE, values), arrow_type(NODE)))


@given(SOME, st.integers(-FAR, FAR), st.integers(-FAR, FAR))
def test_the_first_one_due_is_that_of_the_timers_in_full(timers: Timers, watermark: int, processing: int) -> None:
    now = {TimerClock.EVENT: watermark, TimerClock.PROCESSING: processing}
    item = _item(timers)
    due = [timer for timer in timers if timer.at <= now[timer.clock]]
    assert first_due(item, watermark, processing) == (due[0] if due else None)
    for timer in timers:
        take_out(item, timer)
    assert timers_on(item) == ()


@given(SOME, st.integers(-9, 9), st.sampled_from(TimerClock))
def test_a_timer_alone_is_set_where_there_is_no_other(timers: Timers, at: int, clock: TimerClock) -> None:
    item = _item(timers)
    first = min((timer.at for timer in timers if timer.clock is clock), default=None)
    earlier = set_alone(item, at, clock)
    if any(timer[1:] != ("", clock) for timer in timers):
        assert earlier is None
        assert timers_on(item) == timers
    elif earlier is not None:
        assert timers_on(item) == (Timer(at, "", clock),)
        assert earlier == (first is None or at < first)


def _item(timers: Timers) -> Any:
    item = SimpleNamespace()
    put_timers(item, timers)
    return item
