"""Makes dead letters as a worker does, and reads what came of them."""

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.toolkit_broker import create_topic
from tidelog.client.admin import Admin
from tidelog.deadletters.letter import Headers, Letter, origin_headers
from tidelog.deadletters.topics import dead_letter_topic, ensure_failure_topics

HOUR_MS = 3_600_000
GROUP = "email"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Letters:
    """A source topic with a dead-letter topic of one group, each test its own."""

    def __init__(self, bootstrap: str, *, partitions: int = 2, group: str = GROUP, name: str = "orders") -> None:
        self.bootstrap = bootstrap
        self.group = group
        self.source = create_topic(bootstrap, f"{name}-{secrets.token_hex(4)}", partitions=partitions)
        self.partitions = partitions
        self.topic = dead_letter_topic(self.source, group)
        self.retry = f"{self.source}.{group}.retry.0"
        with Admin(bootstrap) as admin:
            ensure_failure_topics(admin, self.source, group, levels=0)
        self.count = 0

    def letter(self, **fields: Any) -> Letter:
        self.count += 1
        now = now_ms()
        defaults = {
            "topic": self.source,
            "partition": 0,
            "offset": self.count - 1,
            "timestamp_ms": now,
            "group": self.group,
            "attempts": 6,
            "first_failure_ms": now,
            "last_failure_ms": now,
            "exception_class": "app.errors.OutOfStock",
            "exception_message": "no more of it",
            "traceback": "Traceback (most recent call last): ...",
        }
        return Letter(**{**defaults, **fields})

    def write(
        self,
        *letters: Letter,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers = (("content-type", b"text/plain"),),
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Each with its own number as value, unless told."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0, "linger.ms": 5, **(config or {})})
        if config and "transactional.id" in config:
            producer.init_transactions()
            producer.begin_transaction()
        for letter in letters:
            content = str(letter.offset).encode() if value is None else value
            producer.produce(
                self.topic,
                content,
                content if key is None else key,
                letter.partition,
                headers=letter.to_headers(headers),
            )
            producer.poll(0)
        if config and "transactional.id" in config:
            producer.commit_transaction()
        assert producer.flush(30) == 0

    def write_many(self, count: int, **fields: Any) -> None:
        self.write(*(self.letter(partition=number % self.partitions, **fields) for number in range(count)))


def read_all(bootstrap: str, topic: str) -> list[Any]:
    """Everything that is committed, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        known = consumer.list_topics(timeout=30).topics
        if topic not in known:
            return []
        left = set(known[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in sorted(left)])
        found: list[Any] = []
        deadline = time.monotonic() + 60
        while left:
            assert time.monotonic() < deadline, f"{topic} was not read to its end"
            for message in consumer.consume(1000, 0) or [consumer.poll(0.5)]:
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
        return sorted(found, key=lambda message: (message.partition(), message.offset()))
    finally:
        consumer.close()


def values(messages: Sequence[Any]) -> list[int]:
    return [int(message.value()) for message in messages]


def plain_headers(message: Any) -> list[tuple[str, bytes | None]]:
    return origin_headers(message.headers())
