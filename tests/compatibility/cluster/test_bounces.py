"""Every client writes to three brokers with acks=all while the leaders of its partitions are stopped in order and come back.

Each send succeeds, and everything that was acknowledged is read again."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.compatibility.clients.client import NOW, Client
from tests.compatibility.clients.conftest import CLIENTS
from tests.compatibility.clients.kcat_client import KcatClient
from tests.compatibility.clients.kcat_program import reason_without_kcat
from tests.compatibility.clients.waiting import wait_until
from tests.compatibility.kafka_records import SentRecord
from tidelog.testing import Cluster

SECONDS_MAX = 120.0
RECORDS_PER_CALL = 5


class Sender(threading.Thread):
    """Sends numbers, a few with each call, until it is told to stop."""

    def __init__(self, client: Client, topic: str) -> None:
        super().__init__(name=client.name, daemon=True)
        self.client = client
        self.topic = topic
        self.count = 0
        self.problem: Exception | None = None
        self.has_begun = threading.Event()
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.is_set():
            numbers = range(self.count, self.count + RECORDS_PER_CALL)
            try:
                self.client.send(self.topic, [SentRecord(None, b"%d" % number, NOW) for number in numbers])
            except Exception as error:
                self.problem = error
                self.has_begun.set()
                return
            self.count += RECORDS_PER_CALL
            self.has_begun.set()

    def stop(self) -> None:
        self._is_over.set()
        self.join(SECONDS_MAX)


def has_sent(sender: Sender, count: int) -> bool:
    return sender.count >= count or sender.problem is not None


@pytest.mark.usefixtures("quiet_clients")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_a_leader_is_stopped_and_comes_back_under_every_client(
    broker: Cluster, admin: Any, new_topic: Callable[..., str]
) -> None:
    names = [name for name in CLIENTS if name != KcatClient.name or reason_without_kcat() is None]
    topics = {name: new_topic() for name in names}
    senders = [Sender(CLIENTS[name](broker.bootstrap_servers), topics[name]) for name in names]
    for sender in senders:
        sender.start()
    for sender in senders:
        assert sender.has_begun.wait(SECONDS_MAX), sender.name
    found = admin.list_topics(timeout=SECONDS_MAX).topics
    partitions = [found[topic].partitions[0] for topic in topics.values()]
    assert all(sorted(partition.replicas) == [1, 2, 3] for partition in partitions)
    for leader in {partition.leader for partition in partitions}:
        before = {sender.name: sender.count for sender in senders}
        broker.stop(leader)
        broker.start(leader)
        for sender in senders:
            enough = before[sender.name] + 2 * RECORDS_PER_CALL
            wait_until(partial(has_sent, sender, enough), f"{sender.name} goes on", SECONDS_MAX)
    for sender in senders:
        sender.stop()
    assert {sender.name: sender.problem for sender in senders if sender.problem is not None} == {}
    for sender in senders:
        end = sender.client.watermarks(sender.topic).end_offset
        numbers = {int(record.value or b"-1") for record in sender.client.read(sender.topic, end)}
        # A send that was repeated may be there twice: these producers are not idempotent.
        assert numbers >= set(range(sender.count)), sender.name
