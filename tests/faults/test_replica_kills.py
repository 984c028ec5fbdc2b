"""Brokers of a cluster are killed or stopped, while an idempotent producer writes to a topic with three replicas.

Each round strikes the leader of a partition, a follower of it, or the active controller with SIGKILL, a leader with SIGSTOP, or
all three with SIGKILL. The producer goes on by itself, the broker that returns is in sync again before the next one is struck,
and in the end everything that was acknowledged is there, once and in order.
"""

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.faults.load import COMMON, WAIT_SECONDS_MAX, wait_until
from tidelog.testing import Cluster

TOPIC = "orders"
PARTITIONS = 3
# So many messages must be acknowledged in each partition before the broker returns.
ACKNOWLEDGED_PER_ROUND = 100
ROUNDS = ("leader", "follower", "controller", "paused leader", "all")


class IdempotentWriter(threading.Thread):
    """Writes numbers to the partitions in turn, and notes where each acknowledged one is."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(name="writer", daemon=True)
        self.acknowledged: dict[tuple[int, int], int] = {}
        # Partitions and numbers of messages that librdkafka reports as delivered without an offset: it knows that they are there,
        # and not where.
        self.acknowledged_somewhere: set[tuple[int, int]] = set()
        self.problems: list[str] = []
        self._is_over = threading.Event()
        self._producer = Producer(
            {
                **COMMON,
                "bootstrap.servers": bootstrap_servers,
                "acks": "all",
                "enable.idempotence": True,
                "message.timeout.ms": int(WAIT_SECONDS_MAX * 1000),
            }
        )

    def run(self) -> None:
        for number in itertools.count():
            if self._is_over.wait(0.004):
                break
            self._producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._on_delivery)
            self._producer.poll(0)
        if self._producer.flush(WAIT_SECONDS_MAX):
            self.problems.append("not everything was delivered in the end")

    def wait_for_more(self, what: str) -> None:
        wanted = [self._count(partition) + ACKNOWLEDGED_PER_ROUND for partition in range(PARTITIONS)]
        wait_until(lambda: all(self._count(partition) >= wanted[partition] for partition in range(PARTITIONS)), what)

    def _count(self, partition: int) -> int:
        return sum(1 for number, _ in self.acknowledged.copy() if number == partition)

    def stop(self) -> None:
        self._is_over.set()
        self.join()

    def read_back(self, bootstrap_servers: str) -> dict[tuple[int, int], int]:
        """Everything that is in the topic."""
        return everything(bootstrap_servers, len(self.acknowledged) + len(self.acknowledged_somewhere))

    def differences(self, found: dict[tuple[int, int], int]) -> list[tuple[tuple[int, int], int]]:
        """The places where something else was acknowledged than is found there, or nothing."""
        somewhere = self.acknowledged_somewhere
        assert somewhere <= {(place[0], value) for place, value in found.items()}
        known = {(place, value) for place, value in found.items() if (place[0], value) not in somewhere}
        return sorted(known ^ self.acknowledged.items())

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self.problems.append(f"a message was not delivered: {error}")
        elif message.offset() is None:
            self.acknowledged_somewhere.add((message.partition(), int(message.value())))
        else:
            self.acknowledged[message.partition(), message.offset()] = int(message.value())


@contextmanager
def writing(cluster: Cluster) -> Iterator[IdempotentWriter]:
    writer = IdempotentWriter(cluster.bootstrap_servers)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


def leaders_and_isr(admin: Any) -> tuple[int, int, list[int]]:
    """The leader of the first partition, one of its followers, and how many replicas of each partition are in sync."""
    partitions = admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
    first = partitions[0]
    follower = next((replica for replica in first.replicas if replica != first.leader), -1)
    return first.leader, follower, [len(partition.isrs) for partition in partitions.values()]


def everything(bootstrap_servers: str, count: int) -> dict[tuple[int, int], int]:
    consumer = Consumer({**COMMON, "bootstrap.servers": bootstrap_servers, "group.id": "reader", "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    found: dict[tuple[int, int], int] = {}

    def read() -> bool:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None, message.error()
            found[message.partition(), message.offset()] = int(message.value())
        return len(found) >= count

    try:
        wait_until(read, f"{count} messages are read")
    finally:
        consumer.close()
    return found


def batches_around(cluster: Cluster, partition: int, offset: int) -> str:
    """The headers of the batches before and after an offset on each broker: whose they are, and from which leader."""
    lines = []
    for node_id in cluster.node_ids:
        path = f"{cluster.nodes[node_id].data_path}/{TOPIC}-{partition}"
        command = ["tidelog", "log", "dump", path, "--offset", str(max(0, offset - 3)), "--limit", "10", "--json"]
        dumped = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=60, check=False)
        lines += [f"node {node_id}:", dumped.stdout, dumped.stderr]
    return "\n".join(lines)


def strike(cluster: Cluster, writer: IdempotentWriter, target: str, admin: Any) -> None:
    leader, follower, _ = leaders_and_isr(admin)
    if target == "paused leader":
        cluster.pause(leader)
        writer.wait_for_more("writes go on without the leader that hangs")
        cluster.resume(leader)
    elif target == "all":
        for node_id in (leader, *(each for each in cluster.node_ids if each != leader)):
            cluster.kill(node_id)
        cluster.start()
        writer.wait_for_more("writes go on after the death of all")
    else:
        victim = {"leader": leader, "follower": follower, "controller": cluster.controller()}[target]
        cluster.kill(victim)
        writer.wait_for_more(f"writes go on without the {target}")
        cluster.restart(victim)


def test_nothing_acknowledged_is_lost_or_doubled() -> None:
    with Cluster(3) as cluster:
        admin = AdminClient({**COMMON, "bootstrap.servers": cluster.bootstrap_servers})
        topic = NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])[TOPIC].result(WAIT_SECONDS_MAX)
        with writing(cluster) as writer:
            for target in ROUNDS:
                wait_until(lambda: leaders_and_isr(admin)[2] == [3] * PARTITIONS, "all replicas in sync")
                strike(cluster, writer, target, admin)
            wait_until(lambda: leaders_and_isr(admin)[2] == [3] * PARTITIONS, "all replicas in sync in the end")
        assert writer.problems == []
        found = writer.read_back(cluster.bootstrap_servers)
        differences = writer.differences(found)
        assert not differences, f"{differences[:10]}\n{batches_around(cluster, *differences[0][0])}"
        for partition in range(PARTITIONS):
            values = [value for (number, _), value in sorted(found.items()) if number == partition]
            assert values == sorted(set(values)), "each once, in order"
