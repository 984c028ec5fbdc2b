"""Fetches through librdkafka, where a setting is beyond our own connection. It returns the same rows, but needs an object per
message.

librdkafka delivers only messages, and events where a partition ends for now. So a read has reached its end when it sees a message
at or after it, or the end of the partition there. If compaction removed the last offsets before the end, just before an open
transaction, there is neither, and the read fails with OffsetsMissing. A broken batch is an error of librdkafka's, without the
offset. Topic ids are compared before and after a read, because librdkafka fetches by name.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as RawPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tidelog.client.errors import TidelogError, UnknownTopic, from_kafka_error
from tidelog.client.fetch.errors import OffsetsLost, OffsetsMissing, TopicRecreated
from tidelog.client.fetch.settings import librdkafka_settings
from tidelog.client.fetch.types import (
    MICROSECONDS,
    MILLISECONDS_MAX,
    SCHEMA,
    SCHEMA_WITH_HEADERS,
    FetchRange,
    Isolation,
    OffsetAt,
    OnLoss,
    TopicInfo,
)
from tidelog.client.librdkafka import ConnectionProblems, librdkafka_configuration, wait_for_broker
from tidelog.client.topic_partition import TopicPartition, partition_of
from tidelog.wire.primitives import ZERO_UUID

CALL_SECONDS_MAX = 30.0
STANDSTILL_SECONDS_MAX = 60.0
# How long a call waits if fewer messages arrive than it asked for.
_POLL_SECONDS = 0.1
_ISOLATION_LEVELS = {
    "read_committed": IsolationLevel.READ_COMMITTED,
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
}
_READER_DEFAULTS: Mapping[str, object] = {
    # The group is never joined, because partitions are assigned by hand, but librdkafka requires a name.
    "group.id": "tidelog-fetch",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    # What librdkafka reads ahead takes memory of this process; the default is 64 MB.
    "queued.max.messages.kbytes": 16 << 10,
    # How long librdkafka pauses when that is full. The default is a second, in which a reader of large messages has nothing to
    # do.
    "fetch.queue.backoff.ms": 10,
    "check.crcs": True,
}


class LibrdkafkaSource:
    def __init__(self, addresses: str, settings: Mapping[str, str], isolation: Isolation) -> None:
        self._addresses = addresses
        self._isolation = isolation
        given = librdkafka_settings(settings)
        own = {**_READER_DEFAULTS, "isolation.level": isolation}
        refused = dict.fromkeys(("isolation.level", "enable.partition.eof", "auto.offset.reset"), "the reads depend on it")
        self._reader_settings = librdkafka_configuration(addresses, given, own, refused=refused)
        self._problems = ConnectionProblems()
        self._has_answered = False
        try:
            self._admin = AdminClient(librdkafka_configuration(addresses, given, {"error_cb": self._problems}))
        except KafkaException as error:
            raise self._translated(error, "settings") from error

    def close(self) -> None:
        """Connections end with their objects, so there is nothing to do."""

    def topics(self, wanted: Sequence[str] | re.Pattern[str]) -> dict[str, TopicInfo]:
        self._greet()
        try:
            if isinstance(wanted, re.Pattern):
                listed = self._admin.list_topics(timeout=CALL_SECONDS_MAX).topics
                names = sorted(name for name in listed if wanted.fullmatch(name))
            else:
                names = list(dict.fromkeys(wanted))
            if not names:
                return {}
            futures = self._admin.describe_topics(TopicCollection(names), request_timeout=CALL_SECONDS_MAX)
            described = {name: self._described(name, future) for name, future in futures.items()}
        except KafkaException as error:
            raise self._translated(error, "topics") from error
        return {
            name: TopicInfo(_uuid_bytes(topic.topic_id), len(topic.partitions))
            for name, topic in sorted(described.items())
            if not (isinstance(wanted, re.Pattern) and topic.is_internal)
        }

    def offsets(self, partitions: Sequence[TopicPartition], at: OffsetAt) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        self._greet()
        spec = (
            {"earliest": OffsetSpec.earliest, "latest": OffsetSpec.latest}[at]()
            if isinstance(at, str)
            else OffsetSpec.for_timestamp(at)
        )
        what = f"offsets of {', '.join(sorted({topic for topic, _ in partitions}))}"
        wanted = {RawPartition(*partition): spec for partition in dict.fromkeys(partitions)}
        try:
            futures = self._admin.list_offsets(
                wanted, isolation_level=_ISOLATION_LEVELS[self._isolation], request_timeout=CALL_SECONDS_MAX
            )
            found = {partition_of(raw): future.result().offset for raw, future in futures.items()}
        except KafkaException as error:
            raise self._translated(error, what) from error
        return {partition: found[partition] for partition in dict.fromkeys(partitions) if found[partition] >= 0}

    def read(self, ranges: Sequence[FetchRange], on_loss: OnLoss | None = None) -> Iterator[pa.RecordBatch]:
        for wanted in ranges:
            position = wanted.start
            while position < wanted.end:
                try:
                    yield from self._read(wanted._replace(start=position))
                    break
                except OffsetsLost as lost:
                    if on_loss is None:
                        raise
                    on_loss(TopicPartition(wanted.topic, wanted.partition), lost.wanted, min(lost.log_start, wanted.end))
                    position = lost.log_start

    def _read(self, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        topic_id = self._checked_topic_id(wanted, wanted.expected_topic_id)
        try:
            consumer = Consumer(self._reader_settings)
        except KafkaException as error:
            raise self._translated(error, "settings") from error
        try:
            consumer.assign([RawPartition(wanted.topic, wanted.partition, wanted.start)])
            for messages in self._messages(consumer, wanted):
                yield _record_batch(messages, wanted)
        except KafkaException as error:
            raise self._translated(error, f"read {wanted.name}") from error
        finally:
            consumer.close()
        self._checked_topic_id(wanted, topic_id)

    def _messages(self, consumer: Any, wanted: FetchRange) -> Iterator[list[Any]]:
        """The messages in portions of one Arrow batch."""
        collected: list[Any] = []
        position = wanted.start
        deadline = time.monotonic() + STANDSTILL_SECONDS_MAX
        while position < wanted.end:
            for message in consumer.consume(wanted.max_rows_per_batch - len(collected), timeout=_POLL_SECONDS):
                error = message.error()
                if error is None:
                    position = message.offset() + 1
                    deadline = time.monotonic() + STANDSTILL_SECONDS_MAX
                    if message.offset() < wanted.end:
                        collected.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    position = max(position, message.offset())
                else:
                    self._judge(error, wanted, position)
            if len(collected) >= wanted.max_rows_per_batch or (collected and position >= wanted.end):
                yield collected
                collected = []
            if position < wanted.end and time.monotonic() > deadline:
                raise OffsetsMissing(
                    f"{wanted.name}: offsets {position} to {wanted.end - 1} are missing: "
                    f"nothing arrived for {STANDSTILL_SECONDS_MAX:g} s"
                )

    def _judge(self, error: Any, wanted: FetchRange, position: int) -> None:
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            partition = TopicPartition(wanted.topic, wanted.partition)
            log_start = self.offsets([partition], "earliest")[partition]
            if log_start > position:
                raise OffsetsLost(*partition, position, log_start)
            raise OffsetsMissing(f"{wanted.name}: offset {position} is missing: {error.str()}")
        if not error.retriable():
            raise from_kafka_error(error, f"read {wanted.name}", self._addresses)

    def _checked_topic_id(self, wanted: FetchRange, expected: bytes | None) -> bytes:
        info = self.topics([wanted.topic])[wanted.topic]
        if wanted.partition >= info.partitions:
            raise UnknownTopic(f"there is no partition {wanted.name}: the topic has {info.partitions}")
        if ZERO_UUID not in (info.topic_id, expected or ZERO_UUID) and info.topic_id != expected:
            raise TopicRecreated(
                f"{wanted.topic} was deleted and created again: it has the id {info.topic_id.hex()} now, and "
                f"{(expected or ZERO_UUID).hex()} was asked for; offsets of the old topic mean nothing in the new one"
            )
        return info.topic_id

    def _described(self, topic: str, future: Any) -> Any:
        try:
            return future.result()
        except KafkaException as error:
            raise self._translated(error, f"topic {topic}") from error

    def _greet(self) -> None:
        if not self._has_answered:
            wait_for_broker(self._admin, self._addresses, self._problems)
            self._has_answered = True

    def _translated(self, error: Any, what: str) -> TidelogError:
        return from_kafka_error(error.args[0], what, self._addresses)


def _uuid_bytes(uuid: Any) -> bytes:
    return cast(int, uuid.get_most_significant_bits() % (1 << 64)).to_bytes(8, "big") + cast(
        int, uuid.get_least_significant_bits() % (1 << 64)
    ).to_bytes(8, "big")


def _microseconds(milliseconds: int) -> int:
    return MICROSECONDS * max(-MILLISECONDS_MAX, min(milliseconds, MILLISECONDS_MAX))


def _record_batch(messages: Sequence[Any], wanted: FetchRange) -> pa.RecordBatch:
    times = [message.timestamp() for message in messages]
    columns = [
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        pa.repeat(pa.scalar(wanted.topic, pa.string()), len(messages)),
        pa.repeat(pa.scalar(wanted.partition, pa.int32()), len(messages)),
        pa.array([message.offset() for message in messages], pa.int64()),
        pa.array([_microseconds(milliseconds) for _, milliseconds in times], pa.timestamp("us", "UTC")),
        pa.array([int(kind == TIMESTAMP_LOG_APPEND_TIME) for kind, _ in times], pa.int32()),
    ]
    schema = SCHEMA
    if "headers" in wanted.schema.names:
        schema = SCHEMA_WITH_HEADERS
        headers = [[{"key": key, "value": value} for key, value in message.headers() or ()] or None for message in messages]
        columns.append(pa.array(headers, schema.field("headers").type))
    return pa.RecordBatch.from_arrays(columns, schema=schema).select(wanted.schema.names)
