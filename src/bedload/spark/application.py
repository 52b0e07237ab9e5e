"""One application of an operator to a DataFrame: what is shipped, what is kept, and the plan that comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from bedload.checkpoint.heritage import NO_TERMS, Terms
from bedload.checkpoint.records import OperatorSchema
from bedload.core.errors import DefinitionError
from bedload.core.ids import DeploymentId, OperatorName
from bedload.keys import check_key_groups
from bedload.protocol.combining import Combiner
from bedload.spark.bootstrap import InitialState
from bedload.spark.feeder import FeederSpec, feed
from bedload.spark.plan import mark
from bedload.spark.schemas import KeyColumn, key_columns, key_types
from bedload.spark.shipping import pickled
from bedload.spark.state_view import ColumnDecoder, Decoder
from bedload.state import StateSpec
from bedload.state.kinds import Chosen, Layout, Store
from bedload.state.timers import TimerClock
from bedload.state.ttl import Ttl, is_expiry
from bedload.transport import Credentials
from bedload.worker.column_runtime import ColumnDeployment
from bedload.worker.expiry import KeyTtl
from bedload.worker.parameters import Values
from bedload.worker.runtime import Startable
from bedload.worker.state_schema import state_schema

_CONNECT_SECONDS = 600.0
"""A worker answers no new feeder while operator code keeps its one thread busy; a dead one is known at once."""


@dataclass(frozen=True)
class Keyed:
    """A streaming DataFrame and its key."""

    name: OperatorName
    df: DataFrame
    columns: tuple[tuple[int, str], ...]
    """Position and name of the key's columns."""
    types: tuple[pa.DataType, ...]
    groups: int

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        name: OperatorName,
        df: DataFrame,
        key: KeyColumn | Sequence[KeyColumn],
        groups: int,
    ) -> Keyed:
        """Check what every application needs."""
        if not isinstance(df, DataFrame):
            raise DefinitionError(
                f"operator {name}: {df!r:.100} is not a DataFrame; give a streaming one, read with spark.readStream"
            )
        if not df.isStreaming:
            raise DefinitionError(
                f"operator {name}: the DataFrame is not a streaming one; read it with spark.readStream"
            )
        check_key_groups(groups)
        columns = key_columns(name, df, key)
        return cls(name, df, tuple(columns), key_types(name, spark, df, columns), groups)

    @property
    def names(self) -> list[str]:
        """The names of the key's columns."""
        return [name for _, name in self.columns]

    @property
    def at(self) -> tuple[int, ...]:
        """The positions of the key's columns."""
        return tuple(index for index, _ in self.columns)


@dataclass(frozen=True)
class Shape:
    """What state is kept under and what it is made of: what has to stay for code to go on with state in memory."""

    layout: Layout
    keys: pa.Schema
    groups: int
    variables: dict[str, Any]
    store: str


@dataclass(frozen=True)
class Application:
    """An operator, applied."""

    keyed: Keyed
    out: StructType
    arrow_out: pa.Schema
    deployment: Startable
    decoder: Decoder
    specs: tuple[StateSpec, ...] = ()
    """The declared variables; none if there is no declaration, as of an aggregate."""
    combiner: Combiner | None = None
    initial: InitialState | None = None
    parameters: Values = field(default_factory=dict)
    terms: Terms = NO_TERMS
    code: type | None = None
    """The operator's class; none of an aggregate."""
    null_keys: bool = False
    """Whether null is a key like others."""
    per_query: bool = False
    """Whether a query that starts anew starts without state, whatever one before it left."""

    @classmethod
    def on_columns(
        cls,
        keyed: Keyed,
        logic: Any,
        out: StructType,
        arrow_out: pa.Schema,
        ttl: Ttl | None = None,
        store: Store = Store.MEMORY,
        **more: Any,
    ) -> Application:
        """Code that runs on columns."""
        lives = KeyTtl.on_columns(ttl)
        deployment = ColumnDeployment(keyed.name, logic, keyed.at, keyed.types, keyed.groups, ttl=lives, store=store)
        combiner = logic if getattr(logic, "mergeable", False) else None
        return cls(
            keyed, out, arrow_out, deployment, ColumnDecoder(deployment.state_columns), combiner=combiner, **more
        )

    @property
    def name(self) -> OperatorName:
        """The operator's name."""
        return self.keyed.name

    @property
    def shape(self) -> Shape:
        """The shape of its state in memory."""
        keys = pa.schema(list(zip(self.keyed.names, self.keyed.types, strict=True)))
        return Shape(self.deployment.layout, keys, self.keyed.groups, self.decoder.variables, self._store)

    @property
    def _store(self) -> str:
        return str(Chosen(self.deployment.store, self.deployment.store_url))

    def schema(self) -> OperatorSchema:
        """The shape of its state; raises if there is a variable that cannot be stored."""
        keyed = self.keyed
        return state_schema(self.deployment, keyed.names, keyed.types, keyed.groups, self.specs)

    def payload(self, epoch_bytes: int | None = None) -> bytes:
        """The operator as it is shipped."""
        for name, value in self.parameters.items():
            pickled(value, f"parameter {name} of operator {self.name}", value)
        deployment: Any = replace(self.deployment, epoch_bytes=epoch_bytes)  # type: ignore[type-var]
        return pickled(deployment, f"operator {self.name}", self.code)

    def plan(self, number: DeploymentId, coordinator: str, credentials: Credentials) -> DataFrame:
        """The outputs as a streaming DataFrame."""
        keyed = self.keyed
        spec = FeederSpec(
            self.name,
            number,
            coordinator,
            credentials,
            keyed.columns,
            self.arrow_out,
            _CONNECT_SECONDS,
            self.combiner,
            self.null_keys,
        )
        function = feed(spec)
        function.__name__ = mark(number, self.name)
        return keyed.df.mapInArrow(function, self.out)


def lives_of(applied: Application) -> dict[str, Ttl]:
    """What of an operator expires: variables by their name, and ``ttl=`` of whole keys."""
    found = {spec.name: spec.ttl for spec in applied.specs if spec.ttl is not None and not is_expiry(spec.name)}
    key: Ttl | None = getattr(applied.deployment, "ttl", None)
    return found if key is None else {**found, "ttl=": key}


def check_watermark(applied: Application) -> None:
    """Refuse a TTL by event time where there is none: nothing would ever expire."""
    events = [name for name, ttl in lives_of(applied).items() if ttl.clock is TimerClock.EVENT]
    # SUBTLE: not the metadata of the columns, as the column that has the watermark may be gone.
    if events and "EventTimeWatermark" not in str(applied.keyed.df._jdf.queryExecution().analyzed()):
        raise DefinitionError(
            f"operator {applied.name}: {', '.join(events)} is to expire by event time, but the DataFrame has no "
            f"watermark, so that nothing ever would: give it one, as in df.withWatermark('ts', '10 minutes'), or use "
            f"clock='processing'"
        )
