"""Real clients that keep working while the broker crashes: producers, readers, and one that creates and deletes topics.

Producers do not use idempotence and have one request in flight, so that a retry cannot overtake; they wait out each crash.
Readers are assigned their partitions and would rather fail than be moved to another offset.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.faults.history import History, Place, Value

TOPIC = "orders"
PARTITIONS = 4
# Values one producer has unacknowledged at most.
OUTSTANDING_MAX = 200
WAIT_SECONDS_MAX = 60.0
# What a client says while the broker is down.
DOWN = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT}
COMMON: dict[str, Any] = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 100,
    "socket.timeout.ms": 10_000,
    "log_level": 0,
}


def wait_until(is_done: Callable[[], bool], what: str, seconds_max: float = WAIT_SECONDS_MAX) -> None:
    deadline = time.monotonic() + seconds_max
    while not is_done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds_max} s")
        time.sleep(0.005)


class Worker(threading.Thread):
    """A loop in a thread; an exception ends it and is a problem of the history."""

    def __init__(self, name: str, history: History) -> None:
        super().__init__(name=name, daemon=True)
        self.history = history
        self._is_stopping = threading.Event()

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping.is_set()

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:
            self.history.problem(f"{self.name} failed: {error!r}")

    def work(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self._is_stopping.set()
        self.join(WAIT_SECONDS_MAX)
        if self.is_alive():
            self.history.problem(f"{self.name} did not end within {WAIT_SECONDS_MAX} s")


class ProducerWorker(Worker):
    def __init__(self, number: int, bootstrap: str, history: History, value_bytes: int) -> None:
        super().__init__(f"producer {number}", history)
        self._number = number
        self._value_bytes = value_bytes
        self._outstanding = 0
        self.failures: list[str] = []
        self._producer = Producer(
            {
                **COMMON,
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": False,
                "max.in.flight.requests.per.connection": 1,
                "linger.ms": 1,
                "batch.num.messages": 50,
                "message.timeout.ms": int(WAIT_SECONDS_MAX * 1000),
            }
        )

    def work(self) -> None:
        count = 0
        while not self.is_stopping:
            if self._outstanding >= OUTSTANDING_MAX:
                self._producer.poll(0.05)
                continue
            value = Value(self._number, count % PARTITIONS, count)
            count += 1
            self.history.on_sent(value)
            self._outstanding += 1
            self._producer.produce(
                TOPIC, value.encode(self._value_bytes), partition=value.partition, on_delivery=self._on_delivery
            )
            self._producer.poll(0)
        if self._producer.flush(WAIT_SECONDS_MAX):
            self.history.problem(f"{self.name} could not deliver everything after the last restart")

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        self._outstanding -= 1
        if error is not None:
            self.failures.append(str(error))
            return
        place = Place(message.partition(), message.offset())
        self.history.on_acknowledged(Value.decode(message.value()), place)


def reader(bootstrap: str) -> Consumer:
    return Consumer(
        {
            **COMMON,
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
        }
    )


class ReaderWorker(Worker):
    """Reads everything from the beginning, over all crashes: offsets rise by one, whatever happens to the broker."""

    def __init__(self, number: int, bootstrap: str, history: History) -> None:
        super().__init__(f"reader {number}", history)
        self._consumer = reader(bootstrap)
        self.next_offsets = [0] * PARTITIONS

    def work(self) -> None:
        self._consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        try:
            while not self.is_stopping:
                for message in self._consumer.consume(500, 0.05):
                    self._take(message)
        finally:
            self._consumer.close()

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            if error.code() not in DOWN:
                self.history.problem(f"{self.name}: {error}")
            return
        place = Place(message.partition(), message.offset())
        expected = self.next_offsets[place.partition]
        if place.offset != expected:
            self.history.problem(f"{self.name}: got {place} instead of offset {expected}")
        self.next_offsets[place.partition] = place.offset + 1
        self.history.on_read(place, Value.decode(message.value()))


class TopicWorker(Worker):
    """Creates topics and deletes every other one again. What was answered must be so after any crash."""

    def __init__(self, bootstrap: str, history: History) -> None:
        super().__init__("topics", history)
        self._admin = AdminClient({**COMMON, "bootstrap.servers": bootstrap})
        self.created: set[str] = set()
        self.deleted: set[str] = set()

    def work(self) -> None:
        number = 0
        while not self.is_stopping:
            name = f"topic-{number}"
            number += 1
            if not self._succeeds(self._admin.create_topics([NewTopic(name, 2, 1)], request_timeout=5)[name]):
                continue
            self.created.add(name)
            if number % 2:
                self.created.discard(name)
                if self._succeeds(self._admin.delete_topics([name], request_timeout=5)[name]):
                    self.deleted.add(name)
            self._is_stopping.wait(0.02)

    @staticmethod
    def _succeeds(future: Any) -> bool:
        """False: the broker went away, and whether it was done is open."""
        try:
            future.result(10)
        except (KafkaException, TimeoutError):
            return False
        return True

    def check(self) -> None:
        found = set(self._admin.list_topics(timeout=10).topics)
        if self.created - found:
            self.history.problem(f"created and gone: {sorted(self.created - found)}")
        if self.deleted & found:
            self.history.problem(f"deleted and back: {sorted(self.deleted & found)}")
        partitions = {TopicPartition(name, number): OffsetSpec.latest() for name in self.created & found for number in range(2)}
        for partition, future in self._admin.list_offsets(partitions, request_timeout=10).items():
            if future.result(10).offset != 0:
                self.history.problem(f"{partition} is not empty")


def read_all(bootstrap: str) -> dict[Place, Value]:
    """The log as a new reader finds it."""
    consumer = reader(bootstrap)
    try:
        ends = [consumer.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=10)[1] for number in range(PARTITIONS)]
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        final: dict[Place, Value] = {}
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while len(final) < sum(ends) and time.monotonic() < deadline:
            for message in consumer.consume(10_000, 0.2):
                if message.error() is not None:
                    raise KafkaException(message.error())
                final[Place(message.partition(), message.offset())] = Value.decode(message.value())
        return final
    finally:
        consumer.close()
