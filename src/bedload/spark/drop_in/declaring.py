"""What a processor declares: its ``init`` is run once on the driver, with a handle that writes down what is asked for.

Spark does the same at the start of a query, in a process of its own; what goes wrong there is only in a log. Here it is
raised by the call, as it is.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import DataType, StructType

from bedload.core.errors import DefinitionError
from bedload.spark.drop_in.conversions import fields_of
from bedload.state import StateSpec
from bedload.state.kinds import VariableKind
from bedload.state.specs import TIMERS
from bedload.state.ttl import Ttl
from bedload.state.types import ListNode, MapNode, OptionalNode, TypeNode

_KINDS = {VariableKind.VALUE: "value", VariableKind.LIST: "list", VariableKind.MAP: "map"}
_ESCAPE = "state_"


@dataclass(frozen=True)
class Declared:
    """One state variable of a processor."""

    name: str
    kind: VariableKind
    schemas: tuple[StructType, ...]
    """Of the values; of a map, of its keys and its values."""
    given: tuple[str | StructType, ...]
    """The same as the processor gave them."""
    ttl: int | None = None
    """In milliseconds."""

    @property
    def attribute(self) -> str:
        """What it is called in Bedload's state."""
        return attribute_of(self.name)

    @property
    def spec(self) -> StateSpec:
        """The same as a declaration of Bedload's."""
        nodes = [fields_of(schema).node for schema in self.schemas]
        node: TypeNode
        if self.kind is VariableKind.VALUE:
            node = OptionalNode(nodes[0])
        else:
            node = ListNode(nodes[0]) if self.kind is VariableKind.LIST else MapNode(nodes[0], nodes[1])
        ttl = None if self.ttl is None else Ttl(self.ttl)
        return StateSpec(self.attribute, self.kind, node, None, None, None, ttl=ttl, checked=True)


@dataclass(frozen=True)
class Declarations:
    """All that a processor declares."""

    variables: tuple[Declared, ...]
    dropped: frozenset[str]
    """Variables that ``deleteIfExists`` names, by attribute."""

    def specs(self, *, timed: bool) -> tuple[StateSpec, ...]:
        """The variables of the processor's state; ``timed``: its keys have timers."""
        return (*(it.spec for it in self.variables), *((TIMERS,) if timed else ()))


def attribute_of(name: str) -> str:
    """A state variable's name as an attribute: the same, where it can be one."""
    reserved = name.startswith(("_", "bedload_", _ESCAPE)) or keyword.iskeyword(name)
    if name.isascii() and name.isidentifier() and not reserved:
        return name
    return _ESCAPE + "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):x}_" for c in name)


def declared_by(processor: StatefulProcessor, time_mode: str, parse: Callable[[str], DataType]) -> Declarations:
    """Run ``init`` and then ``close``, as Spark does on the driver; raises whatever they raise."""
    handle = _Recording(time_mode, parse)
    processor.init(handle)
    handle.ended = True
    processor.close()
    return Declarations(tuple(handle.found.values()), frozenset(handle.dropped))


class _Recording(StatefulProcessorHandle):
    """The handle that ``init`` gets on the driver."""

    def __init__(self, time_mode: str, parse: Callable[[str], DataType]) -> None:
        self.found: dict[str, Declared] = {}
        self.dropped: set[str] = set()
        self.ended = False
        self._time_mode = time_mode
        self._parse = parse

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ValueState:
        self._declare(VariableKind.VALUE, stateName, (schema,), ttlDurationMs)
        return _NoValue(invalid_in_init)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ListState:
        self._declare(VariableKind.LIST, stateName, (schema,), ttlDurationMs)
        return _NoList(invalid_in_init)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any,
        valueSchema: Any,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        self._declare(VariableKind.MAP, stateName, (userKeySchema, valueSchema), ttlDurationMs)
        return _NoMap(invalid_in_init)

    def deleteIfExists(self, stateName: str) -> None:
        self.found.pop(stateName, None)
        self.dropped.add(attribute_of(stateName))

    def registerTimer(self, expiryTimestampMs: int) -> None:
        raise invalid_in_init("register_timer")

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        raise invalid_in_init("delete_timer")

    def listTimers(self) -> Iterator[int]:
        raise invalid_in_init("list_timers")

    def _declare(self, kind: VariableKind, name: str, given: tuple[Any, ...], ttl: int | None) -> None:
        word = _KINDS[kind]
        if self.ended:
            raise PySparkRuntimeError(
                f"Error initializing {word} state: [STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_"
                f"STATE] Failed to perform stateful processor operation=get_{word}_state with invalid handle "
                f"state=CLOSED. SQLSTATE: 42802"
            )
        schemas = tuple(self._schema(word, it) for it in given)
        if not name or name.strip() != name or name == "default" or name.startswith("$"):
            raise PySparkRuntimeError(
                f"Error initializing {word} state: [STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME] Failed to "
                f"perform column family operation=CREATE_IF_ABSENT with invalid name={name}. Column family name cannot "
                f"be empty or include leading/trailing spaces or use the reserved keyword=default. SQLSTATE: 42802"
            )
        if name in self.found:
            raise PySparkRuntimeError(
                f"Error initializing {word} state: [STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED] State "
                f"variable with name {name} has already been defined in the StatefulProcessor. SQLSTATE: 42802"
            )
        if attribute_of(name) in self.dropped:
            raise DefinitionError(
                f"init deletes the state variable {name!r} and then declares it: on Spark it would be empty in each "
                f"batch. Leave out the one or the other; to begin with an empty one, give it another name"
            )
        self._check_ttl(word, name, ttl)
        self.found[name] = Declared(name, kind, schemas, given, ttl or None)

    def _check_ttl(self, word: str, name: str, ttl: int | None) -> None:
        if not ttl:
            return
        if ttl < 0:
            raise PySparkRuntimeError(
                f"Error initializing {word} state: [STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE] TTL duration "
                f"must be greater than zero for State store operation=get_{word}_state on state={name}. SQLSTATE: 42802"
            )
        if self._time_mode.lower() != "processingtime":
            raise PySparkRuntimeError(
                f"Error initializing {word} state: [STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL] Cannot use "
                f"TTL for state={name} in timeMode={self._time_mode}, use TimeMode.ProcessingTime() instead. "
                f"SQLSTATE: 42802"
            )

    def _schema(self, word: str, given: Any) -> StructType:
        found = self._parse(given) if isinstance(given, str) else given
        if not isinstance(found, StructType):
            raise PySparkRuntimeError(
                f"Error initializing {word} state: the schema {given!r} has no columns: write 'n int', or a StructType"
            )
        return found


def invalid_in_init(operation: str) -> PySparkRuntimeError:
    """The error for what cannot be done before there is a key."""
    return PySparkRuntimeError(
        f"[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] Failed to perform stateful processor "
        f"operation={operation} with invalid handle state=CREATED. SQLSTATE: 42802"
    )


_DOING = {"exists": "checking value state exists", "get": "getting value state", "clear": "clearing value state"}


def dropped(kind: VariableKind, name: str) -> Any:
    """A variable that ``init`` declares and deletes: it is no variable."""

    def error(method: str) -> PySparkRuntimeError:
        word = _KINDS[kind].capitalize()
        return PySparkRuntimeError(
            f"Error {_DOING.get(method, 'updating value state')}: {word} state {name} is not initialized."
        )

    return _OF_NOTHING[kind](error)


class _OfNothing:
    """A state variable that cannot be used: each method raises."""

    def __init__(self, error: Callable[[str], Exception]) -> None:
        self._error = error

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            raise self._error(name)
        return object.__getattribute__(self, name)


class _NoValue(_OfNothing, ValueState):
    pass


class _NoList(_OfNothing, ListState):
    pass


class _NoMap(_OfNothing, MapState):
    pass


_OF_NOTHING = {VariableKind.VALUE: _NoValue, VariableKind.LIST: _NoList, VariableKind.MAP: _NoMap}
