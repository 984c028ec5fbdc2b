"""The topics of failures: their names, and their creation on demand.

They belong to one topic *and one group*. ``orders`` read by the group ``email`` has the retry topics ``orders.email.retry.0`` and
up, one per backoff level, and the dead-letter topic ``orders.email.dlq``. The ledger ``orders.email.dlq.ledger`` records which
dead letters were replayed or discarded. Two groups on one topic fail separately: one does not see the replays of the other.

Topics and groups may contain dots, so a name alone does not tell where the topic ends and the group begins; ``source_topic`` has
to know the group. Kafka allows 249 of the characters a-z, A-Z, 0-9, dot, underscore and hyphen in the name of a topic. A group
may have any name, so a name that is not allowed is refused when it is built, with what to change.

Each topic of failures gets the partition count of its source, so that a letter keeps its partition number; the source's
replication factor and ``min.insync.replicas``, so that a failure is stored as safely as the message was; and room for the story
on top of the largest message that the source allows. Letters are kept for ``RETENTION_MS``, whatever the source's retention is.

Several workers may create the topics at once, and a run may be killed in the middle: an existing topic is accepted, and one with
fewer partitions than the source is grown. When ``ensure_topics`` returns, clients can use all of them, which on some clusters is
a little later than their creation. A topic that cannot be created raises ``TopicNotCreated``, which says whom to ask for what.
"""

import re
import time
from collections.abc import Mapping, Sequence

from tidelog.client.admin import Admin, NewTopicSpec, PartitionDescription
from tidelog.client.errors import InvalidArgument, TidelogError, TopicExists, UnknownTopic
from tidelog.client.topic_partition import TopicPartition
from tidelog.deadletters.letter import HEADERS_BYTES_MAX

TOPIC_LENGTH_MAX = 249
LEVELS_MAX = 1000

DEAD_LETTER_SUFFIX = ".dlq"
LEDGER_SUFFIX = ".ledger"

DAY_MS = 24 * 60 * 60 * 1000
RETENTION_MS = 30 * DAY_MS
# Clients of Apache Kafka see a topic some milliseconds after the broker has confirmed its creation.
VISIBLE_SECONDS_MAX = 10.0
LOOK_AGAIN_SECONDS = 0.02

FAILURE_CONFIG: Mapping[str, str] = {"cleanup.policy": "delete", "retention.ms": str(RETENTION_MS)}
"""Settings of retry and dead-letter topics. A retry waits for a backoff at most, but its worker may be down for longer."""

# The active segment is never compacted: without these settings a ledger would be one segment for weeks.
LEDGER_CONFIG: Mapping[str, str] = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20), "segment.ms": str(DAY_MS)}

_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_RETRY = re.compile(r"\.retry\.(0|[1-9][0-9]{0,3})")
_COPIED_CONFIG = "min.insync.replicas"
_SIZE_CONFIG = "max.message.bytes"
_SIZE_MAX = (1 << 31) - 1


class TopicNotCreated(TidelogError):
    """A topic of failures is missing and could not be created: nothing can be retried or dead-lettered until it exists."""


# -- names -------------------------------------------------------------------------------------------------------------------


def retry_topic(topic: str, group: str, level: int) -> str:
    """Where a message of ``topic`` that failed for ``group`` waits for its next attempt, by backoff level (from 0)."""
    if not 0 <= level < LEVELS_MAX:
        raise InvalidArgument(f"backoff levels are numbered from 0 to {LEVELS_MAX - 1}: not {level}")
    return _checked(topic, group, f".retry.{level}")


def dead_letter_topic(topic: str, group: str) -> str:
    """Where messages of ``topic`` end that ``group`` could not handle."""
    return _checked(topic, group, DEAD_LETTER_SUFFIX)


def ledger_topic(dead_letters: str) -> str:
    """Where the marks of replayed and discarded letters of the dead-letter topic are kept."""
    name = dead_letters + LEDGER_SUFFIX
    if len(name) > TOPIC_LENGTH_MAX:
        raise InvalidArgument(
            f"the ledger of {dead_letters} would have a name of {len(name)} characters, but Kafka allows {TOPIC_LENGTH_MAX}"
        )
    return name


def is_dead_letter_topic(name: str) -> bool:
    """Whether the name is that of a dead-letter topic. Its letters say which topic and group they belong to."""
    return name.endswith(DEAD_LETTER_SUFFIX) and name != DEAD_LETTER_SUFFIX


def retry_level(name: str, topic: str, group: str) -> int | None:
    """The backoff level of a retry topic of this topic and group; None if ``name`` is not one."""
    prefix = f"{topic}.{group}"
    found = _RETRY.fullmatch(name, len(prefix)) if name.startswith(prefix) else None
    return int(found[1]) if found and int(found[1]) < LEVELS_MAX else None


def source_topic(name: str, group: str) -> str | None:
    """The source of a retry or dead-letter topic of this group; None if ``name`` is neither."""
    for ending in (
        rf"\.{re.escape(group)}\.retry\.(?:0|[1-9][0-9]{{0,2}})",
        rf"\.{re.escape(group)}{re.escape(DEAD_LETTER_SUFFIX)}",
    ):
        found = re.search(f"(?:{ending})$", name)
        if found and found.start() > 0:
            return name[: found.start()]
    return None


def _checked(topic: str, group: str, suffix: str) -> str:
    name = f"{topic}.{group}{suffix}"
    if not topic or not _TOPIC.fullmatch(topic):
        raise InvalidArgument(f"{topic!r} is not the name of a topic: Kafka allows a-z, A-Z, 0-9, dot, underscore and hyphen")
    if not group or not _TOPIC.fullmatch(group):
        raise InvalidArgument(
            f"the group {group!r} cannot have retry and dead-letter topics: its name becomes part of theirs, where Kafka allows "
            "only a-z, A-Z, 0-9, dot, underscore and hyphen; give the group another name"
        )
    # The ledger of a dead-letter topic has the longest name of all: report a name that is too long before anything fails.
    length = len(name) + (len(LEDGER_SUFFIX) if suffix == DEAD_LETTER_SUFFIX else 0)
    if length > TOPIC_LENGTH_MAX:
        raise InvalidArgument(
            f"the topic {name} would be too long: Kafka allows {TOPIC_LENGTH_MAX} characters"
            f"{' with its ledger' if suffix == DEAD_LETTER_SUFFIX else ''}, so shorten the topic ({len(topic)}) or the "
            f"group ({len(group)}) by {length - TOPIC_LENGTH_MAX}"
        )
    return name


# -- creation ----------------------------------------------------------------------------------------------------------------


def ensure_failure_topics(admin: Admin, topic: str, group: str, *, levels: int) -> list[str]:
    """Create the retry topics of ``levels`` backoff levels and the dead-letter topic; returns their names in this order."""
    names = [*(retry_topic(topic, group, level) for level in range(levels)), dead_letter_topic(topic, group)]
    ensure_topics(admin, topic, dict.fromkeys(names, FAILURE_CONFIG))
    return names


def ensure_topics(
    admin: Admin,
    source: str,
    wanted: Mapping[str, Mapping[str, str]],
    *,
    partitions: int | None = None,
    partitions_min: int = 0,
) -> None:
    """Create the topics of ``wanted``, settings by name, with the source's partition count or with ``partitions``.

    ``partitions_min``: the source is known to have that many, even if the broker that answers does not know it yet. UnknownTopic
    if the source does not exist; TopicNotCreated if a topic cannot be created or grown.
    """
    known = admin.describe_cluster().topics
    if source not in known:
        raise UnknownTopic(f"there is no topic {source} at {admin.addresses}: create it first")
    count = max(len(known[source]), partitions_min) if partitions is None else partitions
    missing = [name for name in wanted if name not in known]
    short = [name for name in wanted if name in known and 0 < len(known[name]) < count] if partitions is None else []
    if missing:
        replicas = min((len(each.replicas) for each in known[source]), default=0) or -1
        inherited = _inherited_config(admin, source)
        _create(admin, [NewTopicSpec(name, count, replicas, {**inherited, **wanted[name]}) for name in missing])
    for name in short:
        try:
            admin.add_partitions(name, count, more_ok=True)
        except TidelogError as error:
            raise _not_created(error, "add partitions to") from error
    if missing or short:
        _wait_until_usable(admin, [*missing, *short], count)


def _inherited_config(admin: Admin, source: str) -> dict[str, str]:
    try:
        settings = admin.describe_configs("topic", source)
    except TidelogError:
        # A user who may write to a topic may not always see its settings; the cluster's defaults are the next best.
        return {}
    values = {name: settings[name].value for name in (_COPIED_CONFIG, _SIZE_CONFIG) if name in settings}
    config = {name: value for name, value in values.items() if value is not None}
    if _SIZE_CONFIG in config:
        config[_SIZE_CONFIG] = str(min(int(config[_SIZE_CONFIG]) + HEADERS_BYTES_MAX, _SIZE_MAX))
    return config


def _create(admin: Admin, topics: Sequence[NewTopicSpec]) -> None:
    for error in admin.create_topics(topics).values():
        # Another worker may have created it in the meantime.
        if error is not None and not isinstance(error, TopicExists):
            raise _not_created(error, "create") from error


def _wait_until_usable(admin: Admin, names: Sequence[str], partitions: int) -> None:
    """Wait until all partitions are visible and have leaders. In the end this returns anyway, because readers and writers wait
    for them as well."""
    deadline = time.monotonic() + VISIBLE_SECONDS_MAX
    while time.monotonic() < deadline:
        known: Mapping[str, Sequence[PartitionDescription]] = admin.describe_cluster().topics
        if all(len(known.get(name, ())) >= partitions for name in names):
            admin.list_offsets([TopicPartition(name, each.partition) for name in names for each in known[name]], "latest")
            return
        time.sleep(LOOK_AGAIN_SECONDS)


def _not_created(error: TidelogError, verb: str) -> TopicNotCreated:
    return TopicNotCreated(
        f"{error}. Ask the operators of the cluster for the permission to {verb} the topic, or have them do so; until then "
        "failed messages of its source cannot be set aside",
        code=error.code,
        retriable=error.retriable,
    )
