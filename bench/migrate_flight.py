"""The bound for moving state: the same bytes as Arrow buffers over Flight on loopback, with no work at all.

Two processes: one sends record batches that it has already made, the other takes and drops them. Nothing is looked up,
encoded, installed or made durable.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from bench.migrate_plan import FIELD_COUNT

BATCH_BYTES = 1 << 20
ROUNDS = 5
READY_SECONDS = 30.0


def state_batches(total_bytes: float, seed: int = 7) -> Iterator[pa.RecordBatch]:
    """Keys, counts and fields as columns: batches of about a megabyte."""
    width = 8 * (2 + FIELD_COUNT)
    rows = BATCH_BYTES // width
    random = np.random.default_rng(seed)
    names = ["key", "n", *(f"x{i:02}" for i in range(FIELD_COUNT))]
    for first in range(0, round(total_bytes / width), rows):
        numbers = np.arange(first, first + rows)
        columns = [pa.array(numbers), pa.array(np.zeros(rows, np.int64))]
        columns += [pa.array(random.random(rows)) for _ in range(FIELD_COUNT)]
        yield pa.record_batch(columns, names)


def measure(state_mb: float, workdir: str) -> dict[str, Any]:
    """MB/s of Flight: the entry point of the isolated process."""
    from pyarrow import flight

    batches = list(state_batches(state_mb * 1e6))
    size = sum(batch.nbytes for batch in batches)
    address = Path(workdir) / "port"
    Path(workdir).mkdir(parents=True, exist_ok=True)
    server = subprocess.Popen([sys.executable, "-m", "bench.migrate_flight", str(address)])
    try:
        with flight.connect(f"grpc://127.0.0.1:{_port(address)}") as client:
            seconds = [_send(client, batches) for _ in range(ROUNDS + 1)][1:]
    finally:
        server.terminate()
        server.wait()
    return {"moved_mb": size / 1e6, "duration_s": median(seconds), "mb_per_s": size / 1e6 / median(seconds)}


def _send(client: Any, batches: list[pa.RecordBatch]) -> float:
    from pyarrow import flight

    began = time.perf_counter()
    writer, answers = client.do_put(flight.FlightDescriptor.for_path("state"), batches[0].schema)
    for batch in batches:
        writer.write_batch(batch)
    writer.done_writing()
    taken = int.from_bytes(answers.read().to_pybytes(), "big")
    writer.close()
    if taken != sum(batch.num_rows for batch in batches):
        raise RuntimeError(f"{taken} rows arrived")
    return time.perf_counter() - began


def _port(address: Path) -> int:
    deadline = time.monotonic() + READY_SECONDS
    while not address.exists():
        if time.monotonic() > deadline:
            raise TimeoutError("the Flight server did not start")
        time.sleep(0.05)
    return int(address.read_text(encoding="utf-8"))


def serve(address: Path) -> None:
    """Take batches and say how many rows came, until the process is ended."""
    from pyarrow import flight

    class Sink(flight.FlightServerBase):  # type: ignore[misc]
        def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            rows = sum(chunk.data.num_rows for chunk in reader)
            writer.write(pa.py_buffer(rows.to_bytes(8, "big")))

    server = Sink("grpc://127.0.0.1:0")
    partial = address.with_suffix(".partial")
    partial.write_text(str(server.port), encoding="utf-8")
    partial.rename(address)
    server.serve()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
