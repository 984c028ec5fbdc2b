"""Moving a log's recovery point: the offset from which a crash is checked.

Below it recovery trusts the indexes, the producer snapshots and the leader epochs as they are on the disk, so all of these are
made durable by the same pass that syncs the data, and the recovery point moves when that pass has ended well. It moves at least
every ``tidelog.recovery.point.interval.bytes``, which bounds what a start after a crash has to read.

A snapshot holds the producers' state at the log end of its moment; recovery uses none above the recovery point.
"""

from typing import TYPE_CHECKING

from tidelog.log import names
from tidelog.log.sync_plan import SyncPlan
from tidelog.ports.disk import DiskFile

if TYPE_CHECKING:
    from tidelog.log.partition_log import PartitionLog


def plan_recovery_point(log: "PartitionLog", plan: SyncPlan) -> None:
    """Add to the plan all that recovery will trust below the log's present end."""
    try:
        for segment in log.segments.from_offset(log.recovery_point):
            segment.write_indexes()
            plan.files += segment.index_files()
        plan.files.append(write_snapshot(log))
    except OSError as error:
        # No room, most likely. The data itself is synced all the same; the recovery point waits.
        log.environment.report("recovery_point_deferred", {"partition": log.name, "error": str(error)})
        return
    if log.epochs.dirty:
        plan.epochs = log.epochs.begin_flush()
    if log.directory not in plan.directories:
        plan.directories.append(log.directory)
    # The snapshot's name among others: this plan covers it.
    log.unsynced.directories = tuple(name for name in log.unsynced.directories if name not in plan.directories)
    plan.recovery_point = log.log_end_offset
    log.bytes_since_recovery_point = 0


def write_snapshot(log: "PartitionLog") -> DiskFile:
    """The producers' state as of the log end. Not durable yet; the directory's new name neither."""
    path = names.segment_path(log.directory, log.log_end_offset, names.SNAPSHOT_SUFFIX)
    file = log.environment.disk.open(path, "create")
    file.truncate(0)
    file.write(0, [log.producers.snapshot_bytes()])
    log.snapshot_offset = log.log_end_offset
    log.unsynced.note_directory(log.directory)
    return file


def prune_snapshots(log: "PartitionLog") -> None:
    """Keep those at a segment's beginning, as Kafka does, and the newest. Failing to remove one costs a few bytes."""
    disk = log.environment.disk
    base_offsets = {segment.base_offset for segment in log.segments}
    try:
        for offset in names.base_offsets_of(disk.list_directory(log.directory), names.SNAPSHOT_SUFFIX):
            if offset < log.recovery_point and offset not in base_offsets:
                disk.remove(names.segment_path(log.directory, offset, names.SNAPSHOT_SUFFIX))
    except OSError as error:
        log.environment.report("snapshots_not_pruned", {"partition": log.name, "error": str(error)})
