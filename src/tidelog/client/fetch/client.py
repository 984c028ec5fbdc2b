"""``FetchClient``: topics with their ids, offsets of ends and times, and ranges of partitions as Arrow batches.

``BrokerSource`` reads over our own connections. librdkafka reads where a setting is beyond these (TLS, SASL, anything else that
we do not know), and the rest of a log that still has batches from before Kafka 0.11. Both return the same rows and the same
errors, except where ``librdkafka_source`` says otherwise.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from tidelog.client.errors import InvalidArgument
from tidelog.client.fetch.lookup import PartitionLookup
from tidelog.client.fetch.ranges_reader import RangesReader
from tidelog.client.fetch.settings import OwnSettings, own_settings
from tidelog.client.fetch.types import ROWS_PER_BATCH, Fetcher, FetchRange, FetchSource, Isolation, OffsetAt, OnLoss, TopicInfo
from tidelog.client.librdkafka import bootstrap_addresses
from tidelog.client.topic_partition import TopicPartition
from tidelog.client.wire.errors import toolkit_errors

if TYPE_CHECKING:
    from tidelog.client.fetch.librdkafka_source import LibrdkafkaSource

ROWS_PER_BATCH_MAX = 1_000_000


class FetchClient:
    """It is for one thread, which may have several ``read`` under way at the same time."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        settings: Mapping[str, str] | None = None,
        isolation: Isolation = "read_committed",
        fetcher: Fetcher = "own",
    ) -> None:
        """``settings`` are librdkafka's (without "kafka." before them). Connects on the first call.

        ``fetcher="librdkafka"`` always reads with librdkafka, for callers who want a second witness of what is in a topic.
        """
        if isolation not in ("read_committed", "read_uncommitted"):
            raise InvalidArgument(f"isolation is read_committed or read_uncommitted: not {isolation!r}")
        if fetcher not in ("own", "librdkafka"):
            raise InvalidArgument(f"fetcher is own or librdkafka: not {fetcher!r}")
        self._addresses = bootstrap_addresses(bootstrap)
        self._settings = dict(settings or {})
        self._isolation: Isolation = isolation
        own = own_settings(self._settings) if fetcher == "own" else None
        self._librdkafka: LibrdkafkaSource | None = None
        self._source: FetchSource = (
            self._by_librdkafka() if own is None else BrokerSource(self._addresses, own, isolation, self._by_librdkafka)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._source.close()

    def topics(self, wanted: Sequence[str] | re.Pattern[str]) -> dict[str, TopicInfo]:
        """The topics with these names (UnknownTopic if one is missing), or those whose whole name matches the pattern, without
        Kafka's internal ones; there may be none. Never creates a topic."""
        if isinstance(wanted, str):
            raise InvalidArgument(f"topics are a list of names, or a compiled pattern: not {wanted!r}")
        return self._source.topics(wanted)

    def offsets(self, partitions: Sequence[TopicPartition], at: OffsetAt) -> dict[TopicPartition, int]:
        """``latest`` is the offset after the last message that may be read: under read_committed the last stable offset. A
        partition that has no message of that time or later is left out."""
        if isinstance(at, str) and at not in ("earliest", "latest"):
            raise InvalidArgument(f"offsets are at earliest, latest or milliseconds since 1970: not {at!r}")
        if isinstance(at, int) and at < 0:
            raise InvalidArgument(f"a time is milliseconds since 1970: not {at}")
        return self._source.offsets([TopicPartition(*partition) for partition in partitions], at)

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        expected_topic_id: bytes | None = None,
        max_rows_per_batch: int = ROWS_PER_BATCH,
        include_headers: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The messages with ``start <= offset < end``, in order, none of them twice; columns as in ``schema``.

        Ends when the position reaches ``end``: offsets of markers, of aborted messages and of compacted ones count as read.
        Raises OffsetsLost if the log begins after ``start`` (or does so meanwhile), TopicRecreated if the topic has another id
        than ``expected_topic_id``, OffsetsMissing if ``end`` stays out of reach.
        """
        if not 0 <= start <= end:
            raise InvalidArgument(f"{topic}[{partition}]: the offsets {start} to {end} are not a range")
        if not 1 <= max_rows_per_batch <= ROWS_PER_BATCH_MAX:
            raise InvalidArgument(f"an Arrow batch has 1 to {ROWS_PER_BATCH_MAX} rows: not {max_rows_per_batch}")
        return self.read_ranges(
            [FetchRange(topic, partition, start, end, expected_topic_id, max_rows_per_batch, include_headers)]
        )

    def read_ranges(self, ranges: Sequence[FetchRange], on_loss: OnLoss | None = None) -> Iterator[pa.RecordBatch]:
        """Like ``read``, for many ranges with the same ``max_rows_per_batch`` and ``include_headers``. A batch may have rows of
        several partitions; those of one partition are in order.

        ``on_loss`` is called for offsets that are lost, and the read continues after them; without it they raise OffsetsLost.
        """
        return self._source.read(ranges, on_loss)

    def _by_librdkafka(self) -> "LibrdkafkaSource":
        if self._librdkafka is None:
            # Imported on use: most callers do not need it, and each stream of Spark waits for the import.
            from tidelog.client.fetch.librdkafka_source import LibrdkafkaSource

            self._librdkafka = LibrdkafkaSource(self._addresses, self._settings, self._isolation)
        return self._librdkafka


class BrokerSource:
    """Fetching over our own connections, in plaintext."""

    def __init__(
        self, addresses: str, settings: OwnSettings, isolation: Isolation, librdkafka: Callable[[], FetchSource]
    ) -> None:
        """``librdkafka`` reads what is in a format from before Kafka 0.11."""
        self._addresses = addresses
        self._settings = settings
        self._isolation: Isolation = isolation
        self._by_librdkafka = librdkafka
        with toolkit_errors("connect", addresses):
            self._lookup = PartitionLookup(addresses, settings, isolation)

    def close(self) -> None:
        self._lookup.close()

    def topics(self, wanted: Sequence[str] | re.Pattern[str]) -> dict[str, TopicInfo]:
        with toolkit_errors("topics", self._addresses):
            return self._lookup.topics(wanted)

    def offsets(self, partitions: Sequence[TopicPartition], at: OffsetAt) -> dict[TopicPartition, int]:
        with toolkit_errors(f"offsets of {', '.join(sorted({topic for topic, _ in partitions}))}", self._addresses):
            return self._lookup.offsets(partitions, at)

    def read(self, ranges: Sequence[FetchRange], on_loss: OnLoss | None = None) -> Iterator[pa.RecordBatch]:
        reader = RangesReader(self._lookup, ranges, self._settings, self._isolation, on_loss)
        with toolkit_errors(f"read {', '.join(sorted({wanted.name for wanted in ranges[:1]}))}", self._addresses):
            yield from reader.batches()
        if reader.old_formats:
            yield from self._by_librdkafka().read(reader.old_formats, on_loss)
