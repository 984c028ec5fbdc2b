"""``spark.readStream.format("tidelog")`` on a real broker: every message once, over many runs with one checkpoint."""

import json
import re
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.client.producing import new_topic
from tests.compatibility.apache_kafka import wait_until
from tests.spark.reading import SECONDS_MAX, Source, every, numbers, places, producer, send, start
from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.client.admin import Admin
from tidelog.spark.listener import ProgressListener
from tidelog.testing import Broker


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
    place = TopicPartition(source.topic, 0, 15)
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
    refuses(f"the checkpoint has {source.topic}, and this query reads {other}: it is of another query", subscribe=other)
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
