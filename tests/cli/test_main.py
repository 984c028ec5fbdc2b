"""The command's shell: version, help, and every error one line and an exit code."""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import typer

from tidelog.build import build_name
from tidelog.cli.main import main
from tidelog.config.types import InvalidSetting
from tidelog.log.errors import DirectoryLocked
from tidelog.ports.executor import ChildTaskError
from tidelog.records.errors import UnsupportedMagic


def groups_with(command: Callable[[], int | None]) -> dict[str, typer.Typer]:
    group = typer.Typer()
    group.command("one")(command)
    group.command("two")(lambda: None)
    return {"planted": group}


def raising(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tidelog {version('tidelog')} ({build_name()})\n"


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_names_the_command_groups(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments, groups_with(lambda: None)) == 0
    captured = capsys.readouterr()
    assert "Usage: tidelog" in captured.out
    assert "planted" in captured.out
    assert captured.err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "tidelog: No such command 'nothing'. (try: tidelog --help)\n"),
        (["--nothing"], "tidelog: No such option: --nothing (try: tidelog --help)\n"),
    ],
)
def test_a_command_line_without_sense_is_one_line_and_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err == message
    assert captured.out == ""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FileNotFoundError(2, "No such file or directory", "orders-0"), "tidelog: orders-0: No such file or directory\n"),
        (OSError(28, "No space left on device"), "tidelog: No space left on device\n"),
        (OSError("the disk is gone"), "tidelog: the disk is gone\n"),
        (InvalidSetting("segment.bytes", "12", "expected\nmore"), "tidelog: segment.bytes=12: expected more\n"),
        (DirectoryLocked("another process uses data"), "tidelog: another process uses data\n"),
        (UnsupportedMagic("magic 7"), "tidelog: magic 7\n"),
        (ChildTaskError("the child ended"), "tidelog: the child ended\n"),
    ],
)
def test_a_known_error_is_one_line_and_1(error: Exception, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["planted", "one"], groups_with(raising(error))) == 1
    captured = capsys.readouterr()
    assert captured.err == message
    assert captured.out == ""


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), typer.Abort()])
def test_an_interruption_is_silent_and_130(interruption: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["planted", "one"], groups_with(raising(interruption))) == 130
    assert capsys.readouterr().err == ""


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        main(["planted", "one"], groups_with(raising(ZeroDivisionError())))


def test_a_command_may_return_its_exit_code() -> None:
    assert main(["planted", "one"], groups_with(lambda: 3)) == 3
    assert main(["planted", "one"], groups_with(lambda: None)) == 0
    assert main(["planted", "one"], groups_with(raising(typer.Exit(4)))) == 4


def test_the_installed_command() -> None:
    command = Path(sys.executable).with_name("tidelog")
    finished = subprocess.run([command, "nothing"], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 2
    assert finished.stderr == "tidelog: No such command 'nothing'. (try: tidelog --help)\n"
