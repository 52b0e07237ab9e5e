"""A quiet local Spark session: for a demo that owns the terminal.

Invariants: nothing that the JVM prints reaches the terminal, it goes to a file; whatever fails while Spark
starts ends in an error that says what to do, with the end of that file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from bedload.core.errors import ClusterError

NO_JAVA = (
    "Spark needs Java 17 or newer, and there is none: {why}. Run `make setup`, which finds or installs one, and "
    "then `make demo`; or set JAVA_HOME to a Java that you have."
)


def missing_java(environment: Mapping[str, str]) -> str | None:
    """Why Spark would not find Java in this environment; None if it would."""
    home = environment.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        return None if os.access(java, os.X_OK) else f"JAVA_HOME is {home}, which has no bin/java"
    if shutil.which("java", path=environment.get("PATH", "")):
        return None
    return "JAVA_HOME is not set, and no java is on the PATH"


def start_session(folder: Path, cores: int) -> SparkSession:
    """A session on so many cores of this machine, with its files and its log in a folder."""
    why = missing_java(os.environ)
    if why is not None:
        raise ClusterError(NO_JAVA.format(why=why))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # What a shell may have set for another Spark would start that one instead.
    os.environ.pop("SPARK_HOME", None)
    log = folder / "spark.log"
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName("bedload demo")
    for name, setting in settings.items():
        builder = builder.config(name, setting)
    try:
        with _output_to(log):
            spark = builder.getOrCreate()
            spark.sparkContext.setLogLevel("ERROR")
    except PySparkRuntimeError as error:
        raise ClusterError(
            f"Spark did not start: {error}\n{tail(log)}\n{NO_JAVA.format(why='or not one that works')}"
        ) from error
    return spark


class Interrupt:
    """Ctrl-C as a question that is asked between calls to Spark, while in this context.

    Why: PySpark's own handler calls the JVM from inside the signal, which garbles a call that is under way
    and fills the terminal with traces. A second Ctrl-C ends whatever is going on at once.
    """

    def __init__(self) -> None:
        self._asked = False

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Raise KeyboardInterrupt if it was asked for."""
        if self._asked:
            raise KeyboardInterrupt

    def _note(self, *_: object) -> None:
        self._asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


def tail(log: Path, lines: int = 15) -> str:
    """The end of a log; empty if there is none."""
    if not log.exists():
        return ""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


@contextlib.contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Send what this process and the children it starts meanwhile print to a file.

    SUBTLE: children keep the file for good, and that is the purpose: the JVM starts in here. Python's
    own streams would not do, since children know only the descriptors.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in enumerate(saved, start=1):
            os.dup2(old, number)
            os.close(old)
        os.close(target)
