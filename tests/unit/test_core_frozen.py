"""Values that cannot change, and their texts."""

from __future__ import annotations

import copy
import datetime
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from bedload.core.frozen import Changeable, FrozenDict, frozen, text_of


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class Slotted:
    items: Any


@dataclass(frozen=True)
class Derived:
    sides: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "area", self.sides[0] * self.sides[1])


@pytest.mark.parametrize(
    ("value", "made", "text"),
    [
        (None, None, "None"),
        (3, 3, "3"),
        (np.int64(3), 3, "3"),
        ("x", "x", "'x'"),
        (Decimal("1.0"), Decimal("1.0"), "Decimal('1.0')"),
        (datetime.timedelta(seconds=3), datetime.timedelta(seconds=3), "datetime.timedelta(seconds=3)"),
        (Path("/a"), Path("/a"), "PosixPath('/a')"),
        (re.compile("a.", re.I), re.compile("a.", re.I), "re.compile('a.', 34)"),
        ([1, [2]], (1, (2,)), "(1, (2,))"),
        ({3, 1}, frozenset({1, 3}), "{1, 3}"),
        (OrderedDict(b=[1], a=2), {"b": (1,), "a": 2}, "{'a': 2, 'b': (1,)}"),
        (Pair([1], 2), Pair((1,), 2), "Pair(a=(1,), b=2)"),
        (Slotted([1]), Slotted((1,)), "Slotted(items=(1,))"),
        (Slotted, Slotted, f"{__name__}.Slotted"),
    ],
)
def test_a_value_is_frozen_at_any_depth(value: Any, made: Any, text: str) -> None:
    found = frozen(value)
    assert found == made
    assert type(found) is type(made) or type(found) is FrozenDict
    assert text_of(found) == text
    assert text_of(frozen(found)) == text
    assert pickle.loads(pickle.dumps(found)) == made
    assert hash(found) == hash(frozen(value))


def test_what_a_dataclass_derives_from_its_fields_stays() -> None:
    made = frozen(Derived([3, 4]))
    assert (made.sides, made.area) == ((3, 4), 12)
    assert made == frozen(made)


@pytest.mark.parametrize("value", [np.datetime64("2024-01-01T00:00:00.000000001"), np.timedelta64(5, "ns")])
def test_what_only_numpy_has_stays_as_it_is(value: Any) -> None:
    assert frozen(value) is value


@pytest.mark.parametrize(
    "value", [object(), [object()], {"a": bytearray()}, Slotted([object()]), Pair(1, {2: object()}), [].append]
)
def test_what_can_change_has_no_frozen_form(value: Any) -> None:
    with pytest.raises(Changeable, match="can change"):
        frozen(value)


@pytest.mark.parametrize(
    "change",
    [
        lambda it: it.update(a=2),
        lambda it: it.pop("a"),
        lambda it: it.popitem(),
        lambda it: it.clear(),
        lambda it: it.setdefault("b", 1),
        lambda it: it.__setitem__("a", 2),
        lambda it: it.__delitem__("a"),
        lambda it: it.__ior__({"b": 1}),
    ],
)
def test_a_frozen_dict_does_not_change(change: Callable[[Any], Any]) -> None:
    made = frozen({"a": 1})
    with pytest.raises(TypeError, match=r"cannot change: make a copy with dict\(\.\.\.\)"):
        change(made)
    assert made == {"a": 1}
    assert type(copy.deepcopy(made)) is FrozenDict


def test_a_long_text_is_cut_and_still_tells_values_apart() -> None:
    one, other = text_of(tuple(range(1000))), text_of((*range(999), 0))
    assert len(one) < 300
    assert one != other
    assert one == text_of(tuple(range(1000)))
