"""The brokers of a cluster: its metadata, requests to any or to a given broker, and the connections to them.

Metadata comes from whichever broker answers first; known brokers are asked before the bootstrap servers. Connections are opened
on use and kept. A connection that failed is closed, so that the next request opens a new one. Requests to a broker share one
connection; ``borrow`` gives out others for exclusive use, because a fetch that waits must not hold up other requests.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from tidelog.client.wire.connection import Address, BrokerConnection, parse_addresses
from tidelog.client.wire.errors import (
    BrokerError,
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    SecurityRequired,
    UnknownPartition,
)
from tidelog.client.wire.retries import is_worth_another_broker, retried
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, Fields
from tidelog.wire.protocol import ApiKey

NO_LEADER = -1
# The number of idle connections per broker that are kept for the next borrower: opening one takes a round trip or two.
IDLE_CONNECTIONS_MAX = 4

_Result = TypeVar("_Result")


class PartitionReplicas(NamedTuple):
    leader: int
    replicas: tuple[int, ...]


class ClusterMetadata(NamedTuple):
    brokers: dict[int, Address]
    partitions: dict[tuple[str, int], PartitionReplicas]
    """Sorted by topic and partition."""

    def partitions_of(self, topic: str) -> list[tuple[str, int]]:
        found = [partition for partition in self.partitions if partition[0] == topic]
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
        self._connections: dict[Address, BrokerConnection] = {}
        self._idle: dict[int, list[BrokerConnection]] = {}
        self._borrowed: list[BrokerConnection] = []
        self._has_answered = False
        self._speaks_plaintext = False
        # Whether anything but the greeting was answered, which a listener that requires SASL would not do.
        self._is_served = False

    def close(self) -> None:
        """End all connections, also those that are borrowed: reads that are under way raise an error."""
        for connection in (*self._connections.values(), *self._borrowed):
            connection.close()
        self._connections.clear()
        self._borrowed.clear()
        self.close_idle()

    def expect_answers(self) -> None:
        """Other connections of this process have been served by the cluster, so a broker that is not there restarts, and one that
        ends a connection at its first words stops: neither says anything about the address or about security."""
        self._has_answered = self._speaks_plaintext = self._is_served = True

    def metadata(self) -> ClusterMetadata:
        """The brokers and the partitions of all topics."""
        answer = self.ask_metadata(None)
        partitions = {
            (topic.name, partition.partition_index): PartitionReplicas(partition.leader_id, partition.replica_nodes)
            for topic in answer.topics
            if topic.error_code == ErrorCode.NONE
            for partition in topic.partitions
        }
        return ClusterMetadata(self._addresses, dict(sorted(partitions.items())))

    def ask_metadata(self, topics: Sequence[str] | None) -> DecodedMessage:
        """Metadata of these topics, or of all (None), and of the brokers, which are remembered. Never creates a topic."""
        wanted = None if topics is None else [{"name": topic} for topic in topics]
        answer = self.request_any(ApiKey.METADATA, {"topics": wanted, "allow_auto_topic_creation": False})
        self._addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        return answer

    def patiently(
        self, attempt: Callable[[], _Result], may_retry: Callable[[ClientError], bool] = is_worth_another_broker
    ) -> _Result:
        """Repeat a call that changes nothing until the time-out, where that can help.

        If nothing answers the very first call, that error is raised at once, because the address is probably wrong. Later calls
        wait, as for any broker that restarts.
        """
        if not self._has_answered:
            retried(partial(self.ask_metadata, []), self.request_seconds_max)
            self._has_answered = True
        return retried(attempt, self.request_seconds_max, may_retry)

    # -- requests -------------------------------------------------------------------------------------------------------------

    def request(self, node_id: int, api: ApiKey, fields: Fields, version_min: int = 0) -> DecodedMessage:
        return self._request(self._address(node_id), api, fields, version_min)

    def request_any(self, api: ApiKey, fields: Fields) -> DecodedMessage:
        """The response of whichever broker answers first."""
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

    def _connect(self, address: Address) -> BrokerConnection:
        try:
            connection = BrokerConnection(*address, self._client_id, self._connect_seconds_max, self.request_seconds_max)
        except SecurityRequired as error:
            if not self._speaks_plaintext:
                raise
            # A broker that ends the connection at the first words may require security. In a cluster that has answered in
            # plaintext it is one that stops, and comes back.
            raise ConnectionLost(f"{address[0]}:{address[1]} ended the connection at its first words") from error
        self._speaks_plaintext = True
        if self._is_served:
            connection.expect_answers()
        return connection

    def _request(self, address: Address, api: ApiKey, fields: Fields, version_min: int = 0) -> DecodedMessage:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = self._connect(address)
        try:
            response = connection.request(api, fields, self.request_seconds_max, version_min)
        except ClientError:
            connection.close()
            del self._connections[address]
            raise
        self._is_served = True
        return response

    # -- connections for exclusive use ----------------------------------------------------------------------------------------

    def borrow(self, node_id: int) -> BrokerConnection:
        """Borrow a connection for exclusive use. The caller gives it back or discards it."""
        idle = self._idle.get(node_id)
        connection = idle.pop() if idle else self._connect(self._address(node_id))
        self._borrowed.append(connection)
        return connection

    def give_back(self, node_id: int, connection: BrokerConnection) -> None:
        if connection not in self._borrowed:
            return  # ``close`` was called in the meantime, and has closed this connection too.
        self._borrowed.remove(connection)
        idle = self._idle.setdefault(node_id, [])
        if len(idle) < IDLE_CONNECTIONS_MAX:
            idle.append(connection)
        else:
            connection.close()

    def discard(self, connection: BrokerConnection) -> None:
        connection.close()
        if connection in self._borrowed:
            self._borrowed.remove(connection)

    def close_idle(self) -> None:
        """Close the idle connections after a failure: whatever broke one connection has probably broken these as well."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()


def by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics
