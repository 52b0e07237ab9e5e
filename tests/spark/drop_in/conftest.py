"""A session in which both engines run, and a cluster for Bedload's half."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import bedload as bl
from tests.spark.drop_in.engines import CONF


@pytest.fixture(scope="session")
def session(spark: SparkSession) -> SparkSession:
    """A session of its own: what it sets is not seen by other tests."""
    made = spark.newSession()
    for name, value in CONF.items():
        made.conf.set(name, value)
    return made


@pytest.fixture(scope="module")
def bedload(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[bl.Cluster]:
    """The session's cluster, which the drop-in finds by itself."""
    with bl.attach(session, workers=2, checkpoint=tmp_path_factory.mktemp("bedload")) as attached:
        yield attached
