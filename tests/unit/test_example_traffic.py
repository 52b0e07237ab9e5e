"""The demo's traffic is a pure function of its seed and row numbers."""

import numpy as np
import pytest
from examples.traffic.reports import (
    ARROW_SCHEMA,
    FIRST_TS,
    MAX_SEGMENTS,
    Traffic,
    car_name,
    segment_name,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from bedload.core.errors import DefinitionError

traffics = st.builds(
    Traffic,
    cars=st.integers(4, 60),
    segments=st.integers(1, MAX_SEGMENTS),
    rate=st.integers(1, 50_000),
    total=st.integers(1, 500),
    partitions=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
row_numbers = st.integers(0, 2_000)


@settings(deadline=None)
@given(traffics, st.data())
def test_adjacent_ranges_give_what_the_range_over_both_gives(traffic: Traffic, data: st.DataObject) -> None:
    start, middle, stop = sorted(data.draw(st.tuples(row_numbers, row_numbers, row_numbers)))
    partition = data.draw(st.integers(0, traffic.partitions - 1))
    first, second = traffic.draw(partition, start, middle), traffic.draw(partition, middle, stop)
    whole = traffic.draw(partition, start, stop)
    for one, two, both in zip(first, second, whole, strict=True):
        assert np.array_equal(np.concatenate([one, two]), both)


@settings(deadline=None)
@given(traffics, st.data())
def test_the_partitions_deal_out_each_row_once(traffic: Traffic, data: st.DataObject) -> None:
    start, stop = sorted(data.draw(st.tuples(row_numbers, row_numbers)))
    times = []
    for partition in range(traffic.partitions):
        first, last = traffic.local(start, partition), traffic.local(stop, partition)
        rows = np.arange(first, last) * traffic.partitions + partition
        drawn = traffic.draw(partition, first, last)
        assert np.array_equal(drawn.ts, FIRST_TS + rows * 1_000_000 // traffic.rate)
        times.append(rows)
    assert sorted(np.concatenate(times).tolist()) == list(range(start, stop))


@settings(deadline=None)
@given(traffics)
def test_a_car_reports_from_one_partition_and_in_the_order_of_time(traffic: Traffic) -> None:
    cars_before: set[int] = set()
    for partition in range(traffic.partitions):
        rows = traffic.draw(partition, 0, 400)
        cars = set(rows.car.tolist())
        assert cars <= set(traffic.cars_of(partition))
        assert not cars & cars_before
        cars_before |= cars
        assert (np.diff(rows.ts) >= 0).all()


@settings(deadline=None)
@given(traffics)
def test_every_value_is_in_its_range(traffic: Traffic) -> None:
    rows = traffic.draw(0, 0, 1_000)
    assert (rows.segment >= 0).all()
    assert (rows.segment < traffic.segments).all()
    assert (rows.speed >= 0).all()
    assert np.array_equal(rows.speed * 2, np.round(rows.speed * 2)), "sums must be exact in any order"


def test_a_batch_is_the_drawn_rows_with_names() -> None:
    traffic = Traffic(cars=30, partitions=2)
    rows, batch = traffic.draw(1, 5, 50), traffic.batch(1, 5, 50)
    assert batch.schema.equals(ARROW_SCHEMA)
    assert batch.column("car").to_pylist() == [car_name(car) for car in rows.car.tolist()]
    assert batch.column("segment").to_pylist() == [segment_name(s) for s in rows.segment.tolist()]
    assert batch.column("speed").to_pylist() == rows.speed.tolist()
    assert batch.column("ts").cast("int64").to_pylist() == rows.ts.tolist()


def test_golden_rows_of_the_default_traffic() -> None:
    rows = Traffic().draw(0, 0, 3)
    assert rows.car.tolist() == [1301, 1911, 28]
    assert rows.speed.tolist() == [89.5, 68.5, 55.5]


def test_another_seed_gives_other_rows() -> None:
    assert not np.array_equal(Traffic(seed=1).draw(0, 0, 100).car, Traffic(seed=2).draw(0, 0, 100).car)


def test_every_segment_has_a_name_of_its_own() -> None:
    names = [segment_name(segment) for segment in range(MAX_SEGMENTS)]
    assert len(set(names)) == MAX_SEGMENTS
    assert (names[0], names[13], names[-1]) == ("A-0", "B-3", "Z-9")


@settings(deadline=None)
@given(traffics)
def test_options_carry_the_whole_traffic(traffic: Traffic) -> None:
    assert Traffic.from_options(traffic.options()) == traffic


def test_missing_options_have_their_defaults() -> None:
    assert Traffic.from_options({"cars": "12"}) == Traffic(cars=12)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cars": "many"}, "cars='many' is not a whole number"),
        ({"cars": "0"}, "cars=0 must be at least 1"),
        ({"segments": "261"}, "segments=261 must be at most 260"),
        ({"cars": "2", "partitions": "3"}, "at most the number of cars, 2"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        Traffic.from_options(options)
