"""How keys look to a processor: where they have timestamps, Spark gives them in several ways.

With rows they are aware, in the session's zone, or in the pandas form naive ``Timestamp`` in it. With timers they are
naive ``datetime``: in the zone of the worker, or in the pandas form in the session's. All other keys are themselves.

SUBTLE: pandas has its own zones, which know no summer time after 2037. As it makes the keys that come with rows, it
makes those that come with timers, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from bedload.spark.drop_in.key_parts import KeyPart, whole
from bedload.spark.drop_in.rows import PandasForm
from bedload.worker.rows import values


def with_rows(column: pa.Array, form: PandasForm | None) -> list[Any]:
    """A column of the key as ``handleInputRows`` gets it."""
    if form is None or not (pa.types.is_timestamp(column.type) or pa.types.is_struct(column.type)):
        return values(column)
    if pa.types.is_struct(column.type):
        from pyspark.sql.conversion import ArrowBatchTransformer

        (made,) = ArrowBatchTransformer.to_pandas(pa.record_batch([column], ["key"]), timezone=form.time_zone)
        return list(made)
    return [None if it is None else _naive(it, form.time_zone) for it in values(column)]


def _naive(moment: Any, zone: str) -> Any:
    """A moment as a naive ``Timestamp`` in a zone."""
    import pandas as pd  # type: ignore[import-untyped]

    made = pd.Timestamp(moment)
    return made if made.tzinfo is None else made.tz_convert(zone).tz_localize(None)


def with_timers(
    types: Sequence[pa.DataType], form: PandasForm | None, parts: Sequence[KeyPart] = ()
) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """What makes a key as ``handleExpiredTimer`` gets it."""
    joined = whole(parts) if parts else _as_it_is
    moments = frozenset(at for at, it in enumerate(types) if pa.types.is_timestamp(it) and it.tz is not None)
    if not moments:
        return joined

    def naive(moment: Any) -> Any:
        if form is None:
            return moment.astimezone().replace(tzinfo=None)
        return _naive(moment, form.time_zone).to_pydatetime()

    def converted(key: tuple[Any, ...]) -> tuple[Any, ...]:
        return joined(tuple(naive(it) if at in moments and it is not None else it for at, it in enumerate(key)))

    return converted


def _as_it_is(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return key
