"""Spark's progress events, as far as they are read here."""

from __future__ import annotations

from typing import Any

import msgspec

BEAT = "bedload beat"
"""How Beat.java names itself, in progress events and in its offsets."""


class _Source(msgspec.Struct, rename="camel"):
    description: str = ""
    start_offset: Any = None
    end_offset: Any = None

    @property
    def is_beat(self) -> bool:
        """Whether it is a beat of ours, which never has data."""
        return self.description == BEAT

    @property
    def quiet(self) -> bool:
        """Whether it had no new data. The rate source begins with a batch of none, from nowhere to 0."""
        first = self.start_offset is None and self.end_offset == 0 and self.description.startswith("RateStream")
        return first or bool(self.start_offset == self.end_offset)


class Progress(msgspec.Struct, rename="camel"):
    """One trigger of a query."""

    id: str
    run_id: str
    batch_id: int
    num_input_rows: int = 0
    sources: list[_Source] = []

    @property
    def quiet(self) -> bool:
        """Whether a source had no new data, so that an operator may have had no partition."""
        return any(source.quiet for source in self.sources if not source.is_beat)


_DECODER = msgspec.json.Decoder(Progress)


def read_progress(event: str) -> Progress:
    """A progress event in JSON."""
    return _DECODER.decode(event)
