"""The plots of the scale benchmark: one for each question, figures over the number of keys.

Invariants: a system has the same colour in every plot; what was not measured is missing, never zero; a plot with
nothing to show is not written. Matplotlib is asked for only here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.plots import COLOURS, FAINT, INK, MissingPlots, short
from bench.report import Result
from bench.scale_plan import SYSTEMS, by_size

Points = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Line:
    """A figure, how it is called beside others, and how its line looks."""

    figure: str
    name: str = ""
    style: str = "o-"


@dataclass(frozen=True)
class Question:
    """One plot."""

    name: str
    title: str
    unit: str
    lines: tuple[Line, ...]
    limit: float | None = None


QUESTIONS = (
    Question("rows", "Rows per second", "rows/s", (Line("rows_per_s"),)),
    Question("memory", "Memory of the workers for a key", "bytes", (Line("memory_per_key"),)),
    Question(
        "epochs", "How long an epoch takes", "ms", (Line("epoch_ms_p50", "p50"), Line("epoch_ms_p99", "p99", "^:"))
    ),
    Question("seal", "Seal of an epoch (Spark: commit of the state store)", "ms", (Line("seal_ms"),)),
    Question("bytes", "Bytes written for an epoch", "bytes", (Line("bytes_per_epoch"),)),
    Question(
        "snapshot",
        "Snapshot",
        "s",
        (
            Line("snapshot_s", "all, idle"),
            Line("snapshot_beside_s", "beside the query", "^:"),
            Line("snapshot_again_s", "few changes, idle", "s--"),
        ),
    ),
    Question("restore", "Restore", "s", (Line("restore_s", "all keys"), Line("raw_read_s", "raw read", "^:"))),
    Question("move", "Rescale from 2 to 4 workers, until all is moved", "s", (Line("move_s"),)),
    Question(
        "longest-epoch",
        "The longest epoch",
        "ms",
        (Line("move_epoch_ms_longest", "in a move"), Line("no_move_epoch_ms_longest", "no_move", "^:")),
    ),
    Question("slice", "The longest slice of a move", "ms", (Line("slice_ms_longest"),), 20.0),
)


def points_of(results: Sequence[Result], question: Question) -> Mapping[tuple[str, Line], Points]:
    """What there is to draw: for each system and line, figures by the number of keys."""
    found = {}
    for system in SYSTEMS:
        for line in question.lines:
            sizes = by_size(results, system)
            points = [(keys, figures[line.figure]) for keys, figures in sizes.items() if figures.get(line.figure)]
            if points:
                found[system, line] = points
    return found


def write_plots(results: Sequence[Result], place: Path) -> list[Path]:
    """Draw what was measured; the files."""
    place.mkdir(parents=True, exist_ok=True)
    drawn = []
    for question in QUESTIONS:
        lines = points_of(results, question)
        if lines:
            drawn.append(_draw(question, lines, place / f"scale-{question.name}.png"))
    return drawn


def _draw(question: Question, lines: Mapping[tuple[str, Line], Points], path: Path) -> Path:
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingPlots("pip install matplotlib") from error
    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, NullFormatter

    colours = dict(zip(SYSTEMS, COLOURS, strict=False))
    with mpl.rc_context({"font.size": 9, "font.family": "DejaVu Sans", "text.color": INK, "axes.labelcolor": INK}):
        figure, axes = pyplot.subplots(figsize=(7, 3.6), facecolor="white")
        for (system, line), points in lines.items():
            name = SYSTEMS[system] + (f", {line.name}" if line.name else "")
            axes.plot(*zip(*points, strict=True), line.style, color=colours[system], label=name, zorder=3)
        if question.limit is not None:
            axes.axhline(question.limit, color="#c0392b", linewidth=0.8, linestyle="--", label="target", zorder=2)
        values = [value for points in lines.values() for _, value in points]
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(min(values) / 2, max([*values, question.limit or 0.0]) * 2)
        axes.set_xticks(sorted({keys for points in lines.values() for keys, _ in points}))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
            axis.set_minor_formatter(NullFormatter())
        axes.grid(color=FAINT, zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel("keys")
        axes.set_ylabel(question.unit)
        axes.set_title(question.title, loc="left", fontsize=11, fontweight="bold")
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        figure.savefig(path, dpi=110, bbox_inches="tight")
        pyplot.close(figure)
    return path
