"""What a cluster tells about itself: rows of plain data, which print as a table and are also a DataFrame."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

_MOST_ROWS = 20
_MOST_CHARACTERS = 28


class Table(list[dict[str, Any]]):
    """Rows as dicts, as they were when it was asked for: a list, and a DataFrame by :meth:`df`.

    It prints as a table of the columns that matter most, in a terminal and in a notebook. The dicts, :meth:`df` and
    ``show(all_columns=True)`` have all of them.
    """

    def __init__(
        self, spark: SparkSession, schema: str, rows: Iterable[dict[str, Any]], main: Sequence[str] = ()
    ) -> None:
        """``schema``: the columns, as DDL; ``main``: those that are printed, all of them unless given."""
        super().__init__(rows)
        self._spark = spark
        self._schema = schema
        self._main = list(main) or self.columns

    @property
    def columns(self) -> list[str]:
        """The names of all columns."""
        return [column.split()[0] for column in re.split(r", (?![^<]*>)", self._schema)]

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied, pickled or shipped it is a plain list: there is no session elsewhere."""
        return list, (list(self),)

    def df(self) -> DataFrame:
        """The same as a batch DataFrame, with all columns."""
        return self._spark.createDataFrame([tuple(row.values()) for row in self], self._schema)

    def show(
        self,
        n: int = _MOST_ROWS,
        truncate: bool | int = True,
        vertical: bool = False,
        *,
        all_columns: bool = False,
    ) -> None:
        """Print the first rows, as ``DataFrame.show`` does: the main columns, or all of them."""
        found = self.df()
        (found if all_columns else found.select(*self._main)).show(n, truncate, vertical)

    def __repr__(self) -> str:
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        right = [any(isinstance(row[name], int | float) for row in self) for name in self._main]
        lines = [
            "  ".join(
                cell.rjust(width) if to_right else cell.ljust(width)
                for cell, width, to_right in zip(line, widths, right, strict=True)
            ).rstrip()
            for line in cells
        ]
        return "\n".join([*lines, *self._rest()])

    __str__ = __repr__

    def _repr_html_(self) -> str:
        head, *body = [[html.escape(cell) for cell in line] for line in self._cells()]
        rows = "".join(f"<tr><td>{'</td><td>'.join(line)}</td></tr>" for line in body)
        rest = "".join(f"<p>{html.escape(line)}</p>" for line in self._rest())
        return f"<table><tr><th>{'</th><th>'.join(head)}</th></tr>{rows}</table>{rest}"

    def _cells(self) -> list[list[str]]:
        """The names of the main columns, and their values in the last rows."""
        return [self._main, *([_text(row[name]) for name in self._main] for row in self[-_MOST_ROWS:])]

    def _rest(self) -> list[str]:
        """What is not shown."""
        rows = [f"the last {_MOST_ROWS} of {len(self)} rows"] if len(self) > _MOST_ROWS else []
        rows = rows or ([] if self else ["no rows"])
        more = len(self.columns) - len(self._main)
        columns = [f"{more} more columns: .show(all_columns=True), .df(), or the dicts themselves"] if more else []
        return [f"({'; '.join([*rows, *columns])})"] if rows or columns else []


def _text(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:,.3f}"
        case int():
            return f"{value:,}"
        case datetime():
            return f"{value.astimezone():%Y-%m-%d %H:%M:%S}"
    text = " ".join(str(value).split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."
