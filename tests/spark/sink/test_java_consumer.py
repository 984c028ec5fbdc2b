"""Kafka's own Java consumer reads the batches that the Spark sink encodes from columns. Runs under ``make compat``."""

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructType

from tests.compatibility.apache_kafka import KafkaUnavailable, kafka_classpath, run_tool
from tests.toolkit_broker import create_topic
from tidelog.records.compression import CompressionType
from tidelog.spark.options import SinkOptions
from tidelog.spark.sink.column_task import ColumnTaskWriter
from tidelog.spark.sink.connections import SinkConnections
from tidelog.spark.sink.rows import check_columns
from tidelog.testing import Broker

pytestmark = pytest.mark.apache_kafka

ROWS = 500
MOMENT = datetime.datetime(2026, 11, 16, 12, tzinfo=datetime.UTC)
SCHEMA = StructType().add("key", "binary").add("value", "binary").add("partition", "integer").add("timestamp", "timestamp")
SCHEMA = SCHEMA.add("headers", ArrayType(StructType().add("key", StringType()).add("value", BinaryType())))
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


def rows_of(kind: str) -> pa.RecordBatch:
    """Every third has no key, every fifth no value, and every second no header."""
    numbers = range(ROWS)
    headers = [[("h", f"{kind}-{number}".encode()), ("none", None)] if number % 2 else [] for number in numbers]
    columns = [
        pa.array([None if number % 3 == 0 else f"{kind}-{number}".encode() for number in numbers], pa.binary()),
        pa.array([None if number % 5 == 0 else f"{number}-{'x' * number}".encode() for number in numbers], pa.binary()),
        pa.array([number % 2 for number in numbers], pa.int32()),
        pa.array([MOMENT + datetime.timedelta(seconds=number) for number in numbers], pa.timestamp("us", "UTC")),
        pa.array([[{"key": key, "value": value} for key, value in each] for each in headers], HEADERS),
    ]
    return pa.record_batch(columns, names=SCHEMA.names)


def write(broker: Broker, kind: str, *, is_commit: bool) -> None:
    options = SinkOptions.parse({"bootstrap": broker.bootstrap_servers, "topic": "out", "kafka.compression.type": kind})
    connections = SinkConnections(options)
    task = ColumnTaskWriter(options, check_columns(SCHEMA, "out"), connections, 0, lambda: f"{kind}-{is_commit}")
    handle = task.write([rows_of(kind)]).transaction
    assert handle is not None
    connections.admin.end_transaction(handle, is_commit=is_commit)
    connections.close()


def as_java_prints(row: dict[str, Any], partition: int) -> str:
    milliseconds = int(row["timestamp"].timestamp() * 1000)
    headers = [f"{each['key']}:{'null' if each['value'] is None else each['value'].decode()}" for each in row["headers"]]
    key, value = ("null" if row[name] is None else row[name].decode() for name in ("key", "value"))
    return "\t".join([f"CreateTime:{milliseconds}", f"Partition:{partition}", ",".join(headers) or "NO_HEADERS", key, value])


def test_a_java_consumer_reads_what_the_sink_wrote(tmp_path: Path) -> None:
    try:
        kafka_classpath()
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    kinds = [kind.name.lower() for kind in CompressionType]
    with Broker(persist=tmp_path / "data") as broker:
        create_topic(broker.bootstrap_servers, "out", partitions=2)
        for kind in kinds:
            write(broker, kind, is_commit=False)
            write(broker, kind, is_commit=True)
        shown = ("timestamp", "partition", "headers", "key")
        output = run_tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", broker.bootstrap_servers, "--topic", "out", "--from-beginning"),
            *("--isolation-level", "read_committed", "--max-messages", str(len(kinds) * ROWS), "--timeout-ms", "60000"),
            *(word for name in shown for word in ("--formatter-property", f"print.{name}=true")),
        )
    expected = [as_java_prints(row, row["partition"]) for kind in kinds for row in rows_of(kind).to_pylist()]
    found = [line for line in output.splitlines() if line.startswith("CreateTime:")]
    for partition in (0, 1):
        of_partition = f"Partition:{partition}\t"
        # The order of a partition is that of its rows.
        assert [line for line in found if of_partition in line] == [line for line in expected if of_partition in line]
