"""The shape of an operator's state as the checkpoint knows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from bedload.checkpoint.parquet_types import stored_type
from bedload.checkpoint.records import OperatorSchema, Variable, pack_schema
from bedload.checkpoint.shapes import default_of, pack_value, shape_of
from bedload.core.errors import StateTypeError
from bedload.core.ids import OperatorName
from bedload.state import StateSpec
from bedload.worker.runtime import Startable


def state_schema(
    deployment: Startable,
    key_names: Sequence[str],
    key_types: Sequence[pa.DataType],
    key_groups: int,
    specs: Sequence[StateSpec] = (),
) -> OperatorSchema:
    """The schema of a deployment's state, without a number; ``specs`` are its declarations, if there are some.

    Raises :class:`StateTypeError` for what cannot be stored.
    """
    keys = pa.schema([pa.field(name, kind) for name, kind in zip(key_names, key_types, strict=True)])
    for column in keys:
        _check_storable(deployment.name, f"key column {column.name!r}", column.type)
    return OperatorSchema(
        number=0,
        layout=deployment.layout,
        key_names=tuple(key_names),
        key_types=pack_schema(keys),
        key_groups=key_groups,
        variables=tuple(_variables(deployment, {spec.name: spec for spec in specs})),
        together=getattr(_logic(deployment), "needs", {}),
    )


def _variables(deployment: Startable, specs: Mapping[str, StateSpec]) -> Iterator[Variable]:
    columns = {column.name: column for column in getattr(deployment, "state_columns", ())}
    for name, kind, text, field in deployment.variables:
        _check_storable(deployment.name, f"state variable {name!r} ({text})", field.type)
        spec = specs.get(name)
        made = Variable(
            name=name,
            type=text,
            arrow=pack_schema(pa.schema([field])),
            kind=kind,
            renamed_from=None if spec is None else spec.renamed_from,
        )
        if name in columns:
            yield msgspec.structs.replace(made, default=pack_value(columns[name].initial, field.type))
        elif spec is not None:
            yield msgspec.structs.replace(made, default=default_of(spec), shape=shape_of(spec.type))
        else:
            yield made


def _logic(deployment: Startable) -> Any:
    """What runs on columns, if it does; looked up, as its module brings compiled code along."""
    return getattr(deployment, "logic", None)


def _check_storable(operator: OperatorName, what: str, kind: pa.DataType) -> None:
    try:
        stored_type(kind)
    except StateTypeError as bad:
        raise StateTypeError(f"operator {operator}, {what}: {bad.message}", operator=operator) from None
