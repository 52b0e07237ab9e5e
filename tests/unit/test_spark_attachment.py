"""What ``attach`` refuses before anything starts, whatever Spark there is."""

from __future__ import annotations

import re
from pathlib import Path

import pyspark
import pytest

import bedload as bl
from bedload.core.errors import DefinitionError
from bedload.spark.attachment import _local_dir


class Remote:
    """As a session of Spark Connect looks from here, where grpcio need not be installed."""


Remote.__module__ = "pyspark.sql.connect.session"


class Wrapped(Remote):
    """As vendors derive from it."""


@pytest.mark.parametrize("session", [Remote(), Wrapped()], ids=["Spark's", "a vendor's"])
def test_a_session_of_spark_connect_is_refused_with_what_works(session: object) -> None:
    with pytest.raises(DefinitionError, match="this is a Spark Connect session") as caught:
        bl.attach(session)  # type: ignore[arg-type]
    for advice in ("SparkSession.builder.master(...)", "spark-submit", "SPARK_REMOTE", 'spark.read.format("bedload")'):
        assert advice in caught.value.message


def test_spark_has_the_class_where_it_is_looked_for() -> None:
    source = Path(pyspark.__file__).parent / "sql" / "connect" / "session.py"
    assert re.search(r"^class SparkSession\b", source.read_text(), re.MULTILINE)


def test_what_is_no_session_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"attach\('local\[2\]'\): this is not a SparkSession; make one"):
        bl.attach("local[2]")  # type: ignore[arg-type]


def test_a_local_dir_is_looked_at_where_the_workers_are_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _local_dir(None, here=True) is None
    monkeypatch.chdir(tmp_path)
    Path("fast").mkdir()
    assert _local_dir("fast", here=True) == str(tmp_path / "fast"), "a worker may be in another folder"
    with pytest.raises(DefinitionError, match="local_dir='nowhere': it is not there, or cannot be written to"):
        _local_dir("nowhere", here=True)
    assert _local_dir("/on/the/executors", here=False) == "/on/the/executors"
