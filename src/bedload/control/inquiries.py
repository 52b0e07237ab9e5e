"""What is found out about an operator's queries in Spark, and what follows from it for the operator's last turn.

Invariant: for an operator, at most one look at a query is under way; its answer serves all that wait.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bedload.control import refusals
from bedload.control.instructions import InspectQuery, Instruction
from bedload.control.recovery import PAUSE_SECONDS, Recovery
from bedload.control.standing import Phase, Standing
from bedload.control.turns import Turns
from bedload.core.errors import BedloadError
from bedload.core.ids import Epoch, QueryId, RunId, Turn
from bedload.protocol import messages as m

_MADE_UP = re.compile(r"/(temporary-)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/?$")
"""A checkpoint location that Spark invented for a query that has none: no later one finds it."""
MOST_LOOKS = 60
"""So often in a row it is looked in vain for what became of an epoch before whoever waits for that is told."""


@dataclass(frozen=True)
class QueryFacts:
    """What the driver found out about a query."""

    active: bool
    committed: Epoch | None
    """The latest epoch in the query's commit log, if that could be read."""
    without_data: frozenset[Epoch]
    """Epochs in which a source had nothing to read, so that an operator may have had no partition."""
    location: str = ""
    """The query's checkpoint location, if that is known."""
    log_read: bool = False
    """The commit log was read: if no epoch is in it, none was committed."""

    def reaches(self, epoch: Epoch) -> bool:
        """Whether that epoch may have been committed when somebody looked."""
        if self.committed is None:
            return not self.log_read
        return self.committed >= epoch


@dataclass(frozen=True)
class Found:
    """What was found out about a query."""

    query: QueryId
    facts: QueryFacts
    gap: tuple[Epoch, ...]
    """Into which gap somebody looked."""
    turn: Turn
    """The operator's turn by then: when it has begun another one, this does not hold any more."""


class Inquiries:
    """The looks at queries because of one operator."""

    def __init__(self, standing: Standing, turns: Turns, recovery: Recovery) -> None:
        self.standing = standing
        self._turns = turns
        self._recovery = recovery
        self._looking: dict[QueryId, tuple[Epoch, ...]] = {}
        """Queries that somebody looks at because of an open, and into which gap."""
        self._behind: dict[tuple[RunId, Epoch], float] = {}
        """Since when the commit log has not reached what an open follows."""
        self._in_vain = 0
        """How often in a row nobody could say what became of the last turn, with no run that would."""

    def begun(self) -> None:
        """A turn began: what was looked for in vain is no matter any more."""
        self._behind.clear()
        self._in_vain = 0

    def answered(self, query: QueryId) -> tuple[Epoch, ...]:
        """Somebody has looked at a query; into which gap."""
        return self._looking.pop(query, ())

    def unanswered(self) -> None:
        """Somebody could not look."""
        self._looking.clear()
        self._in_vain += 1

    def try_again(self) -> None:
        """Somebody needs what was looked for or read in vain."""
        self._in_vain = 0
        self._recovery.begin()

    def log_behind(self, ask: m.Open) -> float:
        """For how many seconds the commit log has not reached what an open follows."""
        at = self.standing
        return at.now - self._behind.setdefault((ask.run, ask.epoch), at.now)

    def learn(self, facts: QueryFacts) -> list[Instruction]:
        """Draw what follows for the last turn from a look at its query."""
        at = self.standing
        if at.run is not None and not facts.active:
            at.past_runs.add(at.run)
        committed = facts.committed is not None and facts.committed >= at.epoch
        if at.phase is Phase.SEALED and committed:
            return self._turns.commit()
        if at.phase is Phase.SEALED and not facts.active:
            # SUBTLE: not rolled back. The next run need not replay it: a sink that has the epoch skips it, as Spark's
            # file sink does, and Spark commits it without a task of ours.
            self._in_vain += 1
            return []
        self._in_vain = 0
        if at.phase is Phase.OPEN and (committed or at.run in at.past_runs):
            # Its tasks are over: it was sealed, and word of that is on its way, or it never will be.
            return self._turns.probe()
        return []

    def inquire(self) -> list[Instruction]:
        """Somebody waits for the end of this epoch: look now and then what became of it.

        Spark's word may not come: progress events get lost, the next epoch's open may wait for a task slot, and a query
        that was stopped may never start again.
        """
        at = self.standing
        if at.query is None or not (at.unknown or self._recovery.unread is not None):
            return []
        place = "" if at.lineage is None else at.lineage.locations.get(at.query, "")
        return self.look(at.query, place, pause=PAUSE_SECONDS)

    @property
    def in_the_dark(self) -> bool:
        """Whether nobody can say what became of the last turn, and no run goes on that would: it was tried for long."""
        return self.standing.unknown and self._in_vain >= MOST_LOOKS

    def stuck(self) -> BedloadError | None:
        """Why whoever waits for the end of this epoch, or for its state, waits in vain; None: it may still come."""
        at, unread = self.standing, self._recovery.unread
        if self.in_the_dark:
            return refusals.left_open(at.name, at.epoch, at.query)
        if unread is not None and not self._recovery.reads_again():
            return refusals.unread(at.name, unread)
        return None

    def look(
        self, query: QueryId, place: str = "", *, gap: tuple[Epoch, ...] = (), pause: float = 0.0
    ) -> list[Instruction]:
        """Have somebody look at a query, unless somebody does: the answer is for all that wait."""
        at = self.standing
        if query in self._looking:
            return []
        self._looking[query] = gap
        return [InspectQuery(at.name, query, at.turn, place, gap, pause)]

    def gap(self, ask: m.Open) -> tuple[Epoch, ...]:
        """The epochs between the state's and the asked one."""
        last = self.standing.committed.get(ask.query, Epoch(-1))
        return tuple(Epoch(epoch) for epoch in range(last + 1, ask.epoch))

    def way_to_nothing(self, ask: m.Open, found: Found | None) -> list[Instruction] | BedloadError | None:
        """What a query has to wait for that would start on empty state, or why it must not; None: it may.

        Whose state that is has to be over: a query whose checkpoint is there will want it again.
        """
        at = self.standing
        owner = next(reversed(at.committed))
        if found is None or found.query != owner:
            return self.look(owner, "" if at.lineage is None else at.lineage.locations.get(owner, ""))
        facts = found.facts
        if facts.committed is None or _MADE_UP.search(facts.location):
            return None
        return refusals.kept(at.name, ask, owner, facts.location)

    def query_at(self, location: str) -> QueryId | None:
        """The query in the state that had its Spark checkpoint at a place."""
        at = self.standing
        assert at.lineage is not None
        for query, place in at.lineage.locations.items():
            if place == location and place and query in at.committed:
                return query
        return None
