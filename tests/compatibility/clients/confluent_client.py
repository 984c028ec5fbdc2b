"""confluent-kafka: librdkafka of today."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaException, Producer, TopicPartition

from tests.compatibility.clients.client import CALL_SECONDS_MAX, SEND_BYTES_MAX, Codec, Refused, Watermarks, tell_too_few
from tests.compatibility.kafka_records import ReadRecord, SentRecord

LATEST = -1


class ConfluentClient:
    name = "confluent-kafka"
    sets_timestamps = True

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers

    def producer(self, **settings: Any) -> Any:
        common = {"bootstrap.servers": self._bootstrap_servers, "log_level": 0, "message.max.bytes": SEND_BYTES_MAX}
        return Producer({**common, "enable.idempotence": False, **settings})

    def consumer(self, **settings: Any) -> Any:
        common = {"bootstrap.servers": self._bootstrap_servers, "log_level": 0, "group.id": "none", "check.crcs": True}
        return Consumer({**common, "enable.auto.commit": False, "auto.offset.reset": "error", **settings})

    def can_send(self, record: SentRecord) -> bool:
        return True

    def send(
        self, topic: str, records: Sequence[SentRecord], *, partition: int = 0, codec: Codec = Codec.NONE, acks: str = "all"
    ) -> list[int] | None:
        producer = self.producer(**{"compression.codec": codec.value, "acks": acks, "linger.ms": 50})
        delivered: list[tuple[Any, int]] = []
        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=partition,
                timestamp=record.timestamp,
                headers=list(record.headers),
                on_delivery=lambda error, message: delivered.append((error, message.offset())),
            )
        if producer.flush(CALL_SECONDS_MAX):
            raise RuntimeError(f"{len(records) - len(delivered)} records not delivered to {topic}")
        for error, _ in delivered:
            if error is not None:
                raise Refused(error.code(), error.str())
        return None if acks == "0" else [offset for _, offset in delivered]

    def read(
        self, topic: str, count: int, *, partition: int = 0, offset: int = 0, isolation: str = "read_uncommitted"
    ) -> list[ReadRecord]:
        with closing(self.consumer(**{"isolation.level": isolation})) as consumer:
            consumer.assign([TopicPartition(topic, partition, offset)])
            return _take(consumer, count)

    def read_since(self, topic: str, count: int, timestamp: int, *, partition: int = 0) -> list[ReadRecord]:
        with closing(self.consumer()) as consumer:
            found = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp)], timeout=CALL_SECONDS_MAX)
            consumer.assign([TopicPartition(topic, partition, 0)])
            consumer.seek(found[0])
            return _take(consumer, count)

    def watermarks(self, topic: str, partition: int = 0) -> Watermarks:
        with closing(self.consumer()) as consumer:
            try:
                return Watermarks(*consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=CALL_SECONDS_MAX))
            except KafkaException as error:
                raise Refused(error.args[0].code(), error.args[0].str()) from error

    def offset_for_time(self, topic: str, timestamp: int, partition: int = 0) -> int | None:
        with closing(self.consumer()) as consumer:
            (found,) = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp)], timeout=CALL_SECONDS_MAX)
            return None if found.offset == LATEST else int(found.offset)


def _take(consumer: Any, count: int) -> list[ReadRecord]:
    records: list[ReadRecord] = []
    while len(records) < count:
        message = consumer.poll(CALL_SECONDS_MAX)
        if message is None:
            raise tell_too_few(ConfluentClient.name, len(records), count)
        if message.error() is not None:
            raise Refused(message.error().code(), message.error().str())
        records.append(read_record(message))
    return records


def read_record(message: Any) -> ReadRecord:
    timestamp_type, timestamp = message.timestamp()
    headers = tuple((str(name), value) for name, value in message.headers() or ())
    is_log_append_time = timestamp_type == TIMESTAMP_LOG_APPEND_TIME
    return ReadRecord(message.offset(), timestamp, is_log_append_time, message.key(), message.value(), headers)
