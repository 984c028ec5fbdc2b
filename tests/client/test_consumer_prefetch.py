"""A slow handler slows the fetch: what is fetched ahead is bounded, whatever the topic has."""

import json
import threading
from typing import Any

from tests.client.consuming import fill, new_group, read, until
from tests.client.producing import new_topic
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.consumer import Consumer

VALUE_BYTES = 10_000
MESSAGES = 3_000
HANDLER_SECONDS = 0.02


def test_what_is_fetched_ahead_is_bounded(kafka: ToolkitBroker) -> None:
    """30 MB are there, 2 MB may be ahead; a batch of 1 MB per partition may come on top."""
    topic = new_topic(kafka, 2)
    for partition in range(2):
        fill(kafka.bootstrap, topic, ("x" * VALUE_BYTES for _ in range(MESSAGES // 2)), partition)
    queued: list[int] = []

    def note(text: str) -> None:
        statistics: dict[str, Any] = json.loads(text)
        partitions = statistics.get("topics", {}).get(topic, {}).get("partitions", {})
        # The queue is one for all partitions: each says the size of the whole.
        queued.append(max((partition["fetchq_size"] for name, partition in partitions.items() if name != "-1"), default=0))

    config = {"statistics.interval.ms": 50, "stats_cb": note, "max.poll.interval.ms": 60_000}
    with Consumer(
        kafka.bootstrap, group=new_group(), topics=[topic], max_prefetch_bytes=2 * 1024 * 1024, config=config
    ) as consumer:
        read(consumer, 1)
        queued.clear()
        handled = 1

        def is_full_for_long() -> bool:
            nonlocal handled
            handled += len(consumer.poll(1, timeout=0))
            # A slow handler. Statistics come with polls.
            threading.Event().wait(HANDLER_SECONDS)
            return len([size for size in queued if size > 1024 * 1024]) >= 10

        until(is_full_for_long)
        assert handled < MESSAGES / 2
        assert 1024 * 1024 < max(queued) <= 4 * 1024 * 1024
        # And it loses nothing when it is fast again.
        read(consumer, MESSAGES - handled)


def test_small_messages_are_bounded_by_their_number(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka)
    fill(kafka.bootstrap, topic, ("x" for _ in range(20_000)))
    counts: list[int] = []

    def note(text: str) -> None:
        partitions = json.loads(text).get("topics", {}).get(topic, {}).get("partitions", {})
        counts.append(partitions.get("0", {}).get("fetchq_cnt", 0))

    config = {"statistics.interval.ms": 50, "stats_cb": note, "max.partition.fetch.bytes": 10_000}
    with Consumer(kafka.bootstrap, topics=[topic], max_prefetch_records=500, config=config) as consumer:
        read(consumer, 1)
        counts.clear()
        handled = 1

        def is_seen() -> bool:
            nonlocal handled
            handled += len(consumer.poll(1, timeout=0.01))
            return len(counts) >= 10 and max(counts) > 0

        until(is_seen)
        assert max(counts) < 5_000
        read(consumer, 20_000 - handled)
