"""Output rows of operators, from Python tuples to an Arrow batch of the declared schema.

The fast way converts column by column. Only if that fails are rows looked at one by one, to say which
key, column and value did not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import repeat
from operator import itemgetter
from typing import Any

import pyarrow as pa

from bedload.core.errors import BedloadError, OutputError
from bedload.worker.fitting import NOT_FITTING, fitted
from bedload.worker.misfits import misfit


class OutputRows:
    """Collects what operator code returns, and remembers for which key."""

    __slots__ = ("_operator", "_schema", "keys", "rows")

    def __init__(self, operator: str, schema: pa.Schema) -> None:
        self._operator = operator
        self._schema = schema
        self.rows: list[Any] = []
        self.keys: list[Any] = []
        """The key of each row. The hot loops append single rows to both lists themselves."""

    def add(self, key: Any, returned: Iterable[Any]) -> None:
        """Take what a call returned: a tuple or mapping is one row, any other iterable many."""
        before = len(self.rows)
        if isinstance(returned, list) and returned and not isinstance(returned[0], (tuple, list, Mapping)):
            one = ", ".join(map(repr, returned)) + ("," if len(returned) == 1 else "")
            raise OutputError(
                f"operator {self._operator}, key {key!r}: returned the list {returned!r}. A list is many rows, so each "
                f"of its items has to be one, and {returned[0]!r} is none. For a single row return a tuple: ({one})",
                operator=self._operator,
                key=key,
            )
        if isinstance(returned, (tuple, Mapping)):
            self.rows.append(returned)
        elif isinstance(returned, (str, bytes)) or not isinstance(returned, Iterable):
            raise OutputError(
                f"operator {self._operator}, key {key!r}: returned {returned!r}; return or yield rows "
                f"as tuples with the columns {', '.join(self._schema.names)}",
                operator=self._operator,
                key=key,
            )
        else:
            self.rows.extend(returned)
        self.keys.extend(repeat(key, len(self.rows) - before))

    def batch(self) -> pa.RecordBatch | None:
        """The rows as Arrow; None if there are none."""
        if not self.rows:
            return None
        schema = self._schema
        try:
            if set(map(type, self.rows)) != {tuple}:
                self.rows = [self._as_tuple(row) for row in self.rows]
            if set(map(len, self.rows)) != {len(schema)}:
                raise ValueError("rows with more or fewer columns")
            arrays = [fitted(list(map(itemgetter(at), self.rows)), field.type) for at, field in enumerate(schema)]
            if any(not field.nullable and a.null_count for field, a in zip(schema, arrays, strict=True)):
                raise ValueError("null in a column that is declared NOT NULL")
        except (*NOT_FITTING, BedloadError) as error:
            raise self._explain(error) from error
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _as_tuple(self, row: Any) -> tuple[Any, ...]:
        if isinstance(row, Mapping):
            extra = set(row) - set(self._schema.names)
            if extra:
                raise ValueError(f"unknown columns {sorted(map(str, extra))}")
            return tuple(row.get(name) for name in self._schema.names)
        if isinstance(row, (tuple, list)):
            return tuple(row)
        raise TypeError(
            f"a row must be a tuple, a list or a dict, not {type(row).__name__}. Write `yield key, n` for one row; "
            f"what is returned, unless it is a tuple or a dict, is taken for many"
        )

    def _explain(self, error: Exception) -> OutputError:
        """Find the row that does not fit, and say all about it."""
        schema = self._schema
        for key, row in zip(self.keys, self.rows, strict=True):
            where = f"operator {self._operator}, key {key!r}: the output row {row!r}"
            details = {"operator": self._operator, "key": key}
            try:
                plain = self._as_tuple(row)
            except (TypeError, ValueError) as problem:
                return OutputError(f"{where} does not fit the schema: {problem}", **details)
            if len(plain) != len(schema):
                return OutputError(
                    f"{where} has {len(plain)} columns, but the schema has {len(schema)}: {', '.join(schema.names)}",
                    **details,
                )
            for value, field in zip(plain, schema, strict=True):
                problem_text = misfit(value, field)
                if problem_text:
                    return OutputError(
                        f"{where} does not fit the schema in column {field.name!r}: {problem_text}",
                        column=field.name,
                        **details,
                    )
        return OutputError(f"operator {self._operator}: outputs do not fit the schema: {error}")
