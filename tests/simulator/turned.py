"""The simulated operators with their variables declared the other way round: the same state, in another order."""

from __future__ import annotations

import copy
import types
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bedload.core.ids import OperatorName
from bedload.worker.column_runtime import ColumnDeployment
from bedload.worker.row_runtime import Deployment
from bedload.worker.runtime import Startable


def payload_of(name: OperatorName, *, turned: bool) -> bytes:
    """What is shipped of an operator: the name under which :func:`both_ways` has it."""
    return f"{name}, turned".encode() if turned else name.encode()


def both_ways(deployments: Mapping[OperatorName, Startable]) -> dict[str, Startable]:
    """The operators as they are, and with their variables in another order."""
    return {
        payload_of(n, turned=t).decode(): turn(it) if t else it for n, it in deployments.items() for t in (False, True)
    }


def turn(deployment: Startable) -> Startable:
    """The operator with its variables in another order."""
    if isinstance(deployment, Deployment):
        before = deployment.operator
        operator: Any = types.new_class(before.__name__, (before,))
        operator.__bedload_specs__ = before.__bedload_specs__[::-1]
        return replace(deployment, operator=operator)
    if not isinstance(deployment, ColumnDeployment):
        processor: Any = deployment  # pyspark: only who needs it waits
        declared = replace(processor.declared, variables=processor.declared.variables[::-1])
        turned: Startable = replace(processor, declared=declared)
        return turned
    logic: Any = copy.copy(deployment.logic)
    logic.columns = deployment.logic.columns[::-1]
    return replace(deployment, logic=logic)
