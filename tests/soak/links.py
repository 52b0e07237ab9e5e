"""Packets that get lost and links that are cut: on the loopback of a network that is the soak's own.

The soak starts itself again inside a network namespace (``unshare --net``), and everything that it starts is in there
with it. So no other process on the machine loses a packet. It takes Linux, and ``unshare``, ``ip`` and ``iptables``;
where these are missing or not allowed, the soak says so and does without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

import psutil

_INSIDE = "BEDLOAD_SOAK_NETWORK"
_COMMANDS = ("iptables", "iptables-legacy")


class Links:
    """The loopback of this network."""

    def __init__(self, command: str) -> None:
        self._command = command

    def lose(self, percent: int) -> None:
        """From now on this share of all packets is lost."""
        chance = ("-m", "statistic", "--mode", "random", "--probability", f"{percent / 100:.2f}")
        _run(self._command, "-A", "INPUT", "-i", "lo", *chance, "-j", "DROP")

    def cut(self, port: int) -> None:
        """From now on nothing goes to this port, or comes from it."""
        for end in ("--dport", "--sport"):
            _run(self._command, "-A", "INPUT", "-i", "lo", "-p", "tcp", end, str(port), "-j", "DROP")

    def heal(self) -> None:
        """All is well again."""
        _run(self._command, "-F", "INPUT")


def ports_of(pid: int) -> list[int]:
    """The ports on which a process listens."""
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except psutil.NoSuchProcess:
        return []
    return sorted({item.laddr.port for item in connections if item.status == psutil.CONN_LISTEN})


def own_network(arguments: Sequence[str]) -> Links | str:
    """Go on in a network of this program's own: its links, or why there are none.

    SUBTLE: it does not return at first, but replaces this process by one inside of that network.
    """
    if os.environ.get(_INSIDE):
        return _links()
    if shutil.which("unshare") is None:
        return "there is no program unshare"
    # Whoever is not root gets the rights to its own network in a user namespace, where that is allowed.
    inside = ["unshare", "--net", *([] if os.getuid() == 0 else ["--map-root-user"])]
    try:
        _run(*inside, "true")
    except OSError as error:
        return f"a network namespace cannot be made: {error}"
    return _enter([*inside, sys.executable, "-m", "tests.soak", *arguments])


def _enter(command: list[str]) -> NoReturn:
    # Inside, the machine's own name leads nowhere.
    os.environ.update({_INSIDE: "own", "SPARK_LOCAL_IP": "127.0.0.1"})
    os.execvp(command[0], command)


def _links() -> Links | str:
    try:
        _run("ip", "link", "set", "lo", "up")
    except OSError as error:
        sys.exit(f"the loopback of the network namespace cannot be used: {error}")
    problem = "there is no program iptables"
    for command in _COMMANDS:
        if shutil.which(command) is not None:
            found = Links(command)
            try:
                found.lose(1)
                found.cut(1)
                found.heal()
            except OSError as error:
                problem = f"{command} does not work: {error}"
            else:
                return found
    return problem


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError((done.stderr.strip() or f"{command[0]} ended with {done.returncode}").splitlines()[0])
