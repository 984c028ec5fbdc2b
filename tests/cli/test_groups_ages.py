"""The times of single records, fetched from a real broker."""

import json

import pytest

from tests.cli.command import Command
from tidelog.cli import groups_ages
from tidelog.cli.groups_ages import RecordTimes
from tidelog.cli.kafka import Cluster

NOON_MS = 1_768_478_400_000


def test_each_by_its_offset(command: Command, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps({"value": "x" * 3000, "partition": n % 2, "timestamp": NOON_MS + n}) for n in range(20)]
    assert command("produce", topic, "--jsonl", stdin="\n".join(lines).encode()).code == 0
    times = RecordTimes(Cluster(command.bootstrap, None))
    assert times.find({(topic, 0): 0, (topic, 1): 9}) == {(topic, 0): NOON_MS, (topic, 1): NOON_MS + 19}
    assert times.find({(topic, 0): 4}) == {(topic, 0): NOON_MS + 8}
    assert times.find({(topic, 1): 10}) == {(topic, 1): None}, "nothing is there yet"

    def nothing(*_: object) -> None:
        raise AssertionError("it is known")

    monkeypatch.setattr(groups_ages, "_fetch", nothing)
    assert times.find({(topic, 0): 4}) == {(topic, 0): NOON_MS + 8}
    assert times.find({}) == {}
