"""What the fault tests and the soak share: applications that are killed and started again, and the check after."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.patience import PATIENCE
from tests.spark.apps import App, alive, eventually, running
from tests.spark.apps.recovering import Settings
from tests.spark.tally import KINDS, check_epochs, check_states, file_sink

QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""Starting is most of what these sessions do."""


@contextlib.contextmanager
def recovering(kept: Path, number: int, **settings: Any) -> Iterator[App]:
    """Start the application for the n-th time; nothing of it runs after that."""
    told = Settings(folder=str(kept), **settings)
    told.spark = {"spark_driver_extraJavaOptions": QUICK_JVM, **told.spark}
    kept.mkdir(parents=True, exist_ok=True)
    with running("recovering", kept / f"app-{number}", json.dumps(dataclasses.asdict(told))) as app:
        try:
            yield app
        finally:
            end(app)


def end(app: App) -> None:
    """Kill what is left of an application: the driver, its JVM, the workers."""
    left = family(app.pid) if app.process.poll() is None else []
    if app.process.poll() is None:
        app.kill()
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not any(alive(pid) for pid in left), "all processes of the application are gone")


def family(pid: int) -> list[int]:
    """A process and all below it."""
    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def kill(*pids: int) -> None:
    """As a crash would."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_driver(app: App, jvm: Sequence[int], whole: bool) -> None:
    """End the driver: its Python process, or only the JVM below it. Returns when both are gone."""
    below = family(app.pid)
    if whole:
        app.kill()
    else:
        kill(*jvm)
    app.process.wait(timeout=PATIENCE)
    # Spark's JVM and the workers watch their standard input: they end by themselves when the driver is gone.
    eventually(lambda: not any(alive(pid) for pid in below), "the JVM and the workers ended with the driver")


def check_sinks(kept: Path, epochs: int) -> dict[str, int]:
    """Both sinks have everything once, up to at least so many epochs; how many they have."""
    found = {}
    for kind in KINDS:
        rows = file_sink(kept / f"sink-{kind}")
        check_epochs(kind, rows, epochs)
        found[kind] = len(rows)
    return found


def wake(*pids: int) -> None:
    """Let processes go on that were stopped."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def check_done(kept: Path, done: dict[str, Any], epochs: int) -> dict[str, int]:
    """Sinks and states of an application that came to its end are those of one that never failed."""
    found = check_sinks(kept, epochs)
    for kind in KINDS:
        epoch = check_states(kind, {int(key): state for key, state in done["states"][kind].items()})
        assert epoch in (found[kind] - 1, found[kind] - 2)
    return found
