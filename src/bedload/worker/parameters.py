"""Parameters of an operator: what whoever applies it chooses, the same for all keys.

::

    class Sessions(bl.Operator):
        gap: int = bl.param(30)

    cluster.apply(..., operator=Sessions(gap=60))

Invariants: a value is checked where it is given, and cannot change after that. It is shipped with the code, so that a
worker that comes later has the same. State variables are declared on the class, so none depends on a parameter.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bedload.core.errors import DefinitionError
from bedload.core.frozen import Changeable, frozen, text_of
from bedload.state.specs import NO_DEFAULT

PARAMETERS = "_bl_parameters"
"""The attribute by which an object knows the values of its parameters."""

_RESERVED = ("process", "result", "setup", "close", "grouped")
_UNIONS = (typing.Union, types.UnionType)
_ALSO: dict[Any, type] = {float: int, list: tuple, set: frozenset}
"""What is taken for a value of a type, too."""
_WHOLE = 2**53
"""Floats have all whole numbers up to it."""

Values = Mapping[str, Any]
"""Of all parameters of an operator, by name."""


@dataclass(frozen=True, eq=False)
class Parameter:
    """One parameter, on the operator's class; of an object it gives the value."""

    default: Any = NO_DEFAULT
    fixed: bool = False
    """Whether state that was made with one value cannot go on with another."""
    operator: str = ""
    name: str = ""
    annotation: Any = Any

    def __get__(self, holder: object, owner: type | None = None) -> Any:
        return self if holder is None else getattr(holder, PARAMETERS)[self.name]

    def __set__(self, holder: object, value: Any) -> None:
        raise DefinitionError(
            f"parameter {self.name} of operator {self.operator} was to be set to {value!r}, but {self.advice}"
        )

    @property
    def advice(self) -> str:
        """For who sets it in a method; the rest of a sentence."""
        return (
            f"a parameter is the same for all keys and does not change. Give it where the operator is applied, as in "
            f"operator={self.operator}({self.name}=...); what changes is a state variable: {self.name} = bl.value(...)"
        )

    def declared(self, operator: str, name: str, annotation: Any) -> Parameter:
        """The parameter, now that its name is known."""
        if name in _RESERVED or name.startswith(("__", "_bl_")):
            raise DefinitionError(f"operator {operator}: no parameter can be named {name}; give it another name")
        made = replace(self, operator=operator, name=name, annotation=annotation)
        return made if self.default is NO_DEFAULT else replace(made, default=made.checked(self.default))

    def checked(self, value: Any) -> Any:
        """The value, frozen; raises if it is none for this parameter."""
        where = f"parameter {self.name} of operator {self.operator}"
        try:
            made = frozen(value)
        except Changeable as why:
            raise DefinitionError(
                f"{where}: {why}. Give plain values: numbers, texts, dates, enums, functions, frozen dataclasses, and "
                f"tuples, sets and dicts of these; what else keys share (a connection, a model) is made of them in "
                f"setup()"
            ) from None
        if not (_fits(value, self.annotation) or _fits(made, self.annotation)):
            raise DefinitionError(f"{where} is {_word(self.annotation)}, and not {value!r} ({type(value).__name__})")
        # One value, one text: 90 for a float is 90.0, whoever writes it.
        return float(made) if type(made) is int and abs(made) <= _WHOLE and _takes_float(self.annotation) else made


def param(default: Any = NO_DEFAULT, *, fixed: bool = False) -> Any:
    """A parameter of an operator, read as ``self.name``: ``gap: int = bl.param(30)``, then ``Sessions(gap=60)``.

    Without a default it has to be given. A value is a plain one that cannot change: a number, a text, a date, an enum,
    a function, a frozen dataclass; a list becomes a tuple, a set a frozenset, and a dict one that cannot change.

    On a restart a parameter may have another value. ``fixed``: state that was made with one value does not go on with
    another one; that is refused with :class:`~bedload.errors.SchemaChanged`.
    """
    return Parameter(default, fixed)


def parameters_of(operator: type) -> dict[str, Parameter]:
    """The parameters of an operator; a base class's first."""
    found: dict[str, Parameter] = {}
    for cls in reversed(operator.__mro__):
        for name, item in vars(cls).items():
            if isinstance(item, Parameter):
                found[name] = item
            else:
                found.pop(name, None)
    return found


def values_of(operator: type, given: Mapping[str, Any]) -> Values:
    """The value of every parameter, from those that are given; raises what is wrong with them."""
    known, name = parameters_of(operator), operator.__name__
    unknown = [it for it in given if it not in known]
    state = [spec.name for spec in getattr(operator, "__bedload_specs__", ()) if spec.name in given]
    if state:
        raise DefinitionError(
            f"operator {name}: {', '.join(state)} is a state variable and not a parameter: each key has its own, which "
            f"starts with the default of its declaration and changes in process. Give keys other first values with "
            f"cluster.apply(..., initial_state=df)"
        )
    if unknown:
        there = (
            f"there are: {', '.join(known)}" if known else f"declare it on the class: {unknown[0]}: int = bl.param()"
        )
        raise DefinitionError(f"operator {name} has no parameter {', '.join(unknown)}; {there}")
    missing = [it.name for it in known.values() if it.name not in given and it.default is NO_DEFAULT]
    if missing:
        call = ", ".join(f"{it}=..." for it in missing)
        raise DefinitionError(
            f"operator {name}: parameter {', '.join(missing)} has no default and was not given: use {name}({call})"
        )
    return {it: found.checked(given[it]) if it in given else found.default for it, found in known.items()}


def texts_of(values: Values) -> dict[str, str]:
    """The values as texts for people and checkpoints."""
    return {name: text_of(value) for name, value in values.items()}


class Configured:
    """An operator with its parameters: an object that is no key's, and can be applied."""

    __slots__ = ("_bl_operator", PARAMETERS)

    _bl_operator: type
    _bl_parameters: Values

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={text}" for name, text in texts_of(self._bl_parameters).items())
        return f"{self._bl_operator.__name__}({given})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._bl_operator, dict(self._bl_parameters))


def _again(operator: type, values: Mapping[str, Any]) -> Any:
    return operator(**values)


def parts_of(operator: object) -> tuple[Any, Values]:
    """The class and its parameters, of either or of an operator with parameters; what is neither stays as it is."""
    if isinstance(operator, Configured):
        return operator._bl_operator, operator._bl_parameters
    return operator, values_of(operator, {}) if isinstance(operator, type) else {}


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a value is of a type, as far as that can be seen without looking into containers."""
    if annotation is Any:
        return True
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in _UNIONS:
        return any(_fits(value, it) for it in inner)
    if origin is typing.Literal:
        return value in inner
    if origin is typing.Annotated:
        return _fits(value, inner[0])
    wanted = origin or (types.NoneType if annotation is None else annotation)
    if not isinstance(wanted, type):
        return True
    if isinstance(value, bool) and wanted in (int, float):
        return False
    try:
        return isinstance(value, (wanted, _ALSO.get(wanted, wanted)))
    except TypeError:  # a protocol that cannot be checked
        return True


def _takes_float(annotation: Any) -> bool:
    """Whether numbers of a type are floats."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _takes_float(inner[0])
    if origin in _UNIONS:
        return any(map(_takes_float, inner)) and int not in inner
    return annotation is float


def _word(annotation: Any) -> str:
    return annotation.__name__ if type(annotation) is type else str(annotation)
