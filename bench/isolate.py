"""Run one measurement in a process tree of its own, and watch that tree's memory.

Invariants:
- The function runs in a fresh interpreter that leads its own session: whatever it starts (a JVM,
  Python workers) is in that session, also when its parent has died, and is counted and ended with it.
- Nothing of a tree is left when `run_isolated` returns, whether it returned, failed or was interrupted.
- Memory is the sum of PSS: pages shared by forked workers count once.

Why: a JVM keeps heap, compiled code and caches of what ran before. Without a process of its own the
second system would be measured on what the first left behind.
"""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
SAMPLE_SECONDS = 0.25
GRACE_SECONDS = 10.0
BUSY_SECONDS = 0.3


class NotAvailable(Exception):
    """The system under test cannot run here: something that it needs is not installed or not built."""


class WrongAnswer(Exception):
    """The system ran, and its answer is not the true one."""


@dataclass(frozen=True)
class Outcome:
    """How an isolated run ended: a value, or the kind and text of an error."""

    value: dict[str, Any] | None
    error_kind: str
    error: str
    peak_mb: float
    busy_cores: float
    """How many cores others kept busy just before the run: what makes its figures doubtful."""
    seconds: float
    log: Path

    def log_tail(self, lines: int = 15) -> list[str]:
        """The last lines that the run printed."""
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]


def run_isolated(
    target: str, args: Mapping[str, Any], workdir: Path, timeout: float, sample_seconds: float = SAMPLE_SECONDS
) -> Outcome:
    """Call `target` ("module:function") with keyword `args`, all JSON, in a fresh process; see the module.

    `workdir` is made; the run's log and answer are in it. Looking at gigabytes of memory takes a while, in which their
    process gets no more of it: where short times are measured, look rarely (`sample_seconds`).
    """
    workdir.mkdir(parents=True, exist_ok=True)
    log, answer = workdir / "log.txt", workdir / "answer.json"
    python_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {
        **os.environ,
        "PYTHONPATH": python_path,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    timed_out = False
    busy = psutil.cpu_percent(interval=BUSY_SECONDS) / 100 * (os.cpu_count() or 1)
    began = time.monotonic()
    with log.open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "bench.isolate", target, json.dumps(dict(args)), str(answer)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=ROOT,
            start_new_session=True,
        )
        try:
            with _PeakMemory(child.pid, sample_seconds) as memory:
                try:
                    child.wait(timeout)
                except subprocess.TimeoutExpired:
                    timed_out = True
        finally:
            _end_session(child)
    seconds = time.monotonic() - began
    if timed_out:
        return Outcome(None, "Timeout", f"no answer after {timeout:.0f} s", memory.peak_mb, busy, seconds, log)
    if not answer.exists():
        return Outcome(
            None, "Crash", f"the process ended with code {child.returncode}", memory.peak_mb, busy, seconds, log
        )
    said = json.loads(answer.read_text(encoding="utf-8"))
    return Outcome(said.get("value"), said.get("kind", ""), said.get("error", ""), memory.peak_mb, busy, seconds, log)


class _PeakMemory:
    """Samples the memory of a session from a thread; `peak_mb` is the largest sum seen."""

    def __init__(self, session: int, seconds: float) -> None:
        self.peak_mb = 0.0
        self._seconds = seconds
        self._session = session
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)

    def __enter__(self) -> "_PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._seconds):
            total = sum(_memory_bytes(process) for process in _session_members(self._session))
            self.peak_mb = max(self.peak_mb, total / 1e6)


def _session_members(session: int) -> list[psutil.Process]:
    members = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
            if os.getsid(pid) == session:
                members.append(psutil.Process(pid))
    return members


def cpu_seconds() -> float:
    """Processor time that all processes of this one's session have had, those that have ended included."""
    total = 0.0
    for process in _session_members(os.getsid(0)):
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])  # its own and that of its children who have ended, user and system
    return total


def _memory_bytes(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        full = process.memory_full_info()
        # Only Linux tells the proportional share.
        return int(getattr(full, "pss", 0) or full.rss)
    return 0


def _end_session(child: subprocess.Popen[bytes]) -> None:
    """Wait for what the run started to end by itself, then end what is left of it."""
    running = child.poll() is None
    deadline = time.monotonic() + (0.0 if running else GRACE_SECONDS)
    while (members := _session_members(child.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        for process in members:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal_number)
        psutil.wait_procs(members, timeout=GRACE_SECONDS / 2)
        members = _session_members(child.pid)
        if not members:
            break
    child.wait()


def _main(target: str, args: str, answer: str) -> int:
    """The child's side: call the function, write what it returned or raised."""
    module, _, name = target.partition(":")
    try:
        said: dict[str, Any] = {"value": getattr(importlib.import_module(module), name)(**json.loads(args))}
    except Exception as error:
        traceback.print_exc()
        said = {"kind": type(error).__name__, "error": _first_line(error)}
    # Renamed into place, so that an answer that exists is whole.
    partial = Path(answer + ".partial")
    partial.write_text(json.dumps(said), encoding="utf-8")
    partial.rename(answer)
    return 0 if "value" in said else 1


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else ""
    return text if isinstance(error, NotAvailable | WrongAnswer) else f"{type(error).__name__}: {text}"


if __name__ == "__main__":
    # The module under test imports `bench.isolate`; its exceptions must be those caught here.
    from bench.isolate import _main as main

    sys.exit(main(*sys.argv[1:4]))
