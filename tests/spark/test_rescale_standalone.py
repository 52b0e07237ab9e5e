"""Workers that are tasks of a real standalone cluster come and go while a query runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.apps import running
from tests.spark.standalone import standalone

pytestmark = pytest.mark.spark


def test_workers_in_tasks_are_added_removed_and_started_anew_while_the_query_runs(tmp_path: Path) -> None:
    with standalone(tmp_path) as cluster, running("rescaling", tmp_path / "app", cluster.master) as app:
        for workers in (3, 1, 2, 3, 2):
            assert sorted(map(int, app.expect("rescaled")["workers"])) == list(range(workers))
        assert (
            "4 workers and at least one feeder need 5 task slots, but Spark has 4." in app.expect("refused")["message"]
        )
        app.expect("done")
        app.ends()
