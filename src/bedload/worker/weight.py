"""What an operator's key groups weigh at a worker: the rows, keys and time of its last epochs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.float64]

_SAMPLE = 16
"""Of so many rows one is counted: counting all would cost a twentieth of the fastest operators."""
_OLD = 0.8
"""What the epochs before the last one count."""


@dataclass
class Weight:
    """The averages count older epochs less."""

    busy: float = 0.0
    """Seconds of the current epoch."""
    counts: Counts = field(default_factory=lambda: np.zeros(0))
    """Its rows of each key group, estimated."""
    rows: Counts = field(default_factory=lambda: np.zeros(0))
    """Rows of each key group in an epoch."""
    touched: float = 0.0
    """Keys that an epoch touches."""
    took: float = 0.0
    """Seconds that an epoch takes."""

    def count(self, groups: npt.NDArray[np.int16], key_groups: int) -> None:
        """Take a sample of the rows that came."""
        if len(self.counts) < key_groups:
            self.counts, self.rows = np.zeros(key_groups), np.zeros(key_groups)
        self.counts += np.bincount(groups[::_SAMPLE], minlength=len(self.counts))

    def counted(self, touched: int) -> None:
        """An epoch is over."""
        if len(self.counts):
            self.rows = _OLD * self.rows + self.counts * _SAMPLE
            self.counts = np.zeros(len(self.counts))
        self.touched = _OLD * self.touched + (1 - _OLD) * touched
        self.took = _OLD * self.took + (1 - _OLD) * self.busy
