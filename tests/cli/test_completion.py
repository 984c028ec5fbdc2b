"""Completion in shells: the script is one that the shell takes, and Tab finds commands, options, topics and groups."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.cli.command import Command, new_topic_name
from tidelog.cli.main import main


def completed(words: list[str], address: str) -> list[str]:
    """What bash gets for a Tab at the end of ``words``."""
    environment = {
        **os.environ,
        "_TIDELOG_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["tidelog", *words]),
        "COMP_CWORD": str(len(words)),
        "TIDELOG_BOOTSTRAP": address,
    }
    script = "from tidelog.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_the_shell_takes(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_TIDELOG_COMPLETE=complete_" + shell in script
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed here, so it cannot judge the script")
    subprocess.run([program, "-n", "-c", script], check=True)


def test_a_shell_without_completion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 1
    assert "only for bash, zsh, fish" in capsys.readouterr().err


def test_commands_options_topics_and_groups(command: Command) -> None:
    topic, address = new_topic_name(), command.bootstrap
    assert command("topics", "create", topic).code == 0
    assert command("consume", topic, "--group", f"group-{topic}").code == 0
    assert completed(["t"], address) == ["topics", "transactions"]
    assert completed(["topics", "de"], address) == ["describe", "delete", "delete-records"]
    assert "--partitions" in completed(["topics", "create", "--p"], address)
    assert completed(["topics", "describe", topic[:-2]], address) == [topic]
    assert completed(["consume", topic[:-2]], address) == [topic]
    assert completed(["groups", "describe", f"group-{topic}"[:-2]], address) == [f"group-{topic}"]
    assert completed(["topics", "describe", topic[:-2]], "127.0.0.1:1") == []
