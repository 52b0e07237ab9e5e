"""Where each file of a checkpoint is, and what a file's name says.

Invariants: every path is relative to the root and uses ``/``. Parsing is the inverse of naming, and gives
None for a name that is not one of ours: strangers' files are ignored, never an error. Numbers are
padded, so that the order of names is the order of turns.

::

    bedload.json
    generations/0000000001.json
    moves/<generation>-<number>-<escaped operator>.json
    operators/<escaped name>/schemas/0001.json
                             turns/<generation>-<counter>.json
                             deltas/<generation>-<counter>-w<worker>.arrow
                             snapshots/<generation>-<counter>/manifest.json
                                                              <escaped variable>/part-<group>-<checksum>.parquet

Names are percent-encoded but for ``[A-Za-z0-9_-]``: an operator may be named ``../x``, ``a/b`` or ``.``.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from bedload.core.ids import ChangeId, Generation, OperatorName, Turn, WorkerId, counter_of, generation_of, make_turn

FORMAT = "bedload.json"
GENERATIONS = "generations"
OPERATORS = "operators"
MOVES = "moves"

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_GENERATION = re.compile(r"(\d{10})\.json")
_MOVE = re.compile(r"(\d{10})-(\d{10})-(.+)\.json")
_SCHEMA = re.compile(r"(\d{4,})\.json")
_TURN = re.compile(r"(\d{10})-(\d{10})\.json")
_ABANDONED = re.compile(r"(\d{10})-(\d{10})\.abandoned")
_DELTA = re.compile(r"(\d{10})-(\d{10})-w(\d+)\.arrow")
_PART = re.compile(r"[A-Za-z0-9_%-]+/part-[A-Za-z0-9_-]+\.parquet")
_SNAPSHOT = re.compile(r"(\d{10})-(\d{10})")


def escape(name: str) -> str:
    """The name as one path component, whatever is in it."""
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in name.encode())


def unescape(component: str) -> str | None:
    """The name that :func:`escape` made the component of; None if it made no such thing."""
    try:
        name = unquote_to_bytes(component).decode()
    except UnicodeDecodeError:
        return None
    return name if escape(name) == component else None


def generation(number: Generation) -> str:
    """The claim of an attachment."""
    return f"{GENERATIONS}/{number:010d}.json"


def parse_generation(name: str) -> Generation | None:
    """The attachment that the file is the claim of."""
    found = _GENERATION.fullmatch(name)
    return Generation(int(found[1])) if found else None


def move(number: Generation, change: ChangeId, name: OperatorName) -> str:
    """What is remembered of one operator's part in a change of the cluster; changes are numbered by attachment."""
    return f"{MOVES}/{number:010d}-{change:010d}-{escape(name)}.json"


def parse_move(name: str) -> tuple[Generation, ChangeId, OperatorName] | None:
    """The attachment, the change and the operator that the file is of."""
    found = _MOVE.fullmatch(name)
    of = None if found is None else parse_operator(found[3])
    return None if found is None or of is None else (Generation(int(found[1])), ChangeId(int(found[2])), of)


def operator(name: OperatorName) -> str:
    """The folder of one operator."""
    return f"{OPERATORS}/{escape(name)}"


def parse_operator(folder: str) -> OperatorName | None:
    """The operator that the folder belongs to."""
    name = unescape(folder)
    return OperatorName(name) if name else None


def schemas(name: OperatorName) -> str:
    """The folder of an operator's schemas."""
    return f"{operator(name)}/schemas"


def schema(name: OperatorName, number: int) -> str:
    """One schema of an operator."""
    return f"{schemas(name)}/{number:04d}.json"


def parse_schema(name: str) -> int | None:
    """The number of the schema in that file."""
    found = _SCHEMA.fullmatch(name)
    return int(found[1]) if found else None


def turns(name: OperatorName) -> str:
    """The folder of an operator's turn records."""
    return f"{operator(name)}/turns"


def turn(name: OperatorName, number: Turn) -> str:
    """The record of one turn."""
    return f"{turns(name)}/{_stem(number)}.json"


def abandoned(name: OperatorName, number: Turn) -> str:
    """The mark of a turn that was given up: no worker may say any more that it has sealed it."""
    return f"{turns(name)}/{_stem(number)}.abandoned"


def parse_abandoned(name: str) -> Turn | None:
    """The turn that the file marks as given up."""
    return _turn(_ABANDONED.fullmatch(name))


def parse_turn(name: str) -> Turn | None:
    """The turn that the file is the record of."""
    return _turn(_TURN.fullmatch(name))


def deltas(name: OperatorName) -> str:
    """The folder of an operator's delta segments."""
    return f"{operator(name)}/deltas"


def delta(name: OperatorName, number: Turn, worker: WorkerId) -> str:
    """The segment of one worker and turn."""
    return f"{deltas(name)}/{_stem(number)}-w{worker}.arrow"


def parse_delta(name: str) -> tuple[Turn, WorkerId] | None:
    """The turn and the worker that the segment is of."""
    found = _DELTA.fullmatch(name)
    number = _turn(found)
    return None if found is None or number is None else (number, WorkerId(int(found[3])))


def snapshots(name: OperatorName) -> str:
    """The folder of an operator's snapshots."""
    return f"{operator(name)}/snapshots"


def snapshot(name: OperatorName, number: Turn) -> str:
    """The folder of one snapshot."""
    return f"{snapshots(name)}/{_stem(number)}"


def parse_snapshot(folder: str) -> Turn | None:
    """The turn whose state is in that folder."""
    return _turn(_SNAPSHOT.fullmatch(folder))


def manifest(name: OperatorName, number: Turn) -> str:
    """The file that makes a snapshot count."""
    return f"{snapshot(name, number)}/{MANIFEST}"


MANIFEST = "manifest.json"


def part(variable: str, first: int, digest: str) -> str:
    """One file of a snapshot, relative to the snapshot's folder: by its first key group, and by what it holds."""
    return f"{escape(variable)}/part-{first:05d}-{digest}.parquet"


def is_part(path: str) -> bool:
    """Whether it is the path of a file of a snapshot, relative to the snapshot's folder; never one that leads out."""
    return _PART.fullmatch(path) is not None


def _stem(number: Turn) -> str:
    return f"{generation_of(number):010d}-{counter_of(number):010d}"


def _turn(found: re.Match[str] | None) -> Turn | None:
    if found is None:
        return None
    try:
        return make_turn(Generation(int(found[1])), int(found[2]))
    except ValueError:
        return None
