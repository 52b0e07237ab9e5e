"""The plots of the state study: operations on counters, kinds of state, memory."""

from collections.abc import Sequence
from pathlib import Path

from bench.plots import Panel, draw
from bench.report import Result

EPOCHS = {
    "update_ns": "update\n(per row)",
    "commit_ns": "commit",
    "abort_ns": "abort",
    "read_ns": "read",
    "snapshot_read_ns": "read in\nan epoch",
    "read_many_ns": "read\nmany",
    "scan_ns": "scan",
    "repartition_ns": "repartition",
    "merge_ns": "merge",
}


def write_plots(results: Sequence[Result], place: Path) -> list[Path]:
    """Draw what was measured; the files."""
    keys = list(dict.fromkeys(result.params["keys"] for result in results))
    fewest = min(keys)
    counters = [_panel(f"{count:,} keys", results, EPOCHS, kind="value", size="small", keys=count) for count in keys]
    files = [draw(counters, place / "state-operations.png", "A counter per key: nanoseconds by operation")]
    shapes = list(dict.fromkeys((r.params["kind"], r.params["size"]) for r in results if r.params["keys"] == fewest))
    by_kind = [
        _by_shape(title, results, shapes, figure, fewest)
        for title, figure in (
            ("update and commit, per row", "epoch_ns"),
            ("repartition: extract, install, discard, per moved key", "repartition_ns"),
        )
    ]
    title = f"Kinds of state, {fewest:,} keys: nanoseconds"
    files.append(draw(by_kind, place / "state-kinds.png", title))
    memory = [_by_shape("", results, shapes, "bytes_per_key", fewest, "bytes")]
    files.append(draw(memory, place / "state-memory.png", f"Memory per key, {fewest:,} keys: bytes"))
    return files


def _panel(title: str, results: Sequence[Result], figures: dict[str, str], **params: object) -> Panel:
    bars = {
        result.system: [result.figures.get(figure) for figure in figures]
        for result in results
        if all(result.params[name] == value for name, value in params.items())
    }
    return Panel(title, list(figures.values()), bars, "ns")


def _by_shape(
    title: str, results: Sequence[Result], shapes: Sequence[tuple[str, str]], figure: str, keys: int, unit: str = "ns"
) -> Panel:
    bars: dict[str, list[float | None]] = {}
    for result in results:
        params = result.params
        if params["keys"] == keys:
            of_layout = bars.setdefault(result.system, [None] * len(shapes))
            of_layout[shapes.index((params["kind"], params["size"]))] = result.figures.get(figure)
    return Panel(title, [f"{kind}\n{size}" for kind, size in shapes], bars, unit)
