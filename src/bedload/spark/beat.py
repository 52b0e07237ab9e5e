"""The beat: epochs without rows, for what is due while the sources are quiet.

Spark runs no batch without new data for a plan that it takes as stateless. So the input of an operator that has timers
or a TTL is united with a source that has never a row, and has new data whenever something is due
(:mod:`bedload.control.lull`). With nothing due its offset stays, Spark leaves its branch out of the batch's plan, and
a quiet query runs no batch at all.

The source is in Java (``Beat.java``), since it is asked in each trigger: a source in Python would take a process of its
own for each run of a query. Spark's own compiler makes it when it is first needed.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession

from bedload.control.coordinator import Coordinator
from bedload.control.lull import Lull, Start
from bedload.core.durations import Duration, milliseconds
from bedload.core.errors import BedloadError, DefinitionError
from bedload.core.ids import OperatorName, QueryId
from bedload.spark.application import Application
from bedload.spark.driver import Driver
from bedload.spark.keeper import Keeper
from bedload.spark.plan import Plans
from bedload.state.timers import HIDDEN

_log = logging.getLogger("bedload")
_SETTLE_SECONDS, _PAUSE_SECONDS = 10.0, 0.005
_numbers = itertools.count()


class Beats:
    """Puts a beat into the plans of a cluster's operators."""

    def __init__(self, spark: SparkSession, driver: Driver, plans: Plans, keeper: Keeper | None) -> None:
        self._spark = spark
        self._driver = driver
        self._plans = plans
        self._keeper = keeper
        self._beating: set[OperatorName] = set()
        """Operators that were given one here."""

    def into(self, applied: Application, beat: Duration | bool | None) -> Application:
        """The same on rows that are united with a beat, if it is to have one; ``beat`` as the user gave it."""
        df, name = applied.keyed.df, applied.name
        timed = applied.deployment.timed
        if beat is False or (beat is None and not timed and not self._had_one(name)):
            return applied
        self._beating.add(name)
        silent = beat is None and not timed
        every = None if silent else milliseconds("1 second" if beat is None or beat is True else beat, "beat")
        session: Any = df.sparkSession
        asked = _Asked(self._driver, self._plans, name, every, lambda: self._beating.discard(name))
        made = _source(self._spark).load(session._jsparkSession, df._jdf.schema(), asked, f"{name} {next(_numbers)}")
        # SUBTLE: the beat comes last, so that the partitions of the rows keep their numbers.
        return replace(applied, keyed=replace(applied.keyed, df=df.union(DataFrame(made, session))))

    def _had_one(self, name: OperatorName) -> bool:
        """Whether an operator ever had a beat, as far as is known: by its timers, its TTL or the user's word here.

        SUBTLE: Spark refuses a query with another number of sources than before. So who loses the last timer keeps the
        beat, which is silent from then on.
        """
        if name in self._beating or self._keeper is None:
            return name in self._beating
        schemas = self._keeper.checkpoint.schemas(name)
        return any(variable.name.startswith(HIDDEN) for schema in schemas for variable in schema.variables)


def _source(spark: SparkSession) -> Any:
    """An instance of ``Beat.java``, which makes the others.

    SUBTLE: once for each JVM, since Py4J takes classes of one name for one class.
    """
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    with _compiling:
        if gateway not in _compiled:
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
            compiler.setTargetVersion(8)
            compiler.cook(resources.files("bedload.spark").joinpath("Beat.java").read_text(encoding="utf-8"))
            _compiled[gateway] = compiler.getClassLoader().loadClass("bedload.Beat").newInstance()
        return _compiled[gateway]


_compiling = threading.Lock()
_compiled: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


class _Asked:
    """What the source of one application asks; called from the JVM, on the thread of the query."""

    def __init__(
        self,
        driver: Driver,
        plans: Plans,
        operator: OperatorName,
        every: int | None,
        refused: Callable[[], None],
    ) -> None:
        """``every``: so many milliseconds after the last epoch; None: never. ``refused``: the query cannot have one."""
        self._driver = driver
        self._plans = plans
        self._operator = operator
        self._every = every
        self._refused = refused
        self._start: Start | None = None
        self._last, self._seen = 0, -1
        """When this run was last given an epoch, by the machine's clock, and with which watermark."""

    def accept(self, query: str) -> None:
        """A run of a query begins, and has not looked into its logs yet."""
        self._last, self._seen = 0, -1
        self._start = self._plans.start(QueryId(query))
        try:
            added = self._plans.add_beats(QueryId(query))
        except DefinitionError:
            self._refused()
            raise
        if added:
            _log.info("operator %s: its query goes on with a beat, without which it ran before", self._operator)

    def call(self, query: str, now: int, ends: bool) -> bool:
        """Whether there shall be an epoch, rows or not; ``ends``: the query ends if there is nothing to do."""
        if self._every is None:
            return False
        try:
            lull = self._lull()
            deadline = time.monotonic() + _SETTLE_SECONDS
            # SUBTLE: Spark is done with the epoch when the workers are, and the coordinator may not have heard of it.
            while ends and lull.waits and time.monotonic() < deadline:
                time.sleep(_PAUSE_SECONDS)
                lull = self._lull()
        except BedloadError:
            return True  # the cluster is over: the query hears of that as it would with rows, from its feeders
        since = now - max(self._last, lull.time.processing)
        # SUBTLE: a machine's clock may be set back, and nobody knows then how long it is since the last epoch.
        rested = since >= 1 if ends else not 0 <= since < self._every
        if not rested and not ends:
            return False  # with rows coming, there are enough epochs without ours
        watermark = self._plans.watermark(QueryId(query)) if lull.heeds_watermark else 0
        moved = watermark > self._seen and lull.due_by_watermark(watermark)
        if not moved and not (rested and lull.due_by_time(now)):
            return False
        self._last, self._seen = now, max(self._seen, watermark)
        return True

    def _lull(self) -> Lull:
        def look(coordinator: Coordinator) -> Lull:
            if coordinator.error is not None:
                raise coordinator.error
            return Lull.of(coordinator.operator(self._operator), self._start)

        return self._driver.call(look)

    class Java:
        """Py4J reads the interfaces from here."""

        implements: ClassVar = ["org.apache.spark.api.java.function.Function3", "java.util.function.Consumer"]
