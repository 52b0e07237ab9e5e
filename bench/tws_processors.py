"""The processors that both engines run, as they are: written for Spark's ``transformWithState``, in both of its forms.

Invariants:
- What comes out depends on the rows alone, not on their order within a key and batch, which Spark does not promise.
- Nothing of Bedload is in here.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

# ruff: noqa: N802, N803  Spark's names

OUTPUT = "key long, n long, x long"
RECENT = 20
"""So many of a key's rows are kept in the list."""
TTL_MS = 3_600_000
"""An hour: nothing ends while it is measured, so that results can be compared; keeping count of it is what costs."""


class CountRows(StatefulProcessor):
    """One value: a read and a write for each key and batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._n = handle.getValueState("n", "n long")

    def _add(self, more: int) -> int:
        state = self._n.get()
        n = (state[0] if state is not None else 0) + more
        self._n.update((n,))
        return n

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        n = self._add(sum(1 for _ in rows))
        yield Row(key=key[0], n=n, x=0)


class CountFrames(CountRows):
    """The same on DataFrames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        n = self._add(sum(len(frame) for frame in rows))
        yield pd.DataFrame({"key": [key[0]], "n": [n], "x": [0]})


class ProductsRows(StatefulProcessor):
    """A map of counters by product: a read and a write of an entry for each product of a key's rows."""

    ttl: int | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._counts = handle.getMapState("counts", "product int", "n long", self.ttl)

    def _add(self, products: Any) -> tuple[int, int]:
        most = 0
        for product, more in products:
            old = self._counts.getValue((product,))
            n = (old[0] if old is not None else 0) + more
            self._counts.updateValue((product,), (n,))
            most = max(most, n)
        return most, sum(1 for _ in self._counts.keys())  # noqa: SIM118  Spark's map is no dict

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        n, x = self._add(Counter(row.product for row in rows).items())
        yield Row(key=key[0], n=n, x=x)


class ProductsFrames(ProductsRows):
    """The same on DataFrames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        counts = Counter[int]()
        for frame in rows:
            counts.update(frame["product"].tolist())
        n, x = self._add(counts.items())
        yield pd.DataFrame({"key": [key[0]], "n": [n], "x": [x]})


class ExpiringRows(ProductsRows):
    """The same map with a TTL."""

    ttl = TTL_MS


class ExpiringFrames(ProductsFrames):
    """The same on DataFrames."""

    ttl = TTL_MS


class RecentRows(StatefulProcessor):
    """A list of a key's last rows: what is older than those is evicted."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._recent = handle.getListState("recent", "value long")

    def _add(self, values: list[int]) -> tuple[int, int]:
        kept = sorted([*(value for (value,) in self._recent.get()), *values])[-RECENT:]
        self._recent.put([(value,) for value in kept])
        return len(kept), sum(kept)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        n, x = self._add([row.value for row in rows])
        yield Row(key=key[0], n=n, x=x)


class RecentFrames(RecentRows):
    """The same on DataFrames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        n, x = self._add([value for frame in rows for value in frame["value"].tolist()])
        yield pd.DataFrame({"key": [key[0]], "n": [n], "x": [x]})


class SessionsRows(StatefulProcessor):
    """Sessions by event time: each batch moves the timer of the keys that it has; a key that is silent is closed."""

    gap_ms = 500
    """Half of what a batch is after the one before: a key without rows in two batches ends in the second."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._session = handle.getValueState("session", "n long, ends long")

    def _add(self, more: int, last: Any) -> None:
        state = self._session.get()
        ends = int(last.timestamp() * 1000) + self.gap_ms
        if state is not None:
            self._handle.deleteTimer(state[1])
        self._handle.registerTimer(ends)
        self._session.update(((state[0] if state is not None else 0) + more, ends))

    def _close(self) -> tuple[int, int]:
        n, ends = self._session.get() or (0, 0)
        self._session.clear()
        return n, ends

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        times = [row.timestamp for row in rows]
        self._add(len(times), max(times))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        n, ends = self._close()
        yield Row(key=key[0], n=n, x=ends)


class SessionsFrames(SessionsRows):
    """The same on DataFrames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        times = [(len(frame), frame["timestamp"].max()) for frame in rows]
        self._add(sum(n for n, _ in times), max(last for _, last in times))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        n, ends = self._close()
        yield pd.DataFrame({"key": [key[0]], "n": [n], "x": [ends]})


PROCESSORS: dict[tuple[str, str], tuple[type[StatefulProcessor], str]] = {
    ("count", "rows"): (CountRows, "None"),
    ("count", "pandas"): (CountFrames, "None"),
    ("map", "rows"): (ProductsRows, "None"),
    ("map", "pandas"): (ProductsFrames, "None"),
    ("list", "rows"): (RecentRows, "None"),
    ("list", "pandas"): (RecentFrames, "None"),
    ("timers", "rows"): (SessionsRows, "EventTime"),
    ("timers", "pandas"): (SessionsFrames, "EventTime"),
    ("ttl", "rows"): (ExpiringRows, "ProcessingTime"),
    ("ttl", "pandas"): (ExpiringFrames, "ProcessingTime"),
}
"""By what they do and their form: the class, and its time mode."""
