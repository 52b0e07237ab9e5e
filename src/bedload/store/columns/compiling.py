"""Compiling the kernels, and keeping what was compiled.

Compiled code is kept beside the module, or in the user's cache directory if that is not writable (a read-only
site-packages), or where ``NUMBA_CACHE_DIR`` says. If there is no such place it is kept in memory, and each process
compiles for itself. Processes that start at once may compile the same kernel twice: each file is written beside and
renamed, so none reads half of one. What is kept counts for one content of the kernel's own file and one processor.

Invariant: every argument of a kernel has one type, whatever the caller has, so each kernel is compiled once: arrays
that a kernel only reads are given as :func:`read_only`, and counts as int64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile a kernel when it is first called. It runs without the interpreter's lock."""
    try:
        compiled = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no place to keep it
        compiled = numba.njit(nogil=True)(function)
    return cast(F, compiled)


def read_only(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The array as kernels take what they only read; a copy if it has another type or gaps."""
    view = np.ascontiguousarray(array, dtype).view()
    view.flags.writeable = False
    return view
