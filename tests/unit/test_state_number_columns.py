"""Numbers of many objects as columns: the same that a variable at a time gives, or nothing."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples

from bedload.state import build_specs, specs
from bedload.state.encoded import encoded_column
from bedload.state.number_columns import NumberColumns

ANNOTATIONS: dict[str, Any] = {"on": bool, "name": str, "count": int, "total": float, "last": float | None}
DECLARATIONS: dict[str, Any] = {
    "on": specs.value(False),
    "name": specs.value(""),
    "count": specs.value(0),
    "total": specs.value(0.0),
    "last": specs.value(None),
}
SPECS = build_specs("Op", ANNOTATIONS, DECLARATIONS)
INTS = st.integers(-(2**63), 2**63 - 1) | st.booleans()
FLOATS = st.floats(width=64) | st.integers(-(2**53), 2**53)
objects = st.builds(
    lambda on, count, total: SimpleNamespace(on=on, name="x", count=count, total=total, last=None),
    st.booleans(),
    INTS,
    FLOATS,
)


def bits(column: pa.Array) -> list[Any]:
    """Values that tell 0.0 and -0.0 apart, and take NaN for itself."""
    return [struct.pack("d", value) if isinstance(value, float) else value for value in column.to_pylist()]


@examples(50)
@given(objs=st.lists(objects, min_size=1, max_size=20))
def test_columns_are_what_a_variable_at_a_time_gives(objs: list[Any]) -> None:
    made = NumberColumns(SPECS).of(objs)
    assert set(made) == {"on", "count", "total"}, "the others are none, or may be null"
    for spec in SPECS:
        if spec.name in made:
            expected = encoded_column(spec.type, [getattr(obj, spec.name) for obj in objs])
            assert made[spec.name].type == expected.type
            assert bits(made[spec.name]) == bits(expected)


@pytest.mark.parametrize("count", [2**63, "1", 1.0, None])
def test_what_does_not_fit_is_left_to_who_can_say_so(count: Any) -> None:
    assert NumberColumns(SPECS).of([SimpleNamespace(on=True, count=count, total=1.0)]) == {}


def test_one_number_alone_goes_as_other_variables_do() -> None:
    (count,) = (spec for spec in SPECS if spec.name == "count")
    assert NumberColumns([count]).of([SimpleNamespace(count=1)]) == {}
    assert NumberColumns(SPECS).of([]) == {}
