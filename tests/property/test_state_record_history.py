"""A record through random epochs: committed state, snapshots and the backup agree with a plain model."""

import copy
import dataclasses
from collections import Counter, deque
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.applied_changes import apply_changes

from bedload.state import Journal, RecordLayout, build_specs, codec, specs

FAST = settings(max_examples=120, deadline=None)


@dataclasses.dataclass
class Point:
    x: int = 0
    path: list[int] = dataclasses.field(default_factory=list)


ANNOTATIONS: dict[str, Any] = {
    "count": int,
    "recent": list[int],
    "seen": dict[str, list[int]],
    "words": Counter[str],
    "last": deque[int],
    "at": Point | None,
    "raw": dict[str, int],
}
SPECS = build_specs(
    "Op",
    ANNOTATIONS,
    {
        "count": specs.value(0),
        "recent": specs.list_(maxlen=4),
        "seen": specs.map_(),
        "words": specs.counter(),
        "last": specs.deque(maxlen=3),
        "at": specs.value(),
        "raw": specs.value({}, codec="msgspec"),
    },
)


class Record:
    __slots__ = tuple(ANNOTATIONS)


def touch(record: Any, what: int, n: int) -> None:
    """One change by user code; on the model, a plain namespace, it does the same."""
    key = "abc"[n % 3]
    match what:
        case 0:
            record.count += n
        case 1:
            record.recent.append(n)
        case 2:
            record.recent = [n]
        case 3:
            record.seen.setdefault(key, [])
            record.seen[key].append(n)
        case 4:
            record.seen.pop(key, None)
        case 5:
            record.words[key] += 1
        case 6:
            record.words = Counter({key: n})
        case 7:
            record.last.append(n)
        case 8:
            record.at = Point(n)
        case 9:
            if record.at is not None:
                record.at.path.append(n)
        case 10:
            record.at = None
        case 11:
            record.raw[key] = n
        case 12:
            del record.seen
        case 13:
            record.last.clear()


def tidy(model: Any) -> None:
    """What adopting does, on the model."""
    del model.recent[:-4]
    if not hasattr(model, "seen"):
        model.seen = {}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 13), st.integers(0, 99)),
        st.tuples(st.sampled_from(["commit", "abort"]), st.just(0)),
    ),
    max_size=30,
)


class Model:
    def __init__(self) -> None:
        self.count = 0
        self.recent: list[int] = []
        self.seen: dict[str, list[int]] = {}
        self.words: Counter[str] = Counter()
        self.last: deque[int] = deque(maxlen=3)
        self.at: Point | None = None
        self.raw: dict[str, int] = {}


@FAST
@given(STEPS)
def test_epochs_of_a_record_agree_with_a_plain_object(history: list[Any]) -> None:
    layout, journal = RecordLayout(SPECS), Journal()
    record: Any = Record()
    layout.fill(record, journal)
    model = Model()
    committed = copy.deepcopy(model)
    backup: dict[str, Any] | None = None
    image = None
    for what, n in history:
        if isinstance(what, int):
            if image is None:
                image = layout.image(record)
            touch(record, what, n)
            layout.adopt(record, journal)
            touch(model, what, n)
            tidy(model)
            assert layout.plain(record) == vars(model)
            assert layout.snapshot(record, image) == vars(committed)
            if vars(model) != vars(committed):
                assert layout.changed(record, image)
            assert layout.changed(record, image) == bool(layout.changes(record, image))
        elif what == "commit":
            if backup is None:
                backup = layout.changes(record, None)
            elif image is not None:
                for name, change in layout.changes(record, image).items():
                    backup[name] = apply_changes(backup[name], change)
            journal.commit()
            committed, image = copy.deepcopy(model), None
            (stored,) = codec.decode(SPECS, codec.encode(SPECS, [backup]))
            assert stored == vars(model)
            backup = stored
        elif image is not None:
            layout.restore(record, image)
            journal.abort()
            model, image = copy.deepcopy(committed), None
            assert layout.plain(record) == vars(model)
    loaded: Any = Record()
    values = {name: [value] for name, value in layout.snapshot(record, image).items()}
    layout.load_columns([loaded], values, Journal())
    assert layout.plain(loaded) == vars(committed)
