"""What the suites of the transport share: credentials of both kinds, an endpoint that serves, a clock by hand."""

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import TypeVar

from tests.patience import PATIENCE

from bedload.transport import Credentials, Endpoint, Handler

H = TypeVar("H", bound=Handler)
SECRET = b"correct horse battery staple"


@functools.cache
def credentials_of(kind: str) -> Credentials:
    """``plain`` or ``tls``."""
    if kind == "plain":
        return Credentials(SECRET)
    fresh = Credentials.fresh(encrypted=True)
    return Credentials(SECRET, fresh.certificate, fresh.key)


@contextlib.contextmanager
def serving(credentials: Credentials, handler: H) -> Iterator[tuple[Endpoint, H]]:
    """An endpoint on a thread of its own."""
    endpoint = Endpoint("127.0.0.1", credentials=credentials, handler=handler)
    thread = threading.Thread(target=endpoint.run)
    thread.start()
    try:
        yield endpoint, handler
    finally:
        endpoint.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


class HandClock:
    """Time that a test moves by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def processor(self) -> float:
        return self.now
