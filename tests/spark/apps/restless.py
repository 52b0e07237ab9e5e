"""Changes of a running cluster, one after another, drawn from a seed: for applications of the fault tests."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import bedload as bl
from tests.patience import PATIENCE
from tests.simulator.chance import Chance
from tests.spark.apps import say

STRATEGIES = ["seamless", "seamless", "adaptive", "hybrid", "lazy", "progressive", "all_at_once", "auto"]


class Restless:
    """Asks for changes until it is told to stop."""

    def __init__(self, cluster: bl.Cluster, seed: int, most: int, restart: bool, names: Sequence[str]) -> None:
        self._cluster = cluster
        self._chance = Chance(seed)
        self._most = most
        self._names = names
        self._strategies = [*STRATEGIES, "stop_restart"] if restart else STRATEGIES
        self._over = threading.Event()
        self.done: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No more of it; waits for the one under way."""
        self._over.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "a change does not come to its end"

    def _run(self) -> None:
        while not self._over.wait(self._chance.number(50, 1200) / 1000):
            try:
                what, change = self._ask()
            except bl.errors.ClusterError as error:  # refused, or there is no room
                say("refused", why=str(error))
                continue
            if self._chance.happens(0.1):
                change.cancel()
            try:
                result = change.wait(PATIENCE)
            except bl.errors.BedloadError as error:
                say("unmoved", change=what, why=str(error))
            else:
                self.done.append(what)
                say("moved", change=what, keys=result.moved_keys, strategy=result.strategy, seconds=result.duration_s)

    def _ask(self) -> tuple[str, Any]:
        chance, cluster = self._chance, self._cluster
        strategy = chance.pick(self._strategies)
        workers = sorted(cluster.workers)
        kind = chance.pick(["rescale", "rescale", "move", "pin", "unpin", "drain", "rebalance"])
        if strategy == "stop_restart" or (kind == "drain" and len(workers) < 2):
            kind = "rescale"
        to = chance.pick(workers)
        match kind:
            case "rescale":
                wanted = chance.number(1, self._most)
                return f"rescale({wanted})", cluster.rescale(wanted, strategy=strategy)
            case "move":
                groups = chance.shuffled(range(128))[: chance.number(1, 40)]
                name = chance.pick(self._names)
                return "move", cluster.move(key_groups=groups, to=to, operator=name, strategy=strategy)
            case "pin":
                keys = chance.shuffled(range(20))[:3]
                return "pin", cluster.move(keys=keys, to=to, operator=chance.pick(self._names), strategy=strategy)
            case "unpin":
                key = chance.number(0, 19)
                return "unpin", cluster.unpin(key, operator=chance.pick(self._names), strategy=strategy)
            case "drain":
                return f"drain({to})", cluster.drain(to, strategy=strategy)
        return "rebalance", cluster.rebalance(strategy=strategy)
