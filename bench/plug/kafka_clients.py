"""The clients that load a server which speaks Kafka's protocol: producers of three kinds, and a group that commits its offsets.

All producers use acks=all. A transaction writes some messages and the offsets of its group; one in five is aborted. A message is
acknowledged when its delivery is reported, one of a transaction when the commit has returned.

They run in a process of their own, which is killed after the cut: a client waits longer for a dead server than the experiment
does. Each acknowledgement goes through a pipe to the ledger, so the ledger knows a little less than the clients, never more.
"""

import threading
from collections.abc import Callable, Mapping
from itertools import count
from multiprocessing.connection import Connection
from random import Random
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

KINDS = ("plain", "idempotent", "transactional")
COMMITS, TRANSACTIONAL_COMMITS = "offset commits", "offset commits in transactions"
# Not acknowledgements: values that must never be seen, and what went wrong before the cut.
ABORTS, FAILURES = "aborts", "failures"
GROUP, TRANSACTIONAL_GROUP, TRANSACTIONAL_ID = "readers", "copiers", "copier"
PARTITIONS = 2
VALUE_BYTES = 200
# Each producer keeps so many under way; together they load the disk and leave the machine some room to verify.
IN_FLIGHT_MAX = 200
PAUSE_SECONDS = 0.02
ABORTED = 0.2
SECONDS_MAX = 30.0
# What a client reports while its broker dies.
BROKER_IS_GONE = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._STATE,
    KafkaError._WAIT_COORD,
}
COORDINATOR_IS_LOADING = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._WAIT_COORD,
}


def common_configs(bootstrap_servers: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap_servers,
        "log_level": 0,
        "socket.timeout.ms": 10_000,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 50,
    }


def run_clients(bootstrap_servers: str, seed: float, first_number: int, sender: Connection) -> None:
    _Clients(bootstrap_servers, seed, first_number, sender).run()


class _Clients:
    def __init__(self, bootstrap_servers: str, seed: float, first_number: int, sender: Connection) -> None:
        self._common = common_configs(bootstrap_servers)
        self._random = Random(seed)
        self._numbers = count(first_number)
        self._sender = sender
        self._lock = threading.Lock()

    def run(self) -> None:
        work: list[Callable[[], None]] = [
            lambda: self._produce("plain", {"enable.idempotence": False}),
            lambda: self._produce("idempotent", {"enable.idempotence": True}),
            self._transact,
            self._commit_offsets,
        ]
        threads = [threading.Thread(target=self._guarded, args=(one,), daemon=True) for one in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() not in BROKER_IS_GONE:
                self._tell(FAILURES, None, str(error))

    def _tell(self, kind: str, place: object, value: object) -> None:
        with self._lock:
            self._sender.send((kind, place, value))

    def _value(self) -> bytes:
        return b"%d " % next(self._numbers) + bytes(VALUE_BYTES)

    def _produce(self, kind: str, configs: Mapping[str, Any]) -> None:
        producer = Producer({**self._common, "acks": "all", "linger.ms": 1, **configs})

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self._tell(kind, (message.partition(), message.offset()), message.value())

        random = Random(self._random.random())
        while True:
            for _ in range(random.randrange(1, 40)):
                if len(producer) < IN_FLIGHT_MAX:
                    producer.produce(kind, self._value(), partition=random.randrange(PARTITIONS), on_delivery=on_delivery)
            producer.poll(PAUSE_SECONDS)

    def _transact(self) -> None:
        producer = Producer({**self._common, "acks": "all", "linger.ms": 1, "transactional.id": TRANSACTIONAL_ID})
        consumer = Consumer({**self._common, "group.id": TRANSACTIONAL_GROUP})
        random = Random(self._random.random())
        group = consumer.consumer_group_metadata()
        producer.init_transactions(SECONDS_MAX)
        while True:
            self._one_transaction(producer, group, random)

    def _one_transaction(self, producer: Producer, group: object, random: Random) -> None:
        delivered: list[tuple[tuple[int, int], bytes]] = []

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is None:
                delivered.append(((message.partition(), message.offset()), message.value()))

        is_aborted = random.random() < ABORTED
        producer.begin_transaction()
        for _ in range(random.randrange(1, 20)):
            value = self._value()
            if is_aborted:
                self._tell(ABORTS, None, value)
            producer.produce("transactional", value, partition=random.randrange(PARTITIONS), on_delivery=on_delivery)
        offset = next(self._numbers)
        producer.send_offsets_to_transaction([TopicPartition("plain", 0, offset)], group, SECONDS_MAX)
        if is_aborted:
            producer.abort_transaction(SECONDS_MAX)
            return
        producer.commit_transaction(SECONDS_MAX)
        for place, value in delivered:
            self._tell("transactional", place, value)
        self._tell(TRANSACTIONAL_COMMITS, 0, offset)

    def _commit_offsets(self) -> None:
        consumer = Consumer({**self._common, "group.id": GROUP, "enable.auto.commit": False})
        while True:
            offset = next(self._numbers)
            partition = offset % PARTITIONS
            try:
                consumer.commit(offsets=[TopicPartition("plain", partition, offset)], asynchronous=False)
            except KafkaException as failure:
                if failure.args[0].code() not in COORDINATOR_IS_LOADING:
                    raise
            else:
                self._tell(COMMITS, partition, offset)
