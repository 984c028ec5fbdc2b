"""The settings of the storage tests: everything small, so that a few dozen actions roll, spill, rewrite, expire and compact."""

from tidelog.log.durability.durable_marks import BLOCK_BYTES, DurableMarks
from tidelog.log.settings import DirectoryOptions, LogSettings
from tidelog.ports.disk import Disk

PATH = "/data"
KEYS = [("orders", 0), ("orders", 1), ("accounts", 0)]
SMALL_JOURNAL_BYTES = 4 * BLOCK_BYTES
COMMON = LogSettings(
    segment_bytes=900,
    index_interval_bytes=150,
    file_delete_delay_ms=300,
    retention_ms=60_000,
    producer_id_expiration_ms=1 << 50,
    timestamp_after_max_ms=1 << 50,
)
SETTINGS_BY_TOPIC = {
    "orders": COMMON,
    "accounts": LogSettings(
        segment_bytes=900,
        index_interval_bytes=150,
        file_delete_delay_ms=300,
        compact=True,
        delete=False,
        delete_retention_ms=2_000,
        min_cleanable_dirty_ratio=0.01,
        producer_id_expiration_ms=1 << 50,
        timestamp_after_max_ms=1 << 50,
    ),
}
OPTIONS = DirectoryOptions(
    open_files_max=6,
    index_cache_bytes=256,
    recovery_point_interval_bytes=2_000,
    disk_reserve_bytes=4096,
    syncfs_files_min=9,
    retention_check_interval_ms=700,
    checkpoint_interval_ms=900,
    cleaner_backoff_ms=400,
)


class SmallJournal:
    """Stands in for DurableMarks while a directory is opened: the same journal, full after a few flushes."""

    @staticmethod
    def open(disk: Disk, directory: str) -> DurableMarks:
        return DurableMarks.open(disk, directory, SMALL_JOURNAL_BYTES)
