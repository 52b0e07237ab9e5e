"""One operator, no Spark: feed rows, look at outputs and state.

The harness runs the real :class:`~bedload.worker.runtime.Runtime` on one worker: the same calls of ``process`` and
``result``, the same tracked state, the same errors as on a cluster. What it leaves out is in
:data:`LIMITS`, which its ``repr`` prints, so that nobody takes a green test for more than it is.

Invariants: ``feed`` begins an epoch if none is open; ``commit`` seals it first if nobody did; reads show the
committed state only, as live reads do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from bedload.core.epoch import EpochTime
from bedload.core.errors import EpochError, SchemaError
from bedload.core.ids import Epoch, KeyGroup, WorkerId
from bedload.keys import DEFAULT_KEY_GROUPS, canonical_key, check_key_groups
from bedload.store import Changes
from bedload.testing.deploying import AnyOperator, Code
from bedload.testing.input import InputFormat, Rows, as_schema
from bedload.worker.allowance import Allowance
from bedload.worker.runtime import Runtime

LIMITS = (
    "one worker that owns all key groups",
    "no Spark: input and output types are Arrow's, and nothing checks that Spark has them",
    "no retries, no second actions and no lost workers: see InProcessCluster for those",
)

Output = dict[str, Any]


class OperatorHarness:
    """Runs an operator without Spark.

    ``operator``: the class of an ``Operator`` or a ``VectorOperator``, or one with its parameters
    (``Sessions(gap=30)``). ``schema``: the output's columns, as a pyarrow schema or a mapping of names to Arrow types.
    ``key``: the key column, or a list of them. ``input``: the input's columns in the same form as ``schema``; without
    it they are inferred from the first rows that are fed. ``key_groups``: how many. ``epoch_bytes``: as for ``attach``,
    but no limit if it is left out.

    ::

        harness = OperatorHarness(Trip, schema={"car": pa.string(), "n": pa.int64()}, key="car")
        assert harness.run_epoch([{"car": "a", "speed": 50.0}]) == [{"car": "a", "n": 1}]
        assert harness.state("a") == {"count": 1, "recent": [50.0]}

    ``now`` and ``watermark`` are what ``ctx.now`` and ``ctx.watermark`` say in the next epoch: set them as you like.

    Its limits: one worker; Arrow's types, not Spark's; no retries, second actions or lost workers.
    """

    def __init__(
        self,
        operator: AnyOperator,
        *,
        schema: pa.Schema | Mapping[str, pa.DataType],
        key: str | Sequence[str],
        input: pa.Schema | Mapping[str, pa.DataType] | None = None,  # noqa: A002 - the user's word for it
        key_groups: int = DEFAULT_KEY_GROUPS,
        epoch_bytes: int | None = None,
    ) -> None:
        check_key_groups(key_groups)
        self._code = Code(operator, as_schema(schema, "schema"))
        self._key = key
        self._key_groups = key_groups
        self._allowance = Allowance(self._code.name, WorkerId(0), epoch_bytes)
        self._runtime: Runtime | None = None
        self._format: InputFormat | None = None
        if input is not None:
            self._bind(InputFormat(as_schema(input, "input"), key, key_groups))
        self._epoch = Epoch(-1)
        self._open = False
        self._sealed = False
        self.now = 0
        self.watermark = 0

    # --- epochs ---

    def feed(self, rows: Rows) -> list[Output]:
        """One sub-batch: the outputs that leave at once. Begins an epoch if none is open."""
        runtime = self._begin(rows)
        if self._sealed:
            raise EpochError(f"epoch {self._epoch} is sealed: commit() or abort() it before feeding more rows")
        assert self._format is not None
        batch = self._format.batch(rows)
        if batch.num_rows == 0:
            return []
        return self._guarded(lambda: runtime.apply(batch))

    def seal(self) -> list[Output]:
        """The end of the epoch's rows: the outputs that leave there."""
        runtime = self._opened()
        if self._sealed:
            return []
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
            self._begin([])
        return outputs + self.commit()

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

    def state(self, key: Any) -> dict[str, Any] | None:
        """The committed state of a key; None if it has none. A composite key is a tuple."""
        if self._runtime is None or self._format is None:
            return None
        return self._runtime.read(self._format.group(key), canonical_key(key))

    def snapshot(self) -> dict[Any, dict[str, Any]]:
        """The committed state of every key."""
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
        return f"OperatorHarness({self._code.name}); limits: {'; '.join(LIMITS)}"

    # --- steps ---

    def _bind(self, form: InputFormat) -> None:
        self._format = form
        self._runtime = self._code.deployment(form).start(WorkerId(0))

    def _begin(self, rows: Rows) -> Runtime:
        if self._runtime is None:
            self._bind(InputFormat.inferred(rows, self._key, self._key_groups))
        assert self._runtime is not None
        if not self._open:
            self._epoch = Epoch(self._epoch + 1)
            self._allowance.begin()
            self._runtime.begin(self._epoch, [KeyGroup(group) for group in range(self._key_groups)])
            self._runtime.set_time(EpochTime(self.watermark, self.now))
            self._open = True
        return self._runtime

    def _opened(self) -> Runtime:
        if self._runtime is None or not self._open:
            raise EpochError("no epoch is open: feed rows first")
        return self._runtime

    def _guarded(self, call: Any) -> list[Output]:
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
