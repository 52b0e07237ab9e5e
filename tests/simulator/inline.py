"""A pool that has no threads: others would cost a simulation time, and have an order of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

READ_AHEAD = 2
"""Parts of a state that are read ahead; on a real machine that depends on its cores."""


class Inline(Executor):
    """Does everything at once, in the one thread of a simulation."""

    def __init__(self, threads: int, name: str, /) -> None:
        pass

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it now."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future
