"""One round: what is drawn, and how it is carried out."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.simulator.chance import Chance
from tests.soak.links import Links, ports_of
from tests.spark.apps import App
from tests.spark.apps.beside import INPUTS, check_beside, check_beside_states
from tests.spark.faults import check_done, check_sinks, kill, kill_driver, recovering, wake
from tests.spark.faulty_store import PROTOCOL, Faults, install
from tests.spark.standalone import Standalone
from tests.spark.tally import KINDS

EPOCHS_AFTER = 5
"""How many epochs the last start adds to what is in the sinks."""

SILENT_SECONDS = 8
"""After so long a worker that hangs is given up."""

_EXECUTORS = {"spark_executor_cores": "2", "spark_executor_memory": "512m", "spark_cores_max": "4"}


@dataclass(frozen=True)
class Means:
    """What there is to do harm with."""

    machines: Standalone | None = None
    links: Links | None = None
    done: Counter[str] = field(default_factory=Counter)
    """The harm that was done, by its kind."""


@dataclass(frozen=True)
class Shape:
    """How the application is started."""

    workers: int
    host: str
    machines: Standalone | None
    moves: int | None = None
    """A seed, if state is moved about as well."""

    @property
    def settings(self) -> dict[str, Any]:
        if self.machines is None:
            return {"workers": self.workers, "host": self.host, "moves": self.moves, "most": self.most}
        more = {"moves": self.moves, "most": self.most}
        return more | {"workers": self.workers, "host": "task", "master": self.machines.master, "spark": _EXECUTORS}

    @property
    def most(self) -> int:
        """Workers in tasks take the slots that feeders need."""
        return 4 if self.host == "process" and self.machines is None else 2

    def __str__(self) -> str:
        where = "executors" if self.machines is not None else f"{self.host}es" if self.host == "process" else "tasks"
        return f"{self.workers} workers in {where}{', moving' if self.moves is not None else ''}"


class Round:
    """One checkpoint, from its first epoch to the check."""

    def __init__(self, folder: Path, chance: Chance, tell: Callable[[str], None], means: Means | None = None) -> None:
        means = means or Means()
        self._folder = folder
        self._chance = chance
        self._tell = tell
        self._machines = means.machines if means.machines is not None and chance.happens(0.4) else None
        self._links = means.links
        self._done = means.done
        # Executors could not import the store that fails.
        fails = chance.happens(0.5) and self._machines is None
        self._faults: Faults | None = install(folder / "store") if fails else None
        self._beside = chance.pick([*INPUTS, *INPUTS, ""])
        self._starts = 0
        self._stopped: set[int] = set()
        """Processes that were stopped for good."""

    def run(self, starts: int | None = None) -> dict[str, int]:
        """All starts, then the check; how many epochs each sink has."""
        starts = self._chance.number(1, 3) if starts is None else starts
        store = "a store that fails" if self._faults is not None else "local files"
        beside = f", a query on {self._beside} beside the others" if self._beside else ""
        self._tell(f"{starts} starts with faults, on {store}{beside}")
        self._done[f"beside: {self._beside or 'nothing'}"] += 1
        for _ in range(starts):
            self._start_and_kill()
        return self._start_and_finish()

    # --- steps ---

    def _settings(self) -> dict[str, Any]:
        more = {"silent_seconds": SILENT_SECONDS, "beside": self._beside, "seed": self._chance.number(0, 1 << 30)}
        if self._faults is None:
            return more
        url = f"{PROTOCOL}://{self._folder}/bedload"
        return more | {"checkpoint": url, "options": self._faults.options, "storage_at": str(self._faults.folder)}

    def _shape(self) -> Shape:
        # Spark's Python processes know the store that fails as little as executors do.
        hosts = ["process"] if self._faults is not None else ["process", "process", "task"]
        moves = self._chance.number(0, 1 << 30) if self._chance.happens(0.7) else None
        return Shape(self._chance.number(1, 2 if moves else 3), self._chance.pick(hosts), self._machines, moves)

    def _start_and_kill(self) -> None:
        shape = self._shape()
        self._starts += 1
        self._tell(f"start {self._starts}: {shape}")
        with recovering(self._folder, self._starts, epochs=100_000, **shape.settings, **self._settings()) as app:
            if self._chance.happens(0.15):
                jvm = app.expect("attached")["jvm"]
            else:
                running = app.expect("running")
                jvm = running["jvm"]
                self._await_epochs(app, self._chance.number(0, 3))
                for _ in range(self._chance.number(1, 3)):
                    self._pause(2000)
                    self._strike(app, shape, running["port"])
            self._pause(3000)
            whole = self._chance.happens(0.6)
            self._done["driver" if whole else "JVM"] += 1
            # One that is stopped would not notice the end of the driver.
            wake(*self._stopped)
            self._tell(f"  kill the {'driver' if whole else 'JVM of the driver'}")
            kill_driver(app, jvm, whole=whole)
        if self._faults is not None:
            self._faults.tell()
        self._tell(f"  in the sinks: {self._check_sinks()}")

    def _start_and_finish(self) -> dict[str, int]:
        epochs = max(check_sinks(self._folder, 0).values()) + EPOCHS_AFTER
        shape = self._shape()
        self._starts += 1
        self._tell(f"start {self._starts}, to the end: {shape}, up to {epochs} epochs")
        with recovering(self._folder, self._starts, epochs=epochs, **shape.settings, **self._settings()) as app:
            port = app.expect("running")["port"]
            self._await_epochs(app, self._chance.number(0, 2))
            self._strike(app, shape, port)
            done = app.expect("done")
            app.ends()
        found = check_done(self._folder, done, epochs)
        if self._beside:
            check_beside_states(self._folder, done["states"])
            found["beside"] = check_beside(self._folder)
        return found

    def _check_sinks(self) -> dict[str, int]:
        return check_sinks(self._folder, 0) | ({"beside": check_beside(self._folder)} if self._beside else {})

    def _strike(self, app: App, shape: Shape, port: int) -> None:
        kinds = ["worker", "all workers", "hang", "hang"]
        kinds += ["loss", "cut", "cut"] if self._links is not None else []
        kinds += ["executor"] if shape.machines is not None else []
        kinds += ["store", "store"] if self._faults is not None else []
        kind = self._chance.pick(kinds)
        self._done[kind] += 1
        match kind:
            case "store":
                self._trouble()
            case "executor":
                self._kill_executor(app, shape)
            case "hang":
                self._hang(app)
            case "loss":
                self._lose()
            case "cut":
                self._cut(app, port)
            case "all workers":
                workers = app.latest("epoch")["workers"]
                self._tell(f"  kill all {len(workers)} workers")
                kill(*workers.values())
            case _:
                victim, pid = self._victim(app)
                self._tell(f"  kill worker {victim}, process {pid}")
                kill(*([] if pid is None else [pid]))

    def _victim(self, app: App) -> tuple[str, int | None]:
        """One of the workers that are there just now, and its process."""
        workers: dict[str, int] = app.latest("epoch")["workers"]
        victim = self._chance.pick(sorted(workers) or ["0"])
        return victim, workers.get(victim)

    def _await_epochs(self, app: App, count: int) -> None:
        """Wait until both queries have done so many epochs in this start; the one beside them may be far slower."""
        first = app.expect("epoch")["epochs"]
        news = first
        while any(news[kind] < first[kind] + count for kind in KINDS):
            news = app.expect("epoch")["epochs"]

    def _hang(self, app: App) -> None:
        victim, pid = self._victim(app)
        # Shorter than anybody notices; about when it is given up; for good.
        seconds = self._chance.pick([self._chance.number(1, 5), self._chance.number(7, 11), 0])
        self._tell(f"  stop worker {victim}, process {pid}, {f'for {seconds} seconds' if seconds else 'for good'}")
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            if seconds:
                time.sleep(seconds)
                os.kill(pid, signal.SIGCONT)
                self._tell(f"  worker {victim} goes on")
            else:
                self._stopped.add(pid)

    def _lose(self) -> None:
        assert self._links is not None
        percent, seconds = self._chance.pick([2, 5, 15]), self._chance.number(2, 8)
        self._tell(f"  {percent} of 100 packets are lost for {seconds} seconds")
        self._links.lose(percent)
        self._heal(seconds)

    def _cut(self, app: App, port: int) -> None:
        """Shorter and longer than a worker may be silent; to a worker also longer than a host may be.

        Not to the driver: a new worker that does not reach it for long is given up, and without any the cluster ends.
        """
        assert self._links is not None
        seconds = self._chance.pick([self._chance.number(1, 5), self._chance.number(9, 12)])
        if self._chance.happens(0.4):
            self._done["cut from the driver"] += 1
            self._tell(f"  cut the links to the driver for {seconds} seconds")
            self._links.cut(port)
        else:
            seconds = 40 if self._chance.happens(0.15) else seconds
            victim, pid = self._victim(app)
            ports = [] if pid is None else ports_of(pid)
            self._tell(f"  cut the links to worker {victim}, ports {ports}, for {seconds} seconds")
            for its in ports:
                self._links.cut(its)
        self._heal(seconds)

    def _heal(self, seconds: float) -> None:
        assert self._links is not None
        try:
            time.sleep(seconds)
        finally:
            self._links.heal()
        self._tell("  all links are well")

    def _trouble(self) -> None:
        assert self._faults is not None
        what = self._chance.pick([{"every": 1}, {"every": 3}, {"every": 7}, {"slow": 0.05}])
        self._tell(f"  the store: {what}")
        self._faults.tell(**what)
        self._pause(3000)
        self._faults.tell()
        self._tell("  the store is well")

    def _kill_executor(self, app: App, shape: Shape) -> None:
        assert shape.machines is not None
        workers = app.latest("epoch")["workers"]
        with contextlib.suppress(psutil.NoSuchProcess):
            for worker, pid in workers.items():
                executor = shape.machines.executor_of(pid)
                if executor is not None:
                    self._tell(f"  kill the executor of worker {worker}")
                    kill(executor.pid)
                    return

    def _pause(self, milliseconds: int) -> None:
        time.sleep(self._chance.number(0, milliseconds) / 1000)
