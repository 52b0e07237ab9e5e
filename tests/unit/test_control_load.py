"""What the coordinator does for an epoch grows with workers + partitions, and with nothing faster.

Messages, bytes and bytecodes are counted, so the figures are the same on every machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# `bench` is not part of the package: it is found from the root of the repository.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.many_load import Load
from tests.steps import steps_of

WORKERS, PARTITIONS = 24, 40
GROUPS = 128
Figures = dict[str, int]


def epoch_of(workers: int, partitions: int, operators: int = 1) -> Figures:
    """An epoch like all but the first one: the processes of the feeders know the routes."""
    load = Load(workers, partitions, operators=operators, key_groups=GROUPS, processes=4)
    load.epoch()
    steps = steps_of(load.epoch)
    assert list(load.committed) == [1] * operators
    return {"messages": load.cost.messages, "bytes": load.cost.bytes, "steps": steps}


@pytest.fixture(scope="module")
def epochs() -> dict[tuple[int, int], Figures]:
    sizes = [(w, p) for w in (1, 2, 4) for p in (1, 2, 4)]
    return {(w, p): epoch_of(w * WORKERS, p * PARTITIONS) for w, p in sizes}


@pytest.mark.parametrize("figure", ["messages", "bytes", "steps"])
def test_no_term_is_workers_times_partitions(epochs: dict[tuple[int, int], Figures], figure: str) -> None:
    def of(workers: int, partitions: int) -> int:
        return epochs[workers, partitions][figure]

    both = of(4, 4) - of(1, 4) - of(4, 1) + of(1, 1)
    assert abs(both) <= 0.02 * of(4, 4), f"{figure}: {both} of {of(4, 4)} are due to workers times partitions"


@pytest.mark.parametrize("figure", ["messages", "bytes", "steps"])
@pytest.mark.parametrize("what", ["workers", "partitions"])
def test_twice_as_many_cost_twice_as_much(epochs: dict[tuple[int, int], Figures], figure: str, what: str) -> None:
    one, two, four = (epochs[(n, 1) if what == "workers" else (1, n)][figure] for n in (1, 2, 4))
    # The step from two to four times as many is twice the one before; encoded numbers get a little longer.
    assert four - two <= 2.1 * (two - one), f"{figure} of 1, 2 and 4 times the {what}: {one}, {two}, {four}"


def test_an_operator_beside_others_says_no_more(epochs: dict[tuple[int, int], Figures]) -> None:
    alone, together = epochs[1, 1], epoch_of(WORKERS, PARTITIONS, operators=4)
    assert together["messages"] == 4 * alone["messages"]
    assert together["bytes"] == pytest.approx(4 * alone["bytes"], rel=0.01)


def test_a_process_is_told_the_routes_once() -> None:
    load = Load(WORKERS, PARTITIONS, key_groups=GROUPS, processes=4)
    first, second = load.epoch(), load.epoch()
    told = first.bytes_out - second.bytes_out
    per_worker = len("10.0.0.10:45678")
    told += 2 * WORKERS  # the second epoch tells each worker besides what it builds upon
    assert told > 4 * (GROUPS + WORKERS * per_worker), "each of the four processes hears them"
    assert told < 5 * (GROUPS + WORKERS * (per_worker + 3)), "and no partition of theirs again"
