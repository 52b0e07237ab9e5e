"""Value, list and map state of the current key: Spark's own methods, on the key's object.

Each method is generated for its variable, so that an access is an attribute of an attribute. ``here.item`` is the
object of the key that the processor is called for. What a method gives shares nothing that could change. An iterator
looks when its first element is asked for, and at the key of that moment, as Spark's does.

A small list is replaced by what is put: to find out what of it has changed costs more than to write all of it.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from types import CodeType
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import ListState, MapState, ValueState

from bedload.spark.drop_in.conversions import fields_of
from bedload.spark.drop_in.declaring import Declared
from bedload.state.journal import SMALL
from bedload.state.kinds import VariableKind

_VALUE = """
class Value(ValueState):
    def __init__(self): pass
    def exists(self):
        return here.item.SLOT is not None
    def get(self):
        return GIVE(here.item.SLOT)
    def update(self, newValue):
        here.item.SLOT = take(newValue)
    def clear(self):
        here.item.SLOT = None
"""

_LIST = """
class List(ListState):
    def __init__(self): pass
    def exists(self):
        return len(here.item.SLOT) > 0
    def get(self):
        return lazy(items)
    def put(self, newState):
        values = take_all(newState)
        if not values:
            raise empty_list()
        item = here.item
        if len(item.SLOT) > SMALL:
            item.SLOT[:] = values
        else:
            item.SLOT = values
    def appendValue(self, newState):
        here.item.SLOT.append(take(newState))
    def appendList(self, newState):
        values = take_all(newState)
        if not values:
            raise empty_list()
        here.item.SLOT.extend(values)
    def clear(self):
        if here.item.SLOT:
            here.item.SLOT.clear()

def items(here):
    return GIVE_ALL(here.item.SLOT[:])
"""

_MAP = """
class Map(MapState):
    def __init__(self): pass
    def exists(self):
        return len(here.item.SLOT) > 0
    def getValue(self, key):
        found = here.item.SLOT.get(take_key(key))
        return None if found is None else row(found)
    def containsKey(self, key):
        return take_key(key) in here.item.SLOT
    def updateValue(self, key, value):
        here.item.SLOT[take_key(key)] = take(value)
    def iterator(self):
        return lazy(pairs_of)
    def keys(self):
        return lazy(keys_of)
    def values(self):
        return lazy(values_of)
    def removeKey(self, key):
        here.item.SLOT.pop(take_key(key), None)
    def clear(self):
        if here.item.SLOT:
            here.item.SLOT.clear()

def keys_of(here):
    return GIVE_KEYS(list(here.item.SLOT))

def values_of(here):
    return GIVE_ALL(list(here.item.SLOT.values()))

def pairs_of(here):
    slot = here.item.SLOT
    return zip(GIVE_KEYS(list(slot)), GIVE_ALL(list(slot.values())))
"""

_SOURCES = {VariableKind.VALUE: _VALUE, VariableKind.LIST: _LIST, VariableKind.MAP: _MAP}
_CLASSES = {VariableKind.VALUE: "Value", VariableKind.LIST: "List", VariableKind.MAP: "Map"}


def variable(declared: Declared, here: Any) -> Any:
    """The state variable that a processor gets, on the object that is ``here.item``."""
    fields = [fields_of(schema) for schema in declared.schemas]
    last = fields[-1]
    scope: dict[str, Any] = {
        "ValueState": ValueState,
        "ListState": ListState,
        "MapState": MapState,
        "here": here,
        "lazy": lambda look: chain.from_iterable(map(look, (here,))),
        "take": last.take,
        "take_all": last.take_all,
        "take_key": fields[0].take,
        "give": last.give,
        "give_key": fields[0].give,
        "row": last.row,
        "empty_list": _empty_list,
        "SMALL": SMALL,
    }
    exec(_code(declared.kind, declared.attribute, last.give is None, fields[0].give is None), scope)
    cls = scope[_CLASSES[declared.kind]]
    made = cls()
    made._stateName = declared.name
    return made


@lru_cache(maxsize=1024)
def _code(kind: VariableKind, slot: str, plain: bool, plain_key: bool) -> CodeType:
    text = _SOURCES[kind].replace("SLOT", slot)
    if plain:
        text = text.replace("GIVE_ALL(", "(").replace("GIVE(", "(")
    else:
        text = text.replace(f"GIVE(here.item.{slot})", f"None if (found := here.item.{slot}) is None else give(found)")
        text = text.replace("GIVE_ALL(", "map(give, ")
    text = text.replace("GIVE_KEYS(", "(" if plain_key else "map(give_key, ")
    return compile(text, f"<state variable {slot}>", "exec")


def _empty_list() -> PySparkRuntimeError:
    return PySparkRuntimeError(
        "Error updating value state: [ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE] Illegal value provided to the State "
        "Store: Cannot write empty list values to State Store. SQLSTATE: 42601"
    )
