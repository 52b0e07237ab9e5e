"""Processors of Spark's at a worker, without Spark: what the tests of the drop-in share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import cloudpickle
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import DataType, StructType, _all_complex_types, _parse_datatype_json_value

from bedload.core.epoch import EpochTime
from bedload.core.ids import Epoch, KeyGroup, OperatorName, WorkerId
from bedload.keys import canonical_key
from bedload.protocol.split import with_groups
from bedload.spark.drop_in.declaring import declared_by
from bedload.spark.drop_in.rows import PandasForm
from bedload.spark.drop_in.runtime import ProcessorDeployment, ProcessorRuntime, TimeMode

GROUPS = 8


def columns(text: str) -> StructType:
    """A flat DDL string as a schema, without the JVM that Spark parses it with."""
    made = StructType()
    for part in re.split(r",\s*(?![^(<]*[)>])", text):
        name, kind = part.strip().split(" ", 1)
        made = made.add(name, _type(kind.strip()))
    return made


def _type(kind: str) -> DataType:
    names = {"int": "integer", "bigint": "long", "tinyint": "byte", "smallint": "short"}
    if inner := re.fullmatch(r"array<(.*)>", kind):
        return _all_complex_types["array"].fromJson(
            {"type": "array", "elementType": _type(inner[1]).jsonValue(), "containsNull": True}
        )
    if inner := re.fullmatch(r"map<(\w+),\s*(.*)>", kind):
        key, value = _type(inner[1]).jsonValue(), _type(inner[2]).jsonValue()
        return _all_complex_types["map"].fromJson(
            {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        )
    if inner := re.fullmatch(r"struct<(.*)>", kind):
        return columns(inner[1].replace(":", " "))
    return _parse_datatype_json_value(names.get(kind, kind))


def deployment(
    processor: StatefulProcessor,
    rows: str = "k string, v int",
    out: str = "k string, n long",
    mode: str = "None",
    *,
    key: Sequence[str] = ("k",),
    pandas: PandasForm | None = None,
    **more: Any,
) -> ProcessorDeployment:
    """A processor as it is shipped."""
    given, output = columns(rows), columns(out)
    schema = to_arrow_schema(given, timezone="UTC")
    at = tuple(given.names.index(name) for name in key)
    return ProcessorDeployment(
        OperatorName(type(processor).__name__),
        cloudpickle.dumps(processor),
        declared_by(processor, mode, columns),
        TimeMode(mode.lower()),
        at,
        tuple(key),
        tuple(given.names),
        to_arrow_schema(output, timezone="UTC"),
        output,
        tuple(schema.field(i).type for i in at),
        pandas=pandas,
        **more,
    )


class Worker:
    """One worker that runs one processor, epoch by epoch."""

    def __init__(
        self, shipped: ProcessorDeployment, rows: str = "k string, v int", durable: bool = False, stores: Any = None
    ) -> None:
        self.runtime = ProcessorRuntime(shipped, WorkerId(0), stores)
        self.runtime.durable = durable
        self.schema = to_arrow_schema(columns(rows), timezone="UTC")
        self.epoch = -1
        self.deltas: list[Any] = []

    def begin(self, rows: Iterable[tuple[Any, ...]], now: int = 0, watermark: int = 0, late: int = 0) -> None:
        """An epoch with these rows, up to its seal."""
        self.epoch += 1
        self.runtime.begin(Epoch(self.epoch), [KeyGroup(group) for group in range(GROUPS)])
        self.runtime.set_time(EpochTime(watermark, now, late))
        found = list(rows)
        if found:
            arrays = [
                pa.array(column, field.type)
                for column, field in zip(zip(*found, strict=True), self.schema, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            self.runtime.apply(with_groups(batch, self.runtime.deployment.key, GROUPS))

    def run(self, *rows: tuple[Any, ...], **time: int) -> list[tuple[Any, ...]]:
        """An epoch that is committed: its outputs."""
        self.begin(rows, **time)
        made = self.runtime.seal()
        if self.runtime.durable:
            self.deltas.append(self.runtime.delta())
        self.runtime.commit()
        return [] if made is None else [tuple(row.values()) for row in made.to_pylist()]

    def state(self) -> dict[Any, dict[str, Any]]:
        """The committed state."""
        return {canonical_key(key): state for key, state in self.runtime.snapshot()}
