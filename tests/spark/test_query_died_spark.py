"""A query that Spark lets die without an error is noticed, where users wait for it and by ``cluster.run``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.apps import running

pytestmark = pytest.mark.spark


def test_a_query_that_died_over_the_text_of_an_error_is_noticed(tmp_path: Path) -> None:
    with running("dying", tmp_path) as app:
        plain = app.expect("plain")["error"]
        assert plain == "None", "Spark tells the error by now: docs/how-to/troubleshoot.md and failure_of have no use"
        waited = app.expect("waited")["message"]
        for said in ("ended in the middle of an epoch, and Spark has no error for it", "-Xss4m", "foreachBatch"):
            assert said in waited
        supervised = app.expect("run")
        assert supervised["message"].split(" ", 2)[2] == waited.split(" ", 2)[2]
        assert supervised["restarts"] == 1
        app.ends()
