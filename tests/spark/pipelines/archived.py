"""Archive tables for tests, made of a topic without Spark, and what can be wrong with one, planted."""

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from deltalake import DeltaTable

from tests.toolkit_broker import wait_for_markers
from tidelog.client.fetch.client import FetchClient
from tidelog.client.topic_partition import TopicPartition
from tidelog.spark.pipelines.archive.rows import PARTITION_BY, archive_columns
from tidelog.spark.pipelines.topics import id_text
from tidelog.spark.tables.data_files import write_files
from tidelog.spark.tables.lake_table import LakeTable
from tidelog.spark.tables.table_sink import position_name

COLUMNS = archive_columns(None)
SECONDS_MAX = 60
MOMENT = datetime.datetime(2026, 1, 5, 23, 59, tzinfo=datetime.UTC)
FIRST_MS = int(MOMENT.timestamp() * 1000)


def message(number: int) -> dict[str, Any]:
    """Of every kind: without a key, without a value, empty, with headers, with several of one name."""
    key = None if number % 7 == 3 else b"k%d" % (number % 5)
    value = None if number % 11 == 5 else b"" if number % 11 == 6 else b"value %d" % number
    headers = [[], [("trace", b"%d" % number)], [("a", None), ("a", b""), ("b", b"\xff")]][number % 3]
    return {"key": key, "value": value, "headers": headers, "timestamp": FIRST_MS + 1000 * number}


def send(bootstrap: str, topic: str, numbers: range, *, partitions: int = 1) -> None:
    sender = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 20})
    refused: list[Any] = []
    for number in numbers:
        sender.produce(
            topic, partition=number % partitions, on_delivery=lambda error, _: refused.append(error), **message(number)
        )
    assert sender.flush(SECONDS_MAX) == 0
    assert set(refused) == {None}


def send_in_transactions(bootstrap: str, topic: str, numbers: range, *, partition: int = 0) -> None:
    """Ten each, every second one aborted: so there are markers, and offsets that no reader sees."""
    sender = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "transactional.id": topic})
    sender.init_transactions(SECONDS_MAX)
    for turn, first in enumerate(range(numbers.start, numbers.stop, 10)):
        sender.begin_transaction()
        for number in range(first, first + 10):
            sender.produce(topic, partition=partition, **message(number))
        sender.abort_transaction(SECONDS_MAX) if turn % 2 else sender.commit_transaction(SECONDS_MAX)
    wait_for_markers(bootstrap, topic, partition + 1)


def archive(place: Path, bootstrap: str, topic: str, *, until: dict[int, int] | None = None) -> Path:
    """All that the topic has, or up to these offsets."""
    with FetchClient(bootstrap) as client:
        info = client.topics([topic])[topic]
        identity = {"kind": "archive", "topic": topic, "topic_id": id_text(info.topic_id)}
        table = LakeTable.ensure(place, COLUMNS, partition_by=PARTITION_BY, identity=identity)
        partitions = [TopicPartition(topic, number) for number in range(info.partitions)]
        starts, ends = client.offsets(partitions, "earliest"), client.offsets(partitions, "latest")
        batches, positions = [], {}
        for partition in partitions:
            end = (until or {}).get(partition.partition, ends[partition])
            rows = (
                pa.Table.from_batches(
                    client.read(*partition, starts[partition], end, include_headers=True),
                )
                if end > starts[partition]
                else None
            )
            if rows is not None and rows.num_rows:
                batches += as_archived(rows).to_batches()
                positions[position_name(*partition)] = rows.column("offset")[-1].as_py() + 1
    if batches:
        table.append(write_files(batches, table.place, PARTITION_BY, ("partition", "offset")), positions)
    return place


def as_archived(rows: pa.Table) -> pa.Table:
    days = rows.column("timestamp").cast(pa.date32())
    columns = {
        "error": pa.nulls(rows.num_rows, pa.string()),
        "day": days,
        "bad": pa.array([False] * rows.num_rows),
    }
    return pa.table(
        [columns.get(name, rows.column(name) if name in rows.column_names else None) for name in COLUMNS.names], COLUMNS
    )


def rows_of(place: Path, partition: int, offsets: list[int]) -> pa.Table:
    """Of the table, as they are in it."""
    wanted = DeltaTable(place).to_pyarrow_table(filters=[("partition", "=", partition), ("offset", "in", offsets)])
    return pa.table([wanted.column(name).cast(COLUMNS.field(name).type) for name in COLUMNS.names], COLUMNS)


def plant(place: Path, rows: pa.Table) -> None:
    """Rows that no archive wrote: the table's positions stay."""
    table = LakeTable.open(place)
    table.append(write_files(rows.to_batches(), table.place, PARTITION_BY, ("partition", "offset")), {})


def remove(place: Path, partition: int, offset: int) -> None:
    DeltaTable(place).delete(f"partition = {partition} AND offset = {offset}")


def with_column(rows: pa.Table, name: str, values: list[Any]) -> pa.Table:
    field = COLUMNS.field(name)
    return rows.set_column(rows.column_names.index(name), field, pa.array(values, field.type))
