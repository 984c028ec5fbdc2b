"""Clients of a cluster: writers that keep a pace or send as much as they can, and what every experiment does to topics.

All of them are librdkafka with acks=all. A *gap* is the longest time in which one partition acknowledged nothing.
"""

import itertools
import statistics
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import Any

from confluent_kafka import Consumer, ElectionType, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.clusters.subjects import NODES, ClusterSubject

SMALL, LARGE = bytes(100), bytes(1_000)
PER_SECOND = 200
WAIT_SECONDS_MAX = 300.0
# A cluster has settled when every message that is older than this was acknowledged, and at least so much time has passed.
SETTLED_AGE_SECONDS = 0.5
SETTLED_SECONDS_MIN = 2.0
POLL_SECONDS = 0.05
PARTITIONS_PER_REQUEST = 500
COMMON: Mapping[str, Any] = {"log_level": 0, "message.timeout.ms": int(WAIT_SECONDS_MAX * 1000)}


class NotDelivered(Exception):
    pass


class PacedWriter(threading.Thread):
    """Idempotent; writes numbers to each partition in turn, and notes when each was sent and acknowledged."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        partitions: int = 1,
        per_second: int = PER_SECOND,
        settings: Mapping[str, Any] = {},
    ) -> None:
        super().__init__(name="paced writer", daemon=True)
        self.acknowledged: list[tuple[int, float, float]] = []
        """Partition, when it was sent, when it was acknowledged."""
        self.numbers: list[int] = []
        self.failed: list[str] = []
        self._topic, self._partitions, self._per_second = topic, partitions, per_second
        self._waiting: list[deque[float]] = [deque() for _ in range(partitions)]
        self._is_over = threading.Event()
        common = {**COMMON, "bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "acks": "all", "linger.ms": 0}
        self._producer = Producer({**common, **settings})

    def run(self) -> None:
        began = monotonic()
        for number in itertools.count():
            if self._is_over.is_set():
                break
            partition, sent = number % self._partitions, monotonic()
            self._waiting[partition].append(sent)
            value = b"%d " % number
            self._producer.produce(
                self._topic, value.ljust(len(SMALL)), partition=partition, on_delivery=self._noting(number, sent)
            )
            self._producer.poll(max(0.0, began + (number + 1) / self._per_second - monotonic()))
        self._producer.flush(WAIT_SECONDS_MAX)

    def _noting(self, number: int, sent: float) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            partition = message.partition() or 0
            # An idempotent producer is answered in order.
            self._waiting[partition].popleft()
            if error is not None:
                self.failed.append(str(error))
            else:
                self.acknowledged.append((partition, sent, monotonic()))
                self.numbers.append(number)

        return delivered

    def has_begun(self) -> bool:
        return len(self.acknowledged) >= self._partitions

    def wait_until_settled(self, since: float) -> None:
        def is_settled() -> bool:
            now = monotonic()
            oldest = min(_first(waiting, now) for waiting in self._waiting)
            return now - since > SETTLED_SECONDS_MIN and now - oldest < SETTLED_AGE_SECONDS

        wait_until(is_settled, "the writer's messages are acknowledged again")

    def longest_gap(self, since: float, until: float, partitions: Iterable[int] | None = None) -> float:
        """Return the longest time for which one of these partitions, or of all, had no acknowledgement."""
        longest = 0.0
        for partition in range(self._partitions) if partitions is None else partitions:
            times = [answered for index, _, answered in self.acknowledged if index == partition and since <= answered <= until]
            steps = itertools.pairwise([since, *sorted(times), until])
            longest = max(longest, *(later - earlier for earlier, later in steps))
        return longest

    def latencies(self, since: float = 0.0) -> list[float]:
        """Seconds to the acknowledgement, of what was sent since then."""
        return [answered - sent for _, sent, answered in self.acknowledged if sent >= since]

    def percentile(self, percent: int, since: float = 0.0) -> float:
        return statistics.quantiles(self.latencies(since), n=100)[percent - 1]

    def stop(self) -> None:
        self._is_over.set()
        self.join()
        if self.failed:
            raise NotDelivered(f"{len(self.failed)} messages were not delivered: {self.failed[0]}")


def _first(waiting: deque[float], otherwise: float) -> float:
    try:
        return waiting[0]
    except IndexError:
        return otherwise


class GreedyWriter(threading.Thread):
    """Sends as much as it can. ``count`` messages were acknowledged so far."""

    def __init__(self, bootstrap_servers: str, topic: str, value: bytes = LARGE, partitions: int = NODES) -> None:
        super().__init__(name="greedy writer", daemon=True)
        self.count = 0
        self._topic, self._value, self._partitions = topic, value, partitions
        self._is_over = threading.Event()
        self._producer = bulk_producer(bootstrap_servers)

    def run(self) -> None:
        for number in itertools.count():
            if self._is_over.is_set():
                break
            send(self._producer, self._topic, self._value, number % self._partitions, self._delivered)
        self._producer.flush(WAIT_SECONDS_MAX)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        self.count += error is None

    def rate(self, seconds: float) -> float:
        """Messages per second, over the next seconds."""
        before = self.count
        sleep(seconds)
        return (self.count - before) / seconds

    def stop(self) -> None:
        self._is_over.set()
        self.join()


def bulk_producer(bootstrap_servers: str) -> Producer:
    return Producer({**COMMON, "bootstrap.servers": bootstrap_servers, "acks": "all", "linger.ms": 5})


def send(producer: Producer, topic: str, value: bytes, partition: int, on_delivery: Any = None) -> None:
    while True:
        try:
            producer.produce(topic, value, partition=partition, on_delivery=on_delivery)
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)


@contextmanager
def writing(
    subject: ClusterSubject,
    topic: str,
    partitions: int = 1,
    per_second: int = PER_SECOND,
    settings: Mapping[str, Any] = {},
) -> Iterator[PacedWriter]:
    """A writer that has begun."""
    writer = PacedWriter(subject.bootstrap_servers, topic, partitions, per_second, settings)
    writer.start()
    try:
        wait_until(writer.has_begun, "the writer has begun")
        yield writer
    finally:
        writer.stop()


@contextmanager
def writing_greedily(subject: ClusterSubject, topic: str, value: bytes = LARGE) -> Iterator[GreedyWriter]:
    writer = GreedyWriter(subject.bootstrap_servers, topic, value)
    writer.start()
    try:
        wait_until(lambda: writer.count > 0, "the writer has begun")
        yield writer
    finally:
        writer.stop()


# -- topics ----------------------------------------------------------------------------------------------------------------------


def admin_of(subject: ClusterSubject) -> AdminClient:
    return AdminClient({"bootstrap.servers": subject.bootstrap_servers, "log_level": 0})


def create(
    subject: ClusterSubject,
    topic: str,
    partitions: int = NODES,
    *,
    replicas: int = NODES,
    assignment: Sequence[Sequence[int]] | None = None,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Return when all replicas are in sync."""
    if assignment is None:
        new = NewTopic(topic, partitions, replicas, config=dict(configs or {}))
    else:
        new = NewTopic(topic, len(assignment), replica_assignment=[list(each) for each in assignment], config=dict(configs or {}))
    admin = admin_of(subject)
    admin.create_topics([new], request_timeout=WAIT_SECONDS_MAX)[topic].result(WAIT_SECONDS_MAX)
    wait_until_in_sync(subject)


def create_many(subject: ClusterSubject, topic: str, partitions: int, replicas: int = NODES) -> dict[str, int]:
    """Topics of some hundred partitions each: for every topic its partitions."""
    made = {}
    for number, first in enumerate(range(0, partitions, PARTITIONS_PER_REQUEST)):
        made[f"{topic}-{number}"] = min(PARTITIONS_PER_REQUEST, partitions - first)
    for name, count in made.items():
        create(subject, name, count, replicas=replicas)
    return made


def delete(subject: ClusterSubject, topic: str) -> None:
    admin = admin_of(subject)
    admin.delete_topics([topic])[topic].result(WAIT_SECONDS_MAX)


def fill(subject: ClusterSubject, topic: str, partitions: int, size: int) -> None:
    producer = bulk_producer(subject.bootstrap_servers)
    for number in range(size // len(LARGE)):
        send(producer, topic, LARGE, number % partitions)
    if producer.flush(WAIT_SECONDS_MAX):
        raise NotDelivered(f"{topic} was not filled within {WAIT_SECONDS_MAX:.0f} s")


def elect_preferred(subject: ClusterSubject, topic: str) -> None:
    """Return when each partition is led by the first of its replicas."""
    admin = admin_of(subject)

    def is_led_as_preferred() -> bool:
        partitions = admin.list_topics(topic, timeout=WAIT_SECONDS_MAX).topics[topic].partitions
        others = [index for index, each in partitions.items() if each.leader != each.replicas[0]]
        if others:
            # Brokers that have just started are not preferred at once: it is asked for again.
            asked = [TopicPartition(topic, index) for index in others]
            with suppress(KafkaException):
                admin.elect_leaders(ElectionType.PREFERRED, asked).result(WAIT_SECONDS_MAX)
        return not others

    wait_until(is_led_as_preferred, "the preferred replicas lead")


def leaders(subject: ClusterSubject, topic: str) -> list[int]:
    partitions = admin_of(subject).list_topics(topic, timeout=WAIT_SECONDS_MAX).topics[topic].partitions
    return [partitions[index].leader for index in sorted(partitions)]


def count_values(subject: ClusterSubject, topic: str, partitions: int, written: Sequence[int]) -> Counter[int]:
    """How often each number of a paced writer is in the topic, as far as the last that was written to each partition."""
    settings = {"bootstrap.servers": subject.bootstrap_servers, "group.id": "check", "log_level": 0}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    last = {max(number for number in written if number % partitions == index) for index in range(partitions)}
    found: Counter[int] = Counter()

    def has_last() -> bool:
        found.update(int(message.value() or b"-1") for message in consumer.consume(10_000, 0.2) if message.error() is None)
        return last <= found.keys()

    wait_until(has_last, "the last message is read")
    consumer.close()
    return found


def wait_until_in_sync(subject: ClusterSubject) -> None:
    admin = admin_of(subject)

    def is_in_sync() -> bool:
        try:
            found = admin.list_topics(timeout=10)
        except KafkaException:
            return False
        partitions = [each for topic in found.topics.values() for each in topic.partitions.values()]
        return len(found.brokers) == NODES and all(len(each.isrs) == len(each.replicas) for each in partitions)

    wait_until(is_in_sync, "all replicas are in sync")


def wait_until(is_done: Callable[[], bool], what: str) -> None:
    """A question that takes long is asked less often, because the brokers pay for it."""
    deadline = monotonic() + WAIT_SECONDS_MAX
    while True:
        asked = monotonic()
        if is_done():
            return
        if monotonic() > deadline:
            raise TimeoutError(f"not within {WAIT_SECONDS_MAX:.0f} s: {what}")
        sleep(max(POLL_SECONDS, 2 * (monotonic() - asked)))


def restart(subject: ClusterSubject, node_id: int) -> None:
    subject.stop(node_id)
    subject.start(node_id)
    wait_until_in_sync(subject)
