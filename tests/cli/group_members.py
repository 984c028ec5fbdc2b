"""Groups for tests of commands: offsets that are committed, members that stay for the length of a test."""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.cli.command import Command

JOIN_SECONDS_MAX = 120.0


def new_group_name() -> str:
    return f"group-{secrets.token_hex(4)}"


def commit(command: Command, group: str, topic: str, offsets: dict[int, int], metadata: str = "") -> None:
    """Offsets of a group without members."""
    admin = AdminClient({"bootstrap.servers": command.bootstrap})
    places = [TopicPartition(topic, index, offset, metadata) for index, offset in offsets.items()]
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])[group].result()


def committed(command: Command, group: str) -> dict[tuple[str, int], int]:
    admin = AdminClient({"bootstrap.servers": command.bootstrap})
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result()
    return {(place.topic, place.partition): place.offset for place in found.topic_partitions if place.offset >= 0}


@contextmanager
def member(command: Command, group: str, topic: str, **config: Any) -> Iterator[Any]:
    """One that has its partitions."""
    named = {name.replace("_", "."): value for name, value in config.items()}
    consumer = Consumer(
        {
            "bootstrap.servers": command.bootstrap,
            "group.id": group,
            "client.id": "the-test",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **named,
        }
    )
    assigned: list[Any] = []
    consumer.subscribe([topic], on_assign=lambda _, places: assigned.extend(places))
    try:
        deadline = time.monotonic() + JOIN_SECONDS_MAX
        while not assigned:
            assert time.monotonic() < deadline, "the group gave out no partitions"
            consumer.poll(0.05)
        yield consumer
    finally:
        consumer.close()
