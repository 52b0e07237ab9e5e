"""Compiling the kernels, and keeping what was compiled.

Numba is loaded, and a kernel compiled, when the first one is called: whoever merely imports a module with kernels, such
as a driver whose operators are all on rows, pays for neither.

Compiled code is kept beside the module, or in the user's cache directory if that is not writable (a read-only
site-packages), or where ``NUMBA_CACHE_DIR`` says. What lies beside the module already is used in any case: see
:mod:`bedload.compile`. If there is no such place it is kept in memory, and each process
compiles for itself. Processes that start at once may compile the same kernel twice: each file is written beside and
renamed, so none reads half of one. What is kept counts for one content of the kernel's own file and one processor.

Invariant: every argument of a kernel has one type, whatever the caller has, so each kernel is compiled once: arrays
that a kernel only reads are given as :func:`read_only`, and counts as int64.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import update_wrapper
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile a kernel when it is first called. It runs without the interpreter's lock."""
    return cast(F, _Kernel(function))


class _Kernel:
    """A function that is compiled when it is first called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._compiled: Any = None
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        return (self._compiled or self._compile())(*arguments)

    def __getattr__(self, name: str) -> Any:
        """What Numba knows of it."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._compiled or self._compile(), name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self._function.__module__, self._function.__qualname__)

    def _compile(self) -> Any:
        import numba

        try:
            self._compiled = numba.njit(cache=True, nogil=True)(self._function)
        except RuntimeError:  # no place to keep it
            self._compiled = numba.njit(nogil=True)(self._function)
        _look_beside(self._compiled, self._function)
        # SUBTLE: kernels that it calls are looked up by Numba among the names of its module, and must be Numba's own.
        names = self._function.__globals__
        for name in self._function.__code__.co_names:
            if isinstance(called := names.get(name), _Kernel):
                names[name] = called._compiled or called._compile()
        return self._compiled


def _look_beside(compiled: Any, function: Callable[..., Any]) -> None:
    """Use what was compiled beside the module before, though Numba cannot write there and keeps its own elsewhere."""
    caching: Any = import_module("numba.core.caching")  # without annotations
    cache, beside = compiled._cache, Path(function.__code__.co_filename).parent / "__pycache__"
    kept = getattr(cache, "_cache_file", None)
    if kept is None or Path(cache.cache_path) == beside:
        return
    shipped = caching.IndexDataCacheFile(str(beside), cache._impl.filename_base, cache._impl.locator.get_source_stamp())
    elsewhere = kept.load

    def load(key: Any) -> Any:
        with suppress(OSError):
            if (found := shipped.load(key)) is not None:
                return found
        return elsewhere(key)

    kept.load = load


def _named(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def read_only(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The array as kernels take what they only read; a copy if it has another type or gaps."""
    view = np.ascontiguousarray(array, dtype).view()
    view.flags.writeable = False
    return view
