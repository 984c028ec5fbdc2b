"""Settings of consumer groups and committed offsets, under Kafka's names.

The defaults are Kafka's, except that a first rebalance does not wait for more members: a test or a laptop would wait three
seconds for nobody.

A single group may override some of them (KIP-848; ``GROUP``). What is not set for a group comes from the broker setting of the
same name with ``group.`` in front. These overrides apply to groups of the consumer protocol; members of classic groups bring
their own timeouts.
"""

import re
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
        "How long the offsets of topics that no member of the group reads are kept.",
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

METADATA_BYTES_MAX = "tidelog.group.metadata.max.bytes"
METADATA_BYTES_TOTAL_MAX = "tidelog.groups.metadata.max.bytes"

SHARE_GROUP_SETTINGS = (
    Setting(
        "group.share.session.timeout.ms",
        SettingType.INT,
        45_000,
        "How long a member of a share group may go without a heartbeat before it is removed.",
        AtLeast(1),
    ),
    Setting(
        "group.share.heartbeat.interval.ms",
        SettingType.INT,
        5_000,
        "How often members of share groups are told to send heartbeats.",
        AtLeast(1),
    ),
    Setting("group.share.max.size", SettingType.INT, 200, "How many members a share group may have.", Between(1, 1_000)),
    Setting(
        "group.share.record.lock.duration.ms",
        SettingType.INT,
        30_000,
        "How long a record is locked for the member of a share group that was given it.",
        Between(1_000, 3_600_000),
    ),
    Setting(
        "group.share.delivery.count.limit",
        SettingType.INT,
        5,
        "How often a record is delivered to members of a share group before it is archived.",
        Between(2, 25),
    ),
    Setting(
        "group.share.partition.max.record.locks",
        SettingType.INT,
        2_000,
        "How far the records that a share group has been given may reach beyond the first one that is not settled.",
        Between(100, 10_000),
    ),
    Setting(
        "group.share.max.share.sessions",
        SettingType.INT,
        2_000,
        "How many members of share groups may fetch from this broker at the same time.",
        AtLeast(1),
    ),
    Setting(
        "group.share.initialize.retry.interval.ms",
        SettingType.INT,
        30_000,
        "When the share coordinator is asked again to keep state for a partition, if the first attempt came to nothing.",
        AtLeast(1),
    ),
)

SHARE_COORDINATOR_SETTINGS = (
    Setting(
        "share.coordinator.state.topic.num.partitions",
        SettingType.INT,
        50,
        "How many partitions __share_group_state has. Read when the topic is created.",
        AtLeast(1),
    ),
    Setting(
        "share.coordinator.state.topic.replication.factor",
        SettingType.INT,
        1,
        "How many replicas __share_group_state has. Read when the topic is created.",
        Between(1, 2**15 - 1),
    ),
    Setting(
        "share.coordinator.state.topic.min.isr",
        SettingType.INT,
        1,
        "How many replicas of __share_group_state must be in sync for a write. Read when the topic is created.",
        AtLeast(1),
    ),
    Setting(
        "share.coordinator.state.topic.segment.bytes",
        SettingType.INT,
        100 << 20,
        "The segment size of __share_group_state. Read when the topic is created.",
        AtLeast(1 << 20),
    ),
    Setting(
        "share.coordinator.state.topic.prune.interval.ms",
        SettingType.INT,
        300_000,
        "How often records that later ones have made redundant are deleted from __share_group_state.",
        AtLeast(1),
    ),
    Setting(
        "share.coordinator.cold.partition.snapshot.interval.ms",
        SettingType.INT,
        300_000,
        "How often the state of partitions that nobody writes to is written again, so that what is before it can be deleted.",
        AtLeast(1),
    ),
    Setting(
        "share.coordinator.snapshot.update.records.per.snapshot",
        SettingType.INT,
        500,
        "After how many updates the state of a partition is written as a whole.",
        Between(0, 500),
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
        METADATA_BYTES_MAX,
        SettingType.INT,
        16 * 1024 * 1024,
        "How many bytes the members of one group may make the broker hold: their metadata and assignments in a classic group, "
        "their subscriptions in any other. A member that would exceed it is refused.",
        AtLeast(1024),
    ),
    Setting(
        METADATA_BYTES_TOTAL_MAX,
        SettingType.LONG,
        64 * 1024 * 1024,
        "How many such bytes the broker holds for all groups; beyond it members are told to come back later.",
        AtLeast(1024),
    ),
    Setting(
        "tidelog.lag.deletion.warning.seconds",
        SettingType.LONG,
        3_600,
        "Warn when retention deletes records within this time that a group has not read yet. 0 never warns.",
        AtLeast(0),
    ),
)

BROKER_GROUP_SETTINGS = (
    *OFFSETS_SETTINGS,
    *CLASSIC_GROUP_SETTINGS,
    *CONSUMER_GROUP_SETTINGS,
    *SHARE_GROUP_SETTINGS,
    *SHARE_COORDINATOR_SETTINGS,
    *TIDELOG_GROUP_SETTINGS,
)

KNOWN_ASSIGNORS = ("uniform", "range")


def check_groups(values: Mapping[str, Value]) -> None:
    low, high = values["group.min.session.timeout.ms"], values["group.max.session.timeout.ms"]
    assert isinstance(low, int)
    assert isinstance(high, int)
    if low > high:
        raise InvalidSetting("group.min.session.timeout.ms", str(low), f"expected at most group.max.session.timeout.ms, {high}")
    for kind in ("consumer", "share"):
        session_ms, heartbeat_ms = values[f"group.{kind}.session.timeout.ms"], values[f"group.{kind}.heartbeat.interval.ms"]
        assert isinstance(session_ms, int)
        assert isinstance(heartbeat_ms, int)
        if heartbeat_ms >= session_ms:
            reason = f"expected less than group.{kind}.session.timeout.ms, {session_ms}"
            raise InvalidSetting(f"group.{kind}.heartbeat.interval.ms", str(heartbeat_ms), reason)
    assignors = values["group.consumer.assignors"]
    assert isinstance(assignors, tuple)
    for name in assignors:
        if name not in KNOWN_ASSIGNORS:
            raise InvalidSetting("group.consumer.assignors", ",".join(assignors), f"expected any of {', '.join(KNOWN_ASSIGNORS)}")
    if not assignors:
        raise InvalidSetting("group.consumer.assignors", "", "expected at least one")


SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
SHARE_SESSION_TIMEOUT = "share.session.timeout.ms"
SHARE_HEARTBEAT_INTERVAL = "share.heartbeat.interval.ms"
SHARE_RECORD_LOCK_DURATION = "share.record.lock.duration.ms"
SHARE_DELIVERY_COUNT_LIMIT = "share.delivery.count.limit"
SHARE_RECORD_LOCKS = "share.partition.max.record.locks"
SHARE_ISOLATION_LEVEL = "share.isolation.level"
SHARE_RENEW_ENABLE = "share.renew.acknowledge.enable"
SHARE_OFFSET_RESET = "share.auto.offset.reset"
SHARE_ORDER = "tidelog.share.order"
ORDER_BY_KEY = "key"
DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
DEAD_LETTER_COPY = "errors.deadletterqueue.copy.record.enable"

_BROKER_PREFIX = "group."


def broker_setting_of(name: str) -> str:
    return _BROKER_PREFIX + name


BY_DURATION = "by_duration:"
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,3})\d*)?S)?)?")


def duration_ms(text: str) -> int | None:
    """Read a duration like PT1H30M (ISO 8601, without months and years); None if it is not one."""
    found = _DURATION.fullmatch(text.upper())
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
    return ((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1_000 + int((found[5] or "").ljust(3, "0"))


class ShareOffsetReset:
    """Where a share group begins in a partition that it has not read yet."""

    def accepts(self, value: Value) -> bool:
        if not isinstance(value, str):
            return False
        is_duration = value.startswith(BY_DURATION) and duration_ms(value.removeprefix(BY_DURATION)) is not None
        return value in ("earliest", "latest") or is_duration

    def describe(self) -> str:
        return "earliest, latest, or by_duration: and a duration such as PT1H"


class DeadLetterTopicName:
    """A topic that a group's dead letters may go to."""

    def accepts(self, value: Value) -> bool:
        return isinstance(value, str) and not value.startswith("__")

    def describe(self) -> str:
        return "the name of a topic that does not begin with __, or nothing"


_ALL_SETTINGS = (*CONSUMER_GROUP_SETTINGS, *SHARE_GROUP_SETTINGS)


def _check_heartbeats(values: Mapping[str, Value]) -> None:
    for session, heartbeat in ((SESSION_TIMEOUT, HEARTBEAT_INTERVAL), (SHARE_SESSION_TIMEOUT, SHARE_HEARTBEAT_INTERVAL)):
        session_ms, heartbeat_ms = values[session], values[heartbeat]
        assert isinstance(session_ms, int)
        assert isinstance(heartbeat_ms, int)
        if heartbeat_ms >= session_ms:
            raise InvalidSetting(heartbeat, str(heartbeat_ms), f"expected less than {session}, {session_ms}")


def _setting_of_a_group(name: str) -> Setting:
    (broker_setting,) = (setting for setting in _ALL_SETTINGS if setting.name == broker_setting_of(name))
    synonyms = (Synonym(broker_setting.name),)
    allowed = broker_setting.allowed
    return Setting(name, broker_setting.type, broker_setting.default, broker_setting.documentation, allowed, synonyms)


GROUP = Definitions(
    (
        *map(
            _setting_of_a_group,
            (
                SESSION_TIMEOUT,
                HEARTBEAT_INTERVAL,
                SHARE_SESSION_TIMEOUT,
                SHARE_HEARTBEAT_INTERVAL,
                SHARE_RECORD_LOCK_DURATION,
                SHARE_DELIVERY_COUNT_LIMIT,
                SHARE_RECORD_LOCKS,
            ),
        ),
        Setting(
            SHARE_ISOLATION_LEVEL,
            SettingType.STRING,
            "read_uncommitted",
            "Whether a share group gets records of aborted transactions (read_uncommitted) or not (read_committed).",
            OneOf(("read_uncommitted", "read_committed")),
        ),
        Setting(
            SHARE_RENEW_ENABLE,
            SettingType.BOOLEAN,
            True,
            "Whether members of a share group may renew the locks of records that they are not done with.",
        ),
        Setting(
            SHARE_OFFSET_RESET,
            SettingType.STRING,
            "latest",
            "Where a share group begins in a partition that it has not read yet.",
            ShareOffsetReset(),
        ),
        Setting(
            SHARE_ORDER,
            SettingType.STRING,
            "none",
            "key: on queue topics, the messages of one key are handed out in their order, one at a time. Kafka has no such "
            "setting.",
            OneOf(("none", ORDER_BY_KEY)),
        ),
        Setting(
            DEAD_LETTER_TOPIC,
            SettingType.STRING,
            "",
            "The topic of a share group's dead letters, about records that were rejected or have reached the delivery limit. "
            "Empty: there are none. The topic must exist and have errors.deadletterqueue.group.enable.",
            DeadLetterTopicName(),
        ),
        Setting(
            DEAD_LETTER_COPY,
            SettingType.BOOLEAN,
            False,
            "Whether a dead letter has the key, value and headers of its record, or only says where the record is.",
        ),
    ),
    (_check_heartbeats,),
)
