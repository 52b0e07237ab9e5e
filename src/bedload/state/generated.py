"""Functions that are written out for the variables of one operator, as :mod:`bedload.state.record` needs them."""

from __future__ import annotations

from functools import lru_cache
from types import CodeType
from typing import Any


@lru_cache(maxsize=1024)
def _compiled(text: str) -> CodeType:
    return compile(text, "<state layout>", "exec")


def function(signature: str, lines: list[str], scope: dict[str, Any]) -> Any:
    """A function of this signature and body, which sees what is in the scope."""
    body = "".join(f"    {line}\n" for line in lines or ["pass"])
    made: dict[str, Any] = {}
    exec(_compiled(f"def {signature}:\n{body}"), scope, made)
    (found,) = made.values()
    found.__qualname__ = f"RecordLayout.{found.__name__}"
    return found
