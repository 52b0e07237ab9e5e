"""The simulator can fail: each of these broken protocols is caught by some seed in a small range.

A mutant changes one decision of the coordinator, the worker or the store. One that survives would mean that
the simulator does not look at what the decision is for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.simulation.mutants import Patch, first_failure
from tests.simulator import Scenario
from tests.simulator.faults import ALWAYS

from bedload.control import refusals
from bedload.control.epochs import OperatorEpochs
from bedload.control.standing import Phase as ControlPhase
from bedload.control.turns import Turns
from bedload.core.epoch import EpochTime
from bedload.protocol import combining, split
from bedload.protocol import messages as m
from bedload.protocol.split import unpack
from bedload.store.rows import RowStore
from bedload.worker.applying import Applying
from bedload.worker.hosted import Applied, Hosted
from bedload.worker.machine import Phase, WorkerMachine
from bedload.worker.operator import Context
from bedload.worker.row_runtime import OperatorRuntime

OFTEN = Scenario(ALWAYS | {"noise", "second query", "poison"}, 0.3)
LOSSY = Scenario(ALWAYS | {"stop early", "no action"}, 0.2)
USUAL = Scenario(ALWAYS, 0.3)


def rows_do_not_wait_for_their_time(patch: Patch) -> None:
    def begin(self: Any, epoch: Any) -> None:
        self.epoch, self._forgotten = epoch, False
        self._time = getattr(self, "_time", EpochTime())  # of the epoch before, until the right one is there

    patch.setattr(Hosted, "waits_for_time", False)
    patch.setattr(Context, "_begin", begin)


def repeat_is_applied_again(patch: Patch) -> None:
    original = Applying._apply

    def apply(self: Any, hosted: Any, peer: Any, message: Any, body: Any) -> Any:
        feeder = hosted.feeders[message.feeder]
        if message.number in feeder.applied and hosted.phase is Phase.OPEN:
            hosted.runtime.apply(unpack(body, feeder.schema))
        return original(self, hosted, peer, message, body)

    patch.setattr(Applying, "_apply", apply)


def repeat_gets_no_output(patch: Patch) -> None:
    original = Applying._apply

    def apply(self: Any, hosted: Any, peer: Any, message: Any, body: Any) -> Any:
        out = original(self, hosted, peer, message, body)
        applied = hosted.feeders[message.feeder].applied
        applied[message.number] = Applied(applied[message.number].checksum, None)
        return out

    patch.setattr(Applying, "_apply", apply)


def checksums_are_not_compared(patch: Patch) -> None:
    original = Applying._apply

    def apply(self: Any, hosted: Any, peer: Any, message: Any, body: Any) -> Any:
        known = hosted.feeders[message.feeder].applied.get(message.number)
        if known is not None:
            message = m.Apply(message.operator, message.turn, message.feeder, message.number, known.checksum)
        return original(self, hosted, peer, message, body)

    def done(self: Any, hosted: Any, peer: Any, message: Any) -> Any:
        feeder = hosted.feeders[message.feeder]
        count = len(feeder.applied) if feeder.batches is None else feeder.batches
        return whole(self, hosted, peer, m.Done(message.operator, message.turn, message.feeder, count))

    whole = Applying._done
    patch.setattr(Applying, "_apply", apply)
    patch.setattr(Applying, "_done", done)


def key_groups_are_those_of_other_rows(patch: Patch) -> None:
    original = split.with_groups

    def with_groups(rows: Any, key: Any, count: int) -> Any:
        groups = original(rows, key, count).columns[-1]
        return rows.append_column(split.GROUP_FIELD, groups.take(pa.array(range(len(groups))[::-1])))

    patch.setattr(combining, "with_groups", with_groups)


def abort_does_not_restore(patch: Patch) -> None:
    patch.setattr(OperatorRuntime, "abort", OperatorRuntime.commit)


def abort_forgets_removed_keys(patch: Patch) -> None:
    original = RowStore.abort

    def abort(self: Any) -> None:
        self._gone = {}
        original(self)

    patch.setattr(RowStore, "abort", abort)


def seal_comes_before_all_are_done(patch: Patch) -> None:
    original = Applying.seal_if_done

    def seal_if_done(self: Any, hosted: Any) -> Any:
        done = [feeder for feeder in hosted.feeders.values() if feeder.batches is not None]
        if hosted.phase is Phase.OPEN and hosted.expected is not None and done and len(done) == hosted.expected - 1:
            return self._seal(hosted)
        return original(self, hosted)

    patch.setattr(Applying, "seal_if_done", seal_if_done)


def done_is_answered_at_once(patch: Patch) -> None:
    original = Applying._done

    def done(self: Any, hosted: Any, peer: Any, message: Any) -> Any:
        out = original(self, hosted, peer, message)
        feeder = hosted.feeders[message.feeder]
        if peer in feeder.waiting:
            feeder.waiting.remove(peer)
            out = [*out, (peer, m.Finished(message.turn), None)]
        return out

    patch.setattr(Applying, "_done", done)


def former_turns_are_let_in(patch: Patch) -> None:
    original = Applying.from_feeder

    def from_feeder(self: Any, hosted: Any, peer: Any, message: Any, body: Any) -> Any:
        if message.turn < hosted.turn and hosted.phase is Phase.OPEN:
            fields = {name: getattr(message, name) for name in message.__struct_fields__}
            message = type(message)(**{**fields, "turn": hosted.turn})
        return original(self, hosted, peer, message, body)

    patch.setattr(Applying, "from_feeder", from_feeder)


def early_messages_are_dropped(patch: Patch) -> None:
    original = WorkerMachine._begin

    def begin(self: Any, message: Any) -> Any:
        self._hosted[message.operator].early = []
        return original(self, message)

    patch.setattr(WorkerMachine, "_begin", begin)


def crashed_feeder_keeps_its_slot(patch: Patch) -> None:
    original = WorkerMachine.gone

    def gone(self: Any, peer: Any) -> Any:
        for hosted in self._hosted.values():
            for feeder in hosted.feeders.values():
                feeder.peers.add("nobody")
        return original(self, peer)

    patch.setattr(WorkerMachine, "gone", gone)


def commit_comes_with_the_seal(patch: Patch) -> None:
    original = Turns.sealed

    def sealed(self: Any, message: Any) -> Any:
        out = original(self, message)
        return [*out, *self.commit()] if self.standing.phase is ControlPhase.SEALED else out

    patch.setattr(Turns, "sealed", sealed)


def incomplete_epoch_is_let_through(patch: Patch) -> None:
    def probed(self: Any, message: Any) -> Any:
        at = self.standing
        if message.turn != at.turn or at.current.probing is None:
            return []
        out = self.abort(refusals.incomplete(at.name, at.epoch, None))
        at.committed[at.query] = at.epoch
        at.phase = ControlPhase.IDLE
        return [*out, *self._look_again()]

    patch.setattr(Turns, "probed", probed)


def skipped_epoch_is_let_through(patch: Patch) -> None:
    patch.setattr(OperatorEpochs, "_after_gap", lambda self, token, ask, facts: self._begin(token, ask))


def nonces_are_ignored(patch: Patch) -> None:
    original = OperatorEpochs._join

    def join(self: Any, token: Any, ask: Any) -> Any:
        self.standing.current._opened = {}
        return original(self, token, ask)

    patch.setattr(OperatorEpochs, "_join", join)


def ordinals_are_ignored(patch: Patch) -> None:
    original = OperatorEpochs._join

    def join(self: Any, token: Any, ask: Any) -> Any:
        self.standing.current._ordinals = {}
        return original(self, token, ask)

    patch.setattr(OperatorEpochs, "_join", join)


def zombies_may_replay(patch: Patch) -> None:
    def is_stale(self: Any, ask: Any) -> bool:
        return bool(self.standing.run == ask.run and ask.epoch <= self.standing.epoch)

    patch.setattr(OperatorEpochs, "_is_stale", is_stale)


def backup_misses_removed_keys(patch: Patch) -> None:
    original = RowStore.changes
    patch.setattr(RowStore, "changes", lambda self: original(self)._replace(removed=()))


MUTANTS: list[tuple[Callable[[Patch], None], Scenario]] = [
    (rows_do_not_wait_for_their_time, USUAL),
    (repeat_is_applied_again, USUAL),
    (repeat_gets_no_output, USUAL),
    (checksums_are_not_compared, OFTEN),
    (key_groups_are_those_of_other_rows, USUAL),
    (abort_does_not_restore, USUAL),
    (abort_forgets_removed_keys, USUAL),
    (seal_comes_before_all_are_done, USUAL),
    (done_is_answered_at_once, USUAL),
    (former_turns_are_let_in, USUAL),
    (early_messages_are_dropped, USUAL),
    (crashed_feeder_keeps_its_slot, USUAL),
    (commit_comes_with_the_seal, USUAL),
    (incomplete_epoch_is_let_through, LOSSY),
    (skipped_epoch_is_let_through, LOSSY),
    (nonces_are_ignored, USUAL),
    (ordinals_are_ignored, USUAL),
    (zombies_may_replay, USUAL),
    (backup_misses_removed_keys, USUAL),
]


@pytest.mark.parametrize(("mutate", "scenario"), MUTANTS, ids=[mutate.__name__ for mutate, _ in MUTANTS])
def test_a_broken_protocol_is_caught(
    mutate: Callable[[Patch], None], scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    message = first_failure(scenario)
    assert message is not None, "no seed noticed"
    assert "replay it with: python -m tests.simulator --seed" in message
