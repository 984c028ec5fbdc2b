"""``make chaos``: three real brokers under librdkafka's clients, while one thing after the other is done to them.

    python -m tests.faults.chaos --minutes 10                          every kind of fault, one after the other
    python -m tests.faults.chaos --minutes 10 --faults kill --every 60    how available the cluster is with a kill -9 a minute

Two idempotent producers write with acks=all, one message a request: to ``orders``, with three replicas of which two have to be
in sync, and to ``moved``, with two replicas that are on the move all the time, some of these moves with a throttle. Faults strike
the leader of a partition, a follower of it, the active controller, or all brokers: SIGKILL, SIGSTOP for a while, SIGTERM, and cut
links, one way or both. Before the next fault all replicas of ``orders`` have to be in sync again.

In the end everything that was acknowledged has to be there, once and in order, and no throttle may be left. What happened is
printed with the seed; a run with the same seed has the same faults, but not the same moments. ``--history FILE`` keeps the
history, a line for each fault and each acknowledged message with its time, for a checker of somebody else.

*Availability* is the share of messages that were acknowledged within a second of being sent. What a producer holds back while a
partition has no leader counts as late, too. ``for one fault a day`` is what the same faults, on average, take from a day.
"""

import argparse
import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.faults.load import COMMON, wait_until
from tidelog.client.admin import Admin
from tidelog.client.reassignment import ReassignmentAdmin
from tidelog.client.throttle import throttle
from tidelog.client.wire.errors import ClientError
from tidelog.testing import Cluster

STEADY, MOVED = "orders", "moved"
PARTITIONS = 3
SECONDS_BETWEEN_MESSAGES = 0.01
ANSWERED_SECONDS = 1.0
# How long the cluster may take to be whole again, and a producer to deliver what is left.
RECOVERY_SECONDS_MAX = 120.0
# At the throttled rate, all that ten minutes have written to the topic that moves takes minutes.
LAST_MOVES_SECONDS_MAX = 600.0
# Above broker.session.timeout.ms (3 s), so some pauses end in time and others do not.
FAULT_SECONDS = (0.5, 6.0)
DAY_SECONDS = 86_400
THROTTLE_BYTES_PER_SECOND = 200_000
VALUE_BYTES = 500
FAULTS = ("kill", "pause", "stop", "partition", "one_way", "kill_all", "stop_all")
TARGETS = ("leader", "follower", "controller")


class Acknowledged(NamedTuple):
    sent: float
    answered: float
    place: tuple[int, int | None]
    """The partition and the offset, if librdkafka knows it: see ``tidelog.client.Delivered``."""
    number: int


class Writer(threading.Thread):
    """Writes numbers to the partitions of a topic in turn, and notes where each is and how long that took."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        super().__init__(name=f"writer of {topic}", daemon=True)
        self.topic = topic
        self.acknowledged: list[Acknowledged] = []
        self.problems: list[str] = []
        self._is_over = threading.Event()
        self._producer = Producer(
            {
                **COMMON,
                "bootstrap.servers": bootstrap_servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "message.timeout.ms": int(RECOVERY_SECONDS_MAX * 1000),
            }
        )

    def run(self) -> None:
        for number in itertools.count():
            if self._is_over.is_set():
                break
            on_delivery = self._noting(number, time.monotonic())
            value = (b"%d" % number).ljust(VALUE_BYTES)
            try:
                self._producer.produce(self.topic, value, partition=number % PARTITIONS, on_delivery=on_delivery)
                self._producer.poll(SECONDS_BETWEEN_MESSAGES)
            except KafkaException as error:
                self.problems.append(f"{self.topic}: the producer ended at message {number}: {error}")
                return
        if self._producer.flush(RECOVERY_SECONDS_MAX):
            self.problems.append(f"{self.topic}: not everything was delivered in the end")

    def _noting(self, number: int, sent: float) -> Callable[[Any, Any], None]:
        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self.problems.append(f"{self.topic}: message {number} was not delivered: {error}")
            else:
                place = message.partition(), message.offset()
                self.acknowledged.append(Acknowledged(sent, time.monotonic(), place, number))

        return delivered

    def stop(self) -> None:
        self._is_over.set()
        self.join()


class Mover(threading.Thread):
    """Moves the partitions of ``moved`` from brokers to brokers, and begins again when that is done. Faults may refuse a move or
    cut off its answer; the next round asks again."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        super().__init__(name="mover", daemon=True)
        self._cluster = cluster
        self._random = random.Random(f"{seed} moves")
        self._is_over = threading.Event()
        self.moves = 0

    def run(self) -> None:
        with ReassignmentAdmin(self._cluster.bootstrap_servers, request_timeout_ms=5_000) as admin:
            while not self._is_over.is_set():
                try:
                    if not any(topic == MOVED for topic, _ in admin.ongoing()):
                        self._begin(admin)
                except (ClientError, OSError):
                    pass  # A broker is down; the next look is soon.
                self._is_over.wait(0.2)

    def _begin(self, admin: ReassignmentAdmin) -> None:
        plan = {(MOVED, index): tuple(self._random.sample(self._cluster.node_ids, 2)) for index in range(PARTITIONS)}
        if not self._random.randrange(3):
            self._throttle(plan)
        admin.alter(plan)
        self.moves += len(plan)

    def _throttle(self, plan: dict[tuple[str, int], tuple[int, ...]]) -> None:
        everyone = tuple(self._cluster.node_ids)
        try:
            with Admin(self._cluster.bootstrap_servers, timeout=5.0) as admin:
                moves = {key: (everyone, replicas) for key, replicas in plan.items()}
                throttle(admin, self._cluster.running, moves, THROTTLE_BYTES_PER_SECOND)
        except Exception:
            return  # It is one of the things that a fault may interrupt; what is set of it goes when the moves end.

    def stop(self) -> None:
        self._is_over.set()
        self.join()


@dataclass
class Report:
    seed: int
    seconds: float = 0.0
    faults: list[tuple[float, str]] = field(default_factory=list)
    moves: int = 0
    acknowledged: int = 0
    late: int = 0
    latest_seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def availability(self) -> float:
        return 1 - self.late / self.acknowledged if self.acknowledged else 0.0

    @property
    def availability_at_one_fault_a_day(self) -> float:
        unavailable_seconds = (1 - self.availability) * self.seconds / max(1, len(self.faults))
        return 1 - unavailable_seconds / DAY_SECONDS

    def text(self) -> str:
        verdict = "nothing acknowledged was lost, doubled or reordered" if not self.problems else "; ".join(self.problems[:10])
        return (
            f"{self.seconds:.0f} s, seed {self.seed}: {len(self.faults)} faults, {self.moves} partitions moved, "
            f"{self.acknowledged:,} messages acknowledged: {verdict}\n"
            f"availability {self.availability:.3%} of acks=all within {ANSWERED_SECONDS:g} s, the latest after "
            f"{self.latest_seconds:.1f} s; for one fault a day {self.availability_at_one_fault_a_day:.5%}"
        )


class Nemesis:
    """Strikes, and makes good what it did."""

    def __init__(self, cluster: Cluster, admin: Any, seed: int, kinds: Sequence[str]) -> None:
        self._cluster = cluster
        self._admin = admin
        self._random = random.Random(seed)
        self._kinds = kinds

    def strike(self) -> str:
        kind, target = self._random.choice(self._kinds), self._random.choice(TARGETS)
        seconds = self._random.uniform(*FAULT_SECONDS)
        cluster, victim = self._cluster, self._victim(target)
        others = [node_id for node_id in cluster.node_ids if node_id != victim]
        if kind == "kill":
            cluster.kill(victim)
            cluster.restart(victim)
        elif kind == "stop":
            cluster.stop(victim)
            cluster.start(victim)
        elif kind == "pause":
            cluster.pause(victim)
            time.sleep(seconds)
            cluster.resume(victim)
        elif kind in ("partition", "one_way"):
            cluster.partition(victim, others, one_way=kind == "one_way")
            time.sleep(seconds)
            cluster.heal()
        elif kind == "kill_all":
            for node_id in cluster.node_ids:
                cluster.kill(node_id)
            cluster.start()
        else:
            assert kind == "stop_all"
            cluster.stop()
            cluster.start()
        return kind if kind.endswith("_all") else f"{kind} of {victim}, the {target}"

    def _victim(self, target: str) -> int:
        if target == "controller":
            return self._cluster.controller()
        first = self._admin.list_topics(STEADY, timeout=30).topics[STEADY].partitions[0]
        return int(first.leader if target == "leader" else next(each for each in first.replicas if each != first.leader))

    def is_whole(self) -> bool:
        """Whether every broker is there and every partition of ``orders`` has all its replicas in sync."""
        try:
            found = self._admin.list_topics(timeout=5)
        except KafkaException:
            return False
        partitions = found.topics[STEADY].partitions.values() if STEADY in found.topics else ()
        is_steady = all(each.leader >= 0 and len(each.isrs) == 3 for each in partitions)
        return len(found.brokers) == 3 and len(partitions) == PARTITIONS and is_steady


def run(
    cluster: Cluster, seed: int, seconds: float, kinds: Sequence[str] = FAULTS, every_seconds: float = 0.0
) -> tuple[Report, str]:
    """Returns the report, and the history as lines of JSON."""
    admin = AdminClient({**COMMON, "bootstrap.servers": cluster.bootstrap_servers})
    new = [
        NewTopic(STEADY, PARTITIONS, 3, config={"min.insync.replicas": "2"}),
        NewTopic(MOVED, PARTITIONS, 2, config={"min.insync.replicas": "1"}),
    ]
    for created in admin.create_topics(new).values():
        created.result(RECOVERY_SECONDS_MAX)
    nemesis, report, mover = Nemesis(cluster, admin, seed, kinds), Report(seed), Mover(cluster, seed)
    writers = [Writer(cluster.bootstrap_servers, topic) for topic in (STEADY, MOVED)]
    wait_until(nemesis.is_whole, "the cluster is whole", RECOVERY_SECONDS_MAX)
    began = time.monotonic()
    for thread in (*writers, mover):
        thread.start()
    try:
        while (passed := time.monotonic() - began) < seconds:
            report.faults.append((passed, nemesis.strike()))
            print(f"{passed:6.1f} s  {report.faults[-1][1]}", flush=True)
            wait_until(nemesis.is_whole, f"the cluster is whole after {report.faults[-1][1]}", RECOVERY_SECONDS_MAX)
            next_one = min(began + seconds, began + passed + every_seconds)
            time.sleep(max(0.0, next_one - time.monotonic()))
    finally:
        report.seconds = time.monotonic() - began
        mover.stop()
        for writer in writers:
            writer.stop()
    report.moves = mover.moves
    with ReassignmentAdmin(cluster.bootstrap_servers) as reassignments:
        wait_until(lambda: not reassignments.ongoing(), "the last moves have ended", LAST_MOVES_SECONDS_MAX)
        # A throttle whose move was cut off before it began lasts until the next one has ended.
        reassignments.alter(_somewhere_else(cluster))
        wait_until(lambda: not reassignments.ongoing(), "a move of all has ended", LAST_MOVES_SECONDS_MAX)
    _judge(cluster, writers, report)
    return report, _history(report, writers, began)


def _somewhere_else(cluster: Cluster) -> dict[tuple[str, int], tuple[int, ...]]:
    with Admin(cluster.bootstrap_servers) as admin:
        partitions = admin.describe_cluster().topics[MOVED]
    elsewhere = {each.partition: set(cluster.node_ids) - set(each.replicas) for each in partitions}
    return {(MOVED, each.partition): (*elsewhere[each.partition], each.replicas[0]) for each in partitions}


def _judge(cluster: Cluster, writers: Sequence[Writer], report: Report) -> None:
    for writer in writers:
        latencies = [each.answered - each.sent for each in writer.acknowledged]
        report.acknowledged += len(latencies)
        report.late += sum(latency > ANSWERED_SECONDS for latency in latencies)
        report.latest_seconds = max(report.latest_seconds, *latencies)
        report.problems += writer.problems
        found = _everything(cluster.bootstrap_servers, writer.topic)
        somewhere = {(index, number) for (index, _), number in found.items()}
        report.problems += [
            f"{writer.topic}-{index} has {found.get((index, offset))} at offset {offset}, where {number} was acknowledged"
            for _, _, (index, offset), number in writer.acknowledged
            if offset is not None and found.get((index, offset)) != number
        ]
        report.problems += [
            f"{writer.topic}-{index} does not have {number}, which was acknowledged"
            for _, _, (index, offset), number in writer.acknowledged
            if offset is None and (index, number) not in somewhere
        ]
        for partition in range(PARTITIONS):
            values = [number for (index, _), number in sorted(found.items()) if index == partition]
            if values != sorted(set(values)):
                report.problems.append(f"{writer.topic}-{partition} has numbers twice or out of order")
    with Admin(cluster.bootstrap_servers) as admin:
        for topic in (STEADY, MOVED):
            for name, setting in admin.describe_configs("topic", topic).items():
                if "throttled.replicas" in name and setting.value:
                    report.problems.append(f"{topic} has {name}={setting.value} left, and nothing moves")


def _everything(bootstrap_servers: str, topic: str) -> dict[tuple[int, int], int]:
    consumer = Consumer(
        {
            **COMMON,
            "bootstrap.servers": bootstrap_servers,
            "group.id": "checker",
            "auto.offset.reset": "error",
            "check.crcs": True,
        }
    )
    ends = {index: consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=30)[1] for index in range(PARTITIONS)}
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found: dict[tuple[int, int], int] = {}

    def read() -> bool:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None, message.error()
            found[message.partition(), message.offset()] = int(message.value())
        return all(not end or (index, end - 1) in found for index, end in ends.items())

    try:
        wait_until(read, f"{topic} is read to its end", RECOVERY_SECONDS_MAX)
    finally:
        consumer.close()
    return found


def _history(report: Report, writers: Sequence[Writer], began: float) -> str:
    lines: list[dict[str, object]] = [{"at": round(at, 4), "fault": what} for at, what in report.faults]
    lines += [
        {
            "at": round(each.answered - began, 4),
            "sent": round(each.sent - began, 4),
            "topic": writer.topic,
            "partition": each.place[0],
            "offset": each.place[1],
            "number": each.number,
        }
        for writer in writers
        for each in writer.acknowledged
    ]
    return "".join(json.dumps(line) + "\n" for line in sorted(lines, key=lambda line: float(str(line["at"]))))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.chaos", description="Do one thing after the other to a cluster."
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--every", type=float, default=0.0, metavar="SECONDS", help="from one fault to the next, at least")
    parser.add_argument("--data", metavar="DIR", help="a new directory for the brokers' data, which stays")
    parser.add_argument("--history", type=Path, metavar="FILE")
    chosen = parser.parse_args(arguments)
    print(f"seed {chosen.seed}", flush=True)
    with Cluster(3, persist=chosen.data) as cluster:
        report, history = run(cluster, chosen.seed, chosen.minutes * 60, chosen.faults, chosen.every)
    if chosen.history is not None:
        chosen.history.write_text(history)
    print(report.text())
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
