"""``python -m tests.soak``: rounds of random faults until the time is up. Status 1 if one was not as it should be."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.simulator.chance import Chance
from tests.soak.links import Links, own_network
from tests.soak.rounds import Means, Round
from tests.spark.standalone import Standalone, standalone

_LONG = 120
"""Seconds from which a cluster of executors is worth its start."""


def main(arguments: list[str]) -> int:
    """Run the rounds; gives the exit status."""
    options = _parser().parse_args(arguments)
    links = own_network(arguments)
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="bedload-soak-"))
    print(f"seed {seed}, {options.seconds} seconds, files in {folder}", flush=True)
    if isinstance(links, str):
        print(f"no packets are lost and no links cut: {links}", flush=True)
    number = options.round or 1
    with contextlib.ExitStack() as stack:
        means = Means(_machines(stack, folder, options), links if isinstance(links, Links) else None)
        while True:
            if not _round(folder / f"round-{number}", seed, number, started, means):
                return 1
            number += 1
            if options.round or time.monotonic() - started > options.seconds:
                break
    shutil.rmtree(folder, ignore_errors=True)
    print(f"done: {', '.join(f'{count} {kind}' for kind, count in means.done.most_common())}", flush=True)
    print(f"{number - (options.round or 1)} rounds, all as the oracle has it", flush=True)
    return 0


def _machines(stack: contextlib.ExitStack, folder: Path, options: argparse.Namespace) -> Standalone | None:
    wanted = options.seconds >= _LONG if options.cluster is None else options.cluster
    if not wanted:
        return None
    (folder / "cluster").mkdir()
    return stack.enter_context(standalone(folder / "cluster"))


def _round(folder: Path, seed: int, number: int, started: float, means: Means) -> bool:
    def tell(what: str) -> None:
        # Both clocks: how long it took, and where to look in the logs.
        print(f"[{time.monotonic() - started:6.1f} {time.strftime('%H:%M:%S')}] round {number}: {what}", flush=True)

    try:
        found = Round(folder, Chance(seed * 1009 + number), tell, means).run()
    except AssertionError as wrong:
        tell(f"WRONG: {wrong}")
        again = f"--seed {seed} --round {number} {'--cluster' if means.machines is not None else '--no-cluster'}"
        print(f"kept in {folder}; again with: python -m tests.soak {again}", flush=True)
        return False
    tell(f"right: {found}")
    shutil.rmtree(folder, ignore_errors=True)
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="no new round begins after this (600)")
    parser.add_argument("--seed", type=int, help="of all choices; random unless given, and printed")
    parser.add_argument("--round", type=int, help="run this round alone")
    parser.add_argument(
        "--cluster", action=argparse.BooleanOptionalAction, help=f"with executors to kill (from {_LONG} seconds on)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
