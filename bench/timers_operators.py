"""The operators of the benchmark of time: a running count, without and with timers.

Invariants:
- Counters with and without timers count the same rows and give the same results; timers come on top of that.
- Each key has one timer by event time, which is due in one of `CYCLE` epochs, the next one from where it is, and is set
  again when it fires. So 1 % of the keys are due in each epoch, whichever have rows.

Why a cycle: with timers that rows alone set, what is due would follow from the load, and could not be told in advance.
"""

from typing import Any

import numpy as np

import bedload as bl

SCHEMA = "key long, n long, fired boolean"
START = 1_750_000_000_000
"""The time of the first epoch: a cycle begins there."""
STEP = 1000
"""Milliseconds from one epoch's time to the next one's."""
CYCLE = 100


def due_at(key: Any, watermark: int) -> Any:
    """When the timer of a key is due, in the epoch at this watermark or after it; works on arrays, too.

    The millisecond is another one in each epoch, so that to set it again is to move it.
    """
    epoch = max(watermark, START) // STEP
    return (epoch + (key - epoch) % CYCLE) * STEP - 500 + epoch % 400


class Count(bl.Operator):
    """Without timers."""

    n: int = bl.value(0)

    def process(self, key: int, rows: Any, ctx: bl.Context) -> None:
        self.n += len(rows)

    def result(self, key: int, ctx: bl.Context) -> tuple[int, int, bool]:
        return key, self.n, False


class CountKept(Count):
    """A timer that the first row of a key sets."""

    def process(self, key: int, rows: Any, ctx: bl.Context) -> None:
        if not self.n:
            ctx.timers.set(due_at(key, ctx.watermark))
        self.n += len(rows)

    def on_timer(self, key: int, timer: bl.Timer, ctx: bl.Context) -> tuple[int, int, bool]:
        ctx.timers.set(due_at(key, ctx.watermark + STEP))
        return key, self.n, True


class CountMoved(CountKept):
    """A timer that every batch with rows of its key moves."""

    def process(self, key: int, rows: Any, ctx: bl.Context) -> None:
        self.n += len(rows)
        ctx.timers.set(due_at(key, ctx.watermark))


class Arrays(bl.VectorOperator):
    """The same on arrays, without timers."""

    n: int = bl.value(0)

    def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
        return {"n": state["n"] + np.bincount(batch.index, minlength=len(state["n"]))}

    def result(self, keys: Any, state: Any, ctx: bl.BatchContext) -> Any:
        return {"key": keys, "n": state["n"], "fired": np.zeros(len(keys), np.bool_)}


class ArraysKept(Arrays):
    """A timer that the first row of a key sets."""

    def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
        new = np.flatnonzero(state["n"] == 0)
        if len(new):
            ctx.timers.set(due_at(batch.keys.to_numpy(), ctx.watermark), where=new)
        return super().process(batch, state, ctx)

    def on_timer(self, keys: Any, timer: bl.BatchTimer, state: Any, ctx: bl.BatchContext) -> Any:
        ctx.timers.set(due_at(keys.to_numpy(), ctx.watermark + STEP))
        return None, {"key": keys, "n": state["n"], "fired": np.ones(len(keys), np.bool_)}


class ArraysMoved(ArraysKept):
    """A timer that every batch with rows of its key moves."""

    def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
        ctx.timers.set(due_at(batch.keys.to_numpy(), ctx.watermark))
        return Arrays.process(self, batch, state, ctx)
