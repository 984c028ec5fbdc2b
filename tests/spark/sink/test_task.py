"""When a task takes its transactional id."""

from collections.abc import Iterator
from typing import cast

import pyarrow as pa
import pytest

from tidelog.spark.options import SinkOptions
from tidelog.spark.sink.connections import SinkConnections
from tidelog.spark.sink.rows import SinkColumns
from tidelog.spark.sink.task import TaskWriter

OPTIONS = SinkOptions.parse({"bootstrap": "127.0.0.1:1", "topic": "orders"})
VALUE_ALONE = SinkColumns(0, None, None, None, None, None)


class Asked(Exception):
    pass


class FakeConnections:
    transaction_timeout_ms = 60_000

    def limit_of(self, topic: str) -> int:
        return 1_000


def test_not_before_its_first_row_is_there() -> None:
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
        TaskWriter(OPTIONS, VALUE_ALONE, cast(SinkConnections, FakeConnections()), 0, name).write(rows())


def test_not_at_all_without_rows() -> None:
    def name() -> str:
        raise Asked

    nothing = [pa.record_batch([pa.array([], pa.binary())], names=["value"])]
    written = TaskWriter(OPTIONS, VALUE_ALONE, cast(SinkConnections, FakeConnections()), 0, name).write(nothing)
    assert (written.rows, written.transaction) == (0, None)
