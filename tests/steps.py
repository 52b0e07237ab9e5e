"""Counting what code does: bytecodes, which are the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class _Steps:
    """Counts the bytecodes of the package's own code."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        inside = "/bedload/" in frame.f_code.co_filename.replace("\\", "/")
        frame.f_trace_lines, frame.f_trace_opcodes = False, inside
        self.count += event == "opcode"
        return self if inside else None


def steps_of(action: Callable[[], object]) -> int:
    """How many bytecodes of the package something takes; what C code does is not seen."""
    steps, before = _Steps(), sys.gettrace()
    sys.settrace(steps)
    try:
        action()
    finally:
        sys.settrace(before)
    return steps.count
