"""Consumers and tables that are killed at random points, and the broker beside them. The ledger at the end: at least once means
that every message was handled and no offset committed beyond what was; at most once means that none was handled twice; a
table's file is what a fresh load makes. The seed is printed with a failure, TIDELOG_SEED takes it; TIDELOG_KILL_ROUNDS
kills more often."""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.client.consuming import new_group, until
from tests.client.producing import new_topic
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.consumer import Consumer
from tidelog.client.producer import Producer
from tidelog.client.table import Table
from tidelog.client.topic_partition import TopicPartition
from tidelog.testing import Broker

ROOT = Path(__file__).parents[2]
ROUNDS = int(os.environ.get("TIDELOG_KILL_ROUNDS", "4"))
SEED = int(os.environ.get("TIDELOG_SEED", random.randrange(1 << 32)))
PARTITIONS = 3
# How many messages a reader handles at most before it is killed.
HANDLED_MAX = 400

pytestmark = pytest.mark.tidelog_only


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(configs={"group.min.session.timeout.ms": 500}) as started:
        yield started


class Ledger:
    """Processes that print into files of one directory; what they printed, whoever of them it was."""

    def __init__(self, path: Path, *arguments: str) -> None:
        self._path = path
        self._arguments = arguments
        self._started = 0

    def start(self) -> "subprocess.Popen[bytes]":
        self._started += 1
        command = [sys.executable, "-m", "tests.client.consumer_process", *self._arguments]
        output = self._path / f"{self._started}.out"
        with output.open("wb") as file, output.with_suffix(".err").open("wb") as errors:
            return subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=errors)

    def lines(self) -> list[str]:
        return [line for path in sorted(self._path.glob("*.out")) for line in path.read_text().split("\n")[:-1]]

    def handled(self) -> Counter[tuple[int, int]]:
        """By (partition, offset), how often."""
        return Counter((int(partition), int(offset)) for partition, offset in map(str.split, self.lines()))

    def complaints(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._path.glob("*.err")))


def fill(broker: Broker, topic: str, rounds: int, count: int) -> None:
    with Producer(broker.bootstrap_servers, linger_ms=1) as producer:
        for number in range(count):
            producer.send(topic, f"{rounds}-{number}", partition=number % PARTITIONS)
        producer.flush(60)


def committed(broker: Broker, group: str, topic: str) -> dict[TopicPartition, int]:
    with Consumer(broker.bootstrap_servers, group=group) as consumer:
        return consumer._lookup.committed([TopicPartition(topic, partition) for partition in range(PARTITIONS)], 30)


def ends(broker: Broker, topic: str) -> dict[TopicPartition, int]:
    with Consumer(broker.bootstrap_servers) as consumer:
        return consumer._lookup.ends([TopicPartition(topic, partition) for partition in range(PARTITIONS)], 30)


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_consumers(broker: Broker, guarantee: str, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    topic, group = new_topic(ToolkitBroker(broker.bootstrap_servers), PARTITIONS), new_group()
    ledger = Ledger(tmp_path, "consume", broker.bootstrap_servers, topic, group, guarantee)
    readers = [ledger.start() for _ in range(2)]
    try:
        for number in range(ROUNDS):
            enough = ledger.handled().total() + chance.randint(1, HANDLED_MAX)
            fill(broker, topic, number, 600)
            wait_for_handled(ledger, enough)
            if number % 2:
                broker.kill()
                broker.start()
            victim = chance.randrange(2)
            readers[victim].kill()
            readers[victim].wait()
            check(broker, guarantee, ledger, topic, group)
            readers[victim] = ledger.start()
        fill(broker, topic, ROUNDS, 30)
        last = ends(broker, topic)
        until(lambda: committed(broker, group, topic) == last)
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()
    check(broker, guarantee, ledger, topic, group)
    if guarantee == "at-least-once":
        wanted = {(partition, offset) for (_, partition), end in last.items() for offset in range(end)}
        assert set(ledger.handled()) == wanted, f"seed {SEED}: {sorted(wanted - set(ledger.handled()))[:10]}"


def wait_for_handled(ledger: Ledger, count: int) -> None:
    try:
        until(lambda: ledger.handled().total() >= count)
    except AssertionError as error:
        raise AssertionError(f"seed {SEED}: {ledger.handled().total()} of {count} handled\n{ledger.complaints()}") from error


def check(broker: Broker, guarantee: str, ledger: Ledger, topic: str, group: str) -> None:
    """What holds at every moment."""
    if guarantee == "at-least-once":
        # First what is committed: what is handled only grows.
        offsets = committed(broker, group, topic)
        handled = ledger.handled()
        beyond = [
            (partition, offset)
            for (_, partition), end in offsets.items()
            for offset in range(end)
            if (partition, offset) not in handled
        ]
        assert not beyond, f"seed {SEED}: committed and never handled: {beyond[:10]}\n{ledger.complaints()}"
    else:
        twice = [place for place, times in ledger.handled().items() if times > 1]
        assert not twice, f"seed {SEED}: handled twice: {twice[:10]}\n{ledger.complaints()}"


def test_tables(broker: Broker, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    topic = new_topic(ToolkitBroker(broker.bootstrap_servers), PARTITIONS, {"cleanup.policy": "compact"})
    (tmp_path / "output").mkdir()
    path = tmp_path / "table.db"
    ledger = Ledger(tmp_path / "output", "table", broker.bootstrap_servers, topic, str(path))
    for number in range(ROUNDS):
        follower = ledger.start()
        try:
            # In the middle of a load, or of following.
            grown = chance.choice([1, 40_000, 200_000])
            with Producer(broker.bootstrap_servers, linger_ms=1) as producer:
                for row in range(4_000):
                    value = None if chance.random() < 0.2 else f"{number}-{row}"
                    producer.send(topic, value, key=f"key-{chance.randrange(1_000)}")
                producer.flush(60)
            until(lambda grown=grown: size(path) >= grown)  # type: ignore[misc]  # a default
        finally:
            follower.kill()
            follower.wait()
        with (
            Table(topic, bootstrap=broker.bootstrap_servers) as fresh,
            Table(topic, bootstrap=broker.bootstrap_servers, storage=f"sqlite:{path}") as kept,
        ):
            fresh.wait_ready(60)
            kept.wait_ready(60)
            assert dict(kept.rows()) == dict(fresh.rows()), f"seed {SEED}\n{ledger.complaints()}"
            assert number == 0 or kept._follower.loads == 0


def size(path: Path) -> int:
    """Of the file and its log."""
    sizes = []
    for one in path.parent.glob(f"{path.name}*"):
        # SQLite's journal comes and goes.
        with suppress(FileNotFoundError):
            sizes.append(one.stat().st_size)
    return sum(sizes)
