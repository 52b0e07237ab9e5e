"""``python -m bedload.checkpoint compact``: carries out a JSON job on standard input, at low priority.

A job is ``{"url": …, "options": {…}, "operator": …, "turn": …, "groups": […]}``; without groups it means all of them.
The result on standard output is ``{"parts": […]}``, as in a snapshot's manifest, or ``{"error": […]}`` with status 1.
Blank lines before it are signs of life: one for every step of the work.
"""

from __future__ import annotations

import contextlib
import os
import sys

import msgspec

from bedload.checkpoint.compaction import Result, run_job

NICENESS = 10
"""The worker beside it comes first."""


def _sign_of_life() -> None:
    sys.__stdout__.buffer.write(b"\n")  # type: ignore[union-attr]
    sys.__stdout__.buffer.flush()  # type: ignore[union-attr]


def main(arguments: list[str]) -> int:
    """Run the command; gives the exit status."""
    if arguments != ["compact"]:
        print("usage: python -m bedload.checkpoint compact  (the job as JSON on standard input)", file=sys.stderr)
        return 2
    os.nice(NICENESS)
    with contextlib.redirect_stdout(sys.stderr):  # what libraries print is no result
        output = run_job(sys.stdin.buffer.read(), _sign_of_life)
    sys.stdout.buffer.write(output)
    sys.stdout.buffer.flush()
    return 0 if msgspec.json.decode(output, type=Result).error is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
