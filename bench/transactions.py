"""Idempotent producers and transactions, with librdkafka: what exactly-once costs beside the same work without it.

``transaction-cost``: one producer sends as fast as it can, with a commit every 100 ms or with none. ``transaction-rate``: several
producers, each of them one small transaction after the other; a transaction is a message and its commit. ``idempotence``: the
same messages with and without. The topics write to the page cache; what transactions themselves keep, in ``__transaction_state``,
is on the disk before it is answered, always.

``producer-ids``: what a partition has to remember of 100,000 producers that each wrote five batches, by tracemalloc.
"""

import gc
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter, process_time
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from bench.broker_process import WAIT_SECONDS_MAX, cpu_seconds, create_topic
from bench.measure import Comparison, Figure, Row, Target
from bench.workspace import Workspace
from tidelog.log.producers.producer_state import BATCHES_KEPT_MAX, ProducerState
from tidelog.records.batch import build_batch
from tidelog.records.header import read_header
from tidelog.records.record import Record
from tidelog.testing import Broker

TOPIC = "bench"
VALUE = b"x" * 100
ROUNDS = 5
MESSAGES = 1_000_000
MESSAGES_PER_CALL = 2_000
COMMIT_SECONDS = 0.1
TRANSACTIONS_COST_MAX = 0.15
IDEMPOTENCE_COST_MAX = 0.05

# Producers and partitions. A topic is usually shared: what all of them write is then synced with few files. The harder case is a
# partition for each. The more producers, the more does a sync cover: most of a transaction is waiting for the disk.
SHARED, OWN = (32, 4), (16, 16)
TRANSACTIONS = 4_000
TRANSACTIONS_PER_SECOND_MIN = 1_000

PRODUCER_IDS = 100_000
PRODUCER_MEGABYTES_MAX = 100.0
MEGABYTE = 1_000_000

# librdkafka's defaults but for a linger that fills batches, and a queue that is never full.
BATCHING = {
    "linger.ms": 10,
    "batch.num.messages": 100_000,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1_000_000,
}


class _Measured(NamedTuple):
    messages_per_second: float
    cpu_microseconds: float
    """The broker's, for a message."""


class _Load:
    """A producer that sends as fast as it can, and commits every so often when it has transactions."""

    def __init__(self, broker: Broker, settings: dict[str, Any]) -> None:
        self._broker = broker
        self._producer = _producer(broker, {**BATCHING, **settings})
        self._is_transactional = "transactional.id" in settings
        if self._is_transactional:
            self._producer.init_transactions(WAIT_SECONDS_MAX)
        self.measure(MESSAGES_PER_CALL)

    def measure(self, count: int) -> _Measured:
        batch: list[dict[str, Any]] = [{"value": VALUE} for _ in range(MESSAGES_PER_CALL)]
        producer = self._producer
        cpu_began, began = cpu_seconds(self._broker), perf_counter()
        commit_at = began + COMMIT_SECONDS
        self._begin()
        for _ in range(count // MESSAGES_PER_CALL):
            if producer.produce_batch(TOPIC, batch) < len(batch):
                raise BufferError("the producer's queue is full")
            producer.poll(0)
            if self._is_transactional and perf_counter() >= commit_at:
                producer.commit_transaction(WAIT_SECONDS_MAX)
                commit_at = perf_counter() + COMMIT_SECONDS
                self._begin()
        if self._is_transactional:
            producer.commit_transaction(WAIT_SECONDS_MAX)
        elif producer.flush(WAIT_SECONDS_MAX):
            raise KafkaException(KafkaError._TIMED_OUT)
        seconds, cpu = perf_counter() - began, cpu_seconds(self._broker) - cpu_began
        return _Measured(count / seconds, cpu / count * 1e6)

    def _begin(self) -> None:
        if self._is_transactional:
            self._producer.begin_transaction()


def cost(workspace: Workspace) -> list[Row]:
    with _broker(workspace) as broker:
        # Transactional producers are idempotent: what that costs is a figure of its own.
        plain, ours = _Load(broker, {"enable.idempotence": True}), _Load(broker, {"transactional.id": "bench"})
        return _compared(workspace, "transactions: a commit every 100 ms; raw: none", ours, plain, TRANSACTIONS_COST_MAX)


def idempotence(workspace: Workspace) -> list[Row]:
    with _broker(workspace) as broker:
        plain, ours = _Load(broker, {"enable.idempotence": False}), _Load(broker, {"enable.idempotence": True})
        return _compared(workspace, "idempotent producer; raw: plain", ours, plain, IDEMPOTENCE_COST_MAX)


def _compared(workspace: Workspace, what: str, ours: _Load, plain: _Load, cost_max: float) -> list[Row]:
    count = workspace.scaled(MESSAGES, MESSAGES_PER_CALL)
    pairs = []
    for number in range(workspace.rounds(ROUNDS)):
        first, second = (ours, plain) if number % 2 else (plain, ours)
        measured = {first: first.measure(count), second: second.measure(count)}
        pairs.append((measured[ours], measured[plain]))
    rates = _comparison([(one.messages_per_second, other.messages_per_second) for one, other in pairs])
    cpu = _comparison([(one.cpu_microseconds, other.cpu_microseconds) for one, other in pairs])
    return [
        Row.of_comparison(f"{what}, messages of 100 B", rates, "/s", Target(">=", 1 - cost_max)),
        Row.of_comparison(f"{what}, processor time for a million", cpu, "s", None),
    ]


def _comparison(pairs: list[tuple[float, float]]) -> Comparison:
    ours, raw, ratios = [one for one, _ in pairs], [other for _, other in pairs], [one / other for one, other in pairs]
    return Comparison(Figure.of(ours), Figure.of(raw), Figure.of(ratios))


# -- many small transactions -------------------------------------------------------------------------------------------------


class _SmallTransactions:
    def __init__(self, broker: Broker, number: int, partition: int) -> None:
        self._producer = _producer(broker, {"transactional.id": f"bench-{number}", "linger.ms": 0})
        self._producer.init_transactions(WAIT_SECONDS_MAX)
        self._partition = partition
        self.error: Exception | None = None

    def run(self, count: int) -> None:
        try:
            for _ in range(count):
                self._producer.begin_transaction()
                self._producer.produce(TOPIC, VALUE, partition=self._partition, on_delivery=self._delivered)
                self._producer.commit_transaction(WAIT_SECONDS_MAX)
        except KafkaException as error:
            self.error = error

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.error = KafkaException(error)


def rate(workspace: Workspace) -> list[Row]:
    return [
        *_rate_of(workspace, *SHARED, Target(">=", TRANSACTIONS_PER_SECOND_MIN)),
        *_rate_of(workspace, *OWN, None),
    ]


def _rate_of(workspace: Workspace, producer_count: int, partition_count: int, target: Target | None) -> list[Row]:
    count = workspace.scaled(TRANSACTIONS, producer_count) // producer_count
    total = count * producer_count
    rates, microseconds = [], []
    with _broker(workspace, partition_count) as broker:
        producers = [_SmallTransactions(broker, number, number % partition_count) for number in range(producer_count)]
        _run_all(producers, 2)
        for _ in range(workspace.rounds(ROUNDS)):
            cpu_began, own_began, began = cpu_seconds(broker), process_time(), perf_counter()
            _run_all(producers, count)
            rates.append(total / (perf_counter() - began))
            broker_cpu, own_cpu = cpu_seconds(broker) - cpu_began, process_time() - own_began
            microseconds.append((broker_cpu / total * 1e6, own_cpu / total * 1e6))
    what = f"transactions of one message, {producer_count} producers, {partition_count} partitions"
    return [
        Row(what, Figure.of(rates), "/s", target=target),
        # On a machine that others share both grow alike, and the rate falls as they do.
        Row.of_comparison(f"{what}, processor time of one; raw: the producers'", _comparison(microseconds), "us", None),
    ]


def _run_all(producers: list[_SmallTransactions], count: int) -> None:
    threads = [threading.Thread(target=producer.run, args=(count,)) for producer in producers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for producer in producers:
        if producer.error is not None:
            raise producer.error


# -- memory ------------------------------------------------------------------------------------------------------------------


def producer_ids(workspace: Workspace) -> list[Row]:
    count = workspace.scaled(PRODUCER_IDS)
    header = read_header(build_batch([Record(0, 0, None, VALUE)], producer_id=0, producer_epoch=0, base_sequence=0))
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        state = ProducerState(expiration_ms=1 << 40)
        for number in range(BATCHES_KEPT_MAX):
            for producer_id in range(count):
                # Every number an object of its own, as those of batches from the network are.
                now_ms = (1 << 40) + producer_id
                state.update(
                    header._replace(producer_id=producer_id, base_sequence=1000 + number, max_timestamp=now_ms),
                    (1 << 33) + number * count + producer_id,
                )
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert state.producer_count == count
    taken = Figure((after - before) / MEGABYTE, 0.0)
    return [Row(f"memory of {count} producer ids in a partition", taken, "MB", target=Target("<=", PRODUCER_MEGABYTES_MAX))]


@contextmanager
def _broker(workspace: Workspace, partitions: int = 1) -> Iterator[Broker]:
    with workspace.directory("transactions") as path, Broker(persist=path) as broker:
        create_topic(broker, TOPIC, partitions)
        yield broker
        # Nobody reads the data again: no need to wait for the disk.
        broker.kill()


def _producer(broker: Broker, settings: dict[str, Any]) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": "all", "log_level": 0, **settings})
