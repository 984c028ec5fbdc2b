"""What tests of workers on a real broker share: a topic, a worker in a thread, and what came out at the other end."""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.compatibility.apache_kafka import wait_until
from tests.toolkit_broker import create_topic
from tidelog.client.admin import Admin
from tidelog.client.message import Message, Messages
from tidelog.worker import Backoff, Worker

WAIT_SECONDS_MAX = 120.0
QUICK = Backoff(base=0.05, cap=0.4)


class Place:
    """A topic and a group of its own on a broker."""

    def __init__(self, bootstrap: str, partitions: int = 2) -> None:
        self.bootstrap = bootstrap
        self.group = f"group-{secrets.token_hex(4)}"
        self.topic = create_topic(bootstrap, f"topic-{secrets.token_hex(4)}", partitions=partitions)
        self.partitions = partitions

    def worker(self, **options: Any) -> Worker:
        given: dict[str, Any] = {
            "group": self.group,
            "topics": [self.topic],
            "backoff": QUICK,
            "commit_interval": 0.2,
        }
        # How soon members hear of a rebalance, and how long a fetch of nothing takes.
        config = {"heartbeat.interval.ms": 300, "fetch.wait.max.ms": 20, **options.pop("config", {})}
        return Worker(self.bootstrap, **{**given, **options}, config=config)

    def add_partitions(self, count: int) -> None:
        """Until there are so many, and clients can use them."""
        with Admin(self.bootstrap) as admin:
            admin.add_partitions(self.topic, count)
            wait_until(lambda: len(admin.describe_cluster().topics[self.topic]) == count, "they are seen")
            admin.list_offsets([(self.topic, number) for number in range(count)], "latest")
        self.partitions = count

    def send(self, values: Iterable[object], key: Callable[[Any], str | None] = lambda _: None, **fields: Any) -> None:
        """Each value as text, to the partition of its key."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0, "partitioner": "murmur2_random"})
        for value in values:
            producer.produce(self.topic, value if isinstance(value, bytes) else str(value), key(value), **fields)
        assert producer.flush(WAIT_SECONDS_MAX) == 0

    @property
    def dead_letters(self) -> str:
        return f"{self.topic}.{self.group}.dlq"

    def retries(self, level: int) -> str:
        return f"{self.topic}.{self.group}.retry.{level}"

    def read(self, topic: str) -> list[Message]:
        """All of a topic, committed messages only."""
        return read_all(self.bootstrap, topic, self.partitions)

    def committed(self, topic: str | None = None) -> dict[int, tuple[int, str]]:
        """Offset and metadata by partition."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        asked = [TopicPartition(topic or self.topic, number) for number in range(self.partitions)]
        found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(self.group, asked)])[self.group].result()
        return {each.partition: (each.offset, each.metadata or "") for each in found.topic_partitions}


def read_all(bootstrap: str, topic: str, partitions: int) -> list[Message]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 5,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[Any] = []
    ends = 0
    while ends < partitions:
        raw = consumer.poll(WAIT_SECONDS_MAX)
        assert raw is not None, f"{topic} could not be read"
        if raw.error() is not None:
            ends += 1
        else:
            found.append(raw)
    consumer.close()
    return list(Messages(found))


class Run:
    """A worker at work in a thread."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.result: bool | None = None
        self.error: BaseException | None = None
        self.seconds = 0.0
        """How long it ran."""
        self.thread = threading.Thread(target=self._run, name="worker under test", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        begun = time.monotonic()
        try:
            self.result = self.worker.run()
        except BaseException as error:
            self.error = error
        self.seconds = time.monotonic() - begun

    def until(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(lambda: condition() or self.error is not None, what, WAIT_SECONDS_MAX)
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        self.worker.stop()
        self.thread.join(WAIT_SECONDS_MAX)
        assert not self.thread.is_alive(), "the worker does not stop"
        if self.error is not None:
            raise self.error


@contextmanager
def running(worker: Worker) -> Iterator[Run]:
    run = Run(worker)
    try:
        yield run
    except BaseException:
        worker.stop_now()
        run.thread.join(WAIT_SECONDS_MAX)
        raise
    run.end()
