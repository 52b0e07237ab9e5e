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
from bedload.state.timers import EXPIRIES, TimerClock
from tests.simulator.expiring import expiries_after, living, ttl_of
from tests.simulator.workload import FORGET_AT, RECENT, EpochPlan, Kind, QueryPlan, moment, time_of

History = tuple[tuple[QueryId, Epoch], ...]
"""Committed epochs, in the order in which they were committed."""

_OWN = (Kind.TIMED, Kind.ARRAYS, Kind.LASTING, Kind.PROCESSOR)
"""Kinds that have a model of their own."""


@dataclass
class KeyState:
    """The state of one key."""

    count: int = 0
    seen: dict[int, list[int]] = field(default_factory=dict)
    expires: int = 0
    """Of an operator with a TTL."""

    def copy(self) -> KeyState:
        """Another one that is equal."""
        return KeyState(self.count, {source: list(seqs) for source, seqs in self.seen.items()}, self.expires)

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
            if self._kind in _OWN:
                known, _ = self._by_model(known, history[-1])
                self._states[history] = known
                return known
            known = self._living(known, history[-1])
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
            if self._kind is Kind.EXPIRING:
                expiries = {key: state.expires for key, state in known.items()}
                for key, at in expiries_after(expiries, touched, self._name, time_of(history[-1][1])).items():
                    known[key].expires = at
            self._states[history] = known
        return known

    def due(self, history: History) -> dict[TimerClock, int]:
        """What is due first by each clock in the state after these epochs. What is not counted yet is not due."""
        found: dict[TimerClock, int] = {}
        for state in self.state(history).values():
            ends = [(ttl_of(self._name)[1], state.expires)] if self._kind is Kind.EXPIRING else []
            for clock, at in state.ends() if self._kind in _OWN else ends:  # type: ignore[attr-defined]
                if at:
                    found[clock] = min(at, found.get(clock, at))
        return found

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
        if self._kind in _OWN:
            wanted = Counter(self._by_model({key: state.copy() for key, state in before.items()}, epoch)[1])
            got = Counter((row["key"], row["source"], row["seq"], row["count"]) for row in outputs)
            assert got <= wanted if part else got == wanted, f"outputs of {epoch}: {got}, wanted {wanted}"
        elif self._kind is Kind.PROCESS:
            self._check_running(before, plan, outputs, part, f"outputs of {epoch}")
        else:
            self._check_per_key(self._living(before, epoch), plan, outputs, part, f"outputs of {epoch}")

    def _living(self, known: dict[str, KeyState], epoch: tuple[QueryId, Epoch]) -> dict[str, KeyState]:
        """What is there in an epoch of what was there before it."""
        if self._kind is not Kind.EXPIRING:
            return known
        keys = living({key: state.expires for key, state in known.items()}, self._name, time_of(epoch[1]))
        return {key: known[key] for key in known if key in keys}

    def _by_model(
        self, known: dict[str, Any], epoch: tuple[QueryId, Epoch]
    ) -> tuple[dict[str, Any], list[tuple[str, int, int, int]]]:
        """The state after an epoch of an operator with a model, from that before it, and what comes out."""
        time, outputs = time_of(epoch[1]), list[tuple[str, int, int, int]]()
        if self._kind is Kind.LASTING:
            return self._lasting(known, epoch)
        make = self._model()
        for row in self._plan(epoch).rows(self._name):
            known.setdefault(row.key, make()).take(row, time)
        for key in list(known):
            made, forgotten = known[key].end(key, time)
            outputs += made
            if forgotten:
                del known[key]
        return known, outputs

    def _model(self) -> Any:
        """The model of a key's state."""
        if self._kind is Kind.PROCESSOR:
            from tests.simulator.workload_processor import ProcessorState

            return ProcessorState
        if self._kind is Kind.ARRAYS:
            from tests.simulator.workload_arrays import ArrayState

            return ArrayState
        from tests.simulator.workload_timed import TimedState

        return TimedState

    def _lasting(
        self, known: dict[str, Any], epoch: tuple[QueryId, Epoch]
    ) -> tuple[dict[str, Any], list[tuple[str, int, int, int]]]:
        from tests.simulator.workload_lasting import FORGET_AT, LastingState

        time, touched = time_of(epoch[1]), dict[str, None]()
        known = {key: state for key, state in known.items() if state.begin(time)}
        for row in self._plan(epoch).rows(self._name):
            known.setdefault(row.key, LastingState()).take(row, time)
            touched[row.key] = None
        outputs = [known[key].output(key) for key in touched]
        return {key: it for key, it in known.items() if key not in touched or it.count < FORGET_AT}, outputs

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
        if self._kind in _OWN:
            return wanted.misfit(actual)
        if self._kind is Kind.SMALL:
            from tests.simulator.workload_small import misfit

            return misfit(wanted.seen, actual)
        if self._kind in (Kind.COLUMNS, Kind.EXPIRING):
            from tests.simulator.workload_columns import as_rows

            expiries = [at for variable, at in actual.items() if variable in EXPIRIES.values()]
            if self._kind is Kind.EXPIRING and expiries != [wanted.expires]:
                return f"it expires at {expiries}, not {wanted.expires}"
            return wanted.misfit(as_rows(actual))
        return wanted.misfit(actual)

    def _plan(self, epoch: tuple[QueryId, Epoch]) -> EpochPlan:
        return self._plans[epoch[0]].epochs[epoch[1]]
