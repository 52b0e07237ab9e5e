"""The whole demo, small, as a user starts it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

pytestmark = pytest.mark.spark


def test_the_demo_ends_by_itself_and_its_check_is_good(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    arguments = ["--cars", "50", "--rate", "2000", "--seconds", "5", "--plain", "--json", str(summary)]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.traffic", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "check: OK" in done.stdout
    assert done.stderr == ""
    found = json.loads(summary.read_text())
    assert found["rows"] == 10_000
    assert found["check"] == {
        "ok": True,
        "states": 50,
        "cars": 50,
        "outputs": found["check"]["outputs"],
        "differences": [],
    }
    assert sum(worker["keys"] for worker in found["workers"]) == 50
    # A machine that is slow comes to the end of the traffic before all of its moves.
    assert len(found["workers"]) == [2, *(move["workers_after"] for move in found["moves"])][-1]
