"""What goes wrong at the driver's edge reaches everybody who waits: never a log alone."""

from __future__ import annotations

import errno
import queue
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.real_cluster import RealCluster

import bedload as bl
from bedload.core.errors import BedloadError, ClusterStopped, ProtocolError
from bedload.core.ids import Epoch, QueryId, WorkerId
from bedload.protocol import messages as m
from bedload.spark.driver import Driver
from bedload.transport import Channel

ROWS = [(key, 1) for key in range(20)]


class Count(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
        self.n += len(rows)
        return key, self.n


def lose(driver: Driver, worker: WorkerId) -> None:
    contact = driver._contacts.get(worker)
    assert contact is not None
    contact.peer.abort()


def broken(*_: object, **__: object) -> Any:
    raise ZeroDivisionError("a bug")


@pytest.mark.parametrize("where", ["a handler", "a pool", "a report"])
def test_a_bug_ends_the_cluster_and_every_wait_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    with RealCluster(Count, checkpoint=str(tmp_path)) as cluster:
        cluster.epoch(ROWS)
        drain = cluster.change("rescale", "all_at_once", workers=3)
        drain.result(120)
        coordinator = cluster.driver.coordinator
        target, name = {
            "a handler": (coordinator, "open"),
            "a pool": (cluster.driver._inspector, "stage"),
            "a report": (coordinator, "stage_inspected"),
        }[where]
        monkeypatch.setattr(target, name, broken)
        with pytest.raises(BedloadError):
            cluster.epoch(ROWS)
        down = cluster.driver.call(lambda c: c.error)
        assert isinstance(down, ProtocolError)
        assert "ZeroDivisionError: a bug" in down.message
        with pytest.raises(ProtocolError, match="a bug"):
            cluster.driver.checkpoint([cluster.name])


def test_a_driver_out_of_descriptors_serves_on(monkeypatch: pytest.MonkeyPatch) -> None:
    crowded: queue.Queue[OSError] = queue.Queue()
    with RealCluster(Count) as cluster:
        endpoint, driver = cluster.driver._endpoint, cluster.driver
        cluster.epoch(ROWS)
        monkeypatch.setattr(driver, "on_no_room", crowded.put)

        listener = endpoint._listener

        class Exhausted:
            fileno = listener.fileno

            def accept(self) -> Any:
                raise OSError(errno.EMFILE, "too many open files")

        monkeypatch.setattr(endpoint, "_listener", Exhausted())
        driver.call(lambda c: endpoint._accept(0))
        monkeypatch.undo()
        assert crowded.get(timeout=PATIENCE).errno == errno.EMFILE
        cluster.epoch(ROWS)
        assert driver.call(lambda c: c.error) is None


def test_a_plan_that_cannot_be_read_any_more_after_an_epoch_without_rows_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with RealCluster(Count) as cluster:
        asked = threading.Event()

        def gone(query: QueryId, epoch: Epoch) -> bool:
            asked.set()
            raise ConnectionRefusedError("Spark is being stopped")

        monkeypatch.setattr(cluster.driver._plans, "fed_nothing", gone, raising=False)
        cluster.driver.nothing_read(QueryId("query"), Epoch(0))
        assert asked.wait(120)
        cluster.driver._thread._plans.submit(lambda: None).result(120)
        assert cluster.driver.call(lambda c: c.error) is None
        cluster.epoch(ROWS)


def test_a_coordinator_that_gives_no_answer_is_an_error_with_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    monkeypatch.setattr("bedload.spark.coordinator_thread._ANSWER_SECONDS", 0.2)
    free = threading.Event()
    with RealCluster(Count) as cluster:

        def stands_still() -> None:
            free.wait(120)

        cluster.driver._endpoint.call_soon(stands_still)
        with pytest.raises(ProtocolError, match="in stands_still"):
            cluster.driver.call(lambda c: None)
        free.set()


def test_a_second_worker_of_a_number_takes_over_when_the_first_is_lost(tmp_path: Path) -> None:
    """Its host is gone without a word, and Spark has started its task elsewhere before anybody noticed."""
    with RealCluster(Count, checkpoint=str(tmp_path)) as cluster:
        driver = cluster.driver
        cluster.epoch(ROWS)

        def register() -> Channel:
            channel = Channel.connect(driver.address, cluster.credentials)
            channel.send(m.encode(m.Register(WorkerId(1), "127.0.0.1:1", 4711)))
            return channel

        with register() as spare:
            while driver.call(lambda c: not driver._contacts._spares):
                pass
            assert driver.call(lambda c: c.error) is None
            driver.call(lambda c: lose(driver, WorkerId(1)))
            first = m.decode(spare.recv(120).header)
            assert isinstance(first, m.Watch)
            second = m.decode(spare.recv(120).header)  # it is given the code: it is the worker now
            assert isinstance(second, m.Deploy)
            assert driver.call(lambda c: c.members.pids[WorkerId(1)]) == 4711


def test_a_spare_that_went_away_takes_nothing_over_and_another_does(tmp_path: Path) -> None:
    with RealCluster(Count, checkpoint=str(tmp_path)) as cluster:
        driver = cluster.driver
        cluster.epoch(ROWS)
        spares = [Channel.connect(driver.address, cluster.credentials) for _ in range(2)]
        for pid, spare in enumerate(spares, 4711):
            spare.send(m.encode(m.Register(WorkerId(1), "127.0.0.1:1", pid)))
        while driver.call(lambda c: len(driver._contacts._spares) < 2):
            pass
        spares.pop().close()
        while driver.call(lambda c: len(driver._contacts._spares) == 2):
            pass
        driver.call(lambda c: lose(driver, WorkerId(1)))
        assert isinstance(m.decode(spares[0].recv(120).header), m.Watch)
        assert driver.call(lambda c: c.members.pids[WorkerId(1)]) == 4711
        spares.pop().close()
        cluster.restart()
        cluster.epoch(ROWS)
        assert cluster.state.get(3)["n"] == 2  # type: ignore[index]


def test_a_driver_that_was_stopped_says_so(tmp_path: Path) -> None:
    with RealCluster(Count) as cluster:
        cluster.driver.stop()
        with pytest.raises(ClusterStopped):
            cluster.driver.call(lambda c: None)
    assert isinstance(cluster.driver, Driver)
