"""What a read of state asks for: the options of ``spark.read.format("bedload")``, checked.

Invariants: an option that is not known, or that does not go with another, is an error: a misspelt one must not read
something else. Names are Spark's own where its ``statestore`` source has one, in any case, as Spark's are.

Why values of storage options stay text unless they are ``true``, ``false``, or a JSON object or list: Spark hands all
options over as text, and an access key may be nothing but digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bedload.core.errors import DefinitionError

STORAGE = "storage."
"""Options for the storage start with this."""

_NAMES = (
    "path",
    "operatorName",
    "stateVarName",
    "batchId",
    "queryId",
    "readChangeFeed",
    "changeStartBatchId",
    "changeEndBatchId",
    "keys",
    "readRegisteredTimers",
)


@dataclass(frozen=True)
class Changes:
    """The change feed, from one epoch to another; None: to the last one."""

    first: int
    last: int | None


@dataclass(frozen=True)
class SourceOptions:
    """What is to be read."""

    url: str
    storage: Mapping[str, Any] = field(default_factory=dict)
    operator: str | None = None
    """None: the one that there is."""
    variable: str | None = None
    """None: all of them."""
    batch: int | None = None
    """None: the newest that is complete."""
    query: str | None = None
    """Whose batches are meant; None: there is but one that fits."""
    changes: Changes | None = None
    """None: the state, and not what changed."""
    keys: tuple[Any, ...] | None = None
    """None: all keys. One that has several columns is a tuple."""
    timers: bool = False
    """The timers in the state, and not the state."""


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """The options as the user gave them."""
    given = {name.lower(): value for name, value in options.items()}
    storage = {
        name[len(STORAGE) :]: _storage_value(name, value) for name, value in given.items() if name.startswith(STORAGE)
    }
    known = {name.lower(): name for name in _NAMES}
    unknown = sorted(name for name in given if name not in known and not name.startswith(STORAGE))
    if unknown:
        raise DefinitionError(
            f"format bedload has no option {', '.join(unknown)}; there are {', '.join(_NAMES[1:])}, and {STORAGE}... "
            "for the storage"
        )
    found = {known[name]: value for name, value in given.items() if name in known}
    if not found.get("path"):
        raise DefinitionError(
            'give the checkpoint to read, as in spark.read.format("bedload").load("file:///data/checkpoint")'
        )
    return SourceOptions(
        url=found["path"],
        storage=storage,
        operator=found.get("operatorName"),
        variable=found.get("stateVarName"),
        batch=_number(found, "batchId"),
        query=found.get("queryId"),
        changes=_changes(found),
        keys=_keys(found),
        timers=_timers(found),
    )


def _changes(found: Mapping[str, str]) -> Changes | None:
    first, last = _number(found, "changeStartBatchId"), _number(found, "changeEndBatchId")
    if not _flag(found, "readChangeFeed"):
        if first is not None or last is not None:
            raise DefinitionError("changeStartBatchId and changeEndBatchId are for option readChangeFeed=true")
        return None
    if first is None:
        raise DefinitionError("readChangeFeed needs changeStartBatchId, the first batch whose changes to read")
    if "batchId" in found:
        raise DefinitionError("readChangeFeed takes changeStartBatchId and changeEndBatchId; leave batchId out")
    if last is not None and last < first:
        raise DefinitionError(f"changeEndBatchId={last} is before changeStartBatchId={first}")
    return Changes(first, last)


def _timers(found: Mapping[str, str]) -> bool:
    timers = _flag(found, "readRegisteredTimers")
    if timers and (other := next((name for name in ("stateVarName", "readChangeFeed") if name in found), None)):
        raise DefinitionError(f"readRegisteredTimers reads the timers of a state alone; leave {other} out")
    return timers


def _keys(found: Mapping[str, str]) -> tuple[Any, ...] | None:
    text = found.get("keys")
    if text is None:
        return None
    try:
        listed = msgspec.json.decode(text)
    except msgspec.DecodeError as bad:
        raise DefinitionError(f"option keys={text!r} is not JSON ({bad}); {_KEYS}") from bad
    if not isinstance(listed, list):
        raise DefinitionError(f"option keys={text!r} is not a list; {_KEYS}")
    return tuple(tuple(key) if isinstance(key, list) else key for key in listed)


_KEYS = 'write \'["car-1", "car-2"]\', or for a key of several columns \'[["car-1", 7], ["car-2", 9]]\''


def _number(found: Mapping[str, str], name: str) -> int | None:
    text = found.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise DefinitionError(f"option {name}={text!r} is not a batch number such as 42") from None


def _flag(found: Mapping[str, str], name: str) -> bool:
    text = found.get(name, "false").lower()
    if text not in ("true", "false"):
        raise DefinitionError(f"option {name}={text!r} is neither true nor false")
    return text == "true"


def _storage_value(name: str, text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text[:1] in ("{", "["):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as bad:
            raise DefinitionError(f"option {name} starts like JSON but is none ({bad})") from bad
    return text
