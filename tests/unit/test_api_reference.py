"""The API reference is what the docstrings say, and has everything that users call."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import bedload
import bedload.testing

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """``scripts/api_reference.py``, which lies beside what it imports."""
    folder = ROOT / "scripts"
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location("api_reference", folder / "api_reference.py")
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        sys.modules["api_reference"] = made  # its dataclass looks for it there
        spec.loader.exec_module(made)
        return made
    finally:
        sys.path.remove(str(folder))


def test_the_page_is_what_the_docstrings_say(script: ModuleType) -> None:
    assert script.main(["--check"]) == 0, "run `make fix`"


def test_a_page_that_is_not_is_noticed_and_written(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "api.md"
    monkeypatch.setattr(script, "PAGE", page)
    assert script.main(["--check"]) == 1
    page.write_text(script.page() + "more")
    assert script.main(["--check"]) == 1
    assert "api.md is not what the docstrings say; `make fix` writes it" in capsys.readouterr().out
    assert script.main([]) == 0
    assert script.main(["--check"]) == 0


def test_all_that_is_public_is_in_it(script: ModuleType) -> None:
    page = script.page()
    told_otherwise = {"__version__", "agg", "errors", "strategies"}
    for name in bedload.__all__:
        assert (f"`bl.{name}`" if name in told_otherwise - {"agg"} else f"### `bl.{name}") in page
    for name in bedload.testing.__all__:
        assert f"### `bedload.testing.{name}`" in page
    for name in bedload.strategies:
        assert f"`{name}`" in page
    for method in ("apply", "aggregate", "rescale", "run", "wait_for_epoch", "checkpoint", "stop"):
        assert f"#### `Cluster.{method}`" in page


class Example:
    """Takes one step.

    As :meth:`Example.step` does it; ``x`` is a number::

        if x:

            step(x)

    The end.
    """

    def __init__(self) -> None:
        self.seen = 0
        """How often
        it was seen."""
        self._hidden = 0
        """Not for users."""

    @property
    def size(self) -> int:
        """How large."""
        return 1

    def step(self, x: int, /, *, far: bool = False, how: object = object()) -> str:
        """Take a step."""
        return f"{x}{far}{how}"

    stride = step

    def _inside(self) -> None:
        """Not for users."""


def test_a_class_is_told_with_its_members_in_markdown(script: ModuleType) -> None:
    text = "\n".join(script._thing("bl.Example", Example))
    assert text == "\n".join(
        [
            "### `bl.Example`",
            "",
            "Takes one step.",
            "",
            "As `Example.step` does it; `x` is a number:",
            "",
            "```python",
            "if x:",
            "",
            "    step(x)",
            "```",
            "",
            "The end.",
            "",
            "**`seen`**: How often it was seen.",
            "",
            "**`size`**: How large.",
            "",
            "#### `Example.step`",
            "",
            "```python",
            "step(x: int, /, *, far: bool = False, how: object = ...) -> str",
            "```",
            "",
            "Take a step.",
        ]
    )


def test_what_has_no_docstring_stops_it(script: ModuleType) -> None:
    def silent() -> None:
        pass

    with pytest.raises(SystemExit, match=re.escape("bl.silent has no docstring")):
        list(script._thing("bl.silent", silent))
