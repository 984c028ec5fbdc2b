"""``spark.read.format("tidelog")`` on a real broker: what was produced, all of it and as it was.

``spark.readStream.format("tidelog")`` on a real broker: every message once, over many runs with one checkpoint. What Spark loads
for a stream that only reads. Connections are kept from one task to the next, for each way of connecting. Progress as a group's
offsets: what is done is shown, and what cannot be shown stops nobody.
"""

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as RawPartition
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from tests.client.fetch.test_client import MESSAGES
from tests.client.producing import new_topic
from tests.compatibility.apache_kafka import wait_until
from tests.spark.reading import SECONDS_MAX, Source, every, numbers, places, producer, send, start
from tests.toolkit_broker import ToolkitBroker, create_topic, wait_for_markers
from tidelog.client.admin import Admin
from tidelog.client.consumer import Consumer
from tidelog.client.topic_partition import TopicPartition
from tidelog.spark import source as source_module
from tidelog.spark.options import ConnectionOptions, SourceOptions
from tidelog.spark.progress_listener import ProgressListener
from tidelog.spark.source import CLIENTS_MAX, GroupProgress, fetch_client, forget_client
from tidelog.testing import Broker

# -- batches ------------------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("partitions", "filled"), [(1, 1), (7, 5), (200, 150), (2_000, 40)])
def test_tasks_follow_rows_and_not_partitions(
    spark: SparkSession, kafka: ToolkitBroker, tmp_path: Path, checkpoint: str, partitions: int, filled: int
) -> None:
    """Empty partitions are among them. Each partition is read in order, by a batch and by a stream."""
    source = Source(spark, kafka.bootstrap, new_topic(kafka, partitions=partitions))
    send(producer(kafka.bootstrap), source.topic, 20 * filled, partitions=filled)
    rows = source.batch()
    assert rows.rdd.getNumPartitions() == 1
    found = [(row.partition, row.offset) for row in rows.select("partition", "offset").collect()]
    assert found == list(every(filled, 20))
    source.available(str(tmp_path / "out"), checkpoint)
    assert places(spark.read.parquet(str(tmp_path / "out"))) == every(filled, 20)


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
    for wrong, reason in (
        (ranges % 51, "ends at 50, a range goes beyond"),
        (ranges.replace('"1"', '"2"') % 50, "is not read"),
    ):
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
    wait_for_markers(kafka.bootstrap, source.topic)
    # The log ends with ten aborted messages and a marker: a task that counted messages would wait for more.
    assert numbers(source.batch()) == [*range(10), *range(20, 30)]
    assert numbers(source.batch(**{"kafka.isolation.level": "read_uncommitted"})) == list(range(40))
    sender.begin_transaction()
    send(sender, source.topic, 10, first=40)
    assert numbers(source.batch()) == [*range(10), *range(20, 30)]
    sender.commit_transaction(SECONDS_MAX)
    wait_for_markers(kafka.bootstrap, source.topic)
    assert numbers(source.batch()) == [*range(10), *range(20, 30), *range(40, 50)]


def test_offsets_that_are_lost_are_named(spark: SparkSession, kafka: ToolkitBroker) -> None:
    source = Source(spark, kafka.bootstrap, new_topic(kafka))
    send(producer(kafka.bootstrap), source.topic, 20)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    place = RawPartition(source.topic, 0, 6)
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


def test_a_schema_chooses_columns(spark: SparkSession, kafka: ToolkitBroker, tmp_path: Path, checkpoint: str) -> None:
    source = Source(spark, kafka.bootstrap, new_topic(kafka))
    send(producer(kafka.bootstrap), source.topic, 5)
    for fetcher in ("own", "librdkafka"):
        reader = (
            spark.read.format("tidelog").options(**source.options({"fetcher": fetcher})).schema("offset bigint, value binary")
        )
        rows = reader.load()
        assert (rows.columns, numbers(rows)) == (["offset", "value"], list(range(5)))
    options = source.options({"startingOffsets": "earliest"})
    stream = spark.readStream.format("tidelog").options(**options).schema("value binary").load()
    query = start(stream, str(tmp_path / "out"), checkpoint, available_now=True)
    assert query.awaitTermination(SECONDS_MAX)
    assert numbers(spark.read.parquet(str(tmp_path / "out"))) == list(range(5))


@pytest.mark.parametrize(("schema", "named"), [("value binary, id bigint", "id bigint"), ("value string", "value string")])
def test_a_schema_of_other_columns_is_refused(spark: SparkSession, kafka: ToolkitBroker, schema: str, named: str) -> None:
    source = Source(spark, kafka.bootstrap, "any")
    reader = spark.read.format("tidelog").options(**source.options({})).schema(schema)
    with pytest.raises(PySparkException, match=f"the source has no column {named}: leave schema"):
        reader.load().count()


# -- streams ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def output(tmp_path: Path) -> str:
    return str(tmp_path / "output")


def files(output: str) -> list[str]:
    return sorted(path.name for path in Path(output).glob("*.parquet"))


def test_many_runs_with_one_checkpoint(spark: SparkSession, kafka: ToolkitBroker, output: str, checkpoint: str) -> None:
    """Limits, several splits, a partition that is added, a run with nothing to do; the group's lag is right after each."""
    source = Source(spark, kafka.bootstrap, new_topic(kafka, partitions=2))
    group = f"spark-{source.topic}"
    options = {"groupId": group, "maxOffsetsPerTrigger": "150", "minPartitions": "3"}
    sender, admin = producer(kafka.bootstrap), Admin(kafka.bootstrap)
    send(sender, source.topic, 400, partitions=2)
    query = source.available(output, checkpoint, **options)
    # A trigger that finds nothing may tell so, ten seconds after the last batch.
    assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [150, 150, 100]
    assert places(spark.read.parquet(output)) == every(2, 200)
    assert admin.group_offsets(group) == {(source.topic, 0): 200, (source.topic, 1): 200}
    before = files(output)
    source.available(output, checkpoint, **options)
    assert files(output) == before
    admin.add_partitions(source.topic, 3)
    wait_until(lambda: len(admin.describe_topic(source.topic).partitions) == 3, "the new partition is seen")
    # One that is new knows of the new partition.
    send(producer(kafka.bootstrap), source.topic, 120, first=600, partitions=3)
    source.available(output, checkpoint, **options)
    assert numbers(spark.read.parquet(output)) == [*range(400), *range(600, 720)]
    assert admin.group_offsets(group) == {(source.topic, 0): 240, (source.topic, 1): 240, (source.topic, 2): 40}
    admin.close()


def test_a_first_batch_run_again_begins_where_it_began(
    spark: SparkSession, kafka: ToolkitBroker, output: str, checkpoint: str
) -> None:
    """Spark keeps the end of the first batch before it runs, and where it began nowhere: "latest" is further by then."""
    source = Source(spark, kafka.bootstrap, new_topic(kafka))
    sender = producer(kafka.bootstrap)
    send(sender, source.topic, 10)
    source.available(output, checkpoint, startingOffsets="latest")
    send(sender, source.topic, 10, first=10)
    for path in Path(checkpoint, "commits").iterdir():
        path.unlink()
    source.available(output, checkpoint, startingOffsets="latest")
    assert numbers(spark.read.parquet(output)) == list(range(10, 20))


def test_topics_that_come_while_it_runs_and_what_the_listener_says(
    spark: SparkSession, kafka: ToolkitBroker, tmp_path: Path, output: str, checkpoint: str
) -> None:
    prefix = new_topic(kafka)
    source = Source(spark, kafka.bootstrap, prefix)
    sender = producer(kafka.bootstrap)
    send(sender, prefix, 20)
    listener = ProgressListener(tmp_path / "spark.prom")
    spark.streams.addListener(listener)
    query = start(source.stream(subscribePattern=f"{prefix}.*"), output, checkpoint)
    try:
        query.processAllAvailable()
        added = create_topic(kafka.bootstrap, f"{prefix}-more", partitions=2)
        send(sender, added, 20, first=20, partitions=2)
        wait_until(lambda: "-more" in repr(query.lastProgress), "the new topic is read")
        query.processAllAvailable()
        assert numbers(spark.read.parquet(output)) == list(range(40))

        wait_until((tmp_path / "spark.prom").exists, "the listener has heard of a batch")

        def lag() -> dict[str, float]:
            families = text_string_to_metric_families((tmp_path / "spark.prom").read_text())
            found = {family.name: family.samples for family in families}
            ends = {sample.labels["topic"]: sample.value for sample in found.get("tidelog_spark_end_offset", [])}
            lags = [sample.value for sample in found.get("tidelog_spark_lag", [])]
            return ends if lags == [0.0, 0.0, 0.0] else {}

        wait_until(lambda: lag() == {prefix: 20.0, added: 10.0}, "the listener has heard of the last batch")
    finally:
        query.stop()
        spark.streams.removeListener(listener)
    assert b"tidelog_spark_batches_total" in listener.render()


def test_lost_offsets_stop_a_stream_and_are_named(
    spark: SparkSession, kafka: ToolkitBroker, output: str, checkpoint: str
) -> None:
    source = Source(spark, kafka.bootstrap, new_topic(kafka))
    sender = producer(kafka.bootstrap)
    send(sender, source.topic, 10)
    source.available(output, checkpoint)
    send(sender, source.topic, 20, first=10)
    place = RawPartition(source.topic, 0, 15)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    admin.delete_records([place])[place].result()
    with pytest.raises(StreamingQueryException, match=re.escape(f"{source.topic}[0]: offsets 10 to 14 are lost: the log begins")):
        source.available(output, checkpoint)
    assert numbers(spark.read.parquet(output)) == list(range(10))
    source.available(output, checkpoint, failOnDataLoss="false")
    assert numbers(spark.read.parquet(output)) == [*range(10), *range(15, 30)]


def test_a_checkpoint_that_does_not_fit_is_refused_and_nothing_is_written(
    spark: SparkSession, kafka: ToolkitBroker, output: str, checkpoint: str
) -> None:
    source = Source(spark, kafka.bootstrap, new_topic(kafka))
    sender = producer(kafka.bootstrap)
    send(sender, source.topic, 10)
    source.available(output, checkpoint)
    before = files(output)

    def refuses(message: str, **given: str) -> None:
        with pytest.raises(StreamingQueryException, match=message):
            source.available(output, checkpoint, **given)
        assert files(output) == before

    other = new_topic(kafka)
    send(sender, other, 5)
    refuses(f"the checkpoint has {source.topic}, and this query reads {other}: it belongs to another query", subscribe=other)
    admin = Admin(kafka.bootstrap)
    admin.delete_topic(source.topic)
    refuses(re.escape(source.topic))
    admin.create_topic(source.topic, partitions=1)
    admin.close()
    send(sender, source.topic, 50)
    refuses(f"{source.topic} was deleted and created again since the checkpoint was written")
    newest = max(Path(checkpoint, "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    lines = newest.read_text().splitlines()
    newest.write_text("\n".join([*lines[:-1], json.dumps({source.topic: {"0": 10}})]))
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    refuses("the checkpoint has offsets that this source did not write")
    newest.write_text("\n".join([*lines[:-1], lines[-1][: len(lines[-1]) // 2]]))
    refuses("JSON")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bootstrap": "127.0.0.1:1"}, "no broker answers at 127.0.0.1:1"),
        ({"subscribe": "no-such-topic"}, "no-such-topic"),
        ({"endingOffsets": "latest"}, "a stream has no end"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(
    spark: SparkSession, kafka: ToolkitBroker, output: str, checkpoint: str, given: dict[str, str], message: str
) -> None:
    with pytest.raises(StreamingQueryException, match=re.escape(message)):
        Source(spark, kafka.bootstrap, "any").available(output, checkpoint, **given)
    assert files(output) == []


@pytest.mark.tidelog_only
def test_gaps_of_compaction_are_no_loss(spark: SparkSession, output: str, checkpoint: str) -> None:
    config = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
    with Broker(configs={"log.cleaner.backoff.ms": 100}) as broker:
        source = Source(spark, broker.bootstrap_servers, create_topic(broker.bootstrap_servers, "compacted", config=config))
        sender = producer(broker.bootstrap_servers)
        for number in range(1200):
            sender.produce(source.topic, key=b"k%d" % (number % 7), value=b"%d" % number + b" " * 4_000)
            if number % 100 == 0:
                sender.flush(SECONDS_MAX)
        assert sender.flush(SECONDS_MAX) == 0

        def is_compacted() -> bool:
            found = places(source.batch())
            return found[-1] == (0, 1199) and found[0][1] > 0 and len(found) < 600

        wait_until(is_compacted, "the log has gaps", seconds_max=SECONDS_MAX)
        source.available(output, checkpoint, maxOffsetsPerTrigger="500")
        latest = {row.key: row.offset for row in spark.read.parquet(output).orderBy("offset").collect()}
        assert sorted(latest.values()) == list(range(1193, 1200))


@pytest.mark.tidelog_only
def test_a_broker_that_is_killed_and_comes_back(spark: SparkSession, output: str, checkpoint: str) -> None:
    with Broker() as broker:
        source = Source(spark, broker.bootstrap_servers, create_topic(broker.bootstrap_servers, "orders", partitions=2))
        sender = producer(broker.bootstrap_servers)
        send(sender, source.topic, 500, partitions=2)
        query = start(source.stream(maxOffsetsPerTrigger="200"), output, checkpoint)
        try:
            # A query that finds nobody when it starts says so at once: the address is wrong, most likely.
            wait_until(lambda: query.lastProgress is not None, "the query has begun", SECONDS_MAX)
            for round_number in range(1, 3):
                broker.kill()
                broker.start()
                send(sender, source.topic, 500, first=500 * round_number, partitions=2)
            query.processAllAvailable()
        finally:
            query.stop()
        assert places(spark.read.parquet(output)) == every(2, 750)


# A Python process is started for every stream, and the stream waits for it.
NOT_NEEDED = ("tidelog.spark.sink.writers", "tidelog.client.fetch.librdkafka_source", "confluent_kafka.admin", "pyarrow.compute")


def test_a_stream_does_not_wait_for_what_only_others_need() -> None:
    program = f"import sys, tidelog.spark.data_source; print([name for name in {NOT_NEEDED} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


# -- connections --------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(source_module, "_clients", {})
    yield
    for client in source_module._clients.values():
        client.close()


def options(bootstrap: str = "h:1", **given: str) -> SourceOptions:
    return SourceOptions.parse({"bootstrap": bootstrap, "subscribe": "a", **given}, is_stream=True)


def test_the_same_cluster_is_the_same_client_until_it_is_forgotten() -> None:
    first = fetch_client(options())
    assert fetch_client(options(startingOffsets="earliest")) is first
    assert fetch_client(options(**{"kafka.client.id": "me"})) is not first
    assert fetch_client(options(**{"kafka.isolation.level": "read_uncommitted"})) is not first
    assert fetch_client(options(fetcher="librdkafka")) is not first
    forget_client(options())
    forget_client(options())
    assert fetch_client(options()) is not first


def test_a_forked_process_has_clients_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first = fetch_client(options())
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert fetch_client(options()) is not first


def test_their_number_is_bounded() -> None:
    made = [fetch_client(options(f"h:{port}")) for port in range(1, CLIENTS_MAX + 2)]
    assert len(source_module._clients) == CLIENTS_MAX
    assert fetch_client(options(f"h:{CLIENTS_MAX + 1}")) is made[-1]
    assert fetch_client(options("h:1")) is not made[0]


# -- progress as a group ------------------------------------------------------------------------------------------------------


def test_what_is_shown_is_committed(kafka: ToolkitBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "TIMEOUT_SECONDS", 60)
    topic = new_topic(kafka, partitions=2)
    progress = GroupProgress(ConnectionOptions(kafka.bootstrap, (("request.timeout.ms", "10000"),)), f"group-{topic}")
    with Admin(kafka.bootstrap) as admin:
        progress.show({TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 0})
        assert admin.group_offsets(f"group-{topic}") == {(topic, 0): 3, (topic, 1): 0}
        progress.show({TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 9})
        assert admin.group_offsets(f"group-{topic}") == {(topic, 0): 3, (topic, 1): 9}
    progress.close()


def test_without_a_broker_it_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(source_module, "TIMEOUT_SECONDS", 0.5)
    progress = GroupProgress(ConnectionOptions("127.0.0.1:1", ()), "group")
    with caplog.at_level(logging.WARNING):
        progress.show({TopicPartition("a", 0): 1})
        progress.show({TopicPartition("a", 0): 2})
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("the progress is not shown as group group: ")


def test_a_group_with_members_refuses_and_that_is_told(kafka: ToolkitBroker, caplog: pytest.LogCaptureFixture) -> None:
    topic = new_topic(kafka)
    send(producer(kafka.bootstrap), topic, 3)
    progress = GroupProgress(ConnectionOptions(kafka.bootstrap, ()), f"group-{topic}")
    with Consumer(kafka.bootstrap, group=f"group-{topic}", topics=[topic]) as consumer:
        while not list(consumer.poll(max_records=10)):
            pass
        with caplog.at_level(logging.WARNING):
            progress.show({TopicPartition(topic, 0): 1})
    progress.close()
    assert [f"the progress is not shown as group group-{topic}" in message for message in caplog.messages] == [True]
