"""What a worker is told so that it can read state back without looking for it: the plan and the schemas."""

from __future__ import annotations

import msgspec

from bedload.checkpoint.history import Plan
from bedload.checkpoint.records import Manifest, OperatorSchema, TurnRecord


class RestoreOrder(msgspec.Struct, frozen=True):
    """How to read the state at a turn."""

    schemas: dict[int, OperatorSchema]
    """All that the plan needs, by number."""
    target: int
    """The schema that the state is wanted in."""
    snapshot: Manifest | None
    deltas: list[TurnRecord]

    @property
    def plan(self) -> Plan:
        """The plan alone."""
        return Plan(self.snapshot, self.deltas)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(RestoreOrder)


def encode_order(order: RestoreOrder) -> bytes:
    """The order as the body of a message."""
    return _ENCODER.encode(order)


def decode_order(data: bytes | memoryview) -> RestoreOrder:
    """What :func:`encode_order` made."""
    return _DECODER.decode(data)
