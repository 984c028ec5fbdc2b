"""The settings of a data directory as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DirectoryOptions:
    open_files_max: int = 4096
    index_cache_bytes: int = 64 << 20
    recovery_point_interval_bytes: int = 64 << 20
    syncfs_files_min: int = 8
    retention_check_interval_ms: int = 300_000
    checkpoint_interval_ms: int = 60_000
    cleaner_buffer_bytes: int = 128 << 20
    cleaner_bytes_per_second_max: float = float("inf")
    cleaner_backoff_ms: int = 15_000

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> "DirectoryOptions":
        """From parsed broker settings under Kafka's names; what is absent keeps its default."""
        return cls(**{field: values[name] for name, field in _FIELD_BY_NAME.items() if name in values})


_FIELD_BY_NAME = {
    "tidelog.open.files.max": "open_files_max",
    "tidelog.index.cache.bytes": "index_cache_bytes",
    "tidelog.recovery.point.interval.bytes": "recovery_point_interval_bytes",
    "tidelog.group.commit.syncfs.files.min": "syncfs_files_min",
    "log.retention.check.interval.ms": "retention_check_interval_ms",
    "log.flush.offset.checkpoint.interval.ms": "checkpoint_interval_ms",
    "log.cleaner.dedupe.buffer.size": "cleaner_buffer_bytes",
    "log.cleaner.io.max.bytes.per.second": "cleaner_bytes_per_second_max",
    "log.cleaner.backoff.ms": "cleaner_backoff_ms",
}
