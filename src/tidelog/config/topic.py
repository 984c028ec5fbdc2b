"""Topic settings: Kafka's names, types and defaults, for all that the log implements.

One default differs from Kafka's: ``flush.messages`` is 1, which means that a write is durable before it is acknowledged with
acks=all and before anyone reads it. A larger value gives Kafka's own behaviour, acknowledged from the page cache.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.config.definition import (
    HOUR_MS,
    MINUTE_MS,
    AnyOf,
    AtLeast,
    Between,
    Definitions,
    OneOf,
    Setting,
    Synonym,
)
from tidelog.config.types import LONG_MAX, InvalidSetting, SettingType, Value

DAY_MS = 24 * HOUR_MS
# An internal topic takes these from its own settings only. Offsets and transactions must not become less durable because somebody
# relaxed the defaults of their own topics.
NOT_INHERITED_BY_INTERNAL_TOPICS = frozenset(("flush.messages",))
MEBIBYTE = 1 << 20
# What stands before the bytes that a batch's length counts. Kafka adds it to its default, so that a batch of a mebibyte fits.
_LOG_OVERHEAD = 12

_RETENTION = (
    Setting(
        "cleanup.policy",
        SettingType.LIST,
        ("delete",),
        "What happens to old segments: delete drops them by retention.ms and retention.bytes, compact keeps the latest record of "
        "each key, both together do both. An empty list keeps everything.",
        AnyOf(("compact", "delete")),
        (Synonym("log.cleanup.policy"),),
    ),
    Setting(
        "retention.ms",
        SettingType.LONG,
        7 * DAY_MS,
        "How long a segment is kept after its newest record's timestamp, under cleanup.policy delete. -1 keeps it forever.",
        AtLeast(-1),
        (Synonym("log.retention.ms"), Synonym("log.retention.minutes", MINUTE_MS), Synonym("log.retention.hours", HOUR_MS)),
    ),
    Setting(
        "retention.bytes",
        SettingType.LONG,
        -1,
        "How large a partition may grow before its oldest segments are dropped, under cleanup.policy delete. -1 sets no limit.",
        AtLeast(-1),
        (Synonym("log.retention.bytes"),),
    ),
    Setting(
        "file.delete.delay.ms",
        SettingType.LONG,
        MINUTE_MS,
        "How long a dropped segment's files stay on disk under another name, so that a reader in the middle of one can finish.",
        AtLeast(0),
        (Synonym("log.segment.delete.delay.ms"),),
    ),
)

_COMPACTION = (
    Setting(
        "delete.retention.ms",
        SettingType.LONG,
        DAY_MS,
        "How long compaction keeps a tombstone after it first met it: the time in which a reader from the start "
        "sees every deletion.",
        AtLeast(0),
        (Synonym("log.cleaner.delete.retention.ms"),),
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        SettingType.DOUBLE,
        0.5,
        "The share of a log that must be uncompacted before compaction starts. A lower value saves space and costs rewriting.",
        Between(0, 1),
        (Synonym("log.cleaner.min.cleanable.ratio"),),
    ),
    Setting(
        "min.compaction.lag.ms",
        SettingType.LONG,
        0,
        "The minimum time that a record stays uncompacted.",
        AtLeast(0),
        (Synonym("log.cleaner.min.compaction.lag.ms"),),
    ),
    Setting(
        "max.compaction.lag.ms",
        SettingType.LONG,
        LONG_MAX,
        "The maximum time that a record stays uncompacted, whatever the dirty ratio.",
        AtLeast(1),
        (Synonym("log.cleaner.max.compaction.lag.ms"),),
    ),
)

_SEGMENTS = (
    Setting(
        "segment.bytes",
        SettingType.INT,
        1 << 30,
        "The size at which a segment is closed and a new one is started. Retention and compaction work on closed segments.",
        AtLeast(MEBIBYTE),
        (Synonym("log.segment.bytes"),),
    ),
    Setting(
        "segment.ms",
        SettingType.LONG,
        7 * DAY_MS,
        "The age at which a segment is closed even if it is not full.",
        AtLeast(1),
        (Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)),
    ),
    Setting(
        "segment.jitter.ms",
        SettingType.LONG,
        0,
        "A random time up to this is subtracted from segment.ms, so that partitions do not all roll at once.",
        AtLeast(0),
        (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS)),
    ),
    Setting(
        "segment.index.bytes",
        SettingType.INT,
        10 * MEBIBYTE,
        "The size an index may reach; a full index closes the segment.",
        AtLeast(12),  # This is one entry of the time index. Kafka accepts 4 bytes, which hold no entry.
        (Synonym("log.index.size.max.bytes"),),
    ),
    Setting(
        "index.interval.bytes",
        SettingType.INT,
        4096,
        "How many bytes of log lie between two index entries. A smaller value finds offsets faster and makes larger indexes. "
        "More than 65536 is accepted, as by Kafka, and has the effect of 65536.",
        AtLeast(0),
        (Synonym("log.index.interval.bytes"),),
    ),
)


@dataclass(frozen=True, slots=True)
class GzipLevel:
    def accepts(self, value: Value) -> bool:
        return value == -1 or (isinstance(value, int) and 1 <= value <= 9)

    def describe(self) -> str:
        return "a number from 1 to 9, or -1"


_MESSAGES = (
    Setting(
        "compression.type",
        SettingType.STRING,
        "producer",
        "The codec in which batches are stored: producer keeps what each producer chose; any other value makes the broker "
        "compress batches again that came in another codec, which takes time and memory.",
        OneOf(("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")),
        (Synonym("compression.type"),),
    ),
    Setting(
        "compression.gzip.level",
        SettingType.INT,
        -1,
        "The level at which the broker compresses with compression.type=gzip: 1 to 9, or -1 for the default of the codec.",
        GzipLevel(),
        (Synonym("compression.gzip.level"),),
    ),
    Setting(
        "compression.lz4.level",
        SettingType.INT,
        9,
        "The level at which the broker compresses with compression.type=lz4.",
        Between(1, 17),
        (Synonym("compression.lz4.level"),),
    ),
    Setting(
        "compression.zstd.level",
        SettingType.INT,
        3,
        "The level at which the broker compresses with compression.type=zstd.",
        Between(-131072, 22),
        (Synonym("compression.zstd.level"),),
    ),
    Setting(
        "max.message.bytes",
        SettingType.INT,
        MEBIBYTE + _LOG_OVERHEAD,
        "The largest record batch that is accepted, as it is stored (after compression, if there is any).",
        AtLeast(0),
        (Synonym("message.max.bytes"),),
    ),
    Setting(
        "message.timestamp.type",
        SettingType.STRING,
        "CreateTime",
        "Whose clock stamps records: the producer's (CreateTime) or the broker's at append (LogAppendTime).",
        OneOf(("CreateTime", "LogAppendTime")),
        (Synonym("log.message.timestamp.type"),),
    ),
    Setting(
        "message.timestamp.before.max.ms",
        SettingType.LONG,
        LONG_MAX,
        "How far a record's CreateTime may be behind the broker's clock; an older one is refused.",
        AtLeast(0),
        (Synonym("log.message.timestamp.before.max.ms"),),
    ),
    Setting(
        "message.timestamp.after.max.ms",
        SettingType.LONG,
        HOUR_MS,
        "How far a record's CreateTime may be ahead of the broker's clock; a later one is refused.",
        AtLeast(0),
        (Synonym("log.message.timestamp.after.max.ms"),),
    ),
)

LEADER_THROTTLED_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_THROTTLED_REPLICAS = "follower.replication.throttled.replicas"
_THROTTLED_REPLICA = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")
EVERY_REPLICA = "*"


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    def accepts(self, value: Value) -> bool:
        if value == (EVERY_REPLICA,):
            return True
        return isinstance(value, tuple) and all(_THROTTLED_REPLICA.fullmatch(item) for item in value)

    def describe(self) -> str:
        return "* or a list of partition:broker, such as 0:1,0:2"


_REPLICATION = (
    Setting(
        LEADER_THROTTLED_REPLICAS,
        SettingType.LIST,
        (),
        "Replicas, as partition:broker or * for all, that are sent to followers out of sync at leader.replication.throttled.rate "
        "at most. Entries of a partition are removed when its move to other brokers ends.",
        ThrottledReplicas(),
    ),
    Setting(
        FOLLOWER_THROTTLED_REPLICAS,
        SettingType.LIST,
        (),
        "Replicas, as partition:broker or * for all, that are copied at follower.replication.throttled.rate at most while they "
        "are out of sync. Entries of a partition are removed when its move to other brokers ends.",
        ThrottledReplicas(),
    ),
)

_DURABILITY = (
    Setting(
        "flush.messages",
        SettingType.LONG,
        1,
        "1: written to disk (fsync, shared by all that wait) before it is acknowledged with acks=all or read. Larger: "
        "acknowledged and read from the page cache and written to disk in the background, as Kafka does by default. Internal "
        "topics do not take it from the broker: only their own setting relaxes them.",
        AtLeast(1),
        (Synonym("log.flush.interval.messages"),),
    ),
    Setting(
        "flush.ms",
        SettingType.LONG,
        LONG_MAX,
        "With flush.messages above 1: the maximum time until a write is synced to the disk.",
        AtLeast(0),
        (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    ),
    Setting(
        "min.insync.replicas",
        SettingType.INT,
        1,
        "How many replicas must have a write before it is acknowledged with acks=all.",
        AtLeast(1),
        (Synonym("min.insync.replicas"),),
    ),
    Setting(
        "unclean.leader.election.enable",
        SettingType.BOOLEAN,
        False,
        "Whether a replica that is not in sync may become leader when no other is left. The records that it lacks are lost.",
        None,
        (Synonym("unclean.leader.election.enable"),),
    ),
    Setting(
        "errors.deadletterqueue.group.enable",
        SettingType.BOOLEAN,
        False,
        "Whether share groups may write their dead letters to this topic.",
    ),
)


QUEUE_ENABLE = "tidelog.queue.enable"
QUEUE_TTL = "tidelog.queue.ttl.ms"
QUEUE_EXPIRED_TO_DEAD_LETTERS = "tidelog.queue.expired.dead.letters.enable"

# Not Kafka's: it skips settings that it does not know.
_QUEUES = (
    Setting(
        QUEUE_ENABLE,
        SettingType.BOOLEAN,
        False,
        "Whether the topic is a queue: share groups keep its messages back until the time in the header tidelog.due, archive "
        "them after the one in tidelog.expires, and are not stopped by a message that is not settled. tidelog queues create "
        "sets it.",
    ),
    Setting(
        QUEUE_TTL,
        SettingType.LONG,
        -1,
        "On a queue: how long a message is handed out that nobody has received, from its timestamp on, or from when it is due. "
        "-1 sets no limit.",
        AtLeast(-1),
    ),
    Setting(
        QUEUE_EXPIRED_TO_DEAD_LETTERS,
        SettingType.BOOLEAN,
        False,
        "On a queue: whether what expires becomes a dead letter in groups that keep dead letters.",
    ),
)


def _check_compaction_lags(values: Mapping[str, Value]) -> None:
    minimum, maximum = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    assert isinstance(minimum, int)
    assert isinstance(maximum, int)
    if minimum > maximum:
        raise InvalidSetting("min.compaction.lag.ms", str(minimum), f"expected at most max.compaction.lag.ms, which is {maximum}")


def _check_queue_is_not_compacted(values: Mapping[str, Value]) -> None:
    policy = values["cleanup.policy"]
    assert isinstance(policy, list | tuple)
    if values[QUEUE_ENABLE] and "compact" in policy:
        reason = f"not possible with {QUEUE_ENABLE}=true, because compaction keeps only the last of the messages with equal keys"
        raise InvalidSetting("cleanup.policy", ",".join(map(str, policy)), reason)


TOPIC = Definitions(
    (*_RETENTION, *_COMPACTION, *_SEGMENTS, *_MESSAGES, *_DURABILITY, *_REPLICATION, *_QUEUES),
    (_check_compaction_lags, _check_queue_is_not_compacted),
)
