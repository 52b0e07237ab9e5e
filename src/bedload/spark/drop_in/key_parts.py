"""Structs as keys: in state they are their fields, and to the processor what they are to Spark.

A struct is kept as the columns of its fields, before them whether it is there at all, if it may be null. So keys are of
simple types all the same: hashing, files and live reads have nothing to learn.

A key in ``handleInputRows`` is the struct as it is in the input; in ``handleExpiredTimer``, where there may be no
input, it is made of the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column
from pyspark.sql.types import DataType, StructType

from bedload.spark.drop_in.named_rows import row_class


@dataclass(frozen=True)
class KeyPart:
    """A column that is grouped by."""

    name: str
    at: int
    """Its position in the input."""
    kind: DataType
    nullable: bool

    @property
    def is_struct(self) -> bool:
        """Whether its fields are the key."""
        return isinstance(self.kind, StructType)

    def fields(self, column: Column) -> list[tuple[str, Column]]:
        """The columns that a struct is kept as, with their names."""
        return _fields(column, self.kind, self.nullable, self.name)

    def value(self, fields: Iterator[Any]) -> Any:
        """The struct of what was kept."""
        return _value(self.kind, self.nullable, fields)


def _fields(column: Column, kind: DataType, nullable: bool, name: str) -> list[tuple[str, Column]]:
    if not isinstance(kind, StructType):
        return [(name, column)]
    found = [(name, column.isNotNull())] if nullable else []
    for field in kind.fields:
        found += _fields(column.getField(field.name), field.dataType, field.nullable, f"{name}_{field.name}")
    return found


def _value(kind: DataType, nullable: bool, fields: Iterator[Any]) -> Any:
    if not isinstance(kind, StructType):
        return next(fields)
    is_there = next(fields) if nullable else True
    values = [_value(field.dataType, field.nullable, fields) for field in kind.fields]
    return tuple.__new__(row_class(kind.names), values) if is_there else None


def structs_of(parts: Sequence[KeyPart]) -> tuple[KeyPart, ...]:
    """The parts of a key that has a struct; none of one that has not, and so is what it is kept as."""
    return tuple(parts) if any(part.is_struct for part in parts) else ()


def whole(parts: Sequence[KeyPart]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """What makes a key of what was kept."""

    def made(key: tuple[Any, ...]) -> tuple[Any, ...]:
        fields = iter(key)
        return tuple([part.value(fields) for part in parts])

    return made


def unique(names: Sequence[str]) -> list[str]:
    """The names, in which none is there twice; case does not tell them apart."""
    found: dict[str, str] = {}
    for name in names:
        while name.lower() in found:
            name += "_"
        found[name.lower()] = name
    return list(found.values())
