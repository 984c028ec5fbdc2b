"""When a task takes its transactional id, and where its rows go."""

from collections.abc import Iterable, Iterator
from typing import cast

import pyarrow as pa
import pytest

from tidelog.client.partitioners import murmur2_partition
from tidelog.client.produce.encoding import BatchBody, ProducerIdentity, build
from tidelog.client.topic_partition import TopicPartition
from tidelog.records.batch import read_records
from tidelog.records.compression import CompressionType
from tidelog.records.header import read_header
from tidelog.spark.options import SinkOptions
from tidelog.spark.sink import column_task
from tidelog.spark.sink.column_task import ColumnTaskWriter
from tidelog.spark.sink.connections import SinkConnections
from tidelog.spark.sink.rows import RowRefused, SinkColumns
from tidelog.spark.sink.task import TaskWriter

OPTIONS = SinkOptions.parse({"bootstrap": "127.0.0.1:1", "topic": "orders"})
VALUE_ALONE = SinkColumns(0, None, None, None, None, None)


class Asked(Exception):
    pass


class FakeConnections:
    transaction_timeout_ms = 60_000

    def limit_of(self, topic: str) -> int:
        return 1_000

    def partitions_of(self, topic: str) -> int:
        return 2


both = pytest.mark.parametrize("writer", [ColumnTaskWriter, TaskWriter])
Writer = type[ColumnTaskWriter] | type[TaskWriter]


@both
def test_not_before_its_first_row_is_there(writer: Writer) -> None:
    """What is upstream may take minutes: meanwhile another attempt of the task may have taken the same id, and given it up to the
    driver. To open it then would abort what the driver commits."""
    is_row_there: list[bool] = []

    def name() -> str:
        assert is_row_there
        raise Asked

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([], pa.binary())], names=["value"])
        is_row_there.append(True)
        yield pa.record_batch([pa.array([b"a"], pa.binary())], names=["value"])

    with pytest.raises(Asked):
        writer(OPTIONS, VALUE_ALONE, cast(SinkConnections, FakeConnections()), 0, name).write(rows())


@both
def test_not_at_all_without_rows(writer: Writer) -> None:
    def name() -> str:
        raise Asked

    nothing = [pa.record_batch([pa.array([], pa.binary())], names=["value"])]
    written = writer(OPTIONS, VALUE_ALONE, cast(SinkConnections, FakeConnections()), 0, name).write(nothing)
    assert (written.rows, written.transaction) == (0, None)


class Destinations(FakeConnections):
    """Keeps what is sent, by partition."""

    def __init__(self) -> None:
        self.sent: dict[TopicPartition, list[bytes | None]] = {}

    def producer(self, transactional_id: str | None) -> "Destinations":
        assert transactional_id is None
        return self

    def send(self, bodies: Iterable[BatchBody], partitions: list[TopicPartition]) -> None:
        for body in bodies:
            batch = build(body, ProducerIdentity(1, 0, False), 0, CompressionType.NONE)
            records = read_records(batch, 0, read_header(batch), size_max=1 << 20, count_max=1 << 20)
            self.sent.setdefault(partitions[body.place], []).extend(record.value for record in records)

    def flush(self) -> None:
        pass


def test_where_rows_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the partition that a row names, else to that of its key, in topics of its own choice; the rest stays together."""
    monkeypatch.setattr(column_task, "CHUNK_BYTES", 40)
    columns = {
        "value": pa.array([b"%d" % number for number in range(8)], pa.binary()),
        "key": pa.array(["a", None, "a", "b", None, "a", None, None]),
        "partition": pa.array([None, None, None, None, 1, 0, None, None], pa.int32()),
        "topic": pa.array(["x", "x", "y", "x", "x", "x", "x", "x"]),
    }
    made = Destinations()
    places = SinkColumns(0, 1, None, 2, None, 3)
    options = SinkOptions.parse({"bootstrap": "127.0.0.1:1", "deliveryGuarantee": "at_least_once"})
    writer = ColumnTaskWriter(options, places, cast(SinkConnections, made), 0, None)
    assert writer.write([pa.record_batch(list(columns.values()), names=list(columns))]) == (8, None)
    rows = {value: place for place, values in made.sent.items() for value in values}
    of_a, of_b = (TopicPartition("x", murmur2_partition(key, 2)) for key in (b"a", b"b"))
    assert (rows[b"0"], rows[b"3"], rows[b"2"]) == (of_a, of_b, TopicPartition("y", of_a.partition))
    assert (rows[b"4"], rows[b"5"]) == (TopicPartition("x", 1), TopicPartition("x", 0))
    assert sorted(rows, key=str) == columns["value"].to_pylist()
    for values in made.sent.values():
        assert values == sorted(values, key=lambda value: value or b"")


def test_a_partition_that_there_is_not_is_the_row_s_fault() -> None:
    batch = pa.record_batch([pa.array([b"a", b"b"], pa.binary()), pa.array([1, 2], pa.int32())], names=["value", "partition"])
    writer = ColumnTaskWriter(OPTIONS, SinkColumns(0, None, None, 1, None, None), cast(SinkConnections, Destinations()), 7, None)
    with pytest.raises(RowRefused, match="row 1 of task 7: there is no partition 2: topic orders has 2"):
        writer.write([batch])
