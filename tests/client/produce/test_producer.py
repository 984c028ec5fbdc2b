"""The producer of columns: read back by librdkafka from a real broker, and against a broker that answers as the test wants."""

import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.client.producing import new_topic, read
from tests.client.wire.fake_broker import HANG_UP, FakeBroker
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.fetch.lookup import PartitionLookup
from tidelog.client.fetch.settings import OwnSettings
from tidelog.client.produce import producer as producer_module
from tidelog.client.produce.encoding import MessageColumns, encode
from tidelog.client.produce.producer import ColumnProducer
from tidelog.client.topic_partition import TopicPartition
from tidelog.client.transactions.admin import TransactionAdmin, TransactionHandle
from tidelog.client.transactions.fenced_writer import WriterFenced
from tidelog.client.wire.errors import BrokerError
from tidelog.records.compression import CompressionType
from tidelog.records.header import read_header
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

SETTINGS = OwnSettings(timeout_ms=20_000)


def columns(*values: bytes) -> MessageColumns:
    return MessageColumns(None, pa.array(values, pa.binary()), np.full(len(values), 1_700_000_000_000), None)


def send(sender: ColumnProducer, partitions: list[TopicPartition], *values: bytes, limit: int = 1 << 20) -> None:
    """The values go to the partitions in turn."""
    places = np.arange(len(values)) % len(partitions)
    sender.send(encode(columns(*values), places, np.full(len(partitions), limit)), partitions)


@pytest.fixture
def lookup(kafka: ToolkitBroker) -> Iterator[PartitionLookup]:
    opened = PartitionLookup(kafka.bootstrap, SETTINGS, "read_committed")
    yield opened
    opened.close()


@pytest.mark.parametrize("kind", list(CompressionType))
def test_librdkafka_reads_what_is_written(kafka: ToolkitBroker, lookup: PartitionLookup, kind: CompressionType) -> None:
    topic = new_topic(kafka, partitions=2)
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    sender = ColumnProducer(lookup, kind)
    values = [b"%d" % number * 20 for number in range(500)]
    for _ in range(2):
        send(sender, partitions, *values, limit=4_000)
    sender.flush()
    messages = read(kafka, topic, 1000)
    for number in range(2):
        assert [message.value() for message in messages if message.partition() == number] == values[number::2] * 2


def test_a_transaction_is_left_open_and_ended_by_another(kafka: ToolkitBroker, lookup: PartitionLookup) -> None:
    topic = new_topic(kafka)
    with TransactionAdmin(kafka.bootstrap) as admin:
        for is_commit in (False, True):
            name = f"columns-{secrets.token_hex(4)}"
            sender = ColumnProducer(lookup, CompressionType.LZ4, (name, 60_000))
            send(sender, [TopicPartition(topic, 0)], b"committed" if is_commit else b"aborted")
            sender.flush()
            handle = TransactionHandle(name, sender.identity.producer_id, sender.identity.producer_epoch)
            assert (admin.describe_transactions([name])[name].handle, admin.describe_transactions([name])[name].state) == (
                handle,
                "Ongoing",
            )
            assert admin.end_transactions([handle], is_commit=is_commit) == {}
    assert [message.value() for message in read(kafka, topic, 1)] == [b"committed"]


def test_whoever_lost_the_transactional_id_cannot_write(kafka: ToolkitBroker, lookup: PartitionLookup) -> None:
    topic, name = new_topic(kafka), f"columns-{secrets.token_hex(4)}"
    first, second = (ColumnProducer(lookup, CompressionType.NONE, (name, 60_000)) for _ in range(2))
    send(first, [TopicPartition(topic, 0)], b"a")
    first.flush()
    send(second, [TopicPartition(topic, 0)], b"b")
    second.flush()
    send(first, [TopicPartition(topic, 0)], b"c")
    with pytest.raises(WriterFenced):
        first.flush()
    second.abort()


# -- failures ---------------------------------------------------------------------------------------------------------------


def answered(error: ErrorCode = ErrorCode.NONE) -> dict[str, Any]:
    return {"responses": [{"name": "t", "partition_responses": [{"index": 0, "error_code": error, "base_offset": 0}]}]}


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    with FakeBroker() as opened:
        opened.versions |= {ApiKey.PRODUCE: (3, 11), ApiKey.INIT_PRODUCER_ID: (0, 5)}
        opened.answer(ApiKey.INIT_PRODUCER_ID, {"error_code": 0, "producer_id": 7, "producer_epoch": 0})
        yield opened


@pytest.fixture
def sender(fake: FakeBroker) -> Iterator[ColumnProducer]:
    opened = PartitionLookup(fake.bootstrap_servers, SETTINGS, "read_committed")
    yield ColumnProducer(opened, CompressionType.NONE)
    opened.close()


def sent(fake: FakeBroker) -> list[tuple[int, int]]:
    """The first sequence number and the number of records of each batch."""
    headers = [read_header(request.topic_data[0].partition_data[0].records) for request in fake.asked(ApiKey.PRODUCE)]
    return [(header.base_sequence, header.record_count) for header in headers]


@pytest.mark.parametrize(
    "problem",
    [HANG_UP, answered(ErrorCode.NOT_LEADER_OR_FOLLOWER), answered(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)],
)
def test_what_may_pass_is_sent_again_before_anything_else(fake: FakeBroker, sender: ColumnProducer, problem: Any) -> None:
    duplicate = answered(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    fake.answer(ApiKey.PRODUCE, problem, duplicate, answered())
    send(sender, [TopicPartition("t", 0)], b"a", b"b")
    send(sender, [TopicPartition("t", 0)], b"c")
    sender.flush()
    assert sent(fake) == [(0, 2), (0, 2), (2, 1)]


@pytest.mark.parametrize("error", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_what_will_not_pass_is_raised(fake: FakeBroker, sender: ColumnProducer, error: ErrorCode) -> None:
    fake.answer(ApiKey.PRODUCE, answered(error))
    send(sender, [TopicPartition("t", 0)], b"a")
    with pytest.raises(BrokerError, match=rf"t\[0\].*{error.name}"):
        sender.flush()
    assert len(sent(fake)) == 1


def test_nobody_waits_for_ever(fake: FakeBroker, sender: ColumnProducer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "DELIVERY_SECONDS_MAX", 0.2)
    fake.answer(ApiKey.PRODUCE, answered(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    send(sender, [TopicPartition("t", 0)], b"a")
    with pytest.raises(BrokerError, match="NOT_LEADER"):
        sender.flush()
