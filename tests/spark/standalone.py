"""A real Spark standalone cluster on this machine: one master and two of Spark's workers, on loopback.

Every process is started here and ended by its own id, executors included: they are the children of
Spark's workers.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from tests.patience import PATIENCE
from tests.spark.apps import alive, eventually

HOSTS = ("127.0.0.1", "localhost")
"""One of Spark's workers on each. They are one machine under two names, since Spark puts a speculative
attempt only on another host than the first."""

CORES = 3
"""Of each of Spark's workers: most applications take two of them."""


@dataclass(frozen=True)
class Standalone:
    """A running cluster."""

    master: str
    workers: tuple[int, ...]
    """Process ids of Spark's workers."""

    def executor_of(self, pid: int) -> psutil.Process | None:
        """The executor that a process runs in or under, if it is one of this cluster's."""
        process = psutil.Process(pid)
        for candidate in (process, *process.parents()):
            parent = candidate.ppid()
            if parent in self.workers and "CoarseGrainedExecutorBackend" in " ".join(candidate.cmdline()):
                return candidate
        return None


@contextlib.contextmanager
def standalone(folder: Path) -> Iterator[Standalone]:
    """Start a cluster with its logs and files in a folder; end it after use."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        log = folder / "master.log"
        ports = ("--port", "0", "--webui-port", "0")
        started.append(_start("master.Master", log, folder, "--host", "127.0.0.1", *ports))
        port = _wait_for(started[0], log, r"Starting Spark master at spark://127\.0\.0\.1:(\d+)")
        master = f"spark://127.0.0.1:{port}"
        size = ("--cores", str(CORES), "--memory", "1g")
        for number, host in enumerate(HOSTS):
            where = ("--host", host, "--work-dir", str(folder / f"work-{number}"))
            output = folder / f"worker-{number}.log"
            started.append(_start("worker.Worker", output, folder, *where, *ports, *size, master))
        for number, process in enumerate(started[1:]):
            _wait_for(process, folder / f"worker-{number}.log", r"(Successfully registered with master)")
        yield Standalone(master, tuple(process.pid for process in started[1:]))
    finally:
        _end(started)


def _start(kind: str, log: Path, folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    home = Path(pyspark.__file__).parent
    settings = {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with log.open("wb") as output:
        # The script replaces itself by Java, so the process id is that of Spark.
        return subprocess.Popen(
            [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments],
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


def _wait_for(process: subprocess.Popen[bytes], log: Path, pattern: str) -> str:
    def found() -> bool:
        text = log.read_text(errors="replace")
        assert process.poll() is None, f"a process of the cluster ended:\n{text[-4000:]}"
        return re.search(pattern, text) is not None

    eventually(found, f"{pattern!r} in {log}")
    match = re.search(pattern, log.read_text(errors="replace"))
    assert match is not None
    return match.group(1)


def _end(started: list[subprocess.Popen[bytes]]) -> None:
    executors = [
        child.pid
        for process in started
        if process.poll() is None
        for child in psutil.Process(process.pid).children(recursive=True)
    ]
    for process in reversed(started):
        process.terminate()
    for process in reversed(started):
        try:
            process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    eventually(lambda: not any(alive(pid) for pid in executors), "the executors ended with Spark's workers")
