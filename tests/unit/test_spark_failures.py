"""Errors of ours in what Spark says of a failed query, and which Python Spark's tasks run with."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from tests.patience import PATIENCE

import bedload as bl
from bedload.core.errors import (
    ClusterStopped,
    DefinitionError,
    EpochAborted,
    OperatorFailed,
    StoreError,
    Unanswered,
    WorkerLost,
    WorkerUnreachable,
    WrongPython,
)
from bedload.core.ids import Epoch, OperatorName, WorkerId
from bedload.spark.failures import first_line, is_final, ours
from bedload.spark.interpreter import _said, _wrong, check_python, use_own_python
from bedload.worker.failures import operator_failed

SPARK = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure: Task \
0 in stage 3.0 failed 1 times, most recent failure: Lost task 0.0 in stage 3.0 (TID 3) (host executor driver): \
org.apache.spark.api.python.PythonException: bedload.core.errors.{0}: process of operator Trip, key 'a' raised \
ZeroDivisionError: division by zero
Traceback (most recent call last):
  File "mine.py", line 7, in process
    return key, 1 / 0
ZeroDivisionError: division by zero

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace: SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 1, runId = 2]"""

SHORT = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_EXCEPTION] An exception was thrown from \
the Python worker: bedload.core.errors.{0}
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ==="""

OWN = """process of operator Trip, key 'a' raised ZeroDivisionError: division by zero
Traceback (most recent call last):
  File "mine.py", line 7, in process
    return key, 1 / 0
ZeroDivisionError: division by zero"""


@pytest.mark.parametrize("spark", [SPARK.format("OperatorFailed"), SHORT.format(f"OperatorFailed: {OWN}")])
def test_of_a_failed_query_our_error_is_left_with_the_users_own_lines(spark: str) -> None:
    found = ours(RuntimeError(spark))
    assert isinstance(found, OperatorFailed)
    assert found.message == OWN
    assert found.__notes__ == ["(What Spark says of it: query.exception().)"]
    assert (
        first_line(found)
        == "OperatorFailed: process of operator Trip, key 'a' raised ZeroDivisionError: division by zero"
    )


def test_what_is_no_error_of_ours_stays_as_it_is() -> None:
    for error in (RuntimeError("disk full\nmore"), RuntimeError("bedload.core.errors.Unheard: of"), WorkerLost("gone")):
        assert ours(error) is error
    assert first_line(RuntimeError("disk full\nmore")) == "RuntimeError: disk full"
    assert first_line(ValueError()) == "ValueError: ValueError"


def test_which_failures_would_come_again() -> None:
    assert is_final(RuntimeError(SPARK.format("OperatorFailed")))
    assert not is_final(RuntimeError(SPARK.format("StoreError")))
    assert not is_final(StoreError("away"))


def spark_says(fail: Callable[[], Any]) -> RuntimeError:
    """A failure, as Spark tells it: Python's whole traceback, with Java's frames behind."""
    try:
        fail()
    except Exception:
        said = traceback.format_exc()
    return RuntimeError(f"Job aborted: org.apache.spark.api.python.PythonException: {said}\n\tat org.apache.spark\n")


def test_of_errors_that_came_of_each_other_the_last_one_counts() -> None:
    def stopped() -> None:
        try:
            try:
                raise ConnectionRefusedError("nobody there")
            except OSError as error:
                raise WorkerUnreachable("no connection\nto 127.0.0.1") from error
        except WorkerUnreachable as error:
            raise ClusterStopped(f"the cluster was stopped ({error.message})") from error

    def lost() -> None:
        try:
            stopped()
        except ClusterStopped:
            raise WorkerLost("worker 3 is gone") from None

    def aborted() -> None:
        try:
            stopped()
        except ClusterStopped:
            raise EpochAborted("rolled back")  # noqa: B904 - while the other is handled

    def of_the_users() -> None:
        try:
            stopped()
        except ClusterStopped as error:
            raise ValueError("my sink is closed") from error

    for fail, kind, text in (
        (stopped, ClusterStopped, "the cluster was stopped (no connection\nto 127.0.0.1)"),
        (lost, WorkerLost, "worker 3 is gone"),
        (aborted, EpochAborted, "rolled back"),
        (of_the_users, ClusterStopped, "the cluster was stopped (no connection\nto 127.0.0.1)"),
    ):
        failure = spark_says(fail)
        found = ours(failure)
        assert (type(found), str(found)) == (kind, text)
        assert is_final(failure) is (kind is ClusterStopped)


def test_errors_within_the_users_own_traceback_are_not_what_the_query_failed_with() -> None:
    def process() -> None:
        try:
            raise StoreError("away")
        except StoreError as error:
            raise ValueError("no model") from error

    def fail() -> None:
        try:
            process()
        except ValueError as error:
            told = operator_failed(OperatorName("Trip"), "process", error, worker=WorkerId(0), epoch=Epoch(3), key="a")
        try:
            raise Unanswered("no answer")
        except Unanswered as error:
            raise told from error

    failure = spark_says(fail)
    found = ours(failure)
    assert isinstance(found, OperatorFailed)
    assert is_final(failure)
    assert str(found).startswith("process of operator Trip, key 'a', epoch 3, worker 0 raised ValueError: no model\n")
    assert "StoreError: away" in str(found)
    assert str(found).endswith("ValueError: no model")


def test_an_error_without_a_text_is_known() -> None:
    failure = RuntimeError("PythonException: bedload.core.errors.ClusterStopped\n\tat java")
    assert isinstance(ours(failure), ClusterStopped)
    assert is_final(failure)


# --- Python ---


class Context:
    """A Spark context whose job ends as a test says."""

    pythonExec = "python3"

    def __init__(self, outcome: Any) -> None:
        self._outcome = outcome
        self.tasks = 0

    @property
    def _jsc(self) -> Any:
        return self

    def sc(self) -> Any:
        return self

    def setJobGroup(self, *_: object) -> None:
        pass

    def getExecutorMemoryStatus(self) -> Any:
        return self

    def size(self) -> int:
        return 4

    def parallelize(self, _: Any, tasks: int) -> Any:
        self.tasks = tasks
        return self

    def mapPartitions(self, function: Any) -> Any:
        if self._outcome is None:
            self._outcome = list(function([0]))
        return self

    def collect(self) -> Any:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


def test_on_its_own_machine_tasks_run_with_the_drivers_python() -> None:
    context = Context([])
    use_own_python(context)  # type: ignore[arg-type]
    assert context.pythonExec == sys.executable


def test_each_executor_is_asked_for_its_modules() -> None:
    context = Context(None)
    check_python(context, PATIENCE)  # type: ignore[arg-type]
    assert context.tasks == 3


def test_a_python_without_a_module_is_named_with_what_to_set() -> None:
    lacks = Context(
        [("/good (Python 3.11)", ""), ("/bad (Python 3.11)", "ModuleNotFoundError: No module named 'pyarrow'")]
    )
    with pytest.raises(WrongPython, match="PYSPARK_PYTHON") as caught:
        check_python(lacks, PATIENCE)  # type: ignore[arg-type]
    text = caught.value.message
    assert text.startswith("Spark's tasks run with /bad (Python 3.11), which lacks pyarrow (ModuleNotFoundError: ")
    assert f"The driver's own is {sys.executable}" in text
    assert "spark.pyspark.python" in text
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("spark", "says"),
    [
        (
            "Job aborted: org.apache.spark.SparkException:\nError from python worker:\n  Traceback\n"
            "  ModuleNotFoundError: No module named 'pandas'\nPYTHONPATH was: x\n\tat java",
            "lacks pandas (ModuleNotFoundError: No module named 'pandas')",
        ),
        (
            "x PythonException: Traceback\npyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in "
            "worker has different version: 3.9 than that in driver: 3.11\nmore",
            "cannot run them (PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: ",
        ),
        (
            'java.io.IOException: Cannot run program "nope": error=2, No such file',
            "cannot run them (IOException: Cannot run program",
        ),
        ("who knows", "cannot run them (who knows)"),
    ],
)
def test_a_python_that_cannot_run_a_task_at_all_is_told_in_one_line(spark: str, says: str) -> None:
    text = _wrong("python3", _said(RuntimeError(spark))).message
    assert says in text
    assert "\n" not in text


# --- attach ---


def test_attach_says_what_it_was_given_instead_of_a_session() -> None:
    with pytest.raises(
        DefinitionError, match=r"attach\(None\): this is not a SparkSession; make one with SparkSession"
    ):
        bl.attach(None)  # type: ignore[arg-type]


def test_a_text_with_much_space_in_it_is_read_in_no_time() -> None:
    text = "a" + "\n " * 500_000 + "b"
    assert str(ours(RuntimeError(f"bedload.core.errors.StoreError: {text} \n SQLSTATE: 38000"))) == text
