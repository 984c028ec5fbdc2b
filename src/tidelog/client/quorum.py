"""The metadata quorum, which librdkafka knows nothing about: who leads it, who votes, who follows, and changes of the voters.

The calls go through ``client.wire``, in plaintext only, on Tidelog and on any Kafka since 3.3 (changes: since 3.9). Any broker or
controller may be asked to describe the quorum; one that cannot tell names the active controller, or else the next is asked. The
leader makes a change, and brokers pass it on; if one does not, the leader's own listener is asked. A change is requested once:
after an error it may or may not have been made, and ``describe`` tells.
"""

from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from tidelog.client.wire.brokers import Brokers
from tidelog.client.wire.connection import parse_addresses
from tidelog.client.wire.errors import BrokerError, ClientError, InvalidAnswer, UnsupportedByBroker, check_code
from tidelog.client.wire.retries import is_worth_another_attempt, retried
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, Fields
from tidelog.wire.protocol import ApiKey

CONNECT_TIMEOUT_MS = 3_000
REQUEST_TIMEOUT_MS = 30_000
METADATA_TOPIC = "__cluster_metadata"
NO_DIRECTORY = bytes(16)
NOBODY = -1
# A voter that runs fetches from the leader at least twice a second.
SILENT_MS_MIN = 3_000
KRAFT_VERSION = "kraft.version"
KRAFT_VERSION_LEVEL = 1
# Of UpdateFeatures: a level may only be raised.
_UPGRADE = 1


class QuorumListener(NamedTuple):
    name: str
    host: str
    port: int


class QuorumReplica(NamedTuple):
    node_id: int
    directory_id: bytes
    """Zeros if the replica is known by its node id alone (kraft.version 0)."""
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int
    """Wall-clock times; -1 if they are not known."""


class QuorumDescription(NamedTuple):
    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    listeners: dict[int, tuple[QuorumListener, ...]]
    """Where the controllers listen, as far as the leader knows."""

    def lag(self, replica: QuorumReplica) -> int:
        leader = next((voter for voter in self.voters if voter.node_id == self.leader_id), None)
        return 0 if leader is None else max(0, leader.log_end_offset - replica.log_end_offset)

    def silent_voters(self) -> set[int]:
        """The voters that the leader has not heard from for some seconds, so that they cannot help to decide."""
        now_ms = max((replica.last_fetch_ms for replica in (*self.voters, *self.observers)), default=-1)
        heard_of = {voter.node_id for voter in self.voters if 0 <= now_ms - voter.last_fetch_ms < SILENT_MS_MIN}
        return {voter.node_id for voter in self.voters} - heard_of - {self.leader_id}

    def has_majority_without(self, node_id: int) -> bool:
        """Whether the voters that are heard of decide without this node. A node that is no voter takes nothing from them."""
        voters = {voter.node_id for voter in self.voters}
        return len(voters - self.silent_voters() - {node_id}) > len(voters) // 2


class QuorumAdmin:
    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "tidelog-quorum",
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        """Connects on the first call. The servers are brokers, or controllers at their own listeners."""
        self._connect = partial(
            Brokers,
            client_id=client_id,
            connect_seconds_max=connect_timeout_ms / 1000,
            request_seconds_max=request_timeout_ms / 1000,
        )
        self._request_timeout_ms = request_timeout_ms
        self._servers = [self._connect(_text(*address)) for address in parse_addresses(bootstrap_servers)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for server in self._servers:
            server.close()

    def describe(self) -> QuorumDescription:
        """The quorum as its leader sees it. Repeated until the time-out while there is no leader."""
        return retried(self._describe_once, self._request_timeout_ms / 1000, is_worth_another_attempt)

    def upgrade(self) -> None:
        """Raise ``kraft.version`` to 1, so that the voters stand in the log and can change."""
        updates = [{"feature": KRAFT_VERSION, "max_version_level": KRAFT_VERSION_LEVEL, "upgrade_type": _UPGRADE}]
        fields = {"timeout_ms": self._request_timeout_ms, "feature_updates": updates, "validate_only": False}
        self._change(ApiKey.UPDATE_FEATURES, fields, f"{KRAFT_VERSION} was not raised")

    def add_voter(self, node_id: int, directory_id: bytes, listeners: tuple[QuorumListener, ...]) -> None:
        """Make an observer that has caught up a voter."""
        fields = {
            "cluster_id": None,
            "timeout_ms": self._request_timeout_ms,
            "voter_id": node_id,
            "voter_directory_id": directory_id,
            "listeners": [listener._asdict() for listener in listeners],
            "ack_when_committed": True,
        }
        self._change(ApiKey.ADD_RAFT_VOTER, fields, f"node {node_id} was not added to the voters")

    def remove_voter(self, node_id: int, directory_id: bytes) -> None:
        fields = {"cluster_id": None, "voter_id": node_id, "voter_directory_id": directory_id}
        self._change(ApiKey.REMOVE_RAFT_VOTER, fields, f"node {node_id} was not removed from the voters")

    def _describe_once(self) -> QuorumDescription:
        last_error: ClientError | None = None
        for server in self._servers:
            try:
                return self._describe_by(server)
            except ClientError as error:
                last_error = error
        assert last_error is not None, "there is at least one server"
        raise last_error

    def _describe_by(self, server: Brokers) -> QuorumDescription:
        """Ask a server, and the active controller that it names if it cannot tell itself."""
        try:
            return _description(server.request_any(ApiKey.DESCRIBE_QUORUM, _ONLY_PARTITION))
        except BrokerError as error:
            if error.code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise
            controller_id = server.ask_metadata([]).controller_id
            return _description(server.request(controller_id, ApiKey.DESCRIBE_QUORUM, _ONLY_PARTITION))

    def _change(self, api: ApiKey, fields: Fields, failed: str) -> None:
        try:
            answer = self._servers[0].request_any(api, fields)
        except UnsupportedByBroker:
            answer = self._ask_leader(api, fields)
        check_code(answer.error_code, failed, answer.error_message)

    def _ask_leader(self, api: ApiKey, fields: Fields) -> DecodedMessage:
        found = self.describe()
        listeners = found.listeners.get(found.leader_id, ())
        if not listeners:
            raise BrokerError(ErrorCode.NOT_CONTROLLER, f"the address of the leader, node {found.leader_id}, is not known")
        leader = self._connect(_text(listeners[0].host, listeners[0].port))
        try:
            return leader.request_any(api, fields)
        finally:
            leader.close()


_ONLY_PARTITION: Fields = {"topics": [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]}


def _text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _description(answer: DecodedMessage) -> QuorumDescription:
    what = "the quorum cannot be described"
    check_code(answer.error_code, what, getattr(answer, "error_message", None))
    partitions = [partition for topic in answer.topics for partition in topic.partitions]
    if len(partitions) != 1:
        raise InvalidAnswer(f"{what}: the answer has {len(partitions)} partitions instead of one")
    (partition,) = partitions
    check_code(partition.error_code, what, getattr(partition, "error_message", None))
    if partition.leader_id == NOBODY:
        raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{what}: it has no leader")
    return QuorumDescription(
        partition.leader_id,
        partition.leader_epoch,
        partition.high_watermark,
        tuple(_replica(voter) for voter in partition.current_voters),
        tuple(_replica(observer) for observer in partition.observers),
        {
            node.node_id: tuple(QuorumListener(each.name, each.host, each.port) for each in node.listeners)
            for node in getattr(answer, "nodes", None) or ()
        },
    )


def _replica(state: DecodedMessage) -> QuorumReplica:
    return QuorumReplica(
        state.replica_id,
        getattr(state, "replica_directory_id", None) or NO_DIRECTORY,
        state.log_end_offset,
        getattr(state, "last_fetch_timestamp", -1),
        getattr(state, "last_caught_up_timestamp", -1),
    )
