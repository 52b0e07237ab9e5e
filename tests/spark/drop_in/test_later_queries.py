"""Errors, batch DataFrames and restarts, on both engines; a file of their own, so that two processes share the work."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import bedload as bl
from tests.spark.drop_in.cases import LATER, Query
from tests.spark.drop_in.everything import QUERIES
from tests.spark.drop_in.test_queries import check_both

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("case", [it for it in QUERIES if it.section in LATER], ids=lambda case: case.name)
def test_a_query(case: Query, session: SparkSession, bedload: bl.Cluster) -> None:
    check_both(case, session)
