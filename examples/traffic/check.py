"""The end of the demo: what came out, beside what had to come out.

Invariants: the state of a sample of cars equals the oracle's, variable by variable; the sink holds for every
car that reported one row that is its last and equals the oracle's; and *every* row of the sink is right:
no ``n`` comes twice for a car, and its mean is the mean of the car's first ``n`` reports. A row lost or
applied twice, at any time of the run, shows in the last two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from examples.traffic.oracle import Oracle, Output
from examples.traffic.reports import car_name

SHOWN = 10
"""Differences that a report spells out."""


def sample(cars: Sequence[int], size: int) -> list[int]:
    """At most so many of the cars, evenly spread."""
    if len(cars) <= size:
        return list(cars)
    return [cars[i * len(cars) // size] for i in range(size)]


def check_state(oracle: Oracle, cars: Sequence[int], read: Callable[[str], Mapping[str, Any] | None]) -> list[str]:
    """How the state of these cars differs from the oracle's; ``read`` gives a car's state."""
    differences = []
    for car in cars:
        name, expected, found = car_name(car), oracle.state(car), read(car_name(car))
        if expected is None or found is None:
            if (expected is None) != (found is None):
                differences.append(f"state of {name}: expected {expected}, found {found}")
            continue
        differences += [
            f"state of {name}: {variable} should be {expected.get(variable)!r}, is {_plain(found.get(variable))!r}"
            for variable in sorted({*expected, *found})
            if expected.get(variable) != _plain(found.get(variable))
        ]
    return differences


def check_sink(oracle: Oracle, table: pa.Table) -> list[str]:
    """How the sink's rows differ from what the oracle allows."""
    differences = []
    last: dict[str, Output] = {}
    once: set[tuple[str, int]] = set()
    for row in map(Output._make, zip(*(table.column(name).to_pylist() for name in Output._fields), strict=True)):
        if (row.car, row.n) in once:
            differences.append(f"sink: {row.car} has two rows with n={row.n}")
        once.add((row.car, row.n))
        if row.car not in last or last[row.car].n < row.n:
            last[row.car] = row
        car = int(row.car.removeprefix("car-"))
        if not 1 <= row.n <= oracle.count(car):
            differences.append(f"sink: {row.car} has a row with n={row.n}, but it reports {oracle.count(car)} times")
        elif row.mean != oracle.mean(car, row.n):
            differences.append(
                f"sink: {row.car} at n={row.n}: the mean should be {oracle.mean(car, row.n)!r}, is {row.mean!r}"
            )
    for car in oracle.seen():
        expected = oracle.output(car)
        found = last.pop(expected.car, None)
        if found != expected:
            differences.append(f"sink: the last row of {expected.car} should be {expected}, is {found}")
    differences += [f"sink: {name} has rows, but it never reports" for name in last]
    return differences


def shown(differences: Sequence[str]) -> list[str]:
    """The first of them, and how many there are besides."""
    more = len(differences) - SHOWN
    return [*differences[:SHOWN], *([f"... and {more} more"] if more > 0 else [])]


def _plain(item: Any) -> Any:
    """A container of state as the builtin that the oracle uses for it."""
    if isinstance(item, Mapping):
        return dict(item)
    return list(item) if isinstance(item, list | deque) else item
