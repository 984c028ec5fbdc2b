"""How long acknowledged writes stop when a broker is killed: ``python -m bench.failover`` runs ten rounds on three processes.

One idempotent librdkafka producer writes 200 messages a second with acks=all to one partition of three replicas. In each round
the leader is killed with ``kill -9``; where it is also the active controller, the line says so. The gap of a round is the longest
time between two acknowledgements that follow each other. In the end everything is read again: no acknowledged message may be
missing, and none may be there twice. ``--follower`` kills a follower instead.
"""

import argparse
import itertools
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tidelog.testing import Cluster

TOPIC = "orders"
ROUNDS = 10
MESSAGES_PER_SECOND = 200
# Writes go on for this long after a kill, so that the gap has ended, before the broker is started again.
OBSERVED_SECONDS = 8.0
WAIT_SECONDS_MAX = 120.0


class SteadyWriter(threading.Thread):
    """Writes at a constant rate and notes when each message was acknowledged."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(name="writer", daemon=True)
        self.acknowledged_at: list[float] = []
        self.values: list[bytes] = []
        self.failed: list[str] = []
        self._is_over = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "acks": "all", "linger.ms": 0, "log_level": 0}
        )

    def run(self) -> None:
        number, began = 0, time.monotonic()
        while not self._is_over.is_set():
            self._producer.produce(TOPIC, b"%d" % number, partition=0, on_delivery=self._delivered)
            number += 1
            due = began + number / MESSAGES_PER_SECOND
            self._producer.poll(max(0.0, due - time.monotonic()))
        self._producer.flush(WAIT_SECONDS_MAX)

    def stop(self) -> None:
        self._is_over.set()
        self.join()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acknowledged_at.append(time.monotonic())
            self.values.append(message.value() or b"")

    def longest_gap_since(self, began: float) -> float:
        times = [began, *[at for at in self.acknowledged_at if at >= began]]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


def wait_until(is_done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {WAIT_SECONDS_MAX} s")
        time.sleep(0.05)


def partition_of(admin: AdminClient) -> tuple[int, list[int]]:
    """The leader and the replicas in sync."""
    state = admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions[0]
    return state.leader, list(state.isrs)


def read_all(bootstrap_servers: str, last: bytes) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "check", "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[bytes] = []

    def has_last() -> bool:
        found.extend(message.value() or b"" for message in consumer.consume(1000, 0.2) if message.error() is None)
        return last in found[-1000:]

    wait_until(has_last, "the last message is read")
    consumer.close()
    return found


def run(rounds: int, victim_is_follower: bool) -> None:
    with Cluster(3) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, 1, 3, config={"min.insync.replicas": "2"})])[TOPIC].result(WAIT_SECONDS_MAX)
        writer = SteadyWriter(cluster.bootstrap_servers)
        writer.start()
        gaps: list[tuple[float, bool]] = []
        for number in range(rounds):
            wait_until(lambda: len(partition_of(admin)[1]) == 3, "all replicas are in sync")
            leader, isr = partition_of(admin)
            victim = next(each for each in isr if each != leader) if victim_is_follower else leader
            with_controller = victim == cluster.controller()
            wait_until(lambda: bool(writer.acknowledged_at), "the first message is acknowledged")
            began = time.monotonic()
            cluster.kill(victim)
            time.sleep(OBSERVED_SECONDS)
            gaps.append((writer.longest_gap_since(began), with_controller))
            print(f"round {number + 1}: {gaps[-1][0]:.2f} s{', also the controller' if with_controller else ''}", flush=True)
            cluster.restart(victim)
        writer.stop()
        found = Counter(read_all(cluster.bootstrap_servers, writer.values[-1]))
        lost = [value for value in writer.values if not found[value]]
        doubled = [value for value in writer.values if found[value] > 1]
        times = [gap for gap, _ in gaps]
        print(f"gap: median {statistics.median(times):.2f} s, from {min(times):.2f} to {max(times):.2f}")
        print(f"acknowledged {len(writer.values)}, lost {len(lost)}, doubled {len(doubled)}, failed {len(writer.failed)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--follower", action="store_true", help="kill a follower of the partition instead of its leader")
    options = parser.parse_args()
    run(options.rounds, options.follower)


if __name__ == "__main__":
    main()
