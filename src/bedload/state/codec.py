"""State variables as Arrow record batches: one row per key, one typed column per variable.

Invariants: ``decode(specs, encode(specs, rows)) == rows``; the schema follows from the specs alone and
not from the values; a value of another type than declared is an error that names the variable, the
key if it is known, and the value. What Arrow type a Python type has is in :mod:`bedload.state.arrow`.

A column that is not in a batch is left out of the decoded rows, so that a variable which is new in
the operator gets its default; columns that no spec names are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from bedload.core.errors import StateTypeError
from bedload.state.arrow import arrow_type, decoded_column, encoder
from bedload.state.encoded import encoded_column
from bedload.state.specs import StateSpec


def arrow_schema(specs: Sequence[StateSpec]) -> pa.Schema:
    """The schema of a batch; each field says in its metadata how the variable was declared."""
    return pa.schema([_field(spec) for spec in specs])


def encode(
    specs: Sequence[StateSpec], rows: Sequence[Mapping[str, Any]], keys: Sequence[Any] | None = None
) -> pa.RecordBatch:
    """A batch of plain values; ``keys``, if given, are named in errors."""
    columns = [_column(spec, rows, keys) for spec in specs]
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(specs))


def decode(specs: Sequence[StateSpec], batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The plain values of a batch."""
    rows: list[dict[str, Any]] = [{} for _ in range(batch.num_rows)]
    stored = set(batch.schema.names)
    for spec in specs:
        if spec.name not in stored:
            continue
        column = batch.column(spec.name)
        if not column.type.equals(arrow_type(spec.type)):
            raise StateTypeError(
                f"state variable {spec.name!r} is stored as {column.type}, but {spec.type} is declared; "
                "declare the type that it was stored with"
            )
        try:
            values = decoded_column(spec.type, column)
        except StateTypeError as bad:
            raise StateTypeError(f"state variable {spec.name!r}: {bad.message}") from None
        for row, value in zip(rows, values, strict=True):
            row[spec.name] = value
    return rows


def check_value(spec: StateSpec, value: Any, key: Any = None) -> None:
    """Refuse a plain value that cannot be encoded as declared."""
    try:
        encoder(spec.type)(value)
    except StateTypeError as bad:
        raise _refused(spec, key, bad) from None


def _field(spec: StateSpec) -> pa.Field:
    metadata = {"bedload.type": str(spec.type)}
    if spec.codec is not None:
        metadata["bedload.codec"] = spec.codec
    return pa.field(spec.name, arrow_type(spec.type), metadata=metadata)


def _column(spec: StateSpec, rows: Sequence[Mapping[str, Any]], keys: Sequence[Any] | None) -> pa.Array:
    try:
        return encoded_column(spec.type, [row[spec.name] for row in rows])
    except (StateTypeError, KeyError, ValueError, TypeError, OverflowError, pa.ArrowException) as bad:
        # The fast way does not know the row: go through them one by one to name it.
        for i, row in enumerate(rows):
            key = None if keys is None else keys[i]
            if spec.name not in row:
                raise _refused(spec, key, StateTypeError("no value; give every variable one")) from None
            check_value(spec, row[spec.name], key)
            try:
                pa.array([encoder(spec.type)(row[spec.name])], arrow_type(spec.type))
            except (ValueError, TypeError, OverflowError, pa.ArrowException) as refused:
                text = f"Arrow cannot store it ({refused}): {row[spec.name]!r:.200}"
                if isinstance(refused, OverflowError):
                    text = f"an int in it does not fit 64 bits; keep it as Decimal or str: {row[spec.name]!r:.200}"
                raise _refused(spec, key, StateTypeError(text)) from None
        raise StateTypeError(f"state variable {spec.name!r} ({spec.type}): {bad}") from bad


def _refused(spec: StateSpec, key: Any, bad: StateTypeError) -> StateTypeError:
    of_key = "" if key is None else f" of key {key!r} ({type(key).__name__})"
    return StateTypeError(f"state variable {spec.name!r} ({spec.type}){of_key}: {bad.message}")
