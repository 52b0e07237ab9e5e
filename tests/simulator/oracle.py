"""What state and outputs must be: a single-process model of the operators in :mod:`tests.simulator.workload`.

The state after a history (the committed epochs in their order) depends on nothing but the history. Only the
order in which rows of *different* sources reach a key is free, so the two places where it shows (the latest
rows, and which row got which running count) are checked for being one of the possible orders.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from bedload.core.ids import Epoch, OperatorName, QueryId
from tests.simulator.workload import FORGET_AT, RECENT, EpochPlan, Kind, QueryPlan, moment

History = tuple[tuple[QueryId, Epoch], ...]
"""Committed epochs, in the order in which they were committed."""


@dataclass
class KeyState:
    """The state of one key."""

    count: int = 0
    seen: dict[int, list[int]] = field(default_factory=dict)

    def copy(self) -> KeyState:
        """Another one that is equal."""
        return KeyState(self.count, {source: list(seqs) for source, seqs in self.seen.items()})

    def misfit(self, actual: dict[str, Any]) -> str | None:
        """What is wrong with an actual state, if anything is."""
        if actual["count"] != self.count:
            return f"count is {actual['count']}, not {self.count}"
        if {source: list(seqs) for source, seqs in actual["seen"].items()} != self.seen:
            return f"seen is {actual['seen']}, not {self.seen}"
        tally = {source: len(seqs) for source, seqs in self.seen.items()}
        found = actual["tally"] if "tally" in actual else actual["totals"]
        if dict(found) != tally:
            return f"tally is {found}, not {tally}"
        if not 0 <= actual.get("touched", 0) <= self.count:
            return f"touched {actual['touched']} times, with {self.count} rows"
        recent: dict[int, list[int]] = defaultdict(list)
        for item in actual["recent"]:
            recent[item // 1000].append(item % 1000)
        ends = all(self.seen.get(source, [])[-len(seqs) :] == seqs for source, seqs in recent.items())
        if not ends or len(actual["recent"]) != min(RECENT, self.count):
            return f"recent is {actual['recent']}, which does not end {self.seen}"
        sums = [self.count, sum(map(sum, self.seen.values()))]
        if "sums" in actual and actual["sums"].tolist() != sums:
            return f"sums are {actual['sums']}, not {sums}"
        latest = {source: repr(moment(source, seqs[-1])) for source, seqs in self.seen.items()}
        if "latest" in actual and {source: repr(at) for source, at in actual["latest"].items()} != latest:
            return f"latest is {actual['latest']}, not {latest}"
        return None


class Oracle:
    """Knows what one operator gets in all queries, so it knows the state after any history."""

    def __init__(self, name: OperatorName, kind: Kind, plans: dict[QueryId, QueryPlan]) -> None:
        self._name = name
        self._kind = kind
        self._plans = plans
        self._states: dict[History, dict[str, KeyState]] = {(): {}}

    def state(self, history: History) -> dict[str, KeyState]:
        """The state of every key after these epochs."""
        known = self._states.get(history)
        if known is None:
            known = {key: state.copy() for key, state in self.state(history[:-1]).items()}
            touched = set()
            for row in self._plan(history[-1]).rows(self._name):
                state = known.setdefault(row.key, KeyState())
                state.count += 1
                state.seen.setdefault(row.source, []).append(row.seq)
                touched.add(row.key)
            if self._kind is not Kind.PROCESS:
                for key in touched:
                    if known[key].count >= FORGET_AT:
                        del known[key]
            self._states[history] = known
        return known

    def check_state(self, history: History, actual: dict[str, dict[str, Any]], keys: set[str], where: str) -> None:
        """The actual state of these keys is the one after the history."""
        expected = {key: state for key, state in self.state(history).items() if key in keys}
        assert actual.keys() == expected.keys(), (
            f"{where}: keys {sorted(actual)}, but after {history} there are {sorted(expected)}"
        )
        for key, state in expected.items():
            problem = self._misfit(state, actual[key])
            assert problem is None, f"{where}, key {key}, after {history}: {problem}"

    def check_outputs(
        self, base: History, epoch: tuple[QueryId, Epoch], outputs: list[dict[str, Any]], *, part: bool = False
    ) -> None:
        """The outputs of an epoch on top of a history are there once each; with ``part`` some may be missing."""
        before, plan = self.state(base), self._plan(epoch)
        if self._kind is Kind.PROCESS:
            self._check_running(before, plan, outputs, part, f"outputs of {epoch}")
        else:
            self._check_per_key(before, plan, outputs, part, f"outputs of {epoch}")

    def _check_running(
        self, before: dict[str, KeyState], plan: EpochPlan, outputs: list[dict[str, Any]], part: bool, where: str
    ) -> None:
        wanted = Counter(plan.rows(self._name))
        got = Counter((row["key"], row["source"], row["seq"]) for row in outputs)
        assert got <= wanted if part else got == wanted, f"{where}: rows {got}, wanted {wanted}"
        counts: dict[str, list[int]] = defaultdict(list)
        last: dict[tuple[str, int], int] = {}
        for row in sorted(outputs, key=lambda row: (row["source"], row["seq"])):
            counts[row["key"]].append(row["count"])
            place = row["key"], row["source"]
            assert row["count"] > last.get(place, 0), f"{where}: the order of source {row['source']} is broken"
            last[place] = row["count"]
        rows_of = Counter(row.key for row in plan.rows(self._name))
        for key, found in counts.items():
            start = before[key].count if key in before else 0
            allowed = list(range(start + 1, start + 1 + rows_of[key]))
            right = sorted(found) == allowed or (part and set(found) <= set(allowed))
            assert right, f"{where}, key {key}: running counts {sorted(found)}, wanted {allowed}"

    def _check_per_key(
        self, before: dict[str, KeyState], plan: EpochPlan, outputs: list[dict[str, Any]], part: bool, where: str
    ) -> None:
        wanted = []
        rows_of: dict[str, list[int]] = defaultdict(list)
        for row in plan.rows(self._name):
            rows_of[row.key].append(row.source)
        for key, sources in rows_of.items():
            old = before.get(key, KeyState())
            count = old.count + len(sources)
            first = len(sources) if self._kind is Kind.GROUPED else len(old.seen.keys() | set(sources))
            wanted.append((key, first, count, count))
        got = [(row["key"], row["source"], row["seq"], row["count"]) for row in outputs]
        right = Counter(got) <= Counter(wanted) if part else sorted(got) == sorted(wanted)
        assert right, f"{where}: {sorted(got)}, wanted {sorted(wanted)}"

    def _misfit(self, wanted: KeyState, actual: dict[str, Any]) -> str | None:
        if self._kind is Kind.SMALL:
            from tests.simulator.workload_small import misfit

            return misfit(wanted.seen, actual)
        if self._kind is Kind.COLUMNS:
            from tests.simulator.workload_columns import as_rows

            return wanted.misfit(as_rows(actual))
        return wanted.misfit(actual)

    def _plan(self, epoch: tuple[QueryId, Epoch]) -> EpochPlan:
        return self._plans[epoch[0]].epochs[epoch[1]]
