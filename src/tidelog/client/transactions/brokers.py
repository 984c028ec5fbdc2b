"""The brokers of a cluster: which there are, who leads what, and a connection to each that was asked.

What the cluster looks like is asked of whichever broker answers first, those that are known before the bootstrap servers.
Connections are opened on use and kept; one that failed is forgotten, so that the next request opens a new one.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from tidelog.client.transactions.addresses import Address, parse_addresses
from tidelog.client.transactions.connection import Connection
from tidelog.client.transactions.errors import BrokerError, BrokerUnreachable, ClientError, UnknownPartition
from tidelog.client.transactions.retries import is_worth_another_broker, retried
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, Fields
from tidelog.wire.protocol import ApiKey

TopicPartition = tuple[str, int]
NO_LEADER = -1
_Result = TypeVar("_Result")


class PartitionPlace(NamedTuple):
    leader: int
    replicas: tuple[int, ...]


class ClusterMetadata(NamedTuple):
    brokers: dict[int, Address]
    partitions: dict[TopicPartition, PartitionPlace]
    """In the order of topic and index."""

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        found = [place for place in self.partitions if place[0] == topic]
        if not found:
            raise UnknownPartition(topic)
        return found


class Brokers:
    def __init__(self, bootstrap_servers: str, client_id: str, connect_seconds_max: float, request_seconds_max: float) -> None:
        self._bootstrap = parse_addresses(bootstrap_servers)
        self._client_id = client_id
        self._connect_seconds_max = connect_seconds_max
        self.request_seconds_max = request_seconds_max
        self._addresses: dict[int, Address] = {}
        self._connections: dict[Address, Connection] = {}
        self._has_answered = False

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def metadata(self) -> ClusterMetadata:
        """Of all topics: asking for one by name would create it where brokers do that."""
        answer = self.ask_metadata(None)
        places = {
            (topic.name, partition.partition_index): PartitionPlace(partition.leader_id, partition.replica_nodes)
            for topic in answer.topics
            if topic.error_code == ErrorCode.NONE
            for partition in topic.partitions
        }
        return ClusterMetadata(self._addresses, dict(sorted(places.items())))

    def ask_metadata(self, topics: Sequence[str] | None) -> DecodedMessage:
        """Of these topics, or of all; with the brokers as they are now. No topic is created by it, from version 4 on."""
        wanted = None if topics is None else [{"name": topic} for topic in topics]
        answer = self.request_any(ApiKey.METADATA, {"topics": wanted, "allow_auto_topic_creation": False})
        self._addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        return answer

    def patiently(
        self, attempt: Callable[[], _Result], may_retry: Callable[[ClientError], bool] = is_worth_another_broker
    ) -> _Result:
        """For what only asks: tried again until the time-out, where that helps. When nobody answers the first call of all, that
        is said at once, for the address is wrong most likely; later ones wait, as for any broker that restarts."""
        if not self._has_answered:
            retried(partial(self.ask_metadata, []), self.request_seconds_max)
            self._has_answered = True
        return retried(attempt, self.request_seconds_max, may_retry)

    def connect(self, node_id: int) -> Connection:
        """A connection of the caller's own, beside the one that requests share."""
        return self._connect(self._address(node_id))

    def request(self, node_id: int, api: ApiKey, fields: Fields, version_min: int = 0) -> DecodedMessage:
        return self._request(self._address(node_id), api, fields, version_min)

    def request_any(self, api: ApiKey, fields: Fields) -> DecodedMessage:
        """Of whichever broker answers first."""
        problems: list[BrokerUnreachable] = []
        for address in dict.fromkeys([*self._addresses.values(), *self._bootstrap]):
            try:
                return self._request(address, api, fields)
            except BrokerUnreachable as error:
                problems.append(error)
        raise BrokerUnreachable("; ".join(dict.fromkeys(str(problem) for problem in problems)))

    def _address(self, node_id: int) -> Address:
        address = self._addresses.get(node_id)
        if address is None:
            raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {node_id} is not among {sorted(self._addresses)}")
        return address

    def _connect(self, address: Address) -> Connection:
        return Connection(*address, self._client_id, self._connect_seconds_max, self.request_seconds_max)

    def _request(self, address: Address, api: ApiKey, fields: Fields, version_min: int = 0) -> DecodedMessage:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = self._connect(address)
        try:
            return connection.request(api, fields, self.request_seconds_max, version_min)
        except ClientError:
            connection.close()
            del self._connections[address]
            raise


def by_topic(partitions: Sequence[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics
