"""A source gains partitions while the worker runs: its retry and dead-letter topics get them too, before anything goes there.

What fails keeps its partition number, so a partition is held while the topics of failures are not known to have its number. With
``order="key"`` it is also held while the retry partitions of its number are not in this member: ranges of topics whose counts
differ do not meet, and a key's order depends on both. Either way the topics are made to grow, and clients are made to see it: the
group rebalances, and everything meets. A member that does not lead its group waits until the leader looks at the topics again,
which it does every ``topic.metadata.refresh.interval.ms``.

What may not grow stops the worker with the error that says what to ask for, as at its start.
"""

import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException

from tidelog.client.admin import Admin
from tidelog.client.errors import TidelogError, from_kafka_error
from tidelog.deadletters.topics import FAILURE_CONFIG, dead_letter_topic, ensure_topics
from tidelog.worker.assigned import SOURCE_LEVEL, Home
from tidelog.worker.assignment import Assignment
from tidelog.worker.options import Options
from tidelog.worker.outbox import Outbox
from tidelog.worker.retry_levels import Role

log = logging.getLogger("tidelog.worker")

AGAIN_MS = 1_000
REQUEST_SECONDS_MAX = 30.0


class PartitionGrowth:
    def __init__(
        self, options: Options, admin: Admin, roles: Mapping[str, Role], counts: Mapping[str, int], assignment: Assignment
    ) -> None:
        """``counts``: how many partitions each topic has now."""
        self._addresses = options.addresses
        self._must_meet = options.order == "key"
        self._admin = admin
        self._assignment = assignment
        self._retries: dict[str, list[str]] = {source: [] for source in options.topics}
        for name, role in roles.items():
            if role.level != SOURCE_LEVEL:
                self._retries[role.source].append(name)
        self._dead = {source: dead_letter_topic(source, options.group) for source in options.topics}
        self._known = {
            source: min(counts.get(name, 0) for name in (*self._retries[source], self._dead[source])) for source in options.topics
        }
        self._again_ms = 0
        self._is_needed = False

    def look(self) -> None:
        """At what was assigned: is there a place for the letters of each partition?"""
        self._is_needed = False
        for home in self._assignment.homes():
            home.is_whole = home.partition < self._known[home.source] and self._meets(home)
            if not home.is_whole:
                self._is_needed = True

    def step(self, consumer: Any, outbox: Outbox, now_ms: int) -> None:
        """Make what is missing, when something is."""
        if not self._is_needed or now_ms < self._again_ms:
            return
        self._again_ms = now_ms + AGAIN_MS
        wanted: dict[str, int] = {}
        for home in self._assignment.homes():
            if not home.is_whole:
                wanted[home.source] = max(wanted.get(home.source, 0), home.partition + 1)
        try:
            for source, count in wanted.items():
                self._grow(source, count, outbox)
            # The consumer joins its group again when it sees that one of its topics has grown.
            consumer.list_topics(timeout=REQUEST_SECONDS_MAX)
        except KafkaException as error:
            self._wait_or_raise(from_kafka_error(error.args[0], "look up the topics", self._addresses))
        except TidelogError as error:
            self._wait_or_raise(error)
        self.look()

    def _grow(self, source: str, count: int, outbox: Outbox) -> None:
        names = [*self._retries[source], self._dead[source]]
        log.info("%s has at least %d partitions: so will its retry and dead-letter topics", source, count)
        ensure_topics(self._admin, source, dict.fromkeys(names, FAILURE_CONFIG), partitions_min=count)
        self._known[source] = min(outbox.partitions(name) for name in names)

    def _meets(self, home: Home) -> bool:
        """Without the source there is nothing that its retries must meet."""
        if not self._must_meet or self._assignment.get(home.source, home.partition) is None:
            return True
        return all(self._assignment.get(name, home.partition) is not None for name in self._retries[home.source])

    @staticmethod
    def _wait_or_raise(error: TidelogError) -> None:
        if not error.retriable:
            raise error
        log.warning("the topics of failures do not grow yet: %s", error)
