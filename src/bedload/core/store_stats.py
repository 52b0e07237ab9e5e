"""How much state an operator has at a worker, where that is, and what was done to have it there."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec


class StoreStats(msgspec.Struct, frozen=True):
    """The figures of one operator at one worker, since it started there."""

    keys: int = 0
    store: str = "memory"
    memory_keys: int = 0
    """Those that are in memory."""
    memory_bytes: int = 0
    """About what they take there; of state in memory, about what it takes encoded."""
    disk_bytes: int = 0
    """Of a remote store: what the whole server uses."""
    hits: int = 0
    """Keys that operator code wanted, and that were in memory."""
    misses: int = 0
    """Those that were looked for on the disk; new ones may not be there."""
    reads: int = 0
    """Keys that were looked for on the disk, for moves and live reads, too."""
    read_bytes: int = 0
    evictions: int = 0
    """Keys that left memory."""
    writes: int = 0
    """Of those, and of those that came from elsewhere: written to the disk."""
    written_bytes: int = 0

    COLUMNS: ClassVar[str] = (
        "operator string, worker int, store string, keys bigint, memory_keys bigint, memory_bytes bigint, "
        "disk_bytes bigint, hit_rate double, hits bigint, misses bigint, reads bigint, read_bytes bigint, "
        "evictions bigint, writes bigint, written_bytes bigint"
    )

    def row(self, operator: str, worker: int) -> dict[str, Any]:
        """As a row of a table."""
        wanted = self.hits + self.misses
        rate = self.hits / wanted if wanted else None
        return {"operator": operator, "worker": worker, "hit_rate": rate, **msgspec.structs.asdict(self)}
