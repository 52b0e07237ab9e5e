"""Reading the running plan: the one place that touches Spark's internals.

A worker seals an epoch when every feeder of it is done, so it must know how many there are. Spark's
public API does not say; the physical plan of the running batch does. Feeders carry a mark in the name of
their Python function, which the plan node keeps, so an operator finds its own node among others, behind
unions and before a ``coalesce``.

Checked for Spark 4.3 by tests/spark/test_plan.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bedload.control.attempt import StageFacts
from bedload.control.inquiries import QueryFacts
from bedload.control.lull import Start
from bedload.core.epoch import EpochTime
from bedload.core.errors import DefinitionError, EpochAborted, ProtocolError
from bedload.core.ids import NO_EPOCH, DeploymentId, Epoch, QueryId, RunId
from bedload.spark.progress import BEAT, read_progress


def mark(deployment: DeploymentId, operator: str) -> str:
    """The name of the feeder function of a deployment, as it appears in Spark's plan."""
    return f"{_MARK}{deployment}_{''.join(c if c.isalnum() else '_' for c in operator)}"


_MARK = "bedload_"
NO_BEAT_YET = f'{{"{BEAT}":0}}'


class Plans:
    """Looks into the running queries of a Spark application."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._context: Any = spark.sparkContext._jsc.sc()
        self._active: Any = spark._jsparkSession.sharedState().activeStreamingQueries()
        self._seen: dict[QueryId, Any] = {}
        self._paths: dict[str, tuple[str, tuple[int, ...]]] = {}
        """For each mark the run whose plan it was last found in, and where."""

    def running(self) -> frozenset[QueryId]:
        """The queries that run now."""
        return frozenset(QueryId(str(key)) for key in self._active.keySet().toArray())

    def stage(self, query: QueryId, epoch: Epoch, name: str, stage: int) -> StageFacts:
        """What a running stage of an epoch is like, and how many partitions an operator has in it."""
        feeders, time = self._feeders(query, epoch, name)
        return StageFacts(feeders, self._shape(stage), time)

    def _feeders(self, query: QueryId, epoch: Epoch, name: str) -> tuple[int, EpochTime]:
        """How many partitions the operator has in the running epoch, and the epoch's time."""
        try:
            execution = self._execution(query)
            batch = execution.lastExecution()
            if batch is None or batch.currentBatchId() != epoch:
                raise EpochAborted(
                    f"query {query} is not at epoch {epoch} any more: it was stopped and started again, "
                    f"and this task is of the run before"
                )
            logged = batch.offsetSeqMetadata()
            before = batch.prevOffsetSeqMetadata()
            late = int(before.get().batchWatermarkMs()) if before.isDefined() else 0
            time = EpochTime(int(logged.batchWatermarkMs()), int(logged.batchTimestampMs()), late)
            plan, run = batch.executedPlan(), str(execution.runId().toString())
            # Every call to the JVM counts here, and the plans of a run have the same shape: look there first.
            known = self._paths.get(name)
            node = _at(plan, known[1]) if known is not None and known[0] == run else None
            if node is not None and _is_feeder(node, name):
                return int(node.execute().getNumPartitions()), time
            found = [(path, node) for path, node in _walk(plan) if _is_feeder(node, name)]
            if len(found) == 1:
                path, node = found[0]
                self._paths[name] = run, path
                return int(node.execute().getNumPartitions()), time
        except Py4JError as error:
            raise ProtocolError(f"cannot read the plan of query {query}: {error}") from error
        if not found:
            raise DefinitionError(
                f"the plan of query {query} does not contain the operator. Apply operators to streaming "
                f"DataFrames, not to the batch inside foreachBatch"
            )
        raise DefinitionError(
            f"the operator is {len(found)} times in the plan of query {query}: its output is used twice (a union "
            f"or join with itself), so each row would be applied {len(found)} times. Write the output to a sink "
            f"and read it from there, or give each application another name"
        )

    def _shape(self, stage: int) -> int:
        """How many partitions the RDD of a running stage has."""
        try:
            found = self._context.dagScheduler().stageIdToStage().get(stage)
            if found.isDefined():
                return int(found.get().rdd().getNumPartitions())
        except Py4JError as error:
            raise ProtocolError(f"cannot read stage {stage}: {error}") from error
        return -1

    def location(self, query: QueryId) -> str:
        """The checkpoint location of a running query."""
        try:
            return str(self._execution(query).resolvedCheckpointRoot())
        except Py4JError as error:
            raise ProtocolError(f"cannot read the checkpoint location of query {query}: {error}") from error

    def facts(self, query: QueryId, location: str = "", gap: tuple[Epoch, ...] = ()) -> QueryFacts:
        """Whether a query runs, what it has committed, and which recent epochs had a source without data.

        ``location`` is where a query that never ran here had its checkpoint; ``gap`` are the epochs that no feeder
        came for.
        """
        execution = self._active.get(self._jvm.java.util.UUID.fromString(query))
        active = execution is not None
        execution = execution if active else self._seen.get(query)
        if execution is None:
            committed, read = self._committed_at(location, query)
            return QueryFacts(False, committed, frozenset(), location, log_read=read)
        try:
            latest = execution.commitLog().getLatestBatchId()
            committed = Epoch(int(latest.get())) if latest.isDefined() else None
            events = [read_progress(str(progress.json())) for progress in execution.recentProgress()]
            quiet = frozenset(Epoch(event.batch_id) for event in events if event.quiet)
        except Py4JError as error:
            raise ProtocolError(f"cannot read the progress of query {query}: {error}") from error
        place = str(execution.resolvedCheckpointRoot())
        quiet |= self._quiet_at(place) if gap else set()  # the whole log: only if somebody asks
        quiet |= {
            epoch
            for epoch in gap
            if epoch not in quiet and (_fed_nothing(execution, epoch) or _read_nothing(execution, epoch))
        }
        return QueryFacts(active, committed, quiet, place, log_read=True)

    def fed_nothing(self, query: QueryId, epoch: Epoch) -> bool:
        """Whether the operators had no partition in an epoch that is over; False also if that is not known any more."""
        execution = self._active.get(self._jvm.java.util.UUID.fromString(query))
        return execution is not None and _fed_nothing(execution, epoch)

    def last_batch(self, query: StreamingQuery) -> tuple[int, bool]:
        """The last batch that Spark has committed for a query, and whether operators had partitions in it, for sure.

        It may have ended. -1: none, or it is not known.
        """
        try:
            execution: Any = query._jsq.streamingQuery()
            latest = execution.commitLog().getLatestBatchId()
            if not latest.isDefined():
                return -1, False
            return int(latest.get()), bool(_partitions(execution, Epoch(int(latest.get()))))
        except (Py4JError, AttributeError):
            return -1, False

    def start(self, query: QueryId) -> Start | None:
        """Where the run of a query begins that has not read its logs yet; None: that cannot be found out."""
        try:
            execution = self._execution(query)
            latest = execution.commitLog().getLatestBatchId()
            after = Epoch(int(latest.get())) if latest.isDefined() else NO_EPOCH
            return Start(query, RunId(str(execution.runId().toString())), after)
        except (Py4JError, EpochAborted):
            return None

    def watermark(self, query: QueryId) -> int:
        """The event-time watermark of the next batch of a query that runs, in milliseconds; 0: it has none."""
        execution = self._active.get(self._jvm.java.util.UUID.fromString(query))
        return 0 if execution is None else int(execution.watermarkTracker().currentWatermark())

    def add_beats(self, query: QueryId) -> bool:
        """Have a query that starts go on from a log of its that has no line for a beat; whether that was so.

        Spark refuses a query with another number of sources than its offset log has. The line that the last two epochs
        lack says that there was no beat yet. What else differs is for Spark to find.

        SUBTLE: Spark numbers sources by their place in the plan, and a source keeps what it has read under its number.
        With a new beat before it, it would look into the place of another one: files would be read twice, or not.
        """
        execution = self._active.get(self._jvm.java.util.UUID.fromString(query))
        leaves = execution.analyzedPlan().collectLeaves()
        streams = [leaf for leaf in map(leaves.apply, range(leaves.size())) if leaf.isStreaming()]
        beats = [_is_beat(leaf) for leaf in streams]
        root = str(execution.resolvedCheckpointRoot())
        try:
            last = sorted(self._logged(root, "offsets"))[-2:]
        except Py4JError:
            return False  # there is no log: it starts for the first time
        changed = [self._with_beats(root, epoch, beats) for epoch in last]
        return any(changed)

    def _with_beats(self, root: str, epoch: Epoch, beats: list[bool]) -> bool:
        """Put a line where one is missing for a beat; ``beats``: which sources are one. Whether any was missing."""
        version, metadata, *offsets = self._text(root, f"offsets/{epoch}").splitlines()
        rest, lines = list(offsets), []
        for is_beat in beats:
            there = bool(rest) and (BEAT in rest[0]) == is_beat
            if not there and not is_beat:
                return False  # another source is missing, too
            lines.append(rest.pop(0) if there else NO_BEAT_YET)
        if rest or version != "v1" or lines == offsets:
            return False
        new = next(at for at, line in enumerate(lines) if line != [*offsets, None][at])
        if not all(beats[new:]):
            raise DefinitionError(
                f"the query at {root} ran without a beat, and can have none: another of its sources comes after the "
                f"beat in the plan, and Spark would not find what that one has read. Apply the operator with "
                f"beat=False, or start the query anew, with another checkpoint location"
            )
        path = self._jvm.org.apache.hadoop.fs.Path(root, f"offsets/{epoch}")
        manager = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
        out = manager.create(path.getParent(), self._context.hadoopConfiguration()).createAtomic(path, True)
        out.write(bytearray("\n".join([version, metadata, *lines]).encode()))
        out.close()
        return True

    def _committed_at(self, location: str, query: QueryId) -> tuple[Epoch | None, bool]:
        """The last epoch in a query's commit log below a checkpoint location, and whether there is a log to be read."""
        try:
            # SUBTLE: another query may have started anew in the place of a checkpoint that was deleted. That its log
            # has no epoch says nothing about the one before.
            if not location or json.loads(self._text(location, "metadata")).get("id") != query:
                return None, False
            return max(self._logged(location, "commits"), default=None), True
        except (Py4JError, ValueError):
            return None, False

    def _quiet_at(self, location: str) -> frozenset[Epoch]:
        """The epochs in the offset log in which a source stayed where it was.

        The progress of a query ends with its driver; the log does not.
        """
        try:
            logged = sorted(self._logged(location, "offsets"))
            offsets = {epoch: self._offsets(location, epoch) for epoch in logged}
        except Py4JError:
            return frozenset()
        return frozenset(
            epoch
            for epoch in logged
            if any(
                now == before for now, before in zip(offsets[epoch], offsets.get(Epoch(epoch - 1), ()), strict=False)
            )
        )

    def _offsets(self, location: str, epoch: Epoch) -> list[str]:
        """The offset of each source as of an epoch, a line each after the version and the metadata: without beats.

        An epoch before the beats came has no lines for them.
        """
        return [line for line in self._text(location, f"offsets/{epoch}").splitlines()[2:] if BEAT not in line]

    def _text(self, location: str, name: str) -> str:
        """A file below a checkpoint location."""
        path = self._jvm.org.apache.hadoop.fs.Path(location, name)
        stream = path.getFileSystem(self._context.hadoopConfiguration()).open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _logged(self, location: str, log: str) -> list[Epoch]:
        """The epochs that a log of Spark's has below a checkpoint location."""
        if not location:
            return []
        path = self._jvm.org.apache.hadoop.fs.Path(location, log)
        files = path.getFileSystem(self._context.hadoopConfiguration()).listStatus(path)
        names = (str(file.getPath().getName()) for file in files)
        return [Epoch(int(name)) for name in names if name.isdigit()]

    def _execution(self, query: QueryId) -> Any:
        execution = self._active.get(self._jvm.java.util.UUID.fromString(query))
        if execution is None:
            raise EpochAborted(
                f"query {query} was stopped, or has ended, in the middle of an epoch. The epoch is rolled back, and "
                f"comes again when the query is started again"
            )
        # Kept after the query's end, to read its commit log when another query takes the state over.
        self._seen[query] = execution
        return execution


def keep_empty_partitions(spark: SparkSession) -> None:
    """Have every batch come to its operators, those without rows, too.

    SUBTLE: behind a shuffle, adaptive execution replaces a batch without rows by a plan without partitions. No feeder
    runs then, and nothing tells that from a batch that was never used.
    """
    known = [rule.strip() for rule in str(spark.conf.get(_EXCLUDED, "")).split(",") if rule.strip()]
    if _EMPTY_RULE not in known:
        spark.conf.set(_EXCLUDED, ",".join([*known, _EMPTY_RULE]))


_EXCLUDED = "spark.sql.adaptive.optimizer.excludedRules"
_EMPTY_RULE = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"


def _fed_nothing(execution: Any, epoch: Epoch) -> bool:
    """Whether the plan of an epoch had no partition for any feeder, for sure."""
    return _partitions(execution, epoch) == 0


def _partitions(execution: Any, epoch: Epoch) -> int | None:
    """The partitions for feeders in the plan of an epoch; None: not known. Spark keeps the last plan and this one."""
    try:
        context = execution.getLatestExecutionContext()
        if int(context.batchId()) != epoch:
            before = context.previousContext()
            if not before.isDefined() or int(before.get().batchId()) != epoch:
                return None
            context = before.get()
        batch = context.executionPlan()
        feeders = [] if batch is None else [node for _, node in _walk(batch.executedPlan()) if _is_feeder(node)]
        return sum(int(node.execute().getNumPartitions()) for node in feeders) if feeders else None
    except (Py4JError, AttributeError):
        return None


def _read_nothing(execution: Any, epoch: Epoch) -> bool:
    """Whether a source had only empty files in an epoch: Spark plans no partition for them, so no feeder comes.

    False also if that cannot be found out any more.
    """
    try:
        sources, log = execution.sources(), execution.offsetLog()
        logged, before = log.get(epoch), log.get(epoch - 1)
        for index in range(sources.size() if logged.isDefined() else 0):
            source = sources.apply(index)
            end = logged.get().offsets().apply(index)
            if source.getClass().getSimpleName() == "FileStreamSource" and end.isDefined():
                # The first epoch starts from nowhere: an empty option, as of a source without an offset.
                start = before.get().offsets().apply(index) if before.isDefined() else before
                files = source.getBatch(start, end.get()).queryExecution().analyzed().relation().location()
                # SUBTLE: a file that was removed since is not listed, and is no proof of anything.
                if files.sizeInBytes() == 0 and len(files.inputFiles()) == files.rootPaths().size():
                    return True
    except (Py4JError, AttributeError):
        return False
    return False


def _is_feeder(node: Any, name: str | None = None) -> bool:
    """Whether a node of a plan is the feeder of that name, or of any."""
    if node.nodeName() != "MapInArrow":
        return False
    found = str(node.func().name())
    return found == name if name is not None else found.startswith(_MARK)


def _is_beat(leaf: Any) -> bool:
    """Whether a source in the plan of a stream is a beat of ours."""
    return bool(leaf.getClass().getSimpleName() == "StreamingRelationV2" and leaf.table().name() == BEAT)


_INSIDE = -1
"""The step of a path into the plan that an adaptive node wraps."""


def _walk(node: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    yield path, node
    inside = _inside(node)
    if inside is not None:
        yield from _walk(inside, (*path, _INSIDE))
        return
    children = node.children()
    for index in range(children.size()):
        yield from _walk(children.apply(index), (*path, index))


def _at(node: Any, path: tuple[int, ...]) -> Any:
    """The node at the end of a path, or None if the plan has none there."""
    for step in path:
        if step == _INSIDE:
            node = _inside(node)
        else:
            children = node.children()
            node = children.apply(step) if step < children.size() else None
        if node is None:
            return None
    return node


def _inside(node: Any) -> Any:
    kind = node.getClass().getSimpleName()
    if kind == "AdaptiveSparkPlanExec":
        return node.executedPlan()
    return node.plan() if kind.endswith("QueryStageExec") else None
