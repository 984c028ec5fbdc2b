"""The brokers of a cluster: its metadata, requests to any or to a given broker, and the connections to them.

Metadata comes from whichever broker answers first; known brokers are asked before the bootstrap servers. Connections are opened
on use and kept. A connection that failed is closed, so that the next request opens a new one. Requests to a broker share one
connection; ``borrow`` gives out others for exclusive use, because a fetch that waits must not hold up other requests.

Addresses and the coordinators of transactions are remembered until a request fails, so that a caller in a hurry pays no round
trip for what it knows (``refresh``, ``transaction_coordinators``).
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
    InvalidAnswer,
    SecurityRequired,
    UnknownPartition,
    check_code,
)
from tidelog.client.wire.retries import is_worth_another_broker, retried
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, Fields, encode_request
from tidelog.wire.protocol import ApiKey

NO_LEADER = -1
# The number of idle connections per broker that are kept for the next borrower: opening one takes a round trip or two.
IDLE_CONNECTIONS_MAX = 8
TRANSACTION_KEY_TYPE = 1
# The coordinators of so many transactional ids are remembered.
COORDINATORS_MAX = 10_000

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


class _Posted(NamedTuple):
    """A request that is under way."""

    node_id: int
    connection: BrokerConnection
    api: ApiKey
    version: int


class Brokers:
    def __init__(self, bootstrap_servers: str, client_id: str, connect_seconds_max: float, request_seconds_max: float) -> None:
        self._bootstrap = parse_addresses(bootstrap_servers)
        self._client_id = client_id
        self._connect_seconds_max = connect_seconds_max
        self.request_seconds_max = request_seconds_max
        self._addresses: dict[int, Address] = {}
        self._coordinators: dict[str, int] = {}
        self._is_outdated = True
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
        self._is_outdated = False
        return answer

    def refresh(self) -> None:
        """Look the brokers up, unless they are known and nothing has failed since."""
        if self._is_outdated:
            self.ask_metadata([])

    def transaction_coordinators(self, transactional_ids: Sequence[str]) -> dict[str, int]:
        """The node that coordinates each transactional id."""
        unknown = [each for each in transactional_ids if each not in self._coordinators]
        if unknown:
            fields = {"key_type": TRANSACTION_KEY_TYPE, "coordinator_keys": unknown}
            for each in self.request_any(ApiKey.FIND_COORDINATOR, fields).coordinators:
                check_code(each.error_code, f"no coordinator of transactional id {each.key}", each.error_message)
                self._coordinators[each.key] = each.node_id
            if missing := [each for each in unknown if each not in self._coordinators]:
                raise InvalidAnswer(f"the brokers do not answer for transactional id {missing[0]}")
        found = {each: self._coordinators[each] for each in transactional_ids}
        if any(node_id not in self._addresses for node_id in found.values()):
            self._is_outdated = True
        self.refresh()
        if len(self._coordinators) > COORDINATORS_MAX:
            self._coordinators = dict(found)
        return found

    def forget(self) -> None:
        """An answer said that what is remembered is outdated: a coordinator has moved, or a broker is gone."""
        self._coordinators.clear()
        self._is_outdated = True

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
        except BrokerUnreachable:
            self.forget()
            raise
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
            self.forget()
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

    def request_each(self, requests: Sequence[tuple[int, ApiKey, Fields]]) -> list[DecodedMessage | ClientError]:
        """The answers to requests that are under way at the same time, or why there is none. At most IDLE_CONNECTIONS_MAX of them
        go to brokers at a time, each over a connection of its own."""
        outcomes: list[DecodedMessage | ClientError] = []
        for begin in range(0, len(requests), IDLE_CONNECTIONS_MAX):
            sent = [self._post(*request) for request in requests[begin : begin + IDLE_CONNECTIONS_MAX]]
            outcomes += [each if isinstance(each, ClientError) else self._collect(each) for each in sent]
        return outcomes

    def _post(self, node_id: int, api: ApiKey, fields: Fields) -> _Posted | ClientError:
        connection = None
        try:
            connection = self.borrow(node_id)
            version = connection.version_of(api)
            connection.send(api, version, encode_request(api, version, fields), self.request_seconds_max)
        except ClientError as error:
            if connection is not None:
                self.discard(connection)
            return error
        return _Posted(node_id, connection, api, version)

    def _collect(self, posted: _Posted) -> DecodedMessage | ClientError:
        try:
            answer = posted.connection.receive_message(posted.api, posted.version, self.request_seconds_max)
        except ClientError as error:
            self.discard(posted.connection)
            # What broke this one has probably broken the others.
            self.close_idle()
            self.forget()
            return error
        self._is_served = True
        self.give_back(posted.node_id, posted.connection)
        return answer

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
