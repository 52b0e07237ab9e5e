"""The part of a worker's machine that reads state back: orders, arrivals, and the rows and reads that waited for them.

Invariants: what arrives is installed only if it is still wanted; rows that waited are applied before later ones of
their key group; a worker whose state could not be read says so, and refuses the turn and the reads that need it.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import pyarrow as pa

from bedload.core.clock import Clock
from bedload.core.errors import BedloadError, ProtocolError
from bedload.core.ids import NO_TURN, DeploymentId, KeyGroup, OperatorName, Turn, WorkerId
from bedload.protocol import messages as m
from bedload.protocol.messages import Body
from bedload.worker.durability import Load, Loaded, LoadFailed
from bedload.worker.hosted import (
    COORDINATOR,
    LOADER,
    Hosted,
    Out,
    Peer,
    Phase,
    as_ours,
    of_groups,
    one_output,
    own_keys,
)


class Restoring:
    """A base of :class:`~bedload.worker.machine.WorkerMachine`."""

    worker: WorkerId
    _clock: Clock
    _hosted: dict[OperatorName, Hosted]

    @abstractmethod
    def _activate(self, hosted: Hosted, deployment: DeploymentId) -> None: ...

    @abstractmethod
    def _fail(self, hosted: Hosted, error: BedloadError) -> list[Out]: ...

    @abstractmethod
    def _roll_back(self, hosted: Hosted, error: BedloadError) -> list[Out]: ...

    @abstractmethod
    def _settle(self, hosted: Hosted) -> list[Out]: ...

    @abstractmethod
    def _hold(self, hosted: Hosted, output: pa.RecordBatch | None) -> None: ...

    @abstractmethod
    def _look(self, peer: Peer, message: m.Read | m.Inspect, body: Body) -> list[Out]: ...

    @abstractmethod
    def _restored_instead(self, hosted: Hosted, base: Turn, groups: tuple[KeyGroup, ...]) -> list[Out]: ...

    def _at(self, operator: OperatorName) -> Hosted:
        """An operator here, which the worker may hear of for the first time."""
        hosted = self._hosted.get(operator)
        if hosted is None:
            hosted = self._hosted[operator] = Hosted(operator)
        return hosted

    def _restore(self, message: m.Restore, plan: Body) -> list[Out]:
        hosted = self._at(message.operator)
        if hosted.phase in (Phase.OPEN, Phase.SEALED):
            raise ProtocolError(f"{message} while turn {hosted.turn} is {hosted.phase.name}")
        hosted.holdings.told += 1
        hosted.unrestored = None
        try:
            self._activate(hosted, message.deployment)
            assert hosted.runtime is not None
            hosted.runtime.drop(message.groups)
        except Exception as error:
            return self._not_restored(hosted, as_ours(error))
        hosted.base = message.base
        hosted.committed, hosted.committed_query = message.epoch, message.query
        for _, wanted in hosted.orders.values():
            wanted.difference_update(message.groups)
        hosted.orders = {ticket: order for ticket, order in hosted.orders.items() if order[1]}
        if not hosted.orders:
            hosted.restored = 0
        hosted.holdings.read_back(message.groups, message.hosts)
        instead = self._restored_instead(hosted, message.base, message.groups)
        if plan is None or not message.groups:
            hosted.holdings.arrive(message.groups)
            return [*instead, *self._progress(hosted, 0), *self._answer_reads(hosted)]
        hosted.tickets += 1
        hosted.orders[hosted.tickets] = message, set(message.groups)
        variables = hosted.deployments[message.deployment].variables
        order = Load(hosted.name, hosted.tickets, message.base, message.groups, bytes(plan), variables)
        return [*instead, (LOADER, order, None)]

    def loaded(self, news: Loaded | LoadFailed) -> list[Out]:
        """Some of the state that was to be read is here, or cannot be read."""
        hosted = self._hosted[news.operator]
        if news.ticket not in hosted.orders:
            return []  # an order that was taken back
        if isinstance(news, LoadFailed):
            return self._not_restored(hosted, news.error)
        assert hosted.runtime is not None
        message, wanted = hosted.orders[news.ticket]
        groups = [group for group in news.groups if group in wanted]
        try:
            state = of_groups(news.state, groups, len(news.groups))
            hosted.runtime.install(groups, own_keys(state, message))
            hosted.restored += len(groups)
            wanted.difference_update(groups)
            if not wanted:
                del hosted.orders[news.ticket]
            hosted.holdings.arrive(groups)
            freed = hosted.parking.free(self._clock.monotonic())
        except Exception as error:
            return self._not_restored(hosted, as_ours(error))
        try:
            out = self._go_on(hosted, freed)
        except Exception as error:
            # The rows have failed, not the reading: what was read is here, and the rest still comes.
            out = self._fail(hosted, as_ours(error))
        out += self._progress(hosted, news.bytes)
        if hosted.phase is Phase.OPEN:
            out += self._settle(hosted)
        return [*out, *self._answer_reads(hosted)]

    def _go_on(self, hosted: Hosted, freed: list[tuple[Any, pa.RecordBatch, bool]]) -> list[Out]:
        """Apply rows that waited."""
        out: list[Out] = []
        for (name, number), rows, last in freed:
            assert hosted.runtime is not None
            applied = hosted.feeders[name].applied[number]
            output = hosted.runtime.apply(rows)
            self._hold(hosted, output)
            if output is not None:
                applied.outputs.append(output)
            if last:
                applied.output = one_output(applied.outputs)
                applied.outputs = []
                peers, applied.waiting = applied.waiting or [], None
                out += [(peer, m.Applied(hosted.turn, number), applied.output) for peer in peers]
        return out

    def _not_restored(self, hosted: Hosted, error: BedloadError) -> list[Out]:
        hosted.unrestored = error
        hosted.orders = {}
        hosted.base = NO_TURN
        hosted.holdings.forget()
        refusal = m.Refused(m.WireError.of(error))
        out: list[Out] = [(peer, refusal, None) for peer, _, _ in hosted.reads]
        hosted.reads = []
        if hosted.phase is Phase.OPEN:
            out += self._fail(hosted, error)
        return [*out, *self._progress(hosted, 0, error)]

    def _progress(self, hosted: Hosted, read: int, error: BedloadError | None = None) -> list[Out]:
        keys = 0 if hosted.runtime is None else hosted.runtime.keys
        wire = None if error is None else m.WireError.of(error)
        left, told = hosted.holdings.left, hosted.holdings.told
        news = m.Restored(self.worker, hosted.name, hosted.base, hosted.restored, left, keys, read, wire, told)
        return [(COORDINATOR, news, None)]

    def _answer_reads(self, hosted: Hosted) -> list[Out]:
        reads, hosted.reads = hosted.reads, []
        return [step for read in reads for step in self._look(*read)]

    def _settle_loss(self, message: m.Settle) -> list[Out]:
        # SUBTLE: a sealed turn may be whole, by what the lost worker wrote before it went, and committed by Spark.
        hosted = self._hosted.get(message.operator)
        sealed = hosted is not None and hosted.turn == message.turn and hosted.phase is Phase.SEALED
        out: list[Out] = []
        if hosted is not None and hosted.turn == message.turn and hosted.phase is Phase.OPEN:
            out = self._roll_back(hosted, message.error.error())
        return [*out, (COORDINATOR, m.Settled(self.worker, message.operator, message.turn, sealed), None)]
