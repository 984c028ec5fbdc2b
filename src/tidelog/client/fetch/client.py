"""The fetcher: topics with their ids, offsets of ends and times, and partitions by range of offsets as Arrow batches.

Our own connection where it can be, librdkafka where a setting is beyond it (TLS, SASL, whatever else we do not know), and for
what is left in a log of the formats before Kafka 0.11. Rows are the same by both, and so are the errors, but for
what ``librdkafka_source`` says.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from tidelog.client.configuration import bootstrap_addresses
from tidelog.client.errors import InvalidArgument
from tidelog.client.fetch.broker_source import BrokerSource
from tidelog.client.fetch.settings import own_settings
from tidelog.client.fetch.types import ROWS_PER_BATCH, Fetcher, Isolation, OffsetAt, OldFormat, Range, Source, TopicInfo
from tidelog.client.topic_partition import Partition

if TYPE_CHECKING:
    from tidelog.client.fetch.librdkafka_source import LibrdkafkaSource

ROWS_PER_BATCH_MAX = 1_000_000


class FetchClient:
    """Not for several threads at once; several ``read`` may be under way at the same time in one thread."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        settings: Mapping[str, str] | None = None,
        isolation: Isolation = "read_committed",
        fetcher: Fetcher = "own",
    ) -> None:
        """``settings`` are librdkafka's (without "kafka." before them). Connects on the first call.

        ``fetcher="librdkafka"`` reads by it whatever the settings are: for who wants a second witness of what is in a topic.
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
        self._source: Source = self._by_librdkafka() if own is None else BrokerSource(self._addresses, own, isolation)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._source.close()

    def topics(self, wanted: Sequence[str] | re.Pattern[str]) -> dict[str, TopicInfo]:
        """Those of these names (UnknownTopic when one is missing), or whose whole name matches the pattern, without Kafka's
        internal ones (none may match). Never creates one."""
        if isinstance(wanted, str):
            raise InvalidArgument(f"topics are a list of names, or a compiled pattern: not {wanted!r}")
        return self._source.topics(wanted)

    def offsets(self, partitions: Sequence[Partition], at: OffsetAt) -> dict[Partition, int]:
        """``latest`` is after the last message that may be read: the last stable offset under read_committed. A partition
        with no message at that time or later is left out of the answer."""
        if isinstance(at, str) and at not in ("earliest", "latest"):
            raise InvalidArgument(f"offsets are at earliest, latest or milliseconds since 1970: not {at!r}")
        if isinstance(at, int) and at < 0:
            raise InvalidArgument(f"a time is milliseconds since 1970: not {at}")
        return self._source.offsets([Partition(*partition) for partition in partitions], at)

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
        Raises OffsetsLost when the log begins after ``start`` (or comes to do so meanwhile), TopicRecreated when the topic has
        another id than ``expected_topic_id``, OffsetsMissing when ``end`` stays out of reach.
        """
        if not 0 <= start <= end:
            raise InvalidArgument(f"{topic}[{partition}]: offsets from {start} to {end} are no range")
        if not 1 <= max_rows_per_batch <= ROWS_PER_BATCH_MAX:
            raise InvalidArgument(f"an Arrow batch has 1 to {ROWS_PER_BATCH_MAX} rows: not {max_rows_per_batch}")
        wanted = Range(topic, partition, start, end, expected_topic_id, max_rows_per_batch, include_headers)
        return self._read(wanted)

    def _read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._source.read(wanted)
        except OldFormat as old:
            yield from self._by_librdkafka().read(wanted._replace(start=old.position))

    def _by_librdkafka(self) -> "LibrdkafkaSource":
        if self._librdkafka is None:
            # On use: most have no need of it, and each stream of Spark waits for what is loaded.
            from tidelog.client.fetch.librdkafka_source import LibrdkafkaSource

            self._librdkafka = LibrdkafkaSource(self._addresses, self._settings, self._isolation)
        return self._librdkafka
