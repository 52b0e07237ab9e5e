"""The rows of an epoch at a worker, by key in ascending order, as a processor gets them.

They are made when somebody looks: a processor that never reads its rows pays for none. The first one that does has all
rows of the epoch made at once, column by column, which costs a fraction of doing it for each key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from bedload.spark.drop_in.named_rows import row_class
from bedload.worker.rows import SortedBatch


@dataclass(frozen=True)
class PandasForm:
    """How Spark is set up to exchange DataFrames with Python."""

    time_zone: str
    rows: int
    """At most so many in a DataFrame; none or fewer: there is no limit."""
    size: int = 1 << 62
    """A DataFrame ends with the row that has it as large as that, in bytes of Arrow."""
    safe_check: bool = True
    by_name: bool = True
    int_to_decimal: bool = False
    nullable: bool = False
    """Whole numbers that may be null stay whole: they are pandas' nullable integers."""
    columns: tuple[int, ...] = ()
    """The columns of the input that the processor gets, by position."""


def rows_as_rows(batch: pa.RecordBatch, names: Sequence[str], order: np.ndarray) -> Callable[[int, int], Iterator[Any]]:
    """Gives the rows from one place to another, in this order, as Rows."""
    held = SortedBatch(batch, tuple(names), row_class(names), order)

    def of_key(start: int, stop: int) -> Iterator[Any]:
        return iter(held.rows()[start:stop]) if held.made else lazily(start, stop)

    def lazily(start: int, stop: int) -> Iterator[Any]:
        yield from held.rows()[start:stop]

    return of_key


def rows_as_frames(
    batch: pa.RecordBatch, names: Sequence[str], order: np.ndarray, form: PandasForm
) -> Callable[[int, int], Iterator[Any]]:
    """The same as DataFrames."""
    made: list[Any] = []
    step = min(form.rows if form.rows > 0 else batch.num_rows + 1, _rows_of_size(batch, form))

    def of_key(start: int, stop: int) -> Iterator[Any]:
        if not made:
            made.extend(_frame(batch, names, order, form))
        cut, exact = made
        for at in range(start, stop, step):
            end = min(stop, at + step)
            part = cut(at, end)
            for place, found, valid in exact:
                if valid[at:end].all():
                    part.isetitem(place, found[at:end])
            yield part

    return of_key


def _rows_of_size(batch: pa.RecordBatch, form: PandasForm) -> int:
    """After how many rows a DataFrame is as large as it may be, by the mean of all rows, which Spark takes, too."""
    columns = [batch.column(at) for at in (form.columns or range(batch.num_columns))]
    size = sum(column.nbytes for column in columns)
    found: int = -(-form.size * batch.num_rows // max(1, size))
    return max(1, found)


def _frame(batch: pa.RecordBatch, names: Sequence[str], order: np.ndarray, form: PandasForm) -> tuple[Any, Any]:
    """What cuts frames out of all rows, and the columns in which nulls of some keys must not be seen in others."""
    import pandas as pd  # type: ignore[import-untyped]
    from pyspark.sql.conversion import ArrowBatchTransformer

    chosen = pa.RecordBatch.from_arrays(
        [batch.column(at) for at in form.columns], names=[names[at] for at in form.columns]
    ).take(pa.array(order))
    columns = ArrowBatchTransformer.to_pandas(chosen, timezone=form.time_zone, prefer_int_ext_dtype=form.nullable)
    series = [_widened(column) for column in columns]
    frame = pd.concat(series, axis=1)
    frame.columns = _labels([names[at] for at in form.columns], form.columns)
    return _cutter(frame), [
        (place, *_exact(column))
        for place, column in enumerate(chosen.columns)
        if column.null_count and (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type))
    ]


def _cutter(frame: Any) -> Callable[[int, int], Any]:
    """Gives the rows from one place to another as a frame of its own.

    SUBTLE: with what ``iloc`` is made of. It takes twice as long, and what it gives warns whoever changes it.
    """
    import pandas as pd

    manager, make = frame._mgr, pd.DataFrame._from_mgr
    _ = manager.blknos  # where the columns are: found once, and then copied

    def cut(start: int, stop: int) -> Any:
        part = manager.get_slice(slice(start, stop), axis=1)
        part.axes[1] = pd.RangeIndex(stop - start)
        return make(part, axes=part.axes)

    return cut


def _exact(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The values of a column as they are where it has no null, and where that is."""
    is_flag = pa.types.is_boolean(column.type)
    found = column.fill_null(False if is_flag else 0).to_numpy(zero_copy_only=False)
    return found if is_flag else found.astype(np.int64), column.is_valid().to_numpy(zero_copy_only=False)


def _widened(column: Any) -> Any:
    """A column of the types that a named tuple would leave: all integers are int64, all floats float64."""
    import pandas as pd

    kind = column.dtype
    if not isinstance(kind, np.dtype) and getattr(kind, "kind", "") in "iu":  # nullable integers
        return pd.Series(list(column), dtype=object) if column.hasnans else column.astype(np.int64)
    if isinstance(kind, np.dtype) and kind.kind in "iuf" and kind.itemsize < 8:
        return column.astype(np.float64 if kind.kind == "f" else np.int64)
    return column


def _labels(names: Sequence[str], places: Sequence[int]) -> list[str]:
    """The columns' names, as a named tuple would have them: each once, and none that is no identifier."""
    import keyword

    found: list[str] = []
    for name, at in zip(names, places, strict=True):
        is_good = name.isidentifier() and not keyword.iskeyword(name) and name[0] != "_" and name not in found
        found.append(name if is_good else f"_{at}")
    return found
