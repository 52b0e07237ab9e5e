"""The code of an operator as the testing kit runs it: on rows or on columns, with its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from bedload.core.ids import OperatorName
from bedload.state import codec
from bedload.testing.input import InputFormat
from bedload.worker.operator import Operator, OperatorMeta, check_operator, state_of
from bedload.worker.parameters import parts_of
from bedload.worker.row_runtime import Deployment
from bedload.worker.runtime import Startable

if TYPE_CHECKING:
    from bedload.worker.vector import VectorOperator

AnyOperator: TypeAlias = "type[Operator] | type[VectorOperator] | Operator | VectorOperator"
"""An operator's class, or one with parameters."""


class Code:
    """An operator that can be applied; raises why it cannot."""

    def __init__(self, operator: AnyOperator, output: pa.Schema) -> None:
        self._operator, self._parameters = parts_of(operator)
        self._output = output
        self._columns = isinstance(self._operator, OperatorMeta) and not issubclass(self._operator, Operator)
        if self._columns:
            from bedload.worker.vector import check_vector_operator  # brings compiled code along

            check_vector_operator(self._operator)
        else:
            codec.arrow_schema(state_of(check_operator(self._operator)))

    @property
    def name(self) -> OperatorName:
        """The name of its class."""
        return OperatorName(self._operator.__name__)

    def deployment(self, form: InputFormat) -> Startable:
        """What a worker starts, for input of this form."""
        if self._columns:
            from bedload.worker.column_runtime import ColumnDeployment
            from bedload.worker.vector import VectorLogic

            logic = VectorLogic(self._operator, self._output, self._parameters)
            return ColumnDeployment(self.name, logic, form.key, form.key_types, form.key_groups)
        return Deployment(
            self.name, self._operator, form.key, form.columns, self._output, form.key_types, parameters=self._parameters
        )
