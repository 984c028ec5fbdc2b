"""The options of a partition log and of a data directory.

Names, types, defaults and documentation stand in ``tidelog.config``; a field here only names the setting that it comes from. Both
objects are frozen: a configuration change hands the log new ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tidelog.config.definition import Definitions
from tidelog.config.storage import STORAGE
from tidelog.config.topic import TOPIC
from tidelog.records.compression import CompressionType

UNLIMITED = -1
# A lookup walks the batches between two index entries, on the event loop: about a millisecond for the smallest batches. Kafka,
# whose lookups have threads of their own, takes any interval.
INDEX_INTERVAL_BYTES_MAX = 64 * 1024
LONG_MAX = 2**63 - 1
_SETTING = "setting"
# The codec that a value of ``compression.type`` names, and the setting with its level.
_CODECS = {
    "producer": (None, ""),
    "uncompressed": (CompressionType.NONE, ""),
    "gzip": (CompressionType.GZIP, "compression.gzip.level"),
    "snappy": (CompressionType.SNAPPY, ""),
    "lz4": (CompressionType.LZ4, "compression.lz4.level"),
    "zstd": (CompressionType.ZSTD, "compression.zstd.level"),
}


def _setting(name: str, definitions: Definitions = TOPIC) -> Any:
    """A field with the value and the default of the setting ``name``."""
    return field(default=definitions.settings[name].default, metadata={_SETTING: name})


def _values_by_field(options: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.name: each.metadata[_SETTING] for each in fields(options) if _SETTING in each.metadata}
    return {field_name: values[name] for field_name, name in names.items() if name in values}


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The settings of a topic that a partition log needs."""

    segment_bytes: int = _setting("segment.bytes")
    segment_ms: int = _setting("segment.ms")
    segment_jitter_ms: int = _setting("segment.jitter.ms")
    segment_index_bytes: int = _setting("segment.index.bytes")
    index_interval_bytes: int = _setting("index.interval.bytes")
    message_bytes_max: int = _setting("max.message.bytes")
    compression: CompressionType | None = None
    """The codec in which batches are stored; None keeps the producer's. Set by ``compression.type``."""
    compression_level: int | None = None
    """The level of that codec, set by ``compression.gzip.level``, ``compression.lz4.level`` or ``compression.zstd.level``."""
    log_append_time: bool = False
    """Set by ``message.timestamp.type``."""
    timestamp_before_max_ms: int = _setting("message.timestamp.before.max.ms")
    timestamp_after_max_ms: int = _setting("message.timestamp.after.max.ms")
    compact: bool = False
    delete: bool = True
    """Both are set by ``cleanup.policy``."""
    is_queue: bool = _setting("tidelog.queue.enable")
    retention_ms: int = _setting("retention.ms")
    retention_bytes: int = _setting("retention.bytes")
    file_delete_delay_ms: int = _setting("file.delete.delay.ms")
    delete_retention_ms: int = _setting("delete.retention.ms")
    min_cleanable_dirty_ratio: float = _setting("min.cleanable.dirty.ratio")
    min_compaction_lag_ms: int = _setting("min.compaction.lag.ms")
    max_compaction_lag_ms: int = _setting("max.compaction.lag.ms")
    flush_messages: int = _setting("flush.messages")
    flush_ms: int = _setting("flush.ms")
    producer_id_expiration_ms: int = _setting("producer.id.expiration.ms", STORAGE)
    is_relaxed: bool = field(init=False, repr=False, compare=False)
    """Whether writes are acknowledged from the page cache and synced in the background, because the topic asked for it. Every
    append reads it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_relaxed", self.flush_messages > 1)

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> "LogSettings":
        """Build the settings from parsed ones under Kafka's names; missing settings keep their defaults."""
        chosen = _values_by_field(cls, values)
        codec, level_setting = _CODECS[values.get("compression.type", "producer")]
        chosen["compression"], chosen["compression_level"] = codec, values.get(level_setting)
        if "message.timestamp.type" in values:
            chosen["log_append_time"] = values["message.timestamp.type"] == "LogAppendTime"
        if "cleanup.policy" in values:
            chosen["compact"] = "compact" in values["cleanup.policy"]
            chosen["delete"] = "delete" in values["cleanup.policy"]
        if "index_interval_bytes" in chosen:
            chosen["index_interval_bytes"] = min(chosen["index_interval_bytes"], INDEX_INTERVAL_BYTES_MAX)
        settings = cls(**chosen)
        if settings.compact and settings.segment_ms > settings.max_compaction_lag_ms:
            # The active segment is never compacted, so it must not stay active for longer than a record may wait.
            return replace(settings, segment_ms=settings.max_compaction_lag_ms)
        return settings


@dataclass(frozen=True, slots=True)
class DirectoryOptions:
    """The settings of a data directory as a whole."""

    open_files_max: int = _setting("tidelog.open.files.max", STORAGE)
    index_cache_bytes: int = _setting("tidelog.index.cache.bytes", STORAGE)
    recovery_point_interval_bytes: int = _setting("tidelog.recovery.point.interval.bytes", STORAGE)
    disk_reserve_bytes: int = _setting("tidelog.disk.reserve.bytes", STORAGE)
    syncfs_files_min: int = _setting("tidelog.group.commit.syncfs.files.min", STORAGE)
    retention_check_interval_ms: int = _setting("log.retention.check.interval.ms", STORAGE)
    checkpoint_interval_ms: int = _setting("log.flush.offset.checkpoint.interval.ms", STORAGE)
    start_offset_checkpoint_interval_ms: int = _setting("log.flush.start.offset.checkpoint.interval.ms", STORAGE)
    producer_expiration_check_interval_ms: int = _setting("producer.id.expiration.check.interval.ms", STORAGE)
    cleaner_threads: int = _setting("log.cleaner.threads", STORAGE)
    cleaner_buffer_bytes: int = _setting("log.cleaner.dedupe.buffer.size", STORAGE)
    cleaner_bytes_per_second_max: float = _setting("log.cleaner.io.max.bytes.per.second", STORAGE)
    cleaner_backoff_ms: int = _setting("log.cleaner.backoff.ms", STORAGE)

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> "DirectoryOptions":
        """Build the options from parsed broker settings under Kafka's names; missing settings keep their defaults."""
        return cls(**_values_by_field(cls, values))
