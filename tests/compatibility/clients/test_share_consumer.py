"""confluent-kafka's ShareConsumer, which we did not write: many members, explicit acknowledgements, and crashes of both sides."""

import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from tidelog.testing import Broker, Cluster

SECONDS_MAX = 90.0


@pytest.fixture(scope="module")
def share_broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker
        unexpected = [event for event in broker.events if event["event"] in ("unexpected_error", "failed")]
        assert unexpected == []


class World:
    """A topic with messages, and a group that begins at its beginning."""

    def __init__(
        self, broker: Broker | Cluster, partitions: int, messages: int, replicas: int = 1, settings: dict[str, str] | None = None
    ) -> None:
        self.broker = broker
        self.topic, self.group = f"jobs-{uuid.uuid4().hex[:8]}", f"workers-{uuid.uuid4().hex[:8]}"
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        self.admin.create_topics([NewTopic(self.topic, partitions, replicas)])[self.topic].result(SECONDS_MAX)
        values = {"share.auto.offset.reset": "earliest", **(settings or {})}
        entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in values.items()]
        resource = ConfigResource(ResourceType.GROUP, self.group, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(SECONDS_MAX)
        self.values = {f"job {number}" for number in range(messages)}
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, "batch.num.messages": 20})
        for number, value in enumerate(sorted(self.values)):
            producer.produce(self.topic, value, partition=number % partitions)
        assert producer.flush(SECONDS_MAX) == 0

    def member(self, **settings: Any) -> Any:
        consumer = ShareConsumer(
            {"bootstrap.servers": self.broker.bootstrap_servers, "group.id": self.group, "log_level": 0, **settings}
        )
        consumer.subscribe([self.topic])
        return consumer

    def explicit_member(self) -> Any:
        return self.member(**{"share.acknowledgement.mode": "explicit"})


def polled(consumer: Any, timeout: float = 0.5) -> list[Any]:
    messages = list(consumer.poll(timeout=timeout))
    for message in messages:
        assert message.error() is None, message.error()
    return messages


def poll_until(consumer: Any, is_over: Callable[[list[Any]], bool]) -> list[Any]:
    """Poll until the messages so far are enough; each poll accepts what the one before has brought."""
    messages: list[Any] = []
    deadline = time.monotonic() + SECONDS_MAX
    while not is_over(messages):
        assert time.monotonic() < deadline, f"{len(messages)} messages came"
        messages += polled(consumer)
    return messages


def text(message: Any) -> str:
    return str(message.value().decode())


def test_twenty_members_share_three_partitions_and_every_message_is_handled_once(share_broker: Broker) -> None:
    world = World(share_broker, partitions=3, messages=1_500)
    handled: Counter[str] = Counter()
    lock = threading.Lock()
    failures: list[Exception] = []

    def work() -> None:
        try:
            with world.member() as consumer:
                deadline = time.monotonic() + SECONDS_MAX
                while time.monotonic() < deadline:
                    messages = polled(consumer)
                    # Without this, what the last poll has brought would be released with the consumer's end.
                    assert all(error is None for error in consumer.commit_sync().values())
                    with lock:
                        handled.update(map(text, messages))
                        if len(handled) == len(world.values):
                            return
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert handled.keys() == world.values
    assert set(handled.values()) == {1}, "nothing was given to two members"


def test_released_messages_come_back_rejected_ones_do_not_and_the_limit_ends_it(share_broker: Broker) -> None:
    world = World(share_broker, partitions=1, messages=6, settings={"share.delivery.count.limit": "2"})
    deliveries: Counter[str] = Counter()
    with world.explicit_member() as consumer:
        deadline = time.monotonic() + SECONDS_MAX
        idle_polls = 0
        while idle_polls < 3:
            assert time.monotonic() < deadline
            messages = polled(consumer)
            idle_polls = 0 if messages else idle_polls + (len(deliveries) == len(world.values))
            for message in messages:
                deliveries[text(message)] += 1
                kind = {"job 0": AcknowledgeType.RELEASE, "job 1": AcknowledgeType.REJECT}
                consumer.acknowledge(message, kind.get(text(message), AcknowledgeType.ACCEPT))
            assert all(error is None for error in consumer.commit_sync().values())
    assert deliveries == {**dict.fromkeys(world.values, 1), "job 0": 2}


def test_what_a_killed_member_held_goes_to_another_at_once(share_broker: Broker) -> None:
    world = World(share_broker, partitions=1, messages=5)
    command = [sys.executable, "-m", "tests.compatibility.clients.share_member"]
    with subprocess.Popen(
        [*command, share_broker.bootstrap_servers, world.group, world.topic], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        process.kill()
        process.wait()
    with world.member() as consumer:
        messages = poll_until(consumer, lambda messages: len(messages) >= 5)
    assert {text(message) for message in messages} == world.values


def test_nothing_acknowledged_is_delivered_again_after_the_broker_was_killed() -> None:
    with Broker() as broker:
        world = World(broker, partitions=3, messages=300)
        settled: set[str] = set()
        with world.explicit_member() as consumer:
            deadline = time.monotonic() + SECONDS_MAX
            while len(settled) < 100:
                assert time.monotonic() < deadline
                messages = polled(consumer)
                for message in messages:
                    consumer.acknowledge(message)
                errors = consumer.commit_sync()
                if all(error is None for error in errors.values()):
                    settled.update(map(text, messages))
            held = polled(consumer)
            broker.kill()
            broker.start()
            for message in held:
                consumer.acknowledge(message)
        rest: Counter[str] = Counter()
        with world.member() as consumer:
            deadline = time.monotonic() + SECONDS_MAX
            while len(settled | rest.keys()) < len(world.values):
                assert time.monotonic() < deadline, f"{len(settled | rest.keys())} of {len(world.values)}"
                rest.update(map(text, polled(consumer)))
        assert not settled & rest.keys(), "acknowledged, and delivered again"
