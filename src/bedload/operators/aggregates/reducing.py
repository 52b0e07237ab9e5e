"""Reducers that users write: scalar functions, compiled with Numba into a loop over the rows of a batch.

Compiled once where the query is defined, to check the functions and to learn the type of the result, and once at each
worker: compiled code is not shipped.

Invariant: what a function returns fits the state without loss. Numba would store 1.5 in an integer as 1, silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import DefinitionError
from bedload.operators.aggregates.batch import Batch
from bedload.operators.aggregates.carriers import carrier
from bedload.operators.aggregates.parts import Part, State
from bedload.store.columns import ColumnSpec
from bedload.store.columns.compiling import read_only
from bedload.store.columns.index import Slots

_NUMBA = {pa.bool_(): "boolean", pa.int64(): "int64", pa.float64(): "float64"}
"""The name of each type in Numba, which is loaded when there is something to compile."""


def _numba() -> Any:
    import numba

    return numba


def _numba_type(kind: pa.DataType) -> Any:
    return getattr(_numba(), _NUMBA[kind])


@dataclass(frozen=True)
class Reduced(Part):
    """The state of one reducer."""

    name: str
    """Of the aggregate: functions have no meaning that could be compared, so reducers share nothing."""
    inputs: tuple[int, ...]
    """The positions of the columns."""
    kinds: tuple[pa.DataType, ...]
    init: Any
    update_one: Callable[..., Any]
    merge_two: Callable[[Any, Any], Any] | None
    result_of: Callable[[Any], Any] | None
    _compiled: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": {}}

    @property
    def mergeable(self) -> bool:  # type: ignore[override] # of this one, not of all
        """Whether the user said how."""
        return self.merge_two is not None

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """One for each number of the state."""
        name = f"reduce({self.name})"
        if not isinstance(self.init, tuple):
            return (ColumnSpec(name, _arrow(self.init), self.init),)
        return tuple(ColumnSpec(f"{name}.{i}", _arrow(x), x) for i, x in enumerate(self.init))

    def update(self, state: State, batch: Batch) -> None:
        """Run the user's update for each row without nulls."""
        counts = batch.everything
        for at in self.inputs:
            if batch.column(at).null_count:
                counts = counts & batch.valid(at)
        values = [batch.numbers(at, carrier(kind).to_pandas_dtype()) for at, kind in self._arguments()]
        self._loop("update")(batch.slots, read_only(counts, np.bool_), *self._held(state), *values)

    def merge(self, state: State, batch: Batch, where: Mapping[str, int]) -> None:
        """Run the user's merge for each state."""
        theirs = [batch.numbers(where[spec.name], spec.dtype.type) for spec in self.columns]
        self._loop("merge")(batch.slots, batch.everything, *self._held(state), *theirs)

    def read(self, state: State, slots: Slots) -> pa.Array:
        """The results in these slots."""
        held = self._held(state)
        if self.result_of is None:
            return pa.array(held[0][slots])
        made = np.empty(len(slots), self.result_type().to_pandas_dtype())
        self._loop("result")(slots, made, *held)
        return pa.array(made)

    def result_type(self) -> pa.DataType:
        """The type of the result, after checking that all functions compile and fit the state."""
        if "type" not in self._compiled:
            self._compiled["type"] = self._check()
        return self._compiled["type"]

    def _check(self) -> pa.DataType:
        state = [_numba_type(spec.type) for spec in self.columns]
        whole = _numba().types.Tuple(state) if isinstance(self.init, tuple) else state[0]
        values = [_numba_type(carrier(kind)) for kind in self.kinds]
        self._check_fit("update", self._returned("update", (whole, *values)))
        if self.merge_two is not None:
            self._check_fit("merge", self._returned("merge", (whole, whole)))
        if self.result_of is None:
            return self.columns[0].type
        returned = self._returned("result", (whole,))
        for kind in _NUMBA:
            if _fits(returned, kind):
                return kind
        raise DefinitionError(f"aggregate {self.name}: result returns {returned}; it must be a bool, an int or a float")

    def _check_fit(self, what: str, returned: Any) -> None:
        specs, several = self.columns, isinstance(returned, _numba().types.BaseTuple)
        parts = list(returned) if several else [returned]
        single = not isinstance(self.init, tuple)
        shape_fits = len(parts) == len(specs) and single != several
        if not shape_fits or not all(_fits(part, spec.type) for part, spec in zip(parts, specs, strict=True)):
            raise DefinitionError(
                f"aggregate {self.name}: {what} returns {returned}, but the state is {self.init!r}. Return what "
                f"init is; to hold fractions, make it a float (init=0.0)"
            )

    def _returned(self, what: str, arguments: tuple[Any, ...]) -> Any:
        from numba.core.errors import NumbaError

        function = self._function(what)
        try:
            function.compile(arguments)
        except NumbaError as error:
            raise DefinitionError(
                f"aggregate {self.name}: Numba cannot compile {what}{arguments}: {error}\n"
                f"Use numbers, math and NumPy functions only, or write an Operator in plain Python"
            ) from error
        return function.overloads[arguments].signature.return_type

    def _function(self, what: str) -> Any:
        if what not in self._compiled:
            plain: Any = {"update": self.update_one, "merge": self.merge_two, "result": self.result_of}[what]
            self._compiled[what] = _numba().njit(getattr(plain, "py_func", plain))
        return self._compiled[what]

    def _loop(self, what: str) -> Any:
        loop = self._compiled.get(f"{what} loop")
        if loop is None:
            loop = self._compiled[f"{what} loop"] = self._make_loop(what)
        return loop

    def _make_loop(self, what: str) -> Any:
        # Numba cannot index a tuple of arrays of different types in a loop, so the arrays are arguments
        # by name, and the text of the function depends on how many there are.
        fields = range(len(self.columns))
        single = not isinstance(self.init, tuple)
        arrays = ", ".join(f"s{i}" for i in fields)
        state = _gathered("s", "j", fields, single)
        if what == "result":
            text = (
                f"def loop(slots, out, {arrays}):\n"
                f"    for i in range(slots.shape[0]):\n"
                f"        j = slots[i]\n"
                f"        out[i] = function({state})\n"
            )
        else:
            if what == "update":
                given = range(len(self.inputs))
                values = ", ".join(f"x{i}[i]" for i in given)
            else:
                given = fields
                values = _gathered("x", "i", fields, single)
            text = (
                f"def loop(slots, ok, {arrays}, {', '.join(f'x{i}' for i in given)}):\n"
                f"    for i in range(slots.shape[0]):\n"
                f"        if ok[i]:\n"
                f"            j = slots[i]\n"
                f"            new = function({state}, {values})\n"
            )
            text += "".join(f"            s{i}[j] = new{'' if single else f'[{i}]'}\n" for i in fields)
        made: dict[str, Any] = {"function": self._function(what)}
        exec(text, made)
        return _numba().njit(nogil=True)(made["loop"])

    def _arguments(self) -> list[tuple[int, pa.DataType]]:
        return list(zip(self.inputs, self.kinds, strict=True))

    def _held(self, state: State) -> list[npt.NDArray[Any]]:
        return [state.values(spec.name) for spec in self.columns]


def _gathered(array: str, index: str, fields: range, single: bool) -> str:
    parts = [f"{array}{i}[{index}]" for i in fields]
    return parts[0] if single else f"({', '.join(parts)},)"


def _arrow(initial: Any) -> pa.DataType:
    if isinstance(initial, bool):
        return pa.bool_()
    return pa.int64() if isinstance(initial, int) else pa.float64()


def _fits(found: Any, kind: pa.DataType) -> bool:
    types = _numba().types
    if isinstance(found, types.Literal):
        found = found.literal_type
    boolean = isinstance(found, types.Boolean)
    integer = isinstance(found, types.Integer)
    if pa.types.is_boolean(kind):
        return boolean
    if pa.types.is_integer(kind):
        return boolean or (integer and (found.signed or found.bitwidth < 64))
    return boolean or integer or isinstance(found, types.Float)
