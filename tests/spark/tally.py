"""The workload of the fault tests, and the oracle that never failed.

Epoch *e* has the values ``e * ROWS`` to ``(e + 1) * ROWS - 1``, each with the key ``value % KEYS``. Two operators see
the same stream: :class:`Tally` keeps objects, a row out for every row in; the aggregate keeps columns, a row out per
key and epoch. So every output and every state follows from the number of the epoch alone. Only which row of a key got
which running count is free, as rows of two partitions reach a worker in any order.

With ``gaps`` every third epoch has no rows; the values of the others stay as they are.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import bedload as bl
from tests.spark.conftest import numbers

ROWS, KEYS, PARTITIONS = 240, 23, 2
KINDS = ("rows", "columns")
SCHEMA = "key long, value long, n long"
_STORED = {"count()": "n", "sum(value)": "total", "max(value)": "top"}
"""How an aggregate's columns are named in its state."""


class Tally(bl.Operator):
    """All kinds of changes: a scalar, a set that grows, a map whose entries change and go."""

    n: int = bl.value(0)
    total: int = bl.value(0)
    seen: set[int] = bl.set()
    kinds: dict[int, int] = bl.map()

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
        for row in rows:
            self.n += 1
            self.total += row.value
            self.seen.add(row.value)
            kind = row.value % 5
            if self.kinds.get(kind, 0) == 9:
                del self.kinds[kind]
            else:
                self.kinds[kind] = self.kinds.get(kind, 0) + 1
            yield key, row.value, self.n


def stream(spark: SparkSession) -> DataFrame:
    """The input."""
    return numbers(spark, ROWS, PARTITIONS).selectExpr(f"value % {KEYS} as key", "value")


def applied(cluster: bl.Cluster, df: DataFrame, kind: str, name: str | None = None) -> DataFrame:
    """The operator of a layout on the input."""
    named = name or kind
    if kind == "rows":
        return cluster.apply(df, key="key", operator=Tally, schema=SCHEMA, name=named)
    functions = {"n": bl.agg.count(), "total": bl.agg.sum("value"), "top": bl.agg.max("value")}
    return cluster.aggregate(df, key="key", name=named, **functions)


# --- what must come out ---


def is_empty(epoch: int) -> bool:
    """With gaps: whether an epoch has no rows."""
    return epoch % 3 == 1


def values(key: int, epochs: int, gaps: bool = False) -> Sequence[int]:
    """The values of a key in so many epochs."""
    found = range(key, epochs * ROWS, KEYS)
    return [value for value in found if not is_empty(value // ROWS)] if gaps else found


def check_epoch(kind: str, epoch: int, rows: Iterable[tuple[Any, ...]], gaps: bool = False) -> None:
    """All that an epoch gave to its sink is right and complete."""
    if gaps and is_empty(epoch):
        assert not list(rows), f"epoch {epoch} had no rows"
        return
    if kind == "columns":
        found = sorted(rows)
        sums = [values(key, epoch + 1, gaps) for key in range(KEYS)]
        expected = [(key, len(seen), sum(seen), seen[-1]) for key, seen in enumerate(sums)]
        assert found == expected, f"epoch {epoch} of the aggregate"
        return
    got, counts = [], defaultdict[int, list[int]](list)
    for key, value, n in rows:
        assert key == value % KEYS
        got.append(value)
        counts[key].append(n)
    assert sorted(got) == list(range(epoch * ROWS, (epoch + 1) * ROWS)), f"epoch {epoch} of the operator: rows"
    for key in range(KEYS):
        before, after = len(values(key, epoch)), len(values(key, epoch + 1))
        assert sorted(counts[key]) == list(range(before + 1, after + 1)), f"epoch {epoch} of the operator: key {key}"


def check_epochs(
    kind: str, epochs: Mapping[int, Iterable[tuple[Any, ...]]], at_least: int = 1, gaps: bool = False
) -> None:
    """All that a sink has, from the first epoch on."""
    assert sorted(epochs) == list(range(len(epochs))), f"epochs are missing: {sorted(epochs)}"
    assert len(epochs) >= at_least
    for epoch, rows in epochs.items():
        check_epoch(kind, epoch, rows, gaps)


def check_state(kind: str, key: int, epoch: int, state: Mapping[str, Any], gaps: bool = False) -> None:
    """The state of a key as of an epoch."""
    seen = values(key, epoch + 1, gaps)
    assert (state["n"], state["total"]) == (len(seen), sum(seen)), f"{kind}, key {key}, epoch {epoch}: {state}"
    if kind == "rows":
        assert sorted(state["seen"]) == list(seen)
        expected: dict[int, int] = defaultdict(int)
        for value in seen:
            expected[value % 5] = (expected[value % 5] + 1) % 10
        # A map keeps entries that were made again; one that is gone counts as 0.
        assert {k: v for k, v in expected.items() if v} == {int(k): v for k, v in dict(state["kinds"]).items()}
    else:
        assert state["top"] == seen[-1]


def states(cluster: bl.Cluster, kind: str, name: str | None = None) -> dict[int, tuple[int, dict[str, Any]]]:
    """The state of every key, each with the epoch that it is from."""
    found = {}
    for key in range(KEYS):
        answer = cluster.state(name or kind).get(key)
        assert answer is not None, f"key {key} of {name or kind} has no state"
        state = {_STORED.get(name, name): value for name, value in answer.items()}
        found[key] = int(answer.epoch), {n: list(v) if isinstance(v, set) else v for n, v in state.items()}
    return found


def check_states(kind: str, found: Mapping[int, tuple[int, Mapping[str, Any]]], gaps: bool = False) -> int:
    """All keys are as of one epoch, and right; gives the epoch."""
    assert sorted(map(int, found)) == list(range(KEYS))
    epochs = {epoch for epoch, _ in found.values()}
    assert len(epochs) == 1, f"states of several epochs: {epochs}"
    for key, (epoch, state) in found.items():
        check_state(kind, int(key), epoch, state, gaps)
    return int(epochs.pop())


# --- Spark's file sink, read without Spark ---


def file_sink(folder: Path) -> dict[int, list[tuple[Any, ...]]]:
    """The rows of each epoch that counts, by the sink's own log."""
    epochs: dict[int, list[tuple[Any, ...]]] = {}
    known: set[str] = set()
    logs = {int(path.name.partition(".")[0]): path for path in _entries(folder / "_spark_metadata")}
    for epoch, log in sorted(logs.items()):
        named = [json.loads(line)["path"] for line in log.read_text().splitlines()[1:]]
        fresh = [path for path in named if path not in known]  # a compacted log has those of all epochs before it
        known.update(fresh)
        tables = [pq.read_table(unquote(urlparse(path).path), partitioning=None) for path in fresh]
        epochs[epoch] = [tuple(row.values()) for table in tables for row in table.to_pylist()]
    return epochs


def _entries(folder: Path) -> list[Path]:
    if not folder.exists():
        return []
    return sorted(path for path in folder.iterdir() if path.name.partition(".")[0].isdigit())


def set_back(checkpoint: Path, epoch: int) -> None:
    """Set a query's Spark checkpoint back, so that its next epoch is the one after this."""
    for folder in ("offsets", "commits"):
        for path in (checkpoint / folder).iterdir():
            number = path.name.removesuffix(".crc").lstrip(".")
            if number.isdigit() and int(number) > epoch:
                path.unlink()
