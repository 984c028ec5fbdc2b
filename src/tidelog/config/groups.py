"""Settings of consumer groups and committed offsets, under Kafka's names.

The defaults are Kafka's, except that a first rebalance does not wait for more members: a test or a laptop would wait three
seconds for nobody.

A single group may override some of them (KIP-848; ``GROUP``). What is not set for a group comes from the broker setting of the
same name with ``group.`` in front. These overrides apply to groups of the consumer protocol; members of classic groups bring
their own timeouts.
"""

from collections.abc import Mapping

from tidelog.config.definition import AtLeast, Between, Definitions, OneOf, Setting, Synonym
from tidelog.config.types import InvalidSetting, SettingType, Value

INT_MAX = 2**31 - 1

OFFSETS_SETTINGS = (
    Setting(
        "offsets.topic.num.partitions",
        SettingType.INT,
        50,
        "How many partitions __consumer_offsets has, and so how many coordinators there are. Read when the topic is created.",
        AtLeast(1),
    ),
    Setting(
        "offsets.topic.replication.factor",
        SettingType.INT,
        1,
        "How many replicas __consumer_offsets has. Read when the topic is created.",
        Between(1, 2**15 - 1),
    ),
    Setting(
        "offsets.topic.segment.bytes",
        SettingType.INT,
        100 << 20,
        "The segment size of __consumer_offsets: small enough for compaction to keep loading fast.",
        AtLeast(1 << 20),
    ),
    Setting(
        "offsets.retention.minutes",
        SettingType.INT,
        7 * 24 * 60,
        "How long the offsets of a group without members are kept.",
        AtLeast(1),
    ),
    Setting(
        "offsets.retention.check.interval.ms",
        SettingType.LONG,
        600_000,
        "How often committed offsets are checked against their retention.",
        AtLeast(1),
    ),
    Setting(
        "offset.metadata.max.bytes",
        SettingType.INT,
        4096,
        "The longest metadata string that may be kept with a committed offset.",
        AtLeast(0),
    ),
)

CLASSIC_GROUP_SETTINGS = (
    Setting(
        "group.min.session.timeout.ms",
        SettingType.INT,
        6_000,
        "The shortest session timeout that a member of a classic group may ask for.",
        AtLeast(1),
    ),
    Setting(
        "group.max.session.timeout.ms",
        SettingType.INT,
        1_800_000,
        "The longest session timeout that a member of a classic group may ask for.",
        AtLeast(1),
    ),
    Setting(
        "group.initial.rebalance.delay.ms",
        SettingType.INT,
        0,
        "How long the first rebalance of an empty classic group waits for more members.",
        AtLeast(0),
    ),
    Setting("group.max.size", SettingType.INT, INT_MAX, "How many members a classic group may have.", AtLeast(1)),
)

CONSUMER_GROUP_SETTINGS = (
    Setting(
        "group.consumer.session.timeout.ms",
        SettingType.INT,
        45_000,
        "How long a member of a consumer group may go without a heartbeat before it is removed.",
        AtLeast(1),
    ),
    Setting(
        "group.consumer.heartbeat.interval.ms",
        SettingType.INT,
        5_000,
        "How often members of consumer groups are told to send heartbeats.",
        AtLeast(1),
    ),
    Setting("group.consumer.max.size", SettingType.INT, INT_MAX, "How many members a consumer group may have.", AtLeast(1)),
    Setting(
        "group.consumer.assignors",
        SettingType.LIST,
        ("uniform", "range"),
        "The assignors that members of consumer groups may choose from; the first is the default.",
    ),
    Setting(
        "group.consumer.migration.policy",
        SettingType.STRING,
        "bidirectional",
        "Whether a group may move from the classic protocol to the consumer protocol (upgrade), back (downgrade), or both.",
        OneOf(("bidirectional", "upgrade", "downgrade", "disabled")),
    ),
    Setting(
        "group.consumer.regex.refresh.interval.ms",
        SettingType.INT,
        600_000,
        "How often regular expressions are matched against topics again, besides whenever topics are created or deleted.",
        AtLeast(10_000),
    ),
)

TIDELOG_GROUP_SETTINGS = (
    Setting(
        "tidelog.groups.max",
        SettingType.INT,
        100_000,
        "How many groups one coordinator shard keeps; a new one beyond that is refused.",
        AtLeast(1),
    ),
    Setting(
        "tidelog.lag.deletion.warning.seconds",
        SettingType.LONG,
        3_600,
        "Warn when retention deletes records within this time that a group has not read yet. 0 never warns.",
        AtLeast(0),
    ),
)

BROKER_GROUP_SETTINGS = (*OFFSETS_SETTINGS, *CLASSIC_GROUP_SETTINGS, *CONSUMER_GROUP_SETTINGS, *TIDELOG_GROUP_SETTINGS)

KNOWN_ASSIGNORS = ("uniform", "range")


def check_groups(values: Mapping[str, Value]) -> None:
    low, high = values["group.min.session.timeout.ms"], values["group.max.session.timeout.ms"]
    assert isinstance(low, int)
    assert isinstance(high, int)
    if low > high:
        raise InvalidSetting("group.min.session.timeout.ms", str(low), f"expected at most group.max.session.timeout.ms, {high}")
    session_ms, heartbeat_ms = values["group.consumer.session.timeout.ms"], values["group.consumer.heartbeat.interval.ms"]
    assert isinstance(session_ms, int)
    assert isinstance(heartbeat_ms, int)
    if heartbeat_ms >= session_ms:
        reason = f"expected less than group.consumer.session.timeout.ms, {session_ms}"
        raise InvalidSetting("group.consumer.heartbeat.interval.ms", str(heartbeat_ms), reason)
    assignors = values["group.consumer.assignors"]
    assert isinstance(assignors, tuple)
    for name in assignors:
        if name not in KNOWN_ASSIGNORS:
            raise InvalidSetting("group.consumer.assignors", ",".join(assignors), f"expected any of {', '.join(KNOWN_ASSIGNORS)}")
    if not assignors:
        raise InvalidSetting("group.consumer.assignors", "", "expected at least one")


SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"

_BROKER_PREFIX = "group."


def broker_setting_of(name: str) -> str:
    return _BROKER_PREFIX + name


def _check_heartbeats(values: Mapping[str, Value]) -> None:
    session_ms, heartbeat_ms = values[SESSION_TIMEOUT], values[HEARTBEAT_INTERVAL]
    assert isinstance(session_ms, int)
    assert isinstance(heartbeat_ms, int)
    if heartbeat_ms >= session_ms:
        raise InvalidSetting(HEARTBEAT_INTERVAL, str(heartbeat_ms), f"expected less than {SESSION_TIMEOUT}, {session_ms}")


def _setting_of_a_group(name: str) -> Setting:
    (broker_setting,) = (setting for setting in CONSUMER_GROUP_SETTINGS if setting.name == broker_setting_of(name))
    synonyms = (Synonym(broker_setting.name),)
    return Setting(name, broker_setting.type, broker_setting.default, broker_setting.documentation, AtLeast(1), synonyms)


GROUP = Definitions((_setting_of_a_group(SESSION_TIMEOUT), _setting_of_a_group(HEARTBEAT_INTERVAL)), (_check_heartbeats,))
