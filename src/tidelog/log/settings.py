"""What a partition log needs to know of its topic's configuration.

A frozen snapshot: a configuration change hands the log a new one. Names are Kafka's, turned into Python's, with the unit last.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

DAY_MS = 86_400_000
UNLIMITED = -1
LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogSettings:
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    message_bytes_max: int = 1_048_588
    log_append_time: bool = False
    timestamp_before_max_ms: int = LONG_MAX
    timestamp_after_max_ms: int = 3_600_000
    compact: bool = False
    delete: bool = True
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = UNLIMITED
    file_delete_delay_ms: int = 60_000
    delete_retention_ms: int = DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    flush_messages: int = 1
    flush_ms: int = LONG_MAX
    producer_id_expiration_ms: int = DAY_MS
    is_relaxed: bool = field(init=False, repr=False, compare=False)
    """Acknowledged from the page cache, synced in the background: only where the topic asked for it. Every append asks."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_relaxed", self.flush_messages > 1)

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> "LogSettings":
        """From parsed topic settings under Kafka's names; what is absent keeps its default."""
        chosen = {field: values[name] for name, field in _FIELD_BY_NAME.items() if name in values}
        if "message.timestamp.type" in values:
            chosen["log_append_time"] = values["message.timestamp.type"] == "LogAppendTime"
        if "cleanup.policy" in values:
            chosen["compact"] = "compact" in values["cleanup.policy"]
            chosen["delete"] = "delete" in values["cleanup.policy"]
        settings = cls(**chosen)
        if settings.compact and settings.segment_ms > settings.max_compaction_lag_ms:
            # The active segment is never compacted, so it must not stay active for longer than a record may wait.
            return replace(settings, segment_ms=settings.max_compaction_lag_ms)
        return settings


_FIELD_BY_NAME = {
    "segment.bytes": "segment_bytes",
    "segment.ms": "segment_ms",
    "segment.jitter.ms": "segment_jitter_ms",
    "segment.index.bytes": "segment_index_bytes",
    "index.interval.bytes": "index_interval_bytes",
    "max.message.bytes": "message_bytes_max",
    "message.timestamp.before.max.ms": "timestamp_before_max_ms",
    "message.timestamp.after.max.ms": "timestamp_after_max_ms",
    "retention.ms": "retention_ms",
    "retention.bytes": "retention_bytes",
    "file.delete.delay.ms": "file_delete_delay_ms",
    "delete.retention.ms": "delete_retention_ms",
    "min.cleanable.dirty.ratio": "min_cleanable_dirty_ratio",
    "min.compaction.lag.ms": "min_compaction_lag_ms",
    "max.compaction.lag.ms": "max_compaction_lag_ms",
    "flush.messages": "flush_messages",
    "flush.ms": "flush_ms",
    "producer.id.expiration.ms": "producer_id_expiration_ms",
}
