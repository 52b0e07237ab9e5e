"""The context of code that takes many keys in one call."""

from __future__ import annotations

from collections.abc import Collection

from bedload.core.errors import DefinitionError
from bedload.core.ids import NO_EPOCH, WorkerId
from bedload.worker.operator import Context
from bedload.worker.vector_timers import CurrentKeys, TimerColumn, VectorTimers, Where


class BatchContext(Context):
    """What an operator on arrays may know about its call, and do to its keys."""

    __slots__ = ("_keys", "_vector_timers")

    def __init__(self, operator: str, worker: WorkerId, timers: Collection[TimerColumn] = ()) -> None:
        super().__init__(operator, worker, NO_EPOCH)
        self._have(timers)

    def _have(self, timers: Collection[TimerColumn]) -> None:
        """The code has these timers from now on."""
        self._keys = CurrentKeys(self.operator, timers)
        self._vector_timers = VectorTimers(self._keys)

    @property
    def timers(self) -> VectorTimers:  # type: ignore[override]
        """The timers of the keys of the call, by event time; ``ctx.timers.processing`` are those by the epochs' own.

        Arrays have one item for each key, in the order of ``batch.keys`` in ``process``, and of ``keys`` in
        ``on_timer``::

            ctx.timers.set(ends + 60_000)                          # on_timer is called when the watermark is there
            ctx.timers.set(ctx.watermark + 60_000, "idle", where=count == 0)
            ctx.timers.delete(where=closed)
            ctx.timers.at() == ctx.timers.NEVER                    # which have none
        """
        if not self._keys.timers:
            raise DefinitionError(
                f"operator {self.operator} has no on_timer(self, keys, timer, state, ctx), or declares no timers: "
                f"define it, and its keys have some"
            )
        return self._vector_timers

    def forget(self, where: Where = None) -> None:
        """Remove all state of the keys of the call when it returns, or of some.

        ``where``: which, by a boolean for each key, or by their positions.
        """
        self._keys.forget(where)
