"""The figures of a run of the scale benchmark as a part of the page about benchmarks. Pure but for the one file.

Invariants: only what lies between the two marks of the page is replaced; a cell without a figure is a dash.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.report import BUSY_LIMIT, NO_FIGURE, Column, Report, Status
from bench.scale_plan import verdicts_of

BEGIN, END = "<!-- scale: figures of a run -->", "<!-- scale: end -->"


def write_page(page: Path, text: str) -> None:
    """Put the figures where the page has its marks."""
    whole = page.read_text(encoding="utf-8")
    if whole.count(BEGIN) != 1 or whole.count(END) != 1:
        raise ValueError(f"{page} needs the lines {BEGIN} and {END}, each once")
    head, _, rest = whole.partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}\n\n{text}\n{END}{tail}", encoding="utf-8")


def figures_text(
    report: Report, tables: Sequence[tuple[str, Sequence[Column]]], busy: float, plots: Sequence[str]
) -> str:
    """The run in Markdown: its conditions, a table for each part, the verdicts, the plots."""
    machine, quick = report.machine, report.settings["quick"]
    run = "A quick run" if quick else "A full run"
    others = "nothing else on the machine" if busy <= BUSY_LIMIT else f"**other work kept {busy:.1f} cores busy**"
    versions = machine["versions"]
    lines = [
        f"{run} on {machine['cores']} cores, Spark {versions['pyspark']}, Python {versions['python']}; {others}.",
        "",
    ]
    for title, columns in tables:
        lines += [f"{title[0].upper()}{title[1:]}:", "", *_table(report, columns), ""]
    verdicts = [
        f"| {it.name} | {it.value:.2f} | {it.limit:g} | {'met' if it.met else '**missed**'} |"
        for it in verdicts_of(report.results)
    ]
    if verdicts:
        lines += ["| target | measured | at most | |", "|---|---|---|---|", *verdicts, ""]
    lines += [f"![{name}](images/{name})" for name in plots]
    return "\n".join(lines) + "\n"


def _table(report: Report, columns: Sequence[Column]) -> Iterator[str]:
    yield "| | " + " | ".join(column.title for column in columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for result in report.results:
        known = {**result.params, **result.figures}
        cells = [c.form.format(known[c.name]) if c.name in known else NO_FIGURE for c in columns]
        if result.status is not Status.OK:
            cells[-1] = str(result.status)
        elif cells[1:] == [NO_FIGURE] * (len(cells) - 1):
            continue  # a system that does none of this
        yield f"| {result.system} | " + " | ".join(cells) + " |"
