"""Live reads from many threads, of real worker processes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.patience import PATIENCE
from tests.real_cluster import RealCluster

import bedload as bl

KEYS = 64


class Total(bl.Operator):
    """The sum of a key's values; 1,000 for each and the key itself after the first epoch."""

    n: int = bl.value(0)

    def process(self, key, rows, ctx):  # type: ignore[no-untyped-def]
        self.n += sum(row.x for row in rows)
        return key, self.n


class Readers:
    """Threads that read different keys until they are told to stop, and note what was wrong."""

    def __init__(self, cluster: RealCluster, threads: int, right: Callable[[int, int], bool]) -> None:
        self.wrong: list[object] = []
        self.counts = [0] * threads
        self._stop = threading.Event()
        self._cluster = cluster
        self._right = right
        self._threads = [threading.Thread(target=self._read, args=(number,)) for number in range(threads)]

    def _read(self, number: int) -> None:
        turn = number
        while not self._stop.is_set() and not self.wrong:
            turn += 1
            key = (turn * 7 + number * 13) % KEYS
            try:
                answer = self._cluster.state.get(key, timeout=PATIENCE)
            except BaseException as error:
                self.wrong.append(error)
                return
            if answer is None or answer.key != key or not self._right(key, answer["n"]):
                self.wrong.append((key, answer))
            self.counts[number] += 1

    def __enter__(self) -> Readers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    def reach(self, reads: int) -> None:
        """Wait until each thread has read so often again."""
        goals = [count + reads for count in self.counts]
        while not self.wrong and any(count < goal for count, goal in zip(self.counts, goals, strict=True)):
            self._stop.wait(0.01)
        assert self.wrong == []


def start(key: int) -> int:
    return 1000 + key


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
def test_every_thread_gets_the_state_of_its_own_key(encrypted: bool) -> None:
    with RealCluster(Total, workers=1, encrypted=encrypted) as cluster:
        cluster.epoch((key, start(key)) for key in range(KEYS))
        with Readers(cluster, 8, lambda key, n: n == start(key)) as readers:
            readers.reach(60)
        assert cluster.state.count() == KEYS


def test_reads_are_right_while_keys_move_and_workers_come_and_go() -> None:
    with RealCluster(Total, encrypted=True) as cluster:
        cluster.epoch((key, start(key)) for key in range(KEYS))
        with Readers(cluster, 6, lambda key, n: n >= start(key) and (n - key) % 1000 == 0) as readers:
            for workers in (3, 1, 2):
                done = cluster.change("rescale", workers=workers)
                while not done.done():
                    cluster.epoch((key, 1000) for key in range(KEYS))
                done.result(PATIENCE)
                readers.reach(5)
                assert cluster.state.count() == KEYS


def test_reads_are_right_while_a_worker_is_replaced(tmp_path: Path) -> None:
    with RealCluster(Total, checkpoint=tmp_path.as_uri(), encrypted=True) as cluster:
        cluster.epoch((key, start(key)) for key in range(KEYS))
        with Readers(cluster, 6, lambda key, n: n == start(key)) as readers:
            readers.reach(5)
            lost = cluster.pids()
            os.kill(next(iter(lost.values())), signal.SIGKILL)
            while len(pids := cluster.pids()) < len(lost) or pids == lost:
                assert readers.wrong == []
            readers.reach(5)
        assert cluster.state.count() == KEYS
