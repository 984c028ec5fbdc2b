"""A whole broker in its own process, with librdkafka as its client: how soon it serves, what it needs idle, how much it does.

``broker-start`` is what somebody waits for whose test starts a broker: from the call to the first acknowledged message. The
bytecode of all modules is cached, as that of an installed package is, whatever PYTHONDONTWRITEBYTECODE says of this tree.
``broker-requests`` has one message in each request, which is the work that a request makes, and ``broker-messages`` has as many
as fit. Both write to a topic with ``flush.messages`` set high: into the page cache, as Kafka does by default, so that it is the
broker that is measured and not the disk. Processor time is the broker's own, in its process; that of the client beside it shows
which of the two sets the pace.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from bench.broker_process import WAIT_SECONDS_MAX, cpu_seconds, create_topic, resident_mebibytes
from bench.measure import Figure, Row, Target
from bench.workspace import Workspace
from tidelog.testing import Broker

TOPIC = "bench"
VALUE = b"x" * 100
START_ROUNDS = 5
START_SECONDS_MAX = 0.5
IDLE_MEBIBYTES_MAX = 80
# Long enough for what a start leaves behind to be given back.
IDLE_SECONDS = 1.0
ROUNDS = 3
REQUESTS = 60_000
REQUESTS_PER_SECOND_MIN = 15_000
MESSAGES = 2_000_000
MESSAGES_PER_CALL = 10_000
MESSAGES_PER_SECOND_MIN = 800_000
CPU_SECONDS_PER_MILLION_MAX = 1.0


class NotDelivered(Exception):
    pass


def start(workspace: Workspace) -> list[Row]:
    with workspace.directory("bytecode") as path, cached_bytecode(path):
        return _start(workspace)


@contextmanager
def cached_bytecode(path: Path) -> Iterator[None]:
    """For processes that are started meanwhile; a first one has written it."""
    before = dict(os.environ)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = os.fspath(path)
    try:
        with Broker() as broker:
            _send(_producer(broker), [VALUE])
            broker.kill()
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _start(workspace: Workspace) -> list[Row]:
    seconds, mebibytes = [], []
    for _ in range(workspace.rounds(START_ROUNDS)):
        with workspace.directory("start") as path:
            began = perf_counter()
            with Broker(persist=path) as broker:
                _send(_producer(broker), [VALUE])
                seconds.append(perf_counter() - began)
                sleep(0 if workspace.is_quick else IDLE_SECONDS)
                mebibytes.append(resident_mebibytes(broker))
                broker.kill()
    soon, small = Target("<=", START_SECONDS_MAX), Target("<=", IDLE_MEBIBYTES_MAX)
    return [
        Row("broker: from the call to the first acknowledged message", Figure.of(seconds), "s", target=soon),
        Row("broker: idle memory", Figure.of(mebibytes), "MiB", target=small),
    ]


def requests(workspace: Workspace) -> list[Row]:
    count = workspace.scaled(REQUESTS)
    # One message in a request, and as many requests in flight as a connection may have.
    settings = {"linger.ms": 0, "batch.num.messages": 1, "max.in.flight": 100, "enable.idempotence": False}
    rates, microseconds = [], []
    with _relaxed_broker(workspace) as broker:
        producer = _producer(broker, settings)
        _send(producer, [VALUE] * 100)
        for _ in range(workspace.rounds(ROUNDS)):
            cpu_seconds, seconds = _send_measured(broker, producer, count)
            rates.append(count / seconds)
            microseconds.append(cpu_seconds / count * 1e6)
    target = Target(">=", REQUESTS_PER_SECOND_MIN)
    return [
        Row("broker: produce requests of one message, one connection", Figure.of(rates), "/s", target=target),
        Row("broker: processor time of such a request", Figure.of(microseconds), "us"),
    ]


def messages(workspace: Workspace) -> list[Row]:
    count = workspace.scaled(MESSAGES, MESSAGES_PER_CALL) // MESSAGES_PER_CALL * MESSAGES_PER_CALL
    # librdkafka's defaults but for a linger that fills batches, and no checksum of what it receives.
    settings = {"linger.ms": 10, "batch.num.messages": 100_000, "batch.size": 1_000_000, "enable.idempotence": False}
    in_rates, out_rates, cpu_in, cpu_out, cpu_client = [], [], [], [], []
    with _relaxed_broker(workspace) as broker:
        producer = _producer(broker, settings)
        _send(producer, [VALUE] * 100)
        for number in range(workspace.rounds(ROUNDS)):
            client_began = process_time()
            cpu_seconds, seconds = _send_measured(broker, producer, count)
            cpu_client.append((process_time() - client_began) / count * 1e6)
            in_rates.append(count / seconds)
            cpu_in.append(cpu_seconds / count * 1e6)
            cpu_seconds, seconds = _read_measured(broker, 100 + number * count, count)
            out_rates.append(count / seconds)
            cpu_out.append(cpu_seconds / count * 1e6)
    both = [one + other for one, other in zip(cpu_in, cpu_out, strict=True)]
    many, cheap = Target(">=", MESSAGES_PER_SECOND_MIN), Target("<=", CPU_SECONDS_PER_MILLION_MAX)
    return [
        Row("broker: messages of 100 B in", Figure.of(in_rates), "/s", target=many),
        Row("broker: messages of 100 B out, one reader in Python", Figure.of(out_rates), "/s"),
        Row("broker: processor time, a million in", Figure.of(cpu_in), "s"),
        Row("broker: processor time of the client, a million in", Figure.of(cpu_client), "s"),
        Row("broker: processor time, a million out", Figure.of(cpu_out), "s"),
        Row("broker: processor time, a million in and out", Figure.of(both), "s", target=cheap),
    ]


@contextmanager
def _relaxed_broker(workspace: Workspace) -> Iterator[Broker]:
    with workspace.directory("broker") as path, Broker(persist=path) as broker:
        create_topic(broker, TOPIC)
        yield broker
        # Nobody reads the data again: no need to wait for the disk.
        broker.kill()


def _producer(broker: Broker, settings: dict[str, Any] | None = None) -> Producer:
    queue = {"queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1_000_000, "log_level": 0}
    return Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": "all", **queue, **(settings or {})})


def _send(producer: Producer, values: list[bytes]) -> None:
    """All acknowledged when it returns."""
    errors: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            errors.append(error)

    for value in values:
        producer.produce(TOPIC, value, on_delivery=on_delivery)
    if producer.flush(WAIT_SECONDS_MAX) or errors:
        raise NotDelivered(str(errors[:1]))


def _send_measured(broker: Broker, producer: Producer, count: int) -> tuple[float, float]:
    """The broker's processor time and the time until all is acknowledged, in seconds."""
    batch: list[dict[str, Any]] = [{"value": VALUE} for _ in range(min(count, MESSAGES_PER_CALL))]
    cpu_began, began = cpu_seconds(broker), perf_counter()
    queued = 0
    while queued < count:
        wanted = batch if count - queued >= len(batch) else batch[: count - queued]
        taken = producer.produce_batch(TOPIC, wanted)
        queued += taken
        producer.poll(0 if taken == len(wanted) else 0.01)
    if producer.flush(WAIT_SECONDS_MAX):
        raise NotDelivered(f"{len(producer)} messages")
    return cpu_seconds(broker) - cpu_began, perf_counter() - began


def _read_measured(broker: Broker, offset: int, count: int) -> tuple[float, float]:
    settings = {"group.id": "bench", "enable.auto.commit": False, "log_level": 0, "queued.min.messages": 1_000_000}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    try:
        cpu_began, began = cpu_seconds(broker), perf_counter()
        consumer.assign([TopicPartition(TOPIC, 0, offset)])
        read = 0
        while read < count:
            found = consumer.consume(MESSAGES_PER_CALL, WAIT_SECONDS_MAX)
            if not found or found[0].error() is not None:
                raise KafkaException(found[0].error() if found else KafkaError._TIMED_OUT)
            read += len(found)
        return cpu_seconds(broker) - cpu_began, perf_counter() - began
    finally:
        consumer.close()
