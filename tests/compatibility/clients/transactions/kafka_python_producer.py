"""kafka-python's transactional producer."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, ProducerFencedError
from kafka.structs import OffsetAndMetadata

from tests.compatibility.clients.client import CALL_SECONDS_MAX, Codec
from tests.compatibility.clients.groups.member import Partition
from tests.compatibility.clients.transactions.producer import TIMEOUT_MS, Fenced, Read

# It loses its way when a poll ends during a rebalance, so that must be rare.
POLL_MS = 1_000
POLL_RECORDS_MAX = 20


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        # It tells of an earlier error only in words.
        if isinstance(error, ProducerFencedError) or "ProducerFencedError" in str(error):
            raise Fenced(str(error)) from error
        raise


class KafkaPythonProducer:
    client = "kafka-python"

    def __init__(
        self, bootstrap_servers: str, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS, codec: Codec = Codec.NONE
    ) -> None:
        self._futures: list[Any] = []
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap_servers,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            compression_type=None if codec is Codec.NONE else codec.value,
            linger_ms=5,
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        with _translated():
            self._producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        with _translated():
            self._futures.append(self._producer.send(topic, value, partition=partition))

    def flush(self) -> None:
        futures, self._futures = self._futures, []
        self._producer.flush(CALL_SECONDS_MAX)
        with _translated():
            for future in futures:
                future.get(CALL_SECONDS_MAX)

    def send_offsets(self, reader: Any, offsets: Mapping[Partition, int]) -> None:
        wanted = {TopicPartition(*partition): OffsetAndMetadata(offset, "", -1) for partition, offset in offsets.items()}
        with _translated():
            self._producer.send_offsets_to_transaction(wanted, reader.group_metadata())

    def commit(self) -> None:
        with _translated():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with _translated():
            self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=0)


class KafkaPythonReader:
    def __init__(self, bootstrap_servers: str, group: str, topic: str) -> None:
        self._consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap_servers,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            fetch_max_wait_ms=50,
        )

    def poll(self) -> list[Read]:
        polled = self._consumer.poll(POLL_MS, max_records=POLL_RECORDS_MAX)
        return [
            Read(Partition(record.topic, record.partition), record.offset, record.value)
            for records in polled.values()
            for record in records
        ]

    def rewind(self) -> None:
        for partition in self._consumer.assignment():
            self._consumer.seek(partition, self._consumer.committed(partition) or 0)

    def group_metadata(self) -> Any:
        return self._consumer.group_metadata()

    def close(self) -> None:
        self._consumer.close()
