"""Where a table's rows come from: all partitions of one topic, from given positions on, and what is to be known about the topic.

It reads with confluent-kafka itself, not with ``Consumer``, because it wants to be told of the end of each partition: the only
sign that also comes where the last offsets are markers of transactions, aborted messages or holes left by compaction.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from tidelog.client.arrivals import PASSING_ERRORS
from tidelog.client.configuration import bootstrap_addresses, librdkafka_configuration
from tidelog.client.consumer_settings import REFUSED, consumer_defaults
from tidelog.client.errors import InvalidArgument, TidelogError, TimedOut, from_kafka_error
from tidelog.client.reachability import ConnectionProblems, wait_for_broker
from tidelog.client.start import OffsetLookup
from tidelog.client.topic_partition import Partition

REQUEST_SECONDS = 10.0
BATCH_RECORDS = 2_000
# A partition joins the fetches of others when the one under way is answered: with Kafka's 500 ms a small table would wait that
# long.
FETCH_WAIT_MS = 100
PREFETCH_BYTES = 16 * 1024 * 1024
PREFETCH_RECORDS = 20_000
# Kafka's default, where the setting may not be read.
_DELETE_RETENTION_MS = 86_400_000


class PositionsGone(Exception):
    """The topic does not have the offset any more that is to be read next."""


class TopicFacts(NamedTuple):
    topic_id: str
    partitions: tuple[int, ...]
    delete_retention_ms: int


class Source:
    def __init__(
        self,
        bootstrap: str | Sequence[str],
        topic: str,
        *,
        isolation: str,
        connect_timeout: float,
        config: Mapping[str, object] | None,
    ) -> None:
        self.topic = topic
        self.addresses = bootstrap_addresses(bootstrap)
        defaults = consumer_defaults(
            group=None,
            protocol="classic",
            assignor=None,
            isolation=isolation,
            instance_id=None,
            max_prefetch_bytes=PREFETCH_BYTES,
            max_prefetch_records=PREFETCH_RECORDS,
        )
        # A position that is gone means that rows may have been deleted unseen: that is to be known, not skipped.
        defaults.update({"enable.partition.eof": True, "auto.offset.reset": "error", "fetch.wait.max.ms": FETCH_WAIT_MS})
        settings = librdkafka_configuration(bootstrap, config, defaults, refused=REFUSED)
        problems = ConnectionProblems()
        try:
            self._handle = KafkaConsumer({**settings, "error_cb": problems})
        except KafkaException as error:
            raise from_kafka_error(error.args[0], f"open table {topic}", self.addresses, otherwise=InvalidArgument) from error
        try:
            wait_for_broker(self._handle, self.addresses, problems, connect_timeout)
            self._admin = AdminClient(librdkafka_configuration(bootstrap, config, {}))
        except BaseException:
            self._handle.close()
            raise
        self._lookup = OffsetLookup(self._handle, self.addresses)

    def facts(self) -> TopicFacts:
        """UnknownTopic when it is not there."""
        description = self._answer(
            lambda: self._admin.describe_topics(TopicCollection([self.topic]), request_timeout=REQUEST_SECONDS)[self.topic]
        )
        partitions = tuple(sorted(partition.id for partition in description.partitions))
        return TopicFacts(str(description.topic_id), partitions, self._delete_retention_ms())

    def bounds(self, partitions: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
        """By partition the offset of the oldest message that is kept, and the one after the last that may be read."""
        wanted = [Partition(self.topic, partition) for partition in partitions]
        self._refresh()
        begins = self._lookup.beginnings(wanted, REQUEST_SECONDS)
        ends = self._lookup.ends(wanted, REQUEST_SECONDS)
        return (
            {one.partition: offset for one, offset in begins.items()},
            {one.partition: offset for one, offset in ends.items()},
        )

    def assign(self, positions: Mapping[int, int]) -> None:
        self._handle.assign([TopicPartition(self.topic, partition, offset) for partition, offset in positions.items()])

    def read(self, timeout: float) -> tuple[list[Any], dict[int, int]]:
        """The next messages, and by partition the ends that were reached. PositionsGone when there is nothing to go on with."""
        raw = self._handle.consume(1, timeout)
        if raw:
            raw += self._handle.consume(BATCH_RECORDS - 1, 0)
        messages, ends = [], {}
        for message in raw:
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[message.partition()] = message.offset()
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                raise PositionsGone(error.str())
            elif error.code() not in PASSING_ERRORS and not error.retriable():
                raise from_kafka_error(error, f"read {self.topic}", self.addresses)
        return messages, ends

    def close(self) -> None:
        self._handle.close()

    def _refresh(self) -> None:
        """librdkafka answers questions about partitions from what it knew of the topic a while ago."""
        try:
            self._handle.list_topics(self.topic, timeout=REQUEST_SECONDS)
        except KafkaException as error:
            raise from_kafka_error(error.args[0], f"topic {self.topic}", self.addresses) from error

    def _delete_retention_ms(self) -> int:
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.topic)
        try:
            settings = self._answer(lambda: self._admin.describe_configs([resource], request_timeout=REQUEST_SECONDS)[resource])
            return int(settings["delete.retention.ms"].value)
        except (TidelogError, KeyError):
            return _DELETE_RETENTION_MS

    def _answer(self, call: Any) -> Any:
        try:
            return call().result(REQUEST_SECONDS)
        except KafkaException as error:
            raise from_kafka_error(error.args[0], f"topic {self.topic}", self.addresses) from error
        except TimeoutError as error:
            # librdkafka's own time for it is the same, and not always over first.
            raise TimedOut(f"topic {self.topic}: no answer from {self.addresses} within {REQUEST_SECONDS:g} s") from error
