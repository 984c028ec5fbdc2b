"""Makes the topics of failures on demand: retry topics, the dead-letter topic, its ledger.

Each has the partition count of its source, so that a letter keeps its partition number; its replication factor and
``min.insync.replicas``, so that a failure is kept as safely as the message was; and room for the story beside the largest message
that the source allows. Letters are kept for ``RETENTION_MS``, whatever the source does.

Several workers may do this at once, and a run may be killed in the middle: a topic that is there already is fine, one that has
fewer partitions than the source gets the rest; and clients can use all of them when this is done, which on some clusters is a
little later than their creation. What may not be made is a ``TopicNotCreated`` that says what to ask for.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourceType

from tidelog.client.errors import TidelogError, UnknownTopic, from_kafka_error
from tidelog.deadletters.letter import HEADERS_BYTES_MAX
from tidelog.deadletters.names import dead_letter_topic, retry_topic
from tidelog.deadletters.offsets import REQUEST_SECONDS_MAX, list_offsets

DAY_MS = 24 * 60 * 60 * 1000
RETENTION_MS = 30 * DAY_MS
# Topics of Apache Kafka are seen some milliseconds after their creation was answered.
VISIBLE_SECONDS_MAX = 10.0
LOOK_AGAIN_SECONDS = 0.02

FAILURE_CONFIG: Mapping[str, str] = {"cleanup.policy": "delete", "retention.ms": str(RETENTION_MS)}
"""Of retry and dead-letter topics. A retry waits at most a backoff, but its worker may be down for longer."""

# What is compacted is not the segment that is written to: without these a ledger would be one segment for weeks.
LEDGER_CONFIG: Mapping[str, str] = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20), "segment.ms": str(DAY_MS)}

_COPIED_CONFIG = "min.insync.replicas"
_SIZE_CONFIG = "max.message.bytes"
_ALREADY_THERE = (KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.INVALID_PARTITIONS)


class TopicNotCreated(TidelogError):
    """A topic of failures is missing and could not be made: nothing can be retried or dead-lettered until it is there."""


class Source(NamedTuple):
    """What the topics of failures take over from the topic they are for."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]


def ensure_failure_topics(admin: AdminClient, topic: str, group: str, *, levels: int, addresses: str) -> list[str]:
    """The retry topics of ``levels`` backoff levels and the dead-letter topic of this topic and group, in this order."""
    names = [*(retry_topic(topic, group, level) for level in range(levels)), dead_letter_topic(topic, group)]
    ensure_topics(admin, topic, dict.fromkeys(names, FAILURE_CONFIG), addresses=addresses)
    return names


def ensure_topics(
    admin: AdminClient,
    source: str,
    wanted: Mapping[str, Mapping[str, str]],
    *,
    addresses: str,
    partitions: int | None = None,
    partitions_min: int = 0,
) -> None:
    """Each topic in ``wanted``, by name with its settings, is there when this returns, with the source's partition count (or
    ``partitions``). ``partitions_min``: so many of the source were seen, whatever the broker that is asked knows of it.
    UnknownTopic when the source is not there, TopicNotCreated with what to do when one may not be made."""
    try:
        known = _topics(admin)
        if source not in known:
            raise UnknownTopic(f"there is no topic {source} at {addresses}: create it first")
        count = max(len(known[source].partitions), partitions_min) if partitions is None else partitions
        missing = [name for name in wanted if name not in known]
        short = [name for name in wanted if name in known and 0 < len(known[name].partitions) < count]
        if missing:
            _create(admin, _describe(admin, source, known[source], count), {name: wanted[name] for name in missing}, addresses)
        if short and partitions is None:
            _grow(admin, short, count, addresses)
        if missing or short:
            _wait_until_there(admin, [*missing, *(short if partitions is None else ())], count)
    except KafkaException as error:
        raise from_kafka_error(error.args[0], f"look up {source}", addresses) from error


def _topics(admin: AdminClient) -> dict[str, Any]:
    """All of them: asking for one by name would create it where brokers do that."""
    topics: dict[str, Any] = admin.list_topics(timeout=REQUEST_SECONDS_MAX).topics
    return topics


def _wait_until_there(admin: AdminClient, names: Sequence[str], partitions: int) -> None:
    """Seen, and led: whoever reads or writes next finds them. Not for ever: they wait for it as well."""
    deadline = time.monotonic() + VISIBLE_SECONDS_MAX
    while time.monotonic() < deadline:
        known = _topics(admin)
        if all(name in known and len(known[name].partitions) >= partitions for name in names):
            places = [TopicPartition(name, partition) for name in names for partition in sorted(known[name].partitions)]
            list_offsets(admin, places, OffsetSpec.latest())
            return
        time.sleep(LOOK_AGAIN_SECONDS)


def _describe(admin: AdminClient, source: str, metadata: Any, partitions: int) -> Source:
    replicas = min((len(partition.replicas) for partition in metadata.partitions.values()), default=0)
    resource = ConfigResource(ResourceType.TOPIC, source)
    try:
        entries = admin.describe_configs([resource], request_timeout=REQUEST_SECONDS_MAX)[resource].result()
    except KafkaException:
        # Who may write to a topic may not always look at its settings; the cluster's defaults are the next best.
        entries = {}
    config = {}
    if _COPIED_CONFIG in entries and entries[_COPIED_CONFIG].value is not None:
        config[_COPIED_CONFIG] = entries[_COPIED_CONFIG].value
    if _SIZE_CONFIG in entries and entries[_SIZE_CONFIG].value is not None:
        config[_SIZE_CONFIG] = str(min(int(entries[_SIZE_CONFIG].value) + HEADERS_BYTES_MAX, (1 << 31) - 1))
    return Source(source, partitions, replicas or -1, config)


def _create(admin: AdminClient, source: Source, wanted: Mapping[str, Mapping[str, str]], addresses: str) -> None:
    topics = [
        NewTopic(
            name,
            num_partitions=source.partitions,
            replication_factor=source.replication_factor,
            config={**source.config, **config},
        )
        for name, config in wanted.items()
    ]
    _await(admin.create_topics(topics, request_timeout=REQUEST_SECONDS_MAX), "create", addresses)


def _grow(admin: AdminClient, names: Iterable[str], count: int, addresses: str) -> None:
    asked = [NewPartitions(name, count) for name in names]
    _await(admin.create_partitions(asked, request_timeout=REQUEST_SECONDS_MAX), "add partitions to", addresses)


def _await(futures: Mapping[str, Any], verb: str, addresses: str) -> None:
    for name, future in futures.items():
        try:
            future.result()
        except KafkaException as error:
            cause = error.args[0]
            # Somebody else was faster: it is there, which is what was wanted.
            if cause.code() in _ALREADY_THERE:
                continue
            known = from_kafka_error(cause, f"{verb} the topic {name}", addresses)
            raise TopicNotCreated(
                f"{known}. Ask who runs the cluster for the permission to {verb} it, or have them do so; until then failed "
                "messages of its source cannot be set aside",
                code=known.code,
                retriable=known.retriable,
            ) from error
