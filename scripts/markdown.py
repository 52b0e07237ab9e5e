"""Wrap the paragraphs of Markdown files at 120 characters: ``python scripts/markdown.py [--fix]``.

Tables, code, headings and lines that have no place to break stay as they are. Without ``--fix`` it names the lines
that are too long, and ends with 1 if there are any.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

WIDTH = 120
_ITEM = re.compile(r"(\s*)(?:[-*+]|\d+\.)\s+|(\s*>\s?)|(\s*)")


def main(arguments: list[str]) -> int:
    """Look at every Markdown file that git knows, and wrap them if told; 1 if a line is too long."""
    bad = 0
    files = subprocess.run(["git", "ls-files", "*.md"], capture_output=True, text=True, check=True).stdout.split()
    for name in files:
        path = Path(name)
        text = path.read_text()
        wrapped = wrap(text)
        if wrapped == text:
            continue
        if "--fix" in arguments:
            path.write_text(wrapped)
            continue
        bad += 1
        print(f"{name}: paragraphs with lines of more than {WIDTH} characters; `make fix` wraps them")
    return 1 if bad else 0


def wrap(text: str) -> str:
    """The text, with every paragraph wrapped that has a line which is too long."""
    out: list[str] = []
    paragraph: list[str] = []
    fenced = False
    for line in text.split("\n"):
        fence = line.lstrip().startswith(("```", "~~~"))
        if fence or fenced or _stands_alone(line):
            out += _wrapped(paragraph)
            paragraph = []
            out.append(line)
            fenced = fenced != fence
        elif paragraph and _begins(line):
            out += _wrapped(paragraph)
            paragraph = [line]
        else:
            paragraph.append(line)
    return "\n".join(out + _wrapped(paragraph))


def _stands_alone(line: str) -> bool:
    bare = line.strip()
    return not bare or bare.startswith(("|", "#", "<", "[!")) or bool(re.fullmatch(r"(-{3,}|\[[^]]+\]: \S+)", bare))


def _begins(line: str) -> bool:
    """Whether a line is the first one of an item of a list."""
    return bool(re.match(r"\s*([-*+]|\d+\.)\s", line))


def _wrapped(lines: list[str]) -> list[str]:
    if all(len(line) <= WIDTH for line in lines):
        return lines
    found = _ITEM.match(lines[0])
    assert found is not None
    first = found.group(0)
    later = first if first.strip() == ">" else " " * len(first)
    words = " ".join(line.strip().removeprefix(">").strip() if "> " in first else line.strip() for line in lines)
    words = words if first.strip() in ("", ">") else words[len(first.strip()) :].strip()
    made = textwrap.wrap(
        words, WIDTH, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
    return _without_false_items(made, len(first))


def _without_false_items(lines: list[str], indent: int) -> list[str]:
    """A line must not begin with what would make it an item, a heading or a quotation: its first word goes up."""
    for i in range(1, len(lines)):
        word = lines[i].strip().split(" ", 1)[0]
        if re.fullmatch(r"[-*+]|\d+\.|#+|>.*", word):
            lines[i - 1] += f" {word}"
            lines[i] = " " * indent + lines[i].strip()[len(word) :].strip()
    return [line for line in lines if line.strip()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
