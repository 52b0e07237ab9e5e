"""What the suites of the transport share: credentials of both kinds, and a clock that a test moves."""

import functools

from bedload.transport import Credentials

SECRET = b"correct horse battery staple"


@functools.cache
def credentials_of(kind: str) -> Credentials:
    """``plain`` or ``tls``."""
    if kind == "plain":
        return Credentials(SECRET)
    fresh = Credentials.fresh(encrypted=True)
    return Credentials(SECRET, fresh.certificate, fresh.key)


class HandClock:
    """Time that a test moves by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now
