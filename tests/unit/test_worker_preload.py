"""A worker that may have state to read back loads the compiled code ahead; one that has none does without."""

import subprocess
import sys

import pytest
from tests.patience import PATIENCE

SCRIPT = """
import sys
from bedload.core.ids import Generation
from bedload.worker.durable import Place
from bedload.worker.server import _preload

generation = int(sys.argv[1])
thread = _preload(None if generation == 0 else Place("file:///nowhere", Generation(generation)))
if thread is not None:
    thread.join()
print(thread is not None, "bedload.checkpoint.restore" in sys.modules, "numba" in sys.modules)
"""


@pytest.mark.parametrize(("generation", "loaded"), [(0, False), (1, False), (2, True)])
def test_compiled_code_is_loaded_ahead_only_where_another_attachment_was_before(generation: int, loaded: bool) -> None:
    # In a process of its own: what is imported is a matter of the whole process.
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(generation)], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert ran.stdout.split() == [str(loaded)] * 3
