"""What only some simulations have: workers that do not answer, slow stores, harm by user code, damaged files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.simulation.mutants import Patch, first_failure
from tests.simulator import Scenario, desk, simulation
from tests.simulator.faults import ALWAYS, DURABLE_EXTRA, EXTRA
from tests.simulator.simulation import simulate

from bedload.checkpoint import export, heritage, marks, restore
from bedload.checkpoint.filing import Filing
from bedload.control.compaction import Compaction
from bedload.core.errors import CheckpointDamaged
from bedload.store.rows import RowStore
from bedload.worker.applying import Applying
from bedload.worker.machine import WorkerMachine
from bedload.worker.row_runtime import OperatorRuntime

ONLY_WITH_MOVES = {"aborted after copying"}
NEEDS = {
    "damaged file": {"lost driver"},
    "close fails": {"redeploy"},
    "fresh": {"redeploy"},
    "skipped replay": {"lost commit log"},
    "changed state": {"lost driver"},
    "another key": {"lost driver"},
    "careless store": {"lost driver"},
    "paused in the claim": {"lost driver", "careless store"},
    "another order": {"redeploy"},
    "failed restore": {"lost driver"},
    "full store": {"state on disk"},
    "lost store": {"state on disk"},
    "slow redis": {"state in redis"},
    "cut redis": {"state in redis"},
    "wiped redis": {"state in redis"},
    "old redis": {"state in redis"},
}
"""What must happen for a fault to have an occasion."""


def scenario(fault: str, *, durable: bool, moves: int = 0, **options: Any) -> Scenario:
    return Scenario(ALWAYS | {fault} | NEEDS.get(fault, set()), 0.3, durable, moves, **options)


@pytest.mark.parametrize("fault", sorted(EXTRA))
def test_each_is_survived_in_memory(fault: str) -> None:
    moves = 3 if fault in ONLY_WITH_MOVES else 0
    reports = [simulate(seed, scenario(fault, durable=False, moves=moves)) for seed in range(2006, 2012)]
    assert sum(report.faults[fault] for report in reports) > 0
    lost = {"WorkerLost"} if fault in ("hung worker", "vanished worker") else set()
    assert {ending for report in reports for ending in report.endings.values()} <= {"finished"} | lost


@pytest.mark.parametrize("moves", [0, 3])
@pytest.mark.parametrize("fault", sorted({*EXTRA, *DURABLE_EXTRA}))
def test_each_is_survived_with_a_checkpoint(fault: str, moves: int) -> None:
    reports = [simulate(seed, scenario(fault, durable=True, moves=moves)) for seed in range(2000, 2005)]
    assert sum(report.faults[fault] for report in reports) > 0 or (fault in ONLY_WITH_MOVES and not moves)
    refused = {"CheckpointDamaged", "EpochIncomplete", "EpochMismatch", "EpochNotRetained"}
    allowed = {"finished"} | (refused if fault == "damaged file" else set())
    assert {ending for report in reports for ending in report.endings.values()} <= allowed


def test_snapshots_that_are_asked_for_come_while_workers_leave() -> None:
    faults = frozenset({"snapshot", "slow snapshot"})
    reports = [simulate(seed, Scenario(faults, 0.6, True, 4, (), ("drain", "rescale"))) for seed in range(12)]
    assert sum(report.changes["snapshot: done"] for report in reports) > 0


# --- broken on purpose ---


def writer_of_a_snapshot_that_leaves_is_waited_for(patch: Patch) -> None:
    patch.setattr(Compaction, "go_on", lambda self: self._start() if self._asked else [])


def types_are_not_checked_at_the_seal(patch: Patch) -> None:
    patch.setattr(simulation, "MAX_EVENTS", 10_000)  # it goes round in circles, which can be said sooner
    original = RowStore.seal
    patch.setattr(RowStore, "seal", lambda self, settling=None: original(self))


def user_code_that_exits_ends_the_worker(patch: Patch) -> None:
    original = OperatorRuntime._failed

    def failed(self: Any, method: str, error: BaseException, **where: Any) -> Any:
        if isinstance(error, SystemExit):
            raise error
        return original(self, method, error, **where)

    patch.setattr(OperatorRuntime, "_failed", failed)


def worker_that_wakes_up_acknowledges_what_was_given_up(patch: Patch) -> None:
    patch.setattr(Filing, "abandon", lambda self, operator, turn: None)


def segments_that_are_damaged_are_taken_for_empty(patch: Patch) -> None:
    original = restore.load_delta

    def load_delta(storage: Any, operator: Any, form: Any, *record: Any) -> Any:
        try:
            return original(storage, operator, form, *record)
        except CheckpointDamaged:
            return form.empty_delta(), 0

    patch.setattr(restore, "load_delta", load_delta)


def reads_that_wait_are_never_answered(patch: Patch) -> None:
    patch.setattr(WorkerMachine, "_answer_reads", lambda self, hosted: [])


def reads_see_the_epoch_under_way(patch: Patch) -> None:
    # It is taken for the one before, as a reader that looks past the before-images would.
    original = Applying._commit

    def commit(self: Any, hosted: Any) -> None:
        before = hosted.committed, hosted.committed_query
        original(self, hosted)
        hosted.committed, hosted.committed_query = before

    patch.setattr(Applying, "_commit", commit)


def state_that_was_given_up_stays_at_the_workers(patch: Patch) -> None:
    patch.setattr(WorkerMachine, "_reset", lambda self, message: [])


def changed_operator_is_not_noticed(patch: Patch) -> None:
    patch.setattr(heritage, "same_state", lambda stored, wanted: True)


def renamed_variables_are_taken_for_new(patch: Patch) -> None:
    original = heritage.inherit

    def inherit(files: Any, operator: Any, wanted: Any, **options: Any) -> Any:
        variables = tuple(msgspec.structs.replace(it, renamed_from=None) for it in wanted.variables)
        return original(files, operator, msgspec.structs.replace(wanted, variables=variables), **options)

    patch.setattr(desk, "inherit", inherit)


def another_key_is_not_noticed(patch: Patch) -> None:
    patch.setattr(heritage, "check_stored", lambda *_: None)


def whoever_creates_looks_for_no_marks(patch: Patch) -> None:
    patch.setattr(marks, "_is_contested", lambda *_: False)


def copies_leave_out_what_came_after_the_snapshot(patch: Patch) -> None:
    original = export.needed_files

    def needed_files(*state: Any) -> Any:
        needed = original(*state)
        needed.files = [path for path in needed.files if "/deltas/" not in path]
        return needed

    patch.setattr(export, "needed_files", needed_files)


MUTANTS: list[tuple[Callable[[Patch], None], Scenario, int]] = [
    (
        writer_of_a_snapshot_that_leaves_is_waited_for,
        Scenario(frozenset({"snapshot", "slow snapshot"}), 0.6, True, 4, (), ("drain", "rescale")),
        0,
    ),
    (types_are_not_checked_at_the_seal, scenario("misfit", durable=False), 0),
    (user_code_that_exits_ends_the_worker, scenario("exit", durable=False), 0),
    (worker_that_wakes_up_acknowledges_what_was_given_up, scenario("hung worker", durable=True), 7),
    (reads_that_wait_are_never_answered, scenario("read", durable=True, moves=3), 0),
    (reads_see_the_epoch_under_way, scenario("read", durable=False), 0),
    (segments_that_are_damaged_are_taken_for_empty, scenario("damaged file", durable=True), 26),
    (state_that_was_given_up_stays_at_the_workers, scenario("fresh", durable=False), 0),
    (changed_operator_is_not_noticed, scenario("changed state", durable=True), 0),
    (renamed_variables_are_taken_for_new, scenario("changed state", durable=True), 0),
    (another_key_is_not_noticed, scenario("another key", durable=True), 0),
    (whoever_creates_looks_for_no_marks, scenario("paused in the claim", durable=True), 0),
    (copies_leave_out_what_came_after_the_snapshot, scenario("export", durable=True), 0),
]


@pytest.mark.parametrize(("mutant", "where", "start"), MUTANTS, ids=[mutant[0].__name__ for mutant in MUTANTS])
def test_what_is_broken_is_caught(
    mutant: Callable[[Patch], None], where: Scenario, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert first_failure(where, start) is not None
