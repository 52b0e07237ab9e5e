"""The page about transformWithState is what the suite's cases say, and has all that Spark's API has."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import GroupedData
from pyspark.sql.streaming import stateful_processor
from tests.spark.drop_in.elsewhere import ELSEWHERE, Elsewhere

ROOT = Path(__file__).parents[2]
KINDS = (
    *("StatefulProcessor", "StatefulProcessorHandle", "ValueState", "ListState", "MapState"),
    *("TimerValues", "ExpiredTimerInfo"),
)


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """``scripts/conformance.py``, which lies beside what it imports."""
    folder = ROOT / "scripts"
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location("conformance", folder / "conformance.py")
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        yield made
    finally:
        sys.path.remove(str(folder))


def test_the_page_is_what_the_cases_say(script: ModuleType) -> None:
    assert script.main(["--check"]) == 0, "run `make fix`"


def test_a_page_that_is_not_is_noticed_and_written(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr(script, "PAGE", page)
    assert script.main(["--check"]) == 1
    assert "page.md is not what the cases say; `make fix` writes it" in capsys.readouterr().out
    assert script.main([]) == 0
    assert script.main(["--check"]) == 0
    page.write_text(script.page() + "more")
    assert script.main(["--check"]) == 1


def names_of_spark() -> list[str]:
    """Every public method of the classes that a processor meets, and every argument of the two calls."""
    found = [
        name
        for kind in KINDS
        for name, member in vars(getattr(stateful_processor, kind)).items()
        if inspect.isfunction(member) and not name.startswith("_")
    ]
    for call in (GroupedData.transformWithState, GroupedData.transformWithStateInPandas):
        found += [name for name in inspect.signature(call).parameters if name != "self"]
    return sorted(set(found))


@pytest.mark.parametrize("name", names_of_spark())
def test_the_page_has_every_method_and_argument_of_spark(script: ModuleType, name: str) -> None:
    assert f"`{name}" in script.page() or f".{name}`" in script.page()


@pytest.mark.parametrize("line", ELSEWHERE, ids=lambda line: line.test)
def test_what_the_page_says_of_tests_elsewhere_has_these_tests(line: Elsewhere) -> None:
    assert f"def {line.test}(" in (ROOT / line.file).read_text()
