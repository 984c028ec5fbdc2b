"""Broker settings of the storage engine, and the broker-wide defaults of the topic settings.

Names are Kafka's where Kafka has the setting. The names of settings that only this engine has begin with ``tidelog.``.
"""

import sys
from collections.abc import Mapping

from tidelog.config.definition import AtLeast, Definitions, Setting, broker_settings
from tidelog.config.topic import DAY_MS, MEBIBYTE, TOPIC
from tidelog.config.types import InvalidSetting, SettingType, Value

_BROKER = (
    Setting(
        "node.id",
        SettingType.INT,
        1,
        "This broker's number in its cluster; kept in meta.properties, and a directory of another node is refused.",
        AtLeast(0),
    ),
)

_CLEANER = (
    Setting(
        "log.cleaner.threads",
        SettingType.INT,
        1,
        "0 switches compaction off. With any other number one compaction runs at a time, in a child process.",
        AtLeast(0),
    ),
    Setting(
        "log.cleaner.dedupe.buffer.size",
        SettingType.LONG,
        128 * MEBIBYTE,
        "The memory for compaction's map of the latest offset of each key; more keys than fit take several passes.",
        AtLeast(MEBIBYTE),
    ),
    Setting(
        "log.cleaner.io.max.bytes.per.second",
        SettingType.DOUBLE,
        sys.float_info.max,
        "How many bytes compaction reads and writes per second on average, at most.",
        AtLeast(1),
    ),
    Setting(
        "log.cleaner.backoff.ms",
        SettingType.LONG,
        15_000,
        "How long compaction rests when no log needs it.",
        AtLeast(0),
    ),
)

_HOUSEKEEPING = (
    Setting(
        "log.retention.check.interval.ms",
        SettingType.LONG,
        300_000,
        "How often segments are checked against their retention.",
        AtLeast(1),
    ),
    Setting(
        "log.flush.offset.checkpoint.interval.ms",
        SettingType.INT,
        60_000,
        "How often high watermarks are written to their checkpoint, and recovery points, unless they were written when they "
        "moved. A start after a crash checks each log from its recovery point on.",
        AtLeast(0),
    ),
    Setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        SettingType.INT,
        60_000,
        "How often log start offsets are written to their checkpoint. Deletions are written at once.",
        AtLeast(0),
    ),
    Setting(
        "producer.id.expiration.ms",
        SettingType.INT,
        DAY_MS,
        "How long a partition remembers a producer that stopped writing, to tell a duplicate from a new batch.",
        AtLeast(1),
    ),
    Setting(
        "producer.id.expiration.check.interval.ms",
        SettingType.INT,
        600_000,
        "How often the broker looks for producers that stopped writing.",
        AtLeast(1),
    ),
)

_METADATA_LOG = (
    Setting(
        "metadata.log.max.record.bytes.between.snapshots",
        SettingType.LONG,
        20 * MEBIBYTE,
        "A snapshot of the metadata is taken when records of so many bytes were written since the last one. A start reads the "
        "latest snapshot and the records after it.",
        AtLeast(1),
    ),
    Setting(
        "metadata.log.max.snapshot.interval.ms",
        SettingType.LONG,
        3_600_000,
        "A snapshot of the metadata is taken when so much time has passed since the last one, if anything was written; 0 means "
        "that only the number of bytes counts.",
        AtLeast(0),
    ),
    Setting(
        "metadata.max.retention.bytes",
        SettingType.LONG,
        100 * MEBIBYTE,
        "While the metadata log and its snapshots take more than this, the oldest snapshot and the log below the next one are "
        "deleted. The latest snapshot and the log after it always stay; -1 means no limit.",
        AtLeast(-1),
    ),
    Setting(
        "metadata.max.retention.ms",
        SettingType.LONG,
        7 * DAY_MS,
        "A snapshot of the metadata that is older than this, and the log below the next one, are deleted, unless it is the "
        "latest; -1 means no limit.",
        AtLeast(-1),
    ),
)

_ENGINE = (
    Setting(
        "tidelog.open.files.max",
        SettingType.INT,
        4096,
        "How many segment files are kept open at once; beyond that the least recently used one is closed. Fewer if the process "
        "may not open that many descriptors.",
        AtLeast(16),
    ),
    Setting(
        "tidelog.index.cache.bytes",
        SettingType.LONG,
        64 * MEBIBYTE,
        "The memory for indexes that were loaded to answer reads; beyond it the least recently used one is dropped.",
        AtLeast(MEBIBYTE),
    ),
    Setting(
        "tidelog.recovery.point.interval.bytes",
        SettingType.LONG,
        64 * MEBIBYTE,
        "A partition's recovery point moves at least every so many bytes, which limits what a start after a crash has to check.",
        AtLeast(MEBIBYTE),
    ),
    Setting(
        "tidelog.disk.reserve.bytes",
        SettingType.INT,
        MEBIBYTE,
        "Disk space that is kept back so that a broker can start on a full disk, delete topics and lower their retention. "
        "0: none. A checkpoint has about 40 bytes per partition, and the reserve should hold one.",
        AtLeast(0),
    ),
    # Measured on ext4 over a virtual disk, for files that each had 1 KB appended. Idle: 1 file takes 0.23 ms by fdatasync and
    # 0.32 ms by syncfs; 2 files 0.42 and 0.36; 4 files 0.88 and 0.45; 16 files 2.6 and 0.6; 64 files 12 and 1.0; 512 files 82
    # and 4.6. With every core busy each call waits for the journal's thread, some 4 ms: 4 files 8.7 and 1.8 ms, 64 files 299 and
    # 7.7. But syncfs also writes what others have in the page cache: with 32 MB of that, 4 files take 20 and 24 ms, 8 files 42
    # and 20. So from 4 files on it is never much worse, and mostly far better.
    Setting(
        "tidelog.group.commit.syncfs.files.min",
        SettingType.INT,
        4,
        "A group commit of at least this many files calls syncfs once instead of fdatasync on each file.",
        AtLeast(1),
    ),
)


def _check_dedupe_buffer(values: Mapping[str, Value]) -> None:
    size, threads = values["log.cleaner.dedupe.buffer.size"], values["log.cleaner.threads"]
    assert isinstance(size, int)
    assert isinstance(threads, int)
    if size < threads * MEBIBYTE:
        reason = f"expected at least 1048576 for each of the {threads} log.cleaner.threads"
        raise InvalidSetting("log.cleaner.dedupe.buffer.size", str(size), reason)


STORAGE = Definitions(
    (*_BROKER, *_CLEANER, *_HOUSEKEEPING, *_METADATA_LOG, *_ENGINE, *broker_settings(TOPIC)),
    (_check_dedupe_buffer,),
)
