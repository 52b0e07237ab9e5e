"""The public door: complete, sorted, and cheap to open."""

from __future__ import annotations

import subprocess
import sys

import pytest

import bedload


def test_all_is_sorted_and_everything_in_it_is_there() -> None:
    assert bedload.__all__ == sorted(bedload.__all__)
    for name in bedload.__all__:
        assert getattr(bedload, name) is not None


def test_everything_public_is_in_all() -> None:
    packages = {
        "checkpoint",
        "control",
        "core",
        "keys",
        "migration",
        "operators",
        "protocol",
        "spark",
        "state",
        "store",
        "testing",
        "transport",
        "worker",
    }
    imported = {"TYPE_CHECKING", "Any", "import_module"}
    public = {name for name in vars(bedload) if not name.startswith("_")} - packages - imported
    assert public <= set(bedload.__all__)


def test_a_name_that_is_not_there_says_so() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        bedload.nothing  # noqa: B018


def test_importing_bedload_imports_neither_pyspark_nor_numba() -> None:
    """Worker processes are many and start often: they do without what they may not need."""
    code = (
        "import sys, bedload, bedload.worker.server, bedload.testing; "
        "print('pyspark' in sys.modules or 'numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_what_is_imported_on_first_use_is_listed_before() -> None:
    script = "import bedload as bl\nassert set(bl.__all__) <= set(dir(bl)), dir(bl)"
    subprocess.run([sys.executable, "-c", script], check=True)
