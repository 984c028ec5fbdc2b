"""kafka-python: a client without a line of C."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import BrokerResponseError

from tests.compatibility.clients.client import CALL_SECONDS_MAX, SEND_BYTES_MAX, Codec, Refused, Watermarks, tell_too_few
from tests.compatibility.kafka_records import ReadRecord, SentRecord

LOG_APPEND_TIME = 1


class KafkaPythonClient:
    name = "kafka-python"
    sets_timestamps = True

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers

    def producer(self, **settings: Any) -> Any:
        common = {"bootstrap_servers": self._bootstrap_servers, "enable_idempotence": False, "max_request_size": SEND_BYTES_MAX}
        return KafkaProducer(**{**common, **settings})

    def consumer(self, **settings: Any) -> Any:
        common = {"bootstrap_servers": self._bootstrap_servers, "group_id": None, "enable_auto_commit": False}
        return KafkaConsumer(**{**common, "auto_offset_reset": "none", **settings})

    def can_send(self, record: SentRecord) -> bool:
        return (record.key, record.value) != (None, None) and all(value is not None for _, value in record.headers)

    def send(
        self, topic: str, records: Sequence[SentRecord], *, partition: int = 0, codec: Codec = Codec.NONE, acks: str = "all"
    ) -> list[int] | None:
        compression = None if codec is Codec.NONE else codec.value
        with closing(
            self.producer(compression_type=compression, acks=acks if acks == "all" else int(acks), linger_ms=50)
        ) as producer:
            futures = [
                producer.send(
                    topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    partition=partition,
                    timestamp_ms=record.timestamp or None,
                )
                for record in records
            ]
            try:
                offsets = [future.get(CALL_SECONDS_MAX).offset for future in futures]
            except BrokerResponseError as error:
                raise Refused(error.errno, str(error)) from error
            return None if acks == "0" else offsets

    def read(
        self, topic: str, count: int, *, partition: int = 0, offset: int = 0, isolation: str = "read_uncommitted"
    ) -> list[ReadRecord]:
        with closing(self.consumer(isolation_level=isolation)) as consumer:
            where = TopicPartition(topic, partition)
            consumer.assign([where])
            consumer.seek(where, offset)
            return _take(consumer, count)

    def read_since(self, topic: str, count: int, timestamp: int, *, partition: int = 0) -> list[ReadRecord]:
        with closing(self.consumer()) as consumer:
            where = TopicPartition(topic, partition)
            consumer.assign([where])
            consumer.seek(where, consumer.offsets_for_times({where: timestamp})[where].offset)
            return _take(consumer, count)

    def watermarks(self, topic: str, partition: int = 0) -> Watermarks:
        with closing(self.consumer()) as consumer:
            where = TopicPartition(topic, partition)
            return Watermarks(consumer.beginning_offsets([where])[where], consumer.end_offsets([where])[where])

    def offset_for_time(self, topic: str, timestamp: int, partition: int = 0) -> int | None:
        with closing(self.consumer()) as consumer:
            where = TopicPartition(topic, partition)
            found = consumer.offsets_for_times({where: timestamp})[where]
            return None if found is None else int(found.offset)


def _take(consumer: Any, count: int) -> list[ReadRecord]:
    records: list[ReadRecord] = []
    while len(records) < count:
        try:
            polled = consumer.poll(int(CALL_SECONDS_MAX * 1000), max_records=count - len(records))
        except BrokerResponseError as error:
            raise Refused(error.errno, str(error)) from error
        if not polled:
            raise tell_too_few(KafkaPythonClient.name, len(records), count)
        records += [read_record(record) for batch in polled.values() for record in batch]
    return records


def read_record(record: Any) -> ReadRecord:
    is_log_append_time = record.timestamp_type == LOG_APPEND_TIME
    return ReadRecord(record.offset, record.timestamp, is_log_append_time, record.key, record.value, tuple(record.headers))
