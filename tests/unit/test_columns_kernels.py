"""Compiled kernels: large hash tables stay right and short to search, and every kernel is compiled once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numba.core import caching

import bedload
from bedload.store.columns import ColumnSpec, ColumnTable, byte_kernels, compiling, kernels, warm_up

N = ColumnSpec("n", pa.int64(), 0)
KERNELS = [
    kernels.locate,
    kernels.find,
    kernels.remove,
    kernels.rehash,
    kernels.slots_in,
    byte_kernels.intern,
    byte_kernels.sweep,
    byte_kernels.measure,
    byte_kernels.write,
]


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_tables_of_many_keys_stay_right_when_keys_come_and_go(kind: pa.DataType) -> None:
    table = ColumnTable([kind], [N], 7, block=16)
    rng = np.random.default_rng(5)
    there: set[int] = set()
    for _ in range(6):
        come = rng.choice(60_000, 20_000, replace=False)
        slots = table.locate([pa.array(come).cast(kind)], come % 7)
        table.values("n")[slots] = come
        there |= set(come.tolist())
        table.commit()
        go = rng.choice(60_000, 15_000, replace=False)
        slots = table.find([pa.array(go).cast(kind)], go % 7)
        table.discard(slots[slots >= 0])
        there -= set(go.tolist())
        table.check()
        everything = np.arange(60_000)
        slots = table.find([pa.array(everything).cast(kind)], everything % 7)
        assert set(np.flatnonzero(slots >= 0).tolist()) == there
        assert table.values("n")[slots[slots >= 0]].tolist() == sorted(there)


@pytest.mark.parametrize(
    "keys",
    [
        pa.array(np.arange(50_000)),
        pa.array(np.arange(50_000) << 32),
        pa.array(np.arange(50_000) * 4096),
        pa.array(np.arange(50_000).astype(np.float64)),
        pa.array(np.arange(50_000)).cast(pa.string()),
        pa.array([f"{i:040d}" for i in range(50_000)]),
        pa.array(["x" * i for i in range(1000)]),
    ],
    ids=["counted", "high bits", "pages", "doubles", "short", "long", "lengths"],
)
def test_keys_with_a_pattern_do_not_pile_up(keys: pa.Array) -> None:
    table = ColumnTable([keys.type], [N], 1)
    table.locate([keys], np.zeros(len(keys)))
    tables = [table.index._tables]
    if pa.types.is_string(keys.type):
        tables.append(table.words._columns[0]._interner._tables)  # type: ignore[attr-defined]
    for hashed in tables:
        steps = []
        for offset, capacity, _, _ in hashed.list.tolist():
            entries = hashed.entries[offset : offset + capacity]
            at = np.flatnonzero(entries)
            steps += ((at - (entries[at] >> 32)) & (capacity - 1)).tolist() if capacity else []
        assert len(steps) == len(keys)
        # With a random hash it is 1.5 at 80 percent load.
        assert sum(steps) / len(steps) < 3


def test_every_kernel_is_compiled_for_one_type_of_arguments() -> None:
    warm_up()
    for kernel in KERNELS:
        assert len(kernel.signatures) == 1  # type: ignore[attr-defined]
    for keys in (
        [pa.array([1, 2, 3])],
        [pa.array([1.5, None]), pa.array([b"a", b"b"], pa.large_binary()), pa.array([True, False])],
        [pa.array(["a", "b"]).dictionary_encode()],
        [pa.array(["a", "b", None]).slice(1, 1)],
    ):
        table = ColumnTable([column.type for column in keys], [N, ColumnSpec("x", pa.float32())], 2)
        for kind in (np.int16, np.int64):
            slots = table.locate(keys, np.zeros(len(keys[0]), kind))
        table.find(keys, np.zeros(len(keys[0]), np.uint8))
        table.commit()
        table.extract(slots)
        table.discard(slots)
    for kernel in KERNELS:
        assert len(kernel.signatures) == 1  # type: ignore[attr-defined]


def test_without_a_place_to_keep_it_a_kernel_is_still_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])

    def double(number: int) -> int:
        return 2 * number

    compiled: Any = compiling.jit(double)
    assert compiled(4) == 8
    assert len(compiled.signatures) == 1


SCRIPT = textwrap.dedent("""
    import sys
    import numpy as np
    from numba.core import caching

    def refuse(self):
        raise OSError("read-only")

    if "read-only" in sys.argv:
        caching.InTreeCacheLocator.ensure_cache_path = refuse
    from bedload.store.columns import kernels

    entries = np.zeros(8, np.int64)
    entries[3] = 5 << 32 | 1
    kernels.rehash(entries, 0, 4, 4, 4)
    assert entries.tolist() == [0, 0, 0, 5 << 32 | 1, 0, 5 << 32 | 1, 0, 0], entries
    print(sum(kernels.rehash.stats.cache_hits.values()))
""")


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )


def cache_hits(process: subprocess.Popen[str]) -> int:
    output, _ = process.communicate()
    assert process.returncode == 0
    return int(output)


def test_processes_that_compile_at_once_share_what_they_keep(tmp_path: Path) -> None:
    for process in [start(NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2)]:
        cache_hits(process)
    assert cache_hits(start(NUMBA_CACHE_DIR=str(tmp_path))) == 1


@pytest.fixture
def installation(tmp_path: Path) -> Path:
    """A copy of the package in which nothing was compiled yet."""
    package = Path(bedload.__file__).parent
    return Path(shutil.copytree(package, tmp_path / "site" / "bedload", ignore=shutil.ignore_patterns("__pycache__")))


def test_a_read_only_installation_keeps_compiled_code_with_the_user(tmp_path: Path, installation: Path) -> None:
    own = {"XDG_CACHE_HOME": str(tmp_path / "user"), "NUMBA_CACHE_DIR": "", "PYTHONPATH": str(installation.parent)}
    assert cache_hits(start("read-only", **own)) == 0
    assert list((tmp_path / "user").rglob("*.nbc"))
    assert cache_hits(start("read-only", **own)) == 1


@pytest.mark.parametrize("elsewhere", ["", "cache"])
def test_a_read_only_installation_uses_what_was_compiled_in_it(
    tmp_path: Path, installation: Path, elsewhere: str
) -> None:
    own = {"XDG_CACHE_HOME": str(tmp_path / "user"), "NUMBA_CACHE_DIR": "", "PYTHONPATH": str(installation.parent)}
    assert cache_hits(start(**own)) == 0  # by somebody who may write to it
    assert list(installation.rglob("*.nbc"))
    assert cache_hits(start("read-only", **{**own, "NUMBA_CACHE_DIR": elsewhere and str(tmp_path / elsewhere)})) == 1
    assert not list((tmp_path / "user").rglob("*.nbc"))
