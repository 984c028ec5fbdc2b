"""The way to a cluster for the dead-letter tools: what there is, where it begins and ends, who reads it.

Only Kafka's own requests, through librdkafka. Errors become the toolkit's here, each with what was being done.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tidelog.client.configuration import bootstrap_addresses, librdkafka_configuration
from tidelog.client.errors import InvalidArgument, UnknownTopic, from_kafka_error
from tidelog.client.producer import Producer
from tidelog.client.reachability import ConnectionProblems, wait_for_broker
from tidelog.deadletters.names import is_dead_letter_topic
from tidelog.deadletters.offsets import REQUEST_SECONDS_MAX, list_offsets

# Questions about groups that are under way at once.
GROUPS_AT_ONCE = 50
# A replay waits no longer than this for one that was killed, and a transaction of ours takes a second at most.
TRANSACTION_TIMEOUT_MS = 30_000
# As large as topics may ever allow (less would refuse what the source took); memory is bounded by the bytes of a transaction.
MESSAGE_BYTES_MAX = 100_000_000
COMMITTED_SECONDS_MAX = 5.0
LOOK_AGAIN_SECONDS = 0.01

_OURS = "the tools depend on their own"
REFUSED: Mapping[str, str] = {
    "isolation.level": "what was aborted is no letter and no mark",
    "transactional.id": "it is what keeps two replays apart",
    "group.id": "nothing is read as a group",
    "enable.partition.eof": _OURS,
    "auto.offset.reset": _OURS,
    "enable.auto.commit": _OURS,
    "enable.auto.offset.store": _OURS,
}


class Bounds(NamedTuple):
    """The offsets of a partition that can be read: from its log start to its last stable offset (excluded)."""

    start: int
    end: int


class Connection:
    """To one cluster. Connects on first use: BrokerUnavailable names the addresses."""

    def __init__(self, bootstrap: str | Sequence[str], config: Mapping[str, object] | None) -> None:
        self.addresses = bootstrap_addresses(bootstrap)
        self._config = dict(config or {})
        # What is wrong with them is said at once, not by the first call.
        librdkafka_configuration(self.addresses, self._config, {}, refused=REFUSED)
        self._admin: AdminClient | None = None

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            problems = ConnectionProblems()
            with self.errors("connect"):
                admin = AdminClient(librdkafka_configuration(self.addresses, self._config, {"error_cb": problems}))
            wait_for_broker(admin, self.addresses, problems)
            self._admin = admin
        return self._admin

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise from_kafka_error(error.args[0], what, self.addresses) from error
        except ValueError as error:
            raise InvalidArgument(f"{what}: {error}") from error

    def configuration(self, defaults: Mapping[str, object]) -> dict[str, object]:
        return librdkafka_configuration(self.addresses, self._config, defaults)

    def producer(self, transactional_id: str) -> Producer:
        """Opened: any other with this id is fenced, and what it left open is ended."""
        config = {"message.max.bytes": MESSAGE_BYTES_MAX, **self._config}
        return Producer(
            self.addresses,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            delivery_timeout_ms=TRANSACTION_TIMEOUT_MS,
            config=config,
        )

    # -- topics --------------------------------------------------------------------------------------------------------------

    def topics(self) -> dict[str, Any]:
        """All of them: asking for one by name would create it where brokers do that."""
        with self.errors("list the topics"):
            topics: dict[str, Any] = self.admin.list_topics(timeout=REQUEST_SECONDS_MAX).topics
        return topics

    def dead_letter_topics(self, wanted: Iterable[str] = ()) -> list[str]:
        """Those that are asked for, or all. UnknownTopic when one is not there, InvalidArgument when one has another name."""
        known = self.topics()
        names = list(dict.fromkeys(wanted)) or sorted(name for name in known if is_dead_letter_topic(name))
        for name in names:
            if not is_dead_letter_topic(name):
                raise InvalidArgument(f"{name} is no dead-letter topic: they are called TOPIC.GROUP.dlq")
            if name not in known:
                raise UnknownTopic(f"there is no topic {name} at {self.addresses}: see those there are with tidelog dlq list")
        return names

    def topic_id(self, topic: str) -> str:
        """Empty where brokers have none (before Kafka 2.8)."""
        with self.errors(f"describe {topic}"):
            found = self.admin.describe_topics(TopicCollection([topic]), request_timeout=REQUEST_SECONDS_MAX)[topic].result()
        return str(found.topic_id) if found.topic_id is not None else ""

    def bounds(self, topic: str, partitions: Iterable[int] | None = None) -> dict[int, Bounds]:
        """Of each partition what a read_committed reader can see now."""
        if partitions is None:
            known = self.topics().get(topic)
            partitions = sorted(known.partitions) if known is not None else ()
        places = [TopicPartition(topic, partition) for partition in partitions]
        starts = self._offsets(places, OffsetSpec.earliest(), IsolationLevel.READ_COMMITTED)
        ends = self._offsets(places, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
        return {place.partition: Bounds(start, max(start, ends[place])) for place, start in starts.items()}

    def wait_until_committed(self, topics: Sequence[str]) -> None:
        """Until readers with read_committed can see what is written to these topics now.

        The answer to a commit comes when it is decided; its marks in the partitions follow. Not for ever: somebody else's
        transaction may be open there, and what was decided will be seen in any case.
        """
        known = self.topics()
        places = [
            TopicPartition(topic, number) for topic in topics if topic in known for number in sorted(known[topic].partitions)
        ]
        ends = self._offsets(places, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        deadline = time.monotonic() + COMMITTED_SECONDS_MAX
        while time.monotonic() < deadline:
            stable = self._offsets(places, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
            if all(stable[place] >= end for place, end in ends.items()):
                return
            time.sleep(LOOK_AGAIN_SECONDS)

    def _offsets(self, places: Sequence[TopicPartition], spec: Any, isolation: IsolationLevel) -> dict[TopicPartition, int]:
        with self.errors(f"look up the offsets of {', '.join(sorted({place.topic for place in places}))}"):
            return list_offsets(self.admin, places, spec, isolation)

    # -- groups --------------------------------------------------------------------------------------------------------------

    def groups_reading(self, topic: str) -> list[str]:
        """The groups that have committed offsets of the topic; those that this user may see."""
        with self.errors("list the groups"):
            listed = self.admin.list_consumer_groups(request_timeout=REQUEST_SECONDS_MAX).result().valid
        names = sorted({group.group_id for group in listed})
        found: list[str] = []
        for first in range(0, len(names), GROUPS_AT_ONCE):
            found += self._with_offsets(names[first : first + GROUPS_AT_ONCE], topic)
        return found

    def _with_offsets(self, groups: Sequence[str], topic: str) -> list[str]:
        with self.errors("look up the offsets of groups"):
            # librdkafka takes one group per call.
            futures = [
                self.admin.list_consumer_group_offsets(
                    [ConsumerGroupTopicPartitions(group)], request_timeout=REQUEST_SECONDS_MAX
                )[group]
                for group in groups
            ]
            return [group for group, future in zip(groups, futures, strict=True) if _has_offsets(future, topic)]


def _has_offsets(future: Any, topic: str) -> bool:
    try:
        places = future.result().topic_partitions
    except KafkaException as error:
        # A group may be deleted, or be somebody else's, while we look.
        if error.args[0].code() in (KafkaError.GROUP_ID_NOT_FOUND, KafkaError.GROUP_AUTHORIZATION_FAILED):
            return False
        raise
    return any(place.topic == topic and place.offset >= 0 for place in places)
