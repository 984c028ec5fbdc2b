"""An independent reader: librdkafka with read_committed, from the beginning to the end of a topic."""

import time
from collections import Counter
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

READ_SECONDS_MAX = 90.0


def committed_messages(bootstrap: str, topic: str) -> list[Any]:
    """All up to the end of the log as it is now; waits for transactions that are still open before it."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "independent",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": False,
        "log_level": 0,
    }
    consumer = Consumer(settings)
    try:
        partitions = [TopicPartition(topic, number) for number in consumer.list_topics(topic, 30).topics[topic].partitions]
        ends = {each.partition: consumer.get_watermark_offsets(each, 30)[1] for each in partitions}
        consumer.assign([TopicPartition(topic, each.partition, OFFSET_BEGINNING) for each in partitions])
        deadline = time.monotonic() + READ_SECONDS_MAX
        found = []
        while any(ends[each.partition] > 0 and each.offset < ends[each.partition] for each in consumer.position(partitions)):
            assert time.monotonic() < deadline, f"{topic}: something is open before {ends}: {consumer.position(partitions)}"
            for message in consumer.consume(10_000, 0.1):
                assert message.error() is None, message.error()
                found.append(message)
        return found
    finally:
        consumer.close()


def committed_values(bootstrap: str, topic: str) -> Counter[bytes]:
    return Counter(message.value() for message in committed_messages(bootstrap, topic))


def assert_exactly_once(bootstrap: str, topic: str, expected: range) -> None:
    """The values are these numbers: no gap, no duplicate."""
    found = committed_values(bootstrap, topic)
    wanted = Counter(str(number).encode() for number in expected)
    missing, extra = wanted - found, found - wanted
    assert (len(missing), len(extra)) == (0, 0), f"missing: {sorted(missing)[:5]}; too many: {sorted(extra)[:5]}"
