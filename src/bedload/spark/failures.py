"""Errors of ours in what Spark says of a failed task: Spark passes the text on, with Java's frames around it."""

from __future__ import annotations

import re

from bedload.core import errors
from bedload.core.errors import BedloadError

_OURS = re.compile(r"bedload\.core\.errors\.(\w+): ")
_BEHIND = re.compile(r"\sSQLSTATE: |\n\tat |\n=== Streaming Query")
"""What Spark says behind it."""
_NAMED = re.compile(r"bedload\.core\.errors\.(\w+)")


def is_final(error: BaseException) -> bool:
    """Whether starting the query again would end the same way."""
    if isinstance(error, BedloadError):
        return not error.retryable
    return any(not kind.retryable for name in _NAMED.findall(str(error)) if (kind := _kind(name)) is not None)


def ours(error: BaseException) -> BaseException:
    """The error of ours that a failed query is about, with the user's own lines alone; else the failure itself."""
    if isinstance(error, BedloadError):
        return error
    text = str(error)
    for match in _OURS.finditer(text):
        if (kind := _kind(match[1])) is not None:
            behind = _BEHIND.search(text, match.end())
            found = kind(text[match.end() : behind.start() if behind else None].rstrip())
            found.add_note("(What Spark says of it: query.exception().)")
            return found
    return error


def first_line(error: BaseException) -> str:
    """What happened, without where."""
    known = ours(error)
    name = type(known).__name__
    return f"{name}: {(str(known).strip() or name).splitlines()[0]}"


def _kind(name: str) -> type[BedloadError] | None:
    kind = getattr(errors, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, BedloadError) else None
