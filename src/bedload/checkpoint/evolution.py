"""State that was stored by an older definition of its operator, converted for the present one.

What can change: state variables and columns come (they start with their default), go (they are dropped), are renamed by
declaration, or get a wider type: int to float, T to T | None, a larger or no maxlen, in arrays a dtype that has all of
the old one's values, and in columns numbers of more bits or digits. Fields of dataclasses come with a default and are
renamed by declaration, at any depth. A smaller maxlen keeps the last entries, as the next append would. Everything else
is refused, and the refusal lists it.

Invariants: a conversion depends on nothing but the two schemas and those between them, so a restore gives what the
workers once had, however often it is done; it loses nothing but what the definition dropped; an int that no float
equals is an error and not a rounded number; nothing of the user's code is needed.

Every schema names the one that it replaced (``base``). Older state is converted through all schemas in between, so that
a rename is found even if its declaration is gone by now. A variable that was removed in between and is declared again
is taken over if its type allows it: whoever goes back to an epoch from before a bad change finds what the change
dropped.

Why on whole columns: a converted list of structs is its old offsets and a new column of structs. Nothing is done per
key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa

from bedload.checkpoint.conversions import Convert, Inexact, Refused, conversion, origins_of, renames
from bedload.checkpoint.forms import StateForm
from bedload.checkpoint.records import OperatorSchema
from bedload.checkpoint.shapes import unpack_value
from bedload.core.errors import CheckpointDamaged, KeyGroupsChanged, SchemaChanged
from bedload.core.ids import OperatorName
from bedload.keys import kept_type
from bedload.state.ttl import is_expiry, variable_of
from bedload.store.deltas import GROUP

CHANGES = (
    "What can change: variables are added, removed, or renamed by bl.value(..., renamed_from='old'); int becomes "
    "float, T becomes T | None; fields of a dataclass are added with a default, or renamed by "
    "field(metadata={'renamed_from': 'old'}). Otherwise give this application another name (name=...), or give the "
    "state up with fresh=True"
)


def same_state(a: OperatorSchema, b: OperatorSchema) -> bool:
    """Whether two schemas are one but for their numbers."""
    return msgspec.structs.replace(a, number=0, base=None, version=0) == msgspec.structs.replace(
        b, number=0, base=None, version=0
    )


def check_change(operator: OperatorName, stored: OperatorSchema, wanted: OperatorSchema) -> None:
    """Raise :class:`SchemaChanged` with all differences unless stored state can become the wanted one."""
    refuse(operator, differences(stored, wanted))


def check_stored(name: OperatorName, stored: OperatorSchema, wanted: OperatorSchema) -> None:
    """Refuse an operator that the stored state cannot become."""
    same = same_key(stored.keys, wanted.keys)
    if stored.key_groups != wanted.key_groups and same:
        raise KeyGroupsChanged(
            f"operator {name} has state in {stored.key_groups} key groups, but {wanted.key_groups} were asked for. The "
            f"number is fixed when the state is created: use key_groups={stored.key_groups}, or give the state up with "
            f"fresh=True",
            operator=name,
        )
    found = differences(stored, wanted)
    # State of a renamed column is read, as older checkpoints have some; but that a column has another name, or that
    # two have changed places, looks just like another key.
    if not same and (renamed := other_key(stored.keys, wanted.keys)) not in found:
        found.insert(0, f"{renamed}; if the column was only renamed, give it its old name before (withColumnRenamed)")
    refuse(name, found)


def refuse(operator: OperatorName, found: Sequence[str]) -> None:
    """Raise :class:`SchemaChanged` with these differences, if there are some."""
    if found:
        raise SchemaChanged(
            f"operator {operator}: the stored state does not fit the operator as it is now.\n"
            + "".join(f"  {line}\n" for line in found)
            + CHANGES,
            operator=operator,
        )


def differences(stored: OperatorSchema, wanted: OperatorSchema) -> list[str]:
    """What stands in the way of a change, a line for each variable; nothing if it can be made."""
    found = []
    if stored.key_groups != wanted.key_groups:
        found.append(
            f"key_groups: {stored.key_groups} → {wanted.key_groups}: the number is fixed when the state is created; "
            f"use key_groups={stored.key_groups}"
        )
    if not _same_types(stored.keys, wanted.keys):
        found.append(other_key(stored.keys, wanted.keys))
    if stored.layout != wanted.layout:
        found.append(
            f"layout: {stored.layout} → {wanted.layout}: state of an Operator (rows) and of a VectorOperator or of "
            "aggregates (columns) do not become each other"
        )
        return found
    return found + _Step.between(stored, wanted).problems


def left_behind(stored: OperatorSchema, wanted: OperatorSchema) -> list[str]:
    """The stored variables that nothing wanted is made of."""
    taken = set(_Step.between(stored, wanted).origins.values())
    return [variable.name for variable in stored.variables if variable.name not in taken]


def other_key(stored: pa.Schema, wanted: pa.Schema) -> str:
    """The words for a key that is another one."""
    return (
        f"key: {_columns(stored)} → {_columns(wanted)}: the key decides where state is; use the key that it was made "
        "with"
    )


def same_key(stored: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether two keys have the same columns, by name and type, in the same order. Spark does not tell cases apart."""
    return _same_types(stored, wanted) and [n.lower() for n in stored.names] == [n.lower() for n in wanted.names]


def path_between(schemas: Mapping[int, OperatorSchema], stored: int, wanted: int) -> list[OperatorSchema]:
    """The schemas that state goes through on its way from one to another, both included."""
    way = [wanted]
    while way[-1] != stored:
        base = schemas[way[-1]].base
        if base is None or base not in schemas or base in way:
            way = [wanted, stored]  # they have no common past
            break
        way.append(base)
    return [schemas[number] for number in reversed(way)]


class Evolution:
    """The way from the first of some schemas to the last. Made once, used for any number of batches and threads."""

    def __init__(self, path: Sequence[OperatorSchema], operator: OperatorName | None = None) -> None:
        stored, self._wanted = path[0], path[-1]
        self._operator = operator
        if same_state(stored, self._wanted):
            lost = _lost(path)
            self._sources = {
                it.name: _Source(default=it.default) if it.name in lost else _Source(it.name) for it in stored.variables
            }
            return
        for before, after in pairwise(path):
            check_change(OperatorName(operator or "?"), before, after)
        steps = [_Step.between(before, after) for before, after in pairwise(path)]
        self._sources = _composed(steps, stored, self._wanted)

    def sources(self, variables: Iterable[str]) -> tuple[str, ...]:
        """The stored variables that these wanted ones are made of."""
        return tuple(source.name for name in variables if (source := self._sources[name]).name is not None)

    def apply(self, batch: pa.RecordBatch, variables: Sequence[str] | None = None) -> pa.RecordBatch:
        """The batch as the last schema wants it, with all variables or with some."""
        form = StateForm.of(self._wanted, variables)
        # A key of another zone is the same instant.
        keys = zip(form.key_columns, form.key_types, strict=True)
        columns = [batch.column(GROUP), *(batch.column(name).cast(kind) for name, kind in keys)]
        for name, kind in form.variables.items():
            try:
                column = self._sources[name].column(batch, kind)
            except Inexact as bad:
                raise SchemaChanged(
                    f"{'' if self._operator is None else f'operator {self._operator}: '}state variable {name!r} cannot "
                    f"become {kind}: {bad}. Declare it as it was, and keep the new type in a variable of its own",
                    operator=self._operator,
                    variable=name,
                ) from None
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=form.schema)


@dataclass(frozen=True)
class _Source:
    """Where the values of a variable come from."""

    name: str | None = None
    """Of the stored variable; None: there is none."""
    converts: tuple[Convert, ...] = ()
    default: bytes | None = None

    def column(self, batch: pa.RecordBatch, kind: pa.DataType) -> pa.Array:
        if self.name is None:
            assert self.default is not None, "a new variable has a default"
            return unpack_value(self.default, kind).take(pa.array(np.zeros(batch.num_rows, np.int64)))
        column = batch.column(self.name)
        for convert in self.converts:
            column = convert(column)
        if column.type != kind:
            raise CheckpointDamaged(f"stored variable {self.name!r} became {column.type}, and not {kind}")
        return column


def _composed(steps: Sequence[_Step], stored: OperatorSchema, wanted: OperatorSchema) -> dict[str, _Source]:
    """For each wanted variable its source in the first schema."""
    found: dict[str, _Source] = {}
    for variable in wanted.variables:
        name: str | None = variable.name
        converts: list[Convert] = []
        for step in reversed(steps):
            if name is None:
                break
            convert = step.converts.get(name)
            if convert is not None:
                converts.insert(0, convert)
            name = step.origins[name]
        if name is not None:
            found[variable.name] = _Source(name, tuple(converts))
    taken = {source.name for source in found.values()}
    old = {variable.name: variable for variable in stored.variables}
    bound = {name for names in wanted.together.values() for name in names}
    for variable in wanted.variables:
        if variable.name in found:
            continue
        found[variable.name] = _Source(default=variable.default)
        if variable.name in bound or is_expiry(variable.name) or len(steps) == 1:
            continue
        if variable.name in old and variable.name not in taken:
            try:
                again = conversion(old[variable.name], variable)
            except Refused:
                continue  # another variable of the same name
            found[variable.name] = _Source(variable.name, () if again is None else (again,))
    return found


@dataclass(frozen=True)
class _Step:
    """The way from one schema to the next."""

    origins: dict[str, str | None]
    """For each wanted variable the stored one, or None if it is new."""
    converts: dict[str, Convert] = field(default_factory=dict)
    """By the wanted variable, where its values are not as they were."""
    problems: list[str] = field(default_factory=list)

    @classmethod
    def between(cls, stored: OperatorSchema, wanted: OperatorSchema) -> _Step:
        old = {variable.name: variable for variable in stored.variables}
        new = {variable.name: variable for variable in wanted.variables}
        held, wants = ({n: it for n, it in renames(of.values()).items() if not is_expiry(n)} for of in (old, new))
        origins, doubts = origins_of(held, wants)
        origins = {name: origins[name] if name in wants else _origin_of_expiries(name, origins, old) for name in new}
        step = cls(origins, problems=[f"{name}: {doubt}" for name, doubt in doubts.items()])
        for name, origin in origins.items():
            if name in doubts:
                continue
            if origin is None:
                if new[name].default is None:
                    step.problems.append(f"{name}: it is new, and its schema has no default for it")
                continue
            try:
                convert = conversion(old[origin], new[name])
            except Refused as why:
                was = "" if origin == name else f" (was {origin})"
                step.problems.append(f"{name}{was}: {old[origin].type} → {new[name].type}: {why}")
                continue
            if convert is not None:
                step.converts[name] = convert
        step.problems.extend(_mixed(origins, wanted))
        return step


def _lost(path: Sequence[OperatorSchema]) -> set[str]:
    """The expiries that were removed on the way, if its ends are the same.

    SUBTLE: unlike a variable they do not come back. They would say nothing, and only some of the files have them.
    """
    names = {variable.name: variable.name for variable in path[-1].variables if is_expiry(variable.name)}
    for after, before in pairwise(reversed(path)):
        origins = _Step.between(before, after).origins
        names = {name: at for name, then in names.items() if (at := origins[then]) is not None}
    return {it.name for it in path[-1].variables if is_expiry(it.name) and names.get(it.name) != it.name}


def _origin_of_expiries(name: str, origins: Mapping[str, str | None], stored: Collection[str]) -> str | None:
    """Where the expiries of a variable come from: from those of what it is made of itself, if these are stored."""
    variable = variable_of(name)
    former = origins.get(variable) if variable else variable
    origin = None if former is None else f"{name.removesuffix(variable or '')}{former}"
    return origin if origin in stored else None


def _mixed(origins: Mapping[str, str | None], wanted: OperatorSchema) -> list[str]:
    """What would be computed from some variables that are stored and some that start now."""
    found = []
    for what, names in wanted.together.items():
        new = [name for name in names if origins[name] is None]
        old = [name for name in names if origins[name] is not None]
        if new and old:
            found.append(
                f"{', '.join(new)}: new, but {', '.join(old)} is stored: {what} would mix what was seen from the "
                "beginning with what is seen from now on; aggregate it under another name (name=...)"
            )
    return found


def _same_types(stored: pa.Schema, wanted: pa.Schema) -> bool:
    return [kept_type(kind) for kind in stored.types] == [kept_type(kind) for kind in wanted.types]


def _columns(keys: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in keys)
