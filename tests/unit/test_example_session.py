"""The demo says clearly that Java is missing, and keeps children's output off the terminal."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from examples.traffic.__main__ import main
from examples.traffic.session import Interrupt, _output_to, missing_java, tail


def make_java(folder: Path) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    return java


def test_java_is_looked_for_where_spark_looks(tmp_path: Path) -> None:
    java = make_java(tmp_path / "jdk")
    assert missing_java({"JAVA_HOME": str(tmp_path / "jdk"), "PATH": ""}) is None
    assert missing_java({"PATH": str(java.parent)}) is None


def test_a_missing_java_is_said_with_the_reason(tmp_path: Path) -> None:
    assert missing_java({"PATH": str(tmp_path)}) == "JAVA_HOME is not set, and no java is on the PATH"
    # Spark goes by JAVA_HOME even where the PATH has a good one.
    java = make_java(tmp_path / "jdk")
    why = missing_java({"JAVA_HOME": str(tmp_path / "none"), "PATH": str(java.parent)})
    assert why == f"JAVA_HOME is {tmp_path / 'none'}, which has no bin/java"


def test_the_demo_without_java_names_make_setup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(["--seconds", "1"]) == 1
    assert "make setup" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--cars", "0"], ["--rate", "-5"], ["--seconds", "soon"], ["--json", "/no/such/x"]]
)
def test_arguments_that_make_no_sense_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_help_names_every_option_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    for option in ("--cars", "--rate", "--workers", "--seconds", "--segments", "--seed", "--plain", "--json"):
        assert option in text
    assert "(default: 20000)" in text


def test_children_print_to_the_log_and_only_meanwhile(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "spark.log"
    speak = [sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr)"]
    with _output_to(log):
        subprocess.run(speak, check=True)
    assert capfd.readouterr() == ("", "")
    assert sorted(log.read_text().split()) == ["err", "out"]
    subprocess.run(speak, check=True)
    assert capfd.readouterr() == ("out\n", "err\n")


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == ""
    log.write_text("\n".join(map(str, range(40))))
    assert tail(log, 2) == "38\n39"


def test_ctrl_c_is_noted_for_the_next_check_and_the_second_one_acts_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        interrupt.check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
