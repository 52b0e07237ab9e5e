"""What a state variable is, and how state lies in memory. The values are in checkpoints, so they stay as they are."""

from __future__ import annotations

import enum
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit


class VariableKind(enum.StrEnum):
    """How a variable was declared, and for values what they are."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    SET = "set"
    COUNTER = "counter"
    DEQUE = "deque"
    HEAP = "heap"
    ARRAY = "array"
    STRUCT = "struct"
    """A value that is a dataclass."""
    OPAQUE = "opaque"
    """A value that only a codec can read."""
    COLUMN = "column"
    """One of the other layout."""


class Store(enum.StrEnum):
    """Where the state of an operator is that no epoch has touched of late."""

    MEMORY = "memory"
    DISK = "disk"
    REDIS = "redis"


class Chosen(NamedTuple):
    """Where the state of an operator is to be."""

    kind: Store
    url: str = ""
    """Of a remote store; it may have a password."""

    def __str__(self) -> str:
        """As people read it, without the password."""
        if not self.url:
            return str(self.kind)
        parts = urlsplit(self.url)
        at = parts.hostname or ""
        prefix = dict(parse_qsl(parts.query)).get("prefix")
        query = "" if prefix is None else urlencode({"prefix": prefix})
        return urlunsplit(parts._replace(netloc=at if parts.port is None else f"{at}:{parts.port}", query=query))


IN_MEMORY = Chosen(Store.MEMORY)


class Layout(enum.StrEnum):
    """How the state of an operator lies in memory."""

    ROWS = "rows"
    COLUMNS = "columns"
