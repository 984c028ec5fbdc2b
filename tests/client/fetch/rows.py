"""Rows as tuples, from whichever side: Arrow batches, records as the oracle reads them, messages of confluent-kafka."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa

from tidelog.records.batch import read_records
from tidelog.records.header import iterate_headers

SIZE_MAX = 64 << 20
_MILLISECONDS_MAX = (2**63 - 1) // 1000

Headers = tuple[tuple[str, bytes | None], ...] | None


class Row(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_us: int
    timestamp_type: int
    headers: Headers
    """None where there are none."""


def rows_of(batches: Iterable[pa.RecordBatch], topic: str, partition: int) -> list[Row]:
    """Each batch is checked as a whole; without a column of headers they are None."""
    found = []
    for batch in batches:
        batch.validate(full=True)
        assert set(batch.column("topic").to_pylist()) <= {topic}
        assert set(batch.column("partition").to_pylist()) <= {partition}
        names = ("offset", "key", "value", "timestamp", "timestampType")
        columns = [batch.column(name) for name in names]
        columns[3] = columns[3].cast(pa.int64())
        headers = batch.column("headers").to_pylist() if "headers" in batch.schema.names else [None] * batch.num_rows
        for offset, key, value, timestamp_us, kind, listed in zip(
            *[column.to_pylist() for column in columns], headers, strict=True
        ):
            pairs = None if listed is None else tuple((each["key"], each["value"]) for each in listed)
            found.append(Row(offset, key, value, timestamp_us, kind, pairs))
    return found


def oracle_rows(log: bytes) -> list[Row]:
    """Of all batches in ``log``, record by record."""
    return [
        Row(
            record.offset,
            record.key,
            record.value,
            max(-_MILLISECONDS_MAX, min(record.timestamp, _MILLISECONDS_MAX)) * 1000,
            int(header.is_log_append_time),
            record.headers or None,
        )
        for position, header in iterate_headers(log)
        for record in read_records(log, position, header, size_max=SIZE_MAX, count_max=1_000_000)
    ]


def message_rows(messages: Iterable[Any]) -> list[Row]:
    """Of confluent_kafka.Message."""
    found = []
    for message in messages:
        kind, milliseconds = message.timestamp()
        headers = tuple(message.headers() or ()) or None
        found.append(Row(message.offset(), message.key(), message.value(), milliseconds * 1000, int(kind == 2), headers))
    return found


def without_headers(rows: Iterable[Row]) -> list[Row]:
    return [row._replace(headers=None) for row in rows]
