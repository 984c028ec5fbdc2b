"""Looks up topics, offsets and leaders over our own connections.

Lookups are repeated until the time-out, each time with fresh metadata, because brokers restart and leaders move.
"""

import re
from collections.abc import Callable, Sequence
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
from tidelog.wire.protocol import ApiKey

LATEST, EARLIEST = -1, -2
ISOLATION_LEVELS: dict[Isolation, int] = {"read_uncommitted": 0, "read_committed": 1}
CONSUMER_REPLICA_ID = -1

_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_Result = TypeVar("_Result")


class PartitionLeader(NamedTuple):
    topic_id: bytes
    node_id: int


class PartitionLookup:
    """Raises the errors of the connection (``client.wire.errors``)."""

    def __init__(self, bootstrap_servers: str, settings: OwnSettings, isolation: Isolation) -> None:
        self.brokers = Brokers(
            bootstrap_servers, settings.client_id, settings.connect_timeout_ms / 1000, settings.timeout_ms / 1000
        )
        self.isolation_level = ISOLATION_LEVELS[isolation]

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
            _check_topic(topic)
            found[topic.name] = TopicInfo(topic.topic_id, len(topic.partitions))
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
        answer = self.brokers.ask_metadata(sorted({partition.topic for partition in left}))
        problem: ClientError | None = None
        for node_id, theirs in _by_leader(left, answer).items():
            topics = [
                {"name": name, "partitions": [{"partition_index": index, "timestamp": timestamp} for index in indexes]}
                for name, indexes in by_topic(theirs).items()
            ]
            fields = {"replica_id": CONSUMER_REPLICA_ID, "isolation_level": self.isolation_level, "topics": topics}
            for topic in self.brokers.request(node_id, ApiKey.LIST_OFFSETS, fields).topics:
                for each in topic.partitions:
                    if each.error_code:
                        problem = BrokerError(each.error_code, f"{topic.name}[{each.partition_index}]")
                    else:
                        found[TopicPartition(topic.name, each.partition_index)] = each.offset
        if problem is not None:
            raise problem

    def leader(self, topic: str, partition: int) -> PartitionLeader:
        """The leader as one broker sees it now."""
        for each in self.brokers.ask_metadata([topic]).topics:
            if each.name == topic:
                _check_topic(each)
                for place in each.partitions:
                    if place.partition_index == partition:
                        if place.leader_id == NO_LEADER:
                            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}[{partition}]")
                        return PartitionLeader(each.topic_id, place.leader_id)
        raise UnknownPartition(topic, partition)

    def _patiently(self, attempt: Callable[[], _Result]) -> _Result:
        return self.brokers.patiently(retried_while_unknown(attempt), is_worth_another_attempt)


def _by_leader(partitions: Sequence[TopicPartition], answer: DecodedMessage) -> dict[int, list[TopicPartition]]:
    leaders: dict[TopicPartition, int] = {}
    for topic in answer.topics:
        _check_topic(topic)
        leaders.update({TopicPartition(topic.name, each.partition_index): each.leader_id for each in topic.partitions})
    found: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        if partition not in leaders:
            raise UnknownPartition(*partition)
        if leaders[partition] == NO_LEADER:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition.topic}[{partition.partition}]")
        found.setdefault(leaders[partition], []).append(partition)
    return found


def _check_topic(topic: DecodedMessage) -> None:
    if topic.error_code in _UNKNOWN:
        raise UnknownPartition(topic.name)
    if topic.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
        check_code(topic.error_code, topic.name)
