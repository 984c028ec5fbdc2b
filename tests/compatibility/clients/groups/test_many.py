"""Many groups at once, and many members at once: one poll loop serves all of them, each with a real consumer."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compatibility.clients.client import CALL_SECONDS_MAX
from tests.compatibility.clients.conftest import MakeTopic, topic_name
from tests.compatibility.clients.groups.admin import committed_offsets, describe
from tests.compatibility.clients.groups.conftest import fill
from tests.compatibility.clients.groups.member import Partition
from tidelog.testing import Broker

GROUPS = 50
MEMBERS = 200
RECORDS = 20
WAIT_SECONDS_MAX = 60.0
PROTOCOLS: dict[str, dict[str, Any]] = {
    "classic": {"partition.assignment.strategy": "range", "session.timeout.ms": 30_000, "heartbeat.interval.ms": 1_000},
    "consumer": {"group.protocol": "consumer"},
}
# A consumer of librdkafka gives a heartbeat up after one interval. With so many joining at once an answer may take a while.
CONFIGS = {"group.consumer.heartbeat.interval.ms": 2_000}


class Share:
    """A consumer, and what it has been given."""

    def __init__(self, bootstrap_servers: str, group: str, topic: str, settings: dict[str, Any]) -> None:
        common = {"enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0, "queued.min.messages": 1}
        self.group = group
        self.consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group, **common, **settings})
        self.owned: set[int] = set()
        self.offsets: dict[int, list[int]] = {}
        self.consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_gone, on_lost=self._on_gone)

    def poll(self) -> None:
        message = self.consumer.poll(0)
        if message is not None and message.error() is None:
            self.offsets.setdefault(message.partition(), []).append(message.offset())

    def _on_assign(self, _: Any, partitions: list[Any]) -> None:
        self.owned |= {each.partition for each in partitions}

    def _on_gone(self, _: Any, partitions: list[Any]) -> None:
        self.owned -= {each.partition for each in partitions}


@contextmanager
def joined(
    bootstrap_servers: str, groups: list[str], topic: str, settings: dict[str, Any]
) -> Iterator[tuple[list[Share], Callable[[Callable[[], bool], str], None]]]:
    """The consumers, one per name of a group, and a way to serve them until something holds."""
    with ThreadPoolExecutor(20) as pool:
        shares = list(pool.map(lambda group: Share(bootstrap_servers, group, topic, settings), groups))

        def serve_until(condition: Callable[[], bool], what: str) -> None:
            deadline = time.monotonic() + WAIT_SECONDS_MAX
            while not condition():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{what}: {[sorted(share.owned) for share in shares]}")
                for share in shares:
                    share.poll()
                time.sleep(0.01)

        try:
            yield shares, serve_until
        finally:
            list(pool.map(lambda share: share.consumer.close(), shares))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_fifty_groups_at_once(broker: Broker, admin: Any, new_topic: MakeTopic, protocol: str) -> None:
    """Each reads the whole topic and commits; none sees anything of the others."""
    topic = new_topic(2)
    fill(broker.bootstrap_servers, topic, 2, RECORDS)
    names = [topic_name(f"fifty-{protocol}-{number}") for number in range(GROUPS)]
    wanted = {partition: list(range(RECORDS)) for partition in range(2)}
    with joined(broker.bootstrap_servers, names, topic, PROTOCOLS[protocol]) as (shares, serve_until):
        serve_until(lambda: all(share.offsets == wanted for share in shares), "all records in all groups")
        for number, share in enumerate(shares):
            offsets = [TopicPartition(topic, partition, number % RECORDS + partition) for partition in range(2)]
            share.consumer.commit(offsets=offsets, asynchronous=False)
    for number, name in enumerate(names):
        expected = {Partition(topic, partition): number % RECORDS + partition for partition in range(2)}
        assert committed_offsets(admin, name) == expected


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_two_hundred_members_join_at_once(protocol: str) -> None:
    with Broker(configs=CONFIGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic("topic", MEMBERS, 1)])["topic"].result(CALL_SECONDS_MAX)
        with joined(broker.bootstrap_servers, ["group"] * MEMBERS, "topic", PROTOCOLS[protocol]) as (shares, serve_until):

            def is_shared_out() -> bool:
                return all(len(share.owned) == 1 for share in shares) and len(set().union(*(s.owned for s in shares))) == MEMBERS

            serve_until(is_shared_out, f"{MEMBERS} members with a partition each")
            assert len(describe(admin, "group").members) == MEMBERS
        # Nobody is left behind when all leave at once.
        assert len(describe(admin, "group").members) == 0
