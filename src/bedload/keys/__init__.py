"""Keys: their hash, their key group, and the worker that owns it. Pure: no I/O, no clock, no Spark.

::

    key columns ──hash_columns──▶ hashes ──key_groups──▶ key groups ──RoutingTable.owners─────▶ workers
    one key ──────hash_key──────▶ hash ────────────────RoutingTable.owner_of_key──────────────▶ worker
"""

from bedload.keys.canonical import NAN, canonical_key, freeze_keys
from bedload.keys.groups import (
    DEFAULT_KEY_GROUPS,
    MAX_KEY_GROUPS,
    check_key_groups,
    groups_in,
    key_group,
    key_groups,
    without_groups,
)
from bedload.keys.hashing import hash_columns, hash_key
from bedload.keys.kinds import check_key_type, kept_type
from bedload.keys.routing import Move, Pin, RoutingTable

__all__ = [
    "DEFAULT_KEY_GROUPS",
    "MAX_KEY_GROUPS",
    "NAN",
    "Move",
    "Pin",
    "RoutingTable",
    "canonical_key",
    "check_key_groups",
    "check_key_type",
    "freeze_keys",
    "groups_in",
    "hash_columns",
    "hash_key",
    "kept_type",
    "key_group",
    "key_groups",
    "without_groups",
]
