"""Reads ranges of a topic's partitions once, as a read_committed reader without a group, in bounded memory.

Each partition is read from its first offset to the one that was its end when the reading began: what comes later is for the next
run, so that a replay whose letters fail again at once does not chase its own tail. The end may be a mark of a transaction,
which no reader gets to see; librdkafka's end-of-partition event then says that it was reached.

At most ``QUEUE_KIBIBYTES`` or ``QUEUE_MESSAGES`` and one fetch are in memory, however long the topic is. A cluster that answers
nothing for ``SILENCE_SECONDS_MAX`` ends the reading with TimedOut.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tidelog.client.errors import TimedOut, from_kafka_error
from tidelog.deadletters.connection import Connection

QUEUE_KIBIBYTES = 16 * 1024
QUEUE_MESSAGES = 2000
FETCH_BYTES = 8 << 20
BATCH_MESSAGES = 1000
POLL_SECONDS = 0.5
SILENCE_SECONDS_MAX = 60.0

CONFIG: Mapping[str, object] = {
    # It must have a name; nothing is committed under it.
    "group.id": "tidelog-deadletters",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    # Letters may be deleted by retention between looking and reading: go on with the first that is there.
    "auto.offset.reset": "earliest",
    "queued.max.messages.kbytes": QUEUE_KIBIBYTES,
    # librdkafka does not count the bytes of headers, which is where the stories are.
    "queued.min.messages": QUEUE_MESSAGES,
    # By default a full queue stops the fetches for a second, however soon it is empty again.
    "fetch.queue.backoff.ms": 5,
    "fetch.max.bytes": FETCH_BYTES,
    "fetch.error.backoff.ms": 50,
    # The end is known, so a fetch at it has nothing to wait for.
    "fetch.wait.max.ms": 10,
    # A replay with a rate takes its time between two batches.
    "max.poll.interval.ms": 24 * 60 * 60 * 1000,
}


def read(connection: Connection, topic: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[list[Any]]:
    """Batches of confluent_kafka.Message from each range (its end excluded), each partition in its order."""
    ends = {partition: end for partition, (start, end) in ranges.items() if start < end}
    if not ends:
        return
    with connection.errors(f"read {topic}"):
        consumer = Consumer(connection.configuration(CONFIG))
        try:
            consumer.assign([TopicPartition(topic, partition, ranges[partition][0]) for partition in ends])
            heard = time.monotonic()
            while ends:
                messages = _next(consumer)
                if messages:
                    heard = time.monotonic()
                    batch = _taken(connection, topic, messages, ends, consumer)
                    if batch:
                        yield batch
                        # Whoever takes the batch may take its time.
                        heard = time.monotonic()
                elif time.monotonic() - heard > SILENCE_SECONDS_MAX:
                    raise TimedOut(
                        f"read {topic}: nothing came from {connection.addresses} for {SILENCE_SECONDS_MAX:.0f} s; run it again "
                        "when the broker answers, it goes on where it stopped"
                    )
        finally:
            consumer.close()


def _next(consumer: Any) -> list[Any]:
    """What is there already, or what comes next; ``consume`` with a time would wait for a whole batch."""
    messages: list[Any] = consumer.consume(BATCH_MESSAGES, 0)
    if messages:
        return messages
    message = consumer.poll(POLL_SECONDS)
    return [] if message is None else [message]


def _taken(connection: Connection, topic: str, messages: list[Any], ends: dict[int, int], consumer: Any) -> list[Any]:
    """What lies in the ranges. A partition that reached its end is taken out of ``ends`` and read no further."""
    batch = []
    for message in messages:
        partition, error = message.partition(), message.error()
        end = ends.get(partition)
        if end is None:
            if error is not None and partition < 0:
                raise from_kafka_error(error, f"read {topic}", connection.addresses)
            continue
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                raise from_kafka_error(error, f"read {topic}-{partition}", connection.addresses)
        elif message.offset() < end:
            batch.append(message)
        if message.offset() >= end - 1:
            del ends[partition]
            consumer.pause([TopicPartition(topic, partition)])
    return batch
