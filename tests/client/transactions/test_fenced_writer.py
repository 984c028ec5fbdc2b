"""Compare and set on a topic: whoever begins last is the only one who can commit."""

import secrets
from collections.abc import Iterator

import pytest

from tests.client.wire.fake_broker import HANG_UP, FakeBroker
from tests.compatibility.apache_kafka import wait_until
from tests.compatibility.kafka_client import read_partition
from tidelog.client.transactions.fenced_writer import FencedWriter, WriterFenced
from tidelog.client.wire.brokers import Brokers
from tidelog.client.wire.errors import BrokerError, UnknownPartition
from tidelog.testing import Broker
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

NOW_MS = 1_700_000_000_000


@pytest.fixture
def brokers(broker: Broker) -> Iterator[Brokers]:
    brokers = Brokers(broker.bootstrap_servers, "test", 3, 20)
    yield brokers
    brokers.close()


def committed(broker: Broker, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    """When there are that many: the markers follow the answer to a commit."""

    def read() -> list[tuple[bytes | None, bytes | None]]:
        found = read_partition(broker.bootstrap_servers, topic, 0, committed_only=True).records
        return [(record.key, record.value) for record in found]

    wait_until(lambda: len(read()) >= count, "the marker is written", 30)
    return read()


def test_records_are_there_when_they_are_committed(brokers: Brokers, broker: Broker, topic: str) -> None:
    writer = FencedWriter(brokers, f"id-{secrets.token_hex(4)}", 60_000)
    writer.begin()
    writer.write(topic, 0, [(b"a", b"1"), (b"b", None)], NOW_MS)
    writer.write(topic, 0, [(b"c", b"3")], NOW_MS)
    assert committed(broker, topic, 0) == []
    writer.commit()
    assert committed(broker, topic, 3) == [(b"a", b"1"), (b"b", None), (b"c", b"3")]
    writer.begin()
    writer.write(topic, 0, [(b"d", b"4")], NOW_MS)
    writer.commit()
    assert committed(broker, topic, 4)[3:] == [(b"d", b"4")]


def test_whoever_begins_later_wins(brokers: Brokers, broker: Broker, topic: str) -> None:
    name = f"id-{secrets.token_hex(4)}"
    early, late = FencedWriter(brokers, name, 60_000), FencedWriter(brokers, name, 60_000)
    early.begin()
    early.write(topic, 0, [(b"a", b"early")], NOW_MS)
    late.begin()
    with pytest.raises(WriterFenced, match=f"END_TXN of {name}"):
        early.commit()
    with pytest.raises(WriterFenced):
        early.write(topic, 0, [(b"a", b"early")], NOW_MS)
    late.write(topic, 0, [(b"a", b"late")], NOW_MS)
    late.commit()
    assert committed(broker, topic, 1) == [(b"a", b"late")]


def test_a_partition_that_there_is_not(brokers: Brokers, topic: str) -> None:
    writer = FencedWriter(brokers, f"id-{secrets.token_hex(4)}", 60_000)
    writer.begin()
    brokers.request_seconds_max = 1
    with pytest.raises((UnknownPartition, BrokerError)):
        writer.write(topic, 9, [(b"a", b"b")], NOW_MS)


def test_lost_answers_are_asked_for_again(fake: FakeBroker) -> None:
    fake.versions |= {
        ApiKey.INIT_PRODUCER_ID: (0, 5),
        ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
        ApiKey.PRODUCE: (3, 12),
        ApiKey.END_TXN: (0, 5),
    }
    fake.answer(
        ApiKey.FIND_COORDINATOR,
        {"coordinators": [{"key": "id", "node_id": 1, "host": "x", "port": 1, "error_code": 0}]},
    )
    busy = {"error_code": ErrorCode.CONCURRENT_TRANSACTIONS, "producer_id": -1, "producer_epoch": -1}
    fake.answer(ApiKey.INIT_PRODUCER_ID, busy, {"error_code": 0, "producer_id": 9, "producer_epoch": 4})
    added = [{"name": "t", "results_by_partition": [{"partition_index": 0, "partition_error_code": 0}]}]
    fake.answer(ApiKey.ADD_PARTITIONS_TO_TXN, {"results_by_topic_v3_and_below": added})
    written = {"index": 0, "error_code": 0, "base_offset": 0, "log_append_time_ms": -1, "log_start_offset": 0}
    moved = {**written, "error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER}

    def produced(result: dict[str, int]) -> dict[str, object]:
        return {"responses": [{"name": "t", "partition_responses": [result]}]}

    fake.answer(ApiKey.PRODUCE, produced(moved), HANG_UP, produced(written))
    fake.answer(ApiKey.END_TXN, HANG_UP, {"error_code": 0})
    brokers = Brokers(fake.bootstrap_servers, "test", 3, 5)
    writer = FencedWriter(brokers, "id", 60_000)
    writer.begin()
    writer.write("t", 0, [(b"k", b"v")], NOW_MS)
    writer.commit()
    done = len(fake.requests)
    writer.write("t", 0, [(b"k", b"v")], NOW_MS)
    writer.commit()
    apis = [api for api, _, _ in fake.requests[done:]]
    assert apis[-3:] == [ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.PRODUCE, ApiKey.END_TXN]
    assert apis.count(ApiKey.METADATA) == 0, "brokers and leaders are known"
    del fake.requests[done:]
    brokers.close()
    # The very same bytes, whose sequence number the broker has seen: it does not write them twice.
    first, *others = [bytes(each.topic_data[0].partition_data[0].records) for each in fake.asked(ApiKey.PRODUCE)]
    assert others == [first, first]
    assert [(each.producer_id, each.producer_epoch, each.committed) for each in fake.asked(ApiKey.END_TXN)] == [(9, 4, True)] * 2
    assert {version for api, version, _ in fake.requests if api is ApiKey.PRODUCE} == {11}
