"""Spark applications that tests run as processes of their own, and the means to watch them.

An application prints one JSON object per line on standard output; ``say`` is its side and :class:`App`
the test's. Everything that waits has an end, and says what it waited for.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[3]


_saying = threading.Lock()


def say(what: str, **details: Any) -> None:
    """Tell the test something; from any thread, a line each."""
    line = json.dumps({"event": what, **details}) + "\n"
    with _saying:
        sys.stdout.write(line)
        sys.stdout.flush()


def alive(pid: int) -> bool:
    """Whether a process runs. One that ended and was not waited for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def eventually(holds: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Wait until something holds; fails if it does not come to that."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:g} seconds: {what}"
        time.sleep(0.05)


class App:
    """A running application."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._log = log
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._last: list[dict[str, Any] | None] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def expect(self, what: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """The next event of that name; fails if the application ends or is silent before it."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                event = self._last.pop() if self._last else self._next(deadline)
            except queue.Empty:
                self.process.send_signal(signal.SIGUSR1)  # says where it is
                time.sleep(2)
                raise AssertionError(f"no {what!r} within {seconds:g} seconds:\n{self.log(200)}") from None
            assert event is not None, f"the application ended before {what!r}:\n{self.log()}"
            if event["event"] == what:
                return event
            assert event["event"] != "failed", f"the application failed before {what!r}: {event}"

    def _next(self, deadline: float) -> dict[str, Any] | None:
        return self._events.get(timeout=max(0.0, deadline - time.monotonic()))

    def latest(self, what: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """The last event of that name that has come; waits for one if there is none."""
        found = self.expect(what, seconds)
        with contextlib.suppress(queue.Empty):
            while (event := self._events.get_nowait()) is not None and event["event"] not in ("done", "failed"):
                found = event if event["event"] == what else found
            self._last.append(event)  # what the application ends with is for who waits for it
        return found

    def ends(self, seconds: float = PATIENCE) -> None:
        """Wait for its end; fails if that is not a good one."""
        try:
            code = self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the application did not end within {seconds:g} seconds:\n{self.log()}") from None
        assert code == 0, f"the application ended with code {code}:\n{self.log()}"

    def kill(self) -> None:
        """End the driver process as a crash would."""
        self.process.kill()
        self.process.wait()

    def log(self, lines: int = 40) -> str:
        """The end of what it wrote to standard error."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def close(self) -> None:
        """End it if it still runs."""
        if self.process.poll() is None:
            self.kill()
        self._reader.join(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._events.put(json.loads(line))
        self._events.put(None)


@contextlib.contextmanager
def running(name: str, folder: Path, *arguments: str) -> Iterator[App]:
    """Start the application of that name, with its files in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "app.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", f"tests.spark.apps.{name}", str(folder), *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        )
    app = App(process, log)
    try:
        yield app
    finally:
        app.close()
