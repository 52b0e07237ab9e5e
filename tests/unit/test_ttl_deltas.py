"""What an epoch writes of entries that expire: each with its time, and no more than was written."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.test_ttl import ALL, one

import bedload as bl
from bedload.core.epoch import EpochTime
from bedload.core.ids import Epoch, WorkerId
from bedload.protocol.split import with_groups
from bedload.state.patches import unpack_patches
from bedload.store.deltas import OP, PATCH, PATCHES

TEN: Any = {"ttl": "10 milliseconds"}


def patches_of(kind: Any, declared: Any, *steps: Any) -> list[dict[str, Any]]:
    """The patches that epochs write, of which each does a step to the variable of a key; {} if an epoch writes none."""
    runtime = one(x=(kind, declared)).start(WorkerId(0))
    runtime.durable = True
    found: list[dict[str, Any]] = []
    for number, step in enumerate(steps):
        runtime.begin(Epoch(number), ALL)
        runtime.set_time(EpochTime(0, 100 + number))
        runtime.deployment.operator.STEPS.append(lambda o, step=step: step(o.x))  # type: ignore[attr-defined]
        runtime.apply(with_groups(pa.record_batch({"key": ["a"]}), (0,), 4))
        runtime.seal()
        delta = runtime.delta()
        runtime.commit()
        if delta is None or delta.column(OP).to_pylist() != [PATCH]:
            found.append({})
        else:
            found.append(unpack_patches(delta.column(PATCHES)[0].as_py()))
    return found


def both(x: Any) -> None:
    x["a"], x["b"] = 1, 2


@pytest.mark.parametrize(
    ("kind", "made"), [(dict[str, int], bl.map), (dict[str, float], bl.map), (Counter[str], bl.counter)]
)
def test_the_times_of_entries_are_written_with_them(kind: Any, made: Any) -> None:
    def turn_round(x: Any) -> None:
        del x["a"]
        x["b"] = 7

    steps = (both, lambda x: x.update({"b": 5}), lambda x: x.update({"c": 3}), turn_round)
    first, *later = patches_of(kind, made(**TEN), *steps)
    assert first == {}, "a new key is written whole"
    assert [it["bedload_ttl_x"] for it in later] == [
        ["map", [], [["b", 111]]],
        ["map", [], [["c", 112]]],
        ["map", ["a"], [["b", 113]]],
    ]


@pytest.mark.parametrize("value", [int, float])
def test_what_is_looked_at_and_left_as_it_is_has_no_new_time(value: type) -> None:
    look = lambda x: x.setdefault("a", 9)  # noqa: E731
    come_and_go = lambda x: (x.update({"z": 1}), x.pop("z"))  # noqa: E731
    _, *later = patches_of(dict[str, value], bl.map(**TEN), both, look, come_and_go, look)  # type: ignore[valid-type]
    assert all(it.get("bedload_ttl_x", ["map", [], []]) == ["map", [], []] for it in later)
