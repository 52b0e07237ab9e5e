"""How many examples and seeds a test takes: few by default, ``BEDLOAD_THOROUGH`` times as many when it is set."""

import os

from hypothesis import settings

TIMES = int(os.environ.get("BEDLOAD_THOROUGH", "1"))


def examples(number: int) -> settings:
    """So many examples of a property."""
    return settings(max_examples=number * TIMES, deadline=None)
