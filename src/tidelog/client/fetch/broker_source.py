"""Fetching over our own connections, in plaintext."""

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa

from tidelog.client.fetch.cluster import Cluster
from tidelog.client.fetch.partition_reader import PartitionReader
from tidelog.client.fetch.settings import OwnSettings
from tidelog.client.fetch.translation import translated
from tidelog.client.fetch.types import Isolation, OffsetAt, Range, TopicInfo
from tidelog.client.topic_partition import Partition


class BrokerSource:
    def __init__(self, addresses: str, settings: OwnSettings, isolation: Isolation) -> None:
        self._addresses = addresses
        self._settings = settings
        self._isolation: Isolation = isolation
        with translated("connect", addresses):
            self._cluster = Cluster(addresses, settings, isolation)

    def close(self) -> None:
        self._cluster.close()

    def topics(self, wanted: Sequence[str] | re.Pattern[str]) -> dict[str, TopicInfo]:
        with translated("topics", self._addresses):
            return self._cluster.topics(wanted)

    def offsets(self, partitions: Sequence[Partition], at: OffsetAt) -> dict[Partition, int]:
        with translated(f"offsets of {', '.join(sorted({topic for topic, _ in partitions}))}", self._addresses):
            return self._cluster.offsets(partitions, at)

    def read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        with translated(f"read {wanted.name}", self._addresses):
            yield from PartitionReader(self._cluster, wanted, self._settings, self._isolation).batches()
