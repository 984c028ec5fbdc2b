"""Scaling on lag: how many workers a backlog needs. ``python examples/scaling_on_lag.py [HOST:PORT]``

The page that goes with it: docs/guides/scaling-on-lag.md.
"""

import math
import secrets
import sys
import threading
import time

from confluent_kafka import Consumer, TopicPartition

from tidelog import Admin, Producer, Worker
from tidelog.client.message import Message

PARTITIONS = 4
BACKLOG = 3_000
DRAIN_SECONDS = 4.0


def main(bootstrap: str) -> None:
    topic, group = f"jobs-{secrets.token_hex(4)}", f"jobs-{secrets.token_hex(4)}"
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
    with Producer(bootstrap) as producer:
        for number in range(BACKLOG):
            producer.send(topic, {"job": number}, key=f"job-{number}")
    print(f"lag: {lag(bootstrap, group, topic):,}")

    members = [Member(bootstrap, group, topic)]
    rate = members[0].measure(seconds=1.0)
    wanted = workers_wanted(lag(bootstrap, group, topic), rate, DRAIN_SECONDS, PARTITIONS)
    print(f"one worker handles about {rate:.0f} a second: {wanted} wanted to drain in {DRAIN_SECONDS:.0f} s")

    members += [Member(bootstrap, group, topic) for _ in range(wanted - 1)]
    while lag(bootstrap, group, topic):
        time.sleep(0.2)
    for member in members:
        member.stop()
    print(f"lag: {lag(bootstrap, group, topic)}, handled by {sum(member.handled > 0 for member in members)} workers")


def workers_wanted(messages: int, rate: float, drain_seconds: float, partitions: int) -> int:
    """What an autoscaler computes. More than there are partitions would be idle."""
    return max(1, min(partitions, math.ceil(messages / (rate * drain_seconds))))


def lag(bootstrap: str, group: str, topic: str) -> int:
    """As every Kafka tells it: the ends of the partitions minus what the group has committed."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    total = 0
    for place in consumer.committed(places, timeout=10):
        begin, end = consumer.get_watermark_offsets(place, timeout=10)
        total += end - (place.offset if place.offset >= 0 else begin)
    consumer.close()
    return total


class Member:
    """A worker whose handler waits for something slow; here in a thread, in production a process each."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        settings = {"heartbeat.interval.ms": 500}
        self._worker = Worker(bootstrap, group=group, topics=[topic], retries=0, commit_interval=0.2, config=settings)
        self._worker.handler(self._handle)
        self._thread = threading.Thread(target=self._worker.run)
        self._thread.start()

    def _handle(self, _: Message) -> None:
        time.sleep(0.01)

    @property
    def handled(self) -> int:
        return self._worker.metrics().handled

    def measure(self, seconds: float) -> float:
        """Messages a second, once it works."""
        while self._thread.is_alive() and not self.handled:
            time.sleep(0.01)
        before = self.handled
        time.sleep(seconds)
        return (self.handled - before) / seconds

    def stop(self) -> None:
        self._worker.stop()
        self._thread.join()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
