"""A data directory of every earlier state opens today and has all that it had: nobody's upgrade loses a message."""

from pathlib import Path

import pytest

from tests.compatibility.apache_kafka import wait_until
from tests.compatibility.kafka_client import make_producer, read_partition, send
from tests.compatibility.kafka_fixtures import Expected, read_expected, unpack
from tests.compatibility.kafka_records import SentRecord
from tests.compatibility.tidelog_fixtures import FIXTURE_NAMES, KILLED, NEVER_EXPIRES, expected_state, read_state
from tidelog.testing import Broker

# In the killed fixture: two records of a transaction that nobody ended, and the marker of its abort.
LEFT_OPEN = {"transactions": 3}


def topics_of(expected: Expected) -> list[str]:
    return list(dict.fromkeys(partition.topic for partition in expected.partitions))


def settle(servers: str, topic: str, partition: int, end: int) -> None:
    def is_settled() -> bool:
        return read_partition(servers, topic, partition, committed_only=True).end_offset == end

    wait_until(is_settled, f"the last stable offset of {topic}-{partition} is {end}")


@pytest.mark.parametrize("name", FIXTURE_NAMES)
def test_an_earlier_directory_opens_with_all_that_it_held(name: str, tmp_path: Path) -> None:
    path = unpack(name, tmp_path / "data")
    expected = read_expected(name)
    soon = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    with Broker(persist=path, configs={**NEVER_EXPIRES, **soon}) as broker:
        servers = broker.bootstrap_servers
        for partition in expected.partitions:
            added = LEFT_OPEN.get(partition.topic, 0) if name == KILLED else 0
            end = partition.high_watermark + added
            at = (partition.topic, partition.partition)
            settle(servers, *at, end)
            committed = read_partition(servers, *at, committed_only=True)
            everything = read_partition(servers, *at, committed_only=False)
            assert (everything.log_start_offset, everything.end_offset) == (partition.log_start_offset, end)
            assert everything.records[: len(partition.records)] == partition.records
            assert [record.offset for record in committed.records] == partition.committed_offsets
        state = read_state(servers, topics_of(expected))
        state["transactional_ids"].pop("left-open", None)
        assert state == expected_state(name)
        offsets = send(make_producer(servers), "plain", [SentRecord(b"k", b"after the upgrade", expected.made_ms)])
        assert offsets == [next(at.high_watermark for at in expected.partitions if at.topic == "plain")]
