"""The rows that every system counts: deterministic, made inside the JVM, the same for all.

Invariants:
- The key of row `i` depends on `i`, the number of keys and nothing else, so any run, and a batch query
  over `range`, sees the same rows.
- The first `keys` rows hold each key once, in scattered order; the rows after them are spread by hash.

Why: `rate-micro-batch` gives exactly `batch_rows` rows to every trigger whatever the system's speed,
and a key made by a JVM expression costs a small fraction of what the fastest system spends on a row, so
the source is not what is measured. With every key seen once first, the state is full after
`fill_batches` triggers, where random keys would need several times that; then what is measured
is updates of a full state, not growth.
"""

import math

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own customary name

SCATTER = 2_654_435_761
"""A prime, so that multiplying by it modulo any smaller number of keys visits each key once."""

SEED = 20_260
PARTITIONS = 2


def key_expression(keys: int, row: str = "value") -> str:
    """The SQL expression for the key of row number `row`."""
    return (
        f"CASE WHEN {row} < {keys} THEN pmod({row} * {SCATTER}L, {keys}L) "
        f"ELSE pmod(xxhash64({row}, {SEED}), {keys}L) END"
    )


def keyed_rows(spark: SparkSession, keys: int, batch_rows: int) -> DataFrame:
    """A streaming DataFrame of one column, `key long`: `batch_rows` rows in each trigger."""
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", batch_rows)
        .option("numPartitions", PARTITIONS)
        .load()
    )
    return numbers.select(F.expr(key_expression(keys)).alias("key"))


def true_counts(spark: SparkSession, keys: int, rows: int) -> DataFrame:
    """`key, n` over the first `rows` rows, by a batch query: what any system must arrive at."""
    numbers = spark.range(rows).select(F.expr(key_expression(keys, "id")).alias("key"))
    return numbers.groupBy("key").agg(F.count("*").alias("n"))


def fill_batches(keys: int, batch_rows: int) -> int:
    """How many triggers it takes until every key was seen."""
    return math.ceil(keys / batch_rows)
