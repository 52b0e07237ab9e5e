"""A processor as bytes: what Spark's tasks know by a number goes along."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from pyspark import Broadcast

from bedload.spark.drop_in.shipped import shipped


class Names:
    def __init__(self, names: Any) -> None:
        self.names = names


def test_the_value_of_a_broadcast_variable_goes_along_and_is_unpickled_once(tmp_path: Path) -> None:
    (tmp_path / "value").write_bytes(pickle.dumps({"a": "Ann"}))
    there: Any = Broadcast(path=str(tmp_path / "value"))
    data = shipped((Names(there), lambda: there.value))
    (tmp_path / "value").unlink()
    (one, closed), (two, _) = pickle.loads(data), pickle.loads(data)
    assert one.names.value == closed() == {"a": "Ann"}
    assert isinstance(one.names, Broadcast)
    assert one.names.value is two.names.value
