"""Questions about many hashes at once: which of them are among others, and which are distinct."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.int64]


def places_in(ordered: Hashes, hashes: Hashes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Where the hashes are among some in ascending order, and whether they are there at all."""
    if not len(ordered):
        return np.zeros(len(hashes), np.int64), np.zeros(len(hashes), np.bool_)
    at = np.searchsorted(ordered, hashes)
    at[at == len(ordered)] = 0
    return at, ordered[at] == hashes


def among(ordered: Hashes, hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Which of the hashes are among some in ascending order."""
    return places_in(ordered, hashes)[1]


def distinct(hashes: Hashes) -> Hashes:
    """Each of them once, in ascending order. NumPy's own goes by a hash table, which is many times slower."""
    if len(hashes) < 2:
        return hashes
    ordered = np.sort(hashes)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]
