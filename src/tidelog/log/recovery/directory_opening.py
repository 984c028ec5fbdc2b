"""Opens a data directory: checks its owner, reads its files, and opens the partitions that can be served.

Taking a directory over happens in this order: the lock (nobody else uses it), ``meta.properties`` (it belongs to this broker),
the checkpoints and durable marks, and the clean-shutdown mark, which is removed *before* anything is written, so that it can
only ever describe the stop just before this start.

Each partition opens by itself: a damaged one stays offline with the reason, and the others continue. Directories that are being
deleted are removed. At the end one sync makes everything durable that recovery kept.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tidelog.log import names
from tidelog.log.durability.checkpoints import (
    MetaProperties,
    clean_shutdown_epoch,
    last_broker_epoch,
    read_meta_properties,
    read_offset_checkpoint,
    read_partition_metadata,
    remove_clean_shutdown,
    was_cleanly_shut_down,
    write_meta_properties,
    write_offset_checkpoint,
    write_partition_metadata,
)
from tidelog.log.durability.durable_marks import DurableMarks
from tidelog.log.durability.sync_plan import NEVER_SYNCFS, SyncPlan, run_plans
from tidelog.log.environment import LogEnvironment, Report, is_scarcity
from tidelog.log.errors import (
    CorruptCheckpoint,
    CorruptIndex,
    CorruptLog,
    CorruptSnapshot,
    DirectoryLocked,
    DirectoryUnusable,
    StorageError,
)
from tidelog.log.partition_log import PartitionLog
from tidelog.log.recovery.log_recovery import LogOpening, open_log
from tidelog.log.retention.deletion_queue import remove_tree
from tidelog.log.settings import LogSettings
from tidelog.ports.disk import DirectoryLock, Disk, FileSystem
from tidelog.ports.randomness import Randomness
from tidelog.records.topic_partition import TopicPartition

NO_TOPIC_ID = bytes(16)
# The bytes on the disk were read, and they are wrong. Everything else (a shortage, a device that does not answer, a mistake of
# ours) proves nothing about them.
DAMAGE = (CorruptLog, CorruptIndex, CorruptSnapshot, CorruptCheckpoint)
# A plan holds about five open files (segment, indexes, snapshot): ten thousand plans at once would exceed a process's limit.
SYNC_LOGS_AT_ONCE = 128


@dataclass(slots=True)
class DirectoryState:
    """The state that the files of a data directory describe."""

    offsets_by_file: dict[str, dict[TopicPartition, int]]
    marks: DurableMarks
    has_marks: bool
    was_stopped_cleanly: bool
    broker_epoch: int
    """The epoch of the broker that stopped cleanly; -1 if it is not known."""
    last_broker_epoch: int
    """The same for a broker that may have crashed."""


@dataclass(slots=True)
class OpenedLogs:
    logs: dict[TopicPartition, PartitionLog] = field(default_factory=dict)
    offline: dict[TopicPartition, str] = field(default_factory=dict)
    damaged: set[TopicPartition] = field(default_factory=set)
    """Those of them whose bytes are wrong. The others could not be read, and may well be sound."""
    missing: dict[TopicPartition, bytes] = field(default_factory=dict)
    """The topic ids of partitions that have no directory any more, although they held durable records: somebody removed it, or a
    crash kept their deletion and lost the removal of their mark. Only the metadata can tell."""


def take_over(
    disk: Disk, randomness: Randomness, path: str, cluster_id: str, node_id: int
) -> tuple[DirectoryLock, MetaProperties]:
    """Create the directory if it is missing, lock it, and check or write its owner."""
    lock = lock_for_use(disk, path)
    try:
        return lock, _check_owner(disk, randomness, path, cluster_id, node_id)
    except BaseException:
        lock.release()
        raise


def lock_for_use(disk: Disk, path: str) -> DirectoryLock:
    """Create the directory if it is missing, and lock it."""
    try:
        _make_durable_directory(disk, path)
        return disk.lock(names.join(path, names.LOCK_FILE))
    except BlockingIOError as error:
        raise DirectoryLocked(f"{path} is used by another process: stop it, or choose another data directory") from error
    except OSError as error:
        raise DirectoryUnusable(f"{path} cannot be used as a data directory: {error.strerror or error}") from error


def _make_durable_directory(disk: Disk, path: str) -> None:
    """Create the directory, and sync its entry in the parent: every record's path depends on it. Sync it even when the directory
    exists: it may have been created by a start that was killed."""
    is_there = disk.is_directory(path)
    disk.make_directory(path)
    parent = path.rstrip("/").rpartition("/")[0] or ("/" if path.startswith("/") else ".")
    try:
        disk.sync_directory(parent)
    except PermissionError:
        # A parent directory that we may not even read was not written by us either.
        if not is_there:
            raise


def _check_owner(disk: Disk, randomness: Randomness, path: str, cluster_id: str, node_id: int) -> MetaProperties:
    meta_path = names.join(path, names.META_PROPERTIES)
    try:
        found = read_meta_properties(disk, meta_path)
        if found is None:
            found = MetaProperties(cluster_id, node_id, randomness.token(16))
            write_meta_properties(disk, meta_path, found)
    except OSError as error:
        raise DirectoryUnusable(f"{path} cannot be written: {error.strerror or error}") from error
    if found.cluster_id != cluster_id:
        raise DirectoryUnusable(
            f"{path} belongs to cluster {found.cluster_id}, but this broker belongs to cluster {cluster_id}; choose another data "
            "directory (log.dirs)"
        )
    if found.node_id != node_id:
        raise DirectoryUnusable(
            f"{path} belongs to broker {found.node_id}, but this is broker {node_id}; choose another data directory (log.dirs) "
            "or that broker's id (node.id)"
        )
    return found


def read_state(disk: Disk, path: str, report: Report) -> DirectoryState:
    """Read checkpoints and marks, and remove the clean-shutdown mark."""

    def lenient(name: str) -> dict[TopicPartition, int]:
        """Losing one of these only costs time: recovery starts earlier, or cleaning starts from the beginning."""
        try:
            return read_offset_checkpoint(disk, names.join(path, name))
        except CorruptCheckpoint as error:
            report("checkpoint_ignored", {"error": str(error)})
            return {}

    was_stopped_cleanly, broker_epoch = was_cleanly_shut_down(disk, path), clean_shutdown_epoch(disk, path)
    if was_stopped_cleanly:
        remove_clean_shutdown(disk, path)
    lenient_names = (names.RECOVERY_POINT_CHECKPOINT, names.HIGH_WATERMARK_CHECKPOINT, names.CLEANER_CHECKPOINT)
    offsets_by_file = {name: lenient(name) for name in lenient_names}
    # Not lenient: without this file deleted records would come back.
    start_name = names.LOG_START_OFFSET_CHECKPOINT
    offsets_by_file[start_name] = read_offset_checkpoint(disk, names.join(path, start_name))
    marks = DurableMarks.open(disk, path)
    if marks.damage is not None:
        report("durable_marks_damaged", {"damage": marks.damage})
    return DirectoryState(
        offsets_by_file=offsets_by_file,
        marks=marks,
        has_marks=disk.exists(names.join(path, names.DURABLE_MARKS)),
        was_stopped_cleanly=was_stopped_cleanly,
        broker_epoch=broker_epoch,
        last_broker_epoch=last_broker_epoch(disk, path),
    )


def open_logs(
    environment: LogEnvironment,
    path: str,
    state: DirectoryState,
    settings_for: Callable[[str], LogSettings],
    on_progress: Callable[[int, int], None] | None = None,
) -> OpenedLogs:
    opened = OpenedLogs()
    disk = environment.disk
    directories = disk.list_directory(path)
    retired: set[TopicPartition] = set()
    for number, name in enumerate(directories):
        directory = names.join(path, name)
        parsed = names.parse_partition_directory_name(name)
        if parsed is None or not disk.is_directory(directory):
            continue
        if parsed.state:
            retired.add((parsed.topic, parsed.partition))
        if parsed.state == "delete":
            try:
                remove_tree(disk, directory)
            except OSError as error:
                environment.report("deletion_failed", {"error": str(error)})
        elif not parsed.state:
            key = parsed.topic, parsed.partition
            try:
                opened.logs[key] = _open_one(environment, path, directory, key, state, settings_for(parsed.topic))
            except Exception as error:  # Whatever is wrong with this partition's bytes, the others must open.
                opened.offline[key] = str(error)
                if isinstance(error, DAMAGE):
                    opened.damaged.add(key)
                environment.report("partition_offline", {"partition": name, "reason": str(error)})
        if on_progress is not None:
            on_progress(number + 1, len(directories))
    opened.missing = {
        key: topic_id
        for key, topic_id in _with_durable_records(state)
        if key not in opened.logs and key not in opened.offline and key not in retired
    }
    return opened


def _with_durable_records(state: DirectoryState) -> Iterator[tuple[TopicPartition, bytes]]:
    """The partitions that held durable records by their marks, with their topic ids."""
    starts = state.offsets_by_file[names.LOG_START_OFFSET_CHECKPOINT]
    for name in state.marks.names():
        parsed = names.parse_partition_directory_name(name)
        topic_id = state.marks.topic_id(name)
        if parsed is not None and topic_id is not None:
            key = parsed.topic, parsed.partition
            if (state.marks.mark(name, topic_id) or 0) > starts.get(key, 0):
                yield key, topic_id


def _open_one(
    environment: LogEnvironment, path: str, directory: str, key: TopicPartition, state: DirectoryState, settings: LogSettings
) -> PartitionLog:
    topic, partition = key
    name = names.partition_directory_name(topic, partition)
    topic_id = _read_topic_id(environment, directory, state.marks.topic_id(name))
    recovery_point = state.offsets_by_file[names.RECOVERY_POINT_CHECKPOINT].get(key, 0)
    durable_mark = max(state.marks.mark(name, topic_id) or 0, recovery_point)
    high_watermark = state.offsets_by_file[names.HIGH_WATERMARK_CHECKPOINT].get(key, 0)

    def lower_recovery_point(offset: int) -> None:
        use_reserve = environment.reserve.use
        if state.has_marks:
            # From now on the mark says what the recovery point said about durability.
            state.marks.record(name, topic_id, durable_mark)
            use_reserve(state.marks.flush)
        recovery_points = state.offsets_by_file[names.RECOVERY_POINT_CHECKPOINT]
        recovery_points[key] = offset
        checkpoint_path = names.join(path, names.RECOVERY_POINT_CHECKPOINT)
        use_reserve(lambda: write_offset_checkpoint(environment.disk, checkpoint_path, recovery_points))

    log = open_log(
        environment,
        LogOpening(
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            directory=directory,
            settings=settings,
            recovery_point=recovery_point,
            log_start_offset=state.offsets_by_file[names.LOG_START_OFFSET_CHECKPOINT].get(key, 0),
            durable_mark=durable_mark,
            was_stopped_cleanly=state.was_stopped_cleanly,
            has_marks=state.has_marks,
            lower_recovery_point=lower_recovery_point,
            high_watermark=high_watermark,
        ),
    )
    log.advance_high_watermark(max(high_watermark, log.log_start_offset))
    return log


def _read_topic_id(environment: LogEnvironment, directory: str, marked_id: bytes | None) -> bytes:
    """Read the topic id from the partition's own file; when that is missing or damaged, take it from the journal of marks and
    write the file again. Zeros when neither has it: both become durable with the first record, so such a log has no record to
    lose."""
    path = names.join(directory, names.PARTITION_METADATA)
    try:
        topic_id = read_partition_metadata(environment.disk, path)
    except CorruptCheckpoint as error:
        environment.report("partition_metadata_ignored", {"error": str(error)})
        topic_id = None
    if topic_id is not None:
        return topic_id
    if marked_id is None or marked_id == NO_TOPIC_ID:
        return NO_TOPIC_ID
    environment.reserve.use(lambda: write_partition_metadata(environment.disk, path, marked_id))
    return marked_id


def sync_all(disk: Disk, file_system: FileSystem, logs: list[PartitionLog], syncfs_files_min: int) -> None:
    """Make everything durable that these logs hold, or take them offline. Blocks; for starting and stopping. Raises OSError if
    there are not even enough descriptors to sync one log after the other."""
    for first in range(0, len(logs), SYNC_LOGS_AT_ONCE):
        some = logs[first : first + SYNC_LOGS_AT_ONCE]
        shortages, has_failed = _sync_some(disk, file_system, some, syncfs_files_min)
        if has_failed:
            syncfs_files_min = NEVER_SYNCFS
        for log in shortages:
            again, _ = _sync_some(disk, file_system, [log], syncfs_files_min)
            if again:
                raise again[log]


def _sync_some(
    disk: Disk, file_system: FileSystem, logs: list[PartitionLog], syncfs_files_min: int
) -> tuple[dict[PartitionLog, OSError], bool]:
    """Sync these logs together. Returns the logs that there was a shortage for, and whether ``syncfs`` has failed."""
    shortages: dict[PartitionLog, OSError] = {}
    plans: dict[PartitionLog, SyncPlan] = {}
    for log in logs:
        try:
            plans[log] = log.begin_sync(with_recovery_point=True)
        except OSError as error:
            if not is_scarcity(error):
                raise
            shortages[log] = error
    outcome = run_plans(disk, file_system, list(plans.values()), syncfs_files_min)
    for (log, plan), error_of_plan in zip(plans.items(), outcome.errors, strict=True):
        log.finish_sync(plan, error_of_plan)
        if is_scarcity(error_of_plan) and error_of_plan is not None:
            shortages[log] = error_of_plan
    return shortages, outcome.file_system_failed


def refuse_records_in(disk: Disk, directory: str) -> None:
    """Raise if the directory holds records, because a new log would overwrite them."""
    for name in disk.list_directory(directory):
        if name.endswith(names.LOG_SUFFIX) and disk.file_size(names.join(directory, name)):
            raise StorageError(f"{directory} holds records of a log that is not open: restart the broker, or move it away")


def topic_id_of(disk: Disk, path: str, key: TopicPartition) -> bytes | None:
    """The topic id in a partition's own directory, whether or not its log can be opened."""
    try:
        directory = names.join(path, names.partition_directory_name(*key))
        return read_partition_metadata(disk, names.join(directory, names.PARTITION_METADATA))
    except (CorruptCheckpoint, OSError):
        return None
