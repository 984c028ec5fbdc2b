"""All settings of a broker: its storage engine, network, requests, quotas, topics, groups and transactions.

Names and defaults are Kafka's, except where a laptop needs another default: one partition per topic, loopback, and ``./data``.

The checks over several settings refuse at the start what would otherwise fail later, one request at a time: a message that no
request could carry, an address that no client could connect to.
"""

from collections.abc import Mapping

from tidelog.config.definition import AtLeast, Between, Definitions, OneOf, Setting
from tidelog.config.groups import BROKER_GROUP_SETTINGS, check_groups
from tidelog.config.listeners import ListenerAddress, read_listener
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
        "Where the broker listens: PLAINTEXT://host:port. Port 0 picks a free one.",
    ),
    Setting(
        "advertised.listeners",
        SettingType.LIST,
        None,
        "What clients are told to connect to; by default what the broker listens on.",
    ),
    Setting(
        "socket.request.max.bytes",
        SettingType.INT,
        100 * MEBIBYTE,
        "The largest request that is read; a larger one ends its connection before memory is allocated for it.",
        AtLeast(1024),
    ),
    Setting("max.connections", SettingType.INT, 10_000, "How many connections the broker holds at once.", AtLeast(1)),
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
        "How many bytes of requests and responses may be in flight in total; beyond that the broker reads more slowly.",
        AtLeast(MEBIBYTE),
    ),
)

METRICS_LISTENER = "tidelog.metrics.listener"

_METRICS = (
    Setting(
        METRICS_LISTENER,
        SettingType.STRING,
        None,
        "Where /metrics, /health/live and /health/ready are served over HTTP: host:port, for example 127.0.0.1:9644; nowhere by "
        "default. Port 0 picks a free one.",
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


def listener_of(values: Mapping[str, Value]) -> ListenerAddress:
    """The address to listen on."""
    return read_listener("listeners", _the_only("listeners", values["listeners"]))


def advertised_listener_of(values: Mapping[str, Value], bound: ListenerAddress) -> ListenerAddress:
    """The address that clients are told to connect to, given the bound address. Port 0 stands for the bound port."""
    if values["advertised.listeners"] is None:
        return ListenerAddress(listener_of(values).host, bound.port)
    advertised = read_listener("advertised.listeners", _the_only("advertised.listeners", values["advertised.listeners"]))
    return ListenerAddress(advertised.host, advertised.port or bound.port)


def metrics_listener_of(values: Mapping[str, Value]) -> ListenerAddress | None:
    """The address for metrics and health; None if they are not served."""
    text = values[METRICS_LISTENER]
    if text is None:
        return None
    assert isinstance(text, str)
    return read_listener(METRICS_LISTENER, text)


def data_directory_of(values: Mapping[str, Value]) -> str:
    return _the_only("log.dirs", values["log.dirs"])


def _the_only(name: str, value: Value) -> str:
    assert isinstance(value, tuple)
    if len(value) != 1:
        raise InvalidSetting(name, ",".join(value), "expected exactly one")
    return value[0]


def _check_listeners(values: Mapping[str, Value]) -> None:
    listener = listener_of(values)
    advertised = advertised_listener_of(values, listener)
    if advertised.is_every_address:
        name = "listeners" if values["advertised.listeners"] is None else "advertised.listeners"
        reason = "no client can connect to every address: set advertised.listeners to the name that clients reach this machine by"
        raise InvalidSetting(name, str(advertised), reason)


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
        _check_listeners,
        _check_metrics_listener,
        _check_sizes,
        _check_partitions,
        check_groups,
        check_transactions,
    ),
)
