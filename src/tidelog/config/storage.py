"""Broker settings of the storage engine, and the broker-wide defaults of the topic settings.

Kafka's names where Kafka has the setting. What only this engine has begins with ``tidelog.``.
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
        "How many compactions run at once, each in a child process. 0 runs none.",
        AtLeast(0),
    ),
    Setting(
        "log.cleaner.dedupe.buffer.size",
        SettingType.LONG,
        128 * MEBIBYTE,
        "The memory for the map of latest offsets by key, over all compactions; more keys than fit take several passes.",
        AtLeast(MEBIBYTE),
    ),
    Setting(
        "log.cleaner.io.max.bytes.per.second",
        SettingType.DOUBLE,
        sys.float_info.max,
        "How much compaction reads and writes per second on average, at most.",
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
        "How often the recovery points are written down, from which a start after a crash checks.",
        AtLeast(0),
    ),
    Setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        SettingType.INT,
        60_000,
        "How often the log start offsets are written down.",
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
        "How often producers that stopped writing are looked for.",
        AtLeast(1),
    ),
)

_ENGINE = (
    Setting(
        "tidelog.open.files.max",
        SettingType.INT,
        4096,
        "How many segment files are kept open at once; beyond that the one not used for longest is closed.",
        AtLeast(16),
    ),
    Setting(
        "tidelog.index.cache.bytes",
        SettingType.LONG,
        64 * MEBIBYTE,
        "The memory for indexes that were loaded to answer reads; beyond it the one not used for longest is dropped.",
        AtLeast(MEBIBYTE),
    ),
    Setting(
        "tidelog.recovery.point.interval.bytes",
        SettingType.LONG,
        64 * MEBIBYTE,
        "After how many bytes at most a partition's recovery point moves: what a start after a crash has to check.",
        AtLeast(MEBIBYTE),
    ),
    Setting(
        "tidelog.group.commit.syncfs.files.min",
        SettingType.INT,
        4,
        "From how many dirty files on a group commit calls syncfs once instead of fdatasync on each.",
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
    (*_BROKER, *_CLEANER, *_HOUSEKEEPING, *_ENGINE, *broker_settings(TOPIC)),
    (_check_dedupe_buffer,),
)
