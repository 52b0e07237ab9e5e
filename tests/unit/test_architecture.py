"""What ARCHITECTURE.md and CONTRIBUTING.md say of the code is so."""

from __future__ import annotations

import ast
import configparser
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "bedload"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
WORKER_EDGE = {
    *("__init__", "__main__", "durable", "local_files", "local_slabs", "local_stores", "memory", "nursery", "pulse"),
    "redis_remote",
    "server",
}


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def walks() -> list[list[tuple[str, str]]]:
    """The steps of each walk: file and name."""
    steps = [re.findall(r"^\d+\. `([^`]+)` `([^`]+)`", part, re.M) for part in section("Three walks").split("\nA ")]
    return [walk for walk in steps if walk]


def names_in(path: Path) -> set[str]:
    """Functions and classes, and methods as ``Class.method``."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


def test_there_are_three_walks() -> None:
    assert [len(walk) >= 10 for walk in walks()] == [True] * 3


@pytest.mark.parametrize("walk", walks(), ids=["row", "moved key", "restored key"])
def test_a_walk_names_what_exists_and_crosses_each_module_once(walk: list[tuple[str, str]]) -> None:
    for file, name in walk:
        assert name in names_in(SOURCE / file), f"{file} has no {name}"
    twice = [file for file, count in Counter(file for file, _ in walk).items() if count > 1]
    assert not twice


def test_the_glossary_has_every_noun_once_and_in_order() -> None:
    nouns = re.findall(r"^\| ([a-z][^|]*?) \|", section("Glossary"), re.M)[1:]
    assert len(nouns) > 40
    assert nouns == sorted(set(nouns))


def test_files_that_are_named_exist() -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", TEXT))
    missing = [file for file in named if not (SOURCE / file).exists() and not (ROOT / file).exists()]
    assert not missing


def contract(name: str) -> configparser.SectionProxy:
    linter = configparser.ConfigParser()
    linter.read(ROOT / ".importlinter")
    return linter[f"importlinter:contract:{name}"]


def packages(layers: str) -> list[set[str]]:
    """The packages of each layer, from the top."""
    return [set(re.findall(r"\w+", layer)) for layer in layers.strip().splitlines()]


def test_the_layers_that_are_told_are_those_that_are_checked() -> None:
    checked = packages(contract("layers")["layers"])
    block = (ROOT / "CONTRIBUTING.md").read_text().split("\n## Layers\n")[1].split("```")[1]
    assert packages("\n".join(line[:32] for line in block.strip().splitlines())) == checked
    every = {folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").exists()}
    assert set.union(*checked) == every
    assert set(re.findall(r"^\| `(\w+)` \|", section("Layers"), re.M)) == every


def test_every_module_of_the_worker_is_checked_to_be_pure_or_is_its_edge() -> None:
    pure = set(re.findall(r"worker\.(\w+)", contract("machine")["source_modules"]))
    assert pure | WORKER_EDGE == {file.stem for file in (SOURCE / "worker").glob("*.py")}
    assert not pure & WORKER_EDGE
