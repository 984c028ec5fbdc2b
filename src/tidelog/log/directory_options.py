"""The settings of a data directory as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Measured on ext4 over a virtual disk, for files that each had 1 KB appended. Idle: 1 file takes 0.23 ms by fdatasync and 0.32 ms
# by syncfs; 2 files 0.42 and 0.36; 4 files 0.88 and 0.45; 16 files 2.6 and 0.6; 64 files 12 and 1.0; 512 files 82 and 4.6. With
# every core busy each call waits for the journal's thread, some 4 ms: 4 files 8.7 and 1.8 ms, 64 files 299 and 7.7. But syncfs
# also writes what others have in the page cache: with 32 MB of that, 4 files take 20 and 24 ms, 8 files 42 and 20. So from
# 4 files on it is never much worse, and mostly far better. (config/storage.py has the same default.)
SYNCFS_FILES_MIN = 4


@dataclass(frozen=True, slots=True)
class DirectoryOptions:
    open_files_max: int = 4096
    index_cache_bytes: int = 64 << 20
    recovery_point_interval_bytes: int = 64 << 20
    syncfs_files_min: int = SYNCFS_FILES_MIN
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
