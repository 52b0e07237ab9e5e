"""From the arguments of ``cluster.apply`` and ``cluster.aggregate`` to an application; raises what is wrong with them.

Nothing is shipped here: see :mod:`bedload.spark.deployments`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from bedload.checkpoint.heritage import Terms
from bedload.core.errors import DefinitionError, SchemaError
from bedload.operators.aggregates import Aggregates, Function
from bedload.operators.aggregates.functions import check_functions
from bedload.spark.application import Application, Keyed, check_watermark
from bedload.spark.bootstrap import InitialState, aggregate_aliases
from bedload.spark.bootstrap_task import Start, starts_of_columns, starts_of_rows
from bedload.spark.schemas import arrow_schema, output_schema
from bedload.spark.state_view import RowDecoder
from bedload.state.expiries import with_expiries
from bedload.state.kinds import IN_MEMORY, Chosen, Store
from bedload.state.ttl import Ttl
from bedload.store.columns import ColumnSpec
from bedload.worker.expiry import KeyTtl
from bedload.worker.operator import Operator, check_operator, state_of
from bedload.worker.parameters import parameters_of, parts_of, texts_of
from bedload.worker.row_runtime import Deployment
from bedload.worker.vector import VectorLogic, VectorOperator, check_vector_operator

AnyOperator: TypeAlias = type[Operator] | type[VectorOperator] | Operator | VectorOperator
"""An operator's class, or one with parameters."""


def of_operator(
    spark: SparkSession,
    keyed: Keyed,
    applied: AnyOperator,
    schema: str | StructType,
    initial_state: DataFrame | None,
    drop: str | Iterable[str] = (),
    ttl: Ttl | None = None,
    store: Chosen = IN_MEMORY,
    asked: Chosen = IN_MEMORY,
) -> Application:
    """An operator of the user's, on rows or on columns; ``ttl`` is that of whole keys.

    ``store``: where state is that can be there; ``asked``: where it has to be.
    """
    operator, values = parts_of(applied)
    out = output_schema(keyed.name, schema)
    arrow_out = arrow_schema(spark, out)
    if inspect.isclass(operator) and issubclass(operator, VectorOperator):
        check_vector_operator(operator)
        logic = VectorLogic(operator, arrow_out, values)
        place = store_of_columns(keyed.name, logic.columns, store, asked)
        initial = _initial(initial_state, _starts(logic, ttl))
        specs = with_expiries(operator.__bedload_specs__, ttl)
        made = Application.on_columns(keyed, logic, out, arrow_out, ttl, place, specs=specs, initial=initial)
    else:
        operator = check_operator(operator)
        specs = state_of(operator, ttl)
        columns = tuple(keyed.df.columns)
        deployment = Deployment(
            keyed.name,
            operator,
            keyed.at,
            columns,
            arrow_out,
            keyed.types,
            parameters=values,
            ttl=ttl,
            store=store.kind,
            store_url=store.url,
        )
        initial = _initial(initial_state, starts_of_rows(specs))
        made = Application(keyed, out, arrow_out, deployment, RowDecoder(specs), specs, initial=initial)
    fixed = frozenset(name for name, it in parameters_of(operator).items() if it.fixed)
    terms = Terms(texts_of(values), fixed, _dropped(made, drop))
    check_watermark(made)
    return replace(made, parameters=values, terms=terms, code=operator)


def of_aggregates(
    spark: SparkSession,
    keyed: Keyed,
    aggregates: Mapping[str, Function],
    initial_state: DataFrame | None,
    drop: str | Iterable[str] = (),
    ttl: Ttl | None = None,
    store: Chosen = IN_MEMORY,
    asked: Chosen = IN_MEMORY,
) -> Application:
    """Aggregates by key; columns that none of them reads are left out. ``store``, ``asked``: as of an operator."""
    name, df = keyed.name, keyed.df
    check_functions(aggregates)
    for column, function in aggregates.items():
        if unknown := [it for it in function.columns if it not in df.columns]:
            raise SchemaError(
                f"aggregate {column}={function}: the column {unknown[0]!r} is not in the input, which has: "
                f"{', '.join(df.columns)}"
            )
    used = [c for c in df.columns if c in keyed.names or any(c in f.columns for f in aggregates.values())]
    keyed = Keyed.of(spark, name, df.select(*(F.col(f"`{column}`") for column in used)), keyed.names, keyed.groups)
    columns = arrow_schema(spark, keyed.df.schema)
    logic = Aggregates(aggregates, columns, keyed.at, keyed.names)
    starts = _starts(logic, ttl)
    initial = _initial(initial_state, starts, aggregate_aliases(aggregates, columns))
    out, place = from_arrow_schema(logic.output), store_of_columns(name, logic.columns, store, asked)
    made = Application.on_columns(keyed, logic, out, logic.output, ttl, place, initial=initial)
    check_watermark(made)
    return replace(made, terms=Terms(drop=_dropped(made, drop), call="aggregate"))


def store_of_columns(name: str, columns: Iterable[ColumnSpec], store: Chosen, asked: Chosen) -> Store:
    """Where state in columns is; raises if it has to be where it cannot be."""
    if asked.kind is Store.REDIS:
        raise DefinitionError(
            f"operator {name}: store={str(asked)!r} is for operators on rows; vector operators and aggregates have "
            f"their state in columns, which are in memory or on disk: give it store='memory' or store='disk'"
        )
    objects = [spec.name for spec in columns if not spec.fixed]
    if objects and asked.kind is not Store.MEMORY:
        raise DefinitionError(
            f"operator {name}: store={str(asked)!r} is for numbers, times and decimals in columns. These are objects, "
            f"which are in memory: {', '.join(objects)}. Give it store='memory', or make it an Operator on rows"
        )
    return Store.DISK if store.kind is Store.DISK and not objects else Store.MEMORY


def _starts(logic: VectorLogic | Aggregates, ttl: Ttl | None) -> list[Start]:
    """What the state columns start with, that of the expiries of keys too."""
    lives = KeyTtl.on_columns(ttl)
    return starts_of_columns(logic.columns if lives is None else (*logic.columns, lives.spec))


def _dropped(applied: Application, drop: str | Iterable[str]) -> frozenset[str]:
    """The names of what the user drops; raises if it is there."""
    names = frozenset([drop] if isinstance(drop, str) or not isinstance(drop, Iterable) else drop)
    if not all(isinstance(name, str) for name in names):
        raise DefinitionError(f"operator {applied.name}: drop={drop!r}: give the names of state variables")
    if both := sorted(names & applied.decoder.variables.keys()):
        raise DefinitionError(
            f"operator {applied.name}: drop names {', '.join(both)}, which it has as a state variable. Leave it out of "
            f"drop, or out of the operator"
        )
    return names


def _initial(
    df: DataFrame | None, starts: list[Start], aliases: Mapping[str, str] | None = None
) -> InitialState | None:
    if df is not None and not isinstance(df, DataFrame):
        raise DefinitionError(f"initial_state={df!r:.100} is not a DataFrame; read one with spark.read")
    return None if df is None else InitialState(df, starts, aliases or {})
