"""Which cluster is found by what is called without one."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

from bedload.spark.registry import attached_to, forget, remember


class Attached:
    """What the registry sees of a cluster."""

    running = True

    def __init__(self, session: Any, number: int) -> None:
        self._spark, self.number = session, number


def test_a_cluster_that_nobody_holds_is_found_until_it_is_stopped() -> None:
    session: Any = SimpleNamespace(sparkContext=object())
    other: Any = SimpleNamespace(sparkContext=object())
    for number in range(2):
        made: Any = Attached(session, number)
        remember(made)
        del made
    gc.collect()
    found = [attached_to(session), attached_to(other)]
    assert found[0] is not None
    assert (found[0].number, found[1]) == (1, None)
    for wanted in (0, None):
        last = attached_to(session)
        assert last is not None
        forget(last)
        now = attached_to(session)
        assert (None if now is None else now.number) == wanted
