"""Errors of ours in what Spark says of a failed task: Spark passes the text on, with Java's frames around it."""

from __future__ import annotations

import re

from bedload.core import errors
from bedload.core.errors import BedloadError

_OURS = re.compile(r"bedload\.core\.errors\.(\w+)(?:: |(?=\s|$))")
_BEHIND = re.compile(r"\sSQLSTATE: |\n\tat |\n=== Streaming Query")
"""What Spark says behind it."""
_NEXT = re.compile(
    r"\n\n(?:The above exception was the direct cause of the following exception|"
    r"During handling of the above exception, another exception occurred):\n\n"
)
"""What Python says between an error and the one that came of it."""
_TRACE = "Traceback (most recent call last):"


def is_final(error: BaseException) -> bool:
    """Whether starting the query again would end the same way."""
    found = ours(error)
    return isinstance(found, BedloadError) and not found.retryable


def ours(error: BaseException) -> BaseException:
    """The error of ours that a failed query is about, with the user's own lines alone; else the failure itself.

    Of errors that came of each other it is the last one, which is what was raised in the end.
    """
    if isinstance(error, BedloadError):
        return error
    text = str(error)
    named = [(match, kind) for match in _OURS.finditer(text) if (kind := _kind(match[1])) is not None]
    if not named:
        return error
    (last, kind), *others = named
    behind = _BEHIND.search(text, last.end())
    end = behind.start() if behind else len(text)
    for match, other in others:
        if match.start() < end and _came_of(text, last, match.start()) is not None:
            last, kind = match, other
    following = _came_of(text, last, end)
    found = kind(text[last.end() : end if following is None else following].rstrip())
    found.add_note("(What Spark says of it: query.exception().)")
    return found


def _came_of(text: str, error: re.Match[str], end: int) -> int | None:
    """Where the text of an error ends, if another one came of it before ``end``."""
    link = _NEXT.search(text, error.end(), end)
    # SUBTLE: the text of an OperatorFailed has a traceback of its own, the user's. Links behind that are the user's.
    if link is None or text.find(_TRACE, error.end(), link.start()) >= 0:
        return None
    return link.start()


def first_line(error: BaseException) -> str:
    """What happened, without where."""
    known = ours(error)
    name = type(known).__name__
    return f"{name}: {(str(known).strip() or name).splitlines()[0]}"


def _kind(name: str) -> type[BedloadError] | None:
    kind = getattr(errors, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, BedloadError) else None
