"""What users call: ``bl.agg.mean("speed")`` and the like. Each call gives a frozen description and computes nothing.

Names, results and the treatment of nulls are Spark's, except where a function has no bound there: what is collected
here has a limit, because state that grows for ever is a fault that shows only in production.

Invariant: a description pickles, and is equal to another one if and only if it means the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bedload.core.errors import DefinitionError


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


def _checked_limit(name: str, limit: object) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise DefinitionError(f"bl.agg.{name}: limit={limit!r} must be a whole number from 1 up: it bounds the state")
    return limit
