"""The topics that a worker reads: its sources, and for each the retry topics of its group, one per backoff level.

The topics are created when the worker starts, so that a missing permission is reported then and not at the first failure. Retry
topics of higher levels that exist already (the worker once had more retries) are read as well: nothing stays behind in them.

A source may gain partitions while the worker runs: its retry and dead-letter topics get them too, before anything goes there. A
failed message keeps its partition number, so a partition is held while the topics of failures are not known to have its number.
With ``order="key"`` it is also held while this member does not have the retry partitions of its number: the ranges of topics with
different counts do not coincide, and a key's order depends on both. Either way the topics are grown, and clients look them up
again: the group rebalances, and the partitions come together. A member that does not lead its group waits until the leader looks
at the topics again, which it does every ``topic.metadata.refresh.interval.ms``. A topic that cannot be grown stops the worker
with the error that says whom to ask for what, as at its start.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidelog.client.admin import Admin
from tidelog.client.errors import TidelogError
from tidelog.client.raw_consumer import RawConsumer
from tidelog.client.topic_partition import TopicPartition
from tidelog.deadletters.topics import (
    FAILURE_CONFIG,
    dead_letter_topic,
    ensure_failure_topics,
    ensure_topics,
    retry_level,
    retry_topic,
)
from tidelog.worker.options import WorkerOptions
from tidelog.worker.outbox import Outbox
from tidelog.worker.partitions import SOURCE_LEVEL, AssignedPartitions, PartitionFamily

log = logging.getLogger("tidelog.worker")

AGAIN_MS = 1_000
REQUEST_SECONDS_MAX = 30.0


class TopicRole(NamedTuple):
    """The role of a topic in the worker."""

    source: str
    level: int


def ensure_roles(admin: Admin, options: WorkerOptions) -> tuple[dict[str, TopicRole], dict[str, int]]:
    """The topics to read, by name, in a stable order; and the partition counts of all topics. UnknownTopic and TopicNotCreated
    say what is missing."""
    for source in options.topics:
        ensure_failure_topics(admin, source, options.group, levels=options.levels)
    counts = {name: len(partitions) for name, partitions in admin.describe_cluster().topics.items()}
    return roles_of(options.topics, options.group, options.levels, counts), counts


def roles_of(sources: Iterable[str], group: str, levels: int, existing: Iterable[str]) -> dict[str, TopicRole]:
    names = list(existing)
    roles: dict[str, TopicRole] = {}
    for source in sources:
        roles[source] = TopicRole(source, SOURCE_LEVEL)
        found = {level for name in names if (level := retry_level(name, source, group)) is not None}
        for level in sorted(found | set(range(levels))):
            roles[retry_topic(source, group, level)] = TopicRole(source, level)
    return roles


class PartitionGrowth:
    def __init__(
        self,
        options: WorkerOptions,
        admin: Admin,
        roles: Mapping[str, TopicRole],
        counts: Mapping[str, int],
        partitions: AssignedPartitions,
    ) -> None:
        """``counts`` has the partition count of each topic now."""
        self._keeps_key_order = options.order == "key"
        self._admin = admin
        self._partitions = partitions
        self._retry_topics: dict[str, list[str]] = {source: [] for source in options.topics}
        for name, role in roles.items():
            if role.level != SOURCE_LEVEL:
                self._retry_topics[role.source].append(name)
        self._failure_topics = {
            source: [*self._retry_topics[source], dead_letter_topic(source, options.group)] for source in options.topics
        }
        self._known = {source: min(counts.get(name, 0) for name in names) for source, names in self._failure_topics.items()}
        self._again_ms = 0
        self._is_needed = False

    def check_families(self) -> None:
        """Note for each family whether its letters have a partition to go to."""
        self._is_needed = False
        for family in self._partitions.families():
            family.set_complete(family.partition < self._known[family.source] and self._has_retry_partitions(family))
            if not family.is_complete:
                self._is_needed = True

    def step(self, consumer: RawConsumer, outbox: Outbox, now_ms: int) -> None:
        """Create missing partitions, if there are any."""
        if not self._is_needed or now_ms < self._again_ms:
            return
        self._again_ms = now_ms + AGAIN_MS
        wanted: dict[str, int] = {}
        for family in self._partitions.families():
            if not family.is_complete:
                wanted[family.source] = max(wanted.get(family.source, 0), family.partition + 1)
        try:
            for source, count in wanted.items():
                self._grow(source, count, outbox)
            consumer.refresh_topics(REQUEST_SECONDS_MAX)
        except TidelogError as error:
            if not error.retriable:
                raise
            log.warning("the topics of failures could not be grown yet: %s", error)
        self.check_families()

    def _grow(self, source: str, count: int, outbox: Outbox) -> None:
        names = self._failure_topics[source]
        log.info("%s has at least %d partitions: growing its retry and dead-letter topics", source, count)
        ensure_topics(self._admin, source, dict.fromkeys(names, FAILURE_CONFIG), partitions_min=count)
        self._known[source] = min(outbox.partitions(name) for name in names)

    def _has_retry_partitions(self, family: PartitionFamily) -> bool:
        """Whether this member has what the order of keys needs. Without the source partition that is nothing."""
        number = family.partition
        if not self._keeps_key_order or self._partitions.get(TopicPartition(family.source, number)) is None:
            return True
        names = self._retry_topics[family.source]
        return all(self._partitions.get(TopicPartition(name, number)) is not None for name in names)
