"""Operators on whole batches: user code that sees columns instead of rows, over columnar state.

``process`` gets the batch, and the state of its distinct keys as one NumPy array per variable; it gives back the new
arrays. Nothing is called per row or per key, so what it costs is what the user's array code costs.
"""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import DefinitionError, OutputError, StateTypeError
from bedload.state import StateSpec
from bedload.state.types import OptionalNode, ScalarNode
from bedload.store.columns import ColumnSpec, ColumnTable
from bedload.store.columns.distinct import distinct
from bedload.store.columns.index import Slots
from bedload.worker.batch_context import BatchContext
from bedload.worker.expiry import VariableTtl
from bedload.worker.fitting import NOT_FITTING, recast
from bedload.worker.misfits import misfit
from bedload.worker.operator import OperatorMeta, make_holder
from bedload.worker.parameters import Values
from bedload.worker.vector_batch import VectorBatch
from bedload.worker.vector_timers import BatchTimer, TimerColumn, timer_columns

State = dict[str, npt.NDArray[Any]]

_RETURN_IT = (
    "The new state is what the call returns, and the arrays that it gets cannot be changed: make new ones, as in "
    'x = state["x"] + 1, and return them: return {"x": x}'
)


class VectorOperator(metaclass=OperatorMeta):
    """User logic over the columnar state of many keys at once.

    ::

        class Mean(bl.VectorOperator):
            n: int = bl.value(0)
            total: float = bl.value(0.0)

            def process(self, batch, state, ctx):
                count = len(state["n"])
                n = state["n"] + np.bincount(batch.index, minlength=count)
                total = state["total"] + np.bincount(batch.index, batch.numpy("speed"), minlength=count)
                return {"n": n, "total": total}

            def result(self, keys, state, ctx):
                return {"car": keys, "n": state["n"], "mean": state["total"] / state["n"]}

    ``process`` returns the new state (variables that are left out stay as they are), or a pair of that and outputs.
    ``result`` is called at the end of the epoch with the keys that changed in it and their state, and returns outputs:
    a mapping from output column to array, or a record batch. State variables are scalars: bool, int, float, str, bytes,
    date, and ``X | None`` of these. Dates come as ``datetime64[D]``. Where one is None, a number comes as NaN (an ``int
    | None`` as ``float64``), a date as NaT, and any other as None; NaN that is returned becomes None. Parameters are
    those of :class:`Operator`.

    An operator that defines ``on_timer`` has timers: those by event time that ``timers`` names, and those by the time
    of the epochs that ``processing_timers`` names. A key has at most one of each.

    A variable with a TTL (``bl.value(0, ttl="1 hour")``) is the default again for keys for which no call has returned
    it for so long; with ``refresh="read"``, none has got it either.
    """

    __slots__ = ()

    __bedload_specs__: ClassVar[tuple[StateSpec, ...]]
    timers: ClassVar[tuple[str, ...]] = ("",)
    processing_timers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **parameters: Any) -> None:
        """The operator with these parameters (:func:`bedload.param`), to be applied."""

    def process(self, batch: VectorBatch, state: State, ctx: BatchContext) -> Any:
        """Take a batch and the state of its distinct keys; return the new state, or (new state, outputs)."""
        raise NotImplementedError

    def result(self, keys: Any, state: State, ctx: BatchContext) -> Any:
        """Give the outputs for the keys that changed in the epoch."""
        raise NotImplementedError

    def on_timer(self, keys: Any, timer: BatchTimer, state: State, ctx: BatchContext) -> Any:
        """Timers of one name and clock are due: at the end of an epoch, whether the keys had rows in it or not.

        ``keys`` are as in ``result``, and ``timer.at`` has the time of each; they come in the order of time, and of
        keys where that is the same (null last). It returns what ``process`` does, and may set timers; one that is due
        fires in the same epoch. Each key gets its timers in the order of their time, and of name and clock.
        """
        raise NotImplementedError

    @classmethod
    def timer_columns(cls) -> tuple[TimerColumn, ...]:
        """The timers of each key, in the order in which those of one time fire; none without ``on_timer``."""
        if cls.on_timer is VectorOperator.on_timer:
            return ()
        return timer_columns(cls.__name__, cls.timers, cls.processing_timers)

    def setup(self, ctx: BatchContext) -> None:
        """Make what is needed; called once per worker."""

    def close(self) -> None:
        """Release what :meth:`setup` made."""


def check_vector_operator(operator: type[VectorOperator]) -> None:
    """Raise a DefinitionError for an operator that cannot run."""
    if operator.process is VectorOperator.process:
        raise DefinitionError(f"operator {operator.__name__} has no process(self, batch, state, ctx)")
    for method, names in (
        ("process", ("batch", "state", "ctx")),
        ("result", ("keys", "state", "ctx")),
        ("on_timer", ("keys", "timer", "state", "ctx")),
    ):
        try:
            inspect.signature(getattr(operator, method)).bind(None, *names)
        except TypeError as error:
            raise DefinitionError(
                f"operator {operator.__name__}: {method} must be callable as "
                f"{method}(self, {', '.join(names)}): {error}"
            ) from error
    vector_columns(operator)
    operator.timer_columns()


_TYPES = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.date: pa.date32(),
}


def vector_columns(operator: type[VectorOperator]) -> tuple[ColumnSpec, ...]:
    """The operator's state variables as columns."""
    columns = []
    for spec in operator.__bedload_specs__:
        node = spec.type.item if isinstance(spec.type, OptionalNode) else spec.type
        kind = _TYPES.get(node.py) if isinstance(node, ScalarNode) else None
        if kind is None:
            raise StateTypeError(
                f"operator {operator.__name__}: state variable {spec.name!r} is not a bool, int, float, str, "
                f"bytes or date. A VectorOperator keeps one array per variable; use bl.Operator for other types"
            )
        columns.append(ColumnSpec(spec.name, kind, spec.default))
    return tuple(columns)


class VectorLogic:
    """A vector operator, as what runs on columns."""

    def __init__(
        self, operator: type[VectorOperator], output: pa.Schema, parameters: Values = MappingProxyType({})
    ) -> None:
        self._operator = operator
        self._output = output
        self._parameters = parameters

    @cached_property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """The state columns: the operator's own, then those of its timers and of what expires."""
        return (*self._own, *(timer.spec for timer in self.timers), *(it.spec for it in self.lives))

    @cached_property
    def timers(self) -> tuple[TimerColumn, ...]:
        """The timers of each key."""
        return self._operator.timer_columns()

    @cached_property
    def lives(self) -> tuple[VariableTtl, ...]:
        """Which variables expire."""
        return VariableTtl.of_variables(self._operator.__bedload_specs__)

    @cached_property
    def _own(self) -> tuple[ColumnSpec, ...]:
        return vector_columns(self._operator)

    @cached_property
    def _user(self) -> VectorOperator:
        return make_holder(self._operator, self._parameters)

    def __reduce__(self) -> tuple[Any, ...]:
        return VectorLogic, (self._operator, self._output, dict(self._parameters))

    def setup(self, ctx: BatchContext) -> None:
        """The operator's own."""
        self._user.setup(ctx)

    def close(self) -> None:
        """The operator's own."""
        self._user.close()

    def update(
        self, table: ColumnTable, slots: Slots, batch: pa.RecordBatch, ctx: BatchContext
    ) -> pa.RecordBatch | None:
        """Gather the state of the batch's distinct keys, call ``process``, scatter what it returns."""
        met, index = distinct(slots)
        view = VectorBatch(batch, index.astype(np.int64), table.keys(met))
        return self._taking("process", table, met, ctx, lambda state: self._user.process(view, state, ctx))

    def fire(self, table: ColumnTable, slots: Slots, timer: BatchTimer, ctx: BatchContext) -> pa.RecordBatch | None:
        """Call ``on_timer`` for these keys, and scatter what it returns."""
        keys = _as_one(table.keys(slots))
        return self._taking("on_timer", table, slots, ctx, lambda state: self._user.on_timer(keys, timer, state, ctx))

    def _taking(
        self, method: str, table: ColumnTable, slots: Slots, ctx: BatchContext, call: Callable[[State], Any]
    ) -> pa.RecordBatch | None:
        before = self._gather(table, slots)
        given = dict(before)
        for it in self.lives:
            it.handed_out(table, slots, ctx._epoch_time("now"))
        with ctx._keys.about(table, slots, may_set=True):
            try:
                returned = call(given)
            except ValueError as error:
                if "read-only" in str(error):
                    error.add_note(_RETURN_IT)
                raise
            state, outputs = returned if isinstance(returned, tuple) else (returned, None)
            if state is not None:
                self._scatter(method, table, slots, state)
                for it in self.lives:
                    if it.variable in state:
                        it.written(table, slots, ctx._epoch_time("now"))
        assigned = (name for name, old in before.items() if given.get(name, old) is not old)
        lost = [name for name in assigned if name not in (state or ())]
        if lost:
            raise StateTypeError(
                f"{method} of operator {self._operator.__name__} assigned state[{lost[0]!r}] and did not return it. "
                f"{_RETURN_IT}"
            )
        return self._batch(outputs)

    def result(self, table: ColumnTable, slots: Slots, ctx: BatchContext) -> pa.RecordBatch | None:
        """The outputs for the keys that changed."""
        if self._operator.result is VectorOperator.result:
            return None
        with ctx._keys.about(table, slots, may_set=False):
            outputs = self._user.result(_as_one(table.keys(slots)), self._gather(table, slots), ctx)
        return self._batch(outputs)

    def _gather(self, table: ColumnTable, slots: Slots) -> State:
        state = {}
        for spec in self._own:
            values = table.values(spec.name)[slots]
            if pa.types.is_date(spec.type):
                values = values.astype("datetime64[D]")
            if spec.nullable:
                valid = table.valid(spec.name)[slots]
                if not valid.all():
                    # Numbers have no null of their own; what None turns into in dates is NaT.
                    if values.dtype.kind != "M":
                        values = values.astype(np.float64 if values.dtype.kind in "iuf" else object)
                    values[~valid] = np.nan if values.dtype.kind == "f" else None
            values.flags.writeable = False  # what is written into it would be lost
            state[spec.name] = values
        return state

    def _scatter(self, method: str, table: ColumnTable, slots: Slots, state: Any) -> None:
        if not isinstance(state, Mapping):
            raise StateTypeError(
                f"{method} of operator {self._operator.__name__} returned {type(state).__name__}; return a dict from "
                f"state variable to array, or a pair of that and outputs"
            )
        known = {spec.name: spec for spec in self._own}
        for name, values in state.items():
            spec = known.get(name)
            if spec is None:
                raise StateTypeError(
                    f"{method} of operator {self._operator.__name__} returned state {name!r}, which is not declared; "
                    f"there are: {', '.join(known)}"
                )
            array = self._state_array(name, values, spec.type)
            if array.null_count and not self._nullable[name]:
                at = array.is_null().index(True).as_py()
                key = tuple(column[0].as_py() for column in table.keys(slots[at : at + 1]))
                raise StateTypeError(
                    f"operator {self._operator.__name__}: state variable {name!r} ({spec.type}) of key "
                    f"{(key[0] if len(key) == 1 else key)!r}: null, or NaN, is no value of its type. Declare it as "
                    "X | None, or give it a value"
                )
            if len(array) != len(slots):
                raise StateTypeError(
                    f"{method} of operator {self._operator.__name__}: state column {name!r} has {len(array)} values "
                    f"for {len(slots)} keys"
                )
            table.write_column(slots, name, array)

    @cached_property
    def _nullable(self) -> dict[str, bool]:
        return {spec.name: isinstance(spec.type, OptionalNode) for spec in self._operator.__bedload_specs__}

    def _state_array(self, name: str, values: Any, kind: pa.DataType) -> pa.Array:
        try:
            array = _as_array(values)
            if array.type == kind:
                return array
            if not _becomes(array.type, kind):
                raise TypeError(f"the values are {array.type}")
            return array.cast(kind)
        except NOT_FITTING as problem:
            raise StateTypeError(
                f"operator {self._operator.__name__}: column {name!r} does not fit {kind}: {problem}"
            ) from problem

    def _output_array(self, field: pa.Field, values: Any) -> pa.Array:
        array = None
        try:
            array = _as_array(values)
            made = recast(array, field.type)
        except NOT_FITTING as problem:
            found = (misfit(value, field) for value in (array.to_pylist() if array is not None else ()))
            raise self._misfit(field, next((why for why in found if why), str(problem))) from problem
        if made.null_count and not field.nullable:
            raise self._misfit(field, "there is null, or NaN, but the column is declared NOT NULL")
        return made

    def _misfit(self, field: pa.Field, why: str) -> OutputError:
        name = self._operator.__name__
        return OutputError(
            f"operator {name}: output column {field.name!r} does not fit the schema: {why}",
            operator=name,
            column=field.name,
        )

    def _batch(self, outputs: Any) -> pa.RecordBatch | None:
        if outputs is None:
            return None
        if isinstance(outputs, pa.RecordBatch):
            outputs = {name: outputs.column(i) for i, name in enumerate(outputs.schema.names)}
        if not isinstance(outputs, Mapping) or set(outputs) != set(self._output.names):
            given = sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
            raise OutputError(
                f"operator {self._operator.__name__}: outputs must be a dict with the columns "
                f"{', '.join(self._output.names)}, not {given}"
            )
        arrays = [self._output_array(field, outputs[field.name]) for field in self._output]
        if len({len(array) for array in arrays}) > 1:
            lengths = ", ".join(f"{n}: {len(a)}" for n, a in zip(self._output.names, arrays, strict=True))
            raise OutputError(f"operator {self._operator.__name__}: output columns differ in length ({lengths})")
        if not len(arrays[0]):
            return None
        return pa.RecordBatch.from_arrays(arrays, schema=self._output)


def _as_one(keys: list[pa.Array]) -> Any:
    """The keys as users get them: an array, or one for each key column."""
    return keys[0] if len(keys) == 1 else keys


def _as_array(values: Any) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    return values if isinstance(values, pa.Array) else pa.array(values, from_pandas=True)


def _becomes(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether state of one type may be made of another. Arrow would make a text of a number, too."""
    if pa.types.is_boolean(given) and pa.types.is_integer(kind):
        return True
    return _family(given) in ("null", _family(kind))


def _family(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "bytes"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "date"
    return str(kind)


__all__ = ["VectorLogic", "VectorOperator", "check_vector_operator", "vector_columns"]
