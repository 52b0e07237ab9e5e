"""From a function of columns to the parts that compute it and the column that comes out.

Everything that can be wrong with an aggregate is found here, where the query is defined: columns that are not there,
types that the function does not take. Types are those that Spark takes, without its implicit casts from strings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from bedload.core.errors import SchemaError
from bedload.operators.aggregates.carriers import (
    has_numbers,
    is_decimal,
    is_float,
    is_integer,
    is_wide,
    list_type,
    mean_type,
    sum_type,
)
from bedload.operators.aggregates.functions import Function
from bedload.operators.aggregates.heavy_hitters import FrequentItems, TopK, lg_size_for
from bedload.operators.aggregates.parts import Count, Extreme, Held, Logical, Moments, Rows, mean_sum_part, sum_part
from bedload.operators.aggregates.picks import Arg, Collected, First, Last, WideExtreme
from bedload.operators.aggregates.reducing import Reduced
from bedload.operators.aggregates.results import AsHeld, DecimalMean, DoubleMean, OwnResult, Result, Spread
from bedload.operators.aggregates.sketches import (
    DistinctCount,
    DistinctSketch,
    Quantiles,
    QuantileSketch,
    k_for,
    lg_k_for,
    library,
)


@dataclass(frozen=True)
class Column:
    """A column of the input."""

    name: str
    at: int
    kind: pa.DataType


@dataclass(frozen=True)
class Aggregate:
    """One output column and how it is computed."""

    function: Function
    field: pa.Field
    result: Result


def plan(name: str, function: Function, schema: pa.Schema) -> Aggregate:
    """The output column ``name``, computed from an input of this schema."""
    columns = [_column(name, function, column, schema) for column in function.columns]
    kind, result = _PLANNERS[function.name](name, function, columns)
    never_null = function.name in _NEVER_NULL
    return Aggregate(function, pa.field(name, kind, nullable=not never_null), result)


_Planned = tuple[pa.DataType, Result]
_NEVER_NULL = frozenset({"count", "collect_list", "collect_set", "approx_distinct", "approx_top_k", "reduce"})


def _column(name: str, function: Function, column: str, schema: pa.Schema) -> Column:
    where = schema.get_all_field_indices(column)
    if len(where) != 1:
        problem = "is not in the input" if not where else "is in the input more than once"
        raise SchemaError(
            f"aggregate {name}={function}: the column {column!r} {problem}, which has: {', '.join(schema.names)}",
            column=column,
        )
    return Column(column, where[0], schema.field(where[0]).type)


def _refuse(name: str, function: Function, column: Column, wanted: str) -> SchemaError:
    return SchemaError(
        f"aggregate {name}={function}: the column {column.name!r} is a {column.kind}, but it must be {wanted}. Cast it "
        f"before aggregating: df.withColumn({column.name!r}, F.col({column.name!r}).cast(...))",
        column=column.name,
        type=str(column.kind),
    )


def _check_number(name: str, function: Function, column: Column) -> None:
    if not (is_integer(column.kind) or is_float(column.kind) or is_decimal(column.kind)):
        raise _refuse(name, function, column, "a number")


def _check_order(name: str, function: Function, column: Column) -> None:
    if not (has_numbers(column.kind) or is_wide(column.kind)):
        raise _refuse(name, function, column, "a boolean, a number, a string, binary, a date, a time or a decimal")


def _count(name: str, function: Function, columns: list[Column]) -> _Planned:
    part: Held = Count(columns[0].name, columns[0].at) if columns else Rows()
    return pa.int64(), AsHeld(part, pa.int64())


def _sum(name: str, function: Function, columns: list[Column]) -> _Planned:
    (x,) = columns
    _check_number(name, function, x)
    return sum_type(x.kind), AsHeld(sum_part(x.name, x.at, x.kind), sum_type(x.kind))


def _mean(name: str, function: Function, columns: list[Column]) -> _Planned:
    (x,) = columns
    _check_number(name, function, x)
    total, count = mean_sum_part(x.name, x.at, x.kind), Count(x.name, x.at)
    if is_decimal(x.kind):
        return mean_type(x.kind), DecimalMean(name, function, total, count, mean_type(x.kind))
    return pa.float64(), DoubleMean(total, count)


def _spread(sample: bool, root: bool) -> Callable[[str, Function, list[Column]], _Planned]:
    def planned(name: str, function: Function, columns: list[Column]) -> _Planned:
        (x,) = columns
        _check_number(name, function, x)
        return pa.float64(), Spread(Moments(x.name, x.at), sample, root)

    return planned


def _extreme(largest: bool) -> Callable[[str, Function, list[Column]], _Planned]:
    def planned(name: str, function: Function, columns: list[Column]) -> _Planned:
        (x,) = columns
        _check_order(name, function, x)
        part: Held
        if pa.types.is_boolean(x.kind):
            part = Logical(x.name, x.at, either=largest)  # true is larger than false
        elif has_numbers(x.kind):
            part = Extreme(x.name, x.at, x.kind, largest)
        else:
            part = WideExtreme(x.name, x.at, x.kind, largest)
        return x.kind, AsHeld(part, x.kind)

    return planned


def _logical(either: bool) -> Callable[[str, Function, list[Column]], _Planned]:
    def planned(name: str, function: Function, columns: list[Column]) -> _Planned:
        (x,) = columns
        if not pa.types.is_boolean(x.kind):
            raise _refuse(name, function, x, "a boolean")
        return x.kind, AsHeld(Logical(x.name, x.at, either), x.kind)

    return planned


def _first(name: str, function: Function, columns: list[Column]) -> _Planned:
    (x,) = columns
    return x.kind, AsHeld(First(x.name, x.at, x.kind, function.option("ignore_nulls")), x.kind)


def _last(name: str, function: Function, columns: list[Column]) -> _Planned:
    (x,) = columns
    return x.kind, AsHeld(Last(x.name, x.at, x.kind, function.option("ignore_nulls")), x.kind)


def _arg(largest: bool) -> Callable[[str, Function, list[Column]], _Planned]:
    def planned(name: str, function: Function, columns: list[Column]) -> _Planned:
        x, by = columns
        _check_order(name, function, by)
        return x.kind, AsHeld(Arg(x.name, x.at, x.kind, by.name, by.at, by.kind, largest), x.kind)

    return planned


def _collect(distinct: bool) -> Callable[[str, Function, list[Column]], _Planned]:
    def planned(name: str, function: Function, columns: list[Column]) -> _Planned:
        (x,) = columns
        if distinct:
            _check_order(name, function, x)
        part = Collected(x.name, x.at, x.kind, function.option("limit"), distinct)
        return list_type(x.kind), AsHeld(part, list_type(x.kind))

    return planned


def _approx_distinct(name: str, function: Function, columns: list[Column]) -> _Planned:
    (x,) = columns
    _check_order(name, function, x)
    library()
    return pa.int64(), DistinctCount(DistinctSketch(x.name, x.at, lg_k_for(function.option("rse"))))


def _approx_quantile(name: str, function: Function, columns: list[Column]) -> _Planned:
    (x,) = columns
    _check_number(name, function, x)
    part = QuantileSketch(x.name, x.at, k_for(function.option("rank_error")))
    q = function.option("q")
    several = isinstance(q, tuple)
    result = Quantiles(part, q if several else (q,), several)
    return result.kind, result


def _approx_top_k(name: str, function: Function, columns: list[Column]) -> _Planned:
    (x,) = columns
    types = pa.types
    if not (has_numbers(x.kind) or is_wide(x.kind)) or any(
        refused(x.kind) for refused in (types.is_binary, types.is_large_binary, types.is_duration)
    ):
        raise _refuse(name, function, x, "a boolean, a number, a string, a date, a time or a decimal")
    library()
    part = FrequentItems(x.name, x.at, lg_size_for(function.option("max_items_tracked")))
    result = TopK(part, function.option("k"), x.kind)
    return result.kind, result


def _reduce(name: str, function: Function, columns: list[Column]) -> _Planned:
    for column in columns:
        if not has_numbers(column.kind):
            raise _refuse(name, function, column, "a boolean, an integer, a float, a date or a timestamp")
    part = Reduced(
        name,
        tuple(column.at for column in columns),
        tuple(column.kind for column in columns),
        function.option("init"),
        function.option("update"),
        function.option("merge"),
        function.option("result"),
    )
    return part.result_type(), OwnResult(part)


_PLANNERS: dict[str, Callable[[str, Function, list[Column]], _Planned]] = {
    "count": _count,
    "sum": _sum,
    "mean": _mean,
    "min": _extreme(largest=False),
    "max": _extreme(largest=True),
    "var": _spread(sample=True, root=False),
    "std": _spread(sample=True, root=True),
    "var_pop": _spread(sample=False, root=False),
    "std_pop": _spread(sample=False, root=True),
    "first": _first,
    "last": _last,
    "any": _logical(either=True),
    "all": _logical(either=False),
    "arg_min": _arg(largest=False),
    "arg_max": _arg(largest=True),
    "collect_list": _collect(distinct=False),
    "collect_set": _collect(distinct=True),
    "approx_distinct": _approx_distinct,
    "approx_quantile": _approx_quantile,
    "approx_top_k": _approx_top_k,
    "reduce": _reduce,
}
