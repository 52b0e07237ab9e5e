"""The waiting room: opens of all operators that cannot be answered yet, in the order in which they came.

Invariant: an open waits once, and for one thing. Whoever lets it out answers it, or has it wait anew.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
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


class WaitingRoom:
    """All opens that wait."""

    def __init__(self) -> None:
        self._waiting: dict[OperatorName, list[Waiting]] = {}
        """Those that wait until something is known, by operator."""
        self._for_workers: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._for_workers) + sum(map(len, self._waiting.values()))

    def enter(self, token: Token, ask: m.Open, until: Until = Until.KNOWN) -> None:
        """An open has to wait."""
        line = self._for_workers if until is Until.REPLACED else self._waiting.setdefault(ask.operator, [])
        line.append(Waiting(token, ask))

    def asks(self, operator: OperatorName) -> Iterator[m.Open]:
        """The opens of an operator that wait until something is known."""
        return (it.ask for it in self._waiting.get(operator, ()))

    def leave(self, operator: OperatorName, which: Callable[[m.Open], bool] = lambda _: True) -> list[Waiting]:
        """Let those of an operator out that wait until something is known."""
        waiting = self._waiting.pop(operator, [])
        stay = [it for it in waiting if not which(it.ask)]
        if stay:
            self._waiting[operator] = stay
        return [it for it in waiting if which(it.ask)]

    def replaced(self) -> list[Waiting]:
        """Let those out that wait for a worker."""
        out, self._for_workers = self._for_workers, []
        return out

    def refuse(self, operator: OperatorName, error: BedloadError) -> list[Instruction]:
        """Let nobody of an operator wait for what may never be known."""
        return [refuse(it.token, error) for it in self.leave(operator)]
