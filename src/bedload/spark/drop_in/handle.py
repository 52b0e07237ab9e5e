"""The handle that a processor gets at a worker, and the key that it is called for."""

from __future__ import annotations

from collections.abc import Iterator
from operator import index
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from bedload.core.errors import DefinitionError
from bedload.spark.drop_in.declaring import Declarations, attribute_of, dropped, invalid_in_init
from bedload.spark.drop_in.variables import variable
from bedload.state.kinds import VariableKind
from bedload.state.timers import Timer, TimerClock, put_timers, timers_on
from bedload.worker.timers import CurrentKey


class NoKey:
    """In the place of a key's object where there is none: in ``init`` and ``close``."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise invalid_in_init(f"access of {name}")


NO_KEY: Any = NoKey()


class Here(CurrentKey):
    """The key that the processor is called for."""

    __slots__ = ("store",)

    def __init__(self, operator: str) -> None:
        super().__init__(operator)
        self.item = NO_KEY
        self.store: Any = None
        """The store that the key is in."""


class Variables:
    """The state variables of a processor at a worker: made once, and given to each new processor object."""

    def __init__(self, declarations: Declarations, here: Here) -> None:
        self._declared = {it.name: it for it in declarations.variables}
        self._dropped = declarations.dropped
        self._made = {name: variable(it, here) for name, it in self._declared.items()}

    def get(self, kind: VariableKind, name: str, given: tuple[Any, ...]) -> Any:
        """A variable, as ``init`` asks for it."""
        known = self._declared.get(name)
        if known is None and attribute_of(name) in self._dropped:
            return dropped(kind, name)
        if known is None or known.kind is not kind:
            raise DefinitionError(
                f"init asks for the {kind} state {name!r} at a worker, and did not on the driver: declare the same "
                f"variables each time"
            )
        if known.given != given:
            raise DefinitionError(
                f"init gives the {kind} state {name!r} another schema at a worker than on the driver: declare the same "
                f"variables each time"
            )
        return self._made[name]


class WorkerHandle(StatefulProcessorHandle):
    """The handle of one processor object."""

    def __init__(self, variables: Variables, here: Here, clock: TimerClock | None) -> None:
        self._variables = variables
        self._here = here
        self._clock = clock
        self.open = True
        """Whether ``init`` runs."""

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        """A single value of the key."""
        return self._get(VariableKind.VALUE, stateName, (schema,))

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        """A list of values of the key."""
        return self._get(VariableKind.LIST, stateName, (schema,))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any,
        valueSchema: Any,
        ttlDurationMs: int | None = None,
    ) -> Any:
        """A map of the key."""
        return self._get(VariableKind.MAP, stateName, (userKeySchema, valueSchema))

    def deleteIfExists(self, stateName: str) -> None:
        """Drop a variable: that was done when the processor was applied."""
        if not self.open:
            raise _not_in_init("delete_if_exists", "deleting state")

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Have ``handleExpiredTimer`` called for the key at this time."""
        here, clock = self._here, self._timed("register_timer", "register timer")
        item = here.item
        before = timers_on(item)
        timer = Timer(_milliseconds(expiryTimestampMs), "", clock)
        if not before:
            put_timers(item, (timer,))
        elif timer in before:
            return
        else:
            put_timers(item, tuple(sorted((*before, timer))))
            if before[0].at <= timer.at:
                return
        # Only a hint, and so it does no harm if the epoch is rolled back.
        here.store.arm(clock, timer.at, item._bedload_key)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Forget a timer of the key."""
        self._timed("delete_timer", "deleting timer")
        item = self._here.item
        at = _milliseconds(expiryTimestampMs)
        before = timers_on(item)
        left = tuple(timer for timer in before if timer.at != at)
        if len(left) < len(before):
            put_timers(item, left)

    def listTimers(self) -> Iterator[int]:
        """The timers of the key, as they are when the first one is asked for."""
        self._timed("list_timers", "listing timers")
        return self._listed()

    def _listed(self) -> Iterator[int]:
        yield from [timer.at for timer in timers_on(self._here.item)]

    def _get(self, kind: VariableKind, name: str, given: tuple[Any, ...]) -> Any:
        if not self.open:
            raise _not_in_init(f"get_{kind}_state", f"initializing {kind} state")
        return self._variables.get(kind, name, given)

    def _timed(self, operation: str, doing: str) -> TimerClock:
        if self._clock is None:
            raise PySparkRuntimeError(
                f"Error {doing}: [STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE] Failed to "
                f"perform stateful processor operation={operation} with invalid timeMode=NoTime. SQLSTATE: 42802"
            )
        return self._clock


def _milliseconds(time: Any) -> int:
    """A time that is a whole number of 64 bits, as Spark takes it."""
    found = index(time)
    if not -(1 << 63) <= found < 1 << 63:
        raise ValueError(f"Value out of range: {found}")
    return found


def _not_in_init(operation: str, doing: str) -> PySparkRuntimeError:
    return PySparkRuntimeError(
        f"Error {doing}: [STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] Failed to perform "
        f"stateful processor operation={operation} with invalid handle state=INITIALIZED. SQLSTATE: 42802"
    )
