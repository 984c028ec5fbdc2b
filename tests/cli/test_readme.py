"""What README shows works as it stands there, address aside."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import Command
from tidelog import Producer

README = (Path(__file__).resolve().parent.parent.parent / "README.md").read_text()
PYTHON_BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SHELL_BLOCKS = re.findall(r"```\n(.*?)```", README, re.DOTALL)
ADDRESS = "127.0.0.1:9092"


def run_python(block: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", block], capture_output=True, text=True, timeout=60, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_the_first_message_in_python(fresh_command: Command) -> None:
    (block,) = (block for block in PYTHON_BLOCKS if "Producer(" in block)
    assert "b'customer-42' b'hello from Python'" in run_python(block.replace(ADDRESS, fresh_command.bootstrap))


def test_the_worker(fresh_command: Command) -> None:
    (block,) = (block for block in PYTHON_BLOCKS if "Worker(" in block)
    with Producer(fresh_command.bootstrap) as producer:
        producer.send("greetings", key="customer-42", value="hello").result(30)
    block = block.replace(ADDRESS, fresh_command.bootstrap)
    # In the README it runs until somebody stops it.
    block = block.replace("message.text())\n", "message.text())\n    worker.stop()\n")
    assert "to b'customer-42' hello" in run_python(block)


def test_the_broker_for_tests() -> None:
    (block,) = (block for block in PYTHON_BLOCKS if "tidelog.testing" in block)
    assert run_python(block).startswith("127.0.0.1:")


@pytest.mark.parametrize("line", [line for line in SHELL_BLOCKS[1].splitlines() if line.startswith("tidelog ")])
def test_the_commands(fresh_command: Command, line: str) -> None:
    fresh_command("produce", "greetings", stdin=b"hello\n")
    assert fresh_command(*line.split()[1:]).code == 0


def test_a_newcomers_commands_are_there() -> None:
    assert SHELL_BLOCKS[0] == "make install\nmake run\n"
    assert SHELL_BLOCKS[1].startswith("echo hello | tidelog produce greetings\ntidelog consume greetings --from-beginning\n")
