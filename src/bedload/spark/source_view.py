"""Which state a read means: an operator, a turn of its history, and what it takes to read the state at it.

Invariants: a view is fixed when it is made, so that all reads through it are of one state, however far the operator has
gone on since; it pickles, as it travels to the executors; :func:`refreshed` finds the same state again when files that
it named were replaced by a snapshot and deleted.

The newest state is that of the newest turn whose files are all there. Spark may not have committed its epoch yet: a
reader that must not see such a state reads the batch before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.history import History, Plan
from bedload.checkpoint.records import Manifest, OperatorSchema, TurnRecord
from bedload.checkpoint.storage import open_storage, without_secrets
from bedload.core.errors import CheckpointError, DefinitionError, EpochNotRetained, UnknownOperator
from bedload.core.ids import OperatorName, Turn
from bedload.spark.source_options import Changes, SourceOptions
from bedload.spark.source_timers import TimersTable


@dataclass(frozen=True)
class View:
    """One state, or what changed from one to another."""

    options: SourceOptions
    """With the storage's absolute URL."""
    operator: OperatorName
    schemas: dict[int, OperatorSchema]
    """All of the operator's, by number."""
    turn: Turn
    plan: Plan
    """To read the state at the turn."""
    feed: tuple[TurnRecord, ...] | None = None
    """The turns whose changes are to be read, from ``turn`` on and with all between; None: the state itself."""
    shown: frozenset[Turn] = frozenset()
    """Those of the feed that are shown: others are another query's."""

    @property
    def schema(self) -> OperatorSchema:
        """The shape that the state is given in: that of its newest turn."""
        if self.feed:
            return self.schemas[self.feed[-1].schema]
        last = self.plan.deltas[-1] if self.plan.deltas else self.plan.snapshot
        assert last is not None, "a state that can be read has a snapshot or deltas"
        return self.schemas[last.schema]

    @property
    def variables(self) -> tuple[str, ...] | None:
        """The state variables that are wanted; None: all."""
        return None if self.options.variable is None else (self.options.variable,)

    @property
    def timers(self) -> TimersTable | None:
        """The timers in it, if they are what is wanted."""
        return TimersTable(self.operator, self.schema) if self.options.timers else None


def resolve(options: SourceOptions) -> View:
    """Find what the options ask for."""
    storage = open_storage(options.url, options.storage)
    options = replace(options, url=storage.url)
    checkpoint = Checkpoint.open(storage)
    operator = _operator(checkpoint, options)
    history = checkpoint.load_history(operator)
    schemas = {schema.number: schema for schema in checkpoint.schemas(operator)}
    if options.changes is not None:
        records, shown = _feed(history, options, options.changes)
        first = records[0].turn
        view = View(options, operator, schemas, first, history.restore_plan(first), records, shown)
    else:
        turn = _turn(history, options)
        view = View(options, operator, schemas, turn, history.restore_plan(turn))
    names = [variable.name for variable in view.schema.variables]
    if options.variable is not None and options.variable not in names:
        raise DefinitionError(
            f"operator {operator} has no state variable {options.variable!r}; there are: {', '.join(names) or 'none'}"
        )
    return view


def refreshed(view: View) -> View:
    """The same state, as it can be read now. Raises :class:`EpochNotRetained` if it cannot be any more."""
    checkpoint = Checkpoint.open(open_storage(view.options.url, view.options.storage))
    history = checkpoint.load_history(view.operator)
    schemas = {schema.number: schema for schema in checkpoint.schemas(view.operator)}
    if view.feed and any(not history.has_segments(record.turn) for record in view.feed):
        raise EpochNotRetained(
            f"operator {view.operator}: the changes of epoch {view.feed[0].epoch} were deleted while they were read; "
            f"{retained_in_words(history)}. Read again from one of those, or retain more epochs "
            "(bedload.attach(..., retain_epochs=...))",
            operator=view.operator,
        )
    try:
        return replace(view, plan=history.restore_plan(view.turn), schemas=schemas)
    except EpochNotRetained:
        raise EpochNotRetained(
            f"operator {view.operator}: the state that was to be read was deleted while it was read, as the operator "
            f"went on; {retained_in_words(history)}. Load it again, or retain more epochs "
            "(bedload.attach(..., retain_epochs=...))",
            operator=view.operator,
        ) from None


# --- which operator ---


def _operator(checkpoint: Checkpoint, options: SourceOptions) -> OperatorName:
    known = checkpoint.operators()
    where = without_secrets(options.url)
    if not known:
        raise CheckpointError(f"the checkpoint {where} has no operators yet: no state was written to it")
    listed = ", ".join(known)
    if options.operator is not None:
        if options.operator not in known:
            raise UnknownOperator(f"the checkpoint {where} has no operator {options.operator!r}; there are: {listed}")
        return OperatorName(options.operator)
    if len(known) > 1:
        raise DefinitionError(
            f"the checkpoint {where} has several operators: {listed}. Say which one to read with "
            f'.option("operatorName", "{known[0]}")'
        )
    return known[0]


# --- which state ---


def _turn(history: History, options: SourceOptions) -> Turn:
    states = _states(history)
    if not states:
        raise EpochNotRetained(f"operator {history.operator} has no state yet: none of its epochs was completed")
    if options.query is not None:
        _check_query(states, options.query, history)
        states = [(turn, held) for turn, held in states if held.query == options.query]
    if options.batch is None:
        return states[0][0]
    found = _at(states, options.batch)
    if len(found) > 1:
        raise DefinitionError(
            f"operator {history.operator}: several queries have a batch {options.batch}: {', '.join(found)}. Say which "
            'one is meant with .option("queryId", ...)'
        )
    if not found:
        raise _not_there(history, options.batch)
    return next(iter(found.values()))


Held = TurnRecord | Manifest
States = Sequence[tuple[Turn, Held]]


def _states(history: History) -> list[tuple[Turn, Held]]:
    """What can be read, newest first."""
    found = ((turn, history.record(turn) or history.manifest(turn)) for turn in history.retained())
    return [(turn, held) for turn, held in found if held is not None]


def _at(states: States, batch: int) -> dict[str, Turn]:
    """The state after a batch, of each query that has come so far: an epoch without data leaves it as it was."""
    found: dict[str, Turn] = {}
    newest: dict[str, int] = {}
    for turn, held in states:
        newest[held.query] = max(newest.get(held.query, held.epoch), held.epoch)
        if held.epoch <= batch <= newest[held.query]:
            found.setdefault(held.query, turn)
    return found


def _feed(history: History, options: SourceOptions, changes: Changes) -> tuple[tuple[TurnRecord, ...], frozenset[Turn]]:
    states = [
        (turn, held)
        for turn, held in _states(history)
        if isinstance(held, TurnRecord) and held.workers and history.has_segments(turn)
    ]
    queries = sorted({held.query for _, held in states})
    if options.query is not None:
        _check_query(states, options.query, history)
    elif len(queries) > 1:
        raise DefinitionError(
            f"operator {history.operator} has changes of several queries: {', '.join(queries)}. Say whose to read with "
            '.option("queryId", ...)'
        )
    query = options.query or next(iter(queries), None)
    own = [held for _, held in states if held.query == query]
    if not own:
        raise _not_there(history, changes.first)
    newest, oldest = own[0].epoch, own[-1].epoch
    begins = own[-1].query not in own[-1].committed
    if changes.first < oldest and not begins:
        raise _not_there(history, changes.first)
    last = newest if changes.last is None else changes.last
    if changes.first > newest or last > newest:
        raise _not_there(history, max(changes.first, last))
    shown = {record.turn for record in own if changes.first <= record.epoch <= last}
    if not shown:
        raise EpochNotRetained(
            f"operator {history.operator}: batches {changes.first} to {last} changed nothing, as they had no data; "
            f"{retained_in_words(history)}",
            operator=history.operator,
        )
    feed = [held for turn, held in reversed(states) if min(shown) <= turn <= max(shown)]
    return tuple(feed), frozenset(shown)


def _check_query(states: States, query: str, history: History) -> None:
    known = sorted({held.query for _, held in states})
    if query not in known:
        raise DefinitionError(
            f"operator {history.operator} has no state of query {query!r}; there is state of: "
            f"{', '.join(known) or 'none'}"
        )


def _not_there(history: History, batch: int) -> EpochNotRetained:
    return EpochNotRetained(
        f"operator {history.operator}: the state after batch {batch} is not there; {retained_in_words(history)}. Read "
        "one of those, or retain more epochs (bedload.attach(..., retain_epochs=...))",
        operator=history.operator,
        epoch=batch,
    )


def retained_in_words(history: History) -> str:
    """Which states can be read."""
    epochs: dict[str, list[int]] = {}
    for _, held in _states(history):
        epochs.setdefault(held.query, []).append(held.epoch)
    if not epochs:
        return "no state is retained"
    each = (
        f"batches {min(found)} to {max(found)} of query {query}" if max(found) >= 0 else "the initial state (batch -1)"
        for query, found in sorted(epochs.items())
    )
    return f"retained are the states after {'; '.join(each)}"
