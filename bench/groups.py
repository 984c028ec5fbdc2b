"""Consumer groups, with librdkafka's members: rebalances, commits, and how soon a coordinator has its state back.

``group-rebalances``: 50 members share 100 partitions, and one of them restarts. Of an eager group it matters how soon everybody
reads again; of the two protocols that move only what has to move, whether the others notice: the longest time without a message
on any partition that stayed, against the same group when nobody restarts. Members send heartbeats twice a second, so that they
hear of a rebalance within 500 ms: how long they take to hear of it is the client's setting and not the broker's doing.

``group-commits``: every commit is a request of one offset, and counts when it is acknowledged, which is when it is on the disk.

``group-loading``: offsets in one partition of ``__consumer_offsets``; a restart, and then the time from the first client that can
connect to the first answer of the coordinator.
"""

import threading
from time import perf_counter, process_time, sleep
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.broker_process import WAIT_SECONDS_MAX, cpu_seconds, create_topic
from bench.group_members import Members
from bench.measure import Figure, Row, Target
from bench.workspace import Workspace
from tidelog.testing import Broker

TOPIC = "bench"
ROUNDS = 3

MEMBERS = 50
MEMBERS_QUICK = 5
PARTITIONS_PER_MEMBER = 2
HEARTBEAT_MS = 500
STABLE_SECONDS_MAX = 2.0
PAUSE_MS_MAX = 100.0
# What a restart may still set in motion after everybody has its share.
AFTERWARDS_SECONDS = 1.0
AFTERWARDS_SECONDS_QUICK = 0.1

COMMITTERS = 4
COMMITS = 100_000
# Of each committer: more than the broker lets a connection have, so that the next request is always there.
UNANSWERED_COMMITS_MAX = 200
COMMITS_PER_SECOND_MIN = 20_000

LOADED_GROUPS = 1_000
LOADED_PARTITIONS = 100
LOAD_SECONDS_MAX = 1.0
# Short beside the time that is measured, and long beside what a question costs the broker.
ASK_AGAIN_MS = 20

CLASSIC = {
    "session.timeout.ms": 30_000,
    "heartbeat.interval.ms": HEARTBEAT_MS,
}
PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {**CLASSIC, "partition.assignment.strategy": "range"},
    "cooperative": {**CLASSIC, "partition.assignment.strategy": "cooperative-sticky"},
    "KIP-848": {"group.protocol": "consumer"},
}


# -- rebalances --------------------------------------------------------------------------------------------------------------


def rebalances(workspace: Workspace) -> list[Row]:
    rows = []
    for name in PROTOCOLS:
        rows += _rebalance(workspace, name)
    return rows


def _rebalance(workspace: Workspace, protocol: str) -> list[Row]:
    members = MEMBERS_QUICK if workspace.is_quick else MEMBERS
    partitions = members * PARTITIONS_PER_MEMBER
    settings = {"group.id": protocol, "enable.auto.commit": False, "auto.offset.reset": "latest", **PROTOCOLS[protocol]}
    afterwards_seconds = AFTERWARDS_SECONDS_QUICK if workspace.is_quick else AFTERWARDS_SECONDS
    stable_seconds, pauses_ms, quiet_pauses_ms = [], [], []
    is_eager = protocol == "eager"
    configs = {"group.consumer.heartbeat.interval.ms": HEARTBEAT_MS}
    with workspace.directory("rebalances") as path, Broker(persist=path, configs=configs) as broker:
        create_topic(broker, TOPIC, partitions)
        with Members(broker, TOPIC, partitions, members, settings) as group:

            def restart() -> None:
                stable_seconds.append(group.restart_one())
                sleep(afterwards_seconds)

            for _ in range(workspace.rounds(ROUNDS)):
                if is_eager:
                    stable_seconds.append(group.restart_one())
                    continue
                pauses_ms.append(group.longest_pause(restart) * 1e3)
                as_long = stable_seconds[-1] + afterwards_seconds
                quiet_pauses_ms.append(group.longest_pause(lambda: sleep(as_long)) * 1e3)  # noqa: B023 - called at once
        broker.kill()
    what = f"groups: one of {members} members restarts, {partitions} partitions, {protocol}"
    soon = Target("<=", STABLE_SECONDS_MAX) if is_eager else None
    rows = [Row(f"{what}: stable again", Figure.of(stable_seconds), "s", target=soon)]
    if not is_eager:
        ratios = [ours / quiet for ours, quiet in zip(pauses_ms, quiet_pauses_ms, strict=True)]
        unnoticed = Target("<=", PAUSE_MS_MAX)
        figures = Figure.of(pauses_ms), "ms", Figure.of(quiet_pauses_ms), Figure.of(ratios)
        rows.append(Row(f"{what}: longest pause of those who stay; raw: nobody restarts", *figures, target=unnoticed))
    return rows


# -- commits -----------------------------------------------------------------------------------------------------------------


class _Committer:
    """A consumer of a group of its own that commits as fast as it is answered."""

    def __init__(self, broker: Broker, number: int) -> None:
        self._partition = number
        self._acknowledged = 0
        self._sent = 0
        self.error: KafkaError | None = None
        settings = {"group.id": f"bench-{number}", "enable.auto.commit": False, "log_level": 0}
        self._consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "on_commit": self._committed, **settings})

    def commit(self, count: int) -> None:
        """Returns when all are acknowledged, or one failed."""
        end = self._sent + count
        while self._acknowledged < end and self.error is None:
            while self._sent < end and self._sent - self._acknowledged < UNANSWERED_COMMITS_MAX:
                self._sent += 1
                self._consumer.commit(offsets=[TopicPartition(TOPIC, self._partition, self._sent)], asynchronous=True)
            self._consumer.poll(0.001)

    def _committed(self, error: KafkaError | None, _: list[TopicPartition]) -> None:
        self._acknowledged += 1
        self.error = error or self.error

    def close(self) -> None:
        self._consumer.close()


def commits(workspace: Workspace) -> list[Row]:
    count = workspace.scaled(COMMITS) // COMMITTERS
    rates, microseconds, client_microseconds = [], [], []
    with workspace.directory("commits") as path, Broker(persist=path) as broker:
        create_topic(broker, TOPIC, COMMITTERS)
        committers = [_Committer(broker, number) for number in range(COMMITTERS)]
        _commit_all(committers, 10)
        for _ in range(workspace.rounds(ROUNDS)):
            cpu_began, client_began, began = cpu_seconds(broker), process_time(), perf_counter()
            _commit_all(committers, count)
            rates.append(count * COMMITTERS / (perf_counter() - began))
            microseconds.append((cpu_seconds(broker) - cpu_began) / count / COMMITTERS * 1e6)
            client_microseconds.append((process_time() - client_began) / count / COMMITTERS * 1e6)
        for committer in committers:
            committer.close()
        broker.kill()
    target = Target(">=", COMMITS_PER_SECOND_MIN)
    return [
        Row(f"groups: commits of one offset, {COMMITTERS} clients", Figure.of(rates), "/s", target=target),
        Row("groups: processor time of such a commit", Figure.of(microseconds), "us"),
        Row("groups: processor time of the clients for it", Figure.of(client_microseconds), "us"),
    ]


def _commit_all(committers: list[_Committer], count: int) -> None:
    threads = [threading.Thread(target=committer.commit, args=(count,)) for committer in committers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for committer in committers:
        if committer.error is not None:
            raise KafkaException(committer.error)


# -- loading -----------------------------------------------------------------------------------------------------------------


def loading(workspace: Workspace) -> list[Row]:
    groups = workspace.scaled(LOADED_GROUPS)
    offsets = groups * LOADED_PARTITIONS
    seconds, cpu = [], []
    with (
        workspace.directory("loading") as path,
        Broker(persist=path, configs={"offsets.topic.num.partitions": 1}) as broker,
    ):
        create_topic(broker, TOPIC, LOADED_PARTITIONS)
        _commit_for(broker, groups)
        for _ in range(workspace.rounds(ROUNDS)):
            broker.restart()
            cpu_began, began = cpu_seconds(broker), perf_counter()
            _read_committed(broker, f"group-{groups - 1}")
            seconds.append(perf_counter() - began)
            cpu.append(cpu_seconds(broker) - cpu_began)
        broker.kill()
    target = Target("<=", LOAD_SECONDS_MAX)
    return [
        Row(f"groups: load {offsets} committed offsets, until the first answer", Figure.of(seconds), "s", target=target),
        Row("groups: processor time of it", Figure.of(cpu), "s"),
    ]


def _commit_for(broker: Broker, groups: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    for number in range(groups):
        places = [TopicPartition(TOPIC, partition, number + 1) for partition in range(LOADED_PARTITIONS)]
        wanted = [ConsumerGroupTopicPartitions(f"group-{number}", places)]
        for future in admin.alter_consumer_group_offsets(wanted).values():
            future.result(WAIT_SECONDS_MAX)


def _read_committed(broker: Broker, group: str) -> None:
    """What the group has committed last, from a coordinator that has to be asked again while it loads."""
    settings = {"group.id": group, "log_level": 0, "retry.backoff.ms": ASK_AGAIN_MS, "retry.backoff.max.ms": ASK_AGAIN_MS}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    try:
        (place,) = consumer.committed([TopicPartition(TOPIC, LOADED_PARTITIONS - 1)], WAIT_SECONDS_MAX)
        if place.error is not None or place.offset <= 0:
            raise RuntimeError(f"a committed offset is not there: {place}")
    finally:
        consumer.close()
