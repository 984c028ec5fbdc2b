"""What a client sends is what a client reads, whichever of them it is, byte for byte."""

import time

import pytest

from tests.compatibility.clients.batches import codecs_of
from tests.compatibility.clients.client import NOW, Client, Codec
from tests.compatibility.clients.conftest import CLIENTS, MakeClient, MakeTopic
from tests.compatibility.kafka_records import ReadRecord, SentRecord
from tidelog.broker.handlers import TABLE
from tidelog.testing import Broker
from tidelog.wire.protocol import ApiKey

# Compressible, and more than one block of any codec.
LONG_VALUE = b"eight by eight, and so on: " * 10_000
# Young enough not to be deleted, old enough to be told from the time of sending.
TIMESTAMP = int(time.time() * 1000) - 3_600_000
# librdkafka takes a broker without FindCoordinator, which comes with groups, for one without LZ4, and sends uncompressed.
WITHOUT_LZ4 = () if ApiKey.FIND_COORDINATOR in TABLE else ("confluent-kafka", "kcat")


def sent(value: bytes | None, key: bytes | None = None, headers: tuple[tuple[str, bytes | None], ...] = ()) -> SentRecord:
    return SentRecord(key, value, NOW, headers)


def content(records: list[ReadRecord]) -> list[SentRecord]:
    return [SentRecord(record.key, record.value, NOW, record.headers) for record in records]


@pytest.fixture(scope="module")
def written(broker: Broker, client_of: MakeClient) -> dict[str, tuple[str, list[SentRecord]]]:
    """By the writer's name: a topic with batches of every codec, and what is in them. Filled by the tests."""
    return {}


@pytest.mark.parametrize("reader", list(CLIENTS))
@pytest.mark.parametrize("writer", list(CLIENTS))
def test_each_client_reads_what_each_client_wrote_with_each_codec(
    writer: str,
    reader: str,
    broker: Broker,
    client_of: MakeClient,
    new_topic: MakeTopic,
    written: dict[str, tuple[str, list[SentRecord]]],
) -> None:
    if writer not in written:
        topic, records = new_topic(), []
        for codec in Codec:
            batch = [sent(f"{codec} {number}".encode(), f"key {number}".encode()) for number in range(20)]
            batch.append(sent(LONG_VALUE, b"key of the long one"))
            client_of(writer).send(topic, batch, codec=codec)
            records += batch
        # Not just that it can be read: a client that finds a codec unsupported would quietly leave it out.
        expected = [codec for codec in Codec if codec is not Codec.LZ4 or writer not in WITHOUT_LZ4]
        assert [codec for codec in Codec if codec in codecs_of(broker.data_path, topic)] == expected
        written[writer] = topic, records
    topic, records = written[writer]

    read = client_of(reader).read(topic, len(records))

    assert content(read) == records
    assert [record.offset for record in read] == list(range(len(records)))


def test_empty_and_null_values_and_keys(client: Client, client_of: MakeClient, new_topic: MakeTopic) -> None:
    topic = new_topic()
    every_kind = [sent(value, key) for value in (b"", None, b"value") for key in (b"", None, b"key")]
    by_client = [record for record in every_kind if client.can_send(record)]
    assert by_client

    client.send(topic, by_client)
    client_of("confluent-kafka").send(topic, every_kind)

    assert content(client.read(topic, len(by_client) + len(every_kind))) == by_client + every_kind


def test_headers(client: Client, new_topic: MakeTopic) -> None:
    topic = new_topic()
    records = [
        sent(b"one", headers=(("content-type", b"text/plain"),)),
        sent(b"none"),
        sent(b"twice the same name, in order", headers=(("via", b"a"), ("via", b"b"), ("empty", b""))),
        sent(b"not only ASCII", headers=(("größe", "groß".encode()),)),
    ]

    client.send(topic, records)

    assert content(client.read(topic, len(records))) == records


@pytest.mark.parametrize("client", [name for name in CLIENTS if name != "kcat"], indirect=True)
def test_header_without_a_value_and_bytes_that_are_no_text(client: Client, client_of: MakeClient, new_topic: MakeTopic) -> None:
    topic = new_topic()
    every_kind = [
        sent(bytes(range(256)), b"\xff\x00", (("bytes", b"\x00\xff"),)),
        sent(b"value", headers=(("null", None),)),
    ]
    by_client = [record for record in every_kind if client.can_send(record)]
    assert by_client

    client.send(topic, by_client)
    client_of("confluent-kafka").send(topic, every_kind)

    assert content(client.read(topic, len(by_client) + len(every_kind))) == by_client + every_kind


def test_timestamps_of_the_sender_and_of_the_broker(client: Client, new_topic: MakeTopic) -> None:
    create_time, append_time = new_topic(), new_topic(configs={"message.timestamp.type": "LogAppendTime"})
    timestamp = TIMESTAMP if client.sets_timestamps else NOW
    for topic in (create_time, append_time):
        client.send(topic, [SentRecord(None, b"value", timestamp), SentRecord(None, b"value", timestamp and timestamp + 5)])

    created = client.read(create_time, 2)
    appended = client.read(append_time, 2)

    assert [record.is_log_append_time for record in created] == [False, False]
    if client.sets_timestamps:
        assert [record.timestamp for record in created] == [TIMESTAMP, TIMESTAMP + 5]
    assert [record.is_log_append_time for record in appended] == [True, True]
    assert appended[0].timestamp == appended[1].timestamp > TIMESTAMP


def test_partitions_are_apart(client: Client, new_topic: MakeTopic) -> None:
    topic = new_topic(partitions=3)
    for partition in (2, 0, 1):
        client.send(topic, [sent(f"{partition} {number}".encode()) for number in range(partition + 1)], partition=partition)

    for partition in range(3):
        read = client.read(topic, partition + 1, partition=partition)
        assert [record.value for record in read] == [f"{partition} {number}".encode() for number in range(partition + 1)]
        assert client.watermarks(topic, partition) == (0, partition + 1)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(acks: str, client: Client, new_topic: MakeTopic) -> None:
    topic = new_topic()
    first = client.send(topic, [sent(b"a"), sent(b"b")], acks=acks)
    second = client.send(topic, [sent(b"c")], acks=acks)

    assert [record.value for record in client.read(topic, 3)] == [b"a", b"b", b"c"]
    if acks != "0" and client.name != "kcat":
        assert (first, second) == ([0, 1], [2])


def test_read_committed_sees_plain_records(client: Client, new_topic: MakeTopic) -> None:
    topic = new_topic()
    client.send(topic, [sent(b"a"), sent(b"b")])

    assert [record.value for record in client.read(topic, 2, isolation="read_committed")] == [b"a", b"b"]
