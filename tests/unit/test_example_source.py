"""The demo's streaming source offers rows by the clock and replays any range of them."""

import cloudpickle
import pyarrow as pa
from examples.traffic.reports import Traffic
from examples.traffic.source import BATCH_SECONDS, TrafficReader, TrafficSource
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from bedload.core.clock import SystemClock

TRAFFIC = Traffic(cars=20, rate=100, total=1_000, partitions=2)


class HandClock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 50.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def processor(self) -> float:
        return self.monotonic()


def started(clock: HandClock) -> TrafficReader:
    """A reader whose clock runs, after a first batch of 26 rows."""
    reader = TrafficReader(TRAFFIC, clock)
    reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    reader.latestOffset({"rows": 26}, ReadAllAvailable())
    return reader


def read(reader: TrafficReader, start: int, end: int) -> dict[int, list[dict[str, object]]]:
    """The rows of a batch, by partition."""
    found: dict[int, list[dict[str, object]]] = {}
    for partition in reader.partitions({"rows": start}, {"rows": end}):
        found[partition.partition] = [row for batch in reader.read(partition) for row in batch.to_pylist()]
    return found


def test_the_first_batch_is_small_and_the_clock_starts_after_it() -> None:
    clock = HandClock()
    reader = TrafficReader(TRAFFIC, clock)
    first = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert first == {"rows": 26}
    clock.now += 60
    assert reader.latestOffset(first, ReadAllAvailable()) == {"rows": 52}
    clock.now += 1.5
    assert reader.latestOffset({"rows": 52}, ReadAllAvailable()) == {"rows": 202}


def test_offsets_never_pass_the_total_nor_go_back() -> None:
    clock = HandClock()
    reader = started(clock)
    clock.now += 100
    total = {"rows": TRAFFIC.total}
    assert reader.latestOffset({"rows": 150}, ReadAllAvailable()) == total
    assert reader.latestOffset(total, ReadAllAvailable()) == total
    assert started(clock).latestOffset(total, ReadAllAvailable()) == total


def test_a_query_that_is_behind_gets_bounded_batches() -> None:
    clock = HandClock()
    reader = started(clock)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(TRAFFIC.rate * BATCH_SECONDS)
    clock.now += 5
    assert reader.latestOffset({"rows": 52}, limit) == {"rows": 252}
    assert reader.latestOffset({"rows": 252}, limit) == {"rows": 452}
    assert reader.latestOffset({"rows": 452}, limit) == {"rows": 552}


def test_a_restarted_query_counts_from_its_offset() -> None:
    clock = HandClock()
    reader = TrafficReader(TRAFFIC, clock)
    assert reader.latestOffset({"rows": 700}, ReadAllAvailable()) == {"rows": 726}
    reader.latestOffset({"rows": 726}, ReadAllAvailable())
    clock.now += 1
    assert reader.latestOffset({"rows": 726}, ReadAllAvailable()) == {"rows": 852}


def test_a_replay_gives_the_same_rows_and_batches_concatenate() -> None:
    reader, other = TrafficReader(TRAFFIC, HandClock()), TrafficReader(TRAFFIC, HandClock())
    first, second, whole = read(reader, 0, 333), read(reader, 333, 700), read(reader, 0, 700)
    assert {p: first[p] + second[p] for p in whole} == whole
    assert read(other, 333, 700) == second
    assert sum(map(len, whole.values())) == 700


def test_no_new_rows_mean_no_partitions() -> None:
    assert TrafficReader(TRAFFIC, HandClock()).partitions({"rows": 8}, {"rows": 8}) == []


def test_a_partition_larger_than_an_arrow_batch_comes_in_several_in_order() -> None:
    traffic = Traffic(cars=10, total=200_000, partitions=1)
    reader = TrafficReader(traffic, HandClock())
    (partition,) = reader.partitions({"rows": 0}, {"rows": 150_000})
    batches = list(reader.read(partition))
    assert len(batches) == 3
    assert pa.Table.from_batches(batches).equals(
        pa.Table.from_batches([traffic.batch(0, 0, 150_000)]).cast(batches[0].schema)
    )


def test_the_source_makes_its_reader_from_options_and_it_can_be_shipped() -> None:
    source = TrafficSource(TRAFFIC.options())
    reader = source.streamReader(None)  # type: ignore[arg-type]
    shipped = cloudpickle.loads(cloudpickle.dumps(reader))
    assert read(shipped, 0, 100) == read(TrafficReader(TRAFFIC, SystemClock()), 0, 100)
    assert TrafficSource.name() == "traffic"
