"""How large things may get, and where the clock is chosen.

A file of over 400 lines says why it is one; no class has over 20 fields that change; decisions are handed their time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import bedload

ROOT = Path(bedload.__file__).parent
EDGES = ("core/clock.py", "spark/", "testing/", "transport/", "worker/local_stores.py", "worker/server.py")
"""Whoever is between the code that decides and the world."""
MOST_LINES = 400
MOST_FIELDS = 20
SAYS_WHY = re.compile(r"^Why one file: \S", re.MULTILINE)
"""How the docstring of a long file begins the sentence."""


def too_long(source: str) -> bool:
    """Whether a file is long and does not say why."""
    return source.count("\n") > MOST_LINES and not SAYS_WHY.search(ast.get_docstring(ast.parse(source)) or "")


def fields(source: str) -> Iterator[tuple[str, int]]:
    """The classes with mutable state in a file, and how many fields each has."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            yield node.name, len(_assigned(node) | (set() if _is_frozen(node) else _declared(node)))


def _assigned(node: ast.ClassDef) -> set[str]:
    """What ``__init__`` sets."""
    inits = [it for it in node.body if isinstance(it, ast.FunctionDef) and it.name == "__init__"]
    return {
        it.attr
        for init in inits
        for it in ast.walk(init)
        if isinstance(it, ast.Attribute)
        and isinstance(it.ctx, ast.Store)
        and isinstance(it.value, ast.Name)
        and it.value.id == "self"
    }


def _declared(node: ast.ClassDef) -> set[str]:
    """The fields of a dataclass or struct."""
    made = [ast.unparse(it) for it in (*node.decorator_list, *node.bases)]
    if not any(re.search(r"\b(dataclass|Struct)\b", it) for it in made):
        return set()
    return {it.target.id for it in node.body if isinstance(it, ast.AnnAssign) and isinstance(it.target, ast.Name)}


def _is_frozen(node: ast.ClassDef) -> bool:
    calls = [it for it in node.decorator_list if isinstance(it, ast.Call)]
    keywords = [*node.keywords, *(keyword for call in calls for keyword in call.keywords)]
    return any(it.arg == "frozen" and ast.unparse(it.value) == "True" for it in keywords)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_classes_are_small_or_say_why_not(path: Path) -> None:
    source = path.read_text()
    assert not too_long(source), (
        f"{path} has over {MOST_LINES} lines: split it along a seam, or say in its docstring why there is none: "
        f'"Why one file: ..."'
    )
    large = {name: count for name, count in fields(source) if count > MOST_FIELDS}
    assert not large, (
        f"{path}: {large} fields of mutable state, over {MOST_FIELDS}: some of them are a noun of their own"
    )


def test_the_systems_clock_is_chosen_at_the_edges_alone() -> None:
    named = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if "SystemClock" in path.read_text()]
    assert [path for path in named if not path.startswith(EDGES)] == []


def test_a_long_file_has_to_say_why() -> None:
    lines = "x = 1\n" * (MOST_LINES + 1)
    assert too_long(lines)
    assert too_long(f'"""A file."""\n{lines}')
    assert not too_long(f'"""A file.\n\nWhy one file: it is a list.\n"""\n{lines}')
    assert not too_long("x = 1\n" * MOST_LINES)


def test_fields_are_counted_wherever_they_come_from() -> None:
    source = """
class Plain:
    def __init__(self):
        self.a, self.b = 1, 2
        self.c: int = 3
        self.a = other.d = 4

@dataclass
class Data:
    a: int
    b: int = 1

@dataclass(frozen=True)
class Fixed:
    a: int

class Message(Struct, frozen=True):
    a: int

class Loose(msgspec.Struct):
    a: int
"""
    assert dict(fields(source)) == {"Plain": 3, "Data": 2, "Fixed": 0, "Message": 0, "Loose": 1}
