"""What the Spark tests do with a topic: fill it, read it as a batch, read it as a stream until its end, look at the outcome."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, Message, Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

# A batch takes seconds where others start Java beside it.
SECONDS_MAX = 200


def producer(bootstrap: str, **settings: Any) -> Any:
    return Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 20, **settings})


def send(sender: Any, topic: str, count: int, *, first: int = 0, partitions: int = 1, value: bytes = b"%d") -> None:
    """Values are numbers, from ``first`` on, dealt out to the partitions in turn."""
    failures: list[str] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error.str())

    for number in range(first, first + count):
        message = {"value": value % number, "key": b"k%d" % number, "partition": number % partitions}
        sender.produce(topic, **message, on_delivery=on_delivery)
        sender.poll(0)
    assert sender.flush(SECONDS_MAX) == 0
    assert failures == []


class Source(NamedTuple):
    """A topic as Spark sees it, with options that may be added to."""

    spark: SparkSession
    bootstrap: str
    topic: str

    def options(self, given: Mapping[str, str]) -> dict[str, str]:
        topics = {} if {"subscribe", "subscribePattern", "assign"} & set(given) else {"subscribe": self.topic}
        return {"bootstrap": self.bootstrap, **topics, **given}

    def batch(self, **given: str) -> DataFrame:
        return self.spark.read.format("tidelog").options(**self.options(given)).load()

    def stream(self, **given: str) -> DataFrame:
        options = self.options({"startingOffsets": "earliest", **given})
        return self.spark.readStream.format("tidelog").options(**options).load()

    def available(self, output: str, checkpoint: str, **given: str) -> StreamingQuery:
        """What is there now, appended to Parquet files; returns when it is done, or raises why not."""
        query = start(self.stream(**given), output, checkpoint, available_now=True)
        assert query.awaitTermination(SECONDS_MAX), "it goes on and on"
        return query


def start(rows: DataFrame, output: str, checkpoint: str, *, available_now: bool = False) -> StreamingQuery:
    writer = rows.writeStream.format("parquet").option("path", output).option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start() if available_now else writer.start()


def places(rows: DataFrame) -> list[tuple[int, int]]:
    """Partition and offset of each row, in order."""
    return sorted((row.partition, row.offset) for row in rows.select("partition", "offset").collect())


def numbers(rows: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in rows.select("value").collect())


def every(partitions: int, per_partition: int) -> Sequence[tuple[int, int]]:
    return [(partition, offset) for partition in range(partitions) for offset in range(per_partition)]
