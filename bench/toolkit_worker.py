"""``Worker`` with handlers that do nothing and with one that waits, each against what the ideal is.

``toolkit-worker``: a backlog of 100 byte messages is handled by a no-op, by partition, by key and in no order, beside bare
confluent-kafka that consumes the same and reads key and value. Counted from the first message that is handled to the last, so
that joining the group is left out.

``toolkit-worker-waiting``: a handler that sleeps 10 ms, 100 at a time, in threads and on asyncio. Ideal is 10,000 messages a
second; the ratio is what was reached of it.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from time import perf_counter
from typing import Any

from confluent_kafka import Consumer, Producer

from bench.broker_process import WAIT_SECONDS_MAX, create_topic
from bench.measure import Figure, Row, Target
from bench.workspace import Workspace
from tidelog.client.message import Message
from tidelog.testing import Broker
from tidelog.worker import Worker

TOPIC = "bench"
PARTITIONS = 8
KEYS = 10_000
MESSAGES = 400_000
VALUE = bytes(100)
ROUNDS = 3
TARGETS = {"partition": 100_000.0, "key": 50_000.0, "none": None}

WAIT_SECONDS = 0.01
CONCURRENCY = 100
WAITING_MESSAGES = 30_000
IDEAL_PER_SECOND = CONCURRENCY / WAIT_SECONDS
SHARE_MIN = 0.8

CONFIGS = {"group.initial.rebalance.delay.ms": 0}


def messages(workspace: Workspace) -> list[Row]:
    count = workspace.scaled(MESSAGES)
    rows = []
    with workspace.directory("worker") as path, Broker(persist=path, configs=CONFIGS) as broker:
        _fill(broker, count)
        rates: dict[str, list[float]] = {order: [] for order in TARGETS}
        raw_rates = []
        for number in range(workspace.rounds(ROUNDS)):
            raw_rates.append(_bare(broker, count, f"bare-{number}"))
            for order, values in rates.items():
                values.append(_handled_per_second(broker, count, f"{order}-{number}", order, _no_op))
        broker.kill()
    for order, target in TARGETS.items():
        ratio = Figure.of([ours / raw for ours, raw in zip(rates[order], raw_rates, strict=True)])
        what = f'worker: a no-op handler, order="{order}", {PARTITIONS} partitions; raw: bare consume, key and value read'
        bound = None if target is None else Target(">=", target)
        rows.append(Row(what, Figure.of(rates[order]), "messages/s", Figure.of(raw_rates), ratio, bound))
    return rows


def waiting(workspace: Workspace) -> list[Row]:
    count = workspace.scaled(WAITING_MESSAGES, at_least=CONCURRENCY * 4)
    rows = []
    with workspace.directory("worker") as path, Broker(persist=path, configs=CONFIGS) as broker:
        _fill(broker, count)
        for name, handler in (("threads", _sleeping), ("asyncio", _sleeping_async)):
            for order in ("key", "none"):
                rates = [
                    _handled_per_second(broker, count, f"{name}-{order}-{number}", order, handler)
                    for number in range(workspace.rounds(ROUNDS))
                ]
                shares = Figure.of([rate / IDEAL_PER_SECOND for rate in rates])
                what = f'worker: a handler that waits 10 ms, {CONCURRENCY} at a time, {name}, order="{order}"; raw: ideal'
                ideal = Figure(IDEAL_PER_SECOND, 0.0)
                rows.append(Row(what, Figure.of(rates), "messages/s", ideal, shares, Target(">=", SHARE_MIN), "ratio"))
        broker.kill()
    return rows


def _no_op(_: Message) -> None:
    pass


def _sleeping(_: Message) -> None:
    time.sleep(WAIT_SECONDS)


async def _sleeping_async(_: Message) -> None:
    await asyncio.sleep(WAIT_SECONDS)


def _fill(broker: Broker, count: int) -> None:
    create_topic(broker, TOPIC, PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, "linger.ms": 20})
    for number in range(count):
        while True:
            try:
                producer.produce(TOPIC, VALUE, f"key-{number % KEYS}", partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    assert not producer.flush(WAIT_SECONDS_MAX), "not everything was written"


def _handled_per_second(broker: Broker, count: int, group: str, order: Any, handler: Callable[[Message], Any]) -> float:
    """From the first message to the last, as the worker itself counts them."""
    worker = Worker(
        broker.bootstrap_servers,
        group=group,
        topics=[TOPIC],
        order=order,
        concurrency=CONCURRENCY,
        retries=0,
        commit_interval=1.0,
    )
    worker.handler(handler)
    thread = threading.Thread(target=worker.run, name="worker")
    thread.start()
    deadline = perf_counter() + WAIT_SECONDS_MAX
    while not (first := worker.metrics().handled) and perf_counter() < deadline:
        time.sleep(0.002)
    start = perf_counter()
    while worker.metrics().handled < count and perf_counter() < deadline:
        time.sleep(0.01)
    seconds = perf_counter() - start
    worker.stop()
    thread.join()
    handled = worker.metrics().handled
    assert handled >= count, f"{handled} of {count} messages were handled"
    return (count - first) / seconds


def _bare(broker: Broker, count: int, group: str) -> float:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([TOPIC])
    read = 0
    start = None
    while read < count:
        found = consumer.consume(1_000, 0.1)
        if found and start is None:
            start = perf_counter()
            count -= len(found)
            continue
        for message in found:
            message.key()
            message.value()
        read += len(found)
    assert start is not None
    seconds = perf_counter() - start
    consumer.close()
    return count / seconds
