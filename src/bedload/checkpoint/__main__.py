"""``python -m bedload.checkpoint compact``: carries out a JSON job on standard input, at low priority.

A job is ``{"url": …, "options": {…}, "operator": …, "turn": …, "groups": […]}``; without groups it means all of them.
The last line on standard output is the result: ``{"parts": […]}``, as in a snapshot's manifest, or ``{"error": […]}``
with status 1. Each line before it says how far the work is: ``{"groups": …, "keys": …, "bytes": …}``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable

import msgspec

from bedload.checkpoint.compaction import Job, Result, run_job


def _say(line: bytes) -> None:
    sys.__stdout__.buffer.write(line + b"\n")  # type: ignore[union-attr]
    sys.__stdout__.buffer.flush()  # type: ignore[union-attr]


def _pace(job: Job) -> Callable[[], None]:
    """Take the priority of a job; gives what keeps to its share of a core."""
    os.nice(job.niceness)
    used = time.process_time()
    share, began = job.share, time.monotonic() - used  # as if it had begun without a pause

    def pause() -> None:
        if share is not None:
            ahead = time.process_time() / share - (time.monotonic() - began)
            time.sleep(max(0.0, ahead))

    return pause


def main(arguments: list[str]) -> int:
    """Run the command; gives the exit status."""
    if arguments != ["compact"]:
        print("usage: python -m bedload.checkpoint compact  (the job as JSON on standard input)", file=sys.stderr)
        return 2
    with contextlib.redirect_stdout(sys.stderr):  # what libraries print is no result
        output = run_job(sys.stdin.buffer.read(), _say, _pace)
    sys.stdout.buffer.write(output)
    sys.stdout.buffer.flush()
    return 0 if msgspec.json.decode(output, type=Result).error is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
