"""What a cluster tells about itself."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from bedload.spark.table import Table


class Session:
    """Cannot be copied or pickled, as a Spark session cannot."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("there is no other")


@pytest.mark.parametrize("take", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["copy", "pickle"])
def test_a_table_can_be_kept_and_shipped_as_a_plain_list(take: Any) -> None:
    taken = take(Table(Session(), "a int", [{"a": 1}]))  # type: ignore[arg-type]
    assert taken == [{"a": 1}]
    assert type(taken) is list
