"""Passes over many objects: they do what the functions of the layout do object by object."""

import itertools
from typing import Any

import pytest

from bedload.state import Journal, RecordLayout, build_specs, specs

ABSENT: Any = object()
VALUES: list[Any] = [0, 1, 1.0, True, -0.0, 0.0, float("nan"), None, "a", 2**70]


class Row:
    __slots__ = ("_bedload_image", "_bedload_key", "a", "b")

    def __init__(self, a: Any = 0, b: Any = None, image: Any = None) -> None:
        self.a, self.b, self._bedload_image = a, b, image


SCALARS = RecordLayout(build_specs("Op", {"a": int, "b": float | None}, {"a": specs.value(0), "b": specs.value(None)}))
ONE = RecordLayout(build_specs("Op", {"a": int}, {"a": specs.value(0)}))


@pytest.mark.parametrize("layout", [SCALARS, ONE], ids=["two", "one"])
def test_those_that_changed_are_the_same(layout: RecordLayout) -> None:
    pairs = itertools.product(VALUES, repeat=4)
    rows = [Row(a, b, (old_a, old_b)[: len(layout.names)]) for a, b, old_a, old_b in pairs]
    rows[::7] = [Row(row.a, row.b, ABSENT) for row in rows[::7]]
    expected = [row for row in rows if row._bedload_image is ABSENT or layout.changed(row, row._bedload_image)]
    assert layout.passes.changed is not None
    found = layout.passes.changed(rows, ABSENT)
    assert list(map(id, found)) == list(map(id, expected))
    assert 0 < len(found) < len(rows)


def test_an_attribute_that_was_deleted_is_an_error() -> None:
    row = Row(a=1, image=(0, None))  # whatever else has changed
    del row.b
    assert SCALARS.passes.changed is not None
    with pytest.raises(AttributeError):
        SCALARS.passes.changed([Row(image=(0, None)), row], ABSENT)


def test_other_layouts_are_looked_through_one_by_one() -> None:
    assert layout_of(list[int], specs.list_()).passes.changed is None


def layout_of(annotation: Any, declared: Any) -> RecordLayout:
    return RecordLayout(build_specs("Op", {"a": int, "b": annotation}, {"a": specs.value(0), "b": declared}))


LAYOUTS = [
    SCALARS,
    layout_of(list[int], specs.list_()),
    layout_of(object, specs.value({"x": 1}, codec="pickle")),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["scalars", "containers", "opaque"])
def test_only_objects_without_an_image_get_one_and_are_told_of(layout: RecordLayout) -> None:
    rows = [Row() for _ in range(4)]
    for row in rows:
        layout.fill(row, Journal())
    before = (5, 6)
    rows[1]._bedload_image, rows[2]._bedload_image = before, ABSENT
    touched: list[Any] = []
    layout.passes.open(rows, touched.append)
    assert touched == [rows[0], rows[3]]
    assert rows[1]._bedload_image is before
    assert rows[2]._bedload_image is ABSENT
    assert rows[3]._bedload_image == layout.image(rows[3])
