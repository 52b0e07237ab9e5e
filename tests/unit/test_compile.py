"""``python -m bedload.compile``: after it, no process compiles a kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import bedload

AFTER = """
from numba.core import event
compiled = []
class Listener(event.Listener):
    def on_start(self, event): compiled.append(event.data["dispatcher"].py_func.__name__)
    def on_end(self, event): pass
with event.install_listener("numba:compile", Listener()):
    from bedload.compile import compile_all
    assert compile_all() > 30
print(sorted(set(compiled)))
"""


def test_what_was_compiled_ahead_is_compiled_by_nobody_again(tmp_path: Path) -> None:
    package = Path(bedload.__file__).parent
    copy = shutil.copytree(package, tmp_path / "site" / "bedload", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(copy.parent), "NUMBA_CACHE_DIR": ""}
    run = subprocess.run(
        [sys.executable, "-m", "bedload.compile"], env=environment, check=True, capture_output=True, text=True
    )
    assert "done: " in run.stdout
    assert list(Path(copy).rglob("*.nbc"))
    again = subprocess.run([sys.executable, "-c", AFTER], env=environment, check=True, capture_output=True, text=True)
    assert again.stdout.strip() == "[]"


def test_numba_is_loaded_by_nobody_who_has_no_kernel_to_run() -> None:
    script = (
        "import sys, bedload as bl, bedload.spark.feeder, bedload.worker.__main__, bedload.testing\n"
        "bl.attach, bl.agg, bl.VectorOperator\n"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
