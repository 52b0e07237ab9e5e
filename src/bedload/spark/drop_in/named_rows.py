"""Rows of Spark's with the names of their fields on the class.

Spark keeps the names on each row, and looks a field up in a list. Here a row is the tuple alone, and a field is a
descriptor. To a processor it is a :class:`pyspark.sql.Row` all the same: it pickles as one, prints as one, and has all
of its methods.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from pyspark.sql.types import Row

_OWN = frozenset(dir(Row))
_get = tuple.__getitem__


def row_class(names: Sequence[str]) -> Any:
    """The class of rows with these fields; ``tuple.__new__(cls, values)`` makes one."""
    return _row_class(tuple(names))


@lru_cache(maxsize=1024)
def _row_class(names: tuple[str, ...]) -> Any:
    places: dict[Any, int] = {at: at for at in range(len(names))}
    for at, name in enumerate(names):
        places.setdefault(name, at)

    def item(self: Any, key: Any) -> Any:
        try:
            return _get(self, places[key])
        except (KeyError, TypeError):  # from the end, a slice, or a name that is none
            return Row.__getitem__(self, key)

    # SUBTLE: an itemgetter would go through __getitem__; what a named tuple has does not.
    # SUBTLE: the class is held here, as its own dict is emptied when it is collected.
    getters = namedtuple("Fields", [f"f{at}" for at in range(len(names))])  # type: ignore[misc]
    fields = {
        name: getattr(getters, f"f{places[name]}")
        for name in names
        if name not in _OWN and not name.startswith("__")  # what is a method of Row is not a field there either
    }
    own = {"__slots__": (), "__module__": Row.__module__, "__fields__": list(names), "__getitem__": item}
    return type("Row", (Row,), {**own, **fields})
