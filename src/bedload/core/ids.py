"""Names for numbers and strings that must not be mixed up.

Every identifier that crosses a layer has a type of its own, so that a signature says which of the
many integers of a protocol it takes.
"""

from typing import NewType

KeyGroup = NewType("KeyGroup", int)
"""The unit of partitioning: ``pmod(xxhash64(key), G)``."""

WorkerId = NewType("WorkerId", int)
"""A worker, numbered from 0 in the order of joining; a number is never used twice in a cluster."""

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

RoutingVersion = NewType("RoutingVersion", int)
"""Counts the changes of one operator's routing table."""

NO_TURN = Turn(-1)
"""Before the first turn."""

NO_QUERY = QueryId("")
"""The query of state that no query has committed to yet."""

NO_EPOCH = Epoch(-1)
"""The epoch of state that no query has committed to yet."""
