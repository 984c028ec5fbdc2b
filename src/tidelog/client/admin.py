"""Topics, settings, offsets and groups: thin over confluent-kafka's AdminClient, with results for futures and typed errors.

Settings of topics are keyword arguments under Kafka's names with underscores: ``retention_ms=86_400_000`` is ``retention.ms``.
Every call ends within ``timeout`` seconds, an argument of the constructor.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicCollection, TopicPartition
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

from tidelog.client.configuration import librdkafka_configuration
from tidelog.client.errors import Closed, InvalidArgument, TidelogError, TopicExists, UnknownTopic, from_kafka_error
from tidelog.client.reachability import CONNECT_TIMEOUT_SECONDS, ConnectionProblems, wait_for_broker
from tidelog.client.topic_partition import milliseconds_of

REQUEST_TIMEOUT_SECONDS = 30.0
# A topic is seen some milliseconds after its creation, or its end, was answered.
_SEEN_SECONDS_MAX = 10.0
_LOOK_AGAIN_SECONDS = 0.02
# A prefix that brokers keep for themselves, as __consumer_offsets.
_INTERNAL_PREFIX = "__"

ConfigValue = str | int | float | bool | Sequence[str] | None


class Partition(NamedTuple):
    """``leader`` is -1 while there is none."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class Topic(NamedTuple):
    """A topic as it is; ``configs`` has the settings that are not defaults."""

    name: str
    partitions: tuple[Partition, ...]
    configs: dict[str, str]


class Group(NamedTuple):
    """``state`` is STABLE, EMPTY, ..., ``type`` is CLASSIC or CONSUMER, as the broker says."""

    name: str
    state: str
    type: str


class Admin:
    """Manages a cluster. Opening waits for a broker, ``connect_timeout`` seconds at most: BrokerUnavailable names the addresses.

    Every call returns when it is done. TimedOut means that whether it was done is not known.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        timeout: float = REQUEST_TIMEOUT_SECONDS,
        connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
        config: Mapping[str, object] | None = None,
    ) -> None:
        refused = {"error_cb": "problems of the connection are told in the errors themselves"}
        configuration = librdkafka_configuration(bootstrap, config, {}, refused=refused)
        self.addresses = str(configuration["bootstrap.servers"])
        self._timeout = timeout
        problems = ConnectionProblems()
        try:
            self._client: Any = AdminClient({**configuration, "error_cb": problems})
        except KafkaException as error:
            raise InvalidArgument(
                f"librdkafka refuses the settings: {error.args[0].str().strip()}", code=error.args[0].code()
            ) from error
        wait_for_broker(self._client, self.addresses, problems, connect_timeout)

    @property
    def handle(self) -> Any:
        """confluent-kafka's own client, for what is not here."""
        if self._client is None:
            raise Closed("the admin client is closed")
        return self._client

    def close(self) -> None:
        """End the connections. More calls do nothing."""
        self._client = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- topics --------------------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        exists_ok: bool = False,
        **configs: ConfigValue,
    ) -> bool:
        """Create a topic; clients see it when this returns. -1 for either number is the broker's default.

        True if it was created. TopicExists if it is there, or False with ``exists_ok``, whatever its settings are.
        InvalidTopic says which name, number or setting the cluster refuses.
        """
        new = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            config={key: text for key, text in _texts(configs).items() if text is not None},
        )
        try:
            self._one(f"create topic {name}", lambda: self.handle.create_topics([new], request_timeout=self._timeout))
        except TopicExists:
            if not exists_ok:
                raise
            return False
        self._wait_until_seen(name, is_there=True)
        return True

    def delete_topic(self, name: str, *, missing_ok: bool = False) -> bool:
        """Delete a topic with all that is in it. True if it was there; UnknownTopic otherwise, or False with ``missing_ok``."""
        try:
            self._one(f"delete topic {name}", lambda: self.handle.delete_topics([name], request_timeout=self._timeout))
        except UnknownTopic:
            if not missing_ok:
                raise
            return False
        self._wait_until_seen(name, is_there=False)
        return True

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names, sorted; with ``internal`` also of those that brokers keep for themselves."""
        try:
            found = self.handle.list_topics(timeout=self._timeout).topics
        except KafkaException as error:
            raise from_kafka_error(error.args[0], "list topics", self.addresses) from error
        return sorted(name for name in found if internal or not name.startswith(_INTERNAL_PREFIX))

    def describe_topic(self, name: str) -> Topic:
        """Partitions, leaders, replicas, and the settings that are not defaults. UnknownTopic if there is none."""
        return self.describe_topics([name])[name]

    def describe_topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """As ``describe_topic``, of several at once."""
        wanted = list(names)
        partitions = {name: self._partitions(name, future) for name, future in self._ask_topics(wanted).items()}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in wanted]
        answers = self._start("describe topics", lambda: self.handle.describe_configs(resources, request_timeout=self._timeout))
        found = {}
        for resource, future in answers.items():
            entries = self._result(f"settings of {resource.name}", future)
            changed = {
                key: str(entry.value)
                for key, entry in sorted(entries.items())
                if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
            }
            found[resource.name] = Topic(resource.name, partitions[resource.name], changed)
        return found

    def alter_topic(self, name: str, **configs: ConfigValue) -> None:
        """Change settings; None gives a setting its default back. What is not named stays as it is."""
        if not configs:
            raise InvalidArgument(f"alter {name}: no setting was given")
        self._partitions(name, self._ask_topics([name])[name])
        entries = [
            ConfigEntry(
                key,
                text,
                incremental_operation=AlterConfigOpType.DELETE if text is None else AlterConfigOpType.SET,
            )
            for key, text in _texts(configs).items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        self._one(
            f"alter topic {name}",
            lambda: self.handle.incremental_alter_configs([resource], request_timeout=self._timeout),
        )

    def add_partitions(self, name: str, total: int) -> None:
        """Have ``total`` partitions in all. Most keys move to another one: there the order of a key's messages is lost."""
        new = NewPartitions(name, total)
        self._one(f"add partitions to {name}", lambda: self.handle.create_partitions([new], request_timeout=self._timeout))

    # -- offsets -------------------------------------------------------------------------------------------------------------

    def offsets_for_time(self, topic: str, timestamp: int | datetime | str) -> dict[int, int | None]:
        """By partition, the first offset whose message is not older than ``timestamp`` (milliseconds, or a datetime with a time
        zone); None where there is none. Also "earliest", and "latest": the offset that comes next."""
        spec = _offset_spec(timestamp)
        partitions = self._partitions(topic, self._ask_topics([topic])[topic])
        asked = {TopicPartition(topic, partition.partition): spec for partition in partitions}
        what = f"offsets of {topic}"
        answers = self._start(what, lambda: self.handle.list_offsets(asked, request_timeout=self._timeout))
        offsets = {place.partition: self._result(what, future).offset for place, future in answers.items()}
        return {partition: offset if offset >= 0 else None for partition, offset in sorted(offsets.items())}

    # -- groups --------------------------------------------------------------------------------------------------------------

    def list_groups(self) -> list[Group]:
        """All consumer groups, by name."""
        future = self._start("list groups", lambda: self.handle.list_consumer_groups(request_timeout=self._timeout))
        listed = self._result("list groups", future)
        if listed.errors:
            raise from_kafka_error(listed.errors[0].args[0], "list groups", self.addresses)
        groups = [Group(group.group_id, group.state.name, group.type.name) for group in listed.valid]
        return sorted(groups)

    def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """By (topic, partition), what the group has committed: the offset of the next message that it will read."""
        asked = [ConsumerGroupTopicPartitions(group)]
        what = f"offsets of group {group}"
        answer = self._one(what, lambda: self.handle.list_consumer_group_offsets(asked, request_timeout=self._timeout))
        return {(place.topic, place.partition): place.offset for place in answer.topic_partitions if place.offset >= 0}

    def set_group_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit for a group, by (topic, partition); the rest stays. GroupError while it has members."""
        places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        if not places:
            raise InvalidArgument(f"set offsets of group {group}: none was given")
        asked = [ConsumerGroupTopicPartitions(group, places)]
        what = f"set offsets of group {group}"
        answer = self._one(what, lambda: self.handle.alter_consumer_group_offsets(asked, request_timeout=self._timeout))
        for place in answer.topic_partitions:
            if place.error is not None:
                raise from_kafka_error(place.error, f"{what} in {place.topic}-{place.partition}", self.addresses)

    def delete_group(self, group: str) -> None:
        """Forget a group with its offsets. GroupError while it has members, or when there is none."""
        self._one(f"delete group {group}", lambda: self.handle.delete_consumer_groups([group], request_timeout=self._timeout))

    # -- asking --------------------------------------------------------------------------------------------------------------

    def _ask_topics(self, names: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = self._start(
            "describe topics", lambda: self.handle.describe_topics(TopicCollection(names), request_timeout=self._timeout)
        )
        return found

    def _partitions(self, name: str, future: Any) -> tuple[Partition, ...]:
        described = self._result(f"describe topic {name}", future)
        return tuple(
            Partition(
                partition.id,
                -1 if partition.leader is None else partition.leader.id,
                tuple(node.id for node in partition.replicas),
                tuple(node.id for node in partition.isr),
            )
            for partition in sorted(described.partitions, key=lambda partition: partition.id)
        )

    def _wait_until_seen(self, name: str, *, is_there: bool) -> None:
        """Not for ever: the cluster has answered, and whoever uses the topic waits for it as well."""
        deadline = time.monotonic() + _SEEN_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                self._partitions(name, self._ask_topics([name])[name])
            except UnknownTopic:
                if not is_there:
                    return
            else:
                if is_there:
                    return
            time.sleep(_LOOK_AGAIN_SECONDS)

    def _one(self, what: str, call: Any) -> Any:
        """The result of a call about one thing."""
        (future,) = self._start(what, call).values()
        return self._result(what, future)

    def _start(self, what: str, call: Any) -> Any:
        try:
            return call()
        except KafkaException as error:
            raise self._typed(error, what) from error
        except (TypeError, ValueError) as error:
            if isinstance(error, TidelogError):
                raise
            raise InvalidArgument(f"{what}: {error}") from error

    def _result(self, what: str, future: Any) -> Any:
        try:
            return future.result()
        except KafkaException as error:
            raise self._typed(error, what) from error
        except ValueError as error:
            raise InvalidArgument(f"{what}: {error}") from error

    def _typed(self, error: KafkaException, what: str) -> TidelogError:
        return from_kafka_error(error.args[0], what, self.addresses)


def _texts(configs: Mapping[str, ConfigValue]) -> dict[str, str | None]:
    """Kafka's names and notation."""
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
    raise InvalidArgument(f"{key}: a setting is text, a number, true or false, or a list of texts: not {value!r}")


def _offset_spec(timestamp: int | datetime | str) -> Any:
    if timestamp == "earliest":
        return OffsetSpec.earliest()
    if timestamp == "latest":
        return OffsetSpec.latest()
    if isinstance(timestamp, str):
        raise InvalidArgument(f'a time is "earliest", "latest", milliseconds or a datetime with a zone: not {timestamp!r}')
    return OffsetSpec.for_timestamp(milliseconds_of(timestamp))
