"""Compile the kernels ahead of time: ``python -m bedload.compile``, as the user that may write to the installation.

Columns and aggregates run on kernels that Numba compiles when they are first used, and keeps (see
:mod:`bedload.store.columns.compiling`). That first use costs a query some ten seconds on two cores. Run this where
Bedload is installed, in the build of an image, say: what it makes lies beside the modules, and is used from there even
if they cannot be written to any more. It holds for this processor, Python and Numba.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal

import pyarrow as pa

from bedload.core.epoch import EpochTime
from bedload.core.errors import DefinitionError, SchemaError
from bedload.core.ids import Epoch, KeyGroup, OperatorName, WorkerId
from bedload.operators import aggregates as agg
from bedload.operators.aggregates import Aggregates, Function
from bedload.protocol.split import with_groups
from bedload.store.columns import warm_up
from bedload.worker.column_runtime import ColumnDeployment

_INPUT = pa.RecordBatch.from_pydict(
    {
        "key": pa.array(["a", "a", "a"]),
        "bool": pa.array([True, None, False]),
        "int": pa.array([1, None, 2], pa.int64()),
        "double": pa.array([1.5, None, 2.5]),
        "text": pa.array(["a", None, "b"]),
        "decimal": pa.array([Decimal("1.50"), None, Decimal("2.50")]),
        "long_decimal": pa.array([Decimal("1.50"), None, Decimal("2.50")], pa.decimal128(38, 2)),
        "date": pa.array([date(2000, 1, 1), None, date(2000, 1, 2)]),
        "instant": pa.array([1, None, 2], pa.timestamp("us", "UTC")),
    }
)
_OF_ONE = (agg.count, agg.sum, agg.mean, agg.min, agg.max, agg.var, agg.first, agg.last, agg.any, agg.all)
_OF_TWO = (agg.arg_min, agg.arg_max)


def compile_all() -> int:
    """Compile every kernel for every type that it is used with, or find it compiled; how many aggregates were tried."""
    warm_up()
    functions = dict(_functions())
    ahead = {name: it for name, it in functions.items() if _logic({name: it}).mergeable}
    for some in (functions, ahead):
        logic = _logic(some)
        runtime = ColumnDeployment(OperatorName("compile"), logic, (0,), (pa.string(),), 1).start(WorkerId(0))
        runtime.begin(Epoch(0), [KeyGroup(0)])
        runtime.set_time(EpochTime())
        combined = logic.partial(_INPUT) if logic.mergeable else None
        runtime.apply(with_groups(_INPUT if combined is None else combined, (0,), 1))
        runtime.seal()
        runtime.commit()
    return len(functions)


def _logic(functions: Mapping[str, Function]) -> Aggregates:
    return Aggregates(functions, _INPUT.schema, (0,), ("key",))


def _functions() -> Iterator[tuple[str, Function]]:
    columns = _INPUT.schema.names[1:]
    tried = [function(column) for function in _OF_ONE for column in columns]
    tried += [function("text", column) for function in _OF_TWO for column in columns]
    for number, function in enumerate([agg.count(), *tried]):
        try:
            _logic({"one": function})
        except (DefinitionError, SchemaError):
            continue  # there is no such aggregate of this type
        yield f"a{number}", function


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bedload.compile", description=__doc__)
    parser.parse_args(arguments)
    began = time.monotonic()
    print("compiling the kernels of columns and aggregates ...", flush=True)
    tried = compile_all()
    print(f"done: {tried} aggregates, {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
