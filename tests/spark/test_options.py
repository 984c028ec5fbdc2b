"""Options become values, and whatever is wrong with one is said in one sentence that names it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from tests.spark.kafka_settings import CONSUMER, PRODUCER
from tidelog.client.errors import InvalidArgument
from tidelog.client.fetch.settings import own_settings
from tidelog.client.topic_partition import TopicPartition
from tidelog.spark.options import (
    FOREIGN_TO_SINK,
    FOREIGN_TO_SOURCE,
    RECORDS_PER_SPLIT,
    ConnectionOptions,
    OffsetBound,
    SinkOptions,
    SourceOptions,
    _log_ignored,
    foreign_options_page,
)
from tidelog.spark.sink.connections import own_compression

HERE = {"bootstrap": "127.0.0.1:9092"}
ORDERS = {**HERE, "subscribe": "orders"}


def stream(**options: str) -> SourceOptions:
    return SourceOptions.parse({**ORDERS, **options}, is_stream=True)


def batch(**options: str) -> SourceOptions:
    return SourceOptions.parse({**ORDERS, **options}, is_stream=False)


def test_the_defaults_are_the_stock_connectors_but_for_the_isolation() -> None:
    options = stream()
    assert options.connection == ConnectionOptions("127.0.0.1:9092", ())
    assert options.topics.names == ("orders",)
    assert options.starting == OffsetBound("latest", "startingOffsets")
    assert options.isolation == "read_committed"
    assert options.fails_on_data_loss
    assert not options.include_headers
    assert options.group_id is None
    assert options.min_partitions == 1
    assert options.max_records_per_partition == RECORDS_PER_SPLIT
    assert batch().starting.kind == "earliest"
    assert batch().ending.kind == "latest"


def test_names_of_options_are_taken_in_any_case() -> None:
    assert SourceOptions.parse({"BOOTSTRAP": "h:1", "Subscribe": "A,b", "INCLUDEheaders": "True"}, is_stream=True).include_headers


def test_the_long_name_of_the_bootstrap_servers_will_do_and_kafka_settings_are_handed_on() -> None:
    options = SourceOptions.parse(
        {
            "kafka.bootstrap.servers": "a:1, b:2",
            "subscribe": "orders",
            "kafka.client.id": "me",
            "kafka.isolation.level": "read_uncommitted",
        },
        is_stream=True,
    )
    assert options.connection == ConnectionOptions("a:1,b:2", (("client.id", "me"),))
    assert options.isolation == "read_uncommitted"


@pytest.mark.parametrize("name", ["groupId", "kafka.group.id"])
def test_the_group_of_the_progress(name: str) -> None:
    options = stream(**{name: "spark-orders"})
    assert options.group_id == "spark-orders"
    assert options.connection.settings == ()


def test_topics_by_name_pattern_and_partition() -> None:
    assert stream(subscribe="a, b,a").topics.names == ("a", "b")
    by_pattern = SourceOptions.parse({**HERE, "subscribePattern": "ord.*"}, is_stream=True).topics
    assert by_pattern.pattern == re.compile("ord.*")
    assert (by_pattern.has("orders"), by_pattern.has("borders")) == (True, False)
    assigned = SourceOptions.parse({**HERE, "assign": '{"a": [1, 0], "b": [2]}'}, is_stream=True).topics
    assert assigned.assigned == (TopicPartition("a", 1), TopicPartition("a", 0), TopicPartition("b", 2))
    assert assigned.names == ("a", "b")


def test_offsets_and_times_and_which_of_them_counts() -> None:
    offsets = batch(startingOffsets='{"orders": {"0": 23, "1": -2}}', endingOffsets='{"orders": {"0": 50, "1": -1}}')
    assert offsets.starting.by_partition == {TopicPartition("orders", 0): 23, TopicPartition("orders", 1): -2}
    assert offsets.ending.by_partition == {TopicPartition("orders", 0): 50, TopicPartition("orders", 1): -1}
    by_time = batch(startingOffsets="earliest", startingOffsetsByTimestamp='{"orders": {"0": 1000}}')
    assert (by_time.starting.kind, by_time.starting.by_partition) == ("timestamps", {TopicPartition("orders", 0): 1000})
    for_all = batch(startingOffsetsByTimestamp='{"orders": {"0": 1000}}', startingTimestamp="2000", endingTimestamp="3000")
    assert (for_all.starting.kind, for_all.starting.timestamp_ms) == ("timestamp", 2000)
    assert (for_all.ending.kind, for_all.ending.timestamp_ms) == ("timestamp", 3000)
    assert stream(startingOffsetsByTimestampStrategy="latest").uses_latest_without_match


def test_numbers_and_durations() -> None:
    options = stream(maxOffsetsPerTrigger="1000", minOffsetsPerTrigger="10", maxTriggerDelay="2m", minPartitions="8")
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (1000, 10)
    assert (options.max_trigger_delay_ms, options.min_partitions) == (120_000, 8)
    assert [stream(maxTriggerDelay=text).max_trigger_delay_ms for text in ("250", "250ms", "3s", "1 hour")] == [
        250,
        250,
        3000,
        3_600_000,
    ]
    assert stream().max_trigger_delay_ms == 900_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "earliest"}, "has no option startingoffset: did you mean startingOffsets?"),
        ({"maxOffsetPerTriger": "1"}, "did you mean maxOffsetsPerTrigger?"),
        ({"zzzzzzzz": "1"}, "has no option zzzzzzzz; there are assign, bootstrap"),
        ({"assign": '{"a": [0]}'}, "give one of subscribe, subscribePattern and assign: there are subscribe, assign"),
        ({"kafka.bootstrap.servers": "other:1"}, "differ: give one"),
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"startingOffsets": "erliest"}, "option startingOffsets is JSON such as"),
        ({"startingOffsets": "[1]"}, "option startingOffsets is JSON such as"),
        ({"startingOffsets": '{"orders": 5}'}, "'orders' has no numbers by partition"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "orders[0] has -3"),
        ({"startingOffsets": '{"orders": {"0": true}}'}, "orders[0] has True"),
        ({"startingOffsets": "{}"}, "names no partition"),
        ({"startingTimestamp": "yesterday"}, "option startingTimestamp is a number"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss is true or false: not 'maybe'"),
        ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger is a number from 1"),
        ({"minPartitions": "1e3"}, "option minPartitions is a number from 1 to 100000"),
        ({"maxTriggerDelay": "soon"}, "option maxTriggerDelay is a time such as 15m"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"}, "leave no room"),
        ({"kafka.isolation.level": "dirty"}, "option kafka.isolation.level is read_committed or read_uncommitted"),
        ({"kafka.auto.offset.reset": "earliest"}, "option kafka.auto.offset.reset: use startingOffsets"),
        ({"kafka.sasl.jaas.config": "x"}, "kafka.sasl.username"),
        ({"kafka.enable.auto.commit": "true"}, "option kafka.enable.auto.commit: the checkpoint has the offsets"),
        ({"kafka.key.deserializer": "a.JsonDeserializer"}, "option kafka.key.deserializer: key and value are bytes"),
        ({"path": "orders"}, "load() takes no path"),
        ({"subscribe": "a,,b"}, "names of topics separated by commas"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        stream(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "a batch that begins at latest reads nothing"),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, "a batch that begins at latest reads nothing"),
        ({"endingOffsets": "earliest"}, "a batch that ends at earliest reads nothing"),
    ],
)
def test_what_makes_no_sense_for_a_batch(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        batch(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "a"}, "option bootstrap (or kafka.bootstrap.servers) is missing"),
        ({"bootstrap": " ,", "subscribe": "a"}, "bootstrap servers are host:port"),
        (HERE, "there are none"),
        ({**HERE, "subscribePattern": "("}, "'(' is not one"),
        ({**HERE, "assign": '{"a": []}'}, "'a' has no list of partitions"),
        ({**HERE, "assign": "{}"}, "names no partition"),
    ],
)
def test_what_is_missing_is_said(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        SourceOptions.parse(options, is_stream=True)


def test_options_of_the_sink() -> None:
    defaults = SinkOptions.parse({**HERE, "checkpointLocation": "somewhere"})
    assert (defaults.topic, defaults.delivery_guarantee, defaults.write_id) == (None, "exactly_once", None)
    assert defaults.transaction_timeout_ms is None
    given = SinkOptions.parse(
        {**HERE, "topic": "out", "deliveryGuarantee": "at-least-once", "writeId": "w1", "kafka.linger.ms": "5"}
    )
    assert (given.topic, given.delivery_guarantee, given.write_id) == ("out", "at_least_once", "w1")
    assert given.connection.settings == (("linger.ms", "5"),)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": "x"}, "the sink has no option topics: did you mean topic?"),
        ({"subscribe": "x"}, "the sink has no option subscribe"),
        ({"deliveryGuarantee": "hopefully"}, "exactly_once or at_least_once"),
        ({"kafka.acks": "1"}, "option kafka.acks: it is always all"),
        ({"kafka.enable.idempotence": "false"}, "option kafka.enable.idempotence: it is always on"),
        ({"kafka.partitioner.class": "a.B"}, "option kafka.partitioner.class: a row goes to the partition"),
        ({"transactionTimeoutMs": "5"}, "option transactionTimeoutMs is a number from 1000"),
    ],
)
def test_what_is_wrong_for_the_sink_is_said(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        SinkOptions.parse({**HERE, **options})


def test_who_fetches() -> None:
    assert stream().fetcher == "own"
    assert batch(fetcher="librdkafka").fetcher == "librdkafka"
    with pytest.raises(InvalidArgument, match="option fetcher is own or librdkafka: not 'java'"):
        stream(fetcher="java")


def test_ranges_of_offsets() -> None:
    ranges = batch(offsetRanges='{"orders": {"0": [[0, 100], [500, 600]], "1": []}}').offset_ranges
    assert ranges == {TopicPartition("orders", 0): ((0, 100), (500, 600)), TopicPartition("orders", 1): ()}
    assert batch().offset_ranges is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"offsetRanges": "[]"}, "option offsetRanges is JSON such as"),
        ({"offsetRanges": '{"orders": [1]}'}, "'orders' has no ranges by partition"),
        ({"offsetRanges": '{"orders": {"0": [[5, 4]]}}'}, "which is not a list of ranges of offsets"),
        ({"offsetRanges": '{"orders": {"x": []}}'}, "which is not a list of ranges of offsets"),
        ({"offsetRanges": "{}", "endingOffsets": "latest"}, "and so does endingoffsets: give one of them"),
    ],
)
def test_ranges_of_offsets_that_make_no_sense(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        batch(**given)
    with pytest.raises(InvalidArgument, match="offsetRanges"):
        stream(**given)


# -- options of the stock connector, and of Kafka's clients --------------------------------------------------------------------


PAGE = Path(__file__).parents[2] / "docs" / "SPARK.md"


def test_what_changes_nothing_is_ignored_with_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    given = {
        "kafkaConsumer.pollTimeoutMs": "512",
        "fetchOffset.numRetries": "3",
        "groupIdPrefix": "spark",
        "kafka.max.poll.records": "500",
        "kafka.default.api.timeout.ms": "60000",
        "kafka.receive.buffer.bytes": "65536",
        "kafka.enable.auto.commit": "false",
        "kafka.key.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer",
    }
    _log_ignored.cache_clear()
    for _ in range(3):
        assert stream(**given) == stream()
    assert sorted(message.split()[1] for message in caplog.messages) == sorted(given)
    assert batch(maxOffsetsPerTrigger="5").max_offsets_per_trigger is None


def test_what_changes_nothing_for_the_sink() -> None:
    given = {
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
        "kafka.buffer.memory": "33554432",
        "kafka.max.block.ms": "60000",
        "kafka.retries": "3",
        "includeHeaders": "true",
        "kafka.value.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
    }
    assert SinkOptions.parse({**HERE, **given}) == SinkOptions.parse(HERE)


# A value where any other than these is refused, and what has a field of its own among the options.
VALUES = {"check.crcs": "true", "client.id": "me", "security.protocol": "PLAINTEXT", "compression.type": "lz4"}
NUMBER = "60000"
OWN_FIELDS = ("bootstrap.servers", "isolation.level", "group.id")


def goes_to_librdkafka(client: Callable[[dict[str, Any]], object], name: str) -> bool:
    """Whether librdkafka knows it. That a value makes no sense is its own to say."""
    try:
        client({name: VALUES.get(name, NUMBER), "log_level": 0})
    except KafkaException as error:
        return "No such configuration property" not in str(error)
    return True


@pytest.mark.parametrize("name", PRODUCER)
def test_every_setting_of_kafkas_producer_has_its_fate(name: str, caplog: pytest.LogCaptureFixture) -> None:
    _log_ignored.cache_clear()
    if name in OWN_FIELDS:
        return
    try:
        options = SinkOptions.parse({**HERE, f"kafka.{name}": VALUES.get(name, NUMBER)})
    except InvalidArgument as refused:
        assert str(refused).startswith(f"option kafka.{name}: ")  # noqa: PT017 - being refused is one of three good ends
        return
    settings = dict(options.connection.settings)
    if not settings:
        assert [message.startswith(f"option kafka.{name} has no effect: ") for message in caplog.messages] == [True]
    elif own_compression(settings) is None:
        assert goes_to_librdkafka(Producer, name)


@pytest.mark.parametrize("name", CONSUMER)
def test_every_setting_of_kafkas_consumer_has_its_fate(name: str, caplog: pytest.LogCaptureFixture) -> None:
    _log_ignored.cache_clear()
    if name in OWN_FIELDS:
        return
    try:
        options = stream(**{f"kafka.{name}": VALUES.get(name, NUMBER)})
    except InvalidArgument as refused:
        assert str(refused).startswith(f"option kafka.{name}: ")  # noqa: PT017 - being refused is one of three good ends
        return
    settings = dict(options.connection.settings)
    if not settings:
        assert [message.startswith(f"option kafka.{name} has no effect: ") for message in caplog.messages] == [True]
    elif own_settings(settings) is None:
        assert goes_to_librdkafka(lambda given: Consumer({**given, "group.id": "g"}), name)


def test_the_page_has_the_table() -> None:
    assert foreign_options_page() in PAGE.read_text(), foreign_options_page()


def test_no_setting_is_foreign_and_ours_at_once() -> None:
    ours = {"client.id", "check.crcs", "request.timeout.ms", "max.partition.fetch.bytes", "fetch.max.wait.ms"}
    assert not [name for name in FOREIGN_TO_SOURCE if name.removeprefix("kafka.") in ours]
    assert not {"kafka.compression.type", "kafka.linger.ms", "kafka.batch.size"} & set(FOREIGN_TO_SINK)
