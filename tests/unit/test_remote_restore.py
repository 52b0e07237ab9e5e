"""What a worker is told of key groups that may be in a remote store: which ones it must not take from there."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from tests.checkpoint_states import OPERATOR, QUERY, schema_of

from bedload.checkpoint.history import History
from bedload.checkpoint.records import TurnRecord
from bedload.control.lineage import Lineage
from bedload.core.ids import DeploymentId, Epoch, Generation, KeyGroup, KeyHash, RunId, Turn, WorkerId, make_turn
from bedload.keys.routing import Pin, RoutingTable
from bedload.protocol import messages as m
from bedload.state.kinds import Chosen, Store

ONE, TWO = WorkerId(0), WorkerId(1)
CODE = DeploymentId(0)
SCHEMA = schema_of({"car": pa.string()}, {"n": pa.int64()}, 4)
EVEN = RoutingTable((ONE, ONE, TWO, TWO), (ONE, TWO))
PINNED = RoutingTable((ONE, ONE, TWO, TWO), (ONE, TWO), (Pin(KeyHash(5), TWO),))


def record(turn: int, **more: Any) -> TurnRecord:
    """A turn that is complete without segments."""
    who: dict[str, Any] = {"generation": Generation(0), "query": QUERY, "run": "run", "epoch": Epoch(0), "location": ""}
    owners = ((ONE, 2), (TWO, 2))
    return TurnRecord(turn=Turn(turn), parent=None, schema=1, owners=owners, workers=(), committed={}, **who, **more)


def told(history: list[TurnRecord], base: int, routing: RoutingTable, last: int = 7) -> m.Restore:
    lineage = Lineage(Generation(1), History(OPERATOR, history), {1: SCHEMA})
    groups = routing.groups_of(ONE)
    ((message, _),) = lineage.restore(ONE, CODE, groups, Turn(base), routing, Turn(last))
    assert isinstance(message, m.Restore)
    return message


def test_key_groups_that_were_whole_then_and_are_now_may_be_found() -> None:
    assert told([record(3)], 3, EVEN).mixed == ()


def test_key_groups_of_which_keys_live_apart_or_did_are_read_back() -> None:
    assert told([record(3)], 3, PINNED).mixed == (KeyGroup(1),)
    assert told([record(3, guests=((1, TWO),))], 3, EVEN).mixed == (KeyGroup(1),)


def test_a_turn_says_where_its_state_was_and_no_password() -> None:
    lineage = Lineage(Generation(1), History(OPERATOR), {1: SCHEMA})
    lineage.stores[CODE] = str(Chosen(Store.REDIS, "redis://me:secret@there:6380/1?prefix=mine&password=secret"))
    ours = partial(lineage.record, Turn(1), QUERY, RunId("run"), Epoch(0), EVEN, {})
    assert ours(CODE).store == "redis://there:6380/1?prefix=mine"
    assert ours(DeploymentId(1)).store is msgspec.UNSET


def test_it_is_said_which_turn_was_the_last_that_began() -> None:
    first = make_turn(Generation(1), 0)
    assert told([record(3)], 3, EVEN, last=first + 7).latest == first + 7
    assert told([record(3)], 3, EVEN, last=7).latest == first - 1, "and nobody of a former attachment counts"
