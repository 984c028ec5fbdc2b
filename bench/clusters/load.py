"""Measures the throughput of a replicated cluster, the processor time of its brokers, and the latency of one message.

The topic has three partitions, so that each broker leads one. *Page cache* means ``flush.messages`` high, which is Kafka's
default; *fsynced* means ``flush.messages=1``, which is Tidelog's. The client is one librdkafka producer on the same two cores as
the brokers, so it has a part in every figure, on both sides alike.
"""

import itertools
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

from confluent_kafka import KafkaException

from bench.beside import latency, throughput
from bench.beside.latency import Percentiles
from bench.beside.subjects import FSYNCED, PAGE_CACHE
from bench.broker_process import cpu_seconds, resident_mebibytes
from bench.clusters.experiment import Experiment, Line, Run
from bench.clusters.subjects import NODES, ClusterSubject, KafkaCluster
from bench.clusters.traffic import SMALL, WAIT_SECONDS_MAX, admin_of, create, delete, leaders, writing, writing_greedily
from bench.measure import Target
from tidelog.client.quorum import QuorumAdmin

SECTION = "Load, acks=all"
ROUNDS_OF_LOAD = 5
COUNTS = {100: 500_000, 1_000: 100_000}
UNBATCHED_COUNT = 2_000
PACED_PER_SECOND = 500
PACED_SECONDS = 10.0
PAGE_AGE_SECONDS = 1.1
PRODUCE = '{api="Produce"}'
WATCH_SECONDS = 0.5
# A long run rolls and deletes segments, so that it fits on the disk.
ROLLING = {"segment.bytes": str(64 << 20), "retention.bytes": str(256 << 20), "file.delete.delay.ms": "1000"}

CACHED_100 = "100 B batched, page cache"
SYNCED_100 = "100 B batched, Tidelog fsynced, Kafka page cache"
BOTH_SYNCED_100 = "100 B batched, both fsynced"
CACHED_1K = "1 KB batched, page cache"
SYNCED_1K = "1 KB batched, Tidelog fsynced, Kafka page cache"
BOTH_SYNCED_1K = "1 KB batched, both fsynced"
CPU = "brokers' processor time per million messages of 100 B, page cache"
MEMORY = "resident memory of the three brokers after that load"
ACK_CACHED_50 = "produce to ack, unbatched, page cache, p50"
ACK_CACHED_99 = "produce to ack, unbatched, page cache, p99"
ACK_SYNCED_50 = "produce to ack, unbatched, fsynced, p50"
ACK_SYNCED_99 = "produce to ack, unbatched, fsynced, p99"
PACED_ACK_50 = "one message at 500 msg/s, defaults: to the ack, p50"
PACED_ACK_99 = "one message at 500 msg/s, defaults: to the ack, p99"
PACED_READ_50 = "one message at 500 msg/s, defaults: to the consumer, p50"
PACED_READ_99 = "one message at 500 msg/s, defaults: to the consumer, p99"
PART_WIRE = "of it: wire and the client's threads, mean"
PART_APPEND = "of it: queue and append at the leader, mean"
PART_FETCH = "of it: the follower's fetches, before and after its sync, mean"
PART_SYNC = "of it: the follower's sync, mean"
PART_POLL = "and from the ack to the consumer's poll, mean"
REPLICATED_99 = "append to durable on all replicas, p99"
STEADY_LEADERS = "full load: changes of leaders and elections of the quorum"
STEADY_ISR = "full load: times a replica left an in-sync set"
STEADY_RATE = "full load: 1 KB messages a second"


class Reached:
    """A cluster as the clients of ``bench.beside`` want it."""

    def __init__(self, subject: ClusterSubject) -> None:
        self.bootstrap_servers = subject.bootstrap_servers


class Node:
    def __init__(self, subject: ClusterSubject, node_id: int) -> None:
        self.pid = subject.pid(node_id)


def nodes_of(subject: ClusterSubject) -> list[Node]:
    return [Node(subject, node_id) for node_id in range(1, NODES + 1)]


_numbers = itertools.count()


@contextmanager
def topic_of(subject: ClusterSubject, configs: Mapping[str, str], partitions: int = NODES) -> Iterator[str]:
    topic = f"bench-{next(_numbers)}"
    create(subject, topic, partitions, configs=configs)
    yield topic
    delete(subject, topic)


def rate(subject: ClusterSubject, configs: Mapping[str, str], size: int, count: int) -> float:
    """Acknowledged messages per second."""
    with topic_of(subject, configs) as topic:
        return throughput.produce_rate(Reached(subject), topic, bytes(size), count, throughput.BATCHED)


def batches(run: Run) -> None:
    is_kafka = isinstance(run.subject, KafkaCluster)
    for size, cached, synced, both in (
        (100, CACHED_100, SYNCED_100, BOTH_SYNCED_100),
        (1_000, CACHED_1K, SYNCED_1K, BOTH_SYNCED_1K),
    ):
        count = run.scale.of(COUNTS[size])
        # A cold JVM is half as fast.
        rate(run.subject, PAGE_CACHE, size, count)
        for _ in range(run.scale.fewer_rounds(ROUNDS_OF_LOAD)):
            began = sum(cpu_seconds(node) for node in nodes_of(run.subject))
            from_cache = rate(run.subject, PAGE_CACHE, size, count)
            if size == 100:
                passed = sum(cpu_seconds(node) for node in nodes_of(run.subject)) - began
                run.add(CPU, passed / count * 1e6)
            from_disk = rate(run.subject, FSYNCED, size, count)
            run.add(cached, from_cache)
            run.add(synced, from_cache if is_kafka else from_disk)
            run.add(both, from_disk)
    run.add(MEMORY, sum(resident_mebibytes(node) for node in nodes_of(run.subject)))


def acknowledgements(run: Run) -> None:
    for configs, median, tail in ((PAGE_CACHE, ACK_CACHED_50, ACK_CACHED_99), (FSYNCED, ACK_SYNCED_50, ACK_SYNCED_99)):
        for number in range(run.scale.fewer_rounds(ROUNDS_OF_LOAD) + 1):
            with topic_of(run.subject, configs, 1) as topic:
                found = latency.produce_to_ack(Reached(run.subject), topic, SMALL, run.scale.of(UNBATCHED_COUNT))
            # The first round warms up.
            if number:
                run.add(median, found.p50)
                run.add(tail, found.p99)


def paced(run: Run) -> None:
    seconds = run.scale.seconds(PACED_SECONDS)
    for number in range(run.scale.fewer_rounds(ROUNDS_OF_LOAD) + 1):
        with topic_of(run.subject, {}, 1) as topic:
            with writing(run.subject, topic, 1, PACED_PER_SECOND) as writer:
                before = Stages(run.subject, topic)
                since = monotonic()
                sleep(seconds)
                after = Stages(run.subject, topic)
            found = Percentiles.of([1000 * each for each in writer.latencies(since)])
        with topic_of(run.subject, {}, 1) as topic:
            settings: dict[str, Any] = {"linger.ms": 0, "enable.idempotence": True}
            read = latency.end_to_end(Reached(run.subject), topic, 100, PACED_PER_SECOND, seconds, "all", settings).percentiles()
        if number:
            run.add(PACED_ACK_50, found.p50)
            run.add(PACED_ACK_99, found.p99)
            run.add(PACED_READ_50, read.p50)
            run.add(PACED_READ_99, read.p99)
            if before.pages[0]:
                stages = after.since(before)
                run.add(PART_WIRE, found.mean - stages.queue - stages.handling - stages.wait)
                run.add(PART_APPEND, stages.queue + stages.handling)
                run.add(PART_FETCH, stages.wait - stages.follower_sync)
                run.add(PART_SYNC, stages.follower_sync)
                run.add(PART_POLL, read.mean - found.mean)
                run.add(REPLICATED_99, stages.wait_p99)


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Milliseconds of a produce request at the leader, and of a group commit at a follower; means, and one percentile."""

    queue: float
    handling: float
    wait: float
    wait_p99: float
    follower_sync: float


class Stages:
    """A reading of the brokers' histograms. Kafka serves none over HTTP."""

    def __init__(self, subject: ClusterSubject, topic: str) -> None:
        # A page is given out again for a second.
        sleep(PAGE_AGE_SECONDS)
        (leader,) = leaders(subject, topic)
        followers = [node_id for node_id in range(1, NODES + 1) if node_id != leader]
        self.pages = [subject.metrics(node_id) for node_id in (leader, *followers)]

    def since(self, before: "Stages") -> StageTimes:
        mean = {
            stage: 1000 * _mean(self.pages[:1], before.pages[:1], f"tidelog_request_{stage}_seconds", PRODUCE)
            for stage in ("queue", "handling", "wait")
        }
        waits = [_buckets(pages.pages[0], "tidelog_request_wait_seconds", PRODUCE) for pages in (before, self)]
        sync = 1000 * _mean(self.pages[1:], before.pages[1:], "tidelog_group_commit_pass_seconds", "")
        return StageTimes(**mean, wait_p99=1000 * _percentile(waits[0], waits[1], 0.99), follower_sync=sync)


def _mean(after: Sequence[str], before: Sequence[str], name: str, labels: str) -> float:
    seconds, count = (
        sum(_value(page, f"{name}_{kind}{labels}") for page in after)
        - sum(_value(page, f"{name}_{kind}{labels}") for page in before)
        for kind in ("sum", "count")
    )
    return seconds / count if count else 0.0


def _value(page: str, series: str) -> float:
    match = re.search(rf"^{re.escape(series)} (\S+)$", page, re.MULTILINE)
    return float(match[1]) if match else 0.0


def _buckets(page: str, name: str, labels: str) -> dict[float, float]:
    """How many values were at most so large, by the bound."""
    start = re.escape(f"{name}_bucket{labels.removesuffix('}')}" + ("," if labels else "{"))
    return {float(bound): float(count) for bound, count in re.findall(rf'^{start}le="([^"]+)"}} (\S+)$', page, re.MULTILINE)}


def _percentile(before: Mapping[float, float], after: Mapping[float, float], share: float) -> float:
    """The bound of the bucket in which it is."""
    counts = {bound: count - before.get(bound, 0.0) for bound, count in sorted(after.items())}
    wanted = share * max(counts.values(), default=0.0)
    return next((bound for bound, count in counts.items() if count >= wanted), 0.0)


class StateWatch(threading.Thread):
    """Looks at leaders and in-sync sets all the time, and counts what changes."""

    def __init__(self, subject: ClusterSubject, topic: str) -> None:
        super().__init__(name="watch", daemon=True)
        self.leader_changes = 0
        self.shrinks = 0
        self._subject, self._topic = subject, topic
        self._is_over = threading.Event()

    def run(self) -> None:
        admin = admin_of(self._subject)
        before: dict[int, tuple[int, set[int]]] = {}
        while not self._is_over.wait(WATCH_SECONDS):
            try:
                partitions = admin.list_topics(self._topic, timeout=WAIT_SECONDS_MAX).topics[self._topic].partitions
            except KafkaException:
                continue
            now = {index: (each.leader, set(each.isrs)) for index, each in partitions.items()}
            for index in before.keys() & now.keys():
                self.leader_changes += before[index][0] != now[index][0]
                self.shrinks += len(before[index][1] - now[index][1])
            before = now

    def stop(self) -> None:
        self._is_over.set()
        self.join()


def steady(run: Run) -> None:
    topic = "steady"
    create(run.subject, topic, configs=ROLLING)
    with QuorumAdmin(run.subject.bootstrap_servers) as admin:
        epoch = admin.describe().leader_epoch
        watch = StateWatch(run.subject, topic)
        watch.start()
        seconds = run.scale.seconds(run.scale.minutes * 60)
        with writing_greedily(run.subject, topic) as writer:
            run.add(STEADY_RATE, writer.rate(seconds))
        watch.stop()
        run.add(STEADY_LEADERS, watch.leader_changes + admin.describe().leader_epoch - epoch)
    run.add(STEADY_ISR, watch.shrinks)


EXPERIMENTS = (
    Experiment(
        "batches",
        SECTION,
        "replicated throughput, brokers' processor time, memory (--rounds, at most 5)",
        (
            Line(CACHED_100, "msg/s", Target(">=", 1.0), "ratio"),
            Line(SYNCED_100, "msg/s", Target(">=", 0.7), "ratio"),
            Line(BOTH_SYNCED_100, "msg/s"),
            Line(CACHED_1K, "msg/s", Target(">=", 1.0), "ratio"),
            Line(SYNCED_1K, "msg/s", Target(">=", 0.7), "ratio"),
            Line(BOTH_SYNCED_1K, "msg/s"),
            Line(CPU, "s", Target("<=", 2.0)),
            Line(MEMORY, "MiB", Target("<=", 600)),
        ),
        batches,
    ),
    Experiment(
        "acks",
        SECTION,
        "one message at a time, until it is acknowledged (--rounds, at most 5)",
        (
            Line(ACK_CACHED_50, "ms", Target("<=", 1.0), "ratio"),
            Line(ACK_CACHED_99, "ms", Target("<=", 1.0), "ratio"),
            Line(ACK_SYNCED_50, "ms"),
            Line(ACK_SYNCED_99, "ms", Target("<=", 100)),
        ),
        acknowledgements,
    ),
    Experiment(
        "paced",
        SECTION,
        "one message at 500 a second, to the acknowledgement and to a consumer (--rounds, at most 5)",
        (
            Line(PACED_ACK_50, "ms"),
            Line(PACED_ACK_99, "ms", Target("<=", 5.0)),
            Line(PACED_READ_50, "ms"),
            Line(PACED_READ_99, "ms", Target("<=", 8.0)),
            *(Line(part, "ms", is_ours_only=True) for part in (PART_WIRE, PART_APPEND, PART_FETCH, PART_SYNC, PART_POLL)),
            Line(REPLICATED_99, "ms", Target("<=", 5.0), is_ours_only=True),
        ),
        paced,
    ),
    Experiment(
        "steady",
        SECTION,
        "full load for --minutes, without an election or a replica that leaves",
        (Line(STEADY_LEADERS, "", Target("<=", 0)), Line(STEADY_ISR, "", Target("<=", 0)), Line(STEADY_RATE, "msg/s")),
        steady,
    ),
)
