"""What users call: ``bl.agg.mean("speed")`` and the like. Each call gives a frozen description and computes nothing.

Names, results and the treatment of nulls are Spark's, except where a function has no bound there: what is collected
here has a limit, because state that grows for ever is a fault that shows only in production.

Invariant: a description pickles, and is equal to another one if and only if it means the same.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bedload.core.errors import DefinitionError

MIN_RSE = 0.001
MIN_RANK_ERROR = 0.0001
MAX_TRACKED = 1_000_000
"""What the sketches can do at most; the last one is Spark's limit."""


@dataclass(frozen=True)
class Function:
    """An aggregate function of named columns; make one with the functions of this module."""

    name: str
    columns: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    def option(self, name: str) -> Any:
        """The value of an option."""
        return dict(self.options)[name]

    def __repr__(self) -> str:
        said = [repr(column) for column in self.columns]
        said += [f"{name}={getattr(value, '__name__', None) or repr(value)}" for name, value in self.options]
        return f"{self.name}({', '.join(said)})"


def _of(name: str, *columns: object, **options: Any) -> Function:
    for column in columns:
        if not isinstance(column, str) or not column:
            raise DefinitionError(
                f"bl.agg.{name}: {column!r} is not the name of a column. Compute expressions before aggregating "
                f"(df.withColumn) and name their column here"
            )
    return Function(name, tuple(str(column) for column in columns), tuple(options.items()))


def count(column: str | None = None) -> Function:
    """The number of rows, or of rows in which the column is not null: bigint, never null."""
    return _of("count") if column is None else _of("count", column)


def sum(column: str) -> Function:  # noqa: A001 - named as in Spark, used as bl.agg.sum
    """The sum of what is not null: bigint for integers, double for floats, ten digits more for decimals."""
    return _of("sum", column)


def mean(column: str) -> Function:
    """The mean of what is not null: double, or a decimal with four more digits."""
    return _of("mean", column)


def min(column: str) -> Function:  # noqa: A001
    """The smallest value; NaN is larger than any number."""
    return _of("min", column)


def max(column: str) -> Function:  # noqa: A001
    """The largest value; NaN is larger than any number."""
    return _of("max", column)


def var(column: str) -> Function:
    """The sample variance (Spark's ``var_samp``): null for a single row."""
    return _of("var", column)


def std(column: str) -> Function:
    """The sample standard deviation (Spark's ``stddev_samp``): null for a single row."""
    return _of("std", column)


def var_pop(column: str) -> Function:
    """The population variance."""
    return _of("var_pop", column)


def std_pop(column: str) -> Function:
    """The population standard deviation."""
    return _of("std_pop", column)


def first(column: str, *, ignore_nulls: bool = False) -> Function:
    """The value of the key's first row, or of its first row in which the value is not null."""
    return _of("first", column, ignore_nulls=bool(ignore_nulls))


def last(column: str, *, ignore_nulls: bool = False) -> Function:
    """The value of the key's last row, or of its last row in which the value is not null."""
    return _of("last", column, ignore_nulls=bool(ignore_nulls))


def any(column: str) -> Function:  # noqa: A001
    """Whether one of the values is true (Spark's ``bool_or``)."""
    return _of("any", column)


def all(column: str) -> Function:  # noqa: A001
    """Whether none of the values is false (Spark's ``bool_and``)."""
    return _of("all", column)


def arg_min(column: str, by: str) -> Function:
    """The value in the row in which ``by`` is smallest (Spark's ``min_by``); of several rows, the last one."""
    return _of("arg_min", column, by)


def arg_max(column: str, by: str) -> Function:
    """The value in the row in which ``by`` is largest (Spark's ``max_by``); of several rows, the last one."""
    return _of("arg_max", column, by)


def collect_list(column: str, limit: int) -> Function:
    """The key's first ``limit`` values that are not null, in order of arrival."""
    return _of("collect_list", column, limit=_checked_limit("collect_list", limit))


def collect_set(column: str, limit: int) -> Function:
    """The key's first ``limit`` different values that are not null, in order of arrival."""
    return _of("collect_set", column, limit=_checked_limit("collect_set", limit))


def approx_distinct(column: str, rse: float = 0.05) -> Function:
    """About how many different values there are (Spark's ``approx_count_distinct``): bigint, never null.

    ``rse`` is the relative standard error: two estimates of three are that close. It costs ``1 / rse**2`` bytes for a
    key with many values; one with a few is counted exactly, in a few bytes. Needs ``pip install bedload[sketches]``.
    """
    if not _is_number(rse) or not MIN_RSE <= rse < 1:
        raise DefinitionError(
            f"bl.agg.approx_distinct: rse={rse!r} must be a relative standard error from {MIN_RSE} up and below 1"
        )
    return _of("approx_distinct", column, rse=float(rse))


def approx_quantile(column: str, q: float | Sequence[float], *, rank_error: float = 0.01) -> Function:
    """About the value below or at which a share of the values is: double for one q, an array for a list of them.

    ``q`` is between 0 (the smallest value, exactly) and 1 (the largest). The rank of the answer is off by
    at most ``rank_error``, with 99 % confidence: with 0.01, the median is some value between the ranks 0.49 and 0.51.
    NaN is left out. Needs ``pip install bedload[sketches]``.
    """
    several = isinstance(q, Sequence) and not isinstance(q, str)
    ranks: tuple[Any, ...] = tuple(q) if isinstance(q, Sequence) and several else (q,)
    if not ranks or not builtins.all(_is_number(rank) and 0 <= rank <= 1 for rank in ranks):
        raise DefinitionError(
            f"bl.agg.approx_quantile: q={q!r} must be a number from 0 to 1, or a list of them: 0.5 is the median"
        )
    if not _is_number(rank_error) or not MIN_RANK_ERROR <= rank_error < 1:
        raise DefinitionError(
            f"bl.agg.approx_quantile: rank_error={rank_error!r} must be a share of the rows from {MIN_RANK_ERROR} up "
            f"and below 1"
        )
    floats = tuple(float(rank) for rank in ranks)
    return _of("approx_quantile", column, q=floats if several else floats[0], rank_error=float(rank_error))


def approx_top_k(column: str, k: int = 5, *, max_items_tracked: int = 256) -> Function:
    """About the ``k`` most frequent values, as an array of structs (item, count), the most frequent one first.

    A count is off by at most ``2.7 / max_items_tracked`` of the key's rows. A value that does not occur more often than
    the error is left out, so there may be fewer than ``k``. Needs ``pip install bedload[sketches]``.
    """
    if not _is_whole(k) or not _is_whole(max_items_tracked) or not 1 <= k <= max_items_tracked <= MAX_TRACKED:
        raise DefinitionError(
            f"bl.agg.approx_top_k: k={k!r} and max_items_tracked={max_items_tracked!r} must be whole numbers with "
            f"1 <= k <= max_items_tracked <= {MAX_TRACKED}"
        )
    return _of("approx_top_k", column, k=k, max_items_tracked=max_items_tracked)


def reduce(
    columns: str | Sequence[str],
    *,
    init: Any,
    update: Callable[..., Any],
    merge: Callable[[Any, Any], Any] | None = None,
    result: Callable[[Any], Any] | None = None,
) -> Function:
    """A reducer of your own, compiled with Numba.

    ::

        bl.agg.reduce("speed", init=0.0, update=lambda state, x: 0.9 * state + 0.1 * x)
        bl.agg.reduce(
            ["speed", "weight"],
            init=(0.0, 0.0),
            update=lambda state, x, w: (state[0] + x * w, state[1] + w),
            merge=lambda a, b: (a[0] + b[0], a[1] + b[1]),
            result=lambda state: state[0] / state[1],
        )

    The state is what ``init`` is: a bool, int or float, or a tuple of them. ``update`` takes it and the values of
    one row, and returns the new state; rows in which one of the columns is null are left out. ``merge`` joins two
    states: give it if the order of rows does not matter, so that feeders can aggregate ahead. ``result`` makes the
    output from the state; without it the state is the output.

    Columns are booleans, integers, floats, dates (in days) and timestamps (in microseconds).
    """
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not names:
        raise DefinitionError("bl.agg.reduce: name at least one column")
    for what, function in (("update", update), ("merge", merge), ("result", result)):
        if function is not None and not callable(function):
            raise DefinitionError(f"bl.agg.reduce: {what}={function!r} is not a function")
    fields = init if isinstance(init, tuple) else (init,)
    for field in fields:
        if not isinstance(field, (bool, int, float)):
            raise DefinitionError(
                f"bl.agg.reduce: init={init!r} must be a bool, an int or a float, or a tuple of them: "
                f"it says what the state is made of"
            )
    if not fields:
        raise DefinitionError("bl.agg.reduce: init=() has no state")
    if len(fields) > 1 and result is None:
        raise DefinitionError(
            "bl.agg.reduce: a state of several numbers needs a result function that makes one of them"
        )
    return _of("reduce", *names, init=init, update=update, merge=merge, result=result)


def check_functions(aggregates: Mapping[str, object]) -> None:
    """Raise a DefinitionError unless these are aggregates by name, and at least one."""
    if not aggregates:
        raise DefinitionError("aggregate without aggregates: name at least one, as in n=bl.agg.count()")
    for name, given in aggregates.items():
        if not isinstance(given, Function):
            meant = given if isinstance(given, str) else getattr(given, "__name__", None)
            shown = f"bl.agg.{meant}" if inspect.isfunction(given) and given.__module__ == __name__ else repr(given)
            raise DefinitionError(
                f"aggregate {name}={shown} is not one of bl.agg's functions, called: write {name}={_call(meant)}"
            )


def _call(name: str | None) -> str:
    """How a function is called; any of them, if there is none of that name."""
    made = None if name is None or name.startswith("_") else globals().get(name)
    if not inspect.isfunction(made) or inspect.signature(made).return_annotation != Function.__name__:
        return "bl.agg.count(), or another function of bl.agg with the name of a column, as in bl.agg.sum('column')"
    needed = [it for it in inspect.signature(made).parameters.values() if it.default is it.empty]
    said = [repr(it.name) if it.annotation == "str" else f"{it.name}=..." for it in needed]
    return f"bl.agg.{name}({', '.join(said)})"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_whole(value)


def _checked_limit(name: str, limit: object) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise DefinitionError(f"bl.agg.{name}: limit={limit!r} must be a whole number from 1 up: it bounds the state")
    return limit
