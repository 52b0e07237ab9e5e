"""Two operators: in one query side by side, one on the outputs of the other, or in a query each at the same time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.simulation.mutants import Patch, first_failure
from tests.simulator import Scenario
from tests.simulator.faults import ALWAYS, DURABLE, DURABLE_MOVES, MOVES
from tests.simulator.simulation import simulate
from tests.simulator.workload import Layout

from bedload.control.coordinator import Coordinator
from bedload.control.epochs import OperatorEpochs
from bedload.control.inquiries import Inquiries
from bedload.control.instructions import Instruction
from bedload.control.parts import Parts
from bedload.control.recovery import Recovery
from bedload.control.transfer import Transfer
from bedload.core.errors import MoveCancelled
from bedload.core.ids import OperatorName
from bedload.protocol import messages as m
from bedload.worker.machine import WorkerMachine

TWO = [Layout.BESIDE, Layout.CHAINED, Layout.APART]


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("layout", TWO)
def test_without_faults_two_operators_have_the_state_of_all_epochs(layout: Layout, durable: bool) -> None:
    for seed in range(4):
        report = simulate(seed, Scenario(frozenset(), 0.0, durable, layout=layout))
        assert set(report.endings.values()) == {"finished"}
        assert report.aborted == 0


@pytest.mark.parametrize("moves", [0, 3])
@pytest.mark.parametrize("layout", TWO)
def test_two_operators_survive_what_one_does(layout: Layout, moves: int) -> None:
    faults = ALWAYS | DURABLE.keys() | {"poison"}
    faults |= MOVES.keys() | DURABLE_MOVES.keys() if moves else frozenset()
    for seed in range(5):
        simulate(seed, Scenario(faults, 0.12, durable=True, moves=moves, layout=layout))


RESTART = frozenset({"dropped progress", "dropped end", "query failure", "lost commit log", "stop early"})


@pytest.mark.parametrize("layout", TWO)
def test_a_restart_waits_for_no_epoch_that_waits_for_it(layout: Layout) -> None:
    scenario = Scenario(RESTART, 0.3, True, 3, ("stop_restart",), ("rescale",), layout=layout)
    done = sum(simulate(seed, scenario).changes["rescale stop_restart: done"] for seed in range(8))
    assert done > 0


# --- broken on purpose ---


def an_epoch_that_another_operator_is_in_is_held_up(patch: Patch) -> None:
    patch.setattr(Parts, "holds", lambda self, ask: self.changes.holding or self.unsettled is not None)


def an_open_says_nothing_to_other_operators(patch: Patch) -> None:
    patch.setattr(OperatorEpochs, "asked_elsewhere", lambda self, ask: [])


def nobody_looks_whether_a_sealed_epoch_is_committed(patch: Patch) -> None:
    patch.setattr(Inquiries, "inquire", lambda self: [])


def the_abort_of_one_operator_aborts_all(patch: Patch) -> None:
    original = WorkerMachine.handle

    def handle(self: WorkerMachine, peer: object, message: m.Message, body: object = None) -> object:
        out = original(self, peer, message, body)
        for name, hosted in self._hosted.items():
            if isinstance(message, m.Abort) and name != message.operator:
                out += self._applying.roll_back(hosted, message.error.error())
        return out

    patch.setattr(WorkerMachine, "handle", handle)


def state_of_operators_is_mixed_up(patch: Patch) -> None:
    original = WorkerMachine._at
    patch.setattr(WorkerMachine, "_at", lambda self, operator: original(self, OperatorName("Simulated")))


MUTANTS: list[tuple[Callable[[Patch], None], Layout, int]] = [
    (an_epoch_that_another_operator_is_in_is_held_up, Layout.CHAINED, 0),
    (an_open_says_nothing_to_other_operators, Layout.CHAINED, 41),
    (nobody_looks_whether_a_sealed_epoch_is_committed, Layout.APART, 0),
    (the_abort_of_one_operator_aborts_all, Layout.BESIDE, 43),
    (state_of_operators_is_mixed_up, Layout.BESIDE, 0),
]


@pytest.mark.parametrize(("mutant", "layout", "start"), MUTANTS, ids=[mutant[0].__name__ for mutant in MUTANTS])
def test_a_broken_protocol_of_two_operators_is_caught(
    mutant: Callable[[Patch], None], layout: Layout, start: int, monkeypatch: Patch
) -> None:
    mutant(monkeypatch)
    restart = Scenario(RESTART, 0.3, True, 3, ("stop_restart",), ("rescale",), layout=layout)
    assert first_failure(restart, start) is not None


def test_a_change_that_is_called_off_leaves_an_operator_without_state_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called_off = Scenario(frozenset({"cancel"}), 0.6, False, 3, ("seamless",), ("rescale",), layout=Layout.APART)
    reports = [simulate(seed, called_off) for seed in range(8)]
    assert sum(report.changes["rescale seamless: MoveCancelled"] for report in reports) > 0
    monkeypatch.setattr(Transfer, "flipped", property(lambda self: self.tally.flips > 0 or self._switched))
    monkeypatch.setattr(Coordinator, "cancel", cancel_whatever_moved)
    monkeypatch.setattr(Recovery, "leave_out", lambda self, worker: None)  # which shares out what they own
    assert first_failure(called_off) is not None


def cancel_whatever_moved(self: Coordinator, number: int) -> tuple[bool, list[Instruction]]:
    change = self.changes.current
    if change is None or change.number != number or change.failure is not None:
        return False, []
    return True, self._parts.then(self.changes._fail(change, MoveCancelled("whatever had moved")))
