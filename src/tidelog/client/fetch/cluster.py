"""Questions about topics and offsets, over our own connections.

They are asked again until the time-out, with the cluster looked at anew: a broker may restart, and leaders move.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from tidelog.client.fetch.settings import OwnSettings
from tidelog.client.fetch.types import Isolation, OffsetAt, TopicInfo
from tidelog.client.topic_partition import Partition
from tidelog.client.transactions.brokers import NO_LEADER, Brokers, by_topic
from tidelog.client.transactions.connection import Connection
from tidelog.client.transactions.errors import BrokerError, ClientError, RequestTimedOut, UnknownPartition
from tidelog.client.transactions.retries import is_worth_another_broker, retried
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

LATEST, EARLIEST = -1, -2
ISOLATION_LEVELS: dict[Isolation, int] = {"read_uncommitted": 0, "read_committed": 1}
# A topic that was just created is not known to every broker at once; one that stays unknown for this long is not there.
UNKNOWN_TOPIC_SECONDS = 2.0
# Kept for the next reads: opening one takes a round trip or two.
IDLE_CONNECTIONS_MAX = 4

_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_Result = TypeVar("_Result")


class PartitionLeader(NamedTuple):
    topic_id: bytes
    node_id: int


class Cluster:
    def __init__(self, bootstrap_servers: str, settings: OwnSettings, isolation: Isolation) -> None:
        self._brokers = Brokers(
            bootstrap_servers, settings.client_id, settings.connect_timeout_ms / 1000, settings.timeout_ms / 1000
        )
        self._isolation_level = ISOLATION_LEVELS[isolation]
        self._idle: dict[int, list[Connection]] = {}
        self._taken: list[Connection] = []

    def close(self) -> None:
        """Reads that are still under way end with an error."""
        self._brokers.close()
        self.forget_idle()
        for connection in self._taken:
            connection.close()
        self._taken.clear()

    # -- topics ---------------------------------------------------------------------------------------------------------------

    def topics(self, wanted: Sequence[str] | re.Pattern[str]) -> dict[str, TopicInfo]:
        if isinstance(wanted, re.Pattern):
            found = self._patiently(partial(self._described, None))
            return {name: info for name, info in found.items() if wanted.fullmatch(name)}
        return self._patiently(partial(self._described, list(dict.fromkeys(wanted))))

    def _described(self, names: Sequence[str] | None) -> dict[str, TopicInfo]:
        answer = self._brokers.ask_metadata(names)
        found = {}
        for topic in answer.topics:
            if names is None and (topic.is_internal or topic.error_code):
                continue
            _check_topic(topic)
            found[topic.name] = TopicInfo(topic.topic_id, len(topic.partitions))
        return dict(sorted(found.items()))

    # -- offsets --------------------------------------------------------------------------------------------------------------

    def offsets(
        self, partitions: Sequence[Partition], at: OffsetAt, *, isolation_level: int | None = None
    ) -> dict[Partition, int]:
        """A partition that has no message of that time or later is left out."""
        level = self._isolation_level if isolation_level is None else isolation_level
        timestamp = {"earliest": EARLIEST, "latest": LATEST}[at] if isinstance(at, str) else at
        wanted = list(dict.fromkeys(partitions))
        found: dict[Partition, int] = {}
        if wanted:
            self._patiently(partial(self._ask_offsets, wanted, timestamp, level, found))
        return {partition: found[partition] for partition in wanted if found[partition] >= 0}

    def _ask_offsets(self, wanted: Sequence[Partition], timestamp: int, level: int, found: dict[Partition, int]) -> None:
        """One round over those that have not answered; raises what may be different in the next one."""
        left = [partition for partition in wanted if partition not in found]
        answer = self._brokers.ask_metadata(sorted({partition.topic for partition in left}))
        problem: ClientError | None = None
        for node_id, theirs in _by_leader(left, answer).items():
            topics = [
                {"name": name, "partitions": [{"partition_index": index, "timestamp": timestamp} for index in indexes]}
                for name, indexes in by_topic(theirs).items()
            ]
            listed = self._brokers.request(
                node_id, ApiKey.LIST_OFFSETS, {"replica_id": -1, "isolation_level": level, "topics": topics}
            )
            for topic in listed.topics:
                for each in topic.partitions:
                    if each.error_code:
                        problem = BrokerError(each.error_code, f"{topic.name}[{each.partition_index}]")
                    else:
                        found[Partition(topic.name, each.partition_index)] = each.offset
        if problem is not None:
            raise problem

    # -- leaders --------------------------------------------------------------------------------------------------------------

    def leader(self, topic: str, partition: int) -> PartitionLeader:
        """As one broker sees it now."""
        answer = self._brokers.ask_metadata([topic])
        for each in answer.topics:
            if each.name == topic:
                _check_topic(each)
                for place in each.partitions:
                    if place.partition_index == partition:
                        if place.leader_id == NO_LEADER:
                            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}[{partition}]")
                        return PartitionLeader(each.topic_id, place.leader_id)
        raise UnknownPartition(topic, partition)

    def take_connection(self, node_id: int) -> Connection:
        """For the caller alone, who gives it back, or discards it."""
        idle = self._idle.get(node_id)
        connection = idle.pop() if idle else self._brokers.connect(node_id)
        self._taken.append(connection)
        return connection

    def discard(self, connection: Connection) -> None:
        connection.close()
        if connection in self._taken:
            self._taken.remove(connection)

    def give_back(self, node_id: int, connection: Connection) -> None:
        if connection not in self._taken:
            return  # This cluster was closed meanwhile, and the connection with it.
        self._taken.remove(connection)
        idle = self._idle.setdefault(node_id, [])
        if len(idle) < IDLE_CONNECTIONS_MAX:
            idle.append(connection)
        else:
            connection.close()

    def forget_idle(self) -> None:
        """After a failure: whatever broke one connection has broken those beside it."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    # -- patience -------------------------------------------------------------------------------------------------------------

    def _patiently(self, attempt: Callable[[], _Result]) -> _Result:
        known = partial(retried, attempt, UNKNOWN_TOPIC_SECONDS, is_unknown)
        return self._brokers.patiently(known, may_pass)


def _by_leader(partitions: Sequence[Partition], answer: DecodedMessage) -> dict[int, list[Partition]]:
    leaders: dict[Partition, int] = {}
    for topic in answer.topics:
        _check_topic(topic)
        leaders.update({Partition(topic.name, each.partition_index): each.leader_id for each in topic.partitions})
    found: dict[int, list[Partition]] = {}
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
    if topic.error_code and topic.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
        raise BrokerError(topic.error_code, topic.name)


def is_unknown(error: ClientError) -> bool:
    return isinstance(error, UnknownPartition)


def may_pass(error: ClientError) -> bool:
    return is_worth_another_broker(error) or isinstance(error, RequestTimedOut)
