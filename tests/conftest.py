"""Settings for every suite."""

from hypothesis import settings

# Machines are shared and noisy: how long an example takes says nothing.
settings.register_profile("bedload", deadline=None)
settings.load_profile("bedload")
