"""Looking into Spark for the coordinator, on threads of its own: a call to the JVM takes milliseconds, or hangs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from bedload.control.coordinator import Coordinator
from bedload.control.instructions import InspectQuery, InspectStage, Instruction
from bedload.core.errors import BedloadError, ProtocolError
from bedload.core.ids import Epoch, QueryId
from bedload.spark.plan import Plans, mark

Report = Callable[[Callable[[Coordinator], list[Instruction]]], None]
"""Tells the coordinator; from any thread."""


class Inspector:
    """Answers what the coordinator asks about queries and their plans."""

    def __init__(self, plans: Plans, report: Report) -> None:
        self._plans = plans
        self._report = report
        self._quiet: dict[QueryId, set[Epoch]] = {}
        """Epochs in which a source had no new data. Spark itself forgets them when the query restarts."""

    def quiet(self, query: QueryId, epoch: Epoch) -> None:
        """A source of a query had no new data in an epoch."""
        self._quiet.setdefault(query, set()).add(epoch)

    def nothing_read(self, query: QueryId, epoch: Epoch) -> None:
        """No row was read in an epoch that is over: see whether there was anything to read it for.

        SUBTLE: now, as Spark forgets plans, and ``cleanSource`` removes files. A batch that no action used has no rows
        read either, but it has partitions.
        """
        # Whatever stands in the way, that Spark is being stopped, say, only leaves it unknown: nobody waits for this.
        with contextlib.suppress(Exception):
            if self._plans.fed_nothing(query, epoch):
                self.quiet(query, epoch)

    def stage(self, step: InspectStage) -> None:
        """How many feeders there will be, and what time it is for them."""
        try:
            facts = self._plans.stage(step.query, step.epoch, mark(step.deployment, step.operator), step.stage)
        except Exception as error:
            problem = _problem(step, error)
            self._report(lambda c: c.stage_unknown(step.operator, step.turn, problem))
            return
        self._report(lambda c: c.stage_inspected(step.operator, step.turn, step.stage, facts))

    def query(self, step: InspectQuery) -> None:
        """Whether a query runs, and what it has committed."""
        try:
            facts = self._plans.facts(step.query, step.location, step.gap)
        except Exception as error:
            problem = _problem(step, error)
            self._report(lambda c: c.query_unknown(step.operator, problem))
            return
        known = replace(facts, without_data=facts.without_data | self._quiet.get(step.query, set()))
        self._report(lambda c: c.query_inspected(step.operator, step.query, step.turn, known))


def _problem(step: object, error: Exception) -> BedloadError:
    return error if isinstance(error, BedloadError) else ProtocolError(f"{step}: {error!r}")
