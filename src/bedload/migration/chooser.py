"""Which strategy fits, and why: by how much state there is, how fast it changes, and how fast the link is. Pure."""

from __future__ import annotations

from typing import NamedTuple

from bedload.migration.strategies import STRATEGIES, Strategy

SMALL_BYTES = 1 << 20
"""So little is moved within the time of one message: nothing is won by copying it ahead."""
CHURN = 0.5
"""If an epoch touches more than this share of the keys, a copy is out of date before it is used."""


class Facts(NamedTuple):
    """What is known of an operator's state."""

    bytes: int
    keys: int
    touched: float
    """Keys that an epoch touches."""
    hottest: float
    """The share of the rows that the busiest key group has."""
    groups: int
    bandwidth: float | None = None
    """Bytes per second that the link carries, if that is known or limited."""


class Choice(NamedTuple):
    """A strategy, and the reason in words."""

    strategy: Strategy
    why: str


def choose(facts: Facts) -> Choice:
    """The strategy for such state."""
    size = _size(facts.bytes)
    if facts.bytes <= SMALL_BYTES:
        return Choice(
            STRATEGIES["adaptive"],
            f"{size} of state goes in a message or two, so nothing is copied ahead; pushed in the order of the backlog",
        )
    churn = facts.touched / max(1, facts.keys)
    if churn > CHURN:
        return Choice(
            STRATEGIES["adaptive"],
            f"an epoch touches {churn:.0%} of {facts.keys:,} keys, so a copy made ahead would be out of date when it "
            f"is needed; {size} pushed in the order of the backlog, keys with rows first",
        )
    skewed = facts.groups > 0 and facts.hottest > 4 / facts.groups
    hot = f", the hot ones first (one key group has {facts.hottest:.0%} of the rows)" if skewed else ""
    if facts.bandwidth is not None:
        return Choice(
            STRATEGIES["seamless"].with_(bandwidth=facts.bandwidth),
            f"{size} copied ahead at {_size(facts.bandwidth)}/s; an epoch touches {churn:.1%} of the keys, and only "
            f"those go after the flip{hot}",
        )
    return Choice(
        STRATEGIES["seamless"],
        f"{size} copied ahead in the background; an epoch touches {churn:.1%} of the keys, and only those go after the "
        f"flip{hot}",
    )


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:,.0f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"
