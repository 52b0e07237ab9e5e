"""Bars for benchmarks: groups side by side, one colour per system, on a log scale.

Invariants: a system has the same colour in every plot; what was not measured is a gap with a dash, never a bar of
zero height; the file is written at once, without a display.

Matplotlib is asked for only when something is drawn: measuring needs none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLOURS = ("#2f6f9f", "#e08e2b", "#7a7a7a", "#5a9e6f", "#a34f72", "#b5a642")
INK, FAINT = "#333333", "#dddddd"
DASH = "–"  # noqa: RUF001  a dash reads as "nothing here"


class MissingPlots(Exception):
    """Matplotlib is not installed."""


@dataclass(frozen=True)
class Panel:
    """One set of bars: for each system, a value (or none) for each group."""

    title: str
    groups: Sequence[str]
    bars: Mapping[str, Sequence[float | None]]
    unit: str


def draw(panels: Sequence[Panel], path: Path, title: str) -> Path:
    """Draw panels below one another into a PNG file."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingPlots("pip install matplotlib") from error
    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import FuncFormatter, NullFormatter

    height = 0.6 + 3.1 * len(panels)
    systems = list(dict.fromkeys(name for panel in panels for name in panel.bars))
    style: dict[Any, Any] = {"font.size": 10, "font.family": "DejaVu Sans", "text.color": INK, "axes.labelcolor": INK}
    with mpl.rc_context({**style, "xtick.color": INK, "ytick.color": INK, "axes.edgecolor": "#999999"}):
        figure, all_axes = pyplot.subplots(len(panels), 1, figsize=(10, height), squeeze=False, facecolor="white")
        for axes, panel in zip(all_axes[:, 0], panels, strict=True):
            width = 0.8 / len(systems)
            measured = [v for values in panel.bars.values() for v in values if v]
            axes.set_yscale("log")
            if measured:
                axes.set_ylim(min(measured) / 2.5, max(measured) * 3)
            for number, system in enumerate(systems):
                values = panel.bars.get(system, [None] * len(panel.groups))
                for group, value in enumerate(values):
                    x = group + (number - (len(systems) - 1) / 2) * width
                    if not value:
                        axes.annotate(
                            DASH, (x, 0), xycoords=("data", "axes fraction"), ha="center", va="bottom", color="#888888"
                        )
                        continue
                    axes.bar(x, value, width * 0.92, color=COLOURS[number % len(COLOURS)], zorder=2)
                    axes.annotate(
                        short(value),
                        (x, value),
                        ha="center",
                        va="bottom",
                        fontsize=7,
                        xytext=(0, 1.5),
                        textcoords="offset points",
                    )
            axes.set_xticks(range(len(panel.groups)), panel.groups)
            axes.set_xlim(-0.55, len(panel.groups) - 0.45)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.grid(axis="y", color=FAINT, zorder=0)
            axes.tick_params(which="both", length=0)
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.set_ylabel(panel.unit)
            axes.set_title(panel.title, loc="left", fontsize=10)
        handles = [Rectangle((0, 0), 1, 1, color=COLOURS[number % len(COLOURS)]) for number in range(len(systems))]
        figure.suptitle(title, x=0.01, y=0.995, ha="left", va="top", fontsize=12, fontweight="bold")
        figure.legend(handles, systems, loc="upper right", ncols=len(systems), frameon=False)
        figure.subplots_adjust(left=0.07, right=0.99, bottom=0.55 / height, top=1 - 0.75 / height, hspace=0.42)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
        pyplot.close(figure)
    return path


def short(value: float) -> str:
    """A number in at most five characters: 950, 1.2k, 35k, 1.1M."""
    for unit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            scaled = value / unit
            return f"{scaled:.0f}{suffix}" if scaled >= 9.95 or scaled == int(scaled) else f"{scaled:.1f}{suffix}"
    return f"{value:.0f}" if value >= 9.95 or value == int(value) else f"{value:.1f}"
