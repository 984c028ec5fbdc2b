"""All settings of a broker: those of its storage engine, and how it talks to the world.

Kafka's names and defaults, except where a laptop wants another default: one partition per topic, and loopback.
"""

from tidelog.config.definition import AtLeast, Between, Definitions, Setting
from tidelog.config.storage import STORAGE
from tidelog.config.topic import MEBIBYTE
from tidelog.config.types import SettingType

_NETWORK = (
    Setting(
        "listeners",
        SettingType.LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "Where the broker listens: protocol://host:port. Port 0 picks a free one.",
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
        "The largest request that is read; a larger one ends its connection before memory is taken for it.",
        AtLeast(1024),
    ),
    Setting("max.connections", SettingType.INT, 10_000, "How many connections the broker holds at once.", AtLeast(1)),
    Setting("max.connections.per.ip", SettingType.INT, 10_000, "How many of them from one address.", AtLeast(1)),
    Setting(
        "connections.max.idle.ms",
        SettingType.LONG,
        600_000,
        "After how long without a request a connection is closed.",
        AtLeast(1),
    ),
    Setting(
        "queued.max.request.bytes",
        SettingType.LONG,
        256 * MEBIBYTE,
        "How many bytes of requests and responses may be under way in all; beyond that the broker reads slower.",
        AtLeast(MEBIBYTE),
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

_TOPICS = (
    Setting("auto.create.topics.enable", SettingType.BOOLEAN, True, "Whether a topic that a client asks for is created."),
    Setting("num.partitions", SettingType.INT, 1, "How many partitions a topic has when nobody says.", AtLeast(1)),
    Setting(
        "default.replication.factor",
        SettingType.INT,
        1,
        "How many replicas a topic has when nobody says.",
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
        "4.0-IV3",
        "Kept for tools that read a broker's version from it; it cannot be changed.",
    ),
)

BROKER = Definitions((*STORAGE.settings.values(), *_NETWORK, *_REQUESTS, *_TOPICS), STORAGE.checks)
