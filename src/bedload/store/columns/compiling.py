"""Compiling the kernels, and keeping what was compiled.

Numba is loaded, and a kernel compiled, when the first one is called: whoever merely imports a module with kernels, such
as a driver whose operators are all on rows, pays for neither.

Compiled code is kept beside the module, or in the user's cache directory if that is not writable (a read-only
site-packages), or where ``NUMBA_CACHE_DIR`` says. What lies beside the module already is used in any case: see
:mod:`bedload.compile`. If there is no such place, or no room in it, it is kept in memory, and each process compiles for
itself; so it does if a file is damaged, and writes it again. Processes that start at once may compile the same kernel
twice: each file is written beside and renamed, so none reads half of one. What is kept counts for one content of the
kernel's own file and one processor.

Invariant: every argument of a kernel has one type, whatever the caller has, so each kernel is compiled once: arrays
that a kernel only reads are given as :func:`read_only`, and counts as int64.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import update_wrapper
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import numpy.typing as npt

F = TypeVar("F", bound=Callable[..., Any])

_COMPILING = threading.RLock()
"""A kernel is there when those that it calls are: threads that come meanwhile wait."""


def jit(function: F) -> F:
    """Compile a kernel when it is first called. It runs without the interpreter's lock."""
    return cast(F, _Kernel(function))


class _Kernel:
    """A function that is compiled when it is first called, by whichever thread."""

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
        with _COMPILING:
            if self._compiled is None:
                compiled = _compile(self._function)
                # SUBTLE: kernels that it calls are looked up by Numba among the names of its module, and must be
                # Numba's own.
                names = self._function.__globals__
                for name in self._function.__code__.co_names:
                    if isinstance(called := names.get(name), _Kernel):
                        names[name] = called._compile()
                self._compiled = compiled  # last: from now on other threads call it
            return self._compiled


def _compile(function: Callable[..., Any]) -> Any:
    import numba

    caching: Any = import_module("numba.core.caching")  # without annotations
    compiled: Any
    try:
        compiled = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no place to keep it
        compiled = numba.njit(nogil=True)(function)
    if compiled is function:
        return function  # NUMBA_DISABLE_JIT
    if not hasattr(compiled._cache, "_cache_file"):
        try:
            compiled._cache = _only_beside(caching, function)
        except RuntimeError:  # the module is no file: it is in an archive, say
            return compiled
    cache, beside = compiled._cache, str(Path(function.__code__.co_filename).parent / "__pycache__")
    stamp = cache._impl.locator.get_source_stamp()
    shipped = caching.IndexDataCacheFile(beside, cache._impl.filename_base, stamp)
    cache._cache_file = _Kept(cache._cache_file, shipped)
    return compiled


def _only_beside(caching: Any, function: Callable[..., Any]) -> Any:
    """A cache that finds what lies beside the module, where nothing can be written."""

    class Locator(caching.InTreeCacheLocator):  # type: ignore[misc]
        def ensure_cache_path(self) -> None:
            pass

    class Files(caching.CompileResultCacheImpl):  # type: ignore[misc]
        _locator_classes: ClassVar = [Locator]

    class Beside(caching.FunctionCache):  # type: ignore[misc]
        _impl_class = Files

    return Beside(function)


class _Kept:
    """Numba's files of a kernel, and those that were shipped. What is wrong with one costs a compilation, no more."""

    def __init__(self, own: Any, shipped: Any) -> None:
        self._own = own
        self._shipped = shipped

    def load(self, key: Any) -> Any:
        """What was compiled for these arguments and this processor; None if there is nothing that can be read."""
        for files in (self._shipped, self._own):
            with suppress(Exception):  # a damaged file may raise anything
                if (found := files.load(key)) is not None:
                    return found
        return None

    def save(self, key: Any, data: Any) -> None:
        """Keep it, if there is room."""
        try:
            self._own.save(key, data)
        except OSError:
            return
        except Exception:  # its list is damaged
            with suppress(OSError):
                self._own.flush()
                self._own.save(key, data)

    def flush(self) -> None:
        """Forget what is kept."""
        self._own.flush()


def _named(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def read_only(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The array as kernels take what they only read; a copy if it has another type or gaps."""
    view = np.ascontiguousarray(array, dtype).view()
    view.flags.writeable = False
    return view
