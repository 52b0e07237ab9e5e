"""Code blocks that the docs call runnable do run, as a new user would run them; the README's on a slow machine, too."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def blocks(*pages: Path) -> list[object]:
    """The blocks of pages that say that they run by themselves."""
    return [
        pytest.param(block, id=f"{page.relative_to(ROOT)}:{number}")
        for page in pages
        for number, block in enumerate(re.findall(r"<!-- run -->\n```python\n(.*?)```", page.read_text(), re.DOTALL))
    ]


def check(block: str, folder: Path) -> None:
    """Run a block as a program of its own, in an empty folder."""
    script = folder / "pasted.py"
    script.write_text(block)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip()
    assert "None" not in done.stdout


@pytest.mark.parametrize("block", blocks(README, *sorted((ROOT / "docs").rglob("*.md"))))
def test_a_code_block_runs(block: str, tmp_path: Path) -> None:
    check(block, tmp_path)


@pytest.fixture
def slow_machine() -> Iterator[None]:
    """Two processes that never rest, beside what runs."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
        assert [process.poll() for process in busy] == [None, None], "they have to be busy to the end"
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.usefixtures("slow_machine")
@pytest.mark.parametrize("block", blocks(README))
def test_a_block_of_the_readme_runs_on_a_machine_that_is_busy_with_something_else(block: str, tmp_path: Path) -> None:
    check(block, tmp_path)
