"""The sink in Spark, on a real broker: what an independent reader finds."""

import re
import secrets
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.reading import SECONDS_MAX
from tests.spark.sink.reader import assert_exactly_once, committed_messages, committed_values
from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.client.transactions.admin import TransactionAdmin

ROWS = 1_000


@pytest.fixture
def prefix() -> str:
    """Of the transactional ids of one test: others leave theirs open on the same broker."""
    return f"sink-{secrets.token_hex(4)}"


@pytest.fixture
def topic(kafka: ToolkitBroker) -> str:
    return create_topic(kafka.bootstrap, f"sink-{secrets.token_hex(4)}", partitions=2)


def numbers(spark: SparkSession, start: int = 0, end: int = ROWS) -> DataFrame:
    return spark.range(start, end, 1, 2).selectExpr("cast(id as string) as value")


def save(rows: DataFrame, kafka: ToolkitBroker, **options: str) -> None:
    rows.write.format("tidelog").mode("append").option("bootstrap", kafka.bootstrap).options(**options).save()


def open_transactions(kafka: ToolkitBroker, prefix: str) -> list[str]:
    with TransactionAdmin(kafka.bootstrap) as admin:
        listed = [each.transactional_id for each in admin.list_transactions(states=["Ongoing"])]
    return [name for name in listed if name.startswith(prefix)]


def test_a_write_and_the_same_write_again(spark: SparkSession, kafka: ToolkitBroker, topic: str, prefix: str) -> None:
    write_id = secrets.token_hex(4)
    for _ in range(2):
        save(numbers(spark), kafka, topic=topic, writeId=write_id, transactionalIdPrefix=prefix)
        assert_exactly_once(kafka.bootstrap, topic, range(ROWS))
    save(numbers(spark, ROWS, 2 * ROWS), kafka, topic=topic, transactionalIdPrefix=prefix)
    assert_exactly_once(kafka.bootstrap, topic, range(2 * ROWS))
    assert open_transactions(kafka, prefix) == []


def test_every_column(spark: SparkSession, kafka: ToolkitBroker, topic: str) -> None:
    rows = spark.sql(
        f"""select 'k' as key, X'ff00' as value, '{topic}' as topic, 1 as partition, timestamp_millis(1700000000123) as timestamp,
        array(named_struct('key', 'h', 'value', X'01'), named_struct('key', 'h', 'value', cast(null as binary))) as headers"""
    )
    save(rows, kafka)
    (message,) = committed_messages(kafka.bootstrap, topic)
    assert (message.key(), message.value(), message.partition()) == (b"k", b"\xff\x00", 1)
    assert message.timestamp()[1] == 1_700_000_000_123
    assert message.headers() == [("h", b"\x01"), ("h", None)]


def test_at_least_once(spark: SparkSession, kafka: ToolkitBroker, topic: str) -> None:
    save(numbers(spark), kafka, topic=topic, deliveryGuarantee="at_least_once")
    assert_exactly_once(kafka.bootstrap, topic, range(ROWS))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (("if(id = 700, null, '{topic}') as topic", "cast(id as string) as value"), "row 200 of task 1.*the topic is null"),
        (("if(id = 700, 'nowhere', '{topic}') as topic", "cast(id as string) as value"), "row 200 of task 1.*no topic nowhere"),
        (
            ("'{topic}' as topic", "if(id = 700, repeat('x', 2000000), 'y') as value"),
            "row 200 of task 1.*2000000 bytes are too many",
        ),
    ],
)
def test_a_row_that_cannot_be_written_stops_all_before_anything_is_seen(
    spark: SparkSession, kafka: ToolkitBroker, topic: str, prefix: str, bad: tuple[str, str], reason: str
) -> None:
    rows = spark.range(0, ROWS, 1, 2).selectExpr(*[each.format(topic=topic) for each in bad])
    with pytest.raises(PySparkException, match=f"(?s){reason}"):
        save(rows, kafka, transactionalIdPrefix=prefix)
    assert not committed_values(kafka.bootstrap, topic)
    # Spark does not wait for the other task that it cancels: that one may begin its transaction after the driver has aborted all,
    # and then aborts it by itself, or the coordinator does when it times out.
    cancelled = re.compile(r".*-0-\d+$")
    assert [name for name in open_transactions(kafka, prefix) if not cancelled.fullmatch(name)] == []


def test_a_stream_over_restarts(
    spark: SparkSession, kafka: ToolkitBroker, topic: str, prefix: str, checkpoint: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    for number in range(2):
        numbers(spark, number * ROWS, (number + 1) * ROWS).write.mode("append").text(str(source))
        rows = spark.readStream.schema("value string").text(str(source))
        writer = rows.writeStream.format("tidelog").option("bootstrap", kafka.bootstrap).option("topic", topic)
        writer = writer.option("transactionalIdPrefix", prefix).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(SECONDS_MAX)
        assert_exactly_once(kafka.bootstrap, topic, range((number + 1) * ROWS))
    assert open_transactions(kafka, prefix) == []
