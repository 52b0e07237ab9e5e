"""Live reads at a worker: the state of one key at the last committed epoch. If the key is not here, the read waits."""

from __future__ import annotations

import numpy as np

from bedload.core.errors import UnknownOperator
from bedload.core.ids import WorkerId
from bedload.core.store_stats import StoreStats
from bedload.keys import freeze_keys, hash_columns
from bedload.keys.lookup import Hashes
from bedload.protocol import messages as m
from bedload.protocol.messages import Body
from bedload.protocol.split import pack_whole, unpack_whole
from bedload.worker.hosted import Hosted
from bedload.worker.peers import Out, Peer


def find(
    worker: WorkerId, hosted: Hosted | None, peer: Peer, message: m.Read | m.Inspect, body: Body, *, durable: bool
) -> list[Out]:
    """What there is to say now; nothing, if the read has to wait."""
    runtime = None if hosted is None else hosted.runtime
    if hosted is None or (runtime is None and not hosted.code.shipped):
        error = UnknownOperator(f"worker {worker} has no operator {message.operator!r}")
        return [(peer, m.Refused(m.WireError.of(error)), None)]
    if isinstance(message, m.Inspect):
        keys, groups = (runtime.keys, runtime.groups) if runtime is not None else (0, 0)
        stats = StoreStats() if runtime is None else runtime.store_stats()
        return [(peer, m.Inspected(keys, groups, stats), None)]
    if hosted.restoring.error is not None:
        return [(peer, m.Refused(m.WireError.of(hosted.restoring.error)), None)]

    def hash_of() -> Hashes:
        return hash_columns(unpack_whole(body).columns)

    holdings = hosted.holdings
    # SUBTLE: one that was not told yet what it owns has no state to look for a key in: a replacement, or one that
    # the word of a flip is on its way to.
    unknown = (durable and not holdings.knows(message.group)) or holdings.told < message.told
    # SUBTLE: nor is what was handed over for anybody to see. Epochs that its new owner takes in are committed here.
    unknown = unknown or hosted.moving.handed_over(message.group, hash_of)
    if unknown or holdings.absent(message.group, hash_of):
        hosted.reads.append((peer, message, None if body is None else bytes(body)))
        holdings.ask(np.array([message.group]))
        return [] if unknown or body is None else hosted.moving.ask(hash_of())
    state = None
    if runtime is not None and body is not None:
        state = runtime.read_batch(message.group, freeze_keys(unpack_whole(body).columns)[0])
    answer = m.ReadAnswer(state is not None, *hosted.committed)
    # SUBTLE: with its schema. New code may declare the variables in another order than they have here.
    return [(peer, answer, None if state is None else pack_whole(state))]
