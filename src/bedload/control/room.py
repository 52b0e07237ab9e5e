"""The waiting room: opens of all operators that cannot be answered yet, in the order in which they came.

Invariant: an open waits once, and for one thing. Whoever lets it out answers it, or has it wait anew.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from bedload.control.instructions import Instruction, Token
from bedload.control.refusals import refuse
from bedload.core.errors import BedloadError
from bedload.core.ids import OperatorName
from bedload.protocol import messages as m


class Until(enum.Enum):
    """What an open waits for."""

    KNOWN = "something is found out, or a turn ends: its operator looks at it again"
    REPLACED = "a worker comes in place of a lost one: it is asked anew"


@dataclass(frozen=True)
class Waiting:
    """An open that waits."""

    token: Token
    ask: m.Open
    until: Until


class WaitingRoom:
    """All opens that wait."""

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, token: Token, ask: m.Open, until: Until = Until.KNOWN) -> None:
        """An open has to wait."""
        self._waiting.append(Waiting(token, ask, until))

    def asks(self, operator: OperatorName) -> list[m.Open]:
        """The opens of an operator that wait until something is known."""
        return [it.ask for it in self._waiting if it.ask.operator == operator and it.until is Until.KNOWN]

    def leave(self, operator: OperatorName, which: Callable[[m.Open], bool] = lambda _: True) -> list[Waiting]:
        """Let those of an operator out that wait until something is known."""
        return self._leave(lambda it: it.until is Until.KNOWN and it.ask.operator == operator and which(it.ask))

    def replaced(self) -> list[Waiting]:
        """Let those out that wait for a worker."""
        return self._leave(lambda it: it.until is Until.REPLACED)

    def _leave(self, which: Callable[[Waiting], bool]) -> list[Waiting]:
        out = [it for it in self._waiting if which(it)]
        if out:
            self._waiting = [it for it in self._waiting if not which(it)]
        return out

    def refuse(self, operator: OperatorName, error: BedloadError) -> list[Instruction]:
        """Let nobody of an operator wait for what may never be known."""
        return [refuse(it.token, error) for it in self.leave(operator)]
