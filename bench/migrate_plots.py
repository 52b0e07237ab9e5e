"""The plots of the migration study: latency over time, stoppage, and the sweeps over size and skew.

Invariants: a strategy has the same colour in every plot; what was not measured is missing, never zero; a plot of which
there is nothing to show is not written. Matplotlib is asked for only here.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.migrate_plan import STRATEGIES
from bench.plots import FAINT, INK, MissingPlots, short
from bench.report import Result, Status

PALETTE = (
    "#9a9a9a",
    "#7a4f2b",
    "#a34f72",
    "#e08e2b",
    "#b5a642",
    "#5a9e6f",
    "#3aa6b9",
    "#2f6f9f",
    "#c0392b",
)
COLOURS = dict(zip(STRATEGIES, PALETTE, strict=True))
LEAST_MS = 0.1
"""What is shorter is drawn there: the scale is logarithmic."""
SHOWN_BEFORE = 4.0
SHOWN_AFTER = (8.0, 90.0)
"""Seconds after the request: at least, and at most."""

Setting = tuple[float, str, int]


def write_plots(results: Sequence[Result], series: Sequence[Mapping[str, Any]], place: Path) -> list[Path]:
    """Draw what was measured; the files."""
    place.mkdir(parents=True, exist_ok=True)
    moves = [r for r in results if r.params["part"] == "moves" and r.status is Status.OK]
    drawn = [
        _latency(moves, series, place / "migrate-latency.png"),
        _stoppage(moves, place / "migrate-stoppage.png"),
        _size(moves, place / "migrate-size.png"),
        _skew(moves, place / "migrate-skew.png"),
    ]
    return [path for path in drawn if path is not None]


def setting_of(params: Mapping[str, Any]) -> Setting:
    """What the strategies of one comparison share."""
    return params["state_mb"], params["skew"], params["value_bytes"]


def settings_of(results: Sequence[Result]) -> list[Setting]:
    """The settings, in the order they were measured."""
    return list(dict.fromkeys(setting_of(result.params) for result in results))


def fullest(results: Sequence[Result]) -> Setting | None:
    """The setting with most strategies; of those, the one with most state, and then the most even keys."""
    found = settings_of(results)
    if not found:
        return None

    def rank(setting: Setting) -> tuple[int, float, int]:
        return sum(setting_of(r.params) == setting for r in results), setting[0], -found.index(setting)

    return max(found, key=rank)


def shown_until(lines: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Until when a plot of latencies goes: a little after the last of them is near what it was before the request."""
    last = 0.0
    for points in lines:
        usual = max((ms for t, ms in points if t <= 0), default=0.0)
        last = max([last, *(t for t, ms in points if t > 0 and ms > 1.5 * usual)])
    return min(max(1.2 * last, SHOWN_AFTER[0]), SHOWN_AFTER[1])


def name_of(setting: Setting) -> str:
    """For a title."""
    state_mb, skew, value_bytes = setting
    return f"{state_mb:,.4g} MB, {skew} keys, {short(value_bytes)} bytes a value"


def _latency(results: Sequence[Result], series: Sequence[Mapping[str, Any]], path: Path) -> Path | None:
    """Small multiples: each strategy before a grey shadow of the others."""
    setting = fullest(results)
    lines = {
        item["strategy"]: [(t, ms) for t, ms in item["points"] if -SHOWN_BEFORE <= t <= SHOWN_AFTER[1] and ms > 0]
        for item in series
        if item["part"] == "moves" and setting_of(item) == setting
    }
    lines = {name: lines[name] for name in STRATEGIES if lines.get(name)}
    if setting is None or not lines:
        return None
    across = min(3, len(lines))
    down = -(-len(lines) // across)
    with _figure(down, across, (3.6 * across, 2.2 * down + 0.8), sharex=True, sharey=True) as (figure, all_axes):
        flat = [axes for row in all_axes for axes in row]
        for axes, name in zip(flat, lines, strict=False):
            for other, points in lines.items():
                if other != name:
                    axes.plot(*zip(*points, strict=True), color=FAINT, linewidth=0.8, zorder=1)
            axes.plot(*zip(*lines[name], strict=True), color=COLOURS[name], linewidth=1.6, zorder=3)
            axes.axvline(0, color="#888888", linewidth=0.8, linestyle=":", zorder=2)
            axes.set_yscale("log")
            axes.set_title(name, loc="left", fontsize=10, color=COLOURS[name])
            axes.grid(axis="y", color="#eeeeee", zorder=0)
        for axes in flat[len(lines) :]:
            axes.set_visible(False)
        flat[0].set_xlim(-SHOWN_BEFORE, shown_until(list(lines.values())))
        _plain_numbers(flat[0].yaxis, dense=True)
        for row in all_axes:
            row[0].set_ylabel("ms")
        for axes in all_axes[-1]:
            axes.set_xlabel("seconds since the request")
        title = f"Latency of each epoch's oldest row, from due to committed\n{name_of(setting)}"
        return _save(figure, title, path)


def _stoppage(results: Sequence[Result], path: Path) -> Path | None:
    """From the median to the 99th percentile to the longest, for each strategy."""
    found = [result for result in results if "stoppage_ms_p99" in result.figures]
    settings = settings_of(found)
    if not settings:
        return None
    names = [name for name in STRATEGIES if any(result.system == name for result in found)]
    across = 1 if len(settings) <= 3 else 3
    down = -(-len(settings) // across)
    extent = (8 if across == 1 else 4.6 * across, (0.28 * len(names) + 0.7) * down + 0.8)
    with _figure(down, across, extent, sharex=True, sharey=True) as (figure, all_axes):
        flat = [axes for row in all_axes for axes in row]
        for axes in flat[len(settings) :]:
            axes.set_visible(False)
        for axes, setting in zip(flat, settings, strict=False):
            for result in found:
                if setting_of(result.params) != setting:
                    continue
                at = len(names) - names.index(result.system)
                p50, p99, most = (
                    max(result.figures.get(f"stoppage_ms_{which}", 0.0), LEAST_MS) for which in ("p50", "p99", "max")
                )
                colour = COLOURS[result.system]
                axes.plot([p50, most], [at, at], color=colour, linewidth=2, alpha=0.4, zorder=2)
                for value, marker, size in ((p50, "o", 28), (p99, "D", 34), (most, "|", 90)):
                    axes.scatter([value], [at], marker=marker, s=size, color=colour, zorder=3)
                axes.annotate(
                    f"{short(p99)} ms" if p99 > LEAST_MS else "0",
                    (p99, at),
                    xytext=(0, 5),
                    textcoords="offset points",
                    ha="center",
                    fontsize=7,
                )
            axes.set_xscale("log")
            axes.set_yticks(range(len(names), 0, -1), names)
            axes.set_ylim(0.4, len(names) + 0.8)
            axes.set_title(name_of(setting), loc="left", fontsize=9)
            axes.grid(axis="x", color="#eeeeee", zorder=0)
        _plain_numbers(flat[0].xaxis)
        all_axes[-1][0].set_xlabel("ms (dot: median, diamond: 99th percentile, bar: longest)")
        return _save(figure, "Stoppage: how long rows of a moved key waited for its state", path)


def _size(results: Sequence[Result], path: Path) -> Path | None:
    """The 99th percentile of stoppage as the state grows."""
    skews = [result.params["skew"] for result in results]
    skew = max(dict.fromkeys(skews), key=skews.count, default="")
    lines = {
        name: sorted(
            (r.params["state_mb"], max(r.figures["stoppage_ms_p99"], LEAST_MS))
            for r in results
            if r.system == name and r.params["skew"] == skew and "stoppage_ms_p99" in r.figures
        )
        for name in STRATEGIES
    }
    if max((len({x for x, _ in points}) for points in lines.values()), default=0) < 2:
        return None
    with _figure(1, 1, (8, 4.6)) as (figure, ((axes,),)):
        for name, points in lines.items():
            if points:
                axes.plot(*zip(*points, strict=True), "o-", color=COLOURS[name], label=name, zorder=3)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(sorted({x for points in lines.values() for x, _ in points}))
        _plain_numbers(axes.xaxis)
        _plain_numbers(axes.yaxis)
        axes.grid(color="#eeeeee", zorder=0)
        axes.set_xlabel("MB of state")
        axes.set_ylabel("ms")
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        return _save(figure, f"99th percentile of stoppage by size of state, {skew} keys", path)


def _skew(results: Sequence[Result], path: Path) -> Path | None:
    """Time to stability by skew, for the size with most skews; of those, the largest."""
    skews_of: dict[float, set[str]] = {}
    for result in results:
        skews_of.setdefault(result.params["state_mb"], set()).add(result.params["skew"])
    size = max(skews_of, key=lambda mb: (len(skews_of[mb]), mb), default=0.0)
    found = [r for r in results if r.params["state_mb"] == size and "stabilise_s" in r.figures]
    skews = list(dict.fromkeys(r.params["skew"] for r in found))
    names = [name for name in STRATEGIES if any(r.system == name for r in found)]
    if len(skews) < 2:
        return None
    with _figure(1, 1, (9, 4.2)) as (figure, ((axes,),)):
        width = 0.85 / len(names)
        for result in found:
            at = names.index(result.system)
            x = skews.index(result.params["skew"]) + (at - (len(names) - 1) / 2) * width
            value = result.figures["stabilise_s"]
            axes.bar(x, value, width * 0.9, color=COLOURS[result.system], zorder=2)
            axes.annotate(
                f"{value:.1f}",
                (x, value),
                ha="center",
                va="bottom",
                fontsize=7,
                xytext=(0, 1),
                textcoords="offset points",
            )
        for name in names:
            axes.bar([0], [0], color=COLOURS[name], label=name)
        axes.set_xticks(range(len(skews)), skews)
        axes.set_ylabel("s")
        axes.grid(axis="y", color="#eeeeee", zorder=0)
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        title = f"From the request to a stable stream, by skew of the keys, {size:g} MB of state"
        return _save(figure, title, path)


@contextmanager
def _figure(down: int, across: int, size: tuple[float, float], **options: Any) -> Iterator[tuple[Any, Any]]:
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingPlots("pip install matplotlib") from error
    mpl.use("Agg")
    from matplotlib import pyplot

    style: dict[Any, Any] = {"font.size": 9, "font.family": "DejaVu Sans", "text.color": INK, "axes.labelcolor": INK}
    style |= {"xtick.color": INK, "ytick.color": INK, "axes.edgecolor": "#bbbbbb"}
    style |= {"axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(style):
        figure, axes = pyplot.subplots(down, across, figsize=size, squeeze=False, facecolor="white", **options)
        try:
            yield figure, axes
        finally:
            pyplot.close(figure)


def _plain_numbers(axis: Any, *, dense: bool = False) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if dense:  # few decades: name steps within them
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axis.set_minor_formatter(NullFormatter())


def _save(figure: Any, title: str, path: Path) -> Path:
    figure.suptitle(title, x=0.01, y=0.995, ha="left", va="top", fontsize=11, fontweight="bold")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    return path
