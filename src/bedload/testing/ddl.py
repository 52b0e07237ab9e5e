"""Spark's DDL schemas without Spark: ``"car string, n long"`` as the Arrow schema that ``cluster.apply`` makes of it.

``apply`` has Spark's own parser read the string, in the JVM. The testing kit has no JVM, so the grammar is here again,
for the types that Spark exchanges with Python; ``tests/spark/test_ddl_spark.py`` holds the two against each other.
Instants are in UTC, as in a session of that time zone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa

_TOKEN = re.compile(
    r"(?P<space>\s+|--[^\n]*|/\*.*?\*/)|`(?P<quoted>(?:[^`]|``)+)`|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<word>[A-Za-z0-9_]+)|(?P<mark>[<>,():])",
    re.DOTALL,
)
_SIMPLE = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_DECIMALS = ("decimal", "dec", "numeric")
_PARTS = ("day", "hour", "minute", "second")
"""What an interval counts, if it has a form in Python."""
_KNOWN = (
    "boolean, byte, short, int, long, float, double, decimal(p, s), string, binary, date, timestamp, timestamp_ntz, "
    "time, interval day to second, array<...>, map<..., ...> and struct<...>"
)


class NotDDL(ValueError):
    """What is wrong with a DDL string."""


def parse(text: str) -> pa.Schema:
    """The columns that a DDL string names."""
    return _Parser(text).columns()


def from_spark(value: Mapping[str, Any]) -> pa.Schema:
    """The columns of one of Spark's struct types, given as what its ``jsonValue()`` says."""
    return pa.schema([_field(field) for field in value["fields"]])


def _field(value: Mapping[str, Any]) -> pa.Field:
    return pa.field(value["name"], _of_json(value["type"]), value["nullable"])


def _of_json(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        return _Parser(kind).type()
    if kind["type"] == "struct":
        return pa.struct([_field(field) for field in kind["fields"]])
    if kind["type"] == "array":
        return _array(_of_json(kind["elementType"]), kind["containsNull"])
    if kind["type"] == "map":
        return _map(_of_json(kind["keyType"]), _of_json(kind["valueType"]), kind["valueContainsNull"])
    raise NotDDL(f"the type {kind['type']!r} has no form here; there are: {_KNOWN}")


def _array(element: pa.DataType, nullable: bool = True) -> pa.DataType:
    return pa.list_(pa.field("element", element, nullable))


def _map(key: pa.DataType, value: pa.DataType, nullable: bool = True) -> pa.DataType:
    return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value, nullable))


class _Token(NamedTuple):
    kind: str
    text: str


_END = _Token("end", "")


class _Parser:
    """Reads one string, from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens: list[_Token] = []
        self._next = 0
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise NotDDL(f"{text[at]!r} does not belong there; write a name that has it in `backquotes`")
            at = found.end()
            assert found.lastgroup is not None
            if found.lastgroup != "space":
                self._tokens.append(_Token(found.lastgroup, found[found.lastgroup]))

    def columns(self) -> pa.Schema:
        """All of it as columns."""
        if [token.text.lower() for token in self._tokens[:2]] == ["struct", "<"]:
            found = list(self._type())
        else:
            found = self._fields()
        self._end()
        return pa.schema(found)

    def type(self) -> pa.DataType:
        """All of it as one type."""
        found = self._type()
        self._end()
        return found

    def _end(self) -> None:
        if self._peek is not _END:
            self._expected("a comma or the end")

    def _fields(self) -> list[pa.Field]:
        fields = [self._column()]
        while self._take(","):
            fields.append(self._column())
        return fields

    def _column(self) -> pa.Field:
        kind, name = self._peek
        if kind == "quoted":
            name = name.replace("``", "`")
        elif kind != "word" or name.isdigit():
            self._expected("the name of a column")
        self._next += 1
        self._take(":")
        if self._peek.kind != "word":
            self._expected(f"the type of column {name!r}")
        found = self._type()
        nullable = not self._take("not", "null")
        if self._take("comment"):
            if self._peek.kind != "text":
                self._expected("the comment as 'text'")
            while self._peek.kind == "text":  # a quote within it is doubled
                self._next += 1
        return pa.field(name, found, nullable)

    def _type(self) -> pa.DataType:
        word = self._peek.text.lower()
        if self._peek.kind != "word":
            self._expected("a type")
        self._next += 1
        if word in _SIMPLE:
            return _SIMPLE[word]
        if word == "string":
            if self._take("collate"):
                if self._peek.kind not in ("word", "quoted"):
                    self._expected("the name of a collation")
                self._next += 1
            return pa.string()
        if word in _DECIMALS:
            return self._decimal()
        if word == "time":
            self._numbers(1)
            return pa.time64("ns")
        if word == "interval":
            return self._interval()
        if word in ("array", "map", "struct"):
            return self._nested(word)
        raise NotDDL(f"the type {word!r} has no form here; there are: {_KNOWN}")

    def _nested(self, word: str) -> pa.DataType:
        self._need("<")
        if word == "array":
            found = _array(self._type())
        elif word == "map":
            key = self._type()
            self._need(",")
            found = _map(key, self._type())
        else:
            found = pa.struct([] if self._peek == _Token("mark", ">") else self._fields())
        self._need(">")
        return found

    def _decimal(self) -> pa.DataType:
        given = self._numbers(2)
        precision, scale = [*given, 0][:2] if given else (10, 0)
        if scale > precision or not 1 <= precision <= 38:
            raise NotDDL(f"decimal({precision}, {scale}): a decimal has 1 to 38 digits, and no more behind the point")
        return pa.decimal128(precision, scale)

    def _interval(self) -> pa.DataType:
        first = self._peek.text.lower()
        if first not in _PARTS:
            raise NotDDL("an interval of months has no form in Python: use interval day to second")
        self._next += 1
        if self._take("to"):
            if self._peek.text.lower() not in _PARTS[_PARTS.index(first) + 1 :]:
                self._expected(f"a smaller unit than {first}")
            self._next += 1
        return pa.duration("us")

    def _numbers(self, most: int) -> list[int]:
        """Numbers in parentheses, if there are any."""
        numbers: list[int] = []
        if self._take("("):
            while not numbers or (len(numbers) < most and self._take(",")):
                if not self._peek.text.isdigit():
                    self._expected("a number")
                numbers.append(int(self._peek.text))
                self._next += 1
            self._need(")")
        return numbers

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._next] if self._next < len(self._tokens) else _END

    def _take(self, *words: str) -> bool:
        """Go past these words, if they come next."""
        ahead = self._tokens[self._next : self._next + len(words)]
        if [token.text.lower() for token in ahead if token.kind in ("word", "mark")] != list(words):
            return False
        self._next += len(words)
        return True

    def _need(self, mark: str) -> None:
        if not self._take(mark):
            self._expected(repr(mark))

    def _expected(self, what: str) -> NoReturn:
        behind = " ".join(token.text for token in self._tokens[: self._next][-3:])
        where = f"after {behind!r}" if behind else "at the beginning"
        found = self._peek.text
        raise NotDDL(f"{where} comes {found!r} instead of {what}" if found else f"{what} is missing {where}")
