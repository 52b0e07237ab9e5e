"""Write docs/reference/api.md from the docstrings: ``python scripts/api_reference.py [--check]``.

With ``--check`` nothing is written: it ends with 1 if the page is not what the docstrings say.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import FunctionType
from typing import Any

from markdown import wrap

import bedload
import bedload.spark.supervisor
import bedload.spark.table
import bedload.testing
from bedload.testing.changing import Changing
from bedload.testing.passing_time import PassingTime
from bedload.worker.timers import OperatorTimers
from bedload.worker.vector_timers import VectorTimersOfClock

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "api.md"
WIDTH = 100
"""A signature that is longer has a line for each parameter."""

INNER = {
    "InProcessCluster": {
        *("answers", "ask_open", "disconnect", "feeder_failed", "key", "next_attempt", "output_rows", "send"),
    },
    "OperatorState": {"close", "hash_of"},
    "Strategy": {"terms"},
}
"""Members that are public for other parts of Bedload alone."""


@dataclass(frozen=True)
class Part:
    """A part of the page: a heading, what is said first, and the things in it by the names that users give them."""

    title: str
    text: str
    things: dict[str, Any]


def _of(module: Any, prefix: str, *names: str) -> dict[str, Any]:
    return {prefix + name: getattr(module, name) for name in names}


PARTS = (
    Part(
        "Attach",
        "`import bedload as bl` comes before all of these; `bl.__version__` says which one it is.",
        _of(bedload, "bl.", "attach", "Cluster"),
    ),
    Part(
        "Changes of a running cluster",
        f"See [scale a running query](../how-to/scale-a-running-query.md). `bl.strategies` has the strategies by their "
        f"names: {', '.join(f'`{name}`' for name in bedload.strategies)}.",
        _of(bedload, "bl.", "Change", "MoveResult", "Strategy"),
    ),
    Part(
        "What calls of a cluster return",
        "",
        _of(bedload, "bl.", "OperatorState", "StateAnswer")
        | {"Supervised": bedload.spark.supervisor.Supervised, "Table": bedload.spark.table.Table},
    ),
    Part(
        "Operators",
        "Which Python values rows have, and which may be returned, is in [rows](rows.md).",
        _of(
            bedload,
            "bl.",
            *("Operator", "Context", "Timer", "param", "Rows"),
            *("VectorOperator", "VectorBatch", "RowsByKey", "BatchContext", "BatchTimer"),
        )
        | {"ctx.timers": OperatorTimers, "ctx.timers (arrays)": VectorTimersOfClock},
    ),
    Part(
        "State declarations",
        "Types, methods and limits are in [state types](state-types.md).",
        _of(bedload, "bl.", "value", "list", "map", "set", "counter", "deque", "heap", "Heap", "array"),
    ),
    Part(
        "Processors of Spark's",
        "See [coming from transformWithState](../how-to/coming-from-transform-with-state.md).",
        _of(bedload, "bl.", "transformWithState", "transformWithStateInPandas", "patch_pyspark", "unpatch_pyspark"),
    ),
    Part(
        "Aggregates",
        "Results, state and errors of each are in [aggregates](aggregates.md).",
        _of(bedload.agg, "bl.agg.", *(name for name in bedload.agg.__all__ if name[0].islower())),
    ),
    Part(
        "Testing kit",
        "See [test an operator](../how-to/test-an-operator.md).",
        _of(bedload.testing, "bedload.testing.", *sorted(bedload.testing.__all__, reverse=True))
        | {"PassingTime": PassingTime, "Changing": Changing},
    ),
)


def page() -> str:
    """The whole page."""
    lines = ["# API reference", "", "Made from the docstrings by `scripts/api_reference.py`: change those."]
    for part in PARTS:
        lines += ["", f"## {part.title}"] + (["", part.text] if part.text else [])
        for name, thing in part.things.items():
            lines += ["", *_thing(name, thing)]
    lines += ["", "## Errors", "", "`bl.errors` has them. Each class says what to do next.", ""]
    lines += _errors(bedload.errors)
    return wrap("\n".join(lines)) + "\n"


def _thing(name: str, thing: Any) -> Iterator[str]:
    yield f"### `{name}`"
    yield ""
    if not inspect.isclass(thing):
        yield from _code(name + _signature(thing))
        yield from _text(thing, name)
        return
    made = _called(thing)
    if made is not None:
        yield from _code(name + made)
    yield from _text(thing, name)
    for member, text in _attributes(thing):
        yield ""
        yield f"**`{member}`**: {text}"
    members = list(_members(thing))
    for member, found in members:
        if isinstance(found, property | cached_property):
            yield ""
            yield f"**`{member}`**: " + "\n\n".join(_paragraphs(found, f"{name}.{member}"))
    for member, found in members:
        if not isinstance(found, property | cached_property):
            yield ""
            yield f"#### `{name.rsplit('.', 1)[-1]}.{member}`"
            yield ""
            yield from _code(member + _signature(found, bound=True))
            yield from _text(found, f"{name}.{member}")


def _called(thing: type) -> str | None:
    """How a class is called, if it is for users to do so."""
    if thing.__module__.startswith("bedload.testing") and "__init__" in vars(thing):
        return _signature(thing.__init__, bound=True)  # type: ignore[misc]
    return None


def _members(thing: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class defines, as they are in the source."""
    for name, found in vars(thing).items():
        plain = inspect.unwrap(found) if inspect.isfunction(found) else found
        aliased = inspect.isfunction(plain) and plain.__name__ != name
        inner = name.startswith("_") or name in INNER.get(thing.__name__, ())
        if not inner and not aliased and isinstance(found, FunctionType | property | cached_property):
            yield name, found


def _attributes(thing: type) -> Iterator[tuple[str, str]]:
    """Public attributes with a docstring: of the class, and those that its ``__init__`` sets."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    assert isinstance(tree, ast.ClassDef)
    inits = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    for body in (tree.body, *(init.body for init in inits)):
        for node, after in pairwise(body):
            if not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            name = getattr(targets[0], "attr", getattr(targets[0], "id", "_"))
            if not name.startswith("_") and isinstance(after.value.value, str):
                yield name, _inline(" ".join(after.value.value.split()))


def _signature(function: Any, *, bound: bool = False) -> str:
    """As it is written, with the annotations."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    texts: list[str] = []
    starred = False
    for it in parameters:
        if it.kind is it.KEYWORD_ONLY and not starred:
            texts.append("*")
        starred = starred or it.kind in (it.KEYWORD_ONLY, it.VAR_POSITIONAL)
        star = "*" if it.kind is it.VAR_POSITIONAL else "**" if it.kind is it.VAR_KEYWORD else ""
        kind = "" if it.annotation is it.empty else f": {it.annotation}"
        equals = " = " if kind else "="
        texts.append(f"{star}{it.name}{kind}" + ("" if it.default is it.empty else f"{equals}{_default(it.default)}"))
        if it.kind is it.POSITIONAL_ONLY:
            texts.append("/")
    returned = "" if signature.return_annotation is signature.empty else f" -> {signature.return_annotation}"
    text = f"({', '.join(texts)}){returned}"
    if len(text) <= WIDTH:
        return text
    return "(\n" + "".join(f"    {it},\n" for it in texts) + f"){returned}"


def _default(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, bool | int | float | str) else "..."


def _code(text: str) -> Iterator[str]:
    yield "```python"
    yield text
    yield "```"
    yield ""


def _text(thing: Any, name: str) -> Iterator[str]:
    for number, paragraph in enumerate(_paragraphs(thing, name)):
        if number:
            yield ""
        yield paragraph


def _paragraphs(thing: Any, name: str) -> Iterator[str]:
    """A docstring's paragraphs as Markdown; code after ``::`` as a block."""
    docstring = inspect.getdoc(thing)
    if not docstring:
        raise SystemExit(f"{name} has no docstring")
    code: list[str] = []
    for block in [*re.split(r"\n\n", docstring), ""]:
        if block.startswith("    "):
            code.append(block)
            continue
        if code:
            yield "```python\n" + textwrap.dedent("\n\n".join(code)) + "\n```"
            code = []
        text = "" if block == "::" else re.sub(r"\s*::$", ":", block)
        if text:
            yield _inline(text)


def _inline(text: str) -> str:
    """Names in Markdown's way."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    return text.replace("``", "`")


def _errors(module: Any) -> Iterator[str]:
    trees = [line for line in (module.__doc__ or "").splitlines() if line.startswith("    ") or not line]
    yield "```text"
    yield re.sub(r"\n\n+", "\n\n", textwrap.dedent("\n".join(trees))).strip("\n")
    yield "```"
    yield ""
    yield from _text(module.BedloadError, "bl.errors.BedloadError")
    for member, text in _attributes(module.BedloadError):
        yield ""
        yield f"**`{member}`**: {text}"


def main(arguments: list[str]) -> int:
    """Write the page, or look whether it is up to date."""
    made = page()
    if "--check" not in arguments:
        PAGE.write_text(made)
    elif not PAGE.exists() or PAGE.read_text() != made:
        print(f"{PAGE.name} is not what the docstrings say; `make fix` writes it")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
