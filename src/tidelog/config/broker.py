"""All settings of a node: its storage engine, network, place in the cluster, requests, quotas, topics, groups and transactions.

Names and defaults are Kafka's, except where a laptop needs another default: one partition per topic, loopback, and ``./data``.

The checks over several settings refuse at the start what would otherwise fail later, one request at a time: a message that no
request could carry, an address that no client could connect to.
"""

from collections.abc import Mapping, Sequence

from tidelog.config.cluster import CLUSTER_SETTINGS, ProcessRole, check_cluster, roles_of
from tidelog.config.definition import AtLeast, Between, Definitions, OneOf, Setting
from tidelog.config.groups import BROKER_GROUP_SETTINGS, check_groups
from tidelog.config.listeners import ListenerAddress, ListenerRole, NamedListener, read_listener, read_protocols
from tidelog.config.storage import STORAGE
from tidelog.config.topic import MEBIBYTE
from tidelog.config.transactions import TRANSACTIONS, check_transactions
from tidelog.config.types import InvalidSetting, SettingType, Value

# The size of a produce request without its records: client id, topic name, counts. Names are short; a client id may have 32 KB.
REQUEST_OVERHEAD_BYTES_MAX = 64 * 1024

_STORAGE_PLACE = (
    Setting(
        "log.dirs",
        SettingType.LIST,
        ("data",),
        "The data directory. A broker has exactly one; for more disks run more brokers.",
    ),
)

_NETWORK = (
    Setting(
        "listeners",
        SettingType.LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "Where the broker listens: NAME://host:port. Port 0 picks a free one.",
    ),
    Setting(
        "advertised.listeners",
        SettingType.LIST,
        None,
        "What others are told to connect to, by the names in listeners; by default what the broker listens on.",
    ),
    Setting(
        "listener.security.protocol.map",
        SettingType.LIST,
        (),
        "The protocol of each listener whose name is not a protocol: NAME:PLAINTEXT. The listeners of controllers have PLAINTEXT "
        "by default.",
    ),
    Setting(
        "inter.broker.listener.name",
        SettingType.STRING,
        None,
        "The listener that other brokers use. Clients have one of their own; a broker that is alone needs none.",
    ),
    Setting(
        "controller.listener.names",
        SettingType.LIST,
        (),
        "The listeners that the controllers of the quorum, and brokers that ask them, use. A broker that is alone needs none.",
    ),
    Setting(
        "socket.request.max.bytes",
        SettingType.INT,
        100 * MEBIBYTE,
        "The largest request that is read; a larger one ends its connection before memory is allocated for it.",
        AtLeast(1024),
    ),
    Setting(
        "socket.send.buffer.bytes",
        SettingType.INT,
        262_144,
        "How many bytes of responses the kernel holds for one connection (SO_SNDBUF). -1 leaves that to the kernel, which suits "
        "clients far away.",
        AtLeast(-1),
    ),
    Setting(
        "max.connections",
        SettingType.INT,
        10_000,
        "How many connections the broker holds at once; fewer if the process may not open that many descriptors.",
        AtLeast(1),
    ),
    Setting("max.connections.per.ip", SettingType.INT, 10_000, "How many connections one address may have.", AtLeast(1)),
    Setting(
        "connections.max.idle.ms",
        SettingType.LONG,
        600_000,
        "How long a connection may stay without a request before it is closed.",
        AtLeast(1),
    ),
    Setting(
        "queued.max.request.bytes",
        SettingType.LONG,
        256 * MEBIBYTE,
        "How many bytes of requests, also of decoded ones, and of responses may be in flight in total; beyond that the broker "
        "reads more slowly.",
        AtLeast(MEBIBYTE),
    ),
)

METRICS_LISTENER = "tidelog.metrics.listener"
METRICS_PARTITIONS = "tidelog.metrics.partitions"

_METRICS = (
    Setting(
        METRICS_LISTENER,
        SettingType.STRING,
        None,
        "Where /metrics, /health/live and /health/ready are served over HTTP: host:port, for example 127.0.0.1:9644; nowhere by "
        "default. Port 0 picks a free one.",
    ),
    Setting(
        METRICS_PARTITIONS,
        SettingType.STRING,
        "none",
        "Which partitions have series of their own in /metrics: none, those that this broker leads (led), or all. "
        "The others of a topic share one series, whose label partition is empty.",
        OneOf(("none", "led", "all")),
    ),
)

_REQUESTS = (
    Setting(
        "fetch.max.bytes",
        SettingType.INT,
        55 * MEBIBYTE,
        "The largest answer to a fetch, whatever the client asks for.",
        AtLeast(1024),
    ),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        SettingType.INT,
        1000,
        "How many incremental fetch sessions are kept.",
        AtLeast(0),
    ),
    Setting(
        "max.request.partition.size.limit",
        SettingType.INT,
        2000,
        "How many partitions one page of DescribeTopicPartitions holds at most.",
        AtLeast(1),
    ),
    Setting(
        "telemetry.max.bytes",
        SettingType.INT,
        MEBIBYTE,
        "The most metrics that a client may push at once, compressed or not.",
        AtLeast(1),
    ),
)

_QUOTAS = tuple(
    setting
    for prefix, what in (("", "client quotas"), ("controller.", "quotas of changes of metadata"))
    for setting in (
        Setting(f"{prefix}quota.window.num", SettingType.INT, 11, f"How many samples measure {what}.", AtLeast(1)),
        Setting(f"{prefix}quota.window.size.seconds", SettingType.INT, 1, f"The length of each sample of {what}.", AtLeast(1)),
    )
)

_TOPICS = (
    Setting("auto.create.topics.enable", SettingType.BOOLEAN, True, "Whether a topic that a client asks for is created."),
    Setting("num.partitions", SettingType.INT, 1, "How many partitions a topic has by default.", AtLeast(1)),
    Setting(
        "default.replication.factor",
        SettingType.INT,
        1,
        "How many replicas a topic has by default.",
        Between(1, 2**15 - 1),
    ),
    Setting(
        "replica.lag.time.max.ms",
        SettingType.LONG,
        10_000,
        "A follower that has not had everything for this long leaves the in-sync set.",
        AtLeast(1),
    ),
    Setting("replica.fetch.wait.max.ms", SettingType.INT, 500, "How long a follower's fetch waits for records.", AtLeast(1)),
    Setting("replica.fetch.min.bytes", SettingType.INT, 1, "How many bytes a follower's fetch waits for.", AtLeast(0)),
    Setting(
        "replica.fetch.max.bytes", SettingType.INT, 1 << 20, "How much of a partition a follower fetches at once.", AtLeast(0)
    ),
    Setting(
        "replica.fetch.response.max.bytes", SettingType.INT, 10 << 20, "How much a follower fetches at once in all.", AtLeast(0)
    ),
    Setting("delete.topic.enable", SettingType.BOOLEAN, True, "Whether topics can be deleted."),
    Setting(
        "max.partitions",
        SettingType.INT,
        100_000,
        "How many partitions the broker holds; creating more is refused.",
        AtLeast(1),
    ),
    Setting(
        "inter.broker.protocol.version",
        SettingType.STRING,
        "4.3-IV0",
        "Kept for tools that read a broker's version from it; it cannot be changed.",
        OneOf(("4.3-IV0",)),
    ),
)


_MAP, _INTER_BROKER, _CONTROLLERS = "listener.security.protocol.map", "inter.broker.listener.name", "controller.listener.names"


def listeners_of(values: Mapping[str, Value]) -> list[NamedListener]:
    """The listeners, in the order of the setting. Raises InvalidSetting when they contradict each other or the node's roles."""
    roles = roles_of(values)
    controllers = [name.upper() for name in _names(values[_CONTROLLERS])]
    inter_broker = values[_INTER_BROKER]
    inter_broker = inter_broker.upper() if isinstance(inter_broker, str) else None
    addresses = _read_listeners(values, "listeners", controllers)
    advertised = _read_listeners(values, "advertised.listeners", controllers)
    for name in advertised:
        if name not in addresses:
            raise InvalidSetting("advertised.listeners", name, f"expected a name that listeners has: {', '.join(addresses)}")
    _check_names(roles, addresses, controllers, inter_broker)
    found = []
    for name, address in addresses.items():
        role = ListenerRole.CONTROLLER if name in controllers else ListenerRole.CLIENT
        found.append(
            NamedListener(
                name, ListenerRole.INTER_BROKER if name == inter_broker else role, address, advertised.get(name, address)
            )
        )
    has_client_listener = any(listener.role is ListenerRole.CLIENT for listener in found)
    if ProcessRole.BROKER in roles and not has_client_listener:
        reason = "expected one that is neither for brokers nor for controllers: clients need a listener of their own"
        raise InvalidSetting("listeners", ",".join(addresses), reason)
    if ProcessRole.BROKER not in roles and has_client_listener:
        reason = f"this node is a controller only, and serves nobody else: {_CONTROLLERS} must have each listener"
        raise InvalidSetting("listeners", ",".join(addresses), reason)
    return found


def _check_names(
    roles: frozenset[ProcessRole], addresses: Mapping[str, ListenerAddress], controllers: Sequence[str], inter_broker: str | None
) -> None:
    """A node has a listener for each of its roles. The one of controllers is only named by a node that is not a controller."""
    wanted = []
    if ProcessRole.CONTROLLER in roles:
        wanted += [(_CONTROLLERS, name) for name in controllers]
    if ProcessRole.BROKER in roles and inter_broker is not None:
        wanted.append((_INTER_BROKER, inter_broker))
    for setting, name in wanted:
        if name not in addresses:
            raise InvalidSetting(setting, name, f"expected a name that listeners has: {', '.join(addresses)}")
    if inter_broker is not None and inter_broker in controllers:
        raise InvalidSetting(_INTER_BROKER, inter_broker, f"{_CONTROLLERS} has it; brokers need one of their own")
    for name in controllers:
        if ProcessRole.CONTROLLER not in roles and name in addresses:
            raise InvalidSetting("listeners", name, f"{_CONTROLLERS} has it, but this node is not a controller")


def _read_listeners(values: Mapping[str, Value], setting: str, controllers: Sequence[str]) -> dict[str, ListenerAddress]:
    """Read the listeners of a setting by name."""
    protocols = {**dict.fromkeys(controllers, "PLAINTEXT"), **read_protocols(_MAP, _names(values[_MAP]))}
    hint = f"expected PLAINTEXT, or a name that {_MAP} or {_CONTROLLERS} has"
    found: dict[str, ListenerAddress] = {}
    for text in _names(values[setting]):
        name, address = read_listener(setting, text, protocols, hint)
        if name in found:
            raise InvalidSetting(setting, text, f"there is another listener with the name {name}; give each a name of its own")
        if setting == "listeners" and address.port and address in found.values():
            raise InvalidSetting(setting, text, "another listener has this address; one address serves one listener")
        found[name] = address
    return found


def _names(value: Value) -> tuple[str, ...]:
    assert value is None or isinstance(value, tuple)
    return value or ()


def metrics_listener_of(values: Mapping[str, Value]) -> ListenerAddress | None:
    """The address for metrics and health; None if they are not served."""
    text = values[METRICS_LISTENER]
    if text is None:
        return None
    assert isinstance(text, str)
    return read_listener(METRICS_LISTENER, text)[1]


def data_directory_of(values: Mapping[str, Value]) -> str:
    return _the_only("log.dirs", values["log.dirs"])


def _the_only(name: str, value: Value) -> str:
    assert isinstance(value, tuple)
    if len(value) != 1:
        raise InvalidSetting(name, ",".join(value), "expected exactly one")
    return value[0]


def _check_listeners(values: Mapping[str, Value]) -> None:
    if not values["listeners"]:
        raise InvalidSetting("listeners", "", "expected at least one, such as PLAINTEXT://127.0.0.1:9092")
    for listener in listeners_of(values):
        if listener.advertised.is_every_address:
            name = "listeners" if listener.advertised == listener.address else "advertised.listeners"
            reason = (
                "no client can connect to every address: set advertised.listeners to the name that clients reach this machine by"
            )
            raise InvalidSetting(name, str(listener.advertised), reason)


def _check_metrics_listener(values: Mapping[str, Value]) -> None:
    metrics_listener_of(values)


def _check_data_directory(values: Mapping[str, Value]) -> None:
    data_directory_of(values)


def _number(values: Mapping[str, Value], name: str) -> int:
    value = values[name]
    assert isinstance(value, int)
    return value


def _check_sizes(values: Mapping[str, Value]) -> None:
    """Check that a message fits into a request, and a request into the memory for requests."""
    request_bytes_max = _number(values, "socket.request.max.bytes")
    message_bytes_max = _number(values, "message.max.bytes")
    if message_bytes_max + REQUEST_OVERHEAD_BYTES_MAX > request_bytes_max:
        reason = f"expected at least {REQUEST_OVERHEAD_BYTES_MAX} more than message.max.bytes, which is {message_bytes_max}"
        raise InvalidSetting("socket.request.max.bytes", str(request_bytes_max), reason)
    queued_bytes_max = _number(values, "queued.max.request.bytes")
    if queued_bytes_max < request_bytes_max:
        reason = f"expected at least socket.request.max.bytes, which is {request_bytes_max}"
        raise InvalidSetting("queued.max.request.bytes", str(queued_bytes_max), reason)


def _check_partitions(values: Mapping[str, Value]) -> None:
    partitions_max = _number(values, "max.partitions")
    if _number(values, "num.partitions") > partitions_max:
        reason = f"expected at most max.partitions, which is {partitions_max}"
        raise InvalidSetting("num.partitions", str(values["num.partitions"]), reason)


BROKER = Definitions(
    (
        *STORAGE.settings.values(),
        *_STORAGE_PLACE,
        *_NETWORK,
        *CLUSTER_SETTINGS,
        *_METRICS,
        *_REQUESTS,
        *_QUOTAS,
        *_TOPICS,
        *BROKER_GROUP_SETTINGS,
        *TRANSACTIONS,
    ),
    (
        *STORAGE.checks,
        _check_data_directory,
        check_cluster,
        _check_listeners,
        _check_metrics_listener,
        _check_sizes,
        _check_partitions,
        check_groups,
        check_transactions,
    ),
)
