"""Timers and clocks, in each time mode. Times are milliseconds from the clock's time in batch 1; see ``Now.clock``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.spark.drop_in.engines import START, STEP
from tests.spark.drop_in.small import EVENT, PROCESSING, Declared, Now, attempt, raises, small, value

TIMERS, TIME = "Timers", "Clocks"


def timed(what: str, *declared: Declared, sees: Any, silent: Sequence[int] = (), **more: Any) -> Callable[..., Any]:
    """A behaviour that is the same in both modes with timers; it begins in batch 1, when there is a watermark."""

    def register(code: Callable[..., Any]) -> Callable[..., Any]:
        for mode in (PROCESSING, EVENT):
            small(TIMERS, what, *declared, sees=_later(sees), mode=mode, silent=(0, *silent), **more)(code)
        return code

    return register


def _later(sees: Any) -> Any:
    return {key: [[], *seen] for key, seen in sees.items()} if isinstance(sees, dict) else [[], *sees]


# --- the clocks


@small(TIME, "in mode None both are -1", sees=[[-1, -1], [-1, -1]])
def clocks_without_time(now: Now) -> Iterator[Any]:
    yield now.times.getCurrentProcessingTimeInMs()
    yield now.times.getCurrentWatermarkInMs()


@small(
    TIME,
    "`getCurrentProcessingTimeInMs` is the batch's time in the offset log; `getCurrentWatermarkInMs` is 0 in the "
    "first batch, and then what earlier batches left",
    sees=[[START, 0], [START + STEP, START], [START + 2 * STEP, START + STEP]],
    mode=PROCESSING,
)
def clocks_of_processing_time(now: Now) -> Iterator[Any]:
    yield now.times.getCurrentProcessingTimeInMs()
    yield now.times.getCurrentWatermarkInMs()


@small(
    TIME,
    "`getCurrentProcessingTimeInMs` and `getCurrentWatermarkInMs` are the same in mode EventTime",
    sees=[[START, 0], [START + STEP, START], [START + 2 * STEP, START + STEP]],
    mode=EVENT,
)
def clocks_of_event_time(now: Now) -> Iterator[Any]:
    yield now.times.getCurrentProcessingTimeInMs()
    yield now.times.getCurrentWatermarkInMs()


@small(TIMERS, "`listTimers` in mode EventTime of nothing is empty", sees=[[[]]], mode=EVENT)
def timers_of_nothing(now: Now) -> Iterator[Any]:
    yield list(now.handle.listTimers())


# --- registered and fired


@timed("`registerTimer` for now or earlier fires in the same batch, after all rows, in the order of time",
       sees=[["rows", -700, -500, 0], []], silent=[2])  # fmt: skip
def timer_that_is_due(now: Now) -> Iterator[Any]:
    if now.fired is None:
        for at in (0, -500, -700):
            now.register(at)
        yield "rows"
    else:
        yield now.fired


@timed("one for later fires in the first batch whose clock has reached it, whether the key has rows or not",
       sees=[[], [], [(1500, 2000)]], silent=[2, 3])  # fmt: skip
def timer_for_later(now: Now) -> Iterator[Any]:
    if now.fired is None:
        now.register(1500)
    else:
        yield now.fired, now.clock


@timed("one for exactly the clock of a batch fires in it", sees=[[], [(1000, 1000)], []], silent=[2, 3])
def timer_for_exactly(now: Now) -> Iterator[Any]:
    if now.fired is None:
        now.register(1000)
    else:
        yield now.fired, now.clock


@timed("to register one twice is to register it once", sees=[[[500]], [500]], silent=[2])
def timer_registered_twice(now: Now) -> Iterator[Any]:
    if now.fired is None:
        now.register(500)
        now.register(500)
        yield now.timers()
    else:
        yield now.fired


@timed("a key has as many as it has times; another key's are others",
       sees={"a": [[[500, 1500]], [500], [1500]], "b": [[[500]], [500], []]}, silent=[2, 3])  # fmt: skip
def timers_of_a_key(now: Now) -> Iterator[Any]:
    if now.fired is None:
        now.register(500)
        if now.key == "a":
            now.register(1500)
        yield now.timers()
    else:
        yield now.fired


@timed("`deleteTimer` removes one, of nothing too", sees=[[[1500]], [], [1500]], silent=[2, 3])
def timer_deleted(now: Now) -> Iterator[Any]:
    if now.fired is None:
        now.register(500)
        now.register(1500)
        now.delete(500)
        now.delete(77)
        yield now.timers()
    else:
        yield now.fired


@timed("`deleteTimer` in a later batch", sees=[[], [[500, 1500], [500]], []], silent=[3])
def timer_deleted_later(now: Now) -> Iterator[Any]:
    if now.fired is None and now.batch == 1:
        now.register(500)
        now.register(1500)
    elif now.fired is None:
        yield now.timers()
        now.delete(1500)
        now.delete(500)
        now.register(500)
        yield now.timers()
        now.delete(500)


@timed("`listTimers` while one fires still has it",
       sees=[[[500, 900, 1500]], [(500, [500, 900, 1500]), (900, [900, 1500])], [(1500, [1500])]],
       silent=[2, 3])  # fmt: skip
def timers_listed_while_firing(now: Now) -> Iterator[Any]:
    if now.fired is None:
        for at in (1500, 500, 900):
            now.register(at)
        yield now.timers()
    else:
        yield now.fired, now.timers()


# --- changes by the handler


@timed("one that a handler registers for the past fires in the next batch",
       sees=[[], [(500, 1000)], [(400, 2000)], []], silent=[2, 3, 4])  # fmt: skip
def timer_for_the_past_by_a_handler(now: Now) -> Iterator[Any]:
    if now.fired is None:
        now.register(500)
        return
    yield now.fired, now.clock
    if now.fired == 500:
        now.register(400)


@timed("one that a handler registers for later fires later", sees=[[], [(500, 1000)], [(1700, 2000)], []],
       silent=[2, 3, 4])  # fmt: skip
def timer_for_later_by_a_handler(now: Now) -> Iterator[Any]:
    if now.fired is None:
        now.register(500)
        return
    yield now.fired, now.clock
    if now.fired == 500:
        now.register(1700)


@timed("the one that fires is deleted after its handler: to register it again there has no effect",
       sees=[[], [(500, [500])], []], silent=[2, 3])  # fmt: skip
def timer_registered_again_by_its_handler(now: Now) -> Iterator[Any]:
    if now.fired is None:
        now.register(500)
    else:
        now.register(500)
        yield now.fired, now.timers()


@timed("one that an earlier handler of the batch deletes fires all the same", sees=[[], [500, (600, [])], []],
       silent=[2, 3])  # fmt: skip
def timer_deleted_by_an_earlier_handler(now: Now) -> Iterator[Any]:
    if now.fired is None:
        now.register(500)
        now.register(600)
    elif now.fired == 500:
        now.delete(600)
        yield now.fired
    else:
        yield now.fired, now.timers()


@timed("rows of the batch may delete one that is due", sees=[[], ["deleted"], []], silent=[3])
def timer_deleted_by_rows_when_due(now: Now) -> Iterator[Any]:
    if now.fired is not None:
        yield now.fired
    elif now.batch == 1:
        now.register(500)
    else:
        now.delete(500)
        yield "deleted"


@timed("a handler reads and changes the state of its key", value("n int"),
       sees={"a": [[], [(1, 1001), (1001, 1002)], [1002]], "b": [[], [(1, 1001), (1001, 1002)], [1002]]},
       silent=[2])  # fmt: skip
def timer_with_state(n: Any, now: Now) -> Iterator[Any]:
    if now.fired is not None:
        (old,) = n.get()
        n.update((old + (1000 if now.fired == 500 else 1),))
        yield old, n.get()[0]
    elif now.batch == 1:
        n.update((1,))
        now.register(500)
        now.register(700)
    else:
        yield n.get()[0]


@timed(
    "`TimerValues` of a handler are those of the batch; `getExpiryTimeInMs` is the time that was registered",
    sees=[[], [True], []],
    silent=[2, 3],
)
def timer_values_of_a_handler(now: Now) -> Iterator[Any]:
    if now.fired is None:
        now.register(500)
    else:
        yield now.now == START + 2 * STEP


@timed(
    "a time that is no whole number of 64 bits is an error; nothing is registered",
    sees=[[raises("TypeError"), raises("TypeError"), raises("ValueError"), raises("TypeError"), []], []],
    silent=[2],
)
def timer_that_is_no_time(now: Now) -> Iterator[Any]:
    yield attempt(lambda: now.handle.registerTimer(1.5))
    yield attempt(lambda: now.handle.registerTimer("1"))
    yield attempt(lambda: now.handle.registerTimer(2**63))
    yield attempt(lambda: now.handle.deleteTimer(1.5))
    yield now.timers()


@timed("times before 1970 are times", sees=[[-1, 0], []], silent=[2])
def timer_before_1970(now: Now) -> Iterator[Any]:
    if now.fired is None:
        now.handle.registerTimer(-1)
        now.handle.registerTimer(0)
    else:
        yield now.fired + now.base
