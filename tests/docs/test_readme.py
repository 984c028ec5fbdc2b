"""The README as written, with the address of the test's broker: its Python programs and its commands work."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from demo.recording import COLUMNS, HANDLER, PICTURE, STEPS, Line, render
from tests.docs.shell import ADDRESS, ROOT, Shell, blocks
from tidelog import Producer, __version__
from tidelog.testing import Broker

README = (ROOT / "README.md").read_text()
BENCHMARKS = (ROOT / "docs" / "BENCHMARKS.md").read_text()
DURABILITY = (ROOT / "docs" / "DURABILITY.md").read_text()


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
    start, commands, _ = blocks(README, "")
    assert start == "make run\nmake test\n"
    assert commands.startswith("echo hello | tidelog produce greetings\ntidelog consume greetings --from-beginning\n")
    assert "hello\n" in Shell(tmp_path, broker.bootstrap_servers).run(commands)


def test_the_numbers_are_those_of_the_pages_behind_their_links() -> None:
    def measured(page: str, row: str, section: str = "") -> list[str]:
        (line,) = re.findall(rf"^\| {re.escape(row)} \|.*$", page[page.index(section) :], re.MULTILINE)[:1]
        return [re.sub(r" ±.*", "", cell.strip()) for cell in line.split("|")[2:-1]]

    ours, kafkas = measured(BENCHMARKS, "start to first acknowledged message")[:2]
    assert f"| {float(ours.split()[0]):.2f} s | {kafkas} |" in README
    ours, kafkas = measured(BENCHMARKS, "idle memory")[:2]
    assert f"| {float(ours.split()[0]):.0f} MiB | {kafkas} |" in README
    ours, kafkas = measured(BENCHMARKS, "produce 100 B", "**Fsynced**")[:2]
    assert f"| {ours.split(' M ')[0]} million | {int(kafkas.split()[0].replace(',', '')) / 1e6:.2f} million |" in README
    servers = {
        f"Tidelog {__version__}": "Tidelog lost",
        "Apache Kafka 4.3.1": "Kafka",
        "NATS JetStream": "NATS JetStream",
        "Redis Streams": "Redis Streams",
    }
    for row, name in servers.items():
        _, _, acknowledged, lost, _ = measured(DURABILITY, row)
        assert re.sub(r"\s+", " ", README).count(f"{name} {lost} of {acknowledged}") == 1, row


def test_the_picture_shows_what_make_picture_records() -> None:
    text = PICTURE.read_text()
    shown = [line.text or "" for line in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
    commands = [line[2:].removesuffix(" &") for line in shown if line.startswith("$ ")]
    assert commands == [step.command for step in STEPS]
    assert {*HANDLER.split("\n")} <= {*shown}
    assert f"docs/pictures/{PICTURE.name}" in README
    assert all(len(line) <= COLUMNS for line in shown)
    drawn = render([Line(0.5, "$ a < b", is_command=True), Line(1.25, "c & d")])
    assert [each.text for each in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")] == ["$ a < b", "c & d"]
    assert "animation-delay:1.25s" in drawn


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


def test_the_queue(broker: Broker, tmp_path: Path) -> None:
    (command,) = re.findall("`(tidelog queues create .*)`", README)
    Shell(tmp_path, broker.bootstrap_servers).run(command + "\n")
    assert run_python(program("Queue(").replace(ADDRESS, broker.bootstrap_servers)) == "resize cat.png\n"


def test_the_broker_for_tests() -> None:
    assert run_python(program("tidelog.testing")).startswith("127.0.0.1:")
