"""Output rows of operators, from Python tuples to an Arrow batch of the declared schema.

The fast way converts column by column, some rows at a time: those that were just made are in the processor's cache.
Only if that fails are rows looked at one by one, to say which key, column and value did not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import repeat
from operator import itemgetter
from typing import Any

import pyarrow as pa

from bedload.core.errors import BedloadError, OutputError
from bedload.worker.allowance import Allow, Take
from bedload.worker.fitting import NOT_FITTING, fitted
from bedload.worker.misfits import misfit

_SOME = 4096
"""So many rows become columns together: enough to forget what a step costs, few enough for the processor's cache."""


class OutputRows:
    """Collects what operator code returns, and remembers for which key."""

    __slots__ = ("_allow", "_bytes", "_done", "_operator", "_schema", "_take", "keys", "rows")

    def __init__(self, operator: str, schema: pa.Schema, allow: Allow | None = None, take: Take | None = None) -> None:
        """``allow`` is told how many bytes there are, now and then while rows come, and raises if they are too many.

        ``take`` is given the rows that are there when they are enough: :meth:`batch` has only those that came later.
        """
        self._allow, self._take = allow, take
        self._bytes = 0
        self._operator = operator
        self._schema = schema
        self._done: list[list[pa.Array]] = []
        """The columns of the rows before these."""
        self.rows: list[Any] = []
        self.keys: list[Any] = []
        """The key of each row. The hot loops append single rows to both lists themselves."""

    def add(self, key: Any, returned: Iterable[Any]) -> None:
        """Take what a call returned: a tuple or mapping is one row, any other iterable many."""
        if type(returned) is tuple:
            self.rows.append(returned)
            self.keys.append(key)
            return
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

    def settle(self) -> None:
        """Make columns of the rows that are there, if they are many. Between calls of operator code."""
        if len(self.rows) >= _SOME:
            self._convert()

    def batch(self) -> pa.RecordBatch | None:
        """All rows as Arrow; None if there are none."""
        if self.rows:
            self._convert()
        return self._batch()

    def _batch(self) -> pa.RecordBatch | None:
        if not self._done:
            return None
        arrays = self._done[0] if len(self._done) == 1 else list(map(pa.concat_arrays, zip(*self._done, strict=True)))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _convert(self) -> None:
        rows, schema = self.rows, self._schema
        try:
            if set(map(type, rows)) != {tuple}:
                rows = [self._as_tuple(row) for row in rows]
            if set(map(len, rows)) != {len(schema)}:
                raise ValueError("rows with more or fewer columns")
            arrays = [fitted(list(map(itemgetter(at), rows)), field.type) for at, field in enumerate(schema)]
            if any(not field.nullable and a.null_count for field, a in zip(schema, arrays, strict=True)):
                raise ValueError("null in a column that is declared NOT NULL")
        except (*NOT_FITTING, BedloadError) as error:
            raise self._explain(error) from error
        self._done.append(arrays)
        self._bytes += sum(array.nbytes for array in arrays)
        if self._take is not None and self._bytes >= self._take.enough:
            some = self._batch()
            self._done, self._bytes = [], 0
            self._take.give(some)
        if self._allow is not None:
            self._allow(self._bytes)
        self.rows.clear()  # in place: the hot loops hold them
        self.keys.clear()

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
        return OutputError(
            f"operator {self._operator}: outputs do not fit the schema: {error}", operator=self._operator
        )
