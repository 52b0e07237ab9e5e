"""The per-key object: defaults, images, adoption, changes."""

import collections
import dataclasses
import math
import pickle
from typing import Any

import pytest

from bedload.core.errors import StateTypeError
from bedload.state import Journal, MapChanges, RecordLayout, Tracked, TrackedList, build_specs, specs


@dataclasses.dataclass
class Point:
    x: int = 0
    path: list[int] = dataclasses.field(default_factory=list)


ANNOTATIONS: dict[str, Any] = {
    "count": int,
    "name": str | None,
    "recent": list[float],
    "seen": dict[str, list[int]],
    "at": Point,
    "spare": list[int] | None,
    "pair": tuple[int, list[int]],
    "raw": object,
}
DECLARATIONS: dict[str, Any] = {
    "count": specs.value(0),
    "name": specs.value(None),
    "recent": specs.list_(maxlen=3),
    "seen": specs.map_(),
    "at": specs.value(Point(7)),
    "spare": specs.value(None),
    "pair": specs.value((1, [])),
    "raw": specs.value({"n": 0}, codec="pickle"),
}
DEFAULTS = {
    "count": 0,
    "name": None,
    "recent": [],
    "seen": {},
    "at": Point(7),
    "spare": None,
    "pair": (1, []),
    "raw": {"n": 0},
}


class Record:
    __slots__ = tuple(ANNOTATIONS)


class Scalars:
    __slots__ = ("a", "b")


@pytest.fixture
def layout() -> RecordLayout:
    return RecordLayout(build_specs("Op", ANNOTATIONS, DECLARATIONS))


@pytest.fixture
def journal() -> Journal:
    return Journal()


@pytest.fixture
def record(layout: RecordLayout, journal: Journal) -> Any:
    obj = Record()
    layout.fill(obj, journal)
    return obj


def test_a_new_object_gets_defaults_of_its_own(layout: RecordLayout, record: Any, journal: Journal) -> None:
    assert layout.plain(record) == DEFAULTS
    other: Any = Record()
    layout.fill(other, journal)
    record.at.x = 1
    record.recent.append(1.0)
    record.pair[1].append(1)
    record.raw["n"] = 5
    assert layout.plain(other) == DEFAULTS


def test_nothing_changed_after_filling(layout: RecordLayout, record: Any, journal: Journal) -> None:
    image = layout.image(record)
    layout.adopt(record, journal)
    assert not layout.changed(record, image)
    assert layout.changes(record, image) == {}


CHANGES: dict[str, Any] = {
    "count": lambda r: setattr(r, "count", 5),
    "name": lambda r: setattr(r, "name", "x"),
    "recent": lambda r: r.recent.append(1.0),
    "seen": lambda r: r.seen.setdefault("a", []).append(1),
    "at": lambda r: r.at.path.append(1),
    "spare": lambda r: setattr(r, "spare", [1]),
    "pair": lambda r: r.pair[1].append(1),
    "raw": lambda r: r.raw.update(n=1),
}


@pytest.mark.parametrize("name", list(CHANGES))
def test_a_change_is_seen_snapshot_keeps_the_old_and_abort_undoes_it(
    name: str, layout: RecordLayout, record: Any, journal: Journal
) -> None:
    image = layout.image(record)
    CHANGES[name](record)
    layout.adopt(record, journal)
    assert layout.changed(record, image)
    assert list(layout.changes(record, image)) == [name]
    assert layout.snapshot(record, image) == DEFAULTS
    assert layout.plain(record) != DEFAULTS
    layout.restore(record, image)
    journal.abort()
    assert layout.plain(record) == DEFAULTS
    assert not layout.changed(record, image)


def test_a_change_that_was_undone_is_no_change(layout: RecordLayout, record: Any) -> None:
    image = layout.image(record)
    record.recent.append(1.0)
    record.recent.pop()
    record.count += 1
    record.count -= 1
    assert not layout.changed(record, image)


def test_a_new_key_is_changed_and_written_whole(layout: RecordLayout, record: Any) -> None:
    assert layout.changed(record, None)
    assert layout.changes(record, None) == DEFAULTS


def test_container_changes_are_patches_and_replacements_are_whole(
    layout: RecordLayout, record: Any, journal: Journal
) -> None:
    image = layout.image(record)
    record.seen["a"] = [1]
    record.recent = [1.0]
    layout.adopt(record, journal)
    assert layout.changes(record, image) == {"recent": [1.0], "seen": MapChanges((), {"a": [1]})}
    assert type(layout.changes(record, image)["recent"]) is list


def test_an_assigned_container_is_adopted_and_bounded(layout: RecordLayout, record: Any, journal: Journal) -> None:
    record.recent = [1.0, 2.0, 3.0, 4.0]
    record.at = Point(9)
    layout.adopt(record, journal)
    assert isinstance(record.recent, TrackedList)
    assert record.recent == [2.0, 3.0, 4.0]
    assert isinstance(record.at, Tracked)
    kept = record.recent
    layout.adopt(record, journal)
    assert record.recent is kept


def test_augmented_assignment_keeps_the_container(layout: RecordLayout, record: Any, journal: Journal) -> None:
    kept = record.recent
    record.recent += [1.0]
    layout.adopt(record, journal)
    assert record.recent is kept


def test_one_container_under_two_names_or_records_is_copied(layout: RecordLayout, journal: Journal) -> None:
    two = RecordLayout(build_specs("Op", {"a": list[int], "b": list[int]}, {"a": specs.list_(), "b": specs.list_()}))
    first: Any = Scalars()
    second: Any = Scalars()
    two.fill(first, journal)
    two.fill(second, journal)
    first.a = first.b
    second.a = first.b
    two.adopt(first, journal)
    two.adopt(second, journal)
    assert len({id(first.a), id(first.b), id(second.a)}) == 3


def test_a_wrong_container_is_refused_with_the_variable(layout: RecordLayout, record: Any, journal: Journal) -> None:
    record.recent = 5
    with pytest.raises(StateTypeError, match=r"'recent': expected list\[float\], got int: 5"):
        layout.adopt(record, journal)


def test_a_deleted_attribute_gets_its_default(layout: RecordLayout, record: Any, journal: Journal) -> None:
    record.count = 4
    del record.count
    del record.recent
    layout.adopt(record, journal)
    assert record.count == 0
    assert isinstance(record.recent, TrackedList)


def test_load_installs_plain_values_and_defaults_the_rest(layout: RecordLayout, journal: Journal) -> None:
    obj: Any = Record()
    layout.load_columns([obj], {"count": [3], "seen": [{"a": [1]}], "pair": [(2, [3])]}, journal)
    assert layout.plain(obj) == DEFAULTS | {"count": 3, "seen": {"a": [1]}, "pair": (2, [3])}
    obj.seen["a"].append(2)
    assert journal.dirty == [obj.seen, obj.seen["a"]]


def test_a_value_of_a_wrong_type_is_named_with_its_variable_and_key(layout: RecordLayout, record: Any) -> None:
    record.recent.append("fast")
    with pytest.raises(StateTypeError, match=r"'recent' \(list\[float\]\) of key 17 \(int\): .*'fast'"):
        layout.check(record, 17)


def test_scalars_only_is_known_and_the_image_is_a_tuple() -> None:
    one = RecordLayout(build_specs("Op", {}, {"a": specs.value(0)}))
    obj: Any = Scalars()
    one.fill(obj, Journal())
    assert one.scalars_only
    assert one.image(obj) == (0,)
    obj.a = math.nan
    image = one.image(obj)
    assert not one.changed(obj, image)
    assert RecordLayout(()).image(obj) == ()
    assert not RecordLayout(()).changed(obj, ())


def test_the_state_of_collections_restores_exactly(journal: Journal) -> None:
    layout = RecordLayout(
        build_specs(
            "Op",
            {"a": collections.Counter[str], "b": collections.deque[int]},
            {"a": specs.counter(), "b": specs.deque(maxlen=2)},
        )
    )
    obj: Any = Scalars()
    layout.fill(obj, journal)
    obj.a.update("aab")
    obj.b.extend([1, 2, 3])
    layout.adopt(obj, journal)
    journal.commit()
    image = layout.image(obj)
    obj.a.clear()
    obj.b = collections.deque()
    layout.adopt(obj, journal)
    obj.b.extend([7, 8, 9])
    assert list(obj.b) == [8, 9]
    layout.restore(obj, image)
    journal.abort()
    assert layout.plain(obj) == {"a": collections.Counter("aab"), "b": collections.deque([2, 3])}


def test_a_layout_pickles(layout: RecordLayout) -> None:
    assert pickle.loads(pickle.dumps(layout)).names == layout.names
