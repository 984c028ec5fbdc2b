"""What the two ways of fetching have in common: our own connection, and librdkafka."""

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

import pyarrow as pa

from tidelog.client.topic_partition import Partition

Isolation = Literal["read_committed", "read_uncommitted"]
Fetcher = Literal["own", "librdkafka"]
OffsetAt = Literal["earliest", "latest"] | int
"""An end of the log, or milliseconds since 1970: the first message of that time or later."""

ROWS_PER_BATCH = 20_000


class TopicInfo(NamedTuple):
    topic_id: bytes
    """16 bytes; all zero where the cluster has no topic ids (before Kafka 2.8)."""
    partitions: int


class Range(NamedTuple):
    """What to read of a partition: from ``start`` up to before ``end``."""

    topic: str
    partition: int
    start: int
    end: int
    expected_topic_id: bytes | None
    max_rows_per_batch: int
    include_headers: bool

    @property
    def name(self) -> str:
        return f"{self.topic}[{self.partition}]"


class Source(Protocol):
    """One way of fetching. Errors are those of the toolkit."""

    def topics(self, wanted: Sequence[str] | re.Pattern[str]) -> dict[str, TopicInfo]: ...

    def offsets(self, partitions: Sequence[Partition], at: OffsetAt) -> dict[Partition, int]: ...

    def read(self, wanted: Range) -> Iterator[pa.RecordBatch]: ...

    def close(self) -> None: ...


class OldFormat(Exception):
    """From ``position`` on, the log has messages of before Kafka 0.11, which librdkafka can read."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position
