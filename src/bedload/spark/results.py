"""What a change of the cluster did, and how times and sizes read."""

from __future__ import annotations

from dataclasses import dataclass

from bedload.migration.record import MoveRecord


@dataclass(frozen=True, repr=False)
class MoveResult:
    """What a change of the cluster did."""

    what: str
    """What was asked for, in words."""
    records: tuple[MoveRecord, ...] = ()
    """One for each operator that it concerned."""

    @property
    def duration_s(self) -> float:
        """From the request until the last worker was done with it."""
        return max((it.duration_s for it in self.records), default=0.0)

    @property
    def moved_keys(self) -> int:
        """Keys that came to another owner."""
        return sum(it.moved_keys for it in self.records)

    @property
    def moved_bytes(self) -> int:
        """The size of their state as it was sent."""
        return sum(it.moved_bytes for it in self.records)

    @property
    def stoppage_ms_p50(self) -> float:
        """How long rows of a key on its way were held up, of the operator that was held up most."""
        return max((it.stoppage_ms_p50 for it in self.records), default=0.0)

    @property
    def stoppage_ms_p99(self) -> float:
        """The same for one key in a hundred."""
        return max((it.stoppage_ms_p99 for it in self.records), default=0.0)

    @property
    def stoppage_ms_max(self) -> float:
        """The same for the key that waited longest."""
        return max((it.stoppage_ms_max for it in self.records), default=0.0)

    @property
    def strategy(self) -> str:
        """How state moved; several if operators differ."""
        return ", ".join(dict.fromkeys(it.strategy for it in self.records))

    @property
    def why(self) -> str:
        """Why like that, if it was chosen (``strategy="auto"``)."""
        whys = [(it.operator, it.why) for it in self.records if it.why]
        return whys[0][1] if len(whys) == 1 else "; ".join(f"{name}: {why}" for name, why in whys)

    def __str__(self) -> str:
        if not self.records:
            return f"{self.what}: done, no state moved"
        lines = [f"{self.what}: done in {seconds_of(self.duration_s)}"]
        for it in self.records:
            line = f"  {it.operator}: {it.moved_keys:,} keys, {size_of(it.moved_bytes)} by {it.strategy}"
            if it.asked_keys:
                line += f"; stoppage p50 {it.stoppage_ms_p50:.1f}, p99 {it.stoppage_ms_p99:.1f}, "
                line += f"max {it.stoppage_ms_max:.1f} ms over {it.asked_keys:,} keys with rows"
            if it.from_checkpoint:
                line += "; the rest was read from the checkpoint"
            lines.append(line if not it.why else f"{line} ({it.why})")
        return "\n".join(lines)

    __repr__ = __str__


def seconds_of(seconds: float) -> str:
    """A time, for people."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def size_of(count: float) -> str:
    """Bytes, for people."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
