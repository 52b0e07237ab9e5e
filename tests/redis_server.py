"""A Redis server for tests: of the distribution's package, which root gets installed by ``scripts/setup.sh``."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

MISSING = (
    "no redis-server on the PATH. Debian, Ubuntu: sudo apt-get update && sudo apt-get install -y redis-server; "
    "Fedora: sudo dnf install -y redis; macOS: brew install redis"
)
_SECONDS = 60.0


def available() -> bool:
    """Whether there is one."""
    return shutil.which("redis-server") is not None


needs_redis = pytest.mark.skipif(not available(), reason=MISSING)


class RedisProcess:
    """One that runs, on a port that nobody had."""

    def __init__(self, *options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bedload-redis-"))
        self.options = options
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *self.options]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([*command, "--dir", str(self.folder)], stdout=log, stderr=log)
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                if connection.recv(100):
                    return
            time.sleep(0.02)
        raise AssertionError((self.folder / "log").read_text())

    def pause(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """It ends, and forgets all."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
