"""Why something is refused or over, in words: what happened, to which operator, epoch or worker, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from bedload.control.instructions import Reply, Token
from bedload.core.errors import (
    BedloadError,
    CheckpointForeign,
    DefinitionError,
    EpochIncomplete,
    EpochMismatch,
    EpochNotRetained,
    KeyGroupsChanged,
    MoveFailed,
    MoveRefused,
    NotDeterministic,
    OperatorBusy,
    StaleAttempt,
    UnknownOperator,
    WorkerLost,
    WorkerStartFailed,
)
from bedload.core.ids import Epoch, OperatorName, QueryId, RunId, WorkerId
from bedload.protocol import messages as m


def refuse(token: Token, error: BedloadError) -> Reply:
    """Tell a feeder why it cannot take part."""
    return Reply(token, m.Refused(m.WireError.of(error)))


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


def kept(name: OperatorName, ask: m.Open, owner: QueryId, location: str) -> BedloadError:
    """The state belongs to a query that can go on, and another one would start without."""
    return OperatorBusy(
        f"operator {name}: its state is that of query {owner}, which can go on from {location}. Query {ask.query} is "
        f"another one, and would start without state. No row was applied, and the state is as it was. Give the new one "
        f"a name of its own, bl.transformWithState(..., name=...), or delete that checkpoint if its query is over",
        operator=name,
    )


def left_open(name: OperatorName, epoch: Epoch, query: QueryId | None) -> BedloadError:
    """A query ended between the seal of an epoch and Spark's commit: only its next run shows whether that counts."""
    return MoveFailed(
        f"operator {name}: query {query} does not run, and its last epoch, {epoch}, is not known to be committed by "
        f"Spark: its changes cannot move. Start the query, which commits that epoch or runs it again, then ask again",
        operator=name,
        unknown=epoch,
    )


def unread(name: OperatorName, error: BedloadError) -> BedloadError:
    """State that has to move is not there."""
    return MoveFailed(
        f"operator {name}: what has to move could not be read back from the checkpoint: {error.message.rstrip('.')}. "
        f"Resolve that, then ask again",
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


def skipped(name: OperatorName, missing: Sequence[int]) -> BedloadError:
    """An epoch never came, yet Spark committed it."""
    return EpochIncomplete(
        f"operator {name}: the rows of epoch {missing[0]} never came, yet Spark committed it, and its sources had "
        f"something to read. foreachBatch returned without running an action on the batch: {_ACTION}",
        operator=name,
        epoch=missing[0],
    )


def log_behind(name: OperatorName, ask: m.Open, committed: Epoch | None, seconds: float) -> BedloadError:
    """Spark asks for an epoch, and does not say what became of those before it."""
    return EpochMismatch(
        f"operator {name}: Spark asks for epoch {ask.epoch} of query {ask.query}, but {seconds:g} seconds later "
        f"its commit log {'is still empty' if committed is None else f'still ends at epoch {committed}'}, and the "
        f"state does not have the epochs in between. Turn asynchronous progress tracking off, or put back the Spark "
        f"checkpoint that belongs to this state",
        operator=name,
        epoch=ask.epoch,
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


# --- deployments ---


def used_twice(name: OperatorName, query: QueryId) -> BedloadError:
    """Two applications of one name are in the plan of one query."""
    return DefinitionError(
        f"operator {name}: the name was applied twice in query {query}, and a name is one state with one input. Give "
        f"each application a name of its own (name=...), or union the inputs and apply it once",
        operator=name,
    )


def in_use(name: OperatorName, query: QueryId | None) -> BedloadError:
    """An operator is applied again while a query runs on it."""
    return OperatorBusy(
        f"operator {name} is in use by the running query {query}: applying it twice at once would "
        f"mix two streams in one state. Stop that query, or give this application another name "
        f"(cluster.apply(..., name=...))",
        operator=name,
    )


def groups_changed(name: OperatorName, there: int, asked: int) -> BedloadError:
    """An operator is applied with another number of key groups."""
    return KeyGroupsChanged(
        f"operator {name} has state in {there} key groups, but {asked} were asked for. The number is fixed when the "
        f"state is created: use key_groups={there}, or give the state up with fresh=True",
        operator=name,
    )


def superseded(name: OperatorName) -> BedloadError:
    """A query begins with code that is not kept any more."""
    return UnknownOperator(
        f"operator {name} was applied many times since this query was made, and its code is not kept any more: make "
        f"the query anew with cluster.apply(...)",
        operator=name,
    )


# --- lost workers ---


def lost(worker: WorkerId, how: str, state: str) -> WorkerLost:
    """With a checkpoint."""
    return WorkerLost(
        f"worker {worker} was lost ({how}), and the epochs under way were rolled back. Its state ({state}) is in "
        f"the checkpoint and is read back by its replacement: start the query again, or let cluster.run(...) do so",
        worker=worker,
    )


def too_many_lost(worker: WorkerId, how: str, count: int) -> WorkerLost:
    """Replacing them does not help."""
    return WorkerLost(
        f"{count} workers were lost with no epoch committed in between, the last one was {worker} ({how}). State is "
        f"safe in the checkpoint. Find out what ends them (memory, an operator that crashes the process, a version of "
        f"a package), then attach again",
        worker=worker,
    )


def lost_for_good(worker: WorkerId, how: str, state: str) -> WorkerLost:
    """Without a checkpoint."""
    return WorkerLost(
        f"worker {worker} was lost ({how}). The epochs under way were rolled back. Its state is lost "
        f"({state}), because this cluster keeps state in memory only. Stop it, attach again, and start "
        f"the queries from new checkpoint locations. State outlives its workers with a checkpoint: "
        f'bedload.attach(spark, checkpoint="file:///...")',
        worker=worker,
    )


def lost_in_a_move(worker: WorkerId, how: str) -> WorkerLost:
    """Without a checkpoint, but it had been handed nothing for good."""
    return WorkerLost(
        f"worker {worker} was lost ({how}) before state that was moved to it was committed there: the old owners "
        f"have it and go on. Start the query again, or let cluster.run(...) do so",
        worker=worker,
    )


def restarting() -> WorkerLost:
    """All workers start anew, and none may be waited for in a task slot that they need."""
    return WorkerLost("all workers are being started anew (stop_restart): start the query again in a moment")


# --- changes of the cluster ---


def told(error: BedloadError, ending: str) -> BedloadError:
    """The same error, and what that means."""
    return type(error)(f"{error.message.rstrip()}. {ending}", **error.details)


def torn(error: BedloadError) -> BedloadError:
    """A move failed after the flip, and there is no checkpoint."""
    return told(
        error,
        "Some of its keys have changed at their new owners and others have not arrived there, and this cluster "
        "keeps state in memory only, so the cluster has ended. Attach again, and start the queries from new "
        'checkpoint locations. With bedload.attach(spark, checkpoint="file:///...") the rest is read back',
    )


def left_out(worker: WorkerId, error: BedloadError, starts: int, workers: int) -> WorkerStartFailed:
    """When all start anew, one does not come."""
    return WorkerStartFailed(
        f"{error.message}. It was started {starts} times; the others have its share of the key groups: there "
        f"are {workers} workers now",
        worker=worker,
    )


def nowhere_to_go(worker: WorkerId | None, others: str) -> MoveRefused:
    """Whom something should be moved to is gone."""
    return MoveRefused(
        f"worker {worker} was lost before anything was moved to it, and no other came in its place; there are {others}"
    )


def held_too_long(name: OperatorName, epoch: Epoch, query: QueryId | None, seconds: float) -> MoveFailed:
    """An epoch does not end, and all workers should start anew."""
    return MoveFailed(
        f"the workers were not started anew: epoch {epoch} of operator {name} (query {query}) did not come to an end "
        f"within {seconds:g} seconds. Its tasks may need slots that tasks of other queries hold. Nothing has moved; "
        f"try again, or with a strategy that lets epochs go on"
    )
