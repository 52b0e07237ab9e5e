"""The strategies of moving state: small frozen descriptions over one mechanism.

A strategy says what is copied ahead while the old owner still works on it, how much flips at one epoch boundary, who
decides what is sent next, and what a row waits for. Nothing else differs between them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import EllipsisType

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
    order: Order = "any"
    waits_for: WaitsFor = "key"
    restart: bool = False
    """Stop all workers and start others from the checkpoint."""
    share: float = 0.25
    """Of its time an old owner gives to state that nobody waits for, at most so much."""
    bandwidth: float | None = None
    """Bytes per second of state that nobody waits for, from each worker, at most; None: no limit."""
    after: str = ""
    """Systems that move state like this."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise DefinitionError(f"strategy {self.name}: share={self.share} is not a share; give 0 < share <= 1")
        if self.bandwidth is not None and self.bandwidth <= 0:
            raise DefinitionError(f"strategy {self.name}: bandwidth={self.bandwidth}: give bytes per second, or None")
        if self.groups_per_flip is not None and self.groups_per_flip < 1:
            raise DefinitionError(f"strategy {self.name}: groups_per_flip={self.groups_per_flip}: at least one moves")

    def with_(self, *, share: float | None = None, bandwidth: float | EllipsisType | None = ...) -> Strategy:
        """The same with other limits for the background. What is left out stays; ``bandwidth=None``: no limit."""
        limit = self.bandwidth if isinstance(bandwidth, EllipsisType) else bandwidth
        return replace(self, share=self.share if share is None else share, bandwidth=limit)

    @property
    def terms(self) -> Terms:
        """What the workers need to know."""
        return Terms(self.copy_ahead, self.order, self.waits_for, self.share, self.bandwidth)


_UNSEEN = 0.05
"""While all is where it was nobody waits, and what a copy takes away from epochs is spread over many of them."""

_ALL = (
    Strategy("stop_restart", waits_for="everything", restart=True, after="Spark, Flink"),
    Strategy("all_at_once", waits_for="everything", share=1.0, after="Trisk"),
    Strategy("progressive", groups_per_flip=8, waits_for="key group", share=1.0, after="Megaphone"),
    Strategy("lazy", order="demand", after="lazy fetch, Meces"),
    Strategy("hybrid", copy_ahead=True, order="demand", share=_UNSEEN, after="Rhino, warm-up replicas"),
    Strategy("adaptive", order="backlog", after="PAM"),
    Strategy("seamless", copy_ahead=True, order="backlog", share=_UNSEEN),
)

STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in _ALL}
"""All of them, by name."""

DEFAULT = STRATEGIES["seamless"]


def strategy_named(strategy: str | Strategy | None) -> Strategy:
    """A strategy by its name; the default for None."""
    if strategy is None:
        return DEFAULT
    if isinstance(strategy, Strategy):
        return strategy
    found = STRATEGIES.get(strategy)
    if found is None:
        raise DefinitionError(f"there is no strategy {strategy!r}; there are: {', '.join(STRATEGIES)}, and auto")
    return found
