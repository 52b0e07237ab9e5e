"""Aggregates over the rows of each key, as ``bl.agg``.

::

    cluster.aggregate(cars, key="car", n=bl.agg.count(), mean=bl.agg.mean("speed"), top=bl.agg.max("speed"))

A function describes (:mod:`.functions`), planning turns it into parts of state and a result (:mod:`.planning`,
:mod:`.parts`, :mod:`.picks`, :mod:`.sketches`, :mod:`.heavy_hitters`, :mod:`.reducing`, :mod:`.results`), and
:class:`Aggregates` runs them on columns.
"""

from bedload.operators.aggregates.functions import (
    Function,
    all,  # noqa: A004 - named as in Spark, used as bl.agg.all
    any,  # noqa: A004
    approx_distinct,
    approx_quantile,
    approx_top_k,
    arg_max,
    arg_min,
    collect_list,
    collect_set,
    count,
    first,
    last,
    max,  # noqa: A004
    mean,
    min,  # noqa: A004
    reduce,
    std,
    std_pop,
    sum,  # noqa: A004
    var,
    var_pop,
)
from bedload.operators.aggregates.logic import Aggregates

__all__ = [
    "Aggregates",
    "Function",
    "all",
    "any",
    "approx_distinct",
    "approx_quantile",
    "approx_top_k",
    "arg_max",
    "arg_min",
    "collect_list",
    "collect_set",
    "count",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "reduce",
    "std",
    "std_pop",
    "sum",
    "var",
    "var_pop",
]
