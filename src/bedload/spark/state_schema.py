"""The shape of an operator's state as the checkpoint knows it, and whether stored state fits the operator of now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from bedload.checkpoint.evolution import differences, other_key, refuse, same_key
from bedload.checkpoint.parquet_types import stored_type
from bedload.checkpoint.records import OperatorSchema, Variable, pack_schema
from bedload.checkpoint.shapes import default_of, pack_value, shape_of
from bedload.core.errors import KeyGroupsChanged, StateTypeError
from bedload.core.ids import OperatorName
from bedload.operators.aggregates import Aggregates
from bedload.state import StateSpec
from bedload.worker.column_runtime import ColumnDeployment
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
    logic = deployment.logic if isinstance(deployment, ColumnDeployment) else None
    return OperatorSchema(
        number=0,
        layout=deployment.layout,
        key_names=tuple(key_names),
        key_types=pack_schema(keys),
        key_groups=key_groups,
        variables=tuple(_variables(deployment, {spec.name: spec for spec in specs})),
        together=logic.needs if isinstance(logic, Aggregates) else {},
    )


def _variables(deployment: Startable, specs: Mapping[str, StateSpec]) -> Iterator[Variable]:
    logic = deployment.logic if isinstance(deployment, ColumnDeployment) else None
    columns = {} if logic is None else {column.name: column for column in logic.columns}
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


def _check_storable(operator: OperatorName, what: str, kind: pa.DataType) -> None:
    try:
        stored_type(kind)
    except StateTypeError as bad:
        raise StateTypeError(f"operator {operator}, {what}: {bad.message}", operator=operator) from None


def check_stored(name: OperatorName, stored: OperatorSchema, wanted: OperatorSchema) -> None:
    """Refuse an operator that the stored state cannot become."""
    same = same_key(stored.keys, wanted.keys)
    if stored.key_groups != wanted.key_groups and same:
        raise KeyGroupsChanged(
            f"operator {name} has state in {stored.key_groups} key groups, but {wanted.key_groups} were asked for. The "
            f"number is fixed when the state is created: use key_groups={stored.key_groups}, or give the state up with "
            f"fresh=True",
            operator=name,
        )
    found = differences(stored, wanted)
    # State of a renamed column is read, as older checkpoints have some; but that a column has another name, or that
    # two have changed places, looks just like another key.
    if not same and (renamed := other_key(stored.keys, wanted.keys)) not in found:
        found.insert(0, f"{renamed}; if the column was only renamed, give it its old name before (withColumnRenamed)")
    refuse(name, found)
