"""The fetcher on a real broker, by both ways: the same rows as confluent-kafka reads, whatever was written."""

import pickle
import re
import secrets
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.client.fetch.rows import Row, message_rows, rows_of, without_headers
from tests.client.producing import new_topic, read
from tests.compatibility.apache_kafka import wait_until
from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.client.errors import BrokerUnavailable, InvalidArgument, UnknownTopic
from tidelog.client.fetch import ranges_reader
from tidelog.client.fetch.client import FetchClient
from tidelog.client.fetch.errors import OffsetsLost, OffsetsMissing, TopicRecreated
from tidelog.client.fetch.librdkafka_source import LibrdkafkaSource
from tidelog.client.librdkafka import wait_for_broker
from tidelog.client.topic_partition import TopicPartition
from tidelog.client.wire import retries

SECONDS_MAX = 30
# A setting that changes nothing, and that our own connection does not know.
WAYS: Mapping[str, Mapping[str, str]] = {"own": {}, "librdkafka": {"socket.nagle.disable": "true"}}
MESSAGES: list[dict[str, Any]] = [
    {"key": b"k0", "value": b"zero", "timestamp": 1_700_000_000_000},
    {
        "key": None,
        "value": b"no key",
        "timestamp": 1_700_000_000_500,
        "headers": [("trace", b"abc"), ("empty", b""), ("null", None)],
    },
    {"key": b"tombstone", "value": None, "timestamp": 1_699_999_999_000},
    {"key": b"", "value": b"", "timestamp": 1_700_000_070_000, "headers": [("h\u00e9", b"\x00\xff")]},
    {"key": b"k0", "value": b"x" * 20_000, "timestamp": 1_700_000_000_000},
    {"key": None, "value": None, "timestamp": 1},
]


@pytest.fixture(params=sorted(WAYS))
def way(request: pytest.FixtureRequest) -> Mapping[str, str]:
    return WAYS[request.param]


@pytest.fixture
def client(kafka: ToolkitBroker, way: Mapping[str, str]) -> Iterator[FetchClient]:
    with FetchClient(kafka.bootstrap, settings=way) as opened:
        assert isinstance(opened._source, LibrdkafkaSource) == bool(way)
        yield opened


def producer(kafka: ToolkitBroker, **settings: Any) -> Any:
    return Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0, "linger.ms": 20, **settings})


def send(sender: Any, topic: str, messages: list[dict[str, Any]], partition: int = 0) -> None:
    for message in messages:
        sender.produce(topic, partition=partition, **message)
    assert sender.flush(SECONDS_MAX) == 0


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"value": b"%d" % number} for number in range(count)]


def ends(client: FetchClient, topic: str, partition: int = 0) -> tuple[int, int]:
    place = TopicPartition(topic, partition)
    return client.offsets([place], "earliest")[place], client.offsets([place], "latest")[place]


def fetched(client: FetchClient, topic: str, start: int, end: int, partition: int = 0, **options: Any) -> list[Row]:
    return rows_of(client.read(topic, partition, start, end, **options), topic, partition)


def offsets_of(rows: list[Row]) -> list[int]:
    return [row.offset for row in rows]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_kind_of_message(kafka: ToolkitBroker, client: FetchClient, codec: str) -> None:
    topic = new_topic(kafka)
    send(producer(kafka, **{"compression.type": codec}), topic, MESSAGES * 20)
    expected = message_rows(read(kafka, topic, 20 * len(MESSAGES)))
    assert ends(client, topic) == (0, len(expected))
    assert fetched(client, topic, 0, len(expected), include_headers=True) == expected
    assert fetched(client, topic, 0, len(expected)) == without_headers(expected)
    assert fetched(client, topic, 7, 55, include_headers=True) == expected[7:55]
    assert fetched(client, topic, 3, 3) == []


def test_many_rows_come_in_batches_of_the_wanted_size(kafka: ToolkitBroker, client: FetchClient) -> None:
    topic = new_topic(kafka, partitions=2)
    send(producer(kafka), topic, numbered(5000), partition=1)
    batches = list(client.read(topic, 1, 0, 5000, max_rows_per_batch=900))
    assert max(batch.num_rows for batch in batches) <= 900
    assert len(batches) < 20
    assert [row.value for row in rows_of(batches, topic, 1)] == [b"%d" % number for number in range(5000)]


def test_the_brokers_time(kafka: ToolkitBroker, client: FetchClient) -> None:
    topic = new_topic(kafka, config={"message.timestamp.type": "LogAppendTime"})
    send(producer(kafka), topic, MESSAGES)
    rows = fetched(client, topic, 0, len(MESSAGES), include_headers=True)
    assert rows == message_rows(read(kafka, topic, len(MESSAGES)))
    assert {row.timestamp_type for row in rows} == {1}


def test_transactions(kafka: ToolkitBroker, client: FetchClient, way: Mapping[str, str]) -> None:
    topic = new_topic(kafka)
    sender = producer(kafka, **{"transactional.id": f"tx-{secrets.token_hex(4)}"})
    sender.init_transactions()
    for number, is_commit in enumerate((True, False, True, False)):
        sender.begin_transaction()
        send(sender, topic, [{"value": b"%d-%d" % (number, each)} for each in range(3)])
        (sender.commit_transaction if is_commit else sender.abort_transaction)(SECONDS_MAX)
    # The tail is an aborted transaction and its marker: nothing to see, and the read ends all the same.
    first, last = 0, 16
    wait_until(lambda: ends(client, topic) == (first, last), "the last marker is written, which Kafka does after its answer")
    committed = fetched(client, topic, first, last)
    assert committed == without_headers(message_rows(read(kafka, topic, 6)))
    assert fetched(client, topic, 12, last) == []
    assert offsets_of(fetched(client, topic, 5, 9)) == [8]
    with FetchClient(kafka.bootstrap, settings=way, isolation="read_uncommitted") as everything:
        assert len(fetched(everything, topic, first, last)) == 12
    sender.begin_transaction()
    send(sender, topic, [{"value": b"open"}])
    send(producer(kafka), topic, [{"value": b"behind it"}])
    assert ends(client, topic) == (0, 16)
    assert len(fetched(client, topic, 0, 16)) == 6
    with FetchClient(kafka.bootstrap, settings=way, isolation="read_uncommitted") as everything:
        assert ends(everything, topic) == (0, 18)
        assert [row.value for row in fetched(everything, topic, 16, 18)] == [b"open", b"behind it"]
    sender.abort_transaction(SECONDS_MAX)


def test_offsets_by_time(kafka: ToolkitBroker, client: FetchClient) -> None:
    topic = new_topic(kafka, partitions=2)
    send(producer(kafka), topic, [{"value": b"", "timestamp": 1_700_000_000_000 + 10 * each} for each in range(5)])
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    assert client.offsets(both, 1_700_000_000_000) == {both[0]: 0}
    assert client.offsets(both, 1_700_000_000_011) == {both[0]: 2}
    assert client.offsets(both, 1_700_000_000_041) == {}
    assert client.offsets(both, "latest") == {both[0]: 5, both[1]: 0}
    assert client.offsets([], "latest") == {}


def test_topics(kafka: ToolkitBroker, client: FetchClient) -> None:
    prefix = f"kind-{secrets.token_hex(4)}"
    one = create_topic(kafka.bootstrap, f"{prefix}.one")
    other = create_topic(kafka.bootstrap, f"{prefix}.other", partitions=3)
    found = client.topics([other, one])
    assert {name: info.partitions for name, info in found.items()} == {one: 1, other: 3}
    assert len({info.topic_id for info in found.values()}) == 2
    assert {len(info.topic_id) for info in found.values()} == {16}
    assert client.topics(re.compile(rf"{prefix}\..*")) == found
    assert client.topics(re.compile(prefix)) == {}
    assert not [name for name in client.topics(re.compile(".*")) if name.startswith("__")]
    assert client.topics([]) == {}
    with pytest.raises(UnknownTopic, match=f"{prefix}.none"):
        client.topics([one, f"{prefix}.none"])
    assert f"{prefix}.none" not in client.topics(re.compile(f"{prefix}.*"))


def test_both_ways_know_the_same_ids(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)
    answers = []
    for settings in WAYS.values():
        with FetchClient(kafka.bootstrap, settings=settings) as client:
            answers.append(client.topics([topic]))
    assert answers[0] == answers[1]


def test_lost_offsets_are_named(kafka: ToolkitBroker, client: FetchClient) -> None:
    topic = new_topic(kafka)
    send(producer(kafka), topic, numbered(10))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    admin.delete_records([confluent_kafka.TopicPartition(topic, 0, 6)])[confluent_kafka.TopicPartition(topic, 0)].result()
    assert ends(client, topic) == (6, 10)
    with pytest.raises(OffsetsLost, match="offsets 2 to 5 are lost") as caught:
        fetched(client, topic, 2, 10)
    assert caught.value.log_start == 6
    assert offsets_of(fetched(client, topic, 6, 10)) == [6, 7, 8, 9]


def test_a_topic_that_was_created_again_is_refused(kafka: ToolkitBroker, client: FetchClient) -> None:
    topic = new_topic(kafka)
    send(producer(kafka), topic, numbered(3))
    topic_id = client.topics([topic])[topic].topic_id
    assert len(fetched(client, topic, 0, 3, expected_topic_id=topic_id)) == 3
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    admin.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic is gone")
    create_topic(kafka.bootstrap, topic)
    send(producer(kafka), topic, numbered(3))
    with pytest.raises(TopicRecreated, match=topic_id.hex()):
        fetched(client, topic, 0, 3, expected_topic_id=topic_id)
    assert len(fetched(client, topic, 0, 3)) == 3


def test_no_such_partition(kafka: ToolkitBroker, client: FetchClient, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new_topic(kafka)
    for module in (retries, ranges_reader):
        monkeypatch.setattr(module, "UNKNOWN_TOPIC_SECONDS", 0.2)
    with pytest.raises(UnknownTopic):
        fetched(client, topic, 0, 1, partition=1)
    with pytest.raises(UnknownTopic):
        fetched(client, f"{topic}-none", 0, 1)
    with pytest.raises(UnknownTopic):
        client.offsets([TopicPartition(f"{topic}-none", 0)], "latest")


def test_an_end_that_does_not_come(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)
    send(producer(kafka), topic, numbered(3))
    with FetchClient(kafka.bootstrap, settings={"socket.timeout.ms": "700", "fetch.wait.max.ms": "100"}) as client:
        found = client.read(topic, 0, 0, 5)
        with pytest.raises(OffsetsMissing, match="offsets 3 to 4 are missing"):
            list(found)
        with pytest.raises(OffsetsMissing, match="offsets 40 to 41 are missing"):
            fetched(client, topic, 40, 42)
        assert len(fetched(client, topic, 0, 3)) == 3


def test_reads_may_take_turns_and_be_left_alone(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka, partitions=2)
    for partition in range(2):
        send(producer(kafka, **{"batch.num.messages": 50}), topic, numbered(2000), partition)
    with FetchClient(kafka.bootstrap, settings={"max.partition.fetch.bytes": "4096"}) as client:
        reads = [client.read(topic, partition, 0, 2000, max_rows_per_batch=100) for partition in (0, 1, 0)]
        next(reads.pop())  # The one that is left alone has a request under way.
        found: list[list[Row]] = [[], []]
        for pair in zip_longest(*reads):
            for partition, batch in enumerate(pair):
                found[partition] += rows_of([batch] if batch else [], topic, partition)
        assert [offsets_of(rows) for rows in found] == [list(range(2000))] * 2


def test_a_connection_serves_one_read_after_the_other(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)
    send(producer(kafka), topic, numbered(10))
    with FetchClient(kafka.bootstrap) as client:
        assert len(fetched(client, topic, 0, 10)) == 10
        (kept,) = client._source._lookup.brokers._idle.values()  # type: ignore[attr-defined]  # it is our own source
        connection = kept[0]
        assert len(fetched(client, topic, 0, 10)) == 10
        assert kept == [connection]


def test_nobody_answers(way: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_for_broker, "__defaults__", (0.5,))
    with FetchClient("127.0.0.1:1", settings={**way, "socket.timeout.ms": "500"}) as client:
        with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1"):
            client.topics(["orders"])
        with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1"):
            list(client.read("orders", 0, 0, 1))


@pytest.mark.parametrize("bootstrap", ["", "host:port", "a,,b"])
def test_addresses_that_are_none(bootstrap: str) -> None:
    with pytest.raises(InvalidArgument):
        FetchClient(bootstrap)


def test_arguments_that_are_none(kafka: ToolkitBroker) -> None:
    with pytest.raises(InvalidArgument, match="isolation"):
        FetchClient(kafka.bootstrap, isolation="serializable")  # type: ignore[arg-type]  # that is the test
    with pytest.raises(InvalidArgument, match="No such configuration property"):
        FetchClient(kafka.bootstrap, settings={"no.such.setting": "1"})
    with pytest.raises(InvalidArgument, match=r"isolation\.level"):
        FetchClient(kafka.bootstrap, settings={"isolation.level": "read_uncommitted"})
    with FetchClient(kafka.bootstrap) as client:
        with pytest.raises(InvalidArgument, match="not a range"):
            client.read("orders", 0, 5, 4)
        with pytest.raises(InvalidArgument, match="not a range"):
            client.read("orders", 0, -2, 4)
        with pytest.raises(InvalidArgument, match="rows"):
            client.read("orders", 0, 0, 4, max_rows_per_batch=0)
        with pytest.raises(InvalidArgument, match="earliest"):
            client.offsets([TopicPartition("orders", 0)], "newest")  # type: ignore[arg-type]  # that is the test
        with pytest.raises(InvalidArgument, match="milliseconds"):
            client.offsets([TopicPartition("orders", 0)], -5)
        with pytest.raises(InvalidArgument, match="list of names"):
            client.topics("orders")


def test_librdkafka_reads_where_it_is_asked_for() -> None:
    assert isinstance(FetchClient("h:1", fetcher="librdkafka")._source, LibrdkafkaSource)
    with pytest.raises(InvalidArgument, match="fetcher is own or librdkafka: not 'java'"):
        FetchClient("h:1", fetcher="java")  # type: ignore[arg-type]  # as one might write it


def test_lost_offsets_are_named_and_survive_pickling() -> None:
    error = OffsetsLost("orders", 3, 10, 25)
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert "orders[3]: offsets 10 to 24 are lost" in str(each)
        assert (each.topic, each.partition, each.wanted, each.log_start) == ("orders", 3, 10, 25)
