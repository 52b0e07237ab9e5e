"""Random programs on a cluster whose epochs fail, are replayed and meet moves, beside one where nothing ever fails."""

from __future__ import annotations

import collections
import random  # noqa: TID251 - seeded by each test
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bedload import state as bl
from bedload.core.errors import BedloadError
from bedload.testing import InProcessCluster, OperatorHarness
from bedload.worker.operator import Context, Operator
from bedload.worker.rows import Rows

IN = {"k": pa.string(), "x": pa.int64()}
OUT = {"k": pa.string(), "n": pa.int64()}
ENDINGS = (SystemExit, KeyboardInterrupt, RuntimeError, GeneratorExit)
STRATEGIES = ("seamless", "all_at_once", "progressive", "lazy")


class Fault:
    """What fails in the epoch under way: the row of this number, or types."""

    row: int | None = None
    types = False
    rows = 0


class Random(Operator):
    """Does what the row's number, taken as a seed, makes it do."""

    n: int = bl.value(0)
    items: list[int] = bl.list(maxlen=70)
    lists: dict[str, list[int]] = bl.map()
    seen: set[int] = bl.set()
    tally: collections.Counter[int] = bl.counter()
    recent: collections.deque[int] = bl.deque(maxlen=80)
    queue: bl.Heap[int] = bl.heap()
    top: bl.Heap[tuple[int, list[int]]] = bl.heap(maxlen=66)
    grid: np.ndarray = bl.array((3, 4), "int32")

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        for row in rows:
            chance = random.Random(row.x)
            self.n += 1
            for _ in range(chance.randrange(1, 6)):
                self._step(chance, ctx)
            Fault.rows += 1
            if Fault.rows == Fault.row:
                if chance.random() < 0.5:
                    ctx.forget()
                raise ENDINGS[Fault.rows % len(ENDINGS)]
            if Fault.types and row.x % 7 == 0:
                self._spoil(chance)
        return key, self.n

    def _step(self, chance: random.Random, ctx: Context) -> None:
        v = chance.randrange(200)
        steps: list[Callable[[], Any]] = [
            lambda: self.items.append(v),
            lambda: self.items.reverse(),
            lambda: self.items and self.items.pop(v % len(self.items)),
            lambda: self.lists.setdefault(str(v % 9), []).append(v),
            lambda: self.lists.pop(str(v % 9), None),
            lambda: self.seen.symmetric_difference_update({v, v + 1}),
            lambda: self.tally.update([v, v]),
            lambda: self.recent.extend([v] * 3),
            lambda: self.queue.extend(chance.sample(range(1000), v % 30)),
            lambda: self.queue and self.queue.pop(),
            lambda: self.queue and self.queue.replace(v),
            lambda: self.top.push((v, [v])),
            lambda: self.top and self.top[len(self.top) // 2][1].append(v),
            lambda: self.grid[v % 3].__iadd__(v),
            lambda: np.cumsum(self.grid, axis=0, out=self.grid),
            lambda: setattr(self, "grid", self.grid[::-1]),
            lambda: v < 12 and ctx.forget(),
        ]
        chance.choice(steps)()

    def _spoil(self, chance: random.Random) -> None:
        spoils: list[Callable[[], Any]] = [
            lambda: self.items.append("x"),  # type: ignore[arg-type]
            lambda: self.queue.push(1e9),  # type: ignore[arg-type]
            lambda: self.seen.add("q"),  # type: ignore[arg-type]
            lambda: self.lists.update(z=["x"]),  # type: ignore[list-item]
            lambda: setattr(self, "grid", self.grid[0]),
            lambda: setattr(self, "grid", self.grid / 2),
        ]
        chance.choice(spoils)()
        self.n = self.n + 0.5  # type: ignore[assignment]


class Scalars(Operator):
    """The same with scalars alone, whose objects are found and looked through many at a time."""

    n: int = bl.value(0)
    mean: float | None = bl.value(None)
    word: str = bl.value("none")

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        for row in rows:
            chance = random.Random(row.x)
            self.n += 1
            self._step(chance, ctx)
            Fault.rows += 1
            if Fault.rows == Fault.row:
                raise ENDINGS[Fault.rows % len(ENDINGS)]
            if Fault.types and row.x % 7 == 0:
                self.word = 5  # type: ignore[assignment]
        return (key, self.n) if self.n % 2 else None

    def _step(self, chance: random.Random, ctx: Context) -> None:
        match chance.randrange(6):
            case 0:
                self.mean = chance.choice([None, 0.0, -0.0, 2.5])
            case 1:
                self.word = chance.choice(["none", "some"])
            case 2:
                self.n -= 1  # as it was
            case 3 if hasattr(self, "word"):
                del self.word
            case 4 if chance.random() < 0.4:
                ctx.forget()

    def result(self, key: Any, ctx: Context) -> Any:
        if self.n % 5 == 0:
            ctx.forget()
        return key, -self.n if self.word == "none" else -1


def plain(states: dict[Any, dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """States that can be compared: two arrays give an array."""
    return {key: state | ({"grid": state["grid"].tolist()} if "grid" in state else {}) for key, state in states.items()}


def epoch(cluster: InProcessCluster, rows: list[dict[str, Any]], chance: random.Random) -> bool:
    """An attempt at an epoch that is meant to fail; whether it went well all the same."""
    Fault.rows, Fault.row, Fault.types = 0, None, chance.random() < 0.5
    if not Fault.types:
        Fault.row = chance.randrange(1, len(rows) + 1)
    try:
        cluster.run_epoch([rows])
    except BedloadError:
        cluster.restart()
        return False
    finally:
        Fault.row, Fault.types = None, False
    return True  # no row was to fail, or what was spoilt is forgotten


@pytest.mark.parametrize("seed", range(12))
def test_epochs_that_failed_leave_nothing_behind(seed: int) -> None:
    chance = random.Random(seed)
    workers = chance.randrange(1, 4)
    cluster = InProcessCluster(Random, schema=OUT, key="k", input=IN, workers=workers, key_groups=16)
    calm = OperatorHarness(Random, schema=OUT, key="k", input=IN, key_groups=16)
    for _ in range(12):
        rows = [
            {"k": f"key {chance.randrange(12)}", "x": chance.randrange(10**6)} for _ in range(chance.randrange(1, 40))
        ]
        if not any(epoch(cluster, rows, chance) for _ in range(chance.randrange(3))):
            cluster.run_epoch([rows])
        calm.run_epoch(rows)
        if chance.random() < 0.3:
            cluster.rescale(chance.randrange(1, 5), strategy=chance.choice(STRATEGIES))
        assert plain(cluster.snapshot()) == plain(calm.snapshot())


@pytest.mark.parametrize("seed", range(12))
def test_scalars_of_many_keys_at_once_are_those_of_one_at_a_time(seed: int) -> None:
    chance = random.Random(seed)
    workers = chance.randrange(1, 4)
    cluster = InProcessCluster(Scalars, schema=OUT, key="k", input=IN, workers=workers, key_groups=5)
    calm = OperatorHarness(Scalars, schema=OUT, key="k", input=IN, key_groups=5)
    known = chance.randrange(10, 60)
    for _ in range(12):
        batches = [
            [
                {"k": f"key {key}", "x": chance.randrange(10**6)}
                for key in chance.sample(range(known), chance.randrange(1, known))
            ]
            for _ in range(chance.randrange(1, 4))
        ]
        while chance.random() < 0.6:
            Fault.rows, Fault.row = 0, chance.randrange(1, sum(map(len, batches)) + 1)
            with pytest.raises(BedloadError):
                cluster.run_epoch([batches])
            Fault.row = None
            cluster.restart()
            assert repr(sorted(cluster.snapshot().items())) == repr(sorted(calm.snapshot().items()))
        given = cluster.run_epoch([batches])
        # A key has one row in a batch, so the calls are the same ones.
        alone = calm.run_epoch(*([row] for rows in batches for row in rows))
        assert sorted(map(repr, given)) == sorted(map(repr, alone))
        assert repr(sorted(cluster.snapshot().items())) == repr(sorted(calm.snapshot().items()))
        if chance.random() < 0.3:
            cluster.rescale(chance.randrange(1, 5), strategy=chance.choice(STRATEGIES))
