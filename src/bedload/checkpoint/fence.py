"""The fence between attachments: whoever has claimed a newer generation has taken the checkpoint over.

Workers look for it at every seal, and the driver before it deletes or promises anything.
"""

from __future__ import annotations

from bedload.checkpoint import paths
from bedload.checkpoint.records import Claim, decode
from bedload.checkpoint.storage import Storage, read_if_there, without_secrets
from bedload.core.errors import Fenced
from bedload.core.ids import Generation


def newer_generation(storage: Storage, generation: Generation) -> Claim | None:
    """The claim of the generation after this one, if there is one."""
    path = paths.generation(Generation(generation + 1))
    # A look costs less than a read that fails, and nearly always there is nothing.
    data = read_if_there(storage, path) if storage.exists(path) else None
    return None if data is None else decode(Claim, data, f"{without_secrets(storage.url)}/{path}")


def check_fence(storage: Storage, generation: Generation) -> None:
    """Raise :class:`Fenced` if a newer attachment has taken the checkpoint over."""
    claim = newer_generation(storage, generation)
    if claim is not None:
        raise Fenced(
            f"the checkpoint {without_secrets(storage.url)} was taken over by generation {claim.generation} "
            f"(host {claim.host}, process {claim.pid}); this is generation {generation}. What it writes does not "
            "count any more: end it; if both should run, give each a checkpoint of its own.",
            generation=generation,
            newer=claim.generation,
            host=claim.host,
        )
