"""Timers of keys whose state is on its way when an epoch ends: the epoch waits for them as it waits for rows.

Only the old owner knows which they are. So a new owner that is ready to seal asks each old owner which keys on their
way may have something due (``AskDue``), and seals when all of these are here. The old owner sends them next, and
answers when it knows that it is one: the flip may reach it after the question.

Invariants: no key on its way fires, and none that is due is left out; what is read back from the checkpoint is waited
for as a whole, as nobody can be asked. A question is asked again if its connection broke.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bedload.core.epoch import EpochTime
from bedload.core.ids import NO_TURN, MoveId, OperatorName, Turn, WorkerId
from bedload.keys import key_groups
from bedload.keys.lookup import Hashes
from bedload.migration.hash_set import NONE, pack, unpack
from bedload.migration.holdings import Holdings
from bedload.protocol import messages as m
from bedload.protocol.messages import Body
from bedload.worker.peers import Neighbour, Out
from bedload.worker.runtime import Runtime

if TYPE_CHECKING:
    from bedload.worker.moving import Moving


class InTransit:
    """Both ends of the question, for one operator at one worker."""

    def __init__(self, worker: WorkerId, name: OperatorName, holdings: Holdings, moving: Moving) -> None:
        self._worker = worker
        self._name = name
        self._holdings = holdings
        self._moving = moving
        self._turn = NO_TURN
        """The turn that was asked about last."""
        self._time = EpochTime()
        self._told: dict[WorkerId, Hashes | None] = {}
        """Whom we asked, and what is due there; None: there is no answer yet."""
        self._questions: dict[WorkerId, m.AskDue] = {}
        """What others want to know of us: the last question of each."""

    # --- the new owner's end ---

    def waits(self, turn: Turn, time: EpochTime) -> list[Out] | None:
        """What to send while the seal has to wait; None: nothing that is due is on its way."""
        holdings, receiver = self._holdings, self._moving.receiver
        if holdings.whole:
            return None
        if holdings.left or receiver is None:
            return []
        if turn != self._turn:
            self._turn, self._time, self._told = turn, time, {}
        new = [source for source in receiver.sources if source not in self._told]
        self._told |= dict.fromkeys(new)
        if new:
            return [self._ask(receiver.move, source) for source in new]
        found = [self._told[source] for source in receiver.sources]
        if any(hashes is None for hashes in found):
            return []
        due = np.concatenate([NONE, *(hashes for hashes in found if hashes is not None)])
        return [] if holdings.on_its_way(key_groups(due, holdings.key_groups), due).any() else None

    def heard(self, message: m.AskDue | m.DueKeys, body: Body) -> list[Out]:
        """A new owner asks, and is answered when that is possible; or an old owner has answered."""
        if isinstance(message, m.AskDue):
            self._questions[message.target] = message
        elif message.turn == self._turn:
            self._told[message.source] = unpack(body)
        return []

    def neighbour_gone(self, neighbour: Neighbour) -> list[Out]:
        """A connection broke: a question on it, or its answer, may be lost."""
        receiver = self._moving.receiver
        if receiver is None or neighbour.worker not in receiver.sources or neighbour.worker not in self._told:
            return []
        return [] if self._told[neighbour.worker] is not None else [self._ask(receiver.move, neighbour.worker)]

    def _ask(self, move: MoveId, source: WorkerId) -> Out:
        ask = m.AskDue(self._name, move, self._worker, self._turn, self._time)
        return self._moving.neighbour(source), ask, None

    # --- the old owner's end ---

    def answers(self, runtime: Runtime) -> list[Out]:
        """What can be answered by now; what is due goes next."""
        sender = self._moving.sender
        if sender is None or not sender.flipped:
            return []
        out: list[Out] = []
        for target, message in list(self._questions.items()):
            if message.move > sender.move:
                continue  # its flip is still to come
            del self._questions[target]
            lot = self._holdings.lot_to(message.move, target)
            if message.move < sender.move or lot is None:
                continue
            due = runtime.due_hashes((*lot.groups, *lot.key_groups), message.time)
            groups = key_groups(due, self._holdings.key_groups)
            single = np.isin(due, np.array(lot.keys, np.int64))
            whole = np.isin(groups, np.array(lot.groups, np.int64)) & ~np.isin(due, np.array(lot.stay, np.int64))
            due = due[single | whole]
            sender.want(target, due)
            answer = m.DueKeys(self._name, message.move, self._worker, message.turn)
            out.append((self._moving.neighbour(target), answer, pack(due)))
        return out
