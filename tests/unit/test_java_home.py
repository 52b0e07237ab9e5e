"""The search for Java: what is decided, what is parsed, and what is printed, with shell scripts as Javas."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "java_home.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("java_home", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


jh = _load()

ROOT_WITH_APT = jh.Host(root=True, apt=True)
USER_WITH_APT = jh.Host(root=False, apt=True)
ROOT_ELSEWHERE = jh.Host(root=True, apt=False)


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def fake_java(home: Path, version: str, *, vector: bool = True, says_home: Path | None = None) -> Path:
    """A home whose java says its version as the real one does: on standard error."""
    script(
        home / "bin" / "java",
        f"""\
case "$*" in *jdk.incubator.vector*) {"true" if vector else 'echo "Module not found" >&2; exit 1'};; esac
{f'echo "    java.home = {says_home}" >&2' if says_home else ":"}
echo 'openjdk version "{version}" 2025-04-15' >&2""",
    )
    return home


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No JAVA_HOME, and a PATH with one empty folder, which is returned."""
    path = tmp_path / "path"
    path.mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(path))
    return path


@pytest.mark.parametrize(
    ("line", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('java version "1.8.0_392"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "17.0.1"', 17),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", 0),
    ],
)
def test_the_major_version_is_read_from_every_form_of_the_version_line(line: str, major: int) -> None:
    assert jh.parse_major(line) == major


def test_the_first_usable_java_is_used_even_if_it_could_be_installed() -> None:
    found = [jh.Java("/old", 11, "is Java 11"), jh.Java("/good", 17), jh.Java("/newer", 21)]
    assert jh.decide(found, ROOT_WITH_APT, install=True) == jh.Use("/good")


def test_root_with_apt_installs_when_asked_to() -> None:
    assert jh.decide([], ROOT_WITH_APT, install=True) == jh.Install()


@pytest.mark.parametrize(("host", "install"), [(ROOT_WITH_APT, False), (USER_WITH_APT, True), (ROOT_ELSEWHERE, True)])
def test_whoever_may_not_install_is_told_the_commands(host: object, install: bool) -> None:
    plan = jh.decide([jh.Java("/old", 11, "is Java 11")], host, install=install)
    assert isinstance(plan, jh.Tell)
    assert "/old: is Java 11" in plan.message
    assert "sudo apt-get install -y openjdk-17-jre-headless" in plan.message
    assert "sudo dnf install -y java-21-openjdk-headless" in plan.message
    assert "brew install openjdk@17" in plan.message


@pytest.mark.parametrize(
    ("majors", "package"),
    [
        ([11, 17], "openjdk-17-jre-headless"),
        ([17, 21, 25], "openjdk-17-jre-headless"),
        ([21, 25], "openjdk-21-jre-headless"),
        ([22, 24], "openjdk-24-jre-headless"),
        ([8, 11], None),
        ([], None),
    ],
)
def test_apt_gives_17_then_21_then_the_newest(majors: list[int], package: str | None) -> None:
    listing = "".join(f"openjdk-{m}-jre-headless - OpenJDK Java runtime\n" for m in majors)
    assert jh.pick_package(listing) == package


def test_java_home_comes_before_the_path_and_the_path_before_the_folders(tmp_path: Path) -> None:
    chosen = fake_java(tmp_path / "chosen", "21.0.1")
    on_path = fake_java(tmp_path / "on-path", "22.0.1")
    fake_java(tmp_path / "jvm" / "java-17", "17.0.1")
    env = {"JAVA_HOME": str(chosen), "PATH": str(on_path / "bin")}
    found = list(jh.find(env, [f"{tmp_path}/jvm/*"]))
    assert [java.major for java in found] == [21, 22, 17]
    assert not any(java.problem for java in found)


def test_folders_offer_17_then_21_then_the_newest_and_a_link_only_once(tmp_path: Path) -> None:
    for major in (11, 17, 21, 25):
        fake_java(tmp_path / "jvm" / f"java-{major}", f"{major}.0.1")
    (tmp_path / "jvm" / "default").symlink_to("java-21")
    found = jh.find({"PATH": ""}, [f"{tmp_path}/jvm/*"])
    assert [java.major for java in found] == [17, 21, 25, 11]


def test_a_shim_on_the_path_is_asked_for_its_home(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "real", "17.0.1")
    shims = fake_java(tmp_path / "shims", "17.0.1", says_home=real)
    (java,) = jh.find({"PATH": str(shims / "bin")}, [])
    assert java == jh.Java(str(real), 17)


def test_a_link_on_the_path_leads_to_the_home_behind_it(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jvm", "17.0.1")
    links = tmp_path / "bin"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    (java,) = jh.find({"PATH": str(links)}, [])
    assert java == jh.Java(str(home), 17)


def test_each_unusable_java_says_why(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    bare = fake_java(tmp_path / "bare", "17.0.1", vector=False)
    stub = tmp_path / "stub"
    script(stub / "bin" / "java", "echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    problems = [jh.probe(home / "bin" / "java", str(home)).problem for home in (old, bare, stub)]
    assert problems[0] == "is Java 11"
    assert problems[1] == "is Java 17 without the module jdk.incubator.vector"
    assert problems[2].endswith("Unable to locate a Java Runtime.")


def test_a_java_home_without_java_is_reported_and_passed_over(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = fake_java(tmp_path / "jvm" / "java-17", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert jh.main(["--folders", f"{tmp_path}/jvm/*"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{good}\n"
    assert f"Passed over {tmp_path / 'gone'}" in printed.err


def test_without_java_nothing_is_printed_but_advice(no_java: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert jh.main(["--folders"], host=ROOT_WITH_APT) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Spark needs Java 17" in printed.err


@pytest.fixture
def apt(no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An apt that knows Java 21, notes its calls in the file returned, and installs a fake one."""
    calls = tmp_path / "calls"
    installed = fake_java(tmp_path / "package" / "java-21", "21.0.1").parent
    script(no_java / "apt-cache", "echo 'openjdk-21-jre-headless - OpenJDK Java runtime'")
    script(
        no_java / "apt-get",
        f"""\
echo "$@" >> {calls}
[ "$1" = install ] || exit 0
[ ! -e {tmp_path}/broken ] || {{ echo "no such mirror"; exit 100; }}
/bin/mv {installed} {tmp_path}/jvm""",
    )
    monkeypatch.setattr(jh, "MANUAL_PAGES", tmp_path / "man")
    return calls


def test_an_installed_java_is_found_and_printed(apt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--install", "--log", str(tmp_path / "log"), "--folders", f"{tmp_path}/jvm/*"]
    assert jh.main(arguments, host=ROOT_WITH_APT) == 0
    assert capsys.readouterr().out == f"{tmp_path}/jvm/java-21\n"
    assert apt.read_text().splitlines() == [
        "update",
        "install -y --no-install-recommends openjdk-21-jre-headless",
    ]


def test_a_failed_installation_shows_the_end_of_its_log_and_the_advice(
    apt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken").touch()
    arguments = ["--install", "--log", str(tmp_path / "log"), "--folders", f"{tmp_path}/jvm/*"]
    assert jh.main(arguments, host=ROOT_WITH_APT) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "no such mirror" in printed.err
    assert "Spark needs Java 17" in printed.err


def test_nothing_is_installed_unless_asked_for(apt: Path, tmp_path: Path) -> None:
    assert jh.main(["--folders", f"{tmp_path}/jvm/*"], host=ROOT_WITH_APT) == 1
    assert not apt.exists()


def test_help_names_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        jh.main(["--help"])
    assert stop.value.code == 0
    assert "--install" in capsys.readouterr().out


def test_the_script_can_be_executed() -> None:
    assert os.access(SCRIPT, os.X_OK)
