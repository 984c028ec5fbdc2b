"""The timestamps of single records, on any Kafka: each is fetched by its offset.

One consumer without a group is assigned all of them at once and asked for as little as a broker sends, a batch each. Where the
offset holds no record (compaction took it, a transaction's marker stands there) the next one answers, as it would for a reader.
"""

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError
from confluent_kafka import TopicPartition as Place

from tidelog.cli.errors import CommandFailed
from tidelog.cli.groups_facts import Partition
from tidelog.cli.kafka import Cluster

# A table is waited for no longer than this; what has not come by then is not known.
FETCH_SECONDS_MAX = 10.0
POLL_SECONDS = 0.2
# As little as may be: brokers send at least one batch whatever the limit.
FETCH_BYTES = 1024


class RecordTimes:
    """Keeps what it has found: a group that does not move is not fetched again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[Partition, tuple[int, int | None]] = {}

    def find(self, offsets: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """In milliseconds since 1970; None where no record was to be had, or one without a time."""
        missing = {partition: offset for partition, offset in offsets.items() if self._known.get(partition, (-1, 0))[0] != offset}
        if missing:
            fetched = _fetch(self._cluster, missing)
            for partition, offset in missing.items():
                if partition in fetched:
                    self._known[partition] = offset, fetched[partition]
        return {partition: self._known[partition][1] if partition in self._known else None for partition in offsets}


def _fetch(cluster: Cluster, offsets: Mapping[Partition, int]) -> dict[Partition, int | None]:
    consumer = cluster.consumer(
        {
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.message.max.bytes": FETCH_BYTES,
            "queued.min.messages": 1,
        }
    )
    found: dict[Partition, int | None] = {}
    deadline = time.monotonic() + FETCH_SECONDS_MAX
    try:
        with cluster.errors():
            consumer.assign([Place(topic, partition, offset) for (topic, partition), offset in offsets.items()])
            while len(found) < len(offsets) and time.monotonic() < deadline:
                for message in consumer.consume(len(offsets), POLL_SECONDS):
                    found.setdefault((message.topic(), message.partition()), _timestamp(cluster, message))
    finally:
        consumer.close()
    return found


def _timestamp(cluster: Cluster, message: Any) -> int | None:
    error = message.error()
    if error is not None:
        if error.code() == KafkaError._PARTITION_EOF:
            return None
        raise CommandFailed(cluster.reason(error))
    kind, timestamp = message.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE else int(timestamp)
