"""Asks for offsets of partitions, and again while one has no leader that answers.

A topic of Apache Kafka can be seen a little before its leaders answer for it, and a broker that was just restarted is asked
before it knows what it leads. To somebody who has just made a topic, or waits for a broker, neither is an error.
"""

import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

REQUEST_SECONDS_MAX = 30.0
LEADER_SECONDS_MAX = 15.0
ASK_AGAIN_SECONDS = 0.05

_NO_LEADER = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR,
)


def list_offsets(
    admin: AdminClient,
    places: Sequence[TopicPartition],
    spec: Any,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[TopicPartition, int]:
    """By partition. KafkaException when one cannot be had, or has had no leader for ``LEADER_SECONDS_MAX``."""
    if not places:
        return {}
    deadline = time.monotonic() + LEADER_SECONDS_MAX
    while True:
        asked = dict.fromkeys(places, spec)
        futures = admin.list_offsets(asked, isolation_level=isolation, request_timeout=REQUEST_SECONDS_MAX)
        try:
            return {place: int(future.result().offset) for place, future in futures.items()}
        except KafkaException as error:
            if error.args[0].code() not in _NO_LEADER or time.monotonic() >= deadline:
                raise
        time.sleep(ASK_AGAIN_SECONDS)
