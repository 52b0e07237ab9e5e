"""The strategies of moving state: small frozen descriptions over one mechanism.

A strategy says what is copied ahead while the old owner still works on it, how much flips at one epoch boundary, who
decides what is sent next, and what a row waits for. Nothing else differs between them.

Whoever asks for a change gives a strategy, its name, ``"auto"``, or None. None means the same wherever it can be given:
the default, :data:`DEFAULT`. :func:`strategy_named` is the one place that says what was meant; behind it there is no
None, and what is to be chosen later is :data:`AUTO`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Literal

from bedload.core.errors import DefinitionError
from bedload.protocol.messages import Order, Terms, WaitsFor


@dataclass(frozen=True)
class Strategy:
    """How state moves."""

    name: str
    copy_ahead: bool = False
    """Copy state in the background before ownership flips; afterwards only what changed since is sent."""
    groups_per_flip: int | None = None
    """So many key groups flip at one epoch boundary; None: all that move."""
    order: Literal["any", "demand", "backlog"] = "any"
    """What is sent next: whatever comes, what the new owner asks for, or what the feeders say is needed."""
    waits_for: Literal["everything", "key group", "key"] = "key"
    """What a row of a moved key waits for."""
    restart: bool = False
    """Stop all workers and start others from the checkpoint."""
    share: float = 0.25
    """Of its time an old owner gives to state that nobody waits for, so much however busy it is."""
    most_share: float = 0.8
    """And at most so much, if it and the new owner are idle."""
    bandwidth: float | None = None
    """Bytes per second of state that nobody waits for, from each worker, at most; None: no limit."""
    after: str = ""
    """Systems that move state like this."""

    def __post_init__(self) -> None:
        for what, given, known in (("order", self.order, Order), ("waits_for", self.waits_for, WaitsFor)):
            texts = [it.value for it in known]
            if given not in texts:
                raise DefinitionError(f"strategy {self.name}: {what}={given!r} is none of {', '.join(texts)}")
        for what, share in (("share", self.share), ("most_share", self.most_share)):
            if not 0 < share <= 1:
                raise DefinitionError(f"strategy {self.name}: {what}={share} is not a share; give 0 < {what} <= 1")
        if self.most_share < self.share:
            raise DefinitionError(f"strategy {self.name}: most_share={self.most_share} is less than share={self.share}")
        if self.bandwidth is not None and self.bandwidth <= 0:
            raise DefinitionError(f"strategy {self.name}: bandwidth={self.bandwidth}: give bytes per second, or None")
        if self.groups_per_flip is not None and self.groups_per_flip < 1:
            raise DefinitionError(f"strategy {self.name}: groups_per_flip={self.groups_per_flip}: at least one moves")

    def with_(
        self,
        *,
        share: float | None = None,
        most_share: float | None = None,
        bandwidth: float | EllipsisType | None = ...,
    ) -> Strategy:
        """The same with other limits for the background. What is left out stays; ``bandwidth=None``: no limit.

        ``most_share`` is at least ``share``.
        """
        floor = self.share if share is None else share
        ceiling = max(floor, self.most_share) if most_share is None else most_share
        limit = self.bandwidth if isinstance(bandwidth, EllipsisType) else bandwidth
        return replace(self, share=floor, most_share=ceiling, bandwidth=limit)

    @property
    def terms(self) -> Terms:
        """What the workers need to know."""
        return Terms(
            self.copy_ahead, Order(self.order), WaitsFor(self.waits_for), self.share, self.bandwidth, self.most_share
        )


_UNSEEN = 0.05
"""While all is where it was nobody waits, and what a copy takes away from epochs is spread over many of them."""

_ALL = (
    Strategy("stop_restart", waits_for="everything", restart=True, after="Spark, Flink"),
    Strategy("all_at_once", waits_for="everything", share=1.0, most_share=1.0, after="Trisk"),
    Strategy("progressive", groups_per_flip=8, waits_for="key group", share=1.0, most_share=1.0, after="Megaphone"),
    Strategy("lazy", order="demand", after="lazy fetch, Meces"),
    Strategy("hybrid", copy_ahead=True, order="demand", share=_UNSEEN, after="Rhino, warm-up replicas"),
    Strategy("adaptive", order="backlog", after="PAM"),
    Strategy("seamless", copy_ahead=True, order="backlog", share=_UNSEEN),
)

STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in _ALL}
"""All of them, by name."""

DEFAULT = STRATEGIES["seamless"]
"""For whoever names none."""


class Auto(enum.Enum):
    """Stands for a strategy that is not chosen yet."""

    AUTO = "auto"


AUTO = Auto.AUTO
"""The one that fits, chosen for each operator when it is known what there is to move."""


def strategy_named(strategy: str | Strategy | None) -> Strategy | Auto:
    """What is meant by a strategy, by its name or by ``"auto"``; by None, the default."""
    if strategy is None:
        return DEFAULT
    if isinstance(strategy, Strategy):
        return strategy
    if strategy == AUTO.value:
        return AUTO
    found = STRATEGIES.get(strategy)
    if found is None:
        known = ", ".join(STRATEGIES)
        raise DefinitionError(f"there is no strategy {strategy!r}; there are: {known}, and {AUTO.value}")
    return found


def restarts(strategy: Strategy | Auto) -> bool:
    """Whether all workers start anew with it. One that is chosen never does that."""
    return strategy is not AUTO and strategy.restart


def name_of(strategy: Strategy | Auto) -> str:
    """As it is put on record."""
    return strategy.value if strategy is AUTO else strategy.name
