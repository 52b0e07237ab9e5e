"""Compiled kernels: large hash tables stay right and short to search, and every kernel is compiled once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numba.core import caching
from tests.patience import PATIENCE

import bedload
from bedload.store.columns import ColumnSpec, ColumnTable, byte_kernels, compiling, kernels, warm_up

N = ColumnSpec("n", pa.int64(), 0)
KERNELS = [
    kernels.locate,
    kernels.insert,
    kernels.find,
    kernels.remove,
    kernels.rehash,
    kernels.slots_in,
    byte_kernels.intern,
    byte_kernels.forget,
    byte_kernels.slide,
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
    if "nowhere" in sys.argv:
        caching.UserWideCacheLocator.ensure_cache_path = refuse
    if "full" in sys.argv:
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
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


def test_an_installation_is_used_where_nothing_can_be_written_at_all(tmp_path: Path, installation: Path) -> None:
    own = {"XDG_CACHE_HOME": str(tmp_path / "user"), "NUMBA_CACHE_DIR": "", "PYTHONPATH": str(installation.parent)}
    assert cache_hits(start(**own)) == 0
    assert cache_hits(start("read-only", "nowhere", **own)) == 1
    assert not (tmp_path / "user").exists()


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("content", [b"", b"\x80\x05nonsense"])
def test_a_damaged_file_is_compiled_again(tmp_path: Path, installation: Path, ending: str, content: bytes) -> None:
    own = {"NUMBA_CACHE_DIR": "", "PYTHONPATH": str(installation.parent)}
    assert cache_hits(start(**own)) == 0
    for file in installation.rglob(f"*.{ending}"):
        file.write_bytes(content)
    assert cache_hits(start(**own)) == 0
    assert cache_hits(start(**own)) == 1


def test_what_cannot_be_kept_is_used_all_the_same(installation: Path) -> None:
    own = {"NUMBA_CACHE_DIR": "", "PYTHONPATH": str(installation.parent)}
    assert cache_hits(start("full", **own)) == 0
    assert not list(installation.rglob("*.nbc"))


class _Slow(compiling._Kernel):
    """It takes its time, so that other threads come meanwhile."""

    begun = threading.Event()

    def _compile(self) -> Any:
        self.begun.set()
        time.sleep(0.2)
        return super()._compile()


@_Slow
def _inner(number: int) -> int:
    return number + 1


@compiling.jit
def _outer(number: int) -> int:
    return _inner(number) * 2  # type: ignore[no-any-return]


def test_a_kernel_that_calls_another_may_be_called_first_by_several_threads() -> None:
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(_outer, 3)
        assert _Slow.begun.wait(PATIENCE)
        others = [pool.submit(_outer, 3) for _ in range(2)]
        assert [it.result(PATIENCE) for it in (first, *others)] == [8, 8, 8]
