"""Why an open is refused, in words: what happened, to which operator and epoch, and what to do."""

from __future__ import annotations

from bedload.core.errors import (
    BedloadError,
    CheckpointForeign,
    EpochIncomplete,
    EpochMismatch,
    EpochNotRetained,
    NotDeterministic,
    OperatorBusy,
    StaleAttempt,
)
from bedload.core.ids import Epoch, OperatorName, QueryId, RunId
from bedload.protocol import messages as m

_ACTION = (
    "run one action that consumes the whole batch in foreachBatch, or persist() it first. To go on, restart the "
    "query from a checkpoint before that epoch, or accept the loss with cluster.apply(..., fresh=True)"
)


def stale(name: OperatorName, ask: m.Open, run: RunId | None, epoch: Epoch) -> BedloadError:
    """A task of a former attempt."""
    return StaleAttempt(
        f"operator {name}: a task of a former run or epoch (run {ask.run}, epoch {ask.epoch}) was "
        f"refused; the current one is run {run}, epoch {epoch}",
        operator=name,
    )


def busy(name: OperatorName, ask: m.Open, query: QueryId | None) -> BedloadError:
    """Another query has the state."""
    return OperatorBusy(
        f"operator {name} is in use by the running query {query}; query {ask.query} cannot use "
        f"its state at the same time. Stop the first query, or give the second application another name "
        f"(cluster.apply(..., name=...))",
        operator=name,
    )


def behind(name: OperatorName, ask: m.Open, last: Epoch) -> BedloadError:
    """Spark goes back, and the state was kept in memory."""
    return EpochMismatch(
        f"operator {name}: Spark asks for epoch {ask.epoch}, but the state has committed epoch {last} "
        f"of this query. Spark's checkpoint is older than the state (a restored backup, or asynchronous "
        f"progress tracking): restore a checkpoint that reaches epoch {last}",
        operator=name,
        epoch=ask.epoch,
    )


def not_retained(name: OperatorName, ask: m.Open, last: Epoch, retained: str) -> BedloadError:
    """Spark goes back further than the state is kept."""
    return EpochNotRetained(
        f"operator {name}: Spark asks for epoch {ask.epoch}, but the state has epoch {last} of this query, and the "
        f"state before epoch {ask.epoch} is not kept any more: {retained}. Spark's checkpoint is older than the state "
        f"(a restored backup, or asynchronous progress tracking): restore a Spark checkpoint that reaches one of those "
        f"epochs, keep more of them next time (bedload.attach(..., retain_epochs=...)), or give the state up with "
        f"cluster.apply(..., fresh=True)",
        operator=name,
        epoch=ask.epoch,
    )


def no_state(name: OperatorName, ask: m.Open) -> BedloadError:
    """Spark continues a query that the state knows nothing of."""
    return EpochMismatch(
        f"operator {name}: Spark continues query {ask.query} at epoch {ask.epoch}, but there is no state "
        f"for its earlier epochs here: it was kept in memory and ended with its cluster, the query's "
        f"checkpointLocation belongs to other state, or foreachBatch ran no action on the first batches. Start the "
        f"query from a new checkpointLocation, attach with the checkpoint that has its state, or accept the loss with "
        f"cluster.apply(..., fresh=True)",
        operator=name,
        epoch=ask.epoch,
    )


def deleted(name: OperatorName, ask: m.Open, query: QueryId, last: Epoch, location: str) -> BedloadError:
    """Spark's checkpoint was made anew in the place where the state's query had its own."""
    return CheckpointForeign(
        f"operator {name}: its state has epoch {last} of query {query}, whose checkpointLocation was {location}. There "
        f"the query {ask.query} now starts anew at epoch {ask.epoch}: Spark's checkpoint was deleted or replaced, and "
        f"its rows would be applied a second time. No row was applied. Put that checkpoint back, give the state up "
        f"with cluster.apply(..., fresh=True), or, if these rows are new to the state, start from another "
        f"checkpointLocation",
        operator=name,
        epoch=ask.epoch,
    )


def skipped(name: OperatorName, missing: list[int]) -> BedloadError:
    """An epoch never came, yet Spark committed it."""
    return EpochIncomplete(
        f"operator {name}: the rows of epoch {missing[0]} never came, yet Spark committed it. "
        f"foreachBatch returned without running an action on the batch: {_ACTION}",
        operator=name,
        epoch=missing[0],
    )


def incomplete(name: OperatorName, epoch: Epoch, cause: BedloadError | None) -> BedloadError:
    """An epoch was never whole, yet Spark committed it."""
    if isinstance(cause, EpochIncomplete):
        return cause
    why = f" It had failed with: {cause.message}" if cause is not None else ""
    return EpochIncomplete(
        f"operator {name}: epoch {epoch} was never whole, yet Spark committed it, so its rows are "
        f"not in the state.{why} A consumer stopped early (limit, take, first, isEmpty as the only action in "
        f"foreachBatch) or swallowed an error: {_ACTION}",
        operator=name,
        epoch=epoch,
    )


def other_shape(name: OperatorName, epoch: Epoch, first: int, second: int) -> BedloadError:
    """Two actions of one batch that cannot be matched."""
    return NotDeterministic(
        f"operator {name}, epoch {epoch}: two actions used the same batch with different "
        f"partitioning ({first} and {second} partitions, say one "
        f"behind coalesce), so the second cannot be matched with the first. Call persist() on the batch in "
        f"foreachBatch",
        operator=name,
        epoch=epoch,
    )
