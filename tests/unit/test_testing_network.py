"""The virtual network keeps what TCP keeps, and nothing more; the oracle sees what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from tests.simulator.chance import Chance
from tests.simulator.faults import Faults, Scenario
from tests.simulator.network import Broken, Connection, Network
from tests.simulator.oracle import Oracle
from tests.simulator.workload import NAME, EpochPlan, Kind, QueryPlan, Row

from bedload.core.ids import Epoch, QueryId, Turn
from bedload.protocol import messages as m


class Box:
    """An end that keeps what arrives."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.got: list[int] = []
        self.closed = 0

    def on_message(self, connection: Connection, message: m.Message, body: Any) -> None:
        assert isinstance(message, m.Finished)
        self.got.append(message.turn)

    def on_close(self, connection: Connection) -> None:
        self.closed += 1


def run(network: Network) -> None:
    while network.time.step():
        pass


@pytest.mark.parametrize("seed", range(20))
def test_one_connection_keeps_its_order(seed: int) -> None:
    network = Network(Chance(seed))
    left, right = Box("left"), Box("right")
    connection = network.connect(left, right)
    for number in range(10):
        connection.send(left, m.Finished(Turn(number)))
    run(network)
    assert right.got == list(range(10))


def test_two_connections_overtake_each_other_for_some_seed() -> None:
    orders = set()
    for seed in range(20):
        network = Network(Chance(seed))
        left, right = Box("left"), Box("right")
        for number in range(2):
            network.connect(left, right).send(left, m.Finished(Turn(number)))
        run(network)
        orders.add(tuple(right.got))
    assert orders == {(0, 1), (1, 0)}


@pytest.mark.parametrize("seed", range(20))
def test_a_close_comes_after_what_was_sent_or_takes_it_along(seed: int) -> None:
    network = Network(Chance(seed))
    left, right = Box("left"), Box("right")
    connection = network.connect(left, right)
    for number in range(3):
        connection.send(left, m.Finished(Turn(number)))
    connection.close(left)
    connection.close(left)
    connection.send(left, m.Finished(Turn(9)))
    connection.send(right, m.Finished(Turn(9)))
    run(network)
    assert right.got == list(range(len(right.got)))
    assert right.closed == 1
    assert left.got == []


def test_a_copy_arrives_as_well() -> None:
    network = Network(Chance(1))
    left, right = Box("left"), Box("right")
    network.connect(left, right).send(left, m.Finished(Turn(4)), copies=2)
    run(network)
    assert right.got == [4, 4]


def test_a_fault_keeps_to_its_budget_and_an_error_needs_one() -> None:
    faults = Faults(Chance(0), Scenario(frozenset({"bad data"}), 1.0))
    assert [faults.strikes("bad data") for _ in range(3)] == [True, False, False]
    assert not faults.strikes("crash")
    with pytest.raises(AssertionError, match="for no reason"):
        faults.explain(m.WireError("WorkerLost", "gone", {}).error())
    faults.explain(m.WireError("NullKey", "null", {}).error())


EPOCH = (QueryId("A"), Epoch(0))


@pytest.fixture
def oracle() -> Oracle:
    partitions = [[[Row("a", 0, 0), Row("a", 0, 1)]], [[Row("b", 1, 0)]]]
    plan = QueryPlan(EPOCH[0], [EpochPlan(partitions, [[0], [1]], [(NAME,), (NAME,)])])
    return Oracle(NAME, Kind.PROCESS, {EPOCH[0]: plan})


def output(key: str, source: int, seq: int, count: int) -> dict[str, Any]:
    return {"key": key, "source": source, "seq": seq, "count": count}


GOOD = [output("a", 0, 0, 1), output("a", 0, 1, 2), output("b", 1, 0, 1)]


def test_the_oracle_takes_right_outputs(oracle: Oracle) -> None:
    oracle.check_outputs((), EPOCH, GOOD)
    oracle.check_outputs((), EPOCH, GOOD[1:], part=True)


@pytest.mark.parametrize(
    "outputs",
    [
        GOOD[1:],
        [*GOOD, GOOD[0]],
        [output("a", 0, 0, 2), output("a", 0, 1, 1), GOOD[2]],
        [output("a", 0, 0, 1), output("a", 0, 1, 3), GOOD[2]],
    ],
    ids=["one is missing", "one is there twice", "out of order", "a count is skipped"],
)
def test_the_oracle_refuses_wrong_outputs(oracle: Oracle, outputs: list[dict[str, Any]]) -> None:
    with pytest.raises(AssertionError):
        oracle.check_outputs((), EPOCH, outputs)


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": 3},
        {"seen": {0: [1, 0]}},
        {"tally": {0: 1}},
        {"recent": [1]},
        {"recent": [1, 0]},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_the_oracle_refuses_wrong_state(oracle: Oracle, wrong: dict[str, Any]) -> None:
    right = {"count": 2, "seen": {0: [0, 1]}, "tally": {0: 2}, "recent": [0, 1]}
    oracle.check_state((EPOCH,), {"a": right}, {"a"}, "here")
    with pytest.raises(AssertionError):
        oracle.check_state((EPOCH,), {"a": {**right, **wrong}}, {"a"}, "here")
    with pytest.raises(AssertionError):
        oracle.check_state((EPOCH,), {}, {"a"}, "here")


# --- holding up, waiting ---


def test_what_is_held_up_happens_in_its_order_when_it_goes_on() -> None:
    world = Network(Chance(0))
    held, happened = world.another(), list[str]()
    for name, when in (("first", 1.0), ("second", 2.0)):
        held.after(when, lambda name=name: happened.append(name))  # type: ignore[misc]
    world.after(3.0, lambda: happened.append("world"))
    world.after(4.0, held.go_on)
    held.hold()
    run(world)
    assert happened == ["world", "first", "second"]


def test_who_waits_within_an_event_lets_others_happen() -> None:
    world, happened = Network(Chance(0)), list[str]()

    def wait() -> None:
        happened.append("begins")
        world.sleep(2.0)
        happened.append(f"ends at {world.time.now:g}")

    world.after(1.0, wait)
    world.after(2.0, lambda: happened.append("other"))
    world.after(4.0, lambda: happened.append("later"))
    run(world)
    assert happened == ["begins", "other", "ends at 3", "later"]


def test_who_waits_in_what_is_held_up_waits_until_it_goes_on() -> None:
    world = Network(Chance(0))
    held, ended = world.another(), list[float]()

    def wait() -> None:
        held.sleep(1.0)
        ended.append(world.time.now)

    held.after(1.0, wait)
    world.after(1.5, held.hold)
    world.after(9.0, held.go_on)
    run(world)
    assert ended == [9.0]


def test_what_goes_wrong_while_somebody_waits_is_swallowed_by_nobody() -> None:
    world = Network(Chance(0))

    def wait() -> None:
        try:
            world.sleep(5.0)
        except Exception:
            pytest.fail("swallowed")

    def fail() -> None:
        raise AssertionError("an invariant is broken")

    world.after(1.0, wait)
    world.after(2.0, fail)
    with pytest.raises(Broken) as raised:
        run(world)
    assert str(raised.value.error) == "an invariant is broken"
