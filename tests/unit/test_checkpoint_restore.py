"""State comes back from snapshot and deltas: all of it once, no file twice, and damage is an error that says where."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.checkpoint_states import COUNTS, OPERATOR, Writer, delta, groups_of_keys, rows_of, schema_of
from tests.patience import PATIENCE
from tests.simulator.inline import Inline

from bedload.checkpoint import paths
from bedload.checkpoint.orders import RestoreOrder, encode_order
from bedload.checkpoint.pools import THREADS
from bedload.checkpoint.records import Manifest, manifest_of
from bedload.checkpoint.restore import Restore
from bedload.checkpoint.snapshots import write_parts
from bedload.checkpoint.storage import Storage, open_storage
from bedload.core.errors import CheckpointDamaged, DefinitionError
from bedload.core.ids import Generation, KeyGroup, Ticket, WorkerId
from bedload.worker.durability import Hurry, Load
from bedload.worker.durable import AHEAD, Loader


class Watched:
    """A storage that counts what is read."""

    def __init__(self, storage: Storage) -> None:
        self.inner = storage
        self.url = storage.url
        self.reads: Counter[str] = Counter()

    def read(self, path: str) -> bytes:
        self.reads[path] += 1
        return self.inner.read(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.fixture
def storage(tmp_path: Path) -> Watched:
    return Watched(open_storage(str(tmp_path)))


def counts(keys: Sequence[int], n: int = 0) -> dict[Any, dict[str, Any]]:
    return {key: {"n": n} for key in keys}


def history(storage: Any, schema: Any = COUNTS) -> tuple[Writer, dict[Any, dict[str, Any]]]:
    """Three turns, and the state after them."""
    writer = Writer(storage, schema)
    writer.turn(delta(schema, counts(range(100))))
    writer.turn(delta(schema, counts(range(50, 150), 1), removed=[0, 1]))
    writer.turn(delta(schema, counts([7], 2), removed=[149]))
    expected = counts(range(100)) | counts(range(50, 150), 1) | counts([7], 2)
    return writer, {key: row for key, row in expected.items() if key not in (0, 1, 149)}


def snapshot(writer: Writer, turn: int, target_bytes: int = 1 << 20, left_out: Sequence[int] = ()) -> Manifest:
    record = writer.records[turn]
    read = Restore(writer.storage, OPERATOR, writer.schema, writer.plan(turn=record.turn))
    folder = paths.snapshot(OPERATOR, record.turn)
    parts = write_parts(writer.storage, folder, writer.schema, read.chunks(chunk_groups=2), target_bytes=target_bytes)
    manifest = manifest_of(record, writer.schema, parts)
    kept = tuple(part for part in parts if not set(part.groups) & set(left_out))
    return msgspec.structs.replace(manifest, parts=kept)


def restored(writer: Writer, manifests: Any = (), **options: Any) -> tuple[list[int], dict[Any, Any]]:
    """The key groups in the order in which they came, and the state."""
    groups: list[int] = []
    found: dict[Any, Any] = {}
    for some, batch in Restore(writer.storage, OPERATOR, writer.schema, writer.plan(manifests)).chunks(**options):
        groups += some
        rows = rows_of(batch)
        assert not rows.keys() & found.keys()
        assert set(batch.column(0).to_pylist()) <= set(some)
        found |= rows
    return groups, found


@pytest.mark.parametrize("chunk_groups", [1, 3, 1024])
@pytest.mark.parametrize("at", [None, 0, 1, 2])
def test_every_key_group_comes_once_with_its_state(storage: Watched, chunk_groups: int, at: int | None) -> None:
    writer, expected = history(storage)
    manifests = [] if at is None else [snapshot(writer, at, target_bytes=400)]
    groups, found = restored(writer, manifests, chunk_groups=chunk_groups)
    assert sorted(groups) == list(range(8))
    assert found == expected


def test_only_the_key_groups_asked_for_are_read(storage: Watched) -> None:
    writer, expected = history(storage)
    manifest = snapshot(writer, 1, target_bytes=1)
    storage.reads.clear()
    groups, found = restored(writer, [manifest], groups=[4, 2])
    assert sorted(groups) == [2, 4]
    assert found == {key: row for key, row in expected.items() if groups_of_keys(COUNTS, [key])[0] in (2, 4)}
    files = {f"{paths.snapshot(OPERATOR, manifest.turn)}/{manifest.parts[i].files['n'].path}" for i in (2, 4)}
    assert storage.reads == dict.fromkeys([*files, paths.delta(OPERATOR, writer.records[2].turn, WorkerId(0))], 1), (
        "the other worker owns none of them, and the other parts have none of them"
    )


def test_each_file_is_read_once(storage: Watched) -> None:
    writer, _ = history(storage)
    manifest = snapshot(writer, 0)
    storage.reads.clear()
    restored(writer, [manifest], chunk_groups=1)
    assert set(storage.reads.values()) == {1}
    assert len(storage.reads) == 1 + 2 * 2


def test_key_groups_that_a_snapshot_left_out_are_damage_and_not_empty(storage: Watched) -> None:
    writer = Writer(storage, COUNTS)
    writer.turn(delta(COUNTS, counts([])))
    writer.turn(delta(COUNTS, counts(range(50))))
    manifest = snapshot(writer, 0, target_bytes=0, left_out=[1, 5])
    with pytest.raises(CheckpointDamaged, match="each of the 8 key groups once"):
        restored(writer, [manifest])


def test_progress_counts_to_all_groups_and_all_bytes(storage: Watched) -> None:
    writer, _ = history(storage)
    manifest = snapshot(writer, 1)
    assert len(manifest.parts) == 1, "so that several chunks share its file"
    told: list[tuple[int, int, int]] = []
    restored(writer, [manifest], chunk_groups=3, progress=lambda *args: told.append(args))
    deltas = sum(storage.size(paths.delta(OPERATOR, writer.records[2].turn, WorkerId(w))) for w in (0, 1))
    assert len(told) == 2 + 3, "for each delta and for each chunk"
    assert told[-1] == (8, 8, manifest.bytes + deltas)
    assert told == sorted(told)


def test_variables_and_keys_can_be_asked_for(storage: Watched) -> None:
    schema = schema_of({"car": pa.int64()}, {"n": pa.int64(), "name": pa.string()})
    writer = Writer(storage, schema)
    writer.turn(delta(schema, {key: {"n": key, "name": f"car {key}"} for key in range(100)}))
    manifest = snapshot(writer, 0)
    writer.turn(delta(schema, {5: {"n": 0, "name": "new"}}, removed=[6]))
    read = Restore(storage, OPERATOR, schema, writer.plan([manifest]))  # type: ignore[arg-type]
    storage.reads.clear()
    table = read.table(variables=["name"], keys=[pa.array([5, 6, 7, 1000, None])])
    assert rows_of(table) == {5: {"name": "new"}, 7: {"name": "car 7"}}
    assert not any("/n/" in path for path in storage.reads)
    assert rows_of(read.table([0], variables=[]).combine_chunks()).keys() == {
        key for key in range(100) if key != 6 and groups_of_keys(schema, [key]) == [0]
    }


def test_composite_keys_with_nulls_can_be_asked_for(storage: Watched) -> None:
    schema = schema_of({"a": pa.string(), "b": pa.int64()}, {"n": pa.int64()})
    writer = Writer(storage, schema)
    keys: list[Any] = [("x", 1), (None, 1), ("x", None), ("y", 1)]
    writer.turn(delta(schema, {key: {"n": i} for i, key in enumerate(keys)}))
    table = Restore(storage, OPERATOR, schema, writer.plan()).table(keys=[pa.array([None, "y"]), pa.array([1, 1])])  # type: ignore[arg-type]
    assert rows_of(table, keys=2) == {(None, 1): {"n": 1}, ("y", 1): {"n": 3}}


def test_a_key_group_that_cannot_be_is_refused(storage: Watched) -> None:
    writer, _ = history(storage)
    with pytest.raises(DefinitionError, match="key groups 0 to 7, but 7 to 8"):
        restored(writer, groups=[7, 8])


def test_a_missing_segment_is_named(storage: Watched) -> None:
    writer, _ = history(storage)
    path = paths.delta(OPERATOR, writer.records[1].turn, WorkerId(1))
    storage.delete([path])
    with pytest.raises(CheckpointDamaged, match=rf"{path}.*epoch 1\) is not there"):
        restored(writer)
    assert restored(writer, groups=[0, 2])[0], "what does not need it comes back"


def test_a_damaged_segment_is_named(storage: Watched) -> None:
    writer, _ = history(storage)
    path = paths.delta(OPERATOR, writer.records[1].turn, WorkerId(1))
    storage.write(path, storage.read(path)[:-5])
    with pytest.raises(CheckpointDamaged, match=path):
        restored(writer)


def test_a_segment_in_the_place_of_another_is_refused(storage: Watched) -> None:
    writer, _ = history(storage)
    first, second = (paths.delta(OPERATOR, record.turn, WorkerId(0)) for record in writer.records[:2])
    storage.write(second, storage.read(first))
    with pytest.raises(CheckpointDamaged, match="put in another one's place"):
        restored(writer)


def test_state_that_does_not_fit_together_names_operator_and_groups(storage: Watched) -> None:
    writer = Writer(storage, COUNTS)
    writer.turn(delta(COUNTS, patched={1: (msgspec.msgpack.encode({"n": None}), {"n": 1})}))
    with pytest.raises(CheckpointDamaged, match=r"operator 'Trip'.*key groups 0 to 7\).*no state, among them 1"):
        restored(writer)


def test_a_restore_that_is_given_up_ends_its_threads(storage: Watched) -> None:
    pools = []

    def watched(threads: int, name: str, /) -> Executor:
        pools.append(THREADS(threads, name))
        return pools[-1]

    writer, _ = history(storage)
    chunks = Restore(storage, OPERATOR, COUNTS, writer.plan(), pools=watched).chunks(chunk_groups=1)  # type: ignore[arg-type]
    next(chunks)
    chunks.close()  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="after shutdown"):
        pools[0].submit(print)


# --- in a hurry ---


class Gated(Watched):
    """A storage whose reads of some files wait until they are let in."""

    def __init__(self, storage: Storage, held: Callable[[str], bool]) -> None:
        super().__init__(storage)
        self._held = held
        self.gate = threading.Event()
        self.waits = threading.Event()

    def read(self, path: str) -> bytes:
        if self._held(path):
            self.waits.set()
            assert self.gate.wait(PATIENCE)
        return super().read(path)


def parts_of(storage: Any) -> tuple[Writer, Manifest]:
    """A snapshot with a part for each of the eight key groups, and a turn after it."""
    writer = Writer(storage, COUNTS)
    writer.turn(delta(COUNTS, counts(range(100))))
    manifest = snapshot(writer, 0, target_bytes=1)
    assert [part.groups for part in manifest.parts] == [(group,) for group in range(8)]
    writer.turn(delta(COUNTS, counts(range(5), 1)))
    return writer, manifest


def path_of(manifest: Manifest, group: int) -> str:
    return f"{paths.snapshot(OPERATOR, manifest.turn)}/{manifest.parts[group].files['n'].path}"


def test_without_a_hurry_key_groups_come_in_their_order(storage: Watched) -> None:
    writer, manifest = parts_of(storage)
    assert restored(writer, [manifest])[0] == list(range(8))


def test_what_is_in_a_hurry_comes_first_also_if_that_is_said_late(storage: Watched) -> None:
    writer, manifest = parts_of(storage)
    first = {6}
    read = Restore(storage, OPERATOR, COUNTS, writer.plan([manifest]), threads=1)  # type: ignore[arg-type]
    chunks = read.chunks(first=first)
    assert next(chunks)[0] == (6,)
    assert next(chunks)[0] == (0,)
    first.add(7)
    assert next(chunks)[0] == (7,)
    assert [groups for groups, _ in chunks] == [(1,), (2,), (3,), (4,), (5,)]


def test_what_is_in_a_hurry_does_not_wait_for_what_is_done_already(storage: Watched) -> None:
    writer, manifest = parts_of(storage)
    first: set[int] = set()
    # Whatever it has begun with is done.
    read = Restore(storage, OPERATOR, COUNTS, writer.plan([manifest]), threads=4, pools=Inline)  # type: ignore[arg-type]
    chunks = read.chunks(first=first)
    assert next(chunks)[0] == (0,)
    first.update([4, 7])  # of which one is done, and the other not begun
    assert [next(chunks)[0] for _ in range(3)] == [(4,), (7,), (1,)]


def test_a_chunk_waits_for_its_own_files_alone(tmp_path: Path) -> None:
    inner = open_storage(str(tmp_path))
    writer, manifest = parts_of(inner)
    slow = {path_of(manifest, group) for group in range(4)} | {
        paths.delta(OPERATOR, writer.records[1].turn, WorkerId(1))
    }
    gated = Gated(inner, slow.__contains__)
    mine = next(group for group in range(4, 8) if WorkerId(1) not in writer.records[1].writers([group]))
    read = Restore(gated, OPERATOR, COUNTS, writer.plan([manifest]), threads=2)  # type: ignore[arg-type]
    chunks = read.chunks(first={mine})
    try:
        assert next(chunks)[0] == (mine,), "though threads are busy with files that do not come"
        assert not gated.gate.is_set()
    finally:
        gated.gate.set()
    assert sorted(group for groups, _ in chunks for group in groups) == [group for group in range(8) if group != mine]


def test_an_operator_without_turns_is_empty(storage: Watched) -> None:
    chunks = list(Restore(storage, OPERATOR, COUNTS, (None, [])).chunks())  # type: ignore[arg-type]
    assert [(groups, batch.num_rows) for groups, batch in chunks] == [(tuple(range(8)), 0)]


def test_a_turn_without_workers_changes_nothing(storage: Watched) -> None:
    writer, expected = history(storage)
    writer.records.append(
        msgspec.structs.replace(writer.records[-1], turn=writer.records[-1].turn + 1, workers=(), owners=())
    )
    writer.records[-1] = msgspec.structs.replace(writer.records[-1], parent=writer.records[-2].turn)
    assert restored(writer)[1] == expected


def test_how_many_keys_are_to_come_is_known_from_the_snapshot(storage: Watched) -> None:
    writer, state = history(storage)
    assert Restore(storage, OPERATOR, COUNTS, writer.plan()).expected(range(8)) == 0, "there is no snapshot"
    manifest = snapshot(writer, 2)
    restore = Restore(storage, OPERATOR, COUNTS, writer.plan([manifest]))
    assert restore.expected(range(8)) == manifest.rows
    assert 0 < restore.expected(range(4)) < manifest.rows
    assert state


def order_of(storage: Watched) -> Load:
    """To read eight key groups, each of which is a chunk."""
    writer, manifest = parts_of(storage)
    plan = writer.plan([manifest])
    orders = RestoreOrder({1: COUNTS}, 1, manifest, list(plan[1]))
    groups = tuple(map(KeyGroup, range(8)))
    return Load(OPERATOR, Ticket(1), writer.records[1].turn, groups, encode_order(orders))


def test_what_is_read_waits_for_what_is_not_put_in_but_for_a_hurry(storage: Watched) -> None:
    order = order_of(storage)
    came: SimpleQueue[Any] = SimpleQueue()
    loader = Loader(storage, Generation(1))  # type: ignore[arg-type]
    loader.start(order, came.put)
    held = [came.get(timeout=PATIENCE) for _ in range(AHEAD)]
    assert [news.groups for news in held] == [(0,), (1,), (2,), (3,)]
    assert came.empty(), "nothing of it is put in"
    loader.hurry(Hurry(OPERATOR, Ticket(1), (KeyGroup(7),)))
    while (7,) not in [news.groups for news in held]:
        held.append(came.get(timeout=PATIENCE))
    assert came.empty(), "nothing else is in a hurry"
    seen = {group for news in held for group in news.groups}
    held.clear()
    while len(seen) < 8:
        seen.update(came.get(timeout=PATIENCE).groups)


def test_if_everything_is_in_a_hurry_what_is_read_waits_all_the_same(storage: Watched) -> None:
    order, begun, hurried = order_of(storage), threading.Event(), threading.Event()
    came: SimpleQueue[Any] = SimpleQueue()

    def deliver(news: Any) -> None:
        begun.set()
        assert hurried.wait(PATIENCE)
        came.put(news)

    loader = Loader(storage, Generation(1))  # type: ignore[arg-type]
    loader.start(order, deliver)
    assert begun.wait(PATIENCE)
    loader.hurry(Hurry(OPERATOR, Ticket(1), order.groups))
    hurried.set()
    held = [came.get(timeout=PATIENCE) for _ in range(AHEAD + 1)]  # of the first one nobody knew that it was
    with pytest.raises(Empty):
        came.get(timeout=0.3)
    seen = {group for news in held for group in news.groups}
    held.clear()
    while len(seen) < 8:
        seen.update(came.get(timeout=PATIENCE).groups)
