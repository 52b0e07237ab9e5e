"""The coordinator's thread: how others have something done on it, and how what waits is kept off it.

Looking into Spark's plans and work on files are done on two small pools of threads, which report back to this one.

Invariants:
- An exception that nobody expected, on whichever thread, ends the cluster with that error: it is never only logged.
- Whoever waits for the coordinator waits for a limited time.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from bedload.control.coordinator import Coordinator
from bedload.control.instructions import Instruction
from bedload.core.errors import BedloadError, ClusterStopped, ProtocolError
from bedload.transport import Endpoint

_log = logging.getLogger("bedload")
_T = TypeVar("_T")
_ANSWER_SECONDS = 120.0
"""How long the coordinator may take for an answer that waits for nothing."""


class CoordinatorThread:
    """Runs an endpoint, and the coordinator on its thread."""

    def __init__(
        self,
        endpoint: Endpoint,
        carry_out: Callable[[list[Instruction]], None],
        stillborn: Callable[[BedloadError], None],
    ) -> None:
        """``carry_out`` does what the coordinator says; ``stillborn`` is told what failed before there was one."""
        self.coordinator: Coordinator | None = None
        self.stopping = False
        self._endpoint = endpoint
        self._carry_out = carry_out
        self._stillborn = stillborn
        self._plans = ThreadPoolExecutor(max_workers=4, thread_name_prefix="bedload-plan")
        # Apart from the plans': a slow store must not keep an epoch from being counted, nor the other way round.
        self._files = ThreadPoolExecutor(max_workers=4, thread_name_prefix="bedload-files")
        self._thread = threading.Thread(target=endpoint.run, name="bedload-coordinator", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """End it, and all that is done beside it."""
        self.stopping = True
        self._endpoint.stop()
        self._thread.join(timeout=10)
        self._endpoint.close()
        self._plans.shutdown(wait=False, cancel_futures=True)
        self._files.shutdown(wait=False, cancel_futures=True)

    # --- from other threads ---

    def call(self, action: Callable[[Coordinator], _T]) -> _T:
        """Run something on the coordinator's thread and return what it gives."""
        future: Future[_T] = Future()

        def run() -> None:
            assert self.coordinator is not None
            try:
                future.set_result(action(self.coordinator))
            except BaseException as error:
                future.set_exception(error)

        if self.stopping:
            raise ClusterStopped("the cluster was stopped; attach again with bedload.attach(...)")
        self._endpoint.call_soon(run)
        with contextlib.suppress(TimeoutError):
            return future.result(_ANSWER_SECONDS)
        stack = sys._current_frames().get(self._thread.ident or 0)
        raise ProtocolError(
            f"the coordinator gave no answer within {_ANSWER_SECONDS:g} seconds. Report this, with where it is:\n"
            + ("it has ended" if stack is None else "".join(traceback.format_stack(stack)))
        )

    def ask(self, action: Callable[[Coordinator], tuple[_T, list[Instruction]]]) -> _T:
        """Ask the coordinator for something, and carry out what it says about that; gives its answer."""

        def run(coordinator: Coordinator) -> _T:
            answer, steps = action(coordinator)
            self._carry_out(steps)
            return answer

        return self.call(run)

    def tell(self, event: Callable[[Coordinator], list[Instruction]]) -> None:
        """The coordinator should know of something; nobody waits for that."""

        def run() -> None:
            if self.coordinator is not None:
                with self.guarded():
                    self._carry_out(event(self.coordinator))

        if not self.stopping:
            with contextlib.suppress(ClusterStopped):
                self._endpoint.call_soon(run)

    # --- beside it ---

    def look(self, work: Callable[..., None], *arguments: Any) -> None:
        """Look into Spark's plans."""
        self._beside(self._plans, work, *arguments)

    def file(self, work: Callable[..., None], *arguments: Any) -> None:
        """Work on files."""
        self._beside(self._files, work, *arguments)

    def note(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Write something down upon which nothing depends."""
        self._files.submit(work, *arguments)

    def _beside(self, pool: ThreadPoolExecutor, work: Callable[..., None], *arguments: Any) -> None:
        """Do something on another thread; it reports by itself, unless it fails as nobody thought it could."""

        def over(future: Future[None]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is not None:
                with contextlib.suppress(ClusterStopped):
                    self._endpoint.call_soon(partial(self.broke, error))

        if not self.stopping:
            pool.submit(work, *arguments).add_done_callback(over)

    # --- when something fails ---

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Whatever goes wrong in here concerns all."""
        try:
            yield
        except Exception as error:
            self.broke(error)

    def broke(self, error: BaseException) -> None:
        """Something failed that must not: the cluster ends, and everybody who waits hears why."""
        if self.stopping:
            return
        _log.error("the coordinator failed: %s", error, exc_info=error)
        problem = ProtocolError(
            "the coordinator failed, and the cluster has ended. Epochs that Spark committed are in the checkpoint, if "
            f"there is one: attach again. Report this:\n{''.join(traceback.format_exception(error))}"
        )
        if self.coordinator is None:
            self._stillborn(problem)
            return
        try:
            self._carry_out(self.coordinator.failed(problem))
        except Exception:
            _log.exception("and could not be ended in order: all connections are closed")
            self._endpoint.stop()  # whoever waits sees that
