"""``spark.read.format("tidelog")`` on a real broker: what was produced, all of it and as it was."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.client.fetch.test_client import MESSAGES
from tests.client.producing import new_topic
from tests.spark.reading import SECONDS_MAX, Source, every, numbers, places, producer, send
from tests.toolkit_broker import ToolkitBroker

FIRST_MS = 1_700_000_000_000
# Messages of old times, which retention would take away.
KEPT = {"retention.ms": "-1"}


def test_a_batch_is_what_was_produced(spark: SparkSession, kafka: ToolkitBroker) -> None:
    source = Source(spark, kafka.bootstrap, new_topic(kafka, partitions=2, config=KEPT))
    sender = producer(kafka.bootstrap, **{"compression.type": "lz4"})
    for message in MESSAGES:
        sender.produce(source.topic, partition=1, **message)
    assert sender.flush(SECONDS_MAX) == 0
    rows = source.batch(includeHeaders="true").orderBy("offset").collect()
    expected: list[dict[str, Any]] = [
        {
            "key": message["key"],
            "value": message["value"],
            "topic": source.topic,
            "partition": 1,
            "offset": offset,
            "timestamp": datetime.fromtimestamp(message["timestamp"] / 1000, UTC).astimezone().replace(tzinfo=None),
            "timestampType": 0,
            "headers": message.get("headers"),
        }
        for offset, message in enumerate(MESSAGES)
    ]
    found = [{**row.asDict(), "headers": row.headers and [tuple(header) for header in row.headers]} for row in rows]
    assert [{**row, "key": _bytes(row["key"]), "value": _bytes(row["value"])} for row in found] == expected
    assert "headers" not in source.batch().columns
    assert source.batch(includeHeaders="true", fetcher="librdkafka").orderBy("offset").collect() == rows


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def test_bounds_and_splits(spark: SparkSession, kafka: ToolkitBroker) -> None:
    source = Source(spark, kafka.bootstrap, new_topic(kafka, partitions=2, config=KEPT))
    sender = producer(kafka.bootstrap)
    for number in range(100):
        sender.produce(source.topic, value=b"%d" % number, partition=number % 2, timestamp=FIRST_MS + number)
    assert sender.flush(SECONDS_MAX) == 0
    offsets = f'{{"{source.topic}": {{"0": 10, "1": %d}}}}'
    between = source.batch(startingOffsets=offsets % 45, endingOffsets=offsets % 50, minPartitions="4")
    assert between.rdd.getNumPartitions() == 4
    assert places(between) == [(1, offset) for offset in range(45, 50)]
    ranges = f'{{"{source.topic}": {{"0": [[0, 2], [7, 9]], "1": [[48, %d]]}}}}'
    assert places(source.batch(offsetRanges=ranges % 50)) == [(0, 0), (0, 1), (0, 7), (0, 8), (1, 48), (1, 49)]
    for wrong, reason in ((ranges % 51, "ends at 50, and a range goes on"), (ranges.replace('"1"', '"2"') % 50, "is not read")):
        with pytest.raises(PySparkException, match=reason):
            source.batch(offsetRanges=wrong).count()
    by_time = source.batch(startingTimestamp=str(FIRST_MS + 20), endingTimestamp=str(FIRST_MS + 30))
    assert numbers(by_time) == list(range(20, 30))
    split = source.batch(maxRecordsPerPartition="7")
    assert split.rdd.getNumPartitions() == 16
    assert places(split) == every(2, 50)
    assert places(source.batch(assign=f'{{"{source.topic}": [1]}}')) == [(1, offset) for offset in range(50)]
    assert source.batch(startingTimestamp=str(FIRST_MS + 50), endingTimestamp=str(FIRST_MS + 10)).count() == 0
    assert len(places(source.batch(subscribePattern=f"{source.topic[:-2]}.*"))) == 100


def test_transactions_are_seen_when_they_are_committed(spark: SparkSession, kafka: ToolkitBroker) -> None:
    source = Source(spark, kafka.bootstrap, new_topic(kafka))
    sender = producer(kafka.bootstrap, **{"transactional.id": source.topic})
    sender.init_transactions(SECONDS_MAX)
    for first, is_committed in ((0, True), (10, False), (20, True), (30, False)):
        sender.begin_transaction()
        send(sender, source.topic, 10, first=first)
        sender.commit_transaction(SECONDS_MAX) if is_committed else sender.abort_transaction(SECONDS_MAX)
    # The log ends with ten aborted messages and a marker: a task that counted messages would wait for more.
    assert numbers(source.batch()) == [*range(10), *range(20, 30)]
    assert numbers(source.batch(**{"kafka.isolation.level": "read_uncommitted"})) == list(range(40))
    sender.begin_transaction()
    send(sender, source.topic, 10, first=40)
    assert numbers(source.batch()) == [*range(10), *range(20, 30)]
    sender.commit_transaction(SECONDS_MAX)
    assert numbers(source.batch()) == [*range(10), *range(20, 30), *range(40, 50)]


def test_offsets_that_are_lost_are_named(spark: SparkSession, kafka: ToolkitBroker) -> None:
    source = Source(spark, kafka.bootstrap, new_topic(kafka))
    send(producer(kafka.bootstrap), source.topic, 20)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    place = TopicPartition(source.topic, 0, 6)
    admin.delete_records([place])[place].result()
    wanted = f'{{"{source.topic}": {{"0": 2}}}}'
    with pytest.raises(PySparkException, match=re.escape(f"{source.topic}[0]: offsets 2 to 5 are lost: the log begins at 6")):
        source.batch(startingOffsets=wanted).count()
    assert places(source.batch(startingOffsets=wanted, failOnDataLoss="false")) == [(0, offset) for offset in range(6, 20)]
    assert places(source.batch()) == [(0, offset) for offset in range(6, 20)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bootstrap": "127.0.0.1:1"}, "no broker answers at 127.0.0.1:1"),
        ({"subscribe": "no-such-topic"}, "no-such-topic"),
        ({"subscribePattern": "no-such-.*"}, "no topic matches pattern no-such-.*"),
        ({"startingOffsets": '{"%s": {"0": 1000}}'}, "has offsets 0 to 5: 1000 is beyond"),
        ({"startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"kafka.no.such.setting": "1"}, "no.such.setting"),
    ],
)
def test_what_is_wrong_is_said(spark: SparkSession, kafka: ToolkitBroker, given: dict[str, str], message: str) -> None:
    source = Source(spark, kafka.bootstrap, new_topic(kafka))
    send(producer(kafka.bootstrap), source.topic, 5)
    filled = {name: value.replace("%s", source.topic) for name, value in given.items()}
    with pytest.raises(PySparkException, match=re.escape(message)):
        source.batch(**filled).count()


def test_a_schema_of_ones_own_is_refused(spark: SparkSession, kafka: ToolkitBroker) -> None:
    source = Source(spark, kafka.bootstrap, "any")
    reader = spark.read.format("tidelog").options(**source.options({})).schema("id bigint")
    with pytest.raises(PySparkException, match="leave schema"):
        reader.load().count()
