"""What is tested, as it is applied to an input: the deployment that workers run, as ``cluster.apply`` makes it.

What runs on columns is imported only if it is tested.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from bedload.core.durations import Duration
from bedload.core.ids import OperatorName
from bedload.protocol.combining import Combiner, Combining
from bedload.state import codec
from bedload.state.ttl import Clock, Ttl
from bedload.testing.input import Columns, InputFormat, as_schema
from bedload.worker.operator import Operator, check_operator, state_of
from bedload.worker.parameters import Values, parts_of
from bedload.worker.row_runtime import Deployment
from bedload.worker.runtime import Startable

if TYPE_CHECKING:
    from bedload.operators.aggregates import Function
    from bedload.worker.vector import VectorOperator

AnyOperator: TypeAlias = "type[Operator] | type[VectorOperator] | Operator | VectorOperator"
"""An operator's class, or one with parameters."""


@dataclass(frozen=True)
class Applied:
    """Code, applied to an input."""

    deployment: Startable
    output: pa.Schema
    form: InputFormat
    combiner: Combiner | None = None

    def combining(self) -> Combining:
        """What a feeder does to the rows before it sends them."""
        return Combining(self.combiner, self.form.key, self.form.key_groups)


@dataclass(frozen=True)
class Subject:
    """What is tested. ``apply`` needs the input's columns, which may not be known before the first rows."""

    name: OperatorName
    apply: Callable[[InputFormat], Applied]


def an_operator(
    given: AnyOperator, schema: Columns, ttl: Duration | None = None, clock: Clock | None = None
) -> Subject:
    """An operator of the user's, on rows or on columns."""
    operator, parameters = parts_of(given)
    lives = Ttl.of(ttl, clock)
    output = as_schema(schema, "schema")
    if inspect.isclass(operator) and not issubclass(operator, Operator):
        from bedload.worker.vector import VectorOperator

        if issubclass(operator, VectorOperator):
            return _on_arrays(operator, output, parameters, lives)
    checked = check_operator(operator)
    codec.arrow_schema(state_of(checked, lives))
    name = OperatorName(checked.__name__)

    def apply(form: InputFormat) -> Applied:
        if checked.grouped:  # its rows wait for the end of the epoch, and become one batch
            form.require(form.columns)
        deployment = Deployment(
            name, checked, form.key, form.columns, output, form.key_types, parameters=parameters, ttl=lives
        )
        return Applied(deployment, output, form)

    return Subject(name, apply)


def _on_arrays(
    operator: type[VectorOperator], output: pa.Schema, parameters: Values, ttl: Ttl | None = None
) -> Subject:
    from bedload.worker.vector import VectorLogic, check_vector_operator

    check_vector_operator(operator)
    name = OperatorName(operator.__name__)

    def apply(form: InputFormat) -> Applied:
        form.require(form.columns)
        return _on_columns(name, VectorLogic(operator, output, parameters), output, form, ttl)

    return Subject(name, apply)


def an_aggregate(functions: Mapping[str, Function], ttl: Duration | None = None, clock: Clock | None = None) -> Subject:
    """Aggregates by key."""
    from bedload.operators.aggregates import Aggregates
    from bedload.operators.aggregates.functions import check_functions

    check_functions(functions)
    lives = Ttl.of(ttl, clock)
    name = OperatorName("aggregate")

    def apply(form: InputFormat) -> Applied:
        form.require(column for function in functions.values() for column in function.columns)
        logic = Aggregates(functions, form.schema, form.key, form.names)
        return _on_columns(name, logic, logic.output, form, lives)

    return Subject(name, apply)


def _on_columns(
    name: OperatorName, logic: Any, output: pa.Schema, form: InputFormat, ttl: Ttl | None = None
) -> Applied:
    from bedload.worker.column_runtime import ColumnDeployment
    from bedload.worker.expiry import KeyTtl

    lives = KeyTtl.on_columns(ttl)
    deployment = ColumnDeployment(name, logic, form.key, form.key_types, form.key_groups, ttl=lives)
    combiner = logic if getattr(logic, "mergeable", False) else None
    return Applied(deployment, output, form, combiner)
