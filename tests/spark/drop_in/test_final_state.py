"""The state at the end is the same on both engines, as the reader of each gives it: values, ends of TTLs, timers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StructType

import bedload as bl
from tests.spark.drop_in.engines import BEDLOAD, ROWS, SPARK, STEP, Program, run
from tests.spark.drop_in.programs import Op, Told, Variable
from tests.spark.drop_in.small import PROCESSING

pytestmark = pytest.mark.spark

VALUES, LISTS, MAPS = ("value", "short_value"), ("list", "short_list"), ("map", "short_map")
PAIR, KEY = StructType().add("n", "long").add("s", "string"), StructType().add("k", "long")
VARIABLES = [
    Variable(kind, name, (KEY, PAIR) if kind == "Map" else (PAIR,), ttl)
    for names, ttl in ((("value", "list", "map"), None), (("short_value", "short_list", "short_map"), STEP * 3 // 2))
    for name, kind in zip(names, ("Value", "List", "Map"), strict=True)
]
FIRST: list[Op] = [
    *(("update", 0, (1, "x")), ("put", 1, [(1, "a"), (2, None)])),
    *(("updateValue", 2, (1,), (2, "m")), ("updateValue", 2, (2,), (3, None))),
    *(("update", 3, (5, "t")), ("appendValue", 4, (6, "t")), ("updateValue", 5, (7,), (8, "t"))),
    ("registerTimer", None, 50 * STEP),
]
SECOND: list[Op] = [
    *(("update", 0, (None, None)), ("appendValue", 1, (3, "c")), ("removeKey", 2, (2,))),
    *(("appendValue", 4, (7, "u")), ("updateValue", 5, (9,), (9, "u"))),
    *(("registerTimer", None, 60 * STEP), ("registerTimer", None, 0)),
]
THIRD: list[Op] = [("clear", 0), ("clear", 1), ("update", 3, (6, "v")), ("deleteTimer", None, 0)]


def the_program() -> Program:
    from tests.spark.drop_in.cases_output import after

    batches: list[dict[str, list[Op]]] = [
        {"a": FIRST, "b": FIRST, "c": FIRST[:1]},
        {"a": SECOND, "b": THIRD, "d": SECOND},
        {"e": FIRST[4:7]},
    ]
    ops = [it for batch in batches for it in batch.values()]
    rows = [
        [(key, ops.index(it), 0, after(at * STEP)) for key, it in batch.items()] for at, batch in enumerate(batches)
    ]
    return Program(
        Told(PROCESSING, ROWS, VARIABLES, ops, [[]], begins=False),
        rows,
        "k string, n long, x long, ts timestamp",
        time_mode=PROCESSING,
        stops=frozenset({1}),
        fails=frozenset({2}),
    )


def plain(value: Any) -> Any:
    """Rows as tuples."""
    return tuple(map(plain, value)) if isinstance(value, Row) else value


def of_spark(session: SparkSession, checkpoint: Path) -> dict[str, Any]:
    """By variable and key; what has a TTL as pairs of value and end."""

    def rows(**options: Any) -> Iterable[Row]:
        return session.read.format("statestore").options(**options).load(str(checkpoint)).collect()

    found: dict[str, Any] = {}
    for name in VALUES:
        found[name] = {row.key.k: plain(row.value) for row in rows(stateVarName=name)}
    for name in LISTS:
        found[name] = {}
        for row in rows(stateVarName=name):
            found[name].setdefault(row.key.k, []).append(plain(row.list_element))
    for name in MAPS:
        found[name] = {}
        for row in rows(stateVarName=name):
            found[name].setdefault(row.key.k, {})[plain(row.user_map_key)] = plain(row.user_map_value)
    found["timers"] = {}
    for row in rows(readRegisteredTimers="true"):
        found["timers"].setdefault(row.key.k, []).append(row.expiration_timestamp_ms)
    found["timers"] = {key: sorted(times) for key, times in found["timers"].items()}
    return found


def of_bedload(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The same of Bedload's table of all variables."""
    found: dict[str, Any] = {name: {} for name in (*VALUES, *LISTS, *MAPS, "timers")}
    for row in rows:
        for name in VALUES:
            if row[name] is not None:
                found[name][row["k"]] = row[name]
        for name in LISTS:
            if row[name]:
                found[name][row["k"]] = row[name]
        for name in MAPS:
            if row[name]:
                found[name][row["k"]] = row[name]
        for name in (*VALUES[1:], *LISTS[1:], *MAPS[1:]):
            if row["k"] in found[name]:
                found[name][row["k"]] = ended(row[name], row[f"bedload_ttl_{name}"])
        if row["timers"]:
            found["timers"][row["k"]] = row["timers"]
    return found


def ended(value: Any, end: Any) -> Any:
    if isinstance(value, list):
        return list(zip(value, end, strict=True))
    if isinstance(value, dict):
        return {key: (it, end[key]) for key, it in value.items()}
    return value, end


def from_table(row: Row) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in row.asDict().items():
        if isinstance(value, list):
            made[name] = [plain(it) for it in value]
        elif isinstance(value, dict):
            made[name] = {plain(key): plain(it) for key, it in value.items()}
        else:
            made[name] = plain(value)
    return {**made, "timers": [it.at for it in row.bedload_timers]}


def test_the_state_at_the_end_is_the_same(session: SparkSession, tmp_path: Path) -> None:
    spark = run(session, SPARK, the_program(), tmp_path / "spark")
    assert spark.error is None
    expected = of_spark(session, tmp_path / "spark" / "checkpoint")
    assert all(expected.values()), "there is something in every variable"

    place = tmp_path / "state"
    with bl.attach(session, workers=2, checkpoint=place) as cluster:
        here = run(session, BEDLOAD, the_program(), tmp_path / "bedload")
        assert here.error is None
        assert here.by_key == spark.by_key
        cluster.checkpoint()
        answers = [cluster.state(here.name).get(key) for key in "abcde"]
    live = [
        {**answer, "k": answer.key, "timers": [it.at for it in answer["bedload_timers"]]}
        for answer in answers
        if answer is not None
    ]
    table = session.read.format("bedload").load(str(place)).collect()
    assert of_bedload(map(from_table, table)) == expected
    assert of_bedload(live) == expected
