"""Settings of a node in its cluster: its roles, the quorum of controllers, and how the controllers watch brokers.

A node that is told of no quorum is one by itself: it is the only voter and the only broker. A quorum is named in one of two ways,
as in Kafka: ``controller.quorum.voters`` lists its voters for good, and ``controller.quorum.bootstrap.servers`` names nodes that
know the voters, which then stand in the metadata log.

The checks refuse what would make a node wait for ever, or serve replicas on the listener of clients.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from tidelog.config.definition import AnyOf, AtLeast, Setting
from tidelog.config.listeners import ListenerAddress, read_listener
from tidelog.config.types import LONG_MAX, InvalidSetting, SettingType, Value

PROCESS_ROLES = "process.roles"
NODE_ID = "node.id"
QUORUM_VOTERS = "controller.quorum.voters"
BOOTSTRAP_SERVERS = "controller.quorum.bootstrap.servers"
AUTO_JOIN = "controller.quorum.auto.join.enable"
NODE_ID_MAX = 2**31 - 1
LEADER_THROTTLED_RATE = "leader.replication.throttled.rate"
FOLLOWER_THROTTLED_RATE = "follower.replication.throttled.rate"


class ProcessRole(StrEnum):
    BROKER = "broker"
    CONTROLLER = "controller"


_ROLE_NAMES = tuple(role.value for role in ProcessRole)

CLUSTER_SETTINGS = (
    Setting(
        PROCESS_ROLES,
        SettingType.LIST,
        _ROLE_NAMES,
        "What this process is: a broker, which serves clients, a controller, which takes part in the metadata quorum, or both.",
        AnyOf(_ROLE_NAMES),
    ),
    Setting(
        QUORUM_VOTERS,
        SettingType.LIST,
        (),
        "The voters of the metadata quorum, if they never change: id@host:port of each controller's listener. A node that is "
        "told of no quorum is a cluster by itself.",
    ),
    Setting(
        BOOTSTRAP_SERVERS,
        SettingType.LIST,
        (),
        "Where to ask for the metadata quorum: host:port of some controllers' listeners.",
    ),
    Setting(
        AUTO_JOIN,
        SettingType.BOOLEAN,
        False,
        "Whether a controller that is not among the voters of the metadata log becomes one by itself, once it has caught up. A "
        "voter with its node id and another directory is removed first.",
    ),
    Setting(
        "controller.quorum.election.timeout.ms",
        SettingType.INT,
        1_000,
        "How long a voter without a leader waits before it stands for election, or up to twice as long.",
        AtLeast(1),
    ),
    Setting(
        "controller.quorum.fetch.timeout.ms",
        SettingType.INT,
        2_000,
        "How long a voter waits for the leader before it stands for election, and how long a leader leads without a majority.",
        AtLeast(1),
    ),
    Setting(
        "controller.quorum.election.backoff.max.ms",
        SettingType.INT,
        1_000,
        "The longest pause after an election that nobody won.",
        AtLeast(0),
    ),
    Setting(
        "controller.quorum.request.timeout.ms",
        SettingType.INT,
        2_000,
        "How long a request between nodes of the quorum waits for its answer.",
        AtLeast(1),
    ),
    Setting(
        "controller.quorum.retry.backoff.ms",
        SettingType.INT,
        20,
        "The pause before a failed request between nodes of the quorum is repeated.",
        AtLeast(0),
    ),
    Setting(
        "broker.heartbeat.interval.ms",
        SettingType.INT,
        500,
        "How often a broker tells the active controller that it is alive. Kafka has 2000, and misses a broker later.",
        AtLeast(1),
    ),
    Setting(
        "broker.session.timeout.ms",
        SettingType.INT,
        3_000,
        "How long the active controller waits for a heartbeat before it fences a broker. Kafka has 9000.",
        AtLeast(1),
    ),
    Setting(
        "auto.leader.rebalance.enable",
        SettingType.BOOLEAN,
        True,
        "Whether the controller returns leadership to preferred replicas (the first of each partition) by itself.",
    ),
    Setting(
        "leader.imbalance.check.interval.seconds",
        SettingType.LONG,
        300,
        "How often the controller looks whether leadership has moved away from preferred replicas.",
        AtLeast(1),
    ),
    Setting(
        "leader.imbalance.per.broker.percentage",
        SettingType.INT,
        10,
        "The controller acts if others lead more than this percentage of the partitions that prefer a broker.",
        AtLeast(0),
    ),
    Setting(
        LEADER_THROTTLED_RATE,
        SettingType.LONG,
        LONG_MAX,
        "How many bytes per second this broker sends to followers out of sync, for the partitions that topics list in "
        "leader.replication.throttled.replicas. It can change while the broker runs, and is removed when the last of these moves "
        "ends.",
        AtLeast(0),
    ),
    Setting(
        FOLLOWER_THROTTLED_RATE,
        SettingType.LONG,
        LONG_MAX,
        "How many bytes per second this broker copies while it is out of sync, for the partitions that topics list in "
        "follower.replication.throttled.replicas. It can change while the broker runs, and is removed when the last of these "
        "moves ends.",
        AtLeast(0),
    ),
    Setting("broker.rack", SettingType.STRING, None, "Where this broker stands; clients may prefer a replica in their own rack."),
)


class QuorumVoterAddress(NamedTuple):
    node_id: int
    address: ListenerAddress


def roles_of(values: Mapping[str, Value]) -> frozenset[ProcessRole]:
    return frozenset(ProcessRole(name) for name in _list(values, PROCESS_ROLES))


def quorum_voters_of(values: Mapping[str, Value]) -> tuple[QuorumVoterAddress, ...]:
    """The voters of ``controller.quorum.voters``, by id. Raises InvalidSetting."""
    voters: dict[int, QuorumVoterAddress] = {}
    for text in _list(values, QUORUM_VOTERS):
        id_text, separator, address_text = text.partition("@")
        if not (separator and id_text.isascii() and id_text.isdigit() and len(id_text) <= 10 and int(id_text) <= NODE_ID_MAX):
            raise InvalidSetting(QUORUM_VOTERS, text, "expected id@host:port")
        node_id = int(id_text)
        if node_id in voters:
            raise InvalidSetting(QUORUM_VOTERS, text, f"node {node_id} is listed twice")
        voters[node_id] = QuorumVoterAddress(node_id, _read_address(QUORUM_VOTERS, text, address_text))
    return tuple(voters[node_id] for node_id in sorted(voters))


def bootstrap_servers_of(values: Mapping[str, Value]) -> tuple[ListenerAddress, ...]:
    return tuple(_read_address(BOOTSTRAP_SERVERS, text, text) for text in _list(values, BOOTSTRAP_SERVERS))


def names_a_quorum(values: Mapping[str, Value]) -> bool:
    """Whether the node is part of a cluster, rather than one by itself."""
    return bool(_list(values, QUORUM_VOTERS) or _list(values, BOOTSTRAP_SERVERS))


def check_cluster(values: Mapping[str, Value]) -> None:
    roles, voters, node_id = roles_of(values), quorum_voters_of(values), values[NODE_ID]
    bootstrap_servers_of(values)
    if not roles:
        raise InvalidSetting(PROCESS_ROLES, "", f"expected {', '.join(_ROLE_NAMES)}, or both")
    is_controller = ProcessRole.CONTROLLER in roles
    if not is_controller and not names_a_quorum(values):
        reason = f"a broker without a controller needs a quorum: set {BOOTSTRAP_SERVERS} or {QUORUM_VOTERS}, or add the role"
        raise InvalidSetting(PROCESS_ROLES, ",".join(_list(values, PROCESS_ROLES)), reason)
    if values[AUTO_JOIN] and (voters or not is_controller or not names_a_quorum(values)):
        reason = f"only a controller of a quorum that {BOOTSTRAP_SERVERS} names can join its voters"
        raise InvalidSetting(AUTO_JOIN, "true", reason)
    if voters:
        is_listed = any(voter.node_id == node_id for voter in voters)
        listed = ",".join(_list(values, QUORUM_VOTERS))
        if is_controller and not is_listed:
            raise InvalidSetting(QUORUM_VOTERS, listed, f"this node, {node_id}, is a controller and is missing from the list")
        if is_listed and not is_controller:
            reason = f"this node, {node_id}, is in the list, so {PROCESS_ROLES} must have controller"
            raise InvalidSetting(QUORUM_VOTERS, listed, reason)
    if names_a_quorum(values):
        _check_listeners_of_cluster(values, roles)
    heartbeat_ms, session_ms = values["broker.heartbeat.interval.ms"], values["broker.session.timeout.ms"]
    assert isinstance(heartbeat_ms, int)
    assert isinstance(session_ms, int)
    if session_ms < 2 * heartbeat_ms:
        reason = f"expected at least twice broker.heartbeat.interval.ms, which is {heartbeat_ms}: one lost heartbeat is normal"
        raise InvalidSetting("broker.session.timeout.ms", str(session_ms), reason)


def _check_listeners_of_cluster(values: Mapping[str, Value], roles: frozenset[ProcessRole]) -> None:
    if ProcessRole.CONTROLLER in roles and not values["controller.listener.names"]:
        reason = "expected the name of a listener: the controllers of a quorum need one for each other"
        raise InvalidSetting("controller.listener.names", "", reason)
    if ProcessRole.BROKER in roles and not values["inter.broker.listener.name"]:
        reason = "expected the name of a listener: in a cluster the other brokers need one that clients do not use"
        raise InvalidSetting("inter.broker.listener.name", "", reason)


def _read_address(setting: str, text: str, address_text: str) -> ListenerAddress:
    if "://" in address_text:
        raise InvalidSetting(setting, text, "expected host:port without a protocol")
    try:
        address = read_listener(setting, address_text)[1]
    except InvalidSetting as error:
        raise InvalidSetting(setting, text, error.reason) from None
    if not address.port or address.is_every_address:
        raise InvalidSetting(setting, text, "expected an address that other nodes can connect to")
    return address


def _list(values: Mapping[str, Value], name: str) -> tuple[str, ...]:
    value = values[name]
    assert value is None or isinstance(value, tuple)
    return value or ()
