"""Logs: sizes, offsets, producers, what is offline; and group commit, which makes them durable.

All logs are walked over, in slices; the first ``PARTITIONS_MAX`` have series of their own.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidelog.metrics.histogram import COUNTS, SECONDS
from tidelog.metrics.registry import Description, Kind, Registry, Sample

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

# Four lines each: half a megabyte of text.
PARTITIONS_MAX = 1_000

_LABELS = ("topic", "partition")

SIZE = Description("tidelog_log_size_bytes", Kind.GAUGE, "Size of a partition's segments.", _LABELS, PARTITIONS_MAX)
START = Description("tidelog_log_start_offset", Kind.GAUGE, "First offset that can be read.", _LABELS, PARTITIONS_MAX)
HIGH_WATERMARK = Description(
    "tidelog_log_high_watermark", Kind.GAUGE, "Offset below which consumers may read.", _LABELS, PARTITIONS_MAX
)
END = Description("tidelog_log_end_offset", Kind.GAUGE, "Offset of the next record.", _LABELS, PARTITIONS_MAX)
PARTITIONS = Description("tidelog_partitions", Kind.GAUGE, "Partitions with a log here, internal ones too.")
OFFLINE = Description("tidelog_partitions_offline", Kind.GAUGE, "Partitions whose log is damaged, or whose disk failed.")
SEGMENTS = Description("tidelog_log_segments", Kind.GAUGE, "Segments of all logs.")
PRODUCER_IDS = Description("tidelog_producer_ids", Kind.GAUGE, "Producers that logs remember, each once for every partition.")
OPEN_TRANSACTIONS = Description(
    "tidelog_log_open_transactions", Kind.GAUGE, "Transactions open in logs, each once for every partition."
)
OPEN_TRANSACTION_IDLE = Description(
    "tidelog_log_open_transaction_idle_seconds_max",
    Kind.GAUGE,
    "Since the last record of the open transaction that holds back readers of its partition, in the worst partition.",
)
PASSES = Description("tidelog_group_commit_passes_total", Kind.COUNTER, "Passes of group commit.")
FILE_SYSTEM_SYNCS = Description(
    "tidelog_group_commit_file_system_syncs_total", Kind.COUNTER, "Passes that synced the whole file system instead of files."
)
PASS_LOGS = Description("tidelog_group_commit_logs", Kind.HISTOGRAM, "Logs that one pass made durable.")
SYNC = Description(
    "tidelog_group_commit_sync_seconds", Kind.HISTOGRAM, "What the disk took for the syncs of one pass (fdatasync, syncfs)."
)
PASS = Description(
    "tidelog_group_commit_pass_seconds", Kind.HISTOGRAM, "One pass as the loop saw it: the syncs, and waiting for threads."
)


def add_log_metrics(registry: Registry, broker: "Broker") -> None:
    of_logs = [SIZE, START, HIGH_WATERMARK, END]
    of_all = [PARTITIONS, OFFLINE, SEGMENTS, PRODUCER_IDS, OPEN_TRANSACTIONS, OPEN_TRANSACTION_IDLE]
    registry.add([*of_logs, *of_all], lambda: _collect_logs(broker))
    registry.add([PASSES, FILE_SYSTEM_SYNCS, PASS_LOGS, SYNC, PASS], lambda: _collect_commits(broker))
    registry.add_value(
        Kind.GAUGE,
        "tidelog_open_segment_files",
        "Segment files that are kept open.",
        lambda: len(broker.directory.environment.handles),
    )
    registry.add_value(
        Kind.GAUGE,
        "tidelog_disk_backlog_bytes",
        "Bytes of producers that may not be synced yet, at most; topics with relaxed durability aside.",
        lambda: broker.partitions.appends.unsynced_bytes,
    )
    registry.add_value(
        Kind.COUNTER,
        "tidelog_produce_held_total",
        "Produce requests with acks=0 or acks=1 that were answered later, because the disk was too far behind.",
        lambda: broker.backlog.held,
    )


def _collect_logs(broker: "Broker") -> Iterator[Sample]:
    now_ms = broker.clock.now_ms()
    offline = len(broker.directory.offline)
    segments = producers = transactions = 0
    idle_ms_max = 0
    logs = list(broker.directory.logs.items())
    for (topic, partition), log in logs:
        labels = (topic, str(partition))
        yield SIZE, labels, log.size
        yield START, labels, log.log_start_offset
        yield HIGH_WATERMARK, labels, log.high_watermark
        yield END, labels, log.log_end_offset
        offline += log.offline_reason is not None
        segments += len(log.segments)
        state = log.producers
        producers += state.producer_count
        oldest = state.oldest_open_producer
        if oldest is not None:
            transactions += state.open_transaction_count
            idle_ms_max = max(idle_ms_max, now_ms - oldest.last_timestamp)
    yield PARTITIONS, (), len(logs) + len(broker.directory.offline)
    yield OFFLINE, (), offline
    yield SEGMENTS, (), segments
    yield PRODUCER_IDS, (), producers
    yield OPEN_TRANSACTIONS, (), transactions
    yield OPEN_TRANSACTION_IDLE, (), idle_ms_max / 1000


def _collect_commits(broker: "Broker") -> Iterator[Sample]:
    statistics = broker.directory.commit.statistics
    yield PASSES, (), statistics.passes
    yield FILE_SYSTEM_SYNCS, (), statistics.file_system_syncs
    yield PASS_LOGS, (), statistics.pass_logs.value(COUNTS)
    yield SYNC, (), statistics.sync_ns.value(SECONDS)
    yield PASS, (), statistics.pass_ns.value(SECONDS)
