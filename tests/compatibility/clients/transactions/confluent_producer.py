"""confluent-kafka: librdkafka's transactional producer."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.compatibility.clients.client import CALL_SECONDS_MAX, Codec
from tests.compatibility.clients.groups.member import Partition
from tests.compatibility.clients.transactions.producer import TIMEOUT_MS, Fenced, Read

FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
POLL_SECONDS = 0.5
POLL_RECORDS_MAX = 20


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        if error.args[0].code() in FENCED:
            raise Fenced(str(error)) from error
        raise


class ConfluentProducer:
    client = "confluent-kafka"

    def __init__(
        self, bootstrap_servers: str, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS, codec: Codec = Codec.NONE
    ) -> None:
        self._errors: list[Any] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "log_level": 0,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                # It may not be longer than the transaction.
                "message.timeout.ms": timeout_ms,
                "compression.codec": codec.value,
                "linger.ms": 5,
            }
        )
        self._producer.init_transactions(CALL_SECONDS_MAX)

    def begin(self) -> None:
        with _translated():
            self._producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        with _translated():
            self._producer.produce(topic, value, partition=partition, on_delivery=self._on_delivery)

    def flush(self) -> None:
        assert self._producer.flush(CALL_SECONDS_MAX) == 0
        with _translated():
            for error in self._errors:
                raise KafkaException(error)

    def send_offsets(self, reader: Any, offsets: Mapping[Partition, int]) -> None:
        wanted = [TopicPartition(*partition, offset) for partition, offset in offsets.items()]
        with _translated():
            self._producer.send_offsets_to_transaction(wanted, reader.group_metadata(), CALL_SECONDS_MAX)

    def commit(self) -> None:
        with _translated():
            self._producer.commit_transaction(CALL_SECONDS_MAX)

    def abort(self) -> None:
        with _translated():
            self._producer.abort_transaction(CALL_SECONDS_MAX)

    def close(self) -> None:
        """There is nothing to call: it ends with its last reference."""
        self._producer.purge()

    def _on_delivery(self, error: Any, _: Any) -> None:
        if error is not None:
            self._errors.append(error)


class ConfluentReader:
    def __init__(self, bootstrap_servers: str, group: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "log_level": 0,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
            }
        )
        self._consumer.subscribe([topic])

    def poll(self) -> list[Read]:
        reads = []
        for message in self._consumer.consume(POLL_RECORDS_MAX, POLL_SECONDS):
            if message.error() is not None:
                raise KafkaException(message.error())
            reads.append(Read(Partition(message.topic(), message.partition()), message.offset(), message.value()))
        return reads

    def rewind(self) -> None:
        for each in self._consumer.committed(self._consumer.assignment(), CALL_SECONDS_MAX):
            self._consumer.seek(TopicPartition(each.topic, each.partition, max(each.offset, 0)))

    def group_metadata(self) -> Any:
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        self._consumer.close()
