"""A processor of Spark's at a worker: what is called when, and what its state does."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from tests.processors import GROUPS, Worker, columns, deployment

from bedload.checkpoint.forms import StateForm
from bedload.checkpoint.merge import merge_checked
from bedload.core.errors import DefinitionError, OperatorFailed, StateTypeError
from bedload.spark.drop_in.rows import PandasForm
from bedload.state.arrow import arrow_type
from bedload.worker.rows import values


class Counter(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        (n,) = self.n.get() or (0,)
        n += sum(1 for _ in rows)
        self.n.update((n,))
        yield Row(k=key[0], n=n)


def test_a_value_lasts_from_epoch_to_epoch() -> None:
    worker = Worker(deployment(Counter()))
    assert worker.run(("a", 1), ("b", 1), ("a", 2)) == [("a", 2), ("b", 1)]
    assert worker.run(("a", 1)) == [("a", 3)]
    assert worker.state() == {"a": {"n": (3,)}, "b": {"n": (1,)}}


def test_an_epoch_that_does_not_count_leaves_nothing() -> None:
    worker = Worker(deployment(Counter()))
    worker.run(("a", 1))
    worker.begin([("a", 1), ("c", 1)])
    worker.runtime.seal()
    worker.runtime.abort()
    assert worker.state() == {"a": {"n": (1,)}}
    assert worker.run(("a", 1)) == [("a", 2)]


def test_keys_come_in_ascending_order_with_nulls_first() -> None:
    worker = Worker(deployment(Counter()))
    rows = [(key, 1) for key in ("m", "z", None, "b", "a", "y")]
    assert worker.run(*rows) == [(None, 1), ("a", 1), ("b", 1), ("m", 1), ("y", 1), ("z", 1)]
    assert worker.run((None, 1)) == [(None, 2)]


class Containers(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.items = handle.getListState("items", "v int")
        self.map = handle.getMapState("map", "k string", "n int, s string")

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        for row in rows:
            lazy, pairs = self.items.get(), self.map.iterator()
            if row.v < 0:
                self.items.clear()
                self.map.clear()
            else:
                self.items.appendValue((row.v,))
                self.map.updateValue((f"m{row.v % 2}",), (row.v, None))
            assert list(lazy) == list(self.items.get()), "read at the first next"
            assert dict(pairs) == dict(self.map.iterator())
            found = self.map.getValue(("m1",))
            assert found is None or (found.n == found[0] == found["n"] and found.asDict() == {"n": found.n, "s": None})
            assert self.map.containsKey(("m1",)) == (found is not None)
            assert self.items.exists() == (row.v >= 0)
        self.map.removeKey(("m0",))
        assert sorted(self.map.keys()) == [key for key, _ in self.map.iterator()]
        yield Row(k=key[0], n=len(list(self.items.get())))


def test_lists_and_maps_are_sparks_and_a_key_without_state_is_gone() -> None:
    worker = Worker(deployment(Containers()), durable=True)
    assert worker.run(("a", 1), ("a", 2), ("b", 2)) == [("a", 2), ("b", 1)]
    assert worker.state() == {
        "a": {"items": [(1,), (2,)], "map": {("m1",): (1, None)}},
        "b": {"items": [(2,)], "map": {}},
    }
    worker.run(("a", -1))
    assert worker.state() == {"b": {"items": [(2,)], "map": {}}}


class Puts(StatefulProcessor):
    """Appends what a row says, or puts as many as it says."""

    def init(self, handle: Any) -> None:
        self.items = handle.getListState("items", "v int")

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        for row in rows:
            if row.v < 0:
                self.items.put([*list(self.items.get())[-1:], *((at,) for at in range(-row.v))])
            else:
                self.items.appendValue((row.v,))
        yield Row(k=key[0], n=len(list(self.items.get())))


def test_lists_that_are_put_are_put_whether_they_are_small_or_large() -> None:
    shipped = deployment(Puts())
    worker, given = Worker(shipped, durable=True), list[int]()
    sizes = [-3, 1, -70, 2, -2, 3, -1, -80, -90, 4, -5]
    for at, size in enumerate(sizes):
        worker.begin([("a", -7), ("a", 9), ("a", -100)])
        worker.epoch -= 1
        worker.runtime.seal()
        worker.runtime.abort()
        assert worker.state().get("a", {"items": []})["items"] == [(v,) for v in given]
        rows = [size, at] if at % 2 else [size]
        for v in rows:
            given = [*given[-1:], *range(-v)] if v < 0 else [*given, v]
        assert worker.run(*(("a", v) for v in rows)) == [("a", len(given))]
        assert worker.state() == {"a": {"items": [(v,) for v in given]}}
        form = StateForm(shipped.key_types, {it.name: arrow_type(it.type) for it in shipped.specs}, GROUPS)
        state = merge_checked(form, form.empty(), worker.deltas)
        assert state.column("items").to_pylist() == [[{"v": v} for v in given]]


class Drops(StatefulProcessor):
    """Declares a variable and deletes it."""

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")
        self.gone = handle.getMapState("gone", "k int", "v int")
        handle.deleteIfExists("gone")

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        with pytest.raises(PySparkRuntimeError, match="Map state gone is not initialized"):
            self.gone.updateValue((1,), (1,))
        self.n.update((1,))
        yield Row(k=key[0], n=1)


def test_a_variable_that_init_declares_and_deletes_cannot_be_used_and_harms_nobody() -> None:
    worker = Worker(deployment(Drops()))
    assert worker.run(("a", 1)) == [("a", 1)]
    assert worker.state() == {"a": {"n": (1,)}}


class Resets(Counter):
    def init(self, handle: Any) -> None:
        handle.deleteIfExists("n")
        super().init(handle)


def test_a_variable_that_would_be_empty_in_each_batch_is_refused() -> None:
    with pytest.raises(DefinitionError, match="and then declares it"):
        deployment(Resets())


class Keeps(StatefulProcessor):
    """Asks for iterators under one key, and uses them under the next one."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.items = handle.getListState("items", "v string")
        self.map = handle.getMapState("map", "k string", "v int")
        self.kept: list[Any] = []

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        self.items.appendValue((key[0],))
        self.map.updateValue((key[0],), (1,))
        self.handle.registerTimer(ord(key[0]))
        seen = [list(it) for it in self.kept]
        assert seen in ([], [[("b",)], [("b",)], [(("b",), (1,))], [ord("b")]]), "of the key of their first element"
        self.kept = [self.items.get(), self.map.keys(), self.map.iterator(), self.handle.listTimers()]
        yield Row(k=key[0], n=len(seen))


def test_an_iterator_is_of_the_key_for_which_it_is_first_asked() -> None:
    assert Worker(deployment(Keeps(), mode="ProcessingTime")).run(("a", 1), ("b", 1)) == [("a", 0), ("b", 4)]


class Timed(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle
        self.log = handle.getListState("log", "at long")

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        for row in rows:
            (self.handle.registerTimer if row.v >= 0 else self.handle.deleteTimer)(abs(row.v))
        return []

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        at = expiredTimerInfo.getExpiryTimeInMs()
        assert key == (key.k,)
        assert (at in list(self.handle.listTimers())) == (at != 20), "it is deleted after the call"
        self.log.appendValue((at,))
        if at == 10:
            self.handle.registerTimer(5)  # has passed: the next epoch
            self.handle.registerTimer(10)  # the one that fires: lost
            self.handle.deleteTimer(20)  # fires all the same
        yield Row(k=key.k, n=at)


@pytest.mark.parametrize(("mode", "clock"), [("EventTime", "watermark"), ("ProcessingTime", "now")])
def test_timers_fire_after_the_rows_in_order_by_sparks_rules(mode: str, clock: str) -> None:
    worker = Worker(deployment(Timed(), mode=mode))
    assert worker.run(("b", 20), ("b", 10), ("a", 30), ("a", 15), ("a", -15), **{clock: 1}) == []
    assert worker.run(**{clock: 25}) == [("b", 10), ("b", 20)]
    assert worker.run(**{clock: 25}) == [("b", 5)]
    assert worker.run(("c", 3), **{clock: 30}) == [("c", 3), ("a", 30)]
    assert worker.run(**{clock: 99}) == []


def test_timers_need_a_time_mode() -> None:
    with pytest.raises(OperatorFailed, match="INVALID_TIME_MODE"):
        Worker(deployment(Timed())).run(("a", 1))


def test_rows_at_or_before_the_late_watermark_are_dropped_in_event_time() -> None:
    text = "k string, v timestamp"
    worker = Worker(deployment(Counter(), rows=text, mode="EventTime", event_time=1), rows=text)
    rows = [("a", 1_000_000), ("a", 2_000_000), ("a", 2_000_001), ("a", None)]
    assert worker.run(*rows, late=2000, watermark=5000) == [("a", 2)]
    assert (worker.runtime.rows, worker.runtime.late) == (4, 2)
    assert worker.run(late=5000, watermark=6000) == []
    assert worker.runtime.late == 0


class Expiring(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "v int", 100)
        self.list = handle.getListState("list", "v int", 100)
        self.map = handle.getMapState("map", "k int", "v int", 100)

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        for row in rows:
            if row.v == 0:
                continue
            self.value.update((row.v,))
            self.list.appendValue((row.v,))
            self.map.updateValue((row.v,), (row.v,))
        seen = [self.value.get(), list(self.list.get()), sorted(self.map.keys())]
        yield Row(k=str(seen), n=0)


def test_what_has_expired_is_not_there() -> None:
    worker = Worker(deployment(Expiring(), mode="ProcessingTime"))
    assert worker.run(("a", 1), now=0) == [("[(1,), [(1,)], [(1,)]]", 0)]
    assert worker.run(("a", 2), now=50) == [("[(2,), [(1,), (2,)], [(1,), (2,)]]", 0)]
    assert worker.run(("a", 0), now=99) == [("[(2,), [(1,), (2,)], [(1,), (2,)]]", 0)]
    assert worker.run(("a", 0), now=100) == [("[(2,), [(2,)], [(2,)]]", 0)]
    assert worker.run(("b", 1), now=150)[0][0] == "[(1,), [(1,)], [(1,)]]"
    assert set(worker.state()) == {"b"}, "a has nothing any more"


@pytest.mark.parametrize(("processor", "value"), [(Timed(), 100), (Expiring(), 1)])
def test_the_before_images_of_keys_without_rows_count(processor: StatefulProcessor, value: int) -> None:
    worker, told = Worker(deployment(processor, mode="ProcessingTime")), list[int]()
    worker.run(*((f"k{i}", value) for i in range(5000)), now=0)
    worker.begin([], now=100)
    worker.runtime.allow = lambda more: told.append(worker.runtime.held_bytes())
    worker.runtime.seal()
    assert max(told) > 100 * 5000, "while the seal goes on"
    assert worker.runtime.held_bytes() > 100 * 5000


class Framed(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        (n,) = self.n.get() or (0,)
        for frame in rows:
            assert list(frame.index) == list(range(len(frame)))
            assert str(frame.dtypes["v"]) in ("int64", "float64")
            n += frame["v"].count()
        self.n.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})
        yield pd.DataFrame()


def test_dataframes_come_in_chunks_and_their_numbers_are_wide() -> None:
    form = PandasForm("UTC", 2, columns=(0, 1))
    worker = Worker(deployment(Framed(), pandas=form))
    rows = [("a", 1), ("a", 2), ("a", None), ("b", 1)]
    assert worker.run(*rows) == [("a", 2), ("b", 1)]
    assert worker.run(("a", 5)) == [("a", 3)]


class Picky(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n int")

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        for row in rows:
            self.n.update(("text",) if row.v else ())
        return []


def test_errors_name_the_method_the_key_and_what_is_wrong() -> None:
    with pytest.raises(StateTypeError, match=r"(?s)key 'a'.*'n' is an int.*'text'.*self.n.update"):
        Worker(deployment(Picky())).run(("a", 1))
    with pytest.raises(
        OperatorFailed, match=r"handleInputRows of operator Picky, key 'a'.*STRUCT_ARRAY_LENGTH_MISMATCH"
    ):
        Worker(deployment(Picky())).run(("a", 0))


class Nosy(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n int")
        self.n.get()

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        return []


def test_state_cannot_be_used_without_a_key() -> None:
    with pytest.raises(PySparkRuntimeError, match="INVALID_HANDLE_STATE"):
        deployment(Nosy())


def test_two_states_of_one_name_are_refused_on_the_driver() -> None:
    class Twice(Counter):
        def init(self, handle: Any) -> None:
            handle.getValueState("n", "n int")
            handle.getValueState("n", "n int")

    with pytest.raises(PySparkRuntimeError, match="STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED"):
        deployment(Twice())


def test_each_epoch_has_a_processor_object_of_its_own() -> None:
    class Remembering(Counter):
        seen = ()

        def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
            self.seen = (*self.seen, key[0])
            yield Row(k=",".join(self.seen), n=0)

    worker = Worker(deployment(Remembering()))
    assert worker.run(("a", 1), ("b", 1)) == [("a", 0), ("a,b", 0)]
    assert worker.run(("c", 1)) == [("c", 0)]


def test_columns_are_parsed() -> None:
    assert columns("a int, b array<long>, c map<string, int>, d decimal(10,2)").simpleString() == (
        "struct<a:int,b:array<bigint>,c:map<string,int>,d:decimal(10,2)>"
    )


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/St_Johns"])
def test_timestamps_of_rows_are_what_arrow_makes_of_them(zone: str) -> None:
    hours = [1_729_987_200 + 1800 * at for at in range(12)]  # clocks were set back in that night
    for seconds in (hours, [0, -1, -62_135_596_800], [253_402_300_799], []):
        column = pa.array([at * 1_000_000 + 7 for at in seconds[:-1]] + [at * 1_000_000 for at in seconds[-1:]])
        column = column.cast(pa.int64()).cast(pa.timestamp("us", zone))
        try:
            wanted = column.to_pylist()
        except (OverflowError, ValueError):
            continue
        found = values(column)
        assert [(it, it.fold, it.tzinfo) for it in found] == [(it, it.fold, it.tzinfo) for it in wanted]
