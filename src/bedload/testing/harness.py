"""One operator, no Spark: feed rows, look at outputs and state.

The harness runs the worker's own runtime, on rows (:mod:`bedload.worker.row_runtime`) or on columns
(:mod:`bedload.worker.column_runtime`): the same calls of user code, the same tracked state, the same errors as on a
cluster. Rows of aggregates are combined by key before, where a feeder would do so. What it leaves out is in
:data:`LIMITS`, which its ``repr`` prints, so that nobody takes a green test for more than it is.

Invariants: ``feed`` begins an epoch if none is open; ``commit`` seals it first if nobody did; reads show the
committed state only, as live reads do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bedload.core.durations import Duration
from bedload.core.errors import EpochError, SchemaError
from bedload.core.ids import Epoch, KeyGroup, WorkerId
from bedload.keys import DEFAULT_KEY_GROUPS, canonical_key, check_key_groups
from bedload.state.ttl import Clock
from bedload.store import Changes
from bedload.testing.applied import AnyOperator, Applied, Subject, an_aggregate, an_operator
from bedload.testing.committed import CommittedState
from bedload.testing.input import Columns, InputFormat, Rows, as_schema
from bedload.testing.passing_time import PassingTime
from bedload.worker.allowance import Allowance
from bedload.worker.runtime import Runtime

if TYPE_CHECKING:
    from bedload.operators.aggregates import Function

LIMITS = (
    "one worker that owns all key groups",
    "no Spark: input and output types are Arrow's, and nothing checks that Spark has them",
    "no retries, no second actions and no lost workers: see InProcessCluster for those",
)

Output = dict[str, Any]


class OperatorHarness(PassingTime):
    """Runs an ``Operator``, a ``VectorOperator`` or an aggregate without Spark.

    ``operator``: its class, or one with parameters (``Sessions(gap=30)``). ``schema``: the output's columns, as for
    :meth:`bedload.Cluster.apply`: a DDL string or a struct type of Spark's; or
    a pyarrow schema, or a mapping of names to Arrow types. ``key``: the key column, or a list of them. ``input``: the
    input's columns in the same forms. Without it, a column's type is that of its first value that is not null.
    ``key_groups``: how many. ``epoch_bytes``: as for ``attach``, but no limit if it is left out. ``ttl`` and ``clock``
    are of whole keys, as for ``apply``.

    ::

        harness = OperatorHarness(Trip, schema="car string, n long", key="car")
        assert harness.run_epoch([{"car": "a", "speed": 50.0}]) == [{"car": "a", "n": 1}]
        assert harness.state["a"] == {"count": 1, "recent": [50.0]}

    :meth:`aggregate` makes one for aggregates. Rows are dicts; tuples, if there is ``input``; Arrow data; or a pandas
    or Polars DataFrame. ``now`` and ``watermark`` are what ``ctx.now`` and ``ctx.watermark`` say in the next epoch: set
    them, or run an epoch without rows later with :meth:`advance_time` and :meth:`advance_watermark`. :meth:`timers`
    says what a key has been set.

    Its limits: one worker; Arrow's types, not Spark's; no retries, second actions or lost workers.
    """

    def __init__(
        self,
        operator: AnyOperator,
        *,
        schema: Columns,
        key: str | Sequence[str],
        input: Columns | None = None,  # noqa: A002 - the user's word for it
        key_groups: int = DEFAULT_KEY_GROUPS,
        epoch_bytes: int | None = None,
        ttl: Duration | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._take_up(an_operator(operator, schema, ttl, clock), key, input, key_groups, epoch_bytes)

    @classmethod
    def aggregate(
        cls,
        *,
        key: str | Sequence[str],
        input: Columns | None = None,  # noqa: A002 - the user's word for it
        key_groups: int = DEFAULT_KEY_GROUPS,
        epoch_bytes: int | None = None,
        ttl: Duration | None = None,
        clock: Clock | None = None,
        **aggregates: Function,
    ) -> OperatorHarness:
        """A harness for aggregates, named as for :meth:`bedload.Cluster.aggregate`.

        ::

            harness = OperatorHarness.aggregate(key="car", n=bl.agg.count(), mean=bl.agg.mean("speed"))
            assert harness.run_epoch([{"car": "a", "speed": 50.0}]) == [{"car": "a", "n": 1, "mean": 50.0}]
        """
        made = cls.__new__(cls)
        made._take_up(an_aggregate(aggregates, ttl, clock), key, input, key_groups, epoch_bytes)
        return made

    def _take_up(
        self, subject: Subject, key: str | Sequence[str], columns: Columns | None, groups: int, epoch_bytes: int | None
    ) -> None:
        check_key_groups(groups)
        self._subject = subject
        self._key = key
        self._key_groups = groups
        self._allowance = Allowance(subject.name, WorkerId(0), epoch_bytes)
        self._format: InputFormat | None = None
        self._applied: Applied | None = None
        self._runtime: Runtime | None = None
        if columns is not None:
            self._bind(InputFormat(as_schema(columns, "input"), key, groups))
        self._epoch = Epoch(-1)
        self._open = False
        self._sealed = False
        self._start_time()

    # --- epochs ---

    def feed(self, rows: Rows) -> list[Output]:
        """One sub-batch: the outputs that leave at once. Begins an epoch if none is open."""
        if self._sealed:
            raise EpochError(f"epoch {self._epoch} is sealed: commit() or abort() it before feeding more rows")
        try:
            batch = self._batch(rows)
        except Exception:
            if self._open:  # as on a cluster, where a row that is refused fails the epoch
                self.abort()
            raise
        runtime = self._begin()
        assert self._applied is not None
        combining = self._applied.combining()
        return self._guarded(lambda: runtime.apply(combining.rows(batch)) if batch.num_rows else None)

    def seal(self) -> list[Output]:
        """The end of the epoch's rows: the outputs that leave there."""
        runtime = self._opened()
        if self._sealed:
            return []
        runtime.allow = partial(self._allowance.check, self._epoch, runtime)
        outputs = self._guarded(runtime.seal)
        self._sealed = True
        return outputs

    def commit(self) -> list[Output]:
        """The epoch counts; seals it first, and gives the outputs of that, if it was not sealed."""
        outputs = self.seal()
        self._opened().commit()
        self._open = self._sealed = False
        return outputs

    def abort(self) -> None:
        """The epoch does not count: state is as before it. The next epoch has the same number, as on Spark."""
        self._opened().abort()
        self._open = self._sealed = False
        self._epoch = Epoch(self._epoch - 1)

    def run_epoch(self, *batches: Rows) -> list[Output]:
        """Feed the batches, seal and commit; all outputs in order."""
        outputs = [row for rows in batches for row in self.feed(rows)]
        if not self._open:
            self._batch([])
            self._begin()
        return outputs + self.commit()

    def _run_quiet_epoch(self) -> list[Output]:
        return self.run_epoch()

    def _check_between_epochs(self) -> None:
        if self._open:
            raise EpochError(f"epoch {self._epoch} is open, and has its time: commit() or abort() it first")

    @contextmanager
    def epoch(self) -> Iterator[OperatorHarness]:
        """An epoch that is committed at the end of the block, and rolled back if the block raises."""
        try:
            yield self
        except BaseException:
            if self._open:
                self.abort()
            raise
        if self._open:
            self.commit()

    # --- seeing it ---

    @property
    def state(self) -> CommittedState:
        """The committed state by key: ``state["a"]``; ``state("a")`` is None if the key has none."""
        return CommittedState(self._read, self.snapshot)

    def _read(self, key: Any) -> dict[str, Any] | None:
        if self._runtime is None or self._format is None:
            return None
        return self._runtime.read(self._format.group(key), canonical_key(key))

    def snapshot(self) -> dict[Any, dict[str, Any]]:
        """The committed state of every key, as a dict."""
        return {} if self._runtime is None else dict(self._runtime.snapshot())

    def changes(self) -> list[Changes]:
        """What the open epoch has changed so far: what a backup would write."""
        return list(self._opened().changes())

    @property
    def current_epoch(self) -> int:
        """The number of the open epoch, or of the last one."""
        return self._epoch

    def close(self) -> None:
        """Let the operator release what it made in ``setup``. Raises what that raises; a worker logs it."""
        failed = None if self._runtime is None else self._runtime.close()
        if failed is not None:
            raise failed

    def __repr__(self) -> str:
        return f"OperatorHarness({self._subject.name}); limits: {'; '.join(LIMITS)}"

    # --- steps ---

    def _batch(self, rows: Rows) -> pa.RecordBatch:
        """The rows as a feeder gets them; the first ones say what the columns are, if nobody did."""
        form = self._format or InputFormat.inferred(rows, self._key, self._key_groups)
        batch = form.rows(rows)
        if self._format is None:
            self._bind(form)
        return batch

    def _bind(self, form: InputFormat) -> None:
        self._applied = self._subject.apply(form)
        self._runtime = self._applied.deployment.start(WorkerId(0))
        self._format = form

    def _begin(self) -> Runtime:
        assert self._runtime is not None
        if not self._open:
            self._epoch = Epoch(self._epoch + 1)
            self._allowance.begin()
            self._runtime.begin(self._epoch, [KeyGroup(group) for group in range(self._key_groups)])
            self._runtime.set_time(self._begin_time())
            self._open = True
        return self._runtime

    def _opened(self) -> Runtime:
        if self._runtime is None or not self._open:
            raise EpochError("no epoch is open: feed rows first")
        return self._runtime

    def _guarded(self, call: Callable[[], pa.RecordBatch | None]) -> list[Output]:
        """An error of operator code ends the epoch, as it does on a cluster."""
        try:
            batch = call()
            self._allowance.take(self._epoch, self._opened(), batch)
        except Exception:
            self.abort()
            raise
        return [] if batch is None else as_rows(batch)


def as_rows(batch: pa.RecordBatch) -> list[Output]:
    """A batch as a list of dicts."""
    if len(set(batch.schema.names)) != batch.num_columns:
        raise SchemaError(f"the output has columns of the same name: {', '.join(batch.schema.names)}")
    rows: list[Output] = batch.to_pylist()
    return rows
