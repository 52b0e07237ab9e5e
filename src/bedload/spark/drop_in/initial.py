"""``initialState``: the rows that a processor starts from, in the first batch of a query.

They are shipped with the processor, and each worker takes those of the keys that it owns in that batch. So they are
there again if the batch is replayed or its keys have moved; later batches never look at them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bedload.core.errors import SchemaError
from bedload.core.ids import KeyGroup
from bedload.keys import hash_columns, kept_type, key_groups
from bedload.protocol.split import GROUP_FIELD
from bedload.spark.drop_in.key_parts import KeyPart
from bedload.spark.schemas import arrow_schema
from bedload.worker.firing import Owns


@dataclass(frozen=True)
class InitialRows:
    """Rows with their keys, as they are shipped."""

    data: bytes
    columns: tuple[str, ...]
    key: tuple[int, ...]
    parts: tuple[KeyPart, ...]
    """What they are grouped by, if there is a struct among it."""

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        df: DataFrame,
        key_columns: Sequence[tuple[int, str]],
        columns: tuple[str, ...],
        parts: tuple[KeyPart, ...],
        types: Sequence[Any],
    ) -> InitialRows:
        """Read a DataFrame."""
        schema = arrow_schema(spark, df.schema)
        key = tuple(at for at, _ in key_columns)
        mine = tuple(kept_type(schema.field(at).type) for at in key)
        if mine != tuple(types):
            raise SchemaError(
                f"initialState is grouped by columns of the types {', '.join(map(str, mine))}, and the input by "
                f"{', '.join(map(str, types))}: cast the one or the other"
            )
        table = df.toArrow().cast(schema)
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
            stream.write_table(table)
        return cls(out.getvalue().to_pybytes(), columns, key, parts)

    def of_groups(self, groups: Collection[KeyGroup], count: int, owns: Owns | None) -> pa.RecordBatch | None:
        """The rows of these key groups, of so many, with their key groups; ``owns``: which keys are meant."""
        with pa.ipc.open_stream(self.data) as stream:
            batches = stream.read_all().combine_chunks().to_batches()
        if not batches:
            return None
        (batch,) = batches
        hashes = hash_columns([batch.column(at) for at in self.key])
        found = key_groups(hashes, count).astype(np.int16)
        mine = np.isin(found, np.fromiter(groups, np.int64, len(groups)))
        if owns is not None:
            mine &= owns(found, hashes)
        return batch.append_column(GROUP_FIELD, pa.array(found)).filter(pa.array(mine))
