"""``Producer.send`` and ``Consumer.poll`` beside bare confluent-kafka, in one run, with the same settings of librdkafka.

``toolkit-producer``: messages of 100 bytes with a key, each with its future, beside ``produce`` with ``on_delivery`` and a poll
after each, as its documentation shows it. ``toolkit-consumer``: batches of 500 with key and value read, beside ``consume`` of as
many. What is compared is messages per second of the client's processor time, all threads of it: beside a broker on the same
machine, and on one that does other things too, the clock says more about those. Rates by the clock stand beside it.

``toolkit-memory``: what Python keeps for a message in flight, by tracemalloc, beside a ``concurrent.futures.Future``.
"""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from time import perf_counter, process_time
from typing import Any, NamedTuple

import confluent_kafka

from bench.broker_process import WAIT_SECONDS_MAX, create_topic
from bench.measure import Comparison, Figure, Row, Target
from bench.workspace import Workspace
from tidelog.client.consumer import Consumer
from tidelog.client.producer import Producer
from tidelog.testing import Broker

TOPIC = "bench"
VALUE = b"x" * 100
KEYS = [b"customer-%d" % number for number in range(1_000)]
ROUNDS = 5
MESSAGES = 300_000
POLL_MESSAGES = 500
FULL_SECONDS = 0.01
PRODUCER_RATIO_MIN = 0.6
CONSUMER_RATIO_MIN = 0.7

IN_FLIGHT = 50_000
IN_FLIGHT_BYTES_MAX = 100.0

# What Producer sets by default, for the bare one too.
SETTINGS: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "compression.type": "zstd",
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 64 << 10,
    "partitioner": "murmur2_random",
    "log_level": 0,
}


class _Rates(NamedTuple):
    by_processor: float
    by_clock: float


def producer(workspace: Workspace) -> list[Row]:
    count = workspace.scaled(MESSAGES)
    with _broker(workspace) as broker:
        bare = confluent_kafka.Producer({**SETTINGS, "bootstrap.servers": broker.bootstrap_servers})
        with Producer(broker.bootstrap_servers) as ours:
            _send_bare(bare, 1_000)
            _send(ours, 1_000)
            rounds = [
                _in_turns(number, lambda: _send(ours, count), lambda: _send_bare(bare, count), count)
                for number in range(workspace.rounds(ROUNDS))
            ]
    return _rows("producer: send, a future each; raw: produce with on_delivery", rounds, PRODUCER_RATIO_MIN)


def consumer(workspace: Workspace) -> list[Row]:
    count = workspace.scaled(MESSAGES)
    rounds = []
    with _broker(workspace) as broker:
        with Producer(broker.bootstrap_servers) as filler:
            _send(filler, count)
        for _ in range(workspace.rounds(ROUNDS)):
            with Consumer(broker.bootstrap_servers) as ours:
                ours.assign([(TOPIC, 0, 0)])
                rates = _rates(lambda ours=ours: _read(ours, count), count)  # type: ignore[misc]  # mypy cannot type a default
            bare = confluent_kafka.Consumer(_reader_settings(broker))
            bare.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
            rounds.append((rates, _rates(lambda bare=bare: _read_bare(bare, count), count)))  # type: ignore[misc]  # the same
            bare.close()
    return _rows("consumer: poll, key and value read; raw: consume", rounds, CONSUMER_RATIO_MIN)


def memory(workspace: Workspace) -> list[Row]:
    count = workspace.scaled(IN_FLIGHT)
    # Small, and batches large: all of them are in flight until the end.
    held: dict[str, Any] = {"linger_ms": 60_000, "config": {"batch.num.messages": 1_000_000}}
    with _broker(workspace) as broker, Producer(broker.bootstrap_servers, **held) as ours:
        kept = _bytes_each(lambda: ours.send(TOPIC, b"x"), count)
    future = _bytes_each(Future, count)
    ratio = Figure(kept / future, 0.0)
    what = "producer: memory in Python of a message in flight; raw: a Future of the library"
    target = Target("<=", IN_FLIGHT_BYTES_MAX)
    return [Row(what, Figure(kept, 0.0), "B", Figure(future, 0.0), ratio, target)]


@contextmanager
def _broker(workspace: Workspace) -> Iterator[Broker]:
    with workspace.directory("toolkit") as path, Broker(persist=path) as broker:
        create_topic(broker, TOPIC)
        yield broker
        broker.kill()


def _in_turns(number: int, ours: Callable[[], None], bare: Callable[[], None], count: int) -> tuple[_Rates, _Rates]:
    """Rounds begin with either."""
    if number % 2:
        first = _rates(bare, count)
        return _rates(ours, count), first
    return _rates(ours, count), _rates(bare, count)


def _rates(work: Callable[[], None], count: int) -> _Rates:
    gc.collect()
    processor, clock = process_time(), perf_counter()
    work()
    return _Rates(count / (process_time() - processor), count / (perf_counter() - clock))


def _rows(what: str, rounds: list[tuple[_Rates, _Rates]], ratio_min: float) -> list[Row]:
    rows = []
    target = Target(">=", ratio_min)
    for name, unit in (("by_processor", "/CPU s"), ("by_clock", "/s")):
        ours = [getattr(mine, name) for mine, _ in rounds]
        raw = [getattr(bare, name) for _, bare in rounds]
        compared = Comparison(
            Figure.of(ours), Figure.of(raw), Figure.of([one / other for one, other in zip(ours, raw, strict=True)])
        )
        rows.append(Row.of_comparison(what, compared, unit, target if name == "by_processor" else None))
    return rows


def _send(producer: Producer, count: int) -> None:
    send, keys = producer.send, KEYS
    for number in range(count):
        send(TOPIC, VALUE, key=keys[number % 1_000])
    producer.flush(WAIT_SECONDS_MAX)


def _send_bare(producer: Any, count: int) -> None:
    produce, poll, keys = producer.produce, producer.poll, KEYS
    delivered = 0

    def on_delivery(error: Any, _: Any) -> None:
        nonlocal delivered
        if error is None:
            delivered += 1

    for number in range(count):
        while True:
            try:
                produce(TOPIC, VALUE, key=keys[number % 1_000], on_delivery=on_delivery)
                break
            except BufferError:
                poll(FULL_SECONDS)
        poll(0)
    producer.flush(WAIT_SECONDS_MAX)
    if delivered != count:
        raise RuntimeError(f"{delivered:,} of {count:,} messages were delivered")


def _read(consumer: Consumer, count: int) -> None:
    while count > 0:
        for message in consumer.poll(POLL_MESSAGES, timeout=WAIT_SECONDS_MAX):
            if message.key is not None and message.value is not None:
                count -= 1


def _read_bare(consumer: Any, count: int) -> None:
    while count > 0:
        for message in consumer.consume(POLL_MESSAGES, timeout=1.0):
            if message.error() is None and message.key() is not None and message.value() is not None:
                count -= 1


def _reader_settings(broker: Broker) -> dict[str, Any]:
    return {"bootstrap.servers": broker.bootstrap_servers, "group.id": "bench", "enable.auto.commit": False, "log_level": 0}


def _bytes_each(make: Callable[[], object], count: int) -> float:
    kept: list[object] = [None] * count
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(count):
            kept[number] = make()
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return size / count
