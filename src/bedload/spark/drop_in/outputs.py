"""What a processor yields, as columns of the output.

As on Spark: the fields of Rows are taken by name, what is missing is null and what is too much is ignored; values
become what Arrow makes of them for the type. DataFrames go through Spark's own conversion.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkValueError
from pyspark.sql.types import Row, StructType

from bedload.core.errors import OutputError
from bedload.spark.drop_in.rows import PandasForm


def rows_as_columns(operator: str, rows: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch | None:
    """Rows as a batch of the output's schema; None if there are none."""
    if not rows:
        return None
    columns = _by_place(rows, schema.names) or _by_name(rows, schema.names)
    arrays = []
    for column, field in zip(columns, schema, strict=True):
        try:
            arrays.append(_array(column, field.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise OutputError(
                f"operator {operator}: what the processor yields does not fit the column {field.name!r} of "
                f"outputStructType: {type(error).__name__}: {error}",
                operator=operator,
                column=field.name,
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _by_place(rows: Sequence[Any], names: Sequence[str]) -> list[Any] | None:
    """The columns of Rows that all have the same fields; None: they have not."""
    first = getattr(rows[0], "__fields__", None)
    if first is None or not all(isinstance(row, Row) and getattr(row, "__fields__", None) == first for row in rows):
        return None
    width = len(first)
    if set(map(len, rows)) != {width}:
        return None
    cells = list(chain.from_iterable(rows))  # to zip so many rows would make an iterator of each
    columns = {name: cells[at::width] for at, name in enumerate(first)}
    nothing = [None] * len(rows)
    return [columns.get(name, nothing) for name in names]


def _by_name(rows: Sequence[Any], names: Sequence[str]) -> list[Any]:
    dicts = [row.asDict() for row in rows]  # raises for what is no Row, as Spark does
    return [list(map(dict.get, dicts, repeat(name))) for name in names]


def _array(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_nested(kind):
        column = [_deep(value) for value in column]
    made = pa.array(column, _in_utc(kind))
    return made if made.type == kind else made.cast(kind)


def _deep(value: Any) -> Any:
    """Rows in a value as dicts."""
    if isinstance(value, Row):
        return value.asDict(True)
    if isinstance(value, list):
        return [_deep(item) for item in value]
    if isinstance(value, dict):
        return {key: _deep(item) for key, item in value.items()}
    return value


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """The same type, in which a naive time is one of UTC."""
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, "UTC")
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_in_utc(kind.key_type), _in_utc(kind.item_type))
    return kind


class Frames:
    """DataFrames, taken apart as they come: most are of one row, and thousands of them are slow to hold and to join.

    Those whose columns have the same types are converted together. They are copied, as a processor may go on with one.
    """

    def __init__(self, output: StructType, schema: pa.Schema, form: PandasForm) -> None:
        self._output = output
        self._schema = schema
        self._form = form
        self._places: dict[tuple[Any, ...], list[int]] = {}
        """By the labels of a DataFrame, which of its columns are those of the output."""
        self._types: tuple[Any, ...] = ()
        self._columns: list[list[Any]] = [[] for _ in output.names]
        self._done: list[pa.RecordBatch] = []

    def extend(self, frames: Iterable[Any]) -> None:
        """Take what a call yields."""
        import pandas as pd  # type: ignore[import-untyped]

        for frame in frames:
            if not isinstance(frame, pd.DataFrame):
                raise PySparkValueError(
                    "Invalid return type. Please make sure that the UDF returns a pandas.DataFrame when the specified "
                    "return type is StructType."
                )
            if not len(frame):
                continue
            labels = tuple(frame.columns)
            places = self._places.get(labels) or self._find(frame, labels)
            arrays = [frame._get_column_array(place).copy() for place in places]
            types = tuple([array.dtype for array in arrays])
            if types != self._types:
                self._convert()
                self._types = types
            for column, array in zip(self._columns, arrays, strict=True):
                column.append(array)

    def batch(self) -> pa.RecordBatch | None:
        """All of them as a batch of the output's schema; None if there is no row in them."""
        self._convert()
        if not self._done:
            return None
        (made,) = pa.Table.from_batches(self._done).combine_chunks().to_batches()
        return made

    def _find(self, frame: Any, labels: tuple[Any, ...]) -> list[int]:
        names = self._output.names
        if self._form.by_name and any(isinstance(label, str) for label in labels):
            frame[names]  # raises for what is not there, in pandas' words
            places = [labels.index(name) for name in names]
        else:
            frame.iloc[:, len(names) - 1]
            places = list(range(len(names)))
        self._places[labels] = places
        return places

    def _convert(self) -> None:
        """Convert what is held, all of it together."""
        if not self._columns[0]:
            return
        try:
            self._done.append(self._as_batch([_end_to_end(parts) for parts in self._columns]))
        except Exception:
            # A column of objects may hold text in one and numbers in another, and each of them fits.
            self._done.extend(map(self._as_batch, zip(*self._columns, strict=True)))
        self._columns = [[] for _ in self._columns]

    def _as_batch(self, columns: Iterable[Any]) -> pa.RecordBatch:
        import pandas as pd
        from pyspark.sql.conversion import PandasToArrowConversion

        form = self._form
        made = PandasToArrowConversion.convert(
            pd.DataFrame(dict(zip(self._output.names, columns, strict=True))),
            self._output,
            timezone=form.time_zone,
            safecheck=form.safe_check,
            arrow_cast=True,
            assign_cols_by_name=form.by_name,
            int_to_decimal_coercion_enabled=form.int_to_decimal,
        )
        arrays = [column.cast(field.type) for column, field in zip(made.columns, self._schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _end_to_end(parts: Sequence[Any]) -> Any:
    import pandas as pd

    if isinstance(parts[0].dtype, np.dtype) and isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return pd.concat([pd.Series(part) for part in parts], ignore_index=True).array
