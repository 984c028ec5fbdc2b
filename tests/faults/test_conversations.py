"""Conversations with one thing wrong in each, against a broker in its own process.

Each request is answered, or its connection ends. The broker lives, reports nothing unexpected, and its memory stays bounded. The
messages of another client all arrive, and afterwards a librdkafka consumer reads every topic to its end, with both isolation
levels. A failure prints the seed of the conversation and the frame that was changed in it.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from random import SystemRandom

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.faults.conversations import PARTITIONS, TOPICS, Conversation, Slip
from tests.faults.load import COMMON
from tests.faults.peers import rss_bytes
from tests.faults.rounds import create_topic
from tidelog.testing import Broker

MEBIBYTE = 1 << 20
# The same ones each time, and then others for as long.
KNOWN_CONVERSATIONS = 300
SECONDS_MAX = 30.0
# A partition costs files and memory; a number beyond the limit is refused, as a hundred thousand are in earnest.
CONFIGS = {
    "max.partitions": 300,
    "socket.request.max.bytes": 16 * MEBIBYTE,
    "queued.max.request.bytes": 32 * MEBIBYTE,
    "transaction.max.timeout.ms": 15_000,
}
# The budget for requests, the caches of a broker that warms up, and what the allocator rounds up.
GROWTH_BYTES_MAX = 160 * MEBIBYTE
READ_SECONDS_MAX = 60.0
WITNESS = "witness"
# A topic is created again while the files of its predecessor are being deleted.
MAY_BE_SAID = {"partition_not_created"}


@contextmanager
def fuzzed_broker() -> Iterator[Broker]:
    with Broker(configs=CONFIGS) as broker:
        create_topic(broker, TOPICS[0], PARTITIONS)
        create_topic(broker, TOPICS[1], PARTITIONS, cleanup_policy="compact")
        create_topic(broker, TOPICS[2], PARTITIONS)
        create_topic(broker, WITNESS, 1)
        yield broker


def converse(broker: Broker, seeds: Iterator[int], seconds: float, conversations: int) -> None:
    """One conversation after the other, and a message of the witness after each."""
    witness = Producer({**COMMON, "bootstrap.servers": broker.bootstrap_servers, "acks": "all", "linger.ms": 0})
    end = time.monotonic() + seconds
    before = rss_bytes(broker)
    lines_read = sent = 0
    while sent < conversations and time.monotonic() < end:
        conversation = Conversation(broker, next(seeds))
        conversation.run()
        lines_read = check_health(broker, conversation.slip, lines_read)
        assert rss_bytes(broker) - before < GROWTH_BYTES_MAX, conversation.slip.describe()
        witness.produce(WITNESS, str(sent).encode())
        witness.poll(0)
        sent += 1
    assert witness.flush(30) == 0, "messages of another client were not acknowledged"
    values = list(read_to_the_end(broker, WITNESS, "read_committed").values())
    assert values == [str(number).encode() for number in range(sent)]
    for topic in sorted(AdminClient({**COMMON, "bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=10).topics):
        for isolation_level in ("read_uncommitted", "read_committed"):
            read_to_the_end(broker, topic, isolation_level)
    assert broker.is_running


def seeds_of_chance() -> Iterator[int]:
    first = SystemRandom().getrandbits(32)
    print(f"seeds from {first} on", flush=True)
    return count(first)


def check_health(broker: Broker, slip: Slip, lines_read: int) -> int:
    assert broker.is_running, f"the broker ended: {broker.log_lines[-3:]}; {slip.describe()}"
    lines = broker.log_lines[lines_read:]
    for line in lines:
        event = json.loads(line) if line.startswith("{") else {"level": "error", "event": line}
        is_problem = event["level"] == "error" and event["event"] not in MAY_BE_SAID
        assert not is_problem, f"the broker said {line}; {slip.describe()}"
    return lines_read + len(lines)


def read_to_the_end(broker: Broker, topic: str, isolation_level: str) -> dict[tuple[int, int], bytes]:
    """Every record by partition and offset. Fails at the offset where the consumer stays."""
    consumer = Consumer(
        {
            **COMMON,
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation_level,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
        }
    )
    found: dict[tuple[int, int], bytes] = {}
    unread = set(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
    deadline = time.monotonic() + READ_SECONDS_MAX
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in unread])
        while unread:
            assert time.monotonic() < deadline, f"{topic} is not read to its end: {consumer.position(consumer.assignment())}"
            for message in consumer.consume(1000, 0.1):
                error = message.error()
                if error is None:
                    found[message.partition(), message.offset()] = message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                else:
                    raise AssertionError(f"{topic} cannot be read: {error}, at {consumer.position(consumer.assignment())}")
        return found
    finally:
        consumer.close()


def test_conversations_with_one_thing_wrong() -> None:
    with fuzzed_broker() as broker:
        converse(broker, count(), SECONDS_MAX, KNOWN_CONVERSATIONS)


def test_conversations_that_nobody_has_had() -> None:
    with fuzzed_broker() as broker:
        converse(broker, seeds_of_chance(), SECONDS_MAX, 1_000_000)


@pytest.mark.soak
def test_conversations_with_one_thing_wrong_for_long() -> None:
    """A new broker every ten minutes: its topics are read to their ends, and a failure is not far from its cause."""
    end = time.monotonic() + 60 * float(os.environ.get("TIDELOG_SOAK_MINUTES", "1"))
    seeds = seeds_of_chance()
    while (left := end - time.monotonic()) > 0:
        with fuzzed_broker() as broker:
            converse(broker, seeds, min(left, 600.0), 1_000_000)
