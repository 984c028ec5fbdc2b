"""Looks up topics, offsets and leaders over our own connections.

Leaders are remembered until an error says otherwise (``forget``), because the metadata of a topic with a thousand partitions
costs more than a small read of it. ``topics`` always asks the cluster, and what it learns is remembered as well. Lookups are
repeated until the time-out, each time with fresh metadata, because brokers restart and leaders move.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from tidelog.client.fetch.settings import OwnSettings
from tidelog.client.fetch.types import Isolation, OffsetAt, TopicInfo
from tidelog.client.topic_partition import TopicPartition
from tidelog.client.wire.brokers import NO_LEADER, Brokers, by_topic
from tidelog.client.wire.errors import BrokerError, ClientError, UnknownPartition, check_code
from tidelog.client.wire.retries import is_worth_another_attempt, retried_while_unknown
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.primitives import ZERO_UUID
from tidelog.wire.protocol import ApiKey

LATEST, EARLIEST = -1, -2
ISOLATION_LEVELS: dict[Isolation, int] = {"read_uncommitted": 0, "read_committed": 1}
CONSUMER_REPLICA_ID = -1

_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_Result = TypeVar("_Result")


class KnownTopic(NamedTuple):
    topic_id: bytes
    leaders: Mapping[int, int]
    """By partition: the node that leads it, or NO_LEADER."""


class PartitionLookup:
    """Raises the errors of the connection (``client.wire.errors``)."""

    def __init__(self, bootstrap_servers: str, settings: OwnSettings, isolation: Isolation) -> None:
        self.brokers = Brokers(
            bootstrap_servers, settings.client_id, settings.connect_timeout_ms / 1000, settings.timeout_ms / 1000
        )
        self.isolation_level = ISOLATION_LEVELS[isolation]
        self._known: dict[str, KnownTopic] = {}

    def close(self) -> None:
        """Close the connections. Reads that are still under way end with an error."""
        self.brokers.close()

    def topics(self, wanted: Sequence[str] | re.Pattern[str]) -> dict[str, TopicInfo]:
        if isinstance(wanted, re.Pattern):
            found = self._patiently(partial(self._described, None))
            return {name: info for name, info in found.items() if wanted.fullmatch(name)}
        return self._patiently(partial(self._described, list(dict.fromkeys(wanted))))

    def _described(self, names: Sequence[str] | None) -> dict[str, TopicInfo]:
        answer = self.brokers.ask_metadata(names)
        found = {}
        for topic in answer.topics:
            if names is None and (topic.is_internal or topic.error_code):
                continue
            known = self._remember(topic)
            found[topic.name] = TopicInfo(known.topic_id, len(known.leaders))
        return dict(sorted(found.items()))

    def offsets(self, partitions: Sequence[TopicPartition], at: OffsetAt) -> dict[TopicPartition, int]:
        """A partition that has no message of that time or later is left out."""
        timestamp = {"earliest": EARLIEST, "latest": LATEST}[at] if isinstance(at, str) else at
        wanted = list(dict.fromkeys(partitions))
        found: dict[TopicPartition, int] = {}
        if wanted:
            self._patiently(partial(self._ask_offsets, wanted, timestamp, found))
        return {partition: found[partition] for partition in wanted if found[partition] >= 0}

    def _ask_offsets(self, wanted: Sequence[TopicPartition], timestamp: int, found: dict[TopicPartition, int]) -> None:
        """Ask once for those that have not answered yet. Raises an error that the next attempt may not meet."""
        left = [partition for partition in wanted if partition not in found]
        problem: ClientError | None = None
        for node_id, theirs in self._by_leader(left).items():
            by_name = by_topic(theirs)
            topics = [
                {"name": name, "partitions": [{"partition_index": index, "timestamp": timestamp} for index in indexes]}
                for name, indexes in by_name.items()
            ]
            fields = {"replica_id": CONSUMER_REPLICA_ID, "isolation_level": self.isolation_level, "topics": topics}
            try:
                answer = self.brokers.request(node_id, ApiKey.LIST_OFFSETS, fields)
            except ClientError:
                for name in by_name:
                    self.forget(name)
                raise
            for topic in answer.topics:
                for each in topic.partitions:
                    if each.error_code:
                        problem = BrokerError(each.error_code, f"{topic.name}[{each.partition_index}]")
                        self.forget(topic.name)
                    else:
                        found[TopicPartition(topic.name, each.partition_index)] = each.offset
        if problem is not None:
            raise problem

    def known_topic(self, name: str) -> KnownTopic:
        """What is remembered of the topic, or what one broker says now."""
        self._learn([name])
        return self._known[name]

    def leader(self, partition: TopicPartition) -> int:
        """Raises an error, and forgets the topic, if what is remembered has no leader of the partition. It may have been added
        since, or its leader was being elected: the next attempt asks the cluster."""
        node_id = self.known_topic(partition.topic).leaders.get(partition.partition)
        if node_id is not None and node_id != NO_LEADER:
            return node_id
        self.forget(partition.topic)
        if node_id is None:
            raise UnknownPartition(*partition)
        raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition.topic}[{partition.partition}]")

    def _learn(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in self._known]
        if unknown:
            for topic in self.brokers.ask_metadata(unknown).topics:
                self._remember(topic)
            if missing := [name for name in unknown if name not in self._known]:
                raise UnknownPartition(missing[0])

    def remembers(self, name: str, topic_id: bytes) -> bool:
        """Whether the leaders of the topic with this very id are remembered."""
        return name in self._known and self._known[name].topic_id == topic_id != ZERO_UUID

    def forget(self, topic: str) -> None:
        """An error said that what is remembered of the topic is outdated."""
        self._known.pop(topic, None)

    def _remember(self, topic: DecodedMessage) -> KnownTopic:
        self.forget(topic.name)
        if topic.error_code in _UNKNOWN:
            raise UnknownPartition(topic.name)
        if topic.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
            check_code(topic.error_code, topic.name)
        leaders = {each.partition_index: each.leader_id for each in topic.partitions}
        self._known[topic.name] = KnownTopic(topic.topic_id, leaders)
        return self._known[topic.name]

    def _by_leader(self, partitions: Sequence[TopicPartition]) -> dict[int, list[TopicPartition]]:
        self._learn(sorted({partition.topic for partition in partitions}))
        found: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            found.setdefault(self.leader(partition), []).append(partition)
        return found

    def _patiently(self, attempt: Callable[[], _Result]) -> _Result:
        return self.brokers.patiently(retried_while_unknown(attempt), is_worth_another_attempt)
