"""Write docs/reference/transform-with-state.md from the cases: ``python scripts/conformance.py [--check]``.

With ``--check`` nothing is written: it ends with 1 if the page is not what the suite's cases say.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from markdown import wrap

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "transform-with-state.md"
SECTIONS = (
    *("The call", "What is called when", "Rows and keys", "Values in state", "Value state", "List state", "Map state"),
    *("Timers", "Clocks", "Late rows", "TTL", "Initial state", "Output", "Event time of the output"),
    *("Batch DataFrames", "Errors", "Restarts and changes of the processor", "Other means of Spark's in a processor"),
)
BEGINNING = """# transformWithState: what is the same

Made from the cases of `tests/spark/drop_in` by `scripts/conformance.py`: change those.

`bl.transformWithState` and `bl.transformWithStateInPandas` run processors that are written for Spark's
`GroupedData.transformWithState` and `transformWithStateInPandas`. Each line below is a test that runs on both engines,
Spark 4.3 and Bedload, and compares what comes out of each batch, or which error is raised; lines about state, timers
and TTL are tested in the Row form and in the pandas form. Random programs are compared, too, with restarts and
replays.

*yes*: the same on both, of errors class and condition, too. *differs*: what Bedload does instead, and why. *no*: it
works on Spark only.
"""


def page() -> str:
    """The whole page."""
    found = list(_lines())
    unknown = {section for section, *_ in found} - set(SECTIONS)
    if unknown:
        raise SystemExit(f"sections without a place on the page: {', '.join(sorted(unknown))}")
    parts = [BEGINNING]
    for section in SECTIONS:
        rows = dict.fromkeys(f"| {_cell(what)} | {_cell(said)} |" for part, what, said in found if part == section)
        if rows:
            parts.append("\n".join([f"## {section}", "", "| on Spark | Bedload |", "|---|---|", *rows, ""]))
    return wrap("\n".join(parts).rstrip("\n")) + "\n"


def _lines() -> Iterator[tuple[str, str, str]]:
    """Section, behaviour, and whether Bedload does the same."""
    sys.path.insert(0, str(ROOT))
    try:
        cases: Any = import_module("tests.spark.drop_in.everything")
    finally:
        sys.path.remove(str(ROOT))
    for call in cases.CALLS:
        yield call.section, call.what + _raised(call.gives), _said(call.why)
    for query in cases.QUERIES:
        for what in query.what:
            yield query.section, what + _failing(query.fails), _said(query.why)
    for small in cases.SMALL:
        yield small.section, small.what, _said(small.why)
    for other in cases.ELSEWHERE:
        yield other.section, other.what, _said(other.why)


def _said(why: str) -> str:
    return why if why.startswith("no: ") else f"differs: {why}" if why else "yes"


def _raised(gives: Any) -> str:
    """The error that a call raises."""
    if isinstance(gives, tuple) and len(gives) == 2 and isinstance(gives[0], str):
        name, condition = gives
        return f": `{name}`" + (f", `{condition}`" if condition else "")
    return ""


def _failing(text: str) -> str:
    """What the error of a query says, if it is a condition."""
    return f": `{text}`" if text.isupper() or ": " in text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Write the page, or look whether it is up to date."""
    made = page()
    if "--check" not in arguments:
        PAGE.write_text(made)
    elif not PAGE.exists() or PAGE.read_text() != made:
        print(f"{PAGE.name} is not what the cases say; `make fix` writes it")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
