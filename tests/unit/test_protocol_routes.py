"""Routes are told once: what a process keeps, and what it says that it knows."""

from __future__ import annotations

import msgspec
import pytest

from bedload.core.errors import ProtocolError
from bedload.core.ids import DeploymentId, Epoch, OperatorName, QueryId, RunId, Turn, WorkerId
from bedload.protocol import messages as m
from bedload.protocol.routes import Told, version_of

NAME = OperatorName("Count")
ASK = m.Open(NAME, DeploymentId(0), QueryId("q"), RunId("r"), Epoch(0), 1, 0, 1, "n")
ROUTES = m.Routes((WorkerId(0), WorkerId(1)), {WorkerId(0): "w0", WorkerId(1): "w1"})


def answer(routes: m.Routes, *, known: bool = False) -> m.Opened:
    return m.Opened(Turn(1), m.FeederId(0, 0), version_of(routes), None if known else routes)


def test_a_process_says_what_it_was_told() -> None:
    told = Told()
    assert told.asks(ASK).knows == b""
    assert told.answered(NAME, answer(ROUTES)).routes == ROUTES
    assert told.asks(ASK).knows == version_of(ROUTES)
    assert told.answered(NAME, answer(ROUTES, known=True)).routes == ROUTES


def test_an_operator_with_other_routes_does_not_disturb() -> None:
    told, other = Told(), OperatorName("Other")
    moved = msgspec.structs.replace(ROUTES, owners=(WorkerId(1), WorkerId(1)))
    told.answered(NAME, answer(ROUTES))
    told.answered(other, answer(moved))
    assert told.asks(ASK).knows == version_of(ROUTES)
    assert told.answered(NAME, answer(ROUTES, known=True)).routes == ROUTES


def test_a_feeder_that_opens_while_another_hears_new_routes_has_those_of_its_turn() -> None:
    told = Told()
    moved = msgspec.structs.replace(ROUTES, owners=(WorkerId(1), WorkerId(1)))
    told.answered(NAME, answer(ROUTES))
    assert told.asks(ASK).knows == version_of(ROUTES)
    told.answered(NAME, answer(moved))
    assert told.answered(NAME, answer(ROUTES, known=True)).routes == ROUTES


def test_routes_that_were_not_told_are_not_made_up() -> None:
    with pytest.raises(ProtocolError, match="was not told"):
        Told().answered(NAME, answer(ROUTES, known=True))


def test_what_is_kept_is_bounded_and_what_was_dropped_is_not_known() -> None:
    told = Told()
    told.answered(NAME, answer(ROUTES))
    for number in range(100):
        other = msgspec.structs.replace(ROUTES, addresses={WorkerId(0): f"elsewhere:{number}"})
        told.answered(OperatorName(f"operator {number}"), answer(other))
    assert told.asks(ASK).knows == b""


@pytest.mark.parametrize(
    "changed",
    [{"owners": (WorkerId(1), WorkerId(0))}, {"addresses": {WorkerId(0): "w0", WorkerId(1): "w9"}}, {"pins": {7: 1}}],
    ids=["owners", "addresses", "pins"],
)
def test_every_part_of_the_routes_makes_another_version(changed: dict[str, object]) -> None:
    assert version_of(msgspec.structs.replace(ROUTES, **changed)) != version_of(ROUTES)
