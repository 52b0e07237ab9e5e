"""Every error that Bedload raises, one class per *what the caller does next*.

::

    BedloadError
    ├── DefinitionError            fix the code that defines the operator or the query
    │   ├── StateTypeError         a state variable's type cannot be declared, tracked or encoded
    │   ├── KeyColumnError         the key names a column that is not there
    │   ├── KeyTypeError           the key column's type cannot be hashed to a key group
    │   ├── SchemaError            the input or output schema is not usable
    │   ├── OperatorNotShippable   the operator cannot be pickled, or not be loaded at a worker
    │   └── KeyGroupsChanged       the number of key groups differs from that of the existing state
    ├── DataError                  fix the data or the code that meets it; the epoch was rolled back
    │   ├── NullKey                a row's key is null
    │   ├── OutputError            an output row does not fit the declared schema
    │   ├── StateNotOpen           a key's state was changed in an epoch in which the key has no rows
    │   ├── TooLarge               what does not fit into a message or a worker's memory: make the batches smaller
    │   └── OperatorFailed         user code raised; carries its traceback, key and epoch
    ├── EpochError                 the epoch did not count; start the query again
    │   ├── EpochAborted           rolled back on every worker; a restart replays it
    │   ├── NotDeterministic       a repeat of a batch differed from what was applied first
    │   ├── EpochIncomplete        a consumer stopped early, so the epoch was never whole
    │   ├── EpochMismatch          Spark asks for an epoch that does not follow the state's
    │   └── StaleAttempt           a message of a former run or attempt; ends a zombie task
    ├── ClusterError               look after the cluster
    │   ├── ClusterStopped         attach again
    │   ├── OperatorBusy           the state belongs to another query, which runs or can go on
    │   ├── UnknownOperator        no operator of that name has been applied
    │   ├── TooFewSlots            give Spark more task slots, or ask for fewer workers
    │   ├── WrongPython            Spark's tasks run in a Python without what is needed: set PYSPARK_PYTHON
    │   ├── WorkerStartFailed      a worker process did not come up; carries the end of its log
    │   ├── WorkerLost             a worker died; its key groups are gone unless they are durable
    │   ├── LocalDiskError         a worker's local disk is full, or lost what was put there: make room, start again
    │   ├── RemoteStoreError       the store of state does not answer, refuses, or lost it: see to it, start again
    │   ├── WorkerUnreachable      no connection to an endpoint
    │   │   ├── Unanswered         there is one, and no answer in time
    │   │   └── HungUp             it was closed before it was made
    │   ├── Timeout                not done in time: wait longer, or see where it stands
    │   ├── MoveRefused            the cluster cannot be changed like that: see why
    │   ├── MoveFailed             a worker could not send or take state: the message says where the state is now
    │   └── MoveCancelled          a change of the cluster was called off; nothing had moved
    ├── CheckpointError            look after the checkpoint
    │   ├── StoreError             the store did not do it: see that it is reachable and writable, try again
    │   ├── CheckpointDamaged      a file is not what was written: restore it, or go back to an older epoch
    │   ├── CheckpointForeign      the folder holds something else: give the checkpoint one of its own
    │   ├── CheckpointVersion      written by a newer Bedload: install that one
    │   ├── Fenced                 a newer attachment has taken the checkpoint over: end this one
    │   ├── SchemaChanged          the operator's state has another shape than the stored one
    │   └── EpochNotRetained       that epoch's state is not kept (any more): ask for one that is
    ├── SecretRefused              the caller does not have the cluster's secret
    ├── ProtocolError              a damaged or unexpected message: report it
    └── VersionMismatch            the two ends run different versions of Bedload

And every warning that it gives, by Python's ``warnings``:

::

    BedloadWarning
    └── StateDropped               the operator does not declare a variable any more that has state

Messages say what happened, to which operator, key, epoch or worker, and what to do. Errors cross
processes (worker to feeder, executor to driver), so each of them pickles, and ``to_wire`` and
``from_wire`` carry them as plain data without pickle.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, ClassVar


class BedloadError(Exception):
    """The root: catch this to catch everything of ours."""

    retryable: ClassVar[bool] = True
    """Whether starting the query again may help: not if the error would come again."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self).__name__, self.message, self.details))

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["details"][name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}") from None


class DefinitionError(BedloadError):
    """Fix the code that defines the operator or the query."""

    retryable = False


class StateTypeError(DefinitionError, TypeError):
    """A state variable's type cannot be declared, tracked or encoded."""


class KeyColumnError(DefinitionError):
    """The key names a column that the input does not have."""


class KeyTypeError(DefinitionError, TypeError):
    """The key column's type cannot be hashed to a key group."""


class SchemaError(DefinitionError):
    """The input or output schema cannot be used."""


class OperatorNotShippable(DefinitionError):
    """The operator cannot be pickled here, or cannot be loaded at a worker."""


class KeyGroupsChanged(DefinitionError):
    """The number of key groups differs from that of the operator's existing state."""


class DataError(BedloadError):
    """Fix the data, or the code that meets it. The epoch was rolled back."""

    retryable = False


class NullKey(DataError):
    """A row's key is null."""


class OutputError(DataError):
    """An output row does not fit the declared schema."""


class StateNotOpen(DataError):
    """A key's state was to be changed in an epoch in which the key has no rows."""


class TooLarge(DataError):
    """Rows, outputs or state do not fit into one message, or an epoch not into what a worker may use for it."""


class OperatorFailed(DataError):
    """User code raised. Carries the traceback, the key and the epoch."""


class EpochError(BedloadError):
    """The epoch did not count."""


class EpochAborted(EpochError):
    """The epoch was rolled back on every worker; a restart of the query replays it."""


class NotDeterministic(EpochError):
    """A repeat of a batch differed from what had been applied."""


class EpochIncomplete(EpochError):
    """A consumer stopped early, so that an epoch was never whole."""

    retryable = False


class EpochMismatch(EpochError):
    """Spark asks for an epoch that does not follow the one the state is at."""

    retryable = False


class StaleAttempt(EpochError):
    """A message of a former run or attempt."""


class ClusterError(BedloadError):
    """Look after the cluster."""


class ClusterStopped(ClusterError):
    """The cluster was stopped."""

    retryable = False


class OperatorBusy(ClusterError):
    """The operator's state belongs to another query, which runs or can go on."""

    retryable = False


class UnknownOperator(ClusterError, LookupError):
    """No operator of that name has been applied."""


class TooFewSlots(ClusterError):
    """Spark has not enough task slots for the workers and one feeder."""


class WrongPython(ClusterError):
    """The Python that Spark runs tasks with lacks what they need, or is none."""

    retryable = False


class WorkerStartFailed(ClusterError):
    """A worker did not come up."""


class WorkerLost(ClusterError):
    """A worker died."""


class LocalDiskError(ClusterError):
    """A worker's local disk did not take what it was to keep for a while, or did not give it back."""


class RemoteStoreError(ClusterError):
    """A store apart from the workers did not take state, or did not give it back."""


class WorkerUnreachable(ClusterError):
    """No connection to an endpoint of the cluster."""


class Unanswered(WorkerUnreachable):
    """An endpoint did not answer, or did not take a message, in time."""


class HungUp(WorkerUnreachable):
    """An endpoint closed the connection before it was made: call again."""


class Timeout(ClusterError, TimeoutError):
    """What was asked for was not done in time. It goes on."""


class MoveRefused(ClusterError):
    """The cluster cannot be changed like that."""


class MoveFailed(ClusterError):
    """A worker could not do its part in a change of the cluster."""


class MoveCancelled(ClusterError):
    """A change of the cluster was called off before anything had moved."""


class CheckpointError(BedloadError):
    """Look after the checkpoint."""


class StoreError(CheckpointError):
    """The store did not do what it was asked to."""


class CheckpointDamaged(CheckpointError):
    """A file of the checkpoint is not what was written."""

    retryable = False


class CheckpointForeign(CheckpointError):
    """The folder holds files, and no checkpoint."""

    retryable = False


class CheckpointVersion(CheckpointError):
    """The checkpoint was written by a newer version of Bedload."""

    retryable = False


class Fenced(CheckpointError):
    """A newer attachment has taken the checkpoint over."""

    retryable = False


class SchemaChanged(CheckpointError):
    """The operator's state has another shape than the stored one."""

    retryable = False


class EpochNotRetained(CheckpointError):
    """The state of that epoch is not kept, or not any more."""

    retryable = False


class SecretRefused(BedloadError):
    """The caller does not have the cluster's secret."""


class ProtocolError(BedloadError):
    """A damaged or unexpected message."""


class VersionMismatch(BedloadError):
    """The two ends of a connection run different versions of Bedload."""


class BedloadWarning(UserWarning):
    """The root of what Bedload warns of, at the line of the user's that called it."""


class StateDropped(BedloadWarning):
    """The operator does not declare a variable any more that has state."""


def warn_user(message: str, category: type[BedloadWarning]) -> None:
    """Warn at the line of the user's code that called Bedload."""
    own, depth, frame = __name__.partition(".")[0], 1, sys._getframe(0).f_back
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == own:
        depth, frame = depth + 1, frame.f_back
    warnings.warn(message, category, stacklevel=depth + 1)


def _classes(root: type[BedloadError]) -> dict[str, type[BedloadError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found |= _classes(child)
    return found


_BY_NAME = _classes(BedloadError)
_MOST_CHARACTERS = 1_000_000


def _rebuild(kind: str, message: str, details: dict[str, Any]) -> BedloadError:
    return _BY_NAME.get(kind, BedloadError)(message, **details)


def to_wire(error: BaseException) -> tuple[str, str, dict[str, str]]:
    """The error as plain data: class name, message, details as text."""
    if isinstance(error, BedloadError):
        details = {k: _sendable(str(v)) for k, v in error.details.items()}
        return type(error).__name__, _sendable(error.message), details
    return "ProtocolError", _sendable(f"{type(error).__name__}: {error}"), {}


def _sendable(text: str) -> str:
    """The text as it fits into a message: not endless, and without half characters, which cannot be encoded."""
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]}... ({len(text) - _MOST_CHARACTERS:,} more characters)"
    return text.encode("utf-8", "backslashreplace").decode()


def from_wire(kind: str, message: str, details: dict[str, str]) -> BedloadError:
    """What :func:`to_wire` took apart; a class that this version does not know becomes the root."""
    return _rebuild(kind, message, details)
