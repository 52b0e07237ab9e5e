"""Random damage to random files of a real checkpoint: the right state, or an error that names the damage.

Never another state, never an error of another kind, never an end to what was intact.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.checkpoint_states import COUNTS, ME, OPERATOR, Writer, delta
from tests.simulator.chance import Chance
from tests.source_states import Baskets
from tests.thorough import TIMES

from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.compaction import compact, restore_at
from bedload.checkpoint.orders import RestoreOrder, encode_order
from bedload.checkpoint.storage import open_storage
from bedload.core.errors import BedloadError, CheckpointDamaged, CheckpointError, Fenced
from bedload.core.ids import KeyGroup, Turn, generation_of
from bedload.spark.keeper import Keeper
from bedload.spark.source_columns import columns_of
from bedload.spark.source_options import SourceOptions
from bedload.spark.source_read import partitions_of, read
from bedload.spark.source_view import resolve
from bedload.worker.durability import Load
from bedload.worker.durable import load

SEEDS = 30 * TIMES
PIPES = {"attach": [98]}
"""Seeds that make a pipe of a file that is read: few do, and each takes until the deadline."""
EPOCHS = 9


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Baskets]:
    """Epochs 0 to 8, snapshots of 2 and 5; what only epochs up to 1 need is gone."""
    root = tmp_path_factory.mktemp("damage") / "state"
    baskets = Baskets(root)
    chance = Chance(1)
    for epoch in range(EPOCHS):
        baskets.epoch([(chance.number(0, 30), chance.number(-1, 9)) for _ in range(40)])
        if epoch in (2, 5):
            baskets.writer.snapshot(epoch)
    baskets.writer.collect(EPOCHS - 3)
    return root, baskets


# --- damage ---


def flip(data: bytes, chance: Chance) -> bytes:
    at = chance.number(0, len(data) - 1) if data else 0
    return data[:at] + bytes([data[at] ^ (1 << chance.number(0, 7))]) + data[at + 1 :] if data else b"x"


def cut(data: bytes, chance: Chance) -> bytes:
    return data[: chance.number(0, max(0, len(data) - 1))]


def longer(data: bytes, chance: Chance) -> bytes:
    return data + bytes(chance.number(0, 255) for _ in range(chance.number(1, 40)))


def noise(data: bytes, chance: Chance) -> bytes:
    return bytes(chance.number(0, 255) for _ in range(len(data)))


def holes(data: bytes, chance: Chance) -> bytes:
    at = chance.number(0, len(data))
    return data[:at] + bytes(len(data) - at)


CHANGES: list[Callable[[bytes, Chance], bytes]] = [flip, cut, longer, noise, holes, lambda data, chance: b""]


def damage(root: Path, chance: Chance) -> str:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    path = chance.pick(files)
    shown = path.relative_to(root).as_posix()
    how = chance.number(0, len(CHANGES) + 3)
    if how < len(CHANGES):
        before = path.read_bytes()
        path.write_bytes(CHANGES[how](before, chance))
        return f"{getattr(CHANGES[how], '__name__', how)} of {shown}"
    path_too = chance.pick([file for file in files if file != path])
    match how - len(CHANGES):
        case 1:
            shutil.copy(path_too, path)
            return f"{path_too.relative_to(root)} over {shown}"
        case 2:
            path.unlink()
            path.mkdir()
            return f"{shown} is a folder"
        case 3 if chance.happens(0.1):
            path.unlink()
            os.mkfifo(path)
            return f"{shown} is a pipe that nobody writes to"
        case _:
            path.unlink()
            return f"{shown} is gone"


# --- what is done with it ---


class Looked:
    """One damaged copy."""

    def __init__(self, root: Path, baskets: Baskets) -> None:
        self.root, self.baskets = root, baskets
        self.options = {"deadline": 5.0}
        self.expected = {
            record.turn: state for record, state in zip(baskets.writer.records, baskets.states, strict=True)
        }

    def right(self, turn: Turn, found: dict[int, dict[str, Any]]) -> None:
        assert found == self.expected[turn], f"another state than that of turn {turn}"

    def attach(self) -> None:
        keeper = Keeper(str(self.root), self.options)
        lineage = keeper.lineage(OPERATOR, self.baskets.writer.schema)
        head = lineage.history.head
        assert generation_of(lineage.next_turn(Turn(0) if head is None else head)) == keeper.generation
        if head is None:
            return
        plan = lineage.history.restore_plan(head)
        order = RestoreOrder(lineage.schemas, lineage.schema.number, plan.snapshot, plan.deltas)
        groups = tuple(map(KeyGroup, range(lineage.schema.key_groups)))
        wanted = Load(OPERATOR, 1, head, groups, encode_order(order))
        runtime = self.baskets.deployment.start(self.baskets.runtime._worker)
        for news in load(keeper.checkpoint.storage, keeper.generation, wanted):
            runtime.install(news.groups, news.state)
        self.right(head, {key: _plain(state) for key, state in runtime.snapshot()})

    def states(self) -> dict[Turn, dict[int, dict[str, Any]] | None]:
        """Every state that there should be, where it can be read."""
        found: dict[Turn, dict[int, dict[str, Any]] | None] = {}
        for turn in self.expected:
            try:
                restore, _ = restore_at(self._checkpoint(), OPERATOR, turn)
                runtime = self.baskets.deployment.start(self.baskets.runtime._worker)
                for groups, state in restore.chunks():
                    runtime.install([KeyGroup(group) for group in groups], state)
                found[turn] = {key: _plain(state) for key, state in runtime.snapshot()}
                self.right(turn, found[turn] or {})
            except BedloadError:
                found[turn] = None
        return found

    def compact(self) -> None:
        checkpoint = self._checkpoint()
        head = checkpoint.load_history(OPERATOR).head
        if head is not None:
            compact(checkpoint.storage, OPERATOR, head)

    def collect(self) -> None:
        keeper = Keeper(str(self.root), self.options)
        before = self.states()
        history = keeper.checkpoint.load_history(OPERATOR)
        kept = history.retained()[:4]
        keeper.collect(OPERATOR, history.garbage(3))
        after = self.states()
        for turn in kept:
            assert after[turn] == before[turn], f"turn {turn} was retained, and is not what it was"

    def export(self) -> None:
        to = self.root.parent / f"{self.root.name}-copy"
        checkpoint = self._checkpoint()
        copied = checkpoint.export(open_storage(str(to)))
        self_copy = Looked(to, self.baskets)
        for turn in copied.values():
            restore, _ = restore_at(self_copy._checkpoint(), OPERATOR, turn)
            restore.table()

    def read(self) -> None:
        view = resolve(SourceOptions(str(self.root), storage=self.options))
        columns = columns_of(view.schema, None, changes=False)
        names = [variable.name for variable in view.schema.variables]
        rows = [
            row
            for groups in partitions_of(view)
            for found in read(view, groups, names)
            for row in columns.batch(found).to_pylist()
        ]
        self.right(
            view.turn,
            {row["customer"]: {"n": row["n"], "items": dict(row["items"]), "recent": row["recent"]} for row in rows},
        )

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint.open(open_storage(str(self.root), self.options), ME)


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    return {
        name: dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value
        for name, value in state.items()
    }


ACTIONS = ["attach", "compact", "collect", "export", "read"]


@pytest.mark.parametrize("action", ACTIONS)
def test_without_damage_all_is_right(action: str, made: tuple[Path, Baskets], tmp_path: Path) -> None:
    root = tmp_path / "state"
    shutil.copytree(made[0], root)
    getattr(Looked(root, made[1]), action)()


@pytest.mark.parametrize("action", ACTIONS)
def test_with_one_damaged_file_it_is_the_right_state_or_an_error_that_says_so(
    action: str, made: tuple[Path, Baskets], tmp_path: Path
) -> None:
    refused = 0
    for seed in {*range(SEEDS), *PIPES.get(action, [])}:
        root = tmp_path / str(seed)
        shutil.copytree(made[0], root)
        what = damage(root, Chance(1000 * ACTIONS.index(action) + seed))
        try:
            getattr(Looked(root, made[1]), action)()
        except CheckpointError:
            refused += 1
        except BaseException as error:
            # Whatever else it is, or an assertion that does not hold.
            raise AssertionError(f"seed {seed}, {what}: {type(error).__name__}: {error}") from error
        shutil.rmtree(root)
    assert refused > SEEDS / 10, "hardly any damage was met"


def test_turns_of_attachments_whose_claims_are_gone_are_not_written_again(
    made: tuple[Path, Baskets], tmp_path: Path
) -> None:
    root = tmp_path / "state"
    shutil.copytree(made[0], root)
    shutil.rmtree(root / paths.GENERATIONS)
    keeper = Keeper(str(root))
    assert keeper.generation > max(generation_of(record.turn) for record in made[1].writer.records)


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_missing_schema_is_damage_also_one_that_state_only_went_through(missing: int, tmp_path: Path) -> None:
    """Schema 2 renamed a variable and schema 3 kept the new name: without 2, its state would look new."""
    storage = open_storage(str(tmp_path))
    checkpoint = Checkpoint.open(storage, ME)
    for number, groups in ((1, 8), (2, 9), (3, 10)):
        base = number - 1 or None
        made = checkpoint.add_schema(OPERATOR, msgspec.structs.replace(COUNTS, base=base, key_groups=groups))
        assert made.number == number
    record = Writer(storage, made).turn(delta(made, {1: {"n": 1}}))
    checkpoint.write_turn(OPERATOR, record)
    (tmp_path / paths.schema(OPERATOR, missing)).unlink()
    with pytest.raises(CheckpointDamaged, match=rf"000{missing}\.json is missing"):
        Keeper(str(tmp_path)).lineage(OPERATOR, COUNTS)


def test_files_that_a_newer_attachment_has_deleted_are_no_damage(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    ours = Checkpoint.open(storage, ME).claim()
    record = Writer(storage, COUNTS).turn(delta(COUNTS, {1: {"n": 1}}))
    (tmp_path / paths.delta(OPERATOR, record.turn, record.workers[0])).unlink()
    plan = encode_order(RestoreOrder({1: COUNTS}, 1, None, [record]))
    order = Load(OPERATOR, 1, record.turn, tuple(map(KeyGroup, range(8))), plan)
    with pytest.raises(CheckpointDamaged, match="is not there"):
        list(load(storage, ours, order))
    Checkpoint.open(storage, ME).claim()
    with pytest.raises(Fenced, match="taken over by generation 2"):
        list(load(storage, ours, order))
