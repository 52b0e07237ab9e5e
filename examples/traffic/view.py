"""A snapshot as a picture for a terminal, or as one line for a log.

Invariants: both are pure functions of the snapshot; the line is plain ASCII; the picture keeps its height
while the run goes on, so that it does not jump.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.traffic.measure import CarState, Overall, Snapshot

WIDTH = 80
BARS = "▁▂▃▄▅▆▇█"
BUSY_CELLS = 20


def sparkline(numbers: Sequence[float], top: float | None = None) -> str:
    """One block per number, as high as its share of the largest (or of ``top``)."""
    highest = max([*numbers, top or 0.0], default=0.0)
    if highest <= 0:
        return BARS[0] * len(numbers)
    return "".join(BARS[min(int(max(n, 0.0) / highest * len(BARS)), len(BARS) - 1)] for n in numbers)


def render(snapshot: Snapshot) -> RenderableType:
    """The live view."""
    title = f"[bold]Bedload[/bold] · traffic at {snapshot.target:,} rows/s"
    happened = Text(snapshot.event or " ", style="bold red")
    figures = [_figures(snapshot), Text(), _workers(snapshot), happened, _car(snapshot.car)]
    parts = [_progress(snapshot), Text(), *figures]
    return Panel(Group(*parts), title=title, title_align="left", width=WIDTH, padding=(1, 2), border_style="cyan")


def line(snapshot: Snapshot) -> str:
    """The same for a log: what changes, in one line."""
    parts = [
        f"{snapshot.rows}/{snapshot.total} rows",
        f"{snapshot.throughput:.0f} rows/s",
        f"{snapshot.epochs} epochs",
    ]
    if snapshot.latency is None:
        return f"{parts[0]} | waiting for the first epoch, for which Spark starts Python"
    parts.append(f"epoch {snapshot.latency.last:.2f} s (median {snapshot.latency.median:.2f})")
    parts += [f"worker {load.worker}: {load.keys} keys, {load.busy:.0%} busy" for load in snapshot.workers]
    if snapshot.car is not None:
        values, epoch = snapshot.car.values, snapshot.car.epoch
        parts.append(f"{snapshot.car.name}@{epoch}: n={values['count']} mean={_mean(values):.1f}")
    if snapshot.event:
        parts.append(snapshot.event)
    return " | ".join(parts)


def report(overall: Overall) -> str:
    """The summary at the end, in plain lines."""
    latency = overall.latency
    return "\n".join(
        [
            f"rows      {overall.rows:,} in {overall.seconds:.1f} s; "
            f"{overall.rows_per_second:,.0f} rows/s after epoch 0",
            f"epochs    {overall.epochs}; p50 {latency.median:.2f} s, p99 {latency.p99:.2f} s, "
            f"max {latency.max:.2f} s after epoch 0",
            f"epoch 0   {latency.first:.1f} s; it starts Python and compiles the plan",
            *(f"worker {load.worker}  {load.keys:,} keys, {load.busy:.0%} busy" for load in overall.workers),
        ]
    )


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", width=10)
    grid.add_column(no_wrap=True)
    return grid


def _progress(snapshot: Snapshot) -> RenderableType:
    row = Table.grid(padding=(0, 2))
    row.add_row(
        ProgressBar(total=snapshot.total, completed=snapshot.rows, width=40),
        Text(f"{snapshot.rows:,} of {snapshot.total:,} rows"),
    )
    return row


def _figures(snapshot: Snapshot) -> RenderableType:
    grid = _grid()
    grid.add_row("throughput", Text(f"{snapshot.throughput:,.0f} rows/s", style="bold green"))
    grid.add_row("", Text(sparkline(snapshot.history, snapshot.target) or " ", style="green"))
    latency = snapshot.latency
    if latency is None:
        grid.add_row("epoch", "waiting for the first, for which Spark starts Python")
    else:
        grid.add_row(
            "epoch",
            f"last {latency.last:.2f} s   median {latency.median:.2f} s   max {latency.max:.2f} s"
            f"   [dim]first {latency.first:.1f} s[/dim]",
        )
    grid.add_row("committed", f"{snapshot.epochs} epochs")
    return grid


def _workers(snapshot: Snapshot) -> RenderableType:
    grid = _grid()
    for load in snapshot.workers:
        cells = round(load.busy * BUSY_CELLS)
        figures = f" {load.busy:4.0%} busy   {load.keys:>7,} keys"
        bar = Text.assemble(("█" * cells, "magenta"), ("░" * (BUSY_CELLS - cells), "dim"), figures)
        grid.add_row(f"worker {load.worker}", bar)
    return grid


def _car(car: CarState | None) -> RenderableType:
    grid = _grid()
    if car is None:
        grid.add_row("car", "no committed state yet")
        for _ in range(3):
            grid.add_row("", "")
        return grid
    values = car.values
    seen = values["seen"]
    grid.add_row(
        Text(car.name, style="bold yellow"),
        f"{values['count']:,} reports, mean {_mean(values):.1f} km/h, top {values['top']:.1f}"
        f"   [dim]live at epoch {car.epoch}[/dim]",
    )
    grid.add_row("recent", Text(sparkline(list(values["recent"])), style="yellow"))
    grid.add_row("route", f"{' → '.join(values['route'])}   [dim]at {seen:%H:%M:%S}[/dim]" if seen else "")
    bands = ", ".join(f"{times:,} {band}" for band, times in sorted(values["bands"].items()))
    grid.add_row("segments", f"{len(values['segments'])} visited   [dim]{bands}[/dim]")
    return grid


def _mean(values: Mapping[str, Any]) -> float:
    return float(values["total"]) / max(int(values["count"]), 1)
