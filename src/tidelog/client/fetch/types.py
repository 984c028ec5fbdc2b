"""The types that both ways of fetching share: the schema of the rows, the range to read, and the ``FetchSource`` that reads it.

The columns have the names and the order of the stock Spark connector.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

import pyarrow as pa

from tidelog.client.topic_partition import TopicPartition

Isolation = Literal["read_committed", "read_uncommitted"]
Fetcher = Literal["own", "librdkafka"]
OffsetAt = Literal["earliest", "latest"] | int
"""An end of the log, or milliseconds since 1970, which means the first message of that time or later."""

OnLoss = Callable[[TopicPartition, int, int], None]
"""Called with the partition, the wanted offset and the log's start; the read then continues at the log's start."""

ROWS_PER_BATCH = 20_000

MICROSECONDS = 1000
# A producer may write any 64 bits as a time. Those that do not fit into microseconds are clipped.
MILLISECONDS_MAX = (2**63 - 1) // MICROSECONDS

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("timestampType", pa.int32()),
    ]
)
SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", HEADERS_TYPE))


class TopicInfo(NamedTuple):
    topic_id: bytes
    """16 bytes, all of them zero on clusters without topic ids (before Kafka 2.8)."""
    partitions: int


class FetchRange(NamedTuple):
    """The offsets of a partition to read: from ``start`` to before ``end``."""

    topic: str
    partition: int
    start: int
    end: int
    expected_topic_id: bytes | None
    max_rows_per_batch: int
    include_headers: bool
    columns: tuple[str, ...] | None = None
    """The columns to decode, in this order; None for all of them."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows that a read returns."""
        if self.columns is None:
            return SCHEMA_WITH_HEADERS if self.include_headers else SCHEMA
        return pa.schema([SCHEMA_WITH_HEADERS.field(name) for name in self.columns])

    @property
    def name(self) -> str:
        return f"{self.topic}[{self.partition}]"


class FetchSource(Protocol):
    """One way of fetching. It raises the errors of the toolkit."""

    def topics(self, wanted: Sequence[str] | re.Pattern[str]) -> dict[str, TopicInfo]: ...

    def offsets(self, partitions: Sequence[TopicPartition], at: OffsetAt) -> dict[TopicPartition, int]: ...

    def read(self, ranges: Sequence[FetchRange], on_loss: OnLoss | None = None) -> Iterator[pa.RecordBatch]: ...

    def close(self) -> None: ...
