"""Random programs over the handle, with restarts and replays, give the same on both engines.

A few in every run; many with ``BEDLOAD_THOROUGH=20 make test ARGS="-k random_processors"``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql import SparkSession

import bedload as bl
from tests.spark.drop_in.engines import BEDLOAD, SPARK, Program, run
from tests.spark.drop_in.programs import programs
from tests.thorough import TIMES

pytestmark = pytest.mark.spark


@settings(
    max_examples=3 * TIMES,
    deadline=None,
    derandomize=TIMES == 1,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(program=programs())
def test_random_processors(program: Program, session: SparkSession, bedload: bl.Cluster) -> None:
    seen = {}
    for engine in (SPARK, BEDLOAD):
        with tempfile.TemporaryDirectory() as place:
            seen[engine] = run(session, engine, program, Path(place))
        found = seen[engine].error
        if found is not None:
            raise found
    assert sorted(seen[SPARK].epochs) == list(range(len(program.batches)))
    assert seen[BEDLOAD].by_key == seen[SPARK].by_key
