"""A copy of one operator's state at one turn, file by file.

Invariants: files are copied as they were written, and turn records and manifests after the files that they promise. The
source is only read, and may be in use: when garbage collection deletes what is being copied, the copy starts over from
a newer state.

The states of some epochs before the turn are copied too, each with the record that links it to the next: Spark may not
have committed the last, sealed epoch, and then asks for it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bedload.checkpoint import paths
from bedload.checkpoint.history import History
from bedload.checkpoint.pools import Pools
from bedload.checkpoint.storage import Storage, without_secrets
from bedload.core.errors import CheckpointDamaged
from bedload.core.ids import Turn

_TRIES = 3
_THREADS = 4
"""Files that are held in memory at a time."""


@dataclass
class Needed:
    """The files of some states."""

    files: list[str] = field(default_factory=list)
    promises: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    """As far as known."""


def copy_state(
    source: Storage, to: Storage, load: Callable[[], History], at: Turn | None, epochs_back: int, pools: Pools
) -> Turn | None:
    """Copy the state at a turn (the head), and those that the last ``epochs_back`` epochs began with.

    Gives the turn; None if there is none. ``load`` reads the history anew.
    """
    for tries_left in reversed(range(_TRIES)):
        history = load()
        turn = history.head if at is None else at
        if turn is None:
            return None
        needed = needed_files(history, turn, epochs_back)
        try:
            _copy(source, to, needed.files, needed.sizes, pools)
            _copy(source, to, needed.promises, {}, pools)
        except FileNotFoundError as error:
            if not tries_left:
                raise CheckpointDamaged(
                    f"operator {history.operator}: a file of turn {turn} is missing in {without_secrets(source.url)}: "
                    f"{error}. Put it back from a copy of the checkpoint, or go back to an older epoch."
                ) from error
        else:
            return turn
    raise AssertionError("not reached: the last try returns or raises")


def needed_files(history: History, turn: Turn, epochs_back: int) -> Needed:
    """The files of the state at a turn, and of those that it came from."""
    newest = history.restore_plan(turn)
    states = history.retained(turn)[: epochs_back + 1]
    links = states[:epochs_back]
    oldest = history.restore_plan(states[-1])
    turns = {*links, *(record.turn for plan in (oldest, newest) for record in plan.deltas)}
    snapshots = {plan.snapshot.turn for plan in (oldest, newest) if plan.snapshot is not None}
    # A link whose segments are gone counts by its snapshot.
    snapshots |= {link for link in links if not history.has_segments(link)}
    needed = Needed()
    for number in sorted(snapshots):
        manifest = history.manifest(number)
        assert manifest is not None
        infos = [info for part in manifest.parts for info in part.files.values()]
        folder = paths.snapshot(history.operator, number)
        needed.sizes |= {f"{folder}/{info.path}": info.bytes for info in infos}
        needed.files += history.snapshot_files(number)
        needed.promises.append(paths.manifest(history.operator, number))
    for number in sorted(turns):
        if history.record(number) is not None:
            needed.files += history.segment_paths(number) if history.has_segments(number) else []
            needed.promises.append(paths.turn(history.operator, number))
    return needed


def _copy(source: Storage, to: Storage, files: list[str], sizes: Mapping[str, int], pools: Pools) -> None:
    def step(path: str) -> None:
        data = source.read(path)
        if len(data) != sizes.get(path, len(data)):
            raise CheckpointDamaged(
                f"{without_secrets(source.url)}/{path} has {len(data)} bytes, and was written with {sizes[path]}. Put "
                "it back from a copy of the checkpoint, or go back to an older epoch.",
                path=path,
            )
        to.write(path, data)

    with pools(_THREADS, "bedload-export") as pool:
        for _ in pool.map(step, files):
            pass
