"""The coordinator around the epochs: deploying, stopping, what it does not know."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bedload.control.attempt import StageFacts
from bedload.control.coordinator import Coordinator
from bedload.control.instructions import DeployResult, EpochEnded, Instruction, Reply, ToWorker
from bedload.control.members import workers_at
from bedload.control.standing import Phase
from bedload.core.clock import SystemClock
from bedload.core.epoch import EpochStats, EpochTime
from bedload.core.errors import (
    BedloadError,
    ClusterStopped,
    KeyGroupsChanged,
    OperatorBusy,
    OperatorNotShippable,
    ProtocolError,
    UnknownOperator,
    WorkerLost,
)
from bedload.core.ids import DeploymentId, Epoch, OperatorName, QueryId, RunId, WorkerId
from bedload.protocol import messages as m

NAME = OperatorName("Count")
QUERY = QueryId("q")


def results(steps: list[Instruction]) -> list[BedloadError | None]:
    return [step.error for step in steps if isinstance(step, DeployResult)]


def ask(deployment: DeploymentId, operator: OperatorName = NAME) -> m.Open:
    return m.Open(operator, deployment, QUERY, RunId("r"), Epoch(0), 1, 0, 1, "n")


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator(workers_at({WorkerId(0): "w0", WorkerId(1): "w1"}), clock=SystemClock())


def deployed(coordinator: Coordinator, **options: int | bool) -> DeploymentId:
    groups = int(options.pop("key_groups", 4))
    deployment, _ = coordinator.deploy("user", NAME, groups, b"code", **options)  # type: ignore[arg-type]
    for worker in coordinator.workers:
        coordinator.from_worker(m.Deployed(worker, deployment, None))
    return deployment


def test_a_deployment_is_there_when_every_worker_has_loaded_it(coordinator: Coordinator) -> None:
    deployment, steps = coordinator.deploy("user", NAME, 4, b"code")
    shipped = [step for step in steps if isinstance(step, ToWorker)]
    assert [(step.worker, step.body) for step in shipped] == [(0, b"code"), (1, b"code")]
    assert results(coordinator.from_worker(m.Deployed(WorkerId(0), deployment, None))) == []
    assert results(coordinator.from_worker(m.Deployed(WorkerId(1), deployment, None))) == [None]


def test_a_deployment_fails_if_a_worker_cannot_load_it(coordinator: Coordinator) -> None:
    deployment, _ = coordinator.deploy("user", NAME, 4, b"")
    problem = m.WireError.of(OperatorNotShippable("no module named numba"))
    coordinator.from_worker(m.Deployed(WorkerId(0), deployment, problem))
    (error,) = results(coordinator.from_worker(m.Deployed(WorkerId(1), deployment, None)))
    assert isinstance(error, OperatorNotShippable)
    assert "no module named numba" in error.message


def test_an_operator_of_a_running_query_cannot_be_applied_again(coordinator: Coordinator) -> None:
    deployment = deployed(coordinator)
    coordinator.open("t", ask(deployment))
    _, steps = coordinator.deploy("user", NAME, 4, b"", running=frozenset({QUERY}))
    assert isinstance(results(steps)[0], OperatorBusy)
    _, steps = coordinator.deploy("user", NAME, 4, b"")
    assert results(steps) == []


def test_the_number_of_key_groups_changes_only_with_fresh(coordinator: Coordinator) -> None:
    deployed(coordinator)
    _, steps = coordinator.deploy("user", NAME, 8, b"")
    assert isinstance(results(steps)[0], KeyGroupsChanged)
    deployed(coordinator, key_groups=8, fresh=True)
    assert coordinator.operator(NAME).routing.key_groups == 8


def test_a_worker_lost_while_it_loads_ends_the_deployment(coordinator: Coordinator) -> None:
    coordinator.deploy("user", NAME, 4, b"")
    assert isinstance(results(coordinator.worker_lost(WorkerId(0), "killed"))[0], WorkerLost)
    assert coordinator.worker_lost(WorkerId(1), "killed") == []


def test_an_operator_that_was_not_applied_is_refused(coordinator: Coordinator) -> None:
    (reply,) = coordinator.open("t", ask(DeploymentId(0)))
    assert isinstance(reply, Reply)
    assert isinstance(reply.message, m.Refused)
    assert reply.message.error.kind == "UnknownOperator"
    with pytest.raises(UnknownOperator, match="there are: none"):
        coordinator.operator(NAME)
    assert coordinator.feeder_failed(m.FeederFailed(NAME, 0, m.WireError.of(BedloadError("x")))) == []  # type: ignore[arg-type]


def test_stop_tells_the_workers_and_refuses_everybody_after(coordinator: Coordinator) -> None:
    deployment = deployed(coordinator)
    coordinator.open("t", ask(deployment))
    told = [type(step.message) for step in coordinator.stop() if isinstance(step, ToWorker)]
    assert told == [m.Abort, m.Abort, m.Stop, m.Stop]
    (reply,) = coordinator.open("t", ask(deployment))
    assert isinstance(reply, Reply)
    assert isinstance(reply.message, m.Refused)
    assert reply.message.error.kind == "ClusterStopped"
    assert isinstance(coordinator.error, ClusterStopped)


def test_what_is_no_worker_s_message_is_an_error(coordinator: Coordinator) -> None:
    with pytest.raises(ProtocolError, match="Stop"):
        coordinator.from_worker(m.Stop())


def test_an_operator_learns_that_an_epoch_is_committed_when_another_one_of_its_query_opens_the_next() -> None:
    coordinator = Coordinator(workers_at({WorkerId(0): "w0"}), clock=SystemClock())
    names = [OperatorName("First"), OperatorName("Second")]
    for number, name in enumerate(names):
        deployment, _ = coordinator.deploy("user", name, 4, b"code")
        coordinator.from_worker(m.Deployed(WorkerId(0), deployment, None))
        coordinator.open("t", ask(deployment, name))
        turn = coordinator.operator(name).turn
        coordinator.stage_inspected(name, turn, 1, StageFacts(1, 1, EpochTime()))
        coordinator.from_worker(m.Sealed(WorkerId(0), name, turn, EpochStats(rows=1, keys=1)))
        assert number == deployment
    steps = coordinator.open("t", replace(ask(DeploymentId(1), names[1]), epoch=Epoch(1), nonce="o"))
    assert {step.operator for step in steps if isinstance(step, EpochEnded) and step.committed} == {*names}
    assert coordinator.operator(names[0]).phase is Phase.IDLE
