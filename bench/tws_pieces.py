"""A long run in pieces: what is done is written down case by case, so that a run that was cut off goes on.

Invariants: a case is written down when it is done, with what came out of it; one that failed is not, and runs again.
The file is one JSON object a line; a last line that was cut off counts for nothing.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.report import Result, Status
from bench.tws_plan import Case


@dataclass
class Pieces:
    """The cases that are done, by round; without a file they are only remembered."""

    file: Path | None
    done: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def begin(cls, json_file: Path | None, resume: bool) -> "Pieces":
        """What an earlier run left beside its JSON file, if it is to be gone on with."""
        file = None if json_file is None else json_file.with_name(f"{json_file.name}.part")
        pieces = cls(file)
        if file is None:
            return pieces
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = []
        for line in file.read_text(encoding="utf-8").splitlines() if resume and file.exists() else ():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            pieces.done[entry["case"]] = entry
            kept.append(line + "\n")
        file.write_text("".join(kept), encoding="utf-8")
        return pieces

    def add(self, number: int, case: Case, result: Result, digest: str | None) -> None:
        """A case of a round is done."""
        entry = {"case": _name(number, case), "figures": dict(result.figures), "note": result.note, "digest": digest}
        if result.status is not Status.OK:
            return
        self.done[entry["case"]] = entry
        if self.file is not None:
            with self.file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(entry) + "\n")

    def find(self, number: int, case: Case) -> tuple[Result, str | None] | None:
        """What came out of a case of a round, with its digest; None: it was not done yet."""
        entry = self.done.get(_name(number, case))
        if entry is None:
            return None
        return Result(case.system, case.params, Status.OK, entry["figures"], entry["note"]), entry["digest"]

    def end(self) -> None:
        """All is done, and is in the report."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)


def _name(number: int, case: Case) -> str:
    return f"{number}/{case.label}"
