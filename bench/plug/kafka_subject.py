"""Tidelog and Apache Kafka under the same clients (``bench.plug.kafka_clients``), and what is left of their work after a cut."""

import multiprocessing
import threading
from collections.abc import Hashable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.beside.subjects import KafkaSubject, Subject
from bench.plug.kafka_clients import (
    ABORTS,
    COMMITS,
    FAILURES,
    GROUP,
    KINDS,
    PARTITIONS,
    TRANSACTIONAL_COMMITS,
    TRANSACTIONAL_GROUP,
    TRANSACTIONAL_ID,
    common_configs,
    run_clients,
)
from bench.plug.ledger import Entry, Holds, Ledger
from tidelog.testing import Broker

SERVE_SECONDS_MAX = 120.0
READ_SECONDS_MAX = 60.0
# No value is sent twice, in whatever life.
NUMBERS_PER_LIFE = 10_000_000


class TidelogUnderCuts:
    def __init__(self, name: str, promise: str, configs: Mapping[str, object]) -> None:
        self.name = name
        self.promise = promise
        self._configs = configs
        self._broker: Broker | None = None

    @property
    def bootstrap_servers(self) -> str:
        assert self._broker is not None
        return self._broker.bootstrap_servers

    def prepare(self, path: Path) -> None:
        self._broker = Broker(persist=path / "tidelog", configs=self._configs)

    def start(self) -> None:
        assert self._broker is not None
        self._broker.start()

    def kill(self) -> None:
        if self._broker is not None and self._broker.is_running:
            self._broker.kill()
        if self._broker is not None:
            self._broker.close()

    def complaints(self) -> list[str]:
        """Damage that the broker reports about itself after a cut."""
        assert self._broker is not None
        lines = self._broker.log_lines
        strange = [line for line in lines if not line.startswith("{")]
        events = [str(event) for event in self._broker.events if event["event"] in {"log_offline", "unexpected_error"}]
        return strange[:1] + events[:1]


class KafkaUnderCuts:
    name = KafkaSubject.label
    promise = "page cache; the kernel writes it within half a minute"

    def __init__(self) -> None:
        self._broker: Subject | None = None

    @property
    def bootstrap_servers(self) -> str:
        assert self._broker is not None
        return self._broker.bootstrap_servers

    def prepare(self, path: Path) -> None:
        self._broker = KafkaSubject(path / "kafka")

    def start(self) -> None:
        assert self._broker is not None
        self._broker.start()

    def kill(self) -> None:
        if self._broker is not None:
            self._broker.kill()

    def complaints(self) -> list[str]:
        return []


class KafkaClients:
    """The load, and the questions afterwards, for a server that speaks Kafka's protocol."""

    def __init__(self, server: TidelogUnderCuts | KafkaUnderCuts, seed: int) -> None:
        self.name = server.name
        self.promise = server.promise
        self._server = server
        self._random = Random(seed)
        self._lives = 0
        self._aborted: set[bytes] = set()
        self._clients: SpawnProcess | None = None
        self._listener: threading.Thread | None = None

    def prepare(self, path: Path) -> None:
        self._server.prepare(path)

    def start(self) -> None:
        self._server.start()

    def kill(self) -> None:
        self._server.kill()

    def wait_until_it_serves(self) -> None:
        acknowledged = threading.Event()

        def on_delivery(error: KafkaError | None, message: Message) -> None:  # noqa: ARG001 - it is called so
            if error is None:
                acknowledged.set()

        producer = Producer(
            {
                **self._common(),
                "acks": "all",
                "linger.ms": 0,
                "message.timeout.ms": 5000,
                "topic.metadata.refresh.fast.interval.ms": 10,
            }
        )
        deadline = monotonic() + SERVE_SECONDS_MAX
        while not acknowledged.is_set():
            if monotonic() > deadline:
                raise TimeoutError(f"{self.name} acknowledged nothing within {SERVE_SECONDS_MAX:.0f} s of its start")
            producer.produce("probe", b"probe", on_delivery=on_delivery)
            producer.flush(6)

    def install(self) -> None:
        admin = AdminClient(self._common())
        missing = {*KINDS, "probe"}
        deadline = monotonic() + SERVE_SECONDS_MAX
        while missing and monotonic() < deadline:
            topics = [NewTopic(name, PARTITIONS, 1) for name in missing]
            for future in admin.create_topics(topics, request_timeout=10).values():
                # A server that has just started may refuse; that of a topic which exists is the answer that was lost.
                with suppress(KafkaException):
                    future.result(20)
            missing -= set(admin.list_topics(timeout=10).topics)

    def _common(self) -> dict[str, Any]:
        return common_configs(self._server.bootstrap_servers)

    # -- load ----------------------------------------------------------------------------------------------------------------

    def begin_load(self, ledger: Ledger) -> None:
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        self._lives += 1
        arguments = (self._server.bootstrap_servers, self._random.random(), self._lives * NUMBERS_PER_LIFE, sender)
        self._clients = context.Process(target=run_clients, args=arguments, daemon=True)
        self._clients.start()
        sender.close()
        self._listener = threading.Thread(target=self._listen, args=(receiver, ledger), daemon=True)
        self._listener.start()

    def end_load(self) -> None:
        if self._clients is not None and self._listener is not None:
            self._clients.kill()
            self._clients.join()
            self._listener.join()

    def _listen(self, receiver: Connection, ledger: Ledger) -> None:
        with suppress(EOFError, OSError):
            while True:
                kind, place, value = receiver.recv()
                if kind == ABORTS:
                    self._aborted.add(value)
                elif kind == FAILURES:
                    ledger.problem(f"{self.name}: a client failed: {value}")
                else:
                    ledger.acknowledge(kind, place, value)

    # -- what is left ---------------------------------------------------------------------------------------------------------

    def holdings(self, ledger: Ledger) -> dict[str, Holds]:
        # An application that starts again ends the transaction that its last life left open.
        with suppress(KafkaException):
            Producer({**self._common(), "transactional.id": TRANSACTIONAL_ID}).init_transactions(30)
        found = {kind: self._read(kind) for kind in KINDS}
        for value in self._aborted.intersection(found["transactional"].values()):
            ledger.problem(f"{self.name}: {value[:20]!r} was aborted and is read as committed")
        for complaint in self._server.complaints():
            ledger.problem(f"{self.name} says: {complaint}")
        holds: dict[str, Holds] = {kind: _is_at_its_place(found[kind]) for kind in KINDS}
        return {
            **holds,
            COMMITS: _is_committed(self._committed(GROUP)),
            TRANSACTIONAL_COMMITS: _is_committed(self._committed(TRANSACTIONAL_GROUP)),
        }

    def _read(self, topic: str) -> dict[Hashable, bytes]:
        consumer = Consumer(
            {
                **self._common(),
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "check.crcs": True,
            }
        )
        found: dict[Hashable, bytes] = {}
        unread = set(range(PARTITIONS))
        deadline = monotonic() + READ_SECONDS_MAX
        try:
            consumer.assign([TopicPartition(topic, partition, 0) for partition in unread])
            while unread and monotonic() < deadline:
                for message in consumer.consume(10_000, 0.05):
                    error = message.error()
                    if error is None:
                        found[message.partition(), message.offset()] = message.value()
                    elif error.code() == KafkaError._PARTITION_EOF:
                        unread.discard(message.partition())
            return found
        finally:
            consumer.close()

    def _committed(self, group: str) -> dict[int, int]:
        consumer = Consumer({**self._common(), "group.id": group})
        try:
            partitions = [TopicPartition("plain", partition) for partition in range(PARTITIONS)]
            return {found.partition: found.offset for found in consumer.committed(partitions, timeout=30)}
        finally:
            consumer.close()


def _is_at_its_place(found: Mapping[Hashable, bytes]) -> Holds:
    return lambda entry: found.get(entry.place) == entry.value


def _is_committed(found: Mapping[int, int]) -> Holds:
    def holds(entry: Entry) -> bool:
        assert isinstance(entry.place, int)
        assert isinstance(entry.value, int)
        return found.get(entry.place, -1) >= entry.value

    return holds
