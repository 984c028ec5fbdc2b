"""Three Tidelog brokers beside three Apache Kafka brokers, while they are operated: one cluster runs at a time.

- A rolling restart, a node after the other, each as soon as all replicas are in sync again. The *gap* of a step is the longest
  time in which a partition acknowledged nothing, of an idempotent producer that writes with acks=all at a constant rate.
- A broker dies and comes back with an empty disk while a producer sends as much as it can: the time until every replica is in
  sync, and what the producer sends meanwhile, as a part of what it sent before.
- Twenty partitions move with a throttle: the latency of a producer at a constant rate, as a multiple of that of the quiet
  cluster.
- ``kill -9`` of a leader at regular intervals: the share of messages that were acknowledged within a second of being sent. What a
  producer holds back while a partition has no leader counts as late.
- A rolling restart of a cluster with many partitions, from the first stop until all replicas are in sync.

Both clusters have their makers' defaults: Tidelog syncs before it acknowledges, Kafka does not.
"""

import itertools
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.beside.cluster_subjects import NODES, ClusterKind, ClusterSubject
from bench.beside.results import Measurement, Results
from bench.measure import Target
from bench.workspace import Workspace
from tidelog.client.admin import Admin
from tidelog.client.reassignment import ReassignmentAdmin
from tidelog.client.throttle import remove_throttles, throttle

DEFAULTS = "defaults"
GAP = "rolling restart: longest gap in acknowledged writes, worst step"
REPLACED = "a broker comes back with an empty disk: time until all is in sync"
REPLACED_RATE = "the producer's rate meanwhile, of the rate before"
MOVED = "moving 20 partitions at 20 MB/s: producer's p99, of the quiet cluster's"
AVAILABLE = "kill -9 of a leader each minute: acknowledged within 1 s"
AVAILABLE_DAY = "the same for one such fault a day"
MANY = "rolling restart with 3,000 partitions x 3"
MEASUREMENTS = (
    Measurement(GAP, "s", {DEFAULTS: Target("<=", 1.0)}, judges="ours"),
    Measurement(REPLACED, "s", {DEFAULTS: Target("<=", 1.2)}),
    Measurement(REPLACED_RATE, "", {DEFAULTS: Target(">=", 0.7)}, judges="ours"),
    Measurement(MOVED, "", {DEFAULTS: Target("<=", 1.2)}, judges="ours"),
    Measurement(AVAILABLE, "%", {DEFAULTS: Target(">=", 97.0)}, judges="ours"),
    Measurement(AVAILABLE_DAY, "%", {DEFAULTS: Target(">=", 99.99)}, judges="ours"),
    Measurement(MANY, "s", {DEFAULTS: Target("<=", 60.0)}, judges="ours"),
)

PACED, BULK, MOVING, MANY_TOPIC = "paced", "bulk", "moving", "many"
PER_SECOND = 200
LATE_SECONDS = 1.0
DAY_SECONDS = 86_400
BULK_BYTES = 2 << 30
MOVING_BYTES = 400 << 20
MOVING_PARTITIONS = 20
THROTTLE_BYTES = 20_000_000
MANY_PARTITIONS = 3_000
PARTITIONS_PER_REQUEST = 500
QUIET_SECONDS = 15.0
FAULT_EVERY_SECONDS = 60.0
WAIT_SECONDS_MAX = 900.0
VALUE = bytes(1_000)
COMMON = {"log_level": 0, "message.timeout.ms": int(WAIT_SECONDS_MAX * 1000)}


class PacedWriter(threading.Thread):
    """Writes to each partition in turn, and notes for each message when it was sent and acknowledged."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(name="writer", daemon=True)
        self.acknowledged: list[tuple[int, float, float]] = []
        self.failed: list[str] = []
        self._is_over = threading.Event()
        settings = {**COMMON, "bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "acks": "all", "linger.ms": 0}
        self._producer = Producer(settings)

    def run(self) -> None:
        began = monotonic()
        for number in itertools.count():
            if self._is_over.is_set():
                break
            self._producer.produce(PACED, VALUE[:100], partition=number % NODES, on_delivery=self._noting(monotonic()))
            self._producer.poll(max(0.0, began + (number + 1) / PER_SECOND - monotonic()))
        self._producer.flush(WAIT_SECONDS_MAX)

    def _noting(self, sent: float) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failed.append(str(error))
            else:
                self.acknowledged.append((message.partition() or 0, sent, monotonic()))

        return delivered

    def longest_gap(self, since: float, until: float) -> float:
        """The longest time between two acknowledgements of the same partition."""
        longest = 0.0
        for partition in range(NODES):
            times = [answered for index, _, answered in self.acknowledged if index == partition and since <= answered <= until]
            steps = itertools.pairwise([since, *sorted(times), until])
            longest = max(longest, *(later - earlier for earlier, later in steps))
        return longest

    def p99(self, since: float) -> float:
        latencies = [answered - sent for _, sent, answered in self.acknowledged if sent >= since]
        return statistics.quantiles(latencies, n=100)[98]

    def stop(self) -> None:
        self._is_over.set()
        self.join()
        if self.failed:
            raise RuntimeError(f"{len(self.failed)} messages were not delivered: {self.failed[0]}")


class GreedyWriter(threading.Thread):
    """Writes as much as the cluster takes, and counts what was acknowledged."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(name="greedy writer", daemon=True)
        self.count = 0
        self._is_over = threading.Event()
        self._producer = Producer({**COMMON, "bootstrap.servers": bootstrap_servers, "acks": "all", "linger.ms": 5})

    def run(self) -> None:
        for number in itertools.count():
            if self._is_over.is_set():
                break
            send(self._producer, BULK, number % NODES, self._delivered)
        self._producer.flush(WAIT_SECONDS_MAX)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        self.count += error is None

    def stop(self) -> None:
        self._is_over.set()
        self.join()


def send(producer: Any, topic: str, partition: int, on_delivery: Any = None) -> None:
    while True:
        try:
            producer.produce(topic, VALUE, partition=partition, on_delivery=on_delivery)
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)


def run(workspace: Workspace, kinds: Sequence[ClusterKind], say: Callable[[str], None]) -> Results:
    with workspace.directory("clusters") as path:
        results = Results(MEASUREMENTS, [])
        for number, kind in enumerate(kinds):
            subject = kind(path / str(number), workspace.is_quick)
            results.labels.append(subject.label)
            say(f"{subject.label}:")
            try:
                subject.start_all()
                for what, measure in STEPS:
                    began = monotonic()
                    for name, value in measure(workspace, subject):
                        results.add(name, DEFAULTS, subject.label, value)
                    say(f"  {what}: {monotonic() - began:.0f} s")
            finally:
                subject.close()
    return results


Figures = Iterator[tuple[str, float]]


def rolling_restart(_: Workspace, subject: ClusterSubject) -> Figures:
    create(subject, PACED, NODES)
    gaps = []
    with writing(subject) as writer:
        for node_id in range(1, NODES + 1):
            began = monotonic()
            restart(subject, node_id)
            gaps.append(writer.longest_gap(began, monotonic()))
    yield GAP, max(gaps)


def lost_disk(workspace: Workspace, subject: ClusterSubject) -> Figures:
    create(subject, BULK, NODES)
    fill(subject, BULK, NODES, workspace.scaled(BULK_BYTES))
    writer = GreedyWriter(subject.bootstrap_servers)
    writer.start()
    seconds = 2.0 if workspace.is_quick else QUIET_SECONDS
    before = writer.count
    sleep(seconds)
    rate_before = (writer.count - before) / seconds
    subject.kill(NODES)
    subject.lose_topic(NODES, BULK)
    began, before = monotonic(), writer.count
    subject.start(NODES)
    wait_until_in_sync(subject)
    passed = monotonic() - began
    rate = (writer.count - before) / passed
    writer.stop()
    delete(subject, BULK)
    yield REPLACED, passed
    yield REPLACED_RATE, rate / rate_before


def throttled_moves(workspace: Workspace, subject: ClusterSubject) -> Figures:
    # Each partition goes from two brokers to one of them and the third.
    before = {(MOVING, index): (index % NODES + 1, (index + 1) % NODES + 1) for index in range(MOVING_PARTITIONS)}
    after = {key: (replicas[0], 6 - sum(replicas)) for key, replicas in before.items()}
    create(subject, MOVING, MOVING_PARTITIONS, [list(replicas) for replicas in before.values()])
    fill(subject, MOVING, MOVING_PARTITIONS, workspace.scaled(MOVING_BYTES))
    with (
        writing(subject) as writer,
        Admin(subject.bootstrap_servers) as admin,
        ReassignmentAdmin(subject.bootstrap_servers) as reassignments,
    ):
        since = monotonic()
        sleep(2.0 if workspace.is_quick else QUIET_SECONDS)
        quiet = writer.p99(since)
        brokers = range(1, NODES + 1)
        throttle(admin, brokers, {key: (before[key], after[key][1:]) for key in before}, THROTTLE_BYTES)
        since = monotonic()
        reassignments.alter(after)
        wait_until(lambda: not reassignments.ongoing(), "the partitions have moved")
        moved = writer.p99(since)
        remove_throttles(admin, brokers, [MOVING], ())
    delete(subject, MOVING)
    yield MOVED, moved / quiet


def killed_each_minute(workspace: Workspace, subject: ClusterSubject) -> Figures:
    every = 5.0 if workspace.is_quick else FAULT_EVERY_SECONDS
    faults = 1 if workspace.is_quick else max(1, round(workspace.minutes))
    began = monotonic()
    with writing(subject) as writer:
        for number in range(faults):
            sleep(max(0.0, began + number * every + every / 2 - monotonic()))
            leader = leaders(subject, PACED)[number % NODES]
            subject.kill(leader)
            subject.start(leader)
            wait_until_in_sync(subject)
        sleep(max(0.0, began + faults * every - monotonic()))
    latencies = [answered - sent for _, sent, answered in writer.acknowledged]
    late = sum(latency > LATE_SECONDS for latency in latencies) / len(latencies)
    yield AVAILABLE, 100 * (1 - late)
    yield AVAILABLE_DAY, 100 * (1 - late * (monotonic() - began) / faults / DAY_SECONDS)


def restart_with_many(workspace: Workspace, subject: ClusterSubject) -> Figures:
    partitions = workspace.scaled(MANY_PARTITIONS)
    for number, first in enumerate(range(0, partitions, PARTITIONS_PER_REQUEST)):
        create(subject, f"{MANY_TOPIC}-{number}", min(PARTITIONS_PER_REQUEST, partitions - first))
    began = monotonic()
    for node_id in range(1, NODES + 1):
        restart(subject, node_id)
    yield MANY, monotonic() - began


STEPS: Sequence[tuple[str, Callable[[Workspace, ClusterSubject], Figures]]] = (
    ("rolling restart", rolling_restart),
    ("a lost disk", lost_disk),
    ("throttled moves", throttled_moves),
    ("kill -9", killed_each_minute),
    ("many partitions", restart_with_many),
)


# -- what is done to a cluster ---------------------------------------------------------------------------------------------------


def admin_of(subject: ClusterSubject) -> Any:
    return AdminClient({"bootstrap.servers": subject.bootstrap_servers, "log_level": 0})


def create(subject: ClusterSubject, topic: str, partitions: int, replicas: Sequence[Sequence[int]] | None = None) -> None:
    if replicas is None:
        new = NewTopic(topic, partitions, NODES)
    else:
        new = NewTopic(topic, partitions, replica_assignment=[list(each) for each in replicas])
    admin = admin_of(subject)
    admin.create_topics([new], request_timeout=WAIT_SECONDS_MAX)[topic].result(WAIT_SECONDS_MAX)
    wait_until_in_sync(subject)


def delete(subject: ClusterSubject, topic: str) -> None:
    admin = admin_of(subject)
    admin.delete_topics([topic])[topic].result(WAIT_SECONDS_MAX)


def fill(subject: ClusterSubject, topic: str, partitions: int, size: int) -> None:
    settings = {**COMMON, "bootstrap.servers": subject.bootstrap_servers, "acks": "all", "linger.ms": 5}
    producer = Producer(settings)
    for number in range(size // len(VALUE)):
        send(producer, topic, number % partitions)
    if producer.flush(WAIT_SECONDS_MAX):
        raise RuntimeError(f"{topic} was not filled within {WAIT_SECONDS_MAX:.0f} s")


def restart(subject: ClusterSubject, node_id: int) -> None:
    subject.stop(node_id)
    subject.start(node_id)
    wait_until_in_sync(subject)


def leaders(subject: ClusterSubject, topic: str) -> list[int]:
    admin = admin_of(subject)
    partitions = admin.list_topics(topic, timeout=WAIT_SECONDS_MAX).topics[topic].partitions
    return [partitions[index].leader for index in sorted(partitions)]


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
    deadline = monotonic() + WAIT_SECONDS_MAX
    while not is_done():
        if monotonic() > deadline:
            raise TimeoutError(f"not within {WAIT_SECONDS_MAX:.0f} s: {what}")
        sleep(0.05)


@contextmanager
def writing(subject: ClusterSubject) -> Iterator[PacedWriter]:
    """A writer that has begun. Its topic was made by the first step."""
    writer = PacedWriter(subject.bootstrap_servers)
    writer.start()
    try:
        wait_until(lambda: len(writer.acknowledged) >= NODES, "the writer has begun")
        yield writer
    finally:
        writer.stop()
