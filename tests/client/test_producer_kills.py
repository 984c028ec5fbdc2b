"""Producers that are killed at random points, and the broker beside them. The ledger at the end: nothing acknowledged is lost,
nothing is doubled where that is promised, keys are in order. The seed is printed with a failure, TIDELOG_SEED takes it."""

import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self

import pytest

from tests.client.producing import new_topic, read, values
from tests.compatibility.apache_kafka import wait_until
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.admin import Admin
from tidelog.client.producer import Producer
from tidelog.testing import Broker

ROOT = Path(__file__).parents[2]
ROUNDS = int(os.environ.get("TIDELOG_KILL_ROUNDS", "5"))
SEED = int(os.environ.get("TIDELOG_SEED", random.randrange(1 << 32)))
FINISH_SECONDS_MAX = 120

pytestmark = pytest.mark.tidelog_only


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(configs={"group.initial.rebalance.delay.ms": 0}) as started:
        yield started


class Child:
    """A process of ``producer_process``, and the lines that it printed."""

    def __init__(self, output: Path, *arguments: str) -> None:
        self._path = output
        command = [sys.executable, "-m", "tests.client.producer_process", *arguments]
        with output.open("w") as file, output.with_suffix(".err").open("w") as errors:
            self.process = _start(command, file, errors)

    def lines(self) -> list[str]:
        """Whole ones: the last may be cut."""
        return self._path.read_text().split("\n")[:-1]

    def wait_for(self, count: int) -> None:
        """Until it has printed so many lines, or has ended."""
        wait_until(lambda: len(self.lines()) >= count or self.process.poll() is not None, f"{count} lines of the process")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Killed, at the end of the block."""
        self.process.kill()
        self.process.wait()

    def finish(self) -> None:
        code = self.process.wait(FINISH_SECONDS_MAX)
        assert code == 0, self._path.with_suffix(".err").read_text()


def _start(command: list[str], output: IO[str], errors: IO[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=errors, text=True)


def test_what_was_acknowledged_is_there_once_whatever_is_killed(broker: Broker, tmp_path: Path) -> None:
    kafka, chance = ToolkitBroker(broker.bootstrap_servers), random.Random(SEED)
    topic = new_topic(kafka)
    acknowledged: set[str] = set()
    for number in range(ROUNDS):
        with Child(tmp_path / f"plain-{number}", "plain", kafka.bootstrap, topic, f"{number}") as child:
            child.wait_for(chance.randrange(50, 3000))
            if number % 2:
                broker.kill()
                broker.start()
                child.wait_for(len(child.lines()) + chance.randrange(1, 500))
            assert child.process.poll() is None, "it ended by itself"
        acknowledged |= {f"{number}:{line}" for line in child.lines()}
    found = [value.decode() for value in values(read(kafka, topic, None)) if value]
    assert acknowledged - set(found) == set(), f"lost; seed {SEED}"
    assert len(found) == len(set(found)), f"doubled; seed {SEED}"
    for number in range(ROUNDS):
        own = [int(value.split(":")[1]) for value in found if value.startswith(f"{number}:")]
        assert own == list(range(len(own))), f"out of order, or a gap; seed {SEED}"


def test_a_transformation_is_exactly_once_whatever_is_killed(broker: Broker, tmp_path: Path) -> None:
    kafka, chance = ToolkitBroker(broker.bootstrap_servers), random.Random(SEED)
    source, target = new_topic(kafka, partitions=2), new_topic(kafka, partitions=3)
    group, count = f"group-{source}", 3000
    with Producer(kafka.bootstrap) as producer:
        for number in range(count):
            producer.send(source, f"{number}", key=f"key-{number % 20}")
    arguments = ("transform", kafka.bootstrap, source, target, group, str(count))
    for number in range(ROUNDS):
        with Child(tmp_path / f"transform-{number}", *arguments) as child:
            child.wait_for(chance.randrange(1, 8))
            if number % 2:
                broker.kill()
                broker.start()
    with Child(tmp_path / "last", *arguments) as child:
        child.finish()
    by_key: dict[bytes, list[int]] = defaultdict(list)
    for message in read(kafka, target, count):
        by_key[message.key()].append(int(message.value()))
    for key, numbers in by_key.items():
        assert numbers == list(range(int(key.split(b"-")[1]), count, 20)), f"seed {SEED}"
    with Admin(kafka.bootstrap) as admin:
        assert sum(admin.group_offsets(group).values()) == count
