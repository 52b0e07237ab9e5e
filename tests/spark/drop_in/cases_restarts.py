"""Restarts, and changes of the processor between runs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from tests.spark.drop_in.cases import RESTART, query
from tests.spark.drop_in.engines import STEP, Program


class Versions(StatefulProcessor):
    """A processor whose variables are those that it is told."""

    def __init__(self, *declared: tuple[Any, ...], dropped: tuple[str, ...] = (), wide: bool = False) -> None:
        self._declared, self._dropped, self._wide = declared, dropped, wide

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._states = [getattr(handle, method)(*arguments) for method, *arguments in self._declared]
        for name in self._dropped:
            handle.deleteIfExists(name)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        (row,) = rows
        for (method, name, *_), state in zip(self._declared, self._states, strict=True):
            try:
                seen = self._seen(method, state, row.v)
            except Exception as error:
                seen = f"{type(error).__name__}: {error}"
            yield Row(k=key[0], text=f"{name} {seen}")

    def _seen(self, method: str, state: Any, v: int) -> Any:
        if method == "getValueState":
            seen = state.get()
            state.update((v, v) if self._wide else (v,))
        elif method == "getListState":
            seen = list(state.get())
            state.appendValue((v,))
        else:
            seen = sorted(state.iterator())
            state.updateValue((v,), (v,))
        return seen


N = ("getValueState", "n", "v long")
XS = ("getListState", "xs", "v long")
M = ("getMapState", "m", "k long", "v long")
FOUR = [[("a", n), ("b", n)] for n in range(4)]


@query(RESTART, "state is there after a restart", "a batch that is replayed gives the same, with the same state",
       "the same with timers and TTL by processing time")  # fmt: skip
def stopped_and_replayed(place: Path) -> Program:
    declared = (N, XS, M, ("getListState", "short", "v long", STEP * 3 // 2))
    return Program(Versions(*declared), FOUR, time_mode="ProcessingTime", stops=frozenset({1}), fails=frozenset({2, 3}))


@query(RESTART, "variables may be added, and left out")
def variables_added_and_left_out(place: Path) -> Program:
    then = {1: {"processor": Versions(XS, M)}, 3: {"processor": Versions(XS)}}
    return Program(Versions(N, XS), FOUR, then=then)


@query(RESTART, "a variable that was left out has its state when it comes back", equal=False,
       why="it comes back empty: state of a variable that is not declared any more is dropped, with a warning that "
       "says so")  # fmt: skip
def variable_that_comes_back(place: Path) -> Program:
    return Program(Versions(N, XS), FOUR, then={1: {"processor": Versions(XS)}, 3: {"processor": Versions(N, XS)}})


@query(RESTART, "`deleteIfExists` removes a variable with all its data; of an unknown name nothing")
def variables_deleted(place: Path) -> Program:
    then = {
        1: {"processor": Versions(XS, dropped=("n", "unknown"))},
        2: {"processor": Versions(N, XS)},
    }
    return Program(Versions(N, XS), FOUR, then=then)


@query(RESTART, "a variable that is declared and deleted in one `init` cannot be used: `not initialized`")
def variable_used_after_its_deletion(place: Path) -> Program:
    return Program(Versions(XS, N, dropped=("n",)), FOUR[:2])


class Resets(StatefulProcessor):
    """Deletes a variable before it declares it."""

    def init(self, handle: Any) -> None:
        handle.deleteIfExists("n")
        self._n = handle.getValueState("n", "v long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        (n,) = self._n.get() or (0,)
        self._n.update((n + 1,))
        yield Row(k=key[0], text=str(n))


@query(RESTART, "a variable that `init` deletes and then declares is empty in each batch", equal=False,
       bedload_fails="and then declares it", why="it is refused at the call")  # fmt: skip
def variable_declared_after_its_deletion(place: Path) -> Program:
    return Program(Resets(), FOUR[:2])


class Unsteady(StatefulProcessor):
    """Its variable has another name each time."""

    def init(self, handle: Any) -> None:
        self._n = handle.getValueState(f"n{uuid.uuid4().hex}", "v long")  # noqa: TID251  that is the point

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield Row(k=key[0], text=str(self._n.get()))


@query(RESTART, "`init` may declare other variables in each batch, which are empty", equal=False,
       bedload_fails="declare the same variables", why="it is an error that says so")  # fmt: skip
def variables_that_change(place: Path) -> Program:
    return Program(Unsteady(), FOUR[:2])


def _changed(**change: Any) -> Program:
    return Program(Versions(N), FOUR[:2], then={1: change})


@query(RESTART, "another `timeMode` is refused", fails="STATE_STORE_INVALID_CONFIG_AFTER_RESTART", equal=False,
       bedload_fails="", why="the query goes on: what is in the state does not depend on it")  # fmt: skip
def time_mode_changed(place: Path) -> Program:
    return _changed(time_mode="ProcessingTime")


@query(RESTART, "another `outputMode` is refused", fails="STATE_STORE_INVALID_CONFIG_AFTER_RESTART", equal=False,
       bedload_fails="", why="the query goes on: nothing depends on it")  # fmt: skip
def output_mode_changed(place: Path) -> Program:
    return _changed(output_mode="Append")


WHY_REFUSED = "it is refused at the call: `SchemaChanged`, with what can be done"


@query(RESTART, "another kind of a variable is refused", fails="STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE", equal=False,
       bedload_fails="the stored state does not fit", why=WHY_REFUSED)  # fmt: skip
def kind_changed(place: Path) -> Program:
    return _changed(processor=Versions(("getListState", "n", "v long")))


AVRO = "spark.sql.streaming.stateStore.encodingFormat"


@query(RESTART, f"with `{AVRO}=avro` columns of a variable may be added: what was there has null in them")
def columns_added(place: Path) -> Program:
    changed = Versions(("getValueState", "n", "v long, w long"), wide=True)
    return Program(Versions(N), FOUR[:2], then={1: {"processor": changed}}, conf={AVRO: "avro"})


@query(RESTART, "another type of a variable's column is refused", fails="STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
       equal=False, bedload_fails="the stored state does not fit", why=WHY_REFUSED)  # fmt: skip
def type_changed(place: Path) -> Program:
    return _changed(processor=Versions(("getValueState", "n", "v string")))
