"""A data directory: all partition logs of a broker, and what keeps them durable, small and recoverable (Kafka's LogManager).

    data/
      .lock  meta.properties  durable-marks  disk-reserve  broker-epoch  .kafka_cleanshutdown
      recovery-point-offset-checkpoint  log-start-offset-checkpoint  replication-offset-checkpoint  cleaner-offset-checkpoint
      orders-0/  orders-1/  ...

Everything is driven from outside: appends make logs dirty, ``kick`` starts a commit after a burst of appends, ``tick`` does the
periodic work in small slices. Only opening and closing block.

After a clean stop (``close``) every log has its recovery point at its end, and the clean-shutdown mark says so. After anything
else the next start checks each log from its recovery point on.

On a full disk the directory opens and closes all the same. What says how far the logs are durable may be older than they are, and
only costs the next start some time; what would make a start believe too much is written with the help of the ``DiskReserve``.
"""

from collections.abc import Callable
from functools import partial

from tidelog.log import names
from tidelog.log.compaction.cleaner import Cleaner, CleanerPorts
from tidelog.log.durability.checkpoints import (
    CheckpointPorts,
    CheckpointWriter,
    format_partition_metadata,
    remove_broker_epoch,
    write_broker_epoch,
    write_clean_shutdown,
)
from tidelog.log.durability.disk_reserve import DiskReserve
from tidelog.log.durability.durable_marks import MarkFlusher
from tidelog.log.durability.group_commit import CommitPorts, GroupCommit
from tidelog.log.durability.sync_plan import DirectorySync
from tidelog.log.durability.truncation import DurableTruncation, TruncationPorts
from tidelog.log.environment import LogEnvironment, Report, is_scarcity
from tidelog.log.errors import DirectoryUnusable, LogError, OffsetOutOfRange, StillBeingDeleted, StorageError
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.log.partition_log import LogContents, LogIdentity, PartitionLog
from tidelog.log.producers.producer_expiry import ProducerExpiry
from tidelog.log.producers.producer_state import ProducerState
from tidelog.log.recovery.directory_opening import open_logs, read_state, refuse_records_in, sync_all, take_over
from tidelog.log.retention.deletion_queue import DeletionQueue
from tidelog.log.retention.retention import RetentionPorts, RetentionSweep
from tidelog.log.segments.file_handles import FileHandles
from tidelog.log.segments.indexes import IndexCache
from tidelog.log.segments.segment import Segments
from tidelog.log.settings import DirectoryOptions, LogSettings
from tidelog.ports.clock import Clock
from tidelog.ports.disk import Disk
from tidelog.ports.executor import Executor
from tidelog.ports.randomness import Randomness
from tidelog.records.topic_partition import TopicPartition

OnDone = Callable[[BaseException | None], None]


class DataDirectory:
    def __init__(
        self,
        path: str,
        *,
        disk: Disk,
        clock: Clock,
        randomness: Randomness,
        executor: Executor,
        cluster_id: str,
        node_id: int,
        settings_for: Callable[[str], LogSettings],
        report: Report,
        options: DirectoryOptions | None = None,
        on_synced: Callable[[], None] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Open the directory and recover what a crash left. Blocks. Raises DirectoryLocked, DirectoryUnusable or
        CorruptCheckpoint."""
        self.path = path
        self.disk = disk
        self.clock = clock
        self._randomness = randomness
        self._executor = executor
        self._report = report
        self.options = options if options is not None else DirectoryOptions()
        self._lock, self.meta = take_over(disk, randomness, path, cluster_id, node_id)
        try:
            self._open(settings_for, on_synced, on_progress)
        except OSError as error:
            self._lock.release()
            raise DirectoryUnusable(f"{path} cannot be opened: {error}") from error
        except BaseException:
            self._lock.release()
            raise

    def _open(
        self,
        settings_for: Callable[[str], LogSettings],
        on_synced: Callable[[], None] | None,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        disk, clock, executor, options, report = self.disk, self.clock, self._executor, self.options, self._report
        self._file_system = disk.open_filesystem(self.path)
        self._names = DirectorySync(disk, executor, self.path)
        self.reserve = DiskReserve(disk, self.path, options.disk_reserve_bytes, report)
        self.reserve.open()
        state = read_state(disk, self.path, report)
        self._checkpoint_ports = CheckpointPorts(disk, executor, report, self.reserve)
        self.marks = MarkFlusher(state.marks, clock, self._checkpoint_ports, self._go_offline)
        ports = CommitPorts(disk, clock, executor, self._file_system)
        self.commit = GroupCommit(ports, self.marks, options, self._on_pass_ended)
        self._on_synced = on_synced
        self.environment = LogEnvironment(
            disk=disk,
            clock=clock,
            randomness=self._randomness,
            handles=FileHandles(disk, options.open_files_max),
            index_cache=IndexCache(options.index_cache_bytes),
            reserve=self.reserve,
            on_dirty=self.commit.note_dirty,
            report=report,
        )
        self.recovery_points = self._writer(names.RECOVERY_POINT_CHECKPOINT, lambda log: log.recovery_point)
        self.log_starts = self._writer(names.LOG_START_OFFSET_CHECKPOINT, lambda log: log.log_start_offset)
        self.high_watermarks = self._writer(names.HIGH_WATERMARK_CHECKPOINT, lambda log: log.high_watermark)
        self._writers = {
            names.RECOVERY_POINT_CHECKPOINT: self.recovery_points,
            names.LOG_START_OFFSET_CHECKPOINT: self.log_starts,
            names.HIGH_WATERMARK_CHECKPOINT: self.high_watermarks,
        }
        self.deletions = DeletionQueue(disk, clock, executor, report)
        self._open_cleaner(state.offsets_by_file[names.CLEANER_CHECKPOINT])
        retention_ports = RetentionPorts(
            clock=clock,
            logs=lambda: list(self.logs.values()),
            log_starts=self.log_starts,
            deletions=self.deletions,
            report=report,
            is_being_compacted=lambda log: self.cleaner.log_being_cleaned is log,
        )
        self.retention = RetentionSweep(retention_ports, options.retention_check_interval_ms)
        self._producer_expiry = ProducerExpiry(
            clock, lambda: list(self.logs.values()), options.producer_expiration_check_interval_ms
        )
        self._next_checkpoint_ms = clock.monotonic_ms() + options.checkpoint_interval_ms
        self._next_start_checkpoint_ms = clock.monotonic_ms() + options.start_offset_checkpoint_interval_ms
        self.logs: dict[TopicPartition, PartitionLog] = {}
        # Deleted partitions in whose directory a compaction still works, or which a checkpoint still names.
        self._being_deleted: set[TopicPartition] = set()
        self._unpurged: set[TopicPartition] = set()
        # Deleted partitions that a crash may bring back: the checkpoints keep naming them.
        self._leaving: dict[TopicPartition, PartitionLog] = {}
        opened = open_logs(self.environment, self.path, state, settings_for, on_progress)
        self.logs = opened.logs
        self.offline = opened.offline
        self.damaged = opened.damaged
        self.missing = opened.missing
        self._state = state
        self.was_stopped_cleanly = state.was_stopped_cleanly
        self.previous_broker_epoch = state.broker_epoch
        """The epoch of the broker that stopped here in order; -1 if the last one did not, or it is not known."""
        self.last_broker_epoch = state.last_broker_epoch
        """The epoch of the last broker that ran on this directory, also if it crashed; -1 if it is not known."""
        self._finish_recovery()

    def note_broker_epoch(self, broker_epoch: int, on_done: OnDone) -> None:
        """A broker begins to run on this directory in this epoch. ``on_done`` is called when a crash cannot undo the note."""
        write = partial(write_broker_epoch, self.disk, self.path, broker_epoch)
        self._executor.submit(write, lambda completion: on_done(completion.error))

    def forget_broker_epoch(self, on_done: OnDone) -> None:
        """A broker is about to get another epoch, perhaps without ever hearing of it."""
        remove = partial(remove_broker_epoch, self.disk, self.path)
        self._executor.submit(remove, lambda completion: on_done(completion.error))

    def _open_cleaner(self, first_dirty_offsets: dict[TopicPartition, int]) -> None:
        options = self.options
        path = names.join(self.path, names.CLEANER_CHECKPOINT)
        self.cleaner_offsets = CheckpointWriter(self._checkpoint_ports, path, lambda: self.cleaner.first_dirty_offsets)
        ports = CleanerPorts(
            clock=self.clock,
            executor=self._executor,
            report=self._report,
            logs=lambda: self.logs.values(),
            checkpoint_recovery_point=self.checkpoint_recovery_point,
            delete_later=lambda segments, log: self.deletions.add_segments(segments, log.settings.file_delete_delay_ms),
            save_checkpoint=lambda _: self.cleaner_offsets.request(),
        )
        self.cleaner = Cleaner(
            ports,
            first_dirty_offsets,
            options.cleaner_buffer_bytes,
            options.cleaner_bytes_per_second_max,
            options.cleaner_backoff_ms,
        )

    def _writer(self, name: str, offset_of: Callable[[PartitionLog], int]) -> CheckpointWriter:
        def take() -> dict[TopicPartition, int]:
            offsets = {key: offset_of(log) for key, log in {**self._leaving, **self.logs}.items()}
            # Keep the entries of partitions that could not be opened: a later start needs them.
            before = self._state.offsets_by_file[name]
            return offsets | {key: before[key] for key in self.offline if key in before}

        return CheckpointWriter(self._checkpoint_ports, names.join(self.path, name), take)

    def _finish_recovery(self) -> None:
        """Make durable what recovery kept, and only then raise the marks to it."""
        recovered = self.commit.take_dirty()
        sync_all(self.disk, self._file_system, recovered, self.commit.syncfs_files_min)
        # Written before the marks: once marks exist, the first segment must be there and segments above a recovery point must
        # meet, which does not hold in Kafka's directories. And entries of deleted partitions must not apply to new partitions of
        # the same name.
        known = {*self.logs, *self.offline}
        marked = {names.partition_directory_name(*key) for key in (*known, *self.missing)}
        for name, writer in self._writers.items():
            is_stale = not known.issuperset(self._state.offsets_by_file[name])
            if is_stale or not self._state.has_marks or (recovered and writer is self.recovery_points):
                self._write_at_start(name, writer, known)
        for log in self.logs.values():
            if log.offline_reason is None and log.durable.offset:
                self.marks.record(log)
        self.marks.forget_all_but(marked)
        try:
            self.marks.flush_now()
        except OSError as error:
            # The marks on the disk are older than the logs, which is always allowed; the next tick tries again.
            self._check_start_without(error)
        self.commit.take_dirty()

    def _write_at_start(self, name: str, writer: CheckpointWriter, known: set[TopicPartition]) -> None:
        """Write a checkpoint. Without room for it the old one stays, which names partitions that are gone: nobody can create one
        of these names until it is written."""
        try:
            writer.write_now()
        except OSError as error:
            self._check_start_without(error)
            stale = {key for key in self._state.offsets_by_file[name] if key not in known}
            self._being_deleted |= stale
            self._unpurged |= stale

    def _check_start_without(self, error: OSError) -> None:
        """Raise the error unless it is a shortage, and the directory has all files that recovery needs."""
        if not is_scarcity(error) or not self._state.has_marks:
            raise error
        self._report("checkpoint_not_written", {"path": self.path, "error": str(error)})

    # -- logs ----------------------------------------------------------------------------------------------------------------

    def create(self, topic: str, partition: int, topic_id: bytes, settings: LogSettings) -> PartitionLog:
        """Create an empty log. Its files become durable with its first commit; until then they hold nothing that could be
        lost."""
        key = topic, partition
        problem = names.topic_name_problem(topic)
        if problem is not None:
            raise LogError(problem)
        if key in self._being_deleted:
            name = names.partition_directory_name(topic, partition)
            raise StillBeingDeleted(f"an earlier {name} is still being deleted; try again later")
        if key in self.logs or key in self.offline:
            raise LogError(f"{names.partition_directory_name(topic, partition)} exists already")
        directory = names.join(self.path, names.partition_directory_name(topic, partition))
        environment = self.environment
        try:
            self.disk.make_directory(directory)
            refuse_records_in(self.disk, directory)
            metadata = self.disk.open(names.join(directory, names.PARTITION_METADATA), "create")
            metadata.write(0, [format_partition_metadata(topic_id)])
            segment = environment.segment(directory, 0)
            segment.create_file()
            # An empty segment has nothing to lose, and thousands of idle logs must not hold a descriptor each.
            segment.note_synced()
        except OSError as error:
            raise StorageError(f"{directory} cannot be created: {error.strerror or error}") from error
        producers = ProducerState(settings.producer_id_expiration_ms)
        epochs = LeaderEpochs(self.disk, names.join(directory, names.LEADER_EPOCH_CHECKPOINT))
        identity = LogIdentity(topic, partition, topic_id, directory)
        log = PartitionLog(environment, identity, settings, LogContents(Segments([segment]), producers, epochs))
        log.note_unsynced_file(metadata)
        log.note_directory_change(self.path)
        self.logs[key] = log
        self.missing.pop(key, None)
        return log

    def forget_missing(self, key: TopicPartition) -> None:
        """Nobody needs this partition, which has no directory any more."""
        del self.missing[key]
        self.marks.forget(names.partition_directory_name(*key))

    def take_missing_offline(self, key: TopicPartition) -> None:
        """A partition that should be here has no directory any more: it is as good as damaged."""
        del self.missing[key]
        name = names.partition_directory_name(*key)
        self.offline[key] = reason = f"{names.join(self.path, name)} is not there any more, and it held records"
        self.damaged.add(key)
        self._report("partition_offline", {"partition": name, "reason": reason})

    def delete(self, log: PartitionLog, on_done: OnDone | None = None) -> None:
        """Delete a log: it is gone at once, its files are renamed now and removed later. ``on_done`` is called when a crash
        cannot undo it."""
        self._retire(log, "delete", on_done)

    def set_aside(self, log: PartitionLog, on_done: OnDone | None = None) -> None:
        """Like ``delete``, but the files stay, under a name that marks them as stray."""
        self._retire(log, "stray", on_done)

    def _retire(self, log: PartitionLog, state: str, on_done: OnDone | None) -> None:
        key = log.topic, log.partition
        del self.logs[key]
        log.retire()
        self.commit.forget(log)
        self._being_deleted.add(key)
        self._leaving[key] = log

        def take_away() -> None:
            retired = names.join(self.path, names.retired_directory_name(*key, self._randomness.token(16), state))
            try:
                self.disk.rename(log.directory, retired)
            except OSError as error:
                # The log is out of use all the same; the next start finds it again.
                self._report("log_not_deleted", {"partition": log.name, "error": str(error)})
                if on_done is not None:
                    on_done(error)
                return
            for segment in log.segments:
                self.environment.handles.forget(segment.path)
                segment.forget_cached()
            self._forget_partition(key, retired, log.settings.file_delete_delay_ms if state == "delete" else None, on_done)

        # Both the cleaner and a commit use names in this directory, which may soon belong to another log.
        self.cleaner.abort(log, lambda: self.commit.after_pass(take_away))

    def retire_offline(self, key: TopicPartition, state: str) -> None:
        """Remove a partition that could not be opened and no longer has a topic: "delete" it, or set it aside as "stray". Raises
        OSError if it stays."""
        retired = names.join(self.path, names.retired_directory_name(*key, self._randomness.token(16), state))
        directory = names.join(self.path, names.partition_directory_name(*key))
        if self.disk.is_directory(directory):
            self.disk.rename(directory, retired)
        del self.offline[key]
        self.damaged.discard(key)
        self._being_deleted.add(key)
        self._forget_partition(key, retired, 0 if state == "delete" else None, None)

    def _forget_partition(self, key: TopicPartition, retired: str, delete_delay_ms: int | None, on_done: OnDone | None) -> None:
        """The directory was renamed: forget everything kept under its old name, and free that name."""
        self.cleaner.forget(key)
        self.marks.forget(names.partition_directory_name(*key))
        if delete_delay_ms is not None:
            self.deletions.add_directory(retired, delete_delay_ms)

        self._finish_removal(key, on_done)

    def _finish_removal(self, key: TopicPartition, on_done: OnDone | None) -> None:
        """Make the removal of a directory durable, and then forget it in the checkpoints. What fails is tried again with the next
        checkpoints; until then nobody can create a partition of this name."""

        def synced(error: BaseException | None) -> None:
            if error is None:
                self._leaving.pop(key, None)
                self._purge_checkpoints(key, on_done)
                return
            self._unpurged.add(key)
            if on_done is not None:
                on_done(error)

        self._names.request(synced)

    def _purge_checkpoints(self, key: TopicPartition, on_done: OnDone | None) -> None:
        """Marks and checkpoints know partitions by name: remove the entries of a deleted partition before another one of its name
        is created."""
        writers = [self.recovery_points, self.log_starts, self.high_watermarks, self.cleaner_offsets]
        self.marks.flush(partial(self._purge_next, writers, key, on_done))

    def _purge_next(
        self, writers: list[CheckpointWriter], key: TopicPartition, on_done: OnDone | None, error: BaseException | None
    ) -> None:
        """Write the remaining checkpoints, one after the other."""
        if error is None and writers:
            writers.pop().request(partial(self._purge_next, writers, key, on_done))
            return
        if error is None:
            self._being_deleted.discard(key)
        else:
            self._unpurged.add(key)
        if on_done is not None:
            on_done(error)

    def delete_records(self, log: PartitionLog, offset: int, on_done: OnDone) -> None:
        """Hide the records below ``offset`` from readers. ``on_done`` is called when that survives a crash."""
        log.check_online()
        if offset > log.high_watermark:
            raise OffsetOutOfRange(offset, log.log_start_offset, log.high_watermark)
        log.raise_start(offset)
        self.retention.apply([log], on_done)

    def truncate(self, log: PartitionLog, offset: int, on_done: OnDone) -> None:
        """Truncate the log to ``offset``, in such a way that a crash in between does not look like lost data. The caller appends
        nothing to this log until ``on_done``."""
        DurableTruncation(self._truncation_ports(), log, offset, on_done).start()

    def begin_again(self, log: PartitionLog, offset: int, on_done: OnDone) -> None:
        """Drop all records of the log, which begins at ``offset`` from now on: something else holds what it held. The caller
        appends nothing to this log until ``on_done``."""
        DurableTruncation(self._truncation_ports(), log, offset, on_done, is_new_beginning=True).start()

    def _truncation_ports(self) -> TruncationPorts:
        return TruncationPorts(
            commit=self.commit,
            marks=self.marks,
            recovery_points=self.recovery_points,
            log_starts=self.log_starts,
            cleaner=self.cleaner,
            cleaner_offsets=self.cleaner_offsets,
        )

    def checkpoint_recovery_point(self, log: PartitionLog, on_done: OnDone) -> None:
        """Move the log's recovery point to its end and write it to the checkpoint."""

        def moved(error: Exception | None) -> None:
            if error is None:
                self.recovery_points.request(on_done)
            else:
                on_done(error)

        self.commit.move_recovery_point(log, moved)

    # -- time ----------------------------------------------------------------------------------------------------------------

    def kick(self) -> None:
        """Start a commit unless one is running. Called after a burst of appends."""
        self.commit.kick()

    def tick(self) -> None:
        """Do the periodic work. Called every few hundred milliseconds."""
        self.reserve.tick(self._executor)
        self.commit.tick()
        self.marks.tick()
        self.retention.tick()
        self.deletions.tick()
        self._producer_expiry.tick()
        if self.options.cleaner_threads:
            self.cleaner.tick()
        now_ms = self.clock.monotonic_ms()
        if now_ms >= self._next_start_checkpoint_ms:
            self._next_start_checkpoint_ms = now_ms + self.options.start_offset_checkpoint_interval_ms
            self.log_starts.request()
        if now_ms >= self._next_checkpoint_ms:
            self._next_checkpoint_ms = now_ms + self.options.checkpoint_interval_ms
            self.high_watermarks.request()
            self._write_recovery_points(list(self.logs.values()))
            unpurged, self._unpurged = self._unpurged, set()
            for key in sorted(unpurged):
                self._finish_removal(key, None)

    def _on_pass_ended(self, logs: list[PartitionLog]) -> None:
        self._write_recovery_points(logs)
        if self._on_synced is not None:
            self._on_synced()

    def _write_recovery_points(self, logs: list[PartitionLog]) -> None:
        """Write the recovery points unless the checkpoint has those of ``logs`` already."""
        written = self.recovery_points.written
        if any(log.recovery_point > written.get((log.topic, log.partition), 0) for log in logs):
            self.recovery_points.request()

    def _go_offline(self, error: BaseException) -> None:
        """The journal of marks cannot be written any more, so no write to this disk can be promised to be durable."""
        for log in self.logs.values():
            log.go_offline(f"the data directory {self.path} is broken: {error}")

    # -- stopping ------------------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """True when nothing runs on the executor, so that it may be closed."""
        writers = (*self._writers.values(), self.cleaner_offsets)
        parts = (self.commit, self.marks, self.deletions, self._names, self.reserve)
        are_idle = all(part.is_idle for part in parts)
        return are_idle and self.cleaner.log_being_cleaned is None and all(writer.is_idle for writer in writers)

    def close(self, broker_epoch: int = -1) -> None:
        """Stop cleanly. Blocks. The clean-shutdown mark is written only when every log is saved completely. Without room for what
        a clean stop writes, the next start checks the logs as after a crash."""
        assert not self.commit.is_running, "wait for the running commit first: its writes would count as durable"
        self.commit.take_dirty()
        try:
            self._save(broker_epoch)
        except OSError as error:
            if not is_scarcity(error):
                raise
            self._report("stopped_without_room", {"directory": self.path, "error": str(error)})
        self._lock.release()

    def _save(self, broker_epoch: int) -> None:
        unsaved = [log for log in self.logs.values() if log.offline_reason is None and not log.is_saved]
        sync_all(self.disk, self._file_system, unsaved, self.commit.syncfs_files_min)
        for log in self.logs.values():
            if log.offline_reason is None and log.durable.offset:
                self.marks.record(log)
        self.marks.flush_now()
        for writer in (self.recovery_points, self.log_starts, self.high_watermarks):
            writer.write_now()
        if not self.offline and all(log.is_saved for log in self.logs.values()):
            self.reserve.use(lambda: write_clean_shutdown(self.disk, self.path, broker_epoch))
