"""The demo's operator and its oracle agree without an engine between them; the check finds any difference."""

from collections import Counter, deque
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from examples.traffic.check import check_sink, check_state, sample, shown
from examples.traffic.operators import OUTPUT, RECENT, ROUTE, Trip
from examples.traffic.oracle import Oracle, Output
from examples.traffic.reports import Traffic, car_name
from hypothesis import given, settings
from hypothesis import strategies as st

from bedload.worker.operator import state_of

TRAFFIC = Traffic(cars=12, segments=7, rate=50, total=400, partitions=2)


def one_by_one(traffic: Traffic) -> tuple[dict[str, dict[str, Any]], list[Output]]:
    """The operator on plain Python containers: state by car, and an output after every single report."""
    trips: dict[str, Any] = {}
    outputs = []
    for partition in range(traffic.partitions):
        for report in traffic.batch(partition, 0, traffic.local(traffic.total, partition)).to_pylist():
            row = SimpleNamespace(**report)
            trip = trips.setdefault(
                row.car,
                SimpleNamespace(
                    count=0,
                    total=0.0,
                    top=0.0,
                    seen=None,
                    recent=deque(maxlen=RECENT),
                    segments={},
                    bands=Counter(),
                    route=deque(maxlen=ROUTE),
                ),
            )
            Trip.process(trip, row.car, [row], None)  # type: ignore[arg-type]
            outputs.append(Output(*Trip.result(trip, row.car, None)))  # type: ignore[arg-type]
    return {car: vars(trip) for car, trip in trips.items()}, outputs


def table(outputs: list[Output]) -> pa.Table:
    return pa.table({name: [getattr(row, name) for row in outputs] for name in Output._fields})


@settings(max_examples=30, deadline=None)
@given(
    st.builds(
        Traffic,
        cars=st.integers(3, 40),
        segments=st.integers(1, 30),
        rate=st.integers(1, 1_000),
        total=st.integers(1, 600),
        partitions=st.integers(1, 3),
        seed=st.integers(0, 100),
    )
)
def test_the_oracle_equals_the_operator_on_plain_containers(traffic: Traffic) -> None:
    oracle = Oracle(traffic)
    states, outputs = one_by_one(traffic)
    assert [car_name(car) for car in oracle.seen()] == sorted(states, key=lambda name: int(name[4:]))
    assert check_state(oracle, range(traffic.cars), states.get) == []
    assert check_sink(oracle, table(outputs)) == []


def test_the_oracle_knows_the_columns_and_the_variables_of_the_operator() -> None:
    assert tuple(column.split()[0] for column in OUTPUT.split(",")) == Output._fields
    state = Oracle(TRAFFIC).state(0)
    assert state is not None
    assert set(state) == {spec.name for spec in state_of(Trip)}


def test_a_state_that_differs_is_named_with_car_and_variable() -> None:
    states, _ = one_by_one(TRAFFIC)
    states["car-3"]["recent"][-1] += 1
    (difference,) = check_state(Oracle(TRAFFIC), range(TRAFFIC.cars), states.get)
    assert difference.startswith("state of car-3: recent should be [")


def test_a_state_that_is_missing_is_a_difference() -> None:
    states, _ = one_by_one(TRAFFIC)
    del states["car-3"]
    (difference,) = check_state(Oracle(TRAFFIC), range(TRAFFIC.cars), states.get)
    assert difference.endswith("found None")


def test_a_state_that_should_not_be_there_is_a_difference() -> None:
    quiet = Traffic(cars=12, total=1, partitions=2)
    silent = next(car for car in range(12) if car not in Oracle(quiet).seen())
    (difference,) = check_state(Oracle(quiet), [silent], lambda name: {"count": 1})
    assert difference.startswith(f"state of car-{silent}: expected None")


def replaced(outputs: list[Output], index: int, **changes: Any) -> list[Output]:
    return [*outputs[:index], outputs[index]._replace(**changes), *outputs[index + 1 :]]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda rows: rows + rows[:1], "has two rows with n=1"),
        (lambda rows: replaced(rows, 0, mean=-1.0), "at n=1: the mean should be"),
        (lambda rows: replaced(rows, 0, n=10_000), "has a row with n=10000"),
        (lambda rows: rows[:-1], "the last row of"),
        (lambda rows: replaced(rows, -1, visited=99)[: len(rows)], "the last row of"),
    ],
    ids=["a row twice", "a wrong mean on the way", "an n too large", "the last row lost", "a wrong last row"],
)
def test_a_sink_that_differs_is_found(damage: Any, said: str) -> None:
    _, outputs = one_by_one(TRAFFIC)
    differences = check_sink(Oracle(TRAFFIC), table(damage(outputs)))
    assert any(said in difference for difference in differences), differences


def test_an_epoch_that_skips_rows_of_a_car_is_no_difference() -> None:
    # One output per car and epoch: only the last one of each car has to be there.
    _, outputs = one_by_one(TRAFFIC)
    last = {row.car: row for row in outputs}
    assert check_sink(Oracle(TRAFFIC), table(list(last.values()))) == []


def test_a_sample_is_spread_over_all_cars() -> None:
    assert sample(range(1_000), 4) == [0, 250, 500, 750]
    assert sample(range(3), 4) == [0, 1, 2]


def test_many_differences_are_cut_with_a_count() -> None:
    assert shown([str(i) for i in range(25)])[-2:] == ["9", "... and 15 more"]
    assert shown(["a"]) == ["a"]
