"""What the compatibility tests ask of a Kafka client: create topics, write batches, read a partition from start to end.

The client is librdkafka (confluent-kafka), so that neither side of a comparison is our own code. A call to ``send`` ends in one
batch: the producer lingers far longer than it takes to queue the records, and ``flush`` sends them at once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compatibility.kafka_records import ReadRecord, SentRecord

CALL_SECONDS_MAX = 30.0
LINGER_MS = "1000"


class ReadPartition(NamedTuple):
    log_start_offset: int
    end_offset: int
    """The high watermark; the last stable offset for a reader of committed records."""
    records: list[ReadRecord]


def quiet(bootstrap_servers: str, **settings: str) -> dict[str, str]:
    """Client settings; connection errors at a broker's stop are no news here."""
    return {"bootstrap.servers": bootstrap_servers, "log_level": "0", **settings}


def admin_client(bootstrap_servers: str) -> AdminClient:
    return AdminClient(quiet(bootstrap_servers))


def create_topic(admin: AdminClient, topic: str, configs: Mapping[str, str] | None = None, partitions: int = 1) -> None:
    created = admin.create_topics([NewTopic(topic, partitions, 1, config=dict(configs or {}))])
    created[topic].result(CALL_SECONDS_MAX)


def make_producer(bootstrap_servers: str, **settings: str) -> Producer:
    return Producer(quiet(bootstrap_servers, **{"linger.ms": LINGER_MS, "acks": "all", **settings}))


def send(producer: Producer, topic: str, records: Sequence[SentRecord], partition: int = 0) -> list[int]:
    """Write the records as one batch and wait for it; their offsets, in the order of the records."""
    offsets: list[int] = []
    errors: list[str] = []
    for record in records:
        producer.produce(
            topic,
            record.value,
            record.key,
            partition=partition,
            timestamp=record.timestamp,
            headers=list(record.headers),
            on_delivery=_delivery(offsets, errors),
        )
    left = producer.flush(CALL_SECONDS_MAX)
    if left or errors:
        raise RuntimeError(f"{left} records not delivered to {topic}-{partition}: {errors}")
    return offsets


def _delivery(offsets: list[int], errors: list[str]) -> Callable[[KafkaError | None, "Message[bytes, bytes]"], None]:
    def delivered(error: KafkaError | None, message: "Message[bytes, bytes]") -> None:
        offset = message.offset()
        if error is not None or offset is None:
            errors.append(str(error))
        else:
            offsets.append(offset)

    return delivered


def read_partition(bootstrap_servers: str, topic: str, partition: int, *, committed_only: bool) -> ReadPartition:
    """Every record from the log start to the end that this isolation level may see."""
    isolation = "read_committed" if committed_only else "read_uncommitted"
    settings = {"group.id": "reader", "enable.auto.commit": "false", "isolation.level": isolation, "auto.offset.reset": "error"}
    # The end is told by an empty answer, which the broker holds back for so long.
    quick = {"fetch.wait.max.ms": 10, "enable.partition.eof": True}
    consumer = Consumer({**quiet(bootstrap_servers, **settings), **quick, "check.crcs": True})
    try:
        watermarks = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=CALL_SECONDS_MAX)
        if watermarks is None:
            raise RuntimeError(f"no watermarks of {topic}-{partition} within {CALL_SECONDS_MAX:.0f} s")
        log_start_offset, end_offset = watermarks
        consumer.assign([TopicPartition(topic, partition, log_start_offset)])
        records: list[ReadRecord] = []
        while (message := consumer.poll(CALL_SECONDS_MAX)) is not None:
            error = message.error()
            if error is None:
                records.append(_read_record(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                return ReadPartition(log_start_offset, end_offset, records)
            else:
                raise RuntimeError(f"reading {topic}-{partition}: {error}")
        raise RuntimeError(f"no end of {topic}-{partition} within {CALL_SECONDS_MAX:.0f} s")
    finally:
        consumer.close()


def _read_record(message: "Message[bytes, bytes]") -> ReadRecord:
    offset = message.offset()
    timestamp_type, timestamp = message.timestamp()
    headers = tuple((str(name), _as_bytes(value)) for name, value in message.headers() or ())
    assert offset is not None
    return ReadRecord(offset, timestamp, timestamp_type == TIMESTAMP_LOG_APPEND_TIME, message.key(), message.value(), headers)


def _as_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
