"""``RawConsumer``: librdkafka's consumer with the toolkit's messages and errors, and none of its policies.

For tools that read given offsets, need to know where a partition ends, or decide by themselves when to commit. Applications want
``Consumer``. Unless ``config`` names a group, partitions are assigned by hand and nothing is committed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import confluent_kafka
from confluent_kafka import KafkaError

from tidelog.client.configuration import librdkafka_configuration
from tidelog.client.errors import TidelogError, from_kafka_error, kafka_errors
from tidelog.client.message import Message
from tidelog.client.reachability import ConnectionProblems, refused_settings, wait_for_broker
from tidelog.client.topic_partition import TopicPartition, partition_of, raw_offsets, raw_partitions

_DEFAULTS: Mapping[str, object] = {
    # librdkafka requires a name; without a subscription nothing is done under it.
    "group.id": "tidelog",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
}

AssignmentCallback = Callable[[list[TopicPartition]], None]


class EndOfPartition(NamedTuple):
    """The consumer has reached the end of a partition; ``offset`` is that of the next message."""

    topic: str
    partition: int
    offset: int


class RawConsumer:
    """Use it from one thread. ``connect_timeout`` is how long opening waits for a broker; None does not wait at all."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: Mapping[str, object] | None = None,
        *,
        connect_timeout: float | None = None,
    ) -> None:
        problems = ConnectionProblems()
        settings = librdkafka_configuration(bootstrap, config, {**_DEFAULTS, "error_cb": problems})
        self.addresses = str(settings["bootstrap.servers"])
        self._error: TidelogError | None = None
        with refused_settings():
            self.handle: Any = confluent_kafka.Consumer(settings)
        if connect_timeout is not None:
            wait_for_broker(self.handle, self.addresses, problems, connect_timeout)

    def close(self) -> None:
        self.handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- partitions ----------------------------------------------------------------------------------------------------------

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets, and no others."""
        with kafka_errors("assign", self.addresses):
            self.handle.assign(raw_offsets(offsets.items()))

    def incremental_assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        with kafka_errors("assign", self.addresses):
            self.handle.incremental_assign(raw_offsets(offsets.items()))

    def incremental_unassign(self, partitions: Iterable[TopicPartition]) -> None:
        with kafka_errors("unassign", self.addresses):
            self.handle.incremental_unassign(raw_partitions(partitions))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        with kafka_errors("pause", self.addresses):
            self.handle.pause(raw_partitions(partitions))

    def partitions(self, topic: str, timeout: float) -> int:
        """How many partitions the topic has now; asking makes this client notice new ones."""
        with kafka_errors(f"look up {topic}", self.addresses):
            return len(self.handle.list_topics(topic, timeout=timeout).topics[topic].partitions)

    # -- as a member of a group ----------------------------------------------------------------------------------------------

    @property
    def member_id(self) -> str:
        return str(self.handle.memberid())

    def subscribe(self, topics: Sequence[str], *, on_assigned: AssignmentCallback, on_revoked: AssignmentCallback) -> None:
        """Join the group that ``config`` names. librdkafka calls back during ``consume``."""
        with kafka_errors(f"subscribe to {', '.join(topics)}", self.addresses):
            self.handle.subscribe(
                list(topics),
                on_assign=lambda _, places: on_assigned([partition_of(place) for place in places]),
                on_revoke=lambda _, places: on_revoked([partition_of(place) for place in places]),
            )

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit for the group and wait for the answer. Raises the error of the first partition that has one."""
        with kafka_errors("commit", self.addresses):
            answer = self.handle.commit(offsets=raw_offsets(offsets.items()), asynchronous=False)
        for place in answer:
            if place.error is not None:
                raise from_kafka_error(place.error, f"commit {partition_of(place)}", self.addresses)

    # -- messages ------------------------------------------------------------------------------------------------------------

    def consume(self, count_max: int, timeout: float) -> list[Message | EndOfPartition]:
        """Up to ``count_max`` messages and ends of partitions, in order. Waits ``timeout`` seconds for that many.

        An error is raised by the next call if there were messages with it, so that none of them is lost.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        with kafka_errors("read", self.addresses):
            raws = self.handle.consume(count_max, timeout)
        found: list[Message | EndOfPartition] = []
        for raw in raws:
            error_of_raw = raw.error()
            if error_of_raw is None:
                found.append(Message((raw.key(), raw.value(), raw)))
            elif error_of_raw.code() == KafkaError._PARTITION_EOF:
                found.append(EndOfPartition(raw.topic(), raw.partition(), raw.offset()))
            elif self._error is None:
                what = "read" if raw.topic() is None else f"read {raw.topic()}"
                self._error = from_kafka_error(error_of_raw, what, self.addresses)
        if self._error is not None and not found:
            return self.consume(count_max, timeout)
        return found

    def poll(self, timeout: float) -> Message | EndOfPartition | None:
        """The next message or end of a partition, as soon as there is one; None after ``timeout`` seconds."""
        found = self.consume(1, timeout)
        return found[0] if found else None
