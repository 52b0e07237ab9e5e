"""Which Python Spark's tasks run with: on the driver's machine the driver's own, on a cluster one that is checked.

Without it a task fails over a missing module, after many lines of Java, when the first query runs.
"""

from __future__ import annotations

import itertools
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from bedload.core.errors import WrongPython

_log = logging.getLogger("bedload")
_NUMBERS = itertools.count(1)
_NEEDED = ("pyarrow", "pandas", "bedload.spark.tasks")
"""What tasks import: Spark for Arrow batches, and we for feeders and workers."""

_SAID = re.compile(r"\w*(?:Error|Exception): [^\n]*")
_LACKS = re.compile(r"No module named '?([\w.]+)")


def use_own_python(context: SparkContext) -> None:
    """Have tasks run with the driver's interpreter: they are on its machine."""
    # SUBTLE: else Spark runs PYSPARK_PYTHON, or "python3" from the PATH, which in a virtual environment that is not
    # activated is another Python, without our packages.
    if sys.executable:
        context.pythonExec = sys.executable


def check_python(context: SparkContext, seconds: float) -> None:
    """Raise :class:`WrongPython` unless the Python of the executors has what tasks need: a tiny task each finds out.

    If there is no executor, or it has no room for a task within so many seconds, nothing is found out.
    """
    executors = max(1, int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1)  # the driver is in it
    group = f"bedload-python-{next(_NUMBERS)}"
    answer: Future[list[tuple[str, str]]] = Future()

    def ask() -> None:
        try:
            # A job group belongs to the thread, so the user's own jobs are not in this one.
            context.setJobGroup(group, "Bedload looks at the Python of the executors", False)
            tasks = context.parallelize(range(executors), executors)
            answer.set_result(tasks.mapPartitions(_look(_NEEDED)).collect())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name=group, daemon=True).start()
    try:
        found = answer.result(seconds)
    except TimeoutError:
        _log.warning("no executor told within %g seconds which Python it has: it is not checked", seconds)
        return
    except (PySparkException, Py4JError) as error:
        raise _wrong(context.pythonExec, _said(error)) from None
    finally:
        if not answer.done():
            context.cancelJobGroup(group)
    for python, problem in found:
        if problem:
            raise _wrong(python, problem)


def _look(modules: tuple[str, ...]) -> Callable[[Iterable[int]], Iterable[tuple[str, str]]]:
    # A function within one is shipped by value: this module need not be there.
    def look(_: Iterable[int]) -> Iterable[tuple[str, str]]:
        import importlib
        import sys

        problem = ""
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception as error:
                problem = problem or f"{type(error).__name__}: {error}"
        return [(f"{sys.executable} (Python {sys.version.split()[0]})", problem)]

    return look


def _said(error: Exception) -> str:
    """The line of a failed job that says why."""
    text = str(error)
    lines = [it for it in _SAID.findall(text) if not it.startswith(("PythonException", "SparkException"))]
    lacks = [it for it in lines if _LACKS.search(it)]
    return next(iter(lacks or lines or text.strip().splitlines()), type(error).__name__)


def _wrong(python: str, problem: str) -> WrongPython:
    lacks = _LACKS.search(problem)
    what = f"lacks {lacks[1].split('.')[0]} ({problem})" if lacks else f"cannot run them ({problem})"
    return WrongPython(
        f"Spark's tasks run with {python}, which {what}. The driver's own is {sys.executable} "
        f"(Python {sys.version.split()[0]}). Before the Spark session is made, set PYSPARK_PYTHON, or "
        f"spark.pyspark.python with spark-submit, to a Python on the executors that has bedload and what it needs "
        f"(pip install bedload), or ship one (spark.archives)",
        python=python,
    )
