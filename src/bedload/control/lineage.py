"""An operator's place in its checkpoint: which state it stands on, and what its workers need to get there. Pure.

Invariants: ``head`` is the turn of the committed state that the next epoch builds upon (None: the empty state). A
worker *holds* a turn when the state at that turn is in its memory, or is being read there. Whoever holds another one
than the head gets a ``Restore`` before its next ``Begin``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from bedload.checkpoint.history import History
from bedload.checkpoint.orders import RestoreOrder, encode_order
from bedload.checkpoint.records import OperatorSchema, TurnRecord, pack_owners
from bedload.core.ids import (
    NO_EPOCH,
    NO_QUERY,
    NO_TURN,
    DeploymentId,
    Epoch,
    Generation,
    KeyGroup,
    QueryId,
    RunId,
    Turn,
    WorkerId,
    make_turn,
)
from bedload.keys import RoutingTable
from bedload.protocol import messages as m


class Lineage:
    """One operator of a durable cluster."""

    def __init__(
        self,
        generation: Generation,
        history: History,
        schemas: Mapping[int, OperatorSchema],
        current: int | None = None,
    ) -> None:
        """``current`` is the number of the schema that state is written in from now on; the last one if not given."""
        self.generation = generation
        self.history = history
        self.schemas = dict(schemas)
        """By number."""
        self._current = max(self.schemas) if current is None else current
        self.head: Turn | None = None
        self.locations: dict[QueryId, str] = {}
        """Where each query has its Spark checkpoint, as far as known."""
        self.parameters: dict[DeploymentId, dict[str, str]] = {}
        """Those of the operator, as texts, by the deployment that has some."""
        self.stores: dict[DeploymentId, str] = {}
        """Where workers have the state, by the deployment that has it elsewhere than in memory."""
        self._holds: dict[WorkerId, Turn | None] = {}
        self._partakers: set[WorkerId] = set()
        """The workers that have been in the current turn from its beginning."""
        self._reading: set[WorkerId] = set()
        """Who was told to read state, until it has all that it was told to read."""
        self._owed: dict[WorkerId, set[KeyGroup]] = {}
        """Key groups that a worker took over from a lost one, and has not got yet."""
        self._nothing_lacks: tuple[RoutingTable, Turn | None] | None = None
        """The owners and the head with which nobody lacked anything, until what workers hold changes: this is asked
        at every event of every operator."""
        for turn in reversed(history.chain()):
            record = history.record(turn)
            if record is not None and record.location:
                self.locations[record.query] = record.location

    @property
    def schema(self) -> OperatorSchema:
        """The shape of the state now."""
        return self.schemas[self._current]

    def next_turn(self, last: Turn) -> Turn:
        """The turn after this one: larger than all of former attachments."""
        return max(Turn(last + 1), make_turn(self.generation, 0))

    def record(
        self,
        turn: Turn,
        query: QueryId,
        run: RunId,
        epoch: Epoch,
        routing: RoutingTable,
        committed: Mapping[QueryId, Epoch],
        deployment: DeploymentId | None = None,
    ) -> TurnRecord:
        """The record of a turn that begins now on the head, by the code of a deployment."""
        guests = sorted({(routing.group_of(pin.key), pin.worker) for pin in routing.pins})
        return TurnRecord(
            turn=turn,
            parent=self.head,
            generation=self.generation,
            query=query,
            run=run,
            epoch=epoch,
            location=self.locations.get(query, ""),
            schema=self.schema.number,
            owners=pack_owners(routing.owners),
            workers=tuple(sorted({*routing.owners, *(pin.worker for pin in routing.pins)})),
            guests=tuple(guests) if guests else msgspec.UNSET,
            committed={str(name): Epoch(last) for name, last in committed.items()},
            parameters=msgspec.UNSET if deployment is None else self.parameters.get(deployment, msgspec.UNSET),
            store=msgspec.UNSET if deployment is None else self.stores.get(deployment, msgspec.UNSET),
        )

    # --- what workers hold ---

    def lost(self, worker: WorkerId) -> None:
        """Nothing is known of a worker's memory any more."""
        self.unread(worker)
        self._partakers.discard(worker)

    def unread(self, worker: WorkerId) -> None:
        """A worker could not read its state. Word of that may be late: its part in the current turn is as it was."""
        self._nothing_lacks = None
        self._holds.pop(worker, None)
        self._owed.pop(worker, None)
        self._reading.discard(worker)

    def left_out(self, worker: WorkerId) -> None:
        """A worker owns nothing any more: nobody waits for what it has not read."""
        self._owed.pop(worker, None)
        self._reading.discard(worker)

    def restarted(self) -> None:
        """All workers begin anew, with nothing."""
        for worker in {*self._holds, *self._owed, *self._reading, *self._partakers}:
            self.lost(worker)

    def has_read(self, worker: WorkerId) -> None:
        """A worker has all that it was told to read."""
        self._reading.discard(worker)

    @property
    def epoch_of_head(self) -> tuple[Epoch, QueryId]:
        """The epoch of the committed state, and its query."""
        return self._epoch_of(self.head)

    @property
    def held(self) -> bool:
        """Whether a worker has the state of any turn, or reads it."""
        return bool(self._holds)

    def all_hold_head(self, routing: RoutingTable) -> bool:
        """Whether every worker that owns something has the state at the head in its memory."""
        return not self.lacking(routing)

    def lacking(self, routing: RoutingTable) -> set[WorkerId]:
        """Who owns something, and has not got its state at the head, nor reads it."""
        known = self._nothing_lacks
        if known is not None and known[0] is routing and known[1] == self.head:
            return set()
        owning = {worker for worker in routing.workers if routing.groups_of(worker) or routing.guests_of(worker)}
        holding = {worker for worker, turn in self._holds.items() if turn == self.head}
        lacking = (owning - holding) | {worker for worker, groups in self._owed.items() if groups}
        if not lacking:
            self._nothing_lacks = routing, self.head
        return lacking

    @property
    def owes(self) -> bool:
        """Whether a worker owns key groups that it has not been told to read back yet."""
        return any(self._owed.values())

    def owned_nothing(self, worker: WorkerId) -> None:
        """A worker that owned nothing is about to be handed something: it needs to read nothing back."""
        self._holds[worker] = self.head

    @property
    def being_read(self) -> bool:
        """Whether a worker is reading state back, by a plan whose files must stay."""
        return bool(self._reading)

    def take_over(self, worker: WorkerId, groups: Iterable[KeyGroup]) -> None:
        """A worker owns key groups that it has to read back."""
        self._nothing_lacks = None
        self._owed.setdefault(worker, set()).update(groups)

    def adopt(self, other: Lineage) -> None:
        """The state was given up; the new one is written in the schema of another lineage of the operator."""
        self.schemas, self._current = dict(other.schemas), other._current

    def reset(self) -> None:
        """The state is given up: the next epoch starts from the empty one, which no worker is known to have."""
        self.head = self._nothing_lacks = None
        self._holds, self._owed, self._reading = {}, {}, set()

    def begins(self, workers: Iterable[WorkerId]) -> None:
        """A turn begins on the head, with these workers."""
        self._partakers = set(workers)

    def takes_part(self, worker: WorkerId) -> bool:
        """Whether a worker has been in the current turn from its beginning."""
        return worker in self._partakers

    def committed(self, turn: Turn) -> None:
        """A turn counts: it is the head, and every worker has it that took part in it and had the parent."""
        # SUBTLE: a replacement that came meanwhile has read the parent, and still has to get this one. And a worker
        # without rows in the turn has sealed it while it still read the parent, perhaps in vain.
        self._nothing_lacks = None
        self._holds |= dict.fromkeys(self._partakers & self._holds.keys(), turn)
        self.head = turn

    def restore(
        self,
        worker: WorkerId,
        deployment: DeploymentId,
        groups: tuple[KeyGroup, ...],
        base: Turn | None,
        routing: RoutingTable,
        last: Turn = NO_TURN,
    ) -> list[tuple[m.Message, bytes | None]]:
        """What a worker must be told so that it holds the state at a turn; nothing if it does.

        ``last``: the last turn that began.
        """
        self._nothing_lacks = None
        owed = self._owed.get(worker, set())
        guests = routing.guests_of(worker)
        hosts = set(map(routing.group_of, guests)) - set(groups)
        if not groups and not hosts:
            self._owed.pop(worker, None)
            self._holds[worker] = base  # it owns nothing, so it has all of the state that it needs
            self._reading.discard(worker)
            return []
        groups = (*groups, *sorted(hosts))
        holds = worker in self._holds and self._holds[worker] == base
        if holds and not owed:
            return []
        if holds:
            groups = tuple(sorted(owed))
        # SUBTLE: first of all, as it may raise: then the worker is not told, and has nothing of it.
        message, plan = self._order(deployment, groups, base, whole=not holds)
        self._owed.pop(worker, None)
        if not holds:
            self._holds[worker] = base
            self._reading.discard(worker)  # it forgets all that it was told before
        if base is not None:
            self._reading.add(worker)
        mixed = tuple(sorted(self._mixed(groups, base, routing)))
        message = msgspec.structs.replace(message, latest=Turn(self.next_turn(last) - 1), mixed=mixed)
        if routing.pins:
            hosted = tuple(sorted(hosts & set(groups)))
            message = msgspec.structs.replace(message, guests=guests, hosts=hosted, away=routing.away_from(worker))
        return [(message, plan)]

    def _mixed(self, groups: Iterable[KeyGroup], turn: Turn | None, routing: RoutingTable) -> set[KeyGroup]:
        """The key groups of which single keys live apart, or did at a turn; all if nobody knows."""
        record = None if turn is None else self.history.record(turn)
        if record is None:
            return set(groups)
        then = () if record.guests is msgspec.UNSET else (KeyGroup(group) for group, _ in record.guests)
        return {routing.group_of(pin.key) for pin in routing.pins}.union(then).intersection(groups)

    def _order(
        self, deployment: DeploymentId, groups: Iterable[KeyGroup], base: Turn | None, *, whole: bool
    ) -> tuple[m.Restore, bytes | None]:
        epoch, query = self._epoch_of(base)
        turn = NO_TURN if base is None else base
        message = m.Restore(self.history.operator, turn, deployment, tuple(groups), epoch, query, whole=whole)
        return message, None if base is None else self.order(base)

    def _epoch_of(self, turn: Turn | None) -> tuple[Epoch, QueryId]:
        held = None if turn is None else (self.history.record(turn) or self.history.manifest(turn))
        return (NO_EPOCH, NO_QUERY) if held is None else (held.epoch, held.query)

    def order(self, turn: Turn) -> bytes:
        """How to read the state at a turn, with the schemas that it went through and goes through now."""
        plan = self.history.restore_plan(turn)
        used = {record.schema for record in plan.deltas}
        used |= {plan.snapshot.schema} if plan.snapshot is not None else set()
        schemas: dict[int, OperatorSchema] = {}
        wanted = {*used, self._current}
        while wanted:
            number = wanted.pop()
            schemas[number] = self.schemas[number]
            base = schemas[number].base
            if base is not None and base not in schemas and base > min(used):
                wanted.add(base)
        return encode_order(RestoreOrder(schemas, self._current, plan.snapshot, plan.deltas))
