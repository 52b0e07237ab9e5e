"""What a worker knows to be its own, as ownership passes on and comes back."""

from __future__ import annotations

from bedload.core.ids import KeyGroup, KeyHash, WorkerId
from bedload.migration.holdings import Holdings
from bedload.protocol.messages import Lot

GROUP, OTHER = KeyGroup(1), KeyGroup(2)
KEY = KeyHash(10)  # of key group 2


def made() -> Holdings:
    holdings = Holdings()
    holdings.key_groups = 4
    holdings.begin([GROUP], [KEY])
    return holdings


def lot(groups: tuple[KeyGroup, ...] = (), keys: tuple[int, ...] = (), stay: tuple[int, ...] = ()) -> Lot:
    return Lot(WorkerId(0), WorkerId(1), groups, keys, stay, tuple(KeyGroup(key % 4) for key in keys))


def test_what_a_move_that_was_called_off_had_taken_is_the_workers_own_again() -> None:
    holdings = made()
    leaving = (lot((GROUP,), (KEY,)),)
    holdings.keep(7, leaving)
    holdings.flip(leaving, ())
    holdings.begin([], [])
    assert not holdings.knows(GROUP)
    assert not holdings.knows(OTHER)
    holdings.take_back(holdings.let_go(7))
    assert holdings.owned == {GROUP}
    assert holdings.guests == {OTHER}
    holdings.check()


def test_a_pinned_key_whose_group_leaves_is_a_guest() -> None:
    holdings = made()
    holdings.flip((lot((GROUP,), stay=(5,)),), ())
    assert holdings.owned == set()
    assert holdings.knows(GROUP)


def test_a_pinned_key_whose_group_was_to_come_is_a_guest_again_when_that_is_called_off() -> None:
    holdings = made()
    third = KeyGroup(3)
    arriving = (lot((OTHER, third), keys=(7,), stay=(KEY, 7)),)  # 7 comes by itself
    holdings.flip((), arriving)
    holdings.begin([GROUP, OTHER, third], [])
    holdings.called_off(arriving)
    assert holdings.owned == {GROUP}
    assert holdings.guests == {OTHER}
    holdings.check()


def test_what_leaves_is_not_dropped_before_its_move_is_over() -> None:
    holdings = made()
    holdings.keep(7, (lot((GROUP,)),))
    assert holdings.begin([OTHER], []) == []
    holdings.let_go(7)
    assert holdings.begin([], []) == [OTHER]
