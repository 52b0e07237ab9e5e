"""The commands that docs/how-to/run-on-standalone-spark.md has for copying, run as they are printed, on loopback."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.spark.apps import alive, eventually

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-on-standalone-spark.md"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def bash(commands: str, folder: Path) -> str:
    """Run the commands as one script, with the Python of the tests as ``python``; what they print."""
    settings = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "SPARK_DAEMON_MEMORY": "256m"}
    done = subprocess.run(
        ["bash", "-euc", commands],
        env={**os.environ, **settings},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def test_the_commands_start_a_cluster_run_a_program_on_it_and_end_it(tmp_path: Path) -> None:
    text = PAGE.read_text().replace("7077", str(free_port())).replace("8080", "0")
    start, run, stop = re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (tmp_path / "count.py").write_text(program)
    settings = "".join(line for line in start.splitlines(keepends=True) if line.startswith("export"))
    try:
        bash(start, tmp_path)
        pids = [int(file.read_text()) for file in (tmp_path / "logs").glob("*.pid")]
        assert len(pids) == 2
        said = re.findall(
            r"workers are Spark tasks: \[0, 1\] key 7 was seen (\d+) times", bash(settings + run, tmp_path)
        )
        assert len(said) == 2, "once by python, once by spark-submit"
        assert 300 <= int(said[0]) < int(said[1]), "the second goes on with the state of the first"
    finally:
        bash(settings + stop, tmp_path)
    eventually(lambda: not any(alive(pid) for pid in pids), "Spark has ended")
