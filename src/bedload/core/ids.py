"""Names for numbers and strings that must not be mixed up.

Every identifier that crosses a layer has a type of its own, so that a signature says which of the
many integers of a protocol it takes.
"""

from typing import NewType

KeyGroup = NewType("KeyGroup", int)
"""The unit of partitioning: ``pmod(xxhash64(key), G)``."""

KeyHash = NewType("KeyHash", int)
"""A key by its hash, Spark's ``xxhash64(key)``. Keys of one hash go everywhere together."""

WorkerId = NewType("WorkerId", int)
"""A worker, numbered from 0. The number of one that left, or was lost, goes to the next that comes."""

Site = NewType("Site", str)
"""Where a worker runs: machines that are near each other."""

OperatorName = NewType("OperatorName", str)
"""The identity of an operator's state."""

DeploymentId = NewType("DeploymentId", int)
"""One shipped version of an operator's code."""

QueryId = NewType("QueryId", str)
"""A streaming query, over all of its restarts (Spark's query id)."""

RunId = NewType("RunId", str)
"""One start of a streaming query (Spark's run id)."""

Epoch = NewType("Epoch", int)
"""A micro-batch of one query (Spark's batch id): the transaction."""

Turn = NewType("Turn", int)
"""One attempt at one epoch of one operator. Later attempts have larger numbers, whatever their
epoch, run or query: a message whose turn is not the current one is from another attempt."""

Generation = NewType("Generation", int)
"""One attachment of a cluster to a checkpoint, numbered from 1. It is the upper half of its turns."""

ChangeId = NewType("ChangeId", int)
"""One change of the cluster that somebody asked for. Later ones have larger numbers."""

MoveId = NewType("MoveId", int)
"""One attempt at having some state of an operator change its owners. Later ones have larger numbers, whichever operator
they are of."""

Ticket = NewType("Ticket", int)
"""Names an order, and comes back with the answers to it: what answers an earlier one is told apart by it."""

LOCAL = Site("local")
"""The one site that there is."""

NO_TURN = Turn(-1)
"""Before the first turn."""

NO_CHANGE = ChangeId(-1)
"""Of what was asked for and makes no change: there is nothing to do, or the cluster is over."""

NO_MOVE = MoveId(-1)
"""Before the first move."""

NO_QUERY = QueryId("")
"""The query of state that no query has committed to yet."""

NO_EPOCH = Epoch(-1)
"""The epoch of state that no query has committed to yet."""

_COUNTER_BITS = 32
_COUNTER_MASK = (1 << _COUNTER_BITS) - 1


def make_turn(generation: Generation, counter: int) -> Turn:
    """The turn of that number in that attachment: unique, and ascending over attachments."""
    if generation < 0 or not 0 <= counter <= _COUNTER_MASK:
        raise ValueError(f"no turn has generation {generation} and counter {counter}")
    return Turn(generation << _COUNTER_BITS | counter)


def generation_of(turn: Turn) -> Generation:
    """The attachment that a turn belongs to."""
    return Generation(turn >> _COUNTER_BITS)


def counter_of(turn: Turn) -> int:
    """The number of a turn in its attachment."""
    return turn & _COUNTER_MASK
