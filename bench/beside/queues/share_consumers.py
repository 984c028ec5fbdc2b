"""confluent-kafka's ShareConsumer on Tidelog and on Apache Kafka: one client, one partition, implicit acknowledgement.

Each call of ``poll`` accepts what the one before has brought, and the last messages are settled by ``commit_sync``: time runs
from the first messages, because joining a group takes a second or more on either side, until everything is acknowledged. Messages
lie in the log in batches of a hundred. *Page cache* and *fsynced* are said of the topic of the group's state: on both sides it
gets the same setting as the topic of the messages. Both run with the group settings of their makers: 2,000 locks in a partition.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count as count_up
from time import perf_counter

from confluent_kafka import KafkaError, KafkaException, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from bench.beside import throughput
from bench.beside.results import Measurement, Results
from bench.beside.subjects import (
    FSYNCED,
    PAGE_CACHE,
    KafkaSubject,
    Reachable,
    Subject,
    TidelogSubject,
    create_topic,
    delete_topic,
)
from bench.broker_process import WAIT_SECONDS_MAX, cpu_seconds
from bench.measure import Target
from bench.workspace import Workspace

ROUNDS = 6  # of which the first is dropped
VALUE = b"q" * 100
MESSAGES = 300_000
WARM_UP = 5_000
BATCHES_OF_100 = {**throughput.BATCHED, "batch.num.messages": 100}
STATE_TOPIC = "__share_group_state"
DURABILITIES: Mapping[str, Mapping[str, str]] = {"page cache": PAGE_CACHE, "fsynced": FSYNCED}

RATE = "receive and acknowledge 100 B, ShareConsumer"
PROCESSOR = "broker's processor time per million of them"
MEASUREMENTS = (
    Measurement(RATE, "msg/s", {durability: Target(">=", 1.0) for durability in DURABILITIES}),
    Measurement(PROCESSOR, "s", {durability: Target("<=", 1.0) for durability in DURABILITIES}),
)

_numbers = count_up()


def run(workspace: Workspace, kinds: list[type[TidelogSubject] | type[KafkaSubject]], say: Callable[[str], None]) -> Results:
    results = Results(MEASUREMENTS, [kind.label for kind in kinds])
    with _running(workspace, kinds) as subjects:
        for number in range(workspace.rounds(ROUNDS)):
            counted = results if number or workspace.is_quick else Results(MEASUREMENTS, results.labels)
            for durability, configs in DURABILITIES.items():
                for subject in subjects if number % 2 else subjects[::-1]:
                    rate, cpu = receive_and_acknowledge(subject, configs, workspace.scaled(MESSAGES))
                    counted.add(RATE, durability, subject.label, rate)
                    counted.add(PROCESSOR, durability, subject.label, cpu)
                    say(f"  {subject.name}, {durability}: {rate:,.0f}/s, {cpu:.2f} s of processor time per million")
    return results


@contextmanager
def _running(workspace: Workspace, kinds: list[type[TidelogSubject] | type[KafkaSubject]]) -> Iterator[list[Subject]]:
    with workspace.directory("brokers") as path:
        subjects: list[Subject] = []
        try:
            for kind in kinds:
                subject: Subject = kind(path / kind.name)
                subjects.append(subject)
                subject.start()
                # The first use makes the topic of the group's state, whose settings can be changed only then.
                receive_and_acknowledge(subject, None, WARM_UP)
            yield subjects
        finally:
            for subject in subjects:
                subject.kill()


def receive_and_acknowledge(subject: Subject, configs: Mapping[str, str] | None, count: int) -> tuple[float, float]:
    """Messages per second, and the broker's processor seconds per million of them."""
    number = next(_numbers)
    topic = group = f"share-{number}"
    create_topic(subject, topic, configs or {})
    if configs is not None:
        alter(subject, ResourceType.TOPIC, STATE_TOPIC, configs)
    alter(subject, ResourceType.GROUP, group, {"share.auto.offset.reset": "earliest"})
    # ``produce_rate`` sends one more than it is told.
    throughput.produce_rate(subject, topic, VALUE, count - 1, BATCHES_OF_100)
    consumer = ShareConsumer({"bootstrap.servers": subject.bootstrap_servers, "group.id": group, "log_level": 0})
    errors: list[KafkaError | KafkaException] = []

    def on_settled(_: object, error: KafkaException | None) -> None:
        if error is not None:
            errors.append(error)

    consumer.set_acknowledgement_commit_callback(on_settled)
    try:
        consumer.subscribe([topic])
        first = 0
        deadline = perf_counter() + WAIT_SECONDS_MAX
        while not first and perf_counter() < deadline:
            first = _received(consumer)
        cpu_began, began, received = cpu_seconds(subject), perf_counter(), first
        while received < count:
            got = _received(consumer)
            if not got and perf_counter() > deadline:
                raise throughput.NotDelivered(f"{count - received} messages")
            received += got
        errors += [error for error in consumer.commit_sync().values() if error is not None]
        seconds, cpu = perf_counter() - began, cpu_seconds(subject) - cpu_began
        if errors:
            raise throughput.NotDelivered(str(errors[0]))
    finally:
        consumer.close()
    delete_topic(subject, topic)
    return (count - first) / seconds, cpu / (count - first) * 1e6


def _received(consumer: ShareConsumer) -> int:
    messages = consumer.poll(timeout=1.0)
    for message in messages:
        if message.error() is not None:
            raise KafkaException(message.error())
    return len(messages)


def alter(subject: Reachable, kind: ResourceType, name: str, configs: Mapping[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": subject.bootstrap_servers, "log_level": 0})
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in configs.items()]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(WAIT_SECONDS_MAX)
