"""Administration of a cluster: topics, settings, offsets and groups, on any Kafka.

``Admin`` is a thin layer over confluent-kafka's AdminClient that returns results instead of futures and raises typed errors. Each
request ends within ``timeout`` seconds, an argument of the constructor. Calls that wait until a topic is visible or has leaders
take some seconds more at most. Settings of topics are keyword arguments under Kafka's names with underscores:
``retention_ms=86_400_000`` is ``retention.ms``.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import confluent_kafka
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, ConsumerGroupType, IsolationLevel, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tidelog.client.errors import (
    BrokerUnavailable,
    Closed,
    InvalidArgument,
    InvalidTopic,
    MessageTooLarge,
    NotAuthorized,
    TidelogError,
    TopicExists,
    UnknownGroup,
    UnknownTopic,
    from_kafka_error,
    kafka_errors,
    refused_by_topic,
)
from tidelog.client.librdkafka import (
    CONNECT_TIMEOUT_SECONDS,
    ConnectionProblems,
    librdkafka_configuration,
    refused_settings,
    wait_for_broker,
)
from tidelog.client.topic_partition import TopicPartition, milliseconds_of, partition_of, raw_offsets

REQUEST_TIMEOUT_SECONDS = 30.0
# Clients see a topic, or the end of it, some milliseconds after the broker has answered.
_VISIBLE_SECONDS_MAX = 10.0
_LOOK_AGAIN_SECONDS = 0.02
# A topic can be visible a little before its leaders answer for it, and a restarted broker may not know yet what it leads.
_LEADER_SECONDS_MAX = 15.0
_ASK_LEADER_AGAIN_SECONDS = 0.05
_NO_LEADER = frozenset(
    (
        confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION,
        confluent_kafka.KafkaError.LEADER_NOT_AVAILABLE,
        confluent_kafka.KafkaError.FENCED_LEADER_EPOCH,
        confluent_kafka.KafkaError.UNKNOWN_LEADER_EPOCH,
        confluent_kafka.KafkaError.OFFSET_NOT_AVAILABLE,
        confluent_kafka.KafkaError.KAFKA_STORAGE_ERROR,
    )
)
# The number of groups whose offsets are requested at the same time: librdkafka takes one group per call.
_GROUPS_AT_ONCE = 50
# Brokers keep topics with this prefix for themselves, for example __consumer_offsets.
_INTERNAL_PREFIX = "__"

ConfigValue = str | int | float | bool | Sequence[str] | None
OffsetTime = int | datetime | str
""""earliest", "latest", or a time: milliseconds since 1970, or a datetime with a time zone."""
IsolationName = Literal["read_committed", "read_uncommitted"]

_ISOLATION_LEVELS = {
    "read_committed": IsolationLevel.READ_COMMITTED,
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
}
_RESOURCE_TYPES = {"topic": ResourceType.TOPIC, "broker": ResourceType.BROKER}


class PartitionDescription(NamedTuple):
    """``leader`` is -1 while the partition has no leader."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class TopicDescription(NamedTuple):
    """``configs`` has the settings that differ from their defaults. ``topic_id`` is empty on brokers before Kafka 2.8."""

    name: str
    partitions: tuple[PartitionDescription, ...]
    configs: dict[str, str]
    topic_id: str = ""


class ClusterDescription(NamedTuple):
    """The brokers as "host:port" by id, and the partitions of every topic by name."""

    brokers: dict[int, str]
    topics: dict[str, tuple[PartitionDescription, ...]]

    def partitions(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic; empty if the topic does not exist."""
        return [TopicPartition(topic, each.partition) for each in self.topics.get(topic, ())]


class BrokerDescription(NamedTuple):
    broker_id: int
    host: str
    port: int
    rack: str | None


class ClusterIdentity(NamedTuple):
    """``controller`` is the id of the broker that is the controller, None if the cluster does not say."""

    cluster_id: str | None
    controller: int | None
    brokers: tuple[BrokerDescription, ...]


class NewTopicSpec(NamedTuple):
    """A topic to create; -1 for either number is the broker's default. ``configs`` has Kafka's own names: "retention.ms"."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = {}


class ConfigSetting(NamedTuple):
    """One setting of a topic or broker. ``source`` is Kafka's name for where the value comes from: DEFAULT_CONFIG, ..."""

    name: str
    value: str | None
    source: str
    is_read_only: bool
    is_sensitive: bool

    @property
    def is_default(self) -> bool:
        return self.source == "DEFAULT_CONFIG"

    @property
    def is_of_topic(self) -> bool:
        """Whether the value was set for the topic itself."""
        return self.source == "DYNAMIC_TOPIC_CONFIG"


class PartitionBounds(NamedTuple):
    """The offsets of a partition that can be read: from ``start`` to before ``end``."""

    start: int
    end: int


class GroupListing(NamedTuple):
    """``state`` is STABLE, EMPTY, ..., ``type`` is CLASSIC or CONSUMER, as the broker says."""

    name: str
    state: str
    type: str


class GroupMember(NamedTuple):
    member_id: str
    client_id: str
    host: str
    group_instance_id: str | None
    partitions: tuple[TopicPartition, ...]


class GroupDescription(NamedTuple):
    """A consumer group with its members. ``state`` and ``type`` are as in ``GroupListing``; a group that does not exist is DEAD.

    ``coordinator`` is the broker's id with its host and port, None if the group has no coordinator.
    """

    name: str
    state: str
    type: str
    assignor: str = ""
    coordinator: tuple[int, str, int] | None = None
    members: tuple[GroupMember, ...] = ()


class CommittedOffset(NamedTuple):
    """The offset of the next message that a group reads, and what the group committed with it."""

    offset: int
    leader_epoch: int | None
    metadata: str


class Admin:
    """Manages a cluster. Opening waits for a broker, ``connect_timeout`` seconds at most: BrokerUnavailable names the addresses.

    Every call returns when it is done. After TimedOut it is not known whether the call was executed.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        timeout: float = REQUEST_TIMEOUT_SECONDS,
        connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
        config: Mapping[str, object] | None = None,
    ) -> None:
        refused = {"error_cb": "the errors themselves report problems of the connection"}
        configuration = librdkafka_configuration(bootstrap, config, {}, refused=refused)
        self.addresses = str(configuration["bootstrap.servers"])
        self._timeout = timeout
        problems = ConnectionProblems()
        with refused_settings():
            self._client: Any = AdminClient({**configuration, "error_cb": problems})
        wait_for_broker(self._client, self.addresses, problems, connect_timeout)

    @property
    def handle(self) -> Any:
        """confluent-kafka's own client, for calls that are missing here."""
        if self._client is None:
            raise Closed("the admin client is closed")
        return self._client

    def close(self) -> None:
        """End the connections. Further calls do nothing."""
        self._client = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- topics --------------------------------------------------------------------------------------------------------------

    def describe_cluster(self) -> ClusterDescription:
        """All brokers and topics, internal topics included. Asking for all never creates a topic, asking for one by name may."""
        with self._errors("list topics"):
            found = self.handle.list_topics(timeout=self._timeout)
        topics = {
            name: tuple(
                PartitionDescription(each.id, each.leader, tuple(each.replicas), tuple(each.isrs))
                for _, each in sorted(topic.partitions.items())
            )
            for name, topic in sorted(found.topics.items())
        }
        return ClusterDescription({node.id: f"{node.host}:{node.port}" for node in found.brokers.values()}, topics)

    def identify_cluster(self) -> ClusterIdentity:
        """The cluster's id, its controller, and its brokers with their racks."""
        with self._errors("describe the cluster"):
            found = self.handle.describe_cluster(request_timeout=self._timeout).result()
        brokers = [BrokerDescription(node.id, node.host, node.port, node.rack) for node in found.nodes]
        controller = found.controller.id if found.controller is not None else None
        return ClusterIdentity(found.cluster_id, controller, tuple(sorted(brokers)))

    def create_topic(
        self,
        /,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        exists_ok: bool = False,
        **configs: ConfigValue,
    ) -> bool:
        """Create a topic; clients see it when this returns. -1 for either number is the broker's default.

        Returns True if the topic was created. If it exists, raises TopicExists, or returns False with ``exists_ok`` whatever its
        settings are. InvalidTopic says which name, number or setting the cluster refuses.
        """
        texts = {key: text for key, text in _texts(configs).items() if text is not None}
        error = self.create_topics([NewTopicSpec(name, partitions, replication_factor, texts)])[name]
        if isinstance(error, TopicExists) and exists_ok:
            return False
        if error is not None:
            raise error
        self._wait_until_visible(name, is_there=True)
        return True

    def create_topics(self, topics: Iterable[NewTopicSpec]) -> dict[str, TidelogError | None]:
        """Create several topics with one request; by name, the error of each that was not created. Does not wait for clients to
        see them."""
        new = [
            NewTopic(
                topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                config=dict(topic.configs),
            )
            for topic in topics
        ]
        with self._errors(f"create topic {', '.join(each.topic for each in new)}"):
            futures = self.handle.create_topics(new, request_timeout=self._timeout)
        return {name: self._error_of(f"create topic {name}", future) for name, future in futures.items()}

    def delete_topic(self, name: str, *, missing_ok: bool = False) -> bool:
        """Delete a topic with its messages. Returns True if it existed; UnknownTopic otherwise, or False with ``missing_ok``."""
        try:
            with self._errors(f"delete topic {name}"):
                self.handle.delete_topics([name], request_timeout=self._timeout)[name].result()
        except UnknownTopic:
            if not missing_ok:
                raise
            return False
        self._wait_until_visible(name, is_there=False)
        return True

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names of the topics, sorted; with ``internal`` also of those that brokers keep for themselves."""
        return [name for name in self.describe_cluster().topics if internal or not name.startswith(_INTERNAL_PREFIX)]

    def describe_topic(self, name: str) -> TopicDescription:
        """Partitions, leaders, replicas, and the settings that differ from their defaults. UnknownTopic if it does not exist."""
        return self.describe_topics([name])[name]

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        """Describe several topics; see ``describe_topic``."""
        topics = self._describe_topics(list(names))
        futures = {name: self._start_configs("topic", name) for name in topics}
        return {
            name: topic._replace(
                configs={each.name: str(each.value) for each in self._configs(name, futures[name]) if each.is_of_topic}
            )
            for name, topic in topics.items()
        }

    def topic_id(self, name: str) -> str:
        """The id of the topic, empty on brokers before Kafka 2.8. UnknownTopic if the topic does not exist."""
        return self._describe_topics([name])[name].topic_id

    def add_partitions(self, name: str, total: int, *, more_ok: bool = False) -> None:
        """Grow the topic to ``total`` partitions. Most keys move to another partition, and lose the order of their messages.

        InvalidTopic if it has that many already; with ``more_ok`` that is no error.
        """
        new = NewPartitions(name, total)
        try:
            with self._errors(f"add partitions to {name}"):
                self.handle.create_partitions([new], request_timeout=self._timeout)[name].result()
        except InvalidTopic as error:
            if not more_ok or error.code != confluent_kafka.KafkaError.INVALID_PARTITIONS:
                raise

    # -- settings ------------------------------------------------------------------------------------------------------------

    def alter_topic(self, /, name: str, **configs: ConfigValue) -> None:
        """Change settings of a topic; None resets a setting to its default. Settings that are not named stay as they are."""
        if not configs:
            raise InvalidArgument(f"alter {name}: no setting was given")
        self._describe_topics([name])
        self.alter_configs("topic", name, _texts(configs))

    def alter_configs(self, kind: Literal["topic", "broker"], name: str, configs: Mapping[str, str | None]) -> None:
        """Change settings of a topic or broker, under Kafka's own names; None resets a setting to its default."""
        entries = [
            ConfigEntry(key, text, incremental_operation=AlterConfigOpType.DELETE if text is None else AlterConfigOpType.SET)
            for key, text in configs.items()
        ]
        resource = ConfigResource(_RESOURCE_TYPES[kind], name, incremental_configs=entries)
        with self._errors(f"alter {kind} {name}"):
            self.handle.incremental_alter_configs([resource], request_timeout=self._timeout)[resource].result()

    def describe_configs(self, kind: Literal["topic", "broker"], name: str) -> dict[str, ConfigSetting]:
        """All settings of a topic or broker, by name, sorted."""
        return {setting.name: setting for setting in self._configs(name, self._start_configs(kind, name))}

    def with_topic_limit(self, error: MessageTooLarge) -> MessageTooLarge:
        """The error with the limit that the topic has now, if a topic's limit was the reason and this user may see it."""
        if error.refused is None:
            return error
        try:
            limit = self.describe_configs("topic", error.refused.topic)["max.message.bytes"].value
        except (TidelogError, KeyError):
            return error
        return refused_by_topic(error.refused, None if limit is None else int(limit))

    # -- offsets -------------------------------------------------------------------------------------------------------------

    def offsets_for_time(self, topic: str, timestamp: OffsetTime) -> dict[int, int | None]:
        """Return, by partition, the first offset whose message is not older than ``timestamp`` (milliseconds, or a datetime
        with a time zone); None where there is no such message. Also accepts "earliest", and "latest": the offset of the next
        message."""
        _offset_spec(timestamp)
        partitions = [TopicPartition(topic, each.partition) for each in self._describe_topics([topic])[topic].partitions]
        return {place.partition: offset for place, offset in self.list_offsets(partitions, timestamp).items()}

    def list_offsets(
        self,
        partitions: Iterable[tuple[str, int]],
        at: OffsetTime,
        *,
        isolation: IsolationName = "read_uncommitted",
        missing_ok: bool = False,
    ) -> dict[TopicPartition, int | None]:
        """The offsets at ``at`` of any number of partitions, in one request per broker; None where no message is so recent.

        Repeats the request while a partition has no leader, for some seconds. With ``isolation="read_committed"`` "latest" is the
        last stable offset. A partition that does not exist raises UnknownTopic; with ``missing_ok`` it is left out.
        """
        wanted = sorted({TopicPartition(*partition) for partition in partitions})
        if not wanted:
            return {}
        what = f"offsets of {', '.join(sorted({topic for topic, _ in wanted}))}"
        spec = _offset_spec(at)
        deadline = time.monotonic() + _LEADER_SECONDS_MAX
        while True:
            asked = {confluent_kafka.TopicPartition(*partition): spec for partition in wanted}
            with self._errors(what):
                futures = self.handle.list_offsets(
                    asked, isolation_level=_ISOLATION_LEVELS[isolation], request_timeout=self._timeout
                )
            try:
                return self._listed(what, futures, missing_ok)
            except TidelogError as error:
                if error.code not in _NO_LEADER or time.monotonic() >= deadline:
                    raise
            time.sleep(_ASK_LEADER_AGAIN_SECONDS)

    def bounds(
        self, partitions: Iterable[tuple[str, int]], *, isolation: IsolationName = "read_uncommitted", missing_ok: bool = False
    ) -> dict[TopicPartition, PartitionBounds]:
        """Log start offset and high watermark, or the last stable offset with ``isolation="read_committed"``."""
        wanted = list(partitions)
        starts = self.list_offsets(wanted, "earliest", isolation=isolation, missing_ok=missing_ok)
        ends = self.list_offsets(wanted, "latest", isolation=isolation, missing_ok=missing_ok)
        return {
            partition: PartitionBounds(start or 0, max(start or 0, ends[partition] or 0))
            for partition, start in starts.items()
            if partition in ends
        }

    # -- groups --------------------------------------------------------------------------------------------------------------

    def list_groups(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        """The consumer groups by name: all, or those in one of ``states`` ("STABLE") and of one of ``types`` ("CLASSIC")."""
        with self._errors("list groups"):
            listed = self.handle.list_consumer_groups(
                states={ConsumerGroupState[state] for state in states},
                types={ConsumerGroupType[kind] for kind in types},
                request_timeout=self._timeout,
            ).result()
        for error in listed.errors:
            raise from_kafka_error(error, "list groups", self.addresses)
        return sorted(GroupListing(group.group_id, group.state.name, group.type.name) for group in listed.valid)

    def describe_groups(self, names: Iterable[str]) -> dict[str, GroupDescription]:
        """Return the groups with their members. A group that does not exist is DEAD, as in Kafka."""
        wanted = list(names)
        if not wanted:
            return {}
        with self._errors("describe groups"):
            futures = self.handle.describe_consumer_groups(wanted, request_timeout=self._timeout)
        return {name: self._described_group(name, futures[name]) for name in wanted}

    def committed_offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """The offsets that the group has committed, with leader epochs and metadata, sorted by partition."""
        return self._committed(group, self._start_committed(group))

    def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """The offsets that the group has committed, by (topic, partition): each is that of the next message that it will read."""
        return {partition: committed.offset for partition, committed in self.committed_offsets(group).items()}

    def groups_with_offsets(self, topic: str) -> list[str]:
        """The groups that have committed offsets of the topic, as far as this user may see them."""
        names = [group.name for group in self.list_groups()]
        found: list[str] = []
        for first in range(0, len(names), _GROUPS_AT_ONCE):
            futures = {name: self._start_committed(name) for name in names[first : first + _GROUPS_AT_ONCE]}
            for name, future in futures.items():
                try:
                    offsets = self._committed(name, future)
                except (UnknownGroup, NotAuthorized):
                    continue  # The group was deleted in the meantime, or belongs to another user.
                if any(partition.topic == topic for partition in offsets):
                    found.append(name)
        return found

    def set_group_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit for a group, by (topic, partition); other partitions keep theirs. GroupError while it has members."""
        if not offsets:
            raise InvalidArgument(f"set offsets of group {group}: no offset was given")
        asked = [ConsumerGroupTopicPartitions(group, raw_offsets(offsets.items()))]
        what = f"set offsets of group {group}"
        with self._errors(what):
            answer = self.handle.alter_consumer_group_offsets(asked, request_timeout=self._timeout)[group].result()
        for place in answer.topic_partitions:
            if place.error is not None:
                raise from_kafka_error(place.error, f"{what} in {place.topic}-{place.partition}", self.addresses)

    def delete_group(self, group: str) -> None:
        """Delete a group with its offsets. GroupError while it has members, or if there is no such group."""
        with self._errors(f"delete group {group}"):
            self.handle.delete_consumer_groups([group], request_timeout=self._timeout)[group].result()

    def describe_group(self, name: str) -> GroupDescription:
        """One group with its members. UnknownGroup if there is none."""
        found = self.describe_groups([name])[name]
        if found.state == "DEAD" and not self.committed_offsets(name):
            raise UnknownGroup(f"describe group {name}: there is no such group at {self.addresses}")
        return found

    def lag(self, group: str) -> dict[TopicPartition, int]:
        """How many messages each partition has that the group has not read yet: from its committed offset, or from the oldest
        message if retention has overtaken it, to the end."""
        committed = self.committed_offsets(group)
        if not committed and self.describe_groups([group])[group].state == "DEAD":
            raise UnknownGroup(f"lag of group {group}: there is no such group at {self.addresses}")
        cluster = self.describe_cluster()
        bounds = self.bounds([each for each in committed if each in cluster.partitions(each.topic)], missing_ok=True)
        return {each: max(0, end - max(start, committed[each].offset)) for each, (start, end) in bounds.items()}

    # -- records and brokers -------------------------------------------------------------------------------------------------

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete what is before an offset, by (topic, partition); -1 deletes everything up to the end. Returns where each
        partition starts now. OffsetOutOfRange if an offset is beyond the end."""
        if not offsets:
            raise InvalidArgument("delete records: no partition was given")
        with self._errors("delete records"):
            futures = self.handle.delete_records(raw_offsets(offsets.items()), request_timeout=self._timeout)
        found: dict[TopicPartition, int] = {}
        for raw, future in futures.items():
            with self._errors(f"delete records of {raw.topic}-{raw.partition}"):
                found[TopicPartition(raw.topic, raw.partition)] = future.result().low_watermark
        return found

    def broker_configs(self, broker_id: int) -> dict[str, ConfigSetting]:
        """The settings of a broker, and where each comes from. BrokerUnavailable if there is no such broker."""
        known = self.describe_cluster().brokers
        if broker_id not in known:
            names = ", ".join(map(str, sorted(known)))
            raise BrokerUnavailable(f"describe broker {broker_id}: there is no such broker at {self.addresses}, only {names}")
        return self.describe_configs("broker", str(broker_id))

    # -- answers -------------------------------------------------------------------------------------------------------------

    def _errors(self, what: str) -> AbstractContextManager[None]:
        return kafka_errors(what, self.addresses)

    def _error_of(self, what: str, future: Any) -> TidelogError | None:
        try:
            with self._errors(what):
                future.result()
        except TidelogError as error:
            return error
        return None

    def _describe_topics(self, names: list[str]) -> dict[str, TopicDescription]:
        """The topics without their settings."""
        with self._errors("describe topics"):
            futures = self.handle.describe_topics(TopicCollection(names), request_timeout=self._timeout)
        found = {}
        for name, future in futures.items():
            with self._errors(f"describe topic {name}"):
                described = future.result()
            partitions = tuple(
                PartitionDescription(
                    partition.id,
                    -1 if partition.leader is None else partition.leader.id,
                    tuple(node.id for node in partition.replicas),
                    tuple(node.id for node in partition.isr),
                )
                for partition in sorted(described.partitions, key=lambda partition: partition.id)
            )
            topic_id = "" if described.topic_id is None else str(described.topic_id)
            found[name] = TopicDescription(name, partitions, {}, topic_id)
        return found

    def _start_configs(self, kind: Literal["topic", "broker"], name: str) -> Any:
        resource = ConfigResource(_RESOURCE_TYPES[kind], name)
        with self._errors(f"settings of {name}"):
            return self.handle.describe_configs([resource], request_timeout=self._timeout)[resource]

    def _configs(self, name: str, future: Any) -> list[ConfigSetting]:
        with self._errors(f"settings of {name}"):
            entries = future.result()
        return [
            ConfigSetting(key, each.value, _source_name(each.source), bool(each.is_read_only), bool(each.is_sensitive))
            for key, each in sorted(entries.items())
        ]

    def _wait_until_visible(self, name: str, *, is_there: bool) -> None:
        """Wait for a while. This ends without an error: the cluster has confirmed the change, and other clients wait for the
        topic as well."""
        deadline = time.monotonic() + _VISIBLE_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                self._describe_topics([name])
            except UnknownTopic:
                if not is_there:
                    return
            else:
                if is_there:
                    return
            time.sleep(_LOOK_AGAIN_SECONDS)

    def _listed(self, what: str, futures: Mapping[Any, Any], missing_ok: bool) -> dict[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        for raw, future in futures.items():
            try:
                with self._errors(what):
                    offset = int(future.result().offset)
            except UnknownTopic:
                if not missing_ok:
                    raise
                continue
            found[partition_of(raw)] = offset if offset >= 0 else None
        return dict(sorted(found.items()))

    def _described_group(self, name: str, future: Any) -> GroupDescription:
        try:
            with self._errors(f"describe group {name}"):
                found = future.result()
        except UnknownGroup:
            return GroupDescription(name, ConsumerGroupState.DEAD.name, "")
        members = [
            GroupMember(each.member_id, each.client_id, each.host, each.group_instance_id, _assigned(each.assignment))
            for each in found.members
        ]
        node = found.coordinator
        return GroupDescription(
            name,
            found.state.name,
            found.type.name,
            found.partition_assignor,
            None if node is None else (node.id, node.host, node.port),
            tuple(sorted(members, key=lambda member: (member.client_id, member.member_id))),
        )

    def _start_committed(self, group: str) -> Any:
        asked = [ConsumerGroupTopicPartitions(group)]
        with self._errors(f"offsets of group {group}"):
            return self.handle.list_consumer_group_offsets(asked, request_timeout=self._timeout)[group]

    def _committed(self, group: str, future: Any) -> dict[TopicPartition, CommittedOffset]:
        with self._errors(f"offsets of group {group}"):
            places = future.result().topic_partitions
        found = {}
        for place in places:
            if place.error is not None:
                raise from_kafka_error(place.error, f"offsets of group {group} in {partition_of(place)}", self.addresses)
            if place.offset >= 0:
                found[partition_of(place)] = CommittedOffset(place.offset, place.leader_epoch, place.metadata or "")
        return dict(sorted(found.items()))


def _assigned(assignment: Any) -> tuple[TopicPartition, ...]:
    return tuple(sorted(partition_of(place) for place in assignment.topic_partitions)) if assignment else ()


def _source_name(source: Any) -> str:
    """librdkafka returns plain numbers where its own objects have an enum."""
    try:
        return str(ConfigSource(getattr(source, "value", source)).name)
    except ValueError:
        return "UNKNOWN_CONFIG"


def _texts(configs: Mapping[str, ConfigValue]) -> dict[str, str | None]:
    """Convert settings to Kafka's names and notation."""
    return {key.replace("_", "."): _text(key, value) for key, value in configs.items()}


def _text(key: str, value: ConfigValue) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
        return ",".join(value)
    raise InvalidArgument(f"{key}: a setting is a string, a number, a bool, or a list of strings: not {value!r}")


def _offset_spec(timestamp: OffsetTime) -> Any:
    if timestamp == "earliest":
        return OffsetSpec.earliest()
    if timestamp == "latest":
        return OffsetSpec.latest()
    if isinstance(timestamp, str):
        raise InvalidArgument(f'a time is "earliest", "latest", milliseconds or a datetime with a time zone: not {timestamp!r}')
    return OffsetSpec.for_timestamp(milliseconds_of(timestamp))
