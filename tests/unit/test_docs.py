"""Docs hang together: links lead somewhere, the index has every page, code compiles, and files are read once."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from tests.checkpoint_states import schema_of, state

from bedload.checkpoint.snapshots import write_part
from bedload.checkpoint.storage import open_storage
from bedload.core import errors

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = BLOCK.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_the_index_has_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)\)", index.read_text())}
    pages = {page for page in PAGES if page.is_relative_to(index.parent) and page.parent.name != "adr"}
    assert pages - {index} <= linked


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_what_is_called_python_is_python(page: Path) -> None:
    if page.name == "api.md":
        return  # signatures
    for language, code in BLOCK.findall(page.read_text()):
        if language == "python":
            compile(code, f"{page}", "exec")


# --- snapshots as Parquet ---

TRIPS = schema_of({"car": pa.string()}, {"count": pa.int64()})


def test_the_sql_of_the_format_reads_each_key_once_however_many_snapshots_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(str(tmp_path / "checkpoint"))
    for turn, count in ((1, 10), (2, 20), (3, 30)):
        folder = f"operators/Trip/snapshots/0000000001-{turn:010}"
        write_part(storage, folder, TRIPS, state(TRIPS, {f"car-{i}": {"count": count} for i in range(50)}))
        if turn < 3:  # the last one is being written
            storage.write(f"{folder}/manifest.json", [b"{}"])
    page = (ROOT / "docs" / "reference" / "checkpoint-format.md").read_text()
    (sql,) = [code for language, code in BLOCK.findall(page) if language == "sql"]
    monkeypatch.chdir(tmp_path)
    rows = duckdb.sql(sql).fetchall()
    assert sorted(rows) == sorted((f"car-{i}", 20) for i in range(50))


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_no_page_reads_all_snapshots_as_one_table(page: Path) -> None:
    assert not re.search(r"snapshots/[^\s/]*\*[^\s]*parquet", page.read_text())


# --- errors ---


def test_the_errors_that_troubleshooting_names_are_there() -> None:
    page = (ROOT / "docs" / "how-to" / "troubleshoot.md").read_text()
    named = set(re.findall(r"^\| `([A-Z][a-z]\w+)", page, re.MULTILINE))
    assert len(named) >= 15
    assert [name for name in sorted(named) if not hasattr(errors, name)] == []
