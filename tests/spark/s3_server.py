"""An S3 server on the loopback, as a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE
from tests.spark.apps import eventually


@dataclass(frozen=True)
class S3:
    """A running server."""

    url: str

    @property
    def options(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "key": "testing",
            "secret": "testing",
            "endpoint_url": self.url,
            "client_kwargs": {"region_name": "us-east-1"},
        }

    @property
    def client(self) -> dict[str, Any]:
        """For boto3."""
        return {
            "aws_access_key_id": "testing",
            "aws_secret_access_key": "testing",
            "endpoint_url": self.url,
            "region_name": "us-east-1",
        }


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[S3]:
    """Start a server; end it after use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    url, log = f"http://127.0.0.1:{port}", folder / "server.log"
    command = [str(Path(sys.executable).parent / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)

    def answers() -> bool:
        assert server.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(f"{url}/moto-api/", timeout=5).close()
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    try:
        eventually(answers, "the S3 server answers")
        yield S3(url)
    finally:
        os.kill(server.pid, signal.SIGTERM)
        server.wait(PATIENCE)
