"""Settings for every suite."""

import gc

import pytest
from hypothesis import settings

from tests.thorough import TIMES

# Machines are shared and noisy: how long an example takes says nothing.
settings.register_profile("bedload", deadline=None, max_examples=50 * TIMES)
settings.load_profile("bedload")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Modules and thousands of tests live to the end: the collector need not look at them over and over."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """What is frozen at the end of the process counts as leaked."""
    gc.unfreeze()
