"""The README as written, with the address of the test's broker: its Python programs and its commands work."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.shell import ADDRESS, ROOT, Shell, blocks
from tidelog import Producer
from tidelog.testing import Broker

README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def run_python(block: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", block], capture_output=True, text=True, timeout=60, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def program(text: str) -> str:
    (block,) = (block for block in blocks(README, "python") if text in block)
    return block


def test_the_commands(broker: Broker, tmp_path: Path) -> None:
    install, commands, _ = blocks(README, "")
    assert install == "make install\nmake run\n"
    assert commands.startswith("echo hello | tidelog produce greetings\ntidelog consume greetings --from-beginning\n")
    assert "hello\n" in Shell(tmp_path, broker.bootstrap_servers).run(commands)


def test_the_first_message_in_python(broker: Broker) -> None:
    assert "b'customer-42' b'hello from Python'" in run_python(program("Producer(").replace(ADDRESS, broker.bootstrap_servers))


def test_the_worker(broker: Broker) -> None:
    with Producer(broker.bootstrap_servers) as producer:
        producer.send("greetings", key="customer-42", value="hello").result(30)
    block = program("Worker(").replace(ADDRESS, broker.bootstrap_servers)
    # In the README it runs until somebody stops it.
    block = block.replace(
        "message.text())\n", "message.text())\n    if message.key and message.text() == 'hello':\n        worker.stop()\n"
    )
    assert "to b'customer-42' hello" in run_python(block)


def test_the_broker_for_tests() -> None:
    assert run_python(program("tidelog.testing")).startswith("127.0.0.1:")
