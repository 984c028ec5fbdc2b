"""One partition's log: what is appended, what is durable, what may be read.

State: the segments, the producers' state and the leader epochs; and these offsets, each at or below the next:

    log start <= recovery point <= durable <= log end           last stable <= high watermark <= log end

    log start        first offset that may be read; retention and delete-records raise it
    recovery point   below it indexes, snapshots and epochs are durable too: a crash is checked from here on
    durable          below it every byte survived an fsync; what acks=all waits for
    high watermark   below it consumers may read; set from outside, by replication
    log end          the next offset to be given out

An append is checked whole, written in one gathered write, and only then changes state: whatever fails leaves the log as it was.
The write goes to the page cache; ``begin_sync`` names what must be synced, ``finish_sync`` moves ``durable``. The log itself
never blocks on a sync: group commit runs the plan on the executor.

A sync that failed proves nothing about the pages it covered, now or later. The log goes offline, leaves a mark in its
directory, and only a restart that reads from the disk itself may bring it back.
"""

from collections.abc import Callable
from typing import NamedTuple

from tidelog.log import names
from tidelog.log.append_check import AppendOrigin, checked_batches, whole_batches_bytes
from tidelog.log.environment import NO_ROOM, LogEnvironment, OffsetPosition
from tidelog.log.errors import FencedLeaderEpoch, LogOffline, StorageError
from tidelog.log.failed_sync import leave_mark
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.log.producer_state import ProducerState
from tidelog.log.recovery_point import plan_recovery_point, prune_snapshots, write_snapshot
from tidelog.log.segment import RELATIVE_OFFSET_MAX, LogSegment
from tidelog.log.segments import Segments
from tidelog.log.settings import LogSettings
from tidelog.log.stamping import StampedBatch, check_offsets, note_written, stamped_by_leader
from tidelog.log.sync_plan import SyncPlan
from tidelog.log.unsynced import Unsynced
from tidelog.ports.disk import Buffer, DiskFile
from tidelog.records.control import read_end_transaction_marker
from tidelog.records.header import restamped_prefix, with_log_append_time

# Calls tuple's own constructor: the one that NamedTuple generates is Python code, and appends make two of them.
_new_tuple = tuple.__new__
_CLIENT = AppendOrigin.CLIENT


class AppendResult(NamedTuple):
    first_offset: int
    last_offset: int
    append_time_ms: int
    """The broker's time under LogAppendTime, else -1."""
    is_duplicate: bool


class PartitionLog:
    __slots__ = (
        "_jitter_ms",
        "bytes_since_recovery_point",
        "directory",
        "durability_listeners",
        "durable",
        "environment",
        "epochs",
        "high_watermark",
        "is_deleted",
        "is_dirty",
        "log_end_offset",
        "log_start_offset",
        "name",
        "offline_reason",
        "partition",
        "producers",
        "recovery_point",
        "segments",
        "settings",
        "snapshot_offset",
        "topic",
        "topic_id",
        "truncating_to",
        "truncations",
        "unsynced",
    )

    def __init__(
        self,
        environment: LogEnvironment,
        topic: str,
        partition: int,
        topic_id: bytes,
        directory: str,
        settings: LogSettings,
        segments: Segments,
        producers: ProducerState,
        epochs: LeaderEpochs,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
    ) -> None:
        self.environment = environment
        self.topic = topic
        self.partition = partition
        self.name = names.partition_directory_name(topic, partition)
        self.topic_id = topic_id
        self.directory = directory
        self.settings = settings
        self.segments = segments
        self.producers = producers
        self.epochs = epochs
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point
        # Opening ends with a sync of all that was kept, so what is there is durable.
        self.durable = OffsetPosition(log_end_offset, segments.active.base_offset, segments.active.size)
        self.high_watermark = log_start_offset
        self.offline_reason: str | None = None
        self.is_deleted = False
        self.is_dirty = False
        self.truncations = 0
        # A truncation that waits for the marks on the disk to be lowered; nothing may raise them meanwhile.
        self.truncating_to: int | None = None
        self.bytes_since_recovery_point = 0
        self.snapshot_offset = -1
        self.unsynced = Unsynced()
        self.durability_listeners: tuple[Callable[[], None], ...] = ()
        self._jitter_ms = self._draw_jitter()

    def __repr__(self) -> str:
        return f"<PartitionLog {self.name} {self.log_start_offset}..{self.log_end_offset} durable {self.durable.offset}>"

    def change_settings(self, settings: LogSettings) -> None:
        """The topic's configuration changed; it counts from the next append on."""
        self.settings = settings
        self.producers.expiration_ms = settings.producer_id_expiration_ms
        self._jitter_ms = self._draw_jitter()

    # -- appending -----------------------------------------------------------------------------------------------------------

    def append_as_leader(self, records: Buffer, leader_epoch: int, origin: AppendOrigin = _CLIENT) -> AppendResult:
        """Check ``records`` (whole batches), give them offsets, write them. Durable once ``durable.offset`` has passed them."""
        if self.offline_reason is not None:
            self.check_online()
        if leader_epoch < self.epochs.latest_epoch:
            raise FencedLeaderEpoch(
                f"{self.name} is led in epoch {self.epochs.latest_epoch}, the append is of epoch {leader_epoch}"
            )
        view = records if type(records) is memoryview else memoryview(records)
        settings = self.settings
        now_ms = self.environment.clock.now_ms()
        batches = checked_batches(view, settings, origin, now_ms)

        next_offset = self.log_end_offset
        buffers: list[Buffer] = []
        stamped: list[StampedBatch] = []
        for position, header in batches:
            size = header.batch_length + 12
            marker = None
            if header.producer_id >= 0:
                if header.attributes & 0x20:
                    marker = read_end_transaction_marker(view, position, header)
                    self.producers.check_marker(header.producer_id, header.producer_epoch, marker)
                elif origin is _CLIENT:
                    earlier = self.producers.check(header)
                    if earlier is not None:
                        return AppendResult(earlier.first_offset, earlier.last_offset, -1, True)
            max_timestamp = header.max_timestamp
            if settings.log_append_time:
                buffers += with_log_append_time(view[position : position + size], header, next_offset, leader_epoch, now_ms)
                # The producers' state must be what a recovery will read out of the log.
                header = header._replace(max_timestamp=now_ms)
                max_timestamp = now_ms
            else:
                buffers.append(restamped_prefix(header, next_offset, leader_epoch))
                buffers.append(view[position + 16 : position + size])
            last_offset = next_offset + header.last_offset_delta
            stamped.append(
                _new_tuple(StampedBatch, (header, size, next_offset, last_offset, max_timestamp, leader_epoch, marker))
            )
            next_offset = last_offset + 1
        first_offset = self.log_end_offset
        self._write(buffers, len(view), stamped, now_ms)
        return _new_tuple(AppendResult, (first_offset, next_offset - 1, now_ms if settings.log_append_time else -1, False))

    def append_as_follower(self, records: Buffer) -> None:
        """Append batches as the leader has them: offsets, epochs and bytes unchanged. A cut-off last batch is left out."""
        self.check_online()
        view = memoryview(records)
        now_ms = self.environment.clock.now_ms()
        view = view[: whole_batches_bytes(view)]
        batches = checked_batches(view, self.settings, AppendOrigin.REPLICATION, now_ms)
        stamped = stamped_by_leader(self.name, view, batches, self.log_end_offset)
        self._write([view], len(view), stamped, now_ms)

    def _write(self, buffers: list[Buffer], size: int, stamped: list[StampedBatch], now_ms: int) -> None:
        check_offsets(self.name, stamped)
        last = stamped[-1]
        segment = self.segments.active
        if segment.should_roll(self.settings, self._jitter_ms, size, last.last_offset, stamped[0].max_timestamp, now_ms):
            segment = self.roll(stamped[0].base_offset, last.last_offset)
        try:
            position = segment.write(buffers, size)
        except OSError as error:
            raise self._after_failed_write(segment, error) from error
        try:
            note_written(stamped, position, segment, self.settings.index_interval_bytes, self.epochs, self.producers)
        except Exception as error:
            # The bytes are there, and the log end is not behind them: the next append would give their offsets out again.
            raise self.go_offline(f"{segment.path} was written, but could not be indexed: {error!r}") from error
        self.log_end_offset = last.last_offset + 1
        self.bytes_since_recovery_point += size
        unsynced = self.unsynced.segments
        if not unsynced or unsynced[-1] is not segment:
            unsynced.append(segment)
        if not self.is_dirty:
            self.is_dirty = True
            self.environment.on_dirty(self)

    def _after_failed_write(self, segment: LogSegment, error: OSError) -> Exception:
        """Cut the partial write off; without that the log cannot go on."""
        try:
            if segment.dirty_file is not None:  # Else it could not be opened, and nothing was written.
                segment.cut()
        except OSError as second:
            return self.go_offline(
                f"writing {segment.path} failed ({error}), and so did cutting the partial write off ({second})"
            )
        if error.errno in NO_ROOM:
            return StorageError(f"{self.name}: nothing was written, {error.strerror or error}; try again when there is room")
        return self.go_offline(f"writing {segment.path} failed: {error}")

    # -- rolling -------------------------------------------------------------------------------------------------------------

    def roll(self, first_offset: int = 0, last_offset: int = 0) -> LogSegment:
        """Close the active segment, begin another at the log end; at ``first_offset`` when ``last_offset`` is out of reach from
        there (a follower's gap). An empty segment stays if it will do."""
        self.check_online()
        active = self.segments.active
        is_out_of_reach = last_offset - self.log_end_offset > RELATIVE_OFFSET_MAX
        base_offset = first_offset if is_out_of_reach else self.log_end_offset
        if active.size == 0 and base_offset <= active.base_offset:
            return active
        segment = self._new_segment(base_offset)
        if active.size == 0:
            self.segments.replace([active], [segment])
            self.unsynced.forget_segments([active])
            active.remove()
        else:
            self.segments.append(segment)
            self._close_segment(active)
        self.unsynced.note_directory(self.directory)
        self._jitter_ms = self._draw_jitter()
        return segment

    def _new_segment(self, base_offset: int) -> LogSegment:
        environment = self.environment
        segment = LogSegment(
            environment.disk,
            environment.handles,
            environment.index_cache,
            self.directory,
            base_offset,
            0,
            environment.clock.now_ms(),
        )
        try:
            segment.create_file()
        except OSError as error:
            if error.errno in NO_ROOM:
                raise StorageError(
                    f"{self.name}: no room for a new segment, {error.strerror}; try again when there is"
                ) from error
            raise self.go_offline(f"creating {segment.path} failed: {error}") from error
        return segment

    def _close_segment(self, segment: LogSegment) -> None:
        """Indexes and producer snapshot at the boundary. Both can be made again from the log, so a full disk does not stop the
        roll: the recovery point does not pass a segment until they are written."""
        try:
            segment.close_for_appends()
            # Synced with the segment: once that is deleted, the snapshot is all that is left of some producers.
            self.unsynced.files = (*self.unsynced.files, write_snapshot(self))
        except OSError as error:
            self.environment.report("segment_close_deferred", {"partition": self.name, "error": str(error)})

    def _draw_jitter(self) -> int:
        """Segments that began together should not all roll together."""
        jitter_ms_max = min(self.settings.segment_jitter_ms, self.settings.segment_ms)
        return self.environment.randomness.integer(0, jitter_ms_max) if jitter_ms_max > 0 else 0

    # -- durability ----------------------------------------------------------------------------------------------------------

    def begin_sync(self, with_recovery_point: bool = False) -> SyncPlan:
        """What must be synced for everything appended so far to be durable. The caller runs it and calls ``finish_sync``."""
        active, unsynced = self.segments.active, self.unsynced
        plan = SyncPlan(
            end=_new_tuple(OffsetPosition, (self.log_end_offset, active.base_offset, active.size)),
            truncations=self.truncations,
            segments=unsynced.segments,
            files=[*unsynced.files, *[segment.file() for segment in unsynced.segments]],
            directories=list(unsynced.directories),
        )
        self.unsynced = Unsynced()
        self.is_dirty = False
        if with_recovery_point:
            plan_recovery_point(self, plan)
        return plan

    def finish_sync(self, plan: SyncPlan, error: BaseException | None) -> None:
        """The plan has run. On an error nothing that it covered may ever count as durable."""
        if self.is_deleted:
            return  # Its directory is gone, and another log may have its name by now.
        if error is not None:
            self.go_offline(f"syncing failed: {error}", sync_failed=True)
            return
        if self.offline_reason is not None:
            return  # An earlier sync of the same pages failed: they are clean since, and this one has written nothing.
        for segment in plan.segments:
            if segment not in self.unsynced.segments:
                segment.dirty_file = None
        if plan.had_no_room:
            self.epochs.dirty = True
        if plan.truncations != self.truncations or self.truncating_to is not None:
            return  # What it made durable has been cut meanwhile; the next sync covers what is there now.
        if plan.end.offset > self.durable.offset:
            self.durable = plan.end
        if plan.recovery_point is not None and plan.recovery_point > self.recovery_point:
            self.recovery_point = plan.recovery_point
            prune_snapshots(self)

    def add_durability_listener(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every commit pass that covered this log, also when the pass took the log offline."""
        self.durability_listeners = (*self.durability_listeners, listener)

    def remove_durability_listener(self, listener: Callable[[], None]) -> None:
        self.durability_listeners = tuple(each for each in self.durability_listeners if each != listener)

    def note_directory_change(self, directory: str) -> None:
        """A name in it was created, renamed or removed: the next sync covers the directory too."""
        self.unsynced.note_directory(directory)
        if not self.is_dirty:
            self.is_dirty = True
            self.environment.on_dirty(self)

    def note_unsynced(self, segments: list[LogSegment]) -> None:
        """Recovery kept these bytes from the page cache: nothing of them is durable until a sync says so."""
        first = self.segments[0]
        self.durable = OffsetPosition(first.base_offset, first.base_offset, 0)
        self.unsynced.segments = list(segments)
        self.note_directory_change(self.directory)

    def note_unsynced_file(self, file: DiskFile) -> None:
        """A small file beside the segments that must be durable before any record is."""
        self.unsynced.files = (*self.unsynced.files, file)
        self.note_directory_change(self.directory)

    def note_cut(self, segment: LogSegment) -> None:
        """The file was shortened: the next sync covers it."""
        if segment not in self.unsynced.segments:
            self.unsynced.segments.append(segment)
        self.note_directory_change(self.directory)

    @property
    def is_saved(self) -> bool:
        """Opened now, it would be found as it is without reading its segments."""
        # A roll alone leaves the log clean, but a name that is not durable: the next process would not know.
        is_synced = not self.is_dirty and not self.epochs.dirty and not self.unsynced.directories
        is_whole = self.offline_reason is None and is_synced
        return is_whole and self.recovery_point == self.log_end_offset and self.snapshot_offset == self.log_end_offset

    # -- watermarks ----------------------------------------------------------------------------------------------------------

    def advance_high_watermark(self, offset: int) -> None:
        """Consumers may read below ``offset``. Never moves back, except by truncation."""
        if offset > self.log_end_offset:
            offset = self.log_end_offset
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.producers.on_high_watermark(offset)

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided: what read_committed may see."""
        first_unstable = self.producers.first_unstable_offset
        if first_unstable is None or first_unstable > self.high_watermark:
            return self.high_watermark
        # Retention may have taken the beginning of an open transaction.
        return max(first_unstable, self.log_start_offset)

    # -- going offline -------------------------------------------------------------------------------------------------------

    def check_online(self) -> None:
        if self.offline_reason is not None:
            raise LogOffline(self.name, self.offline_reason)

    def go_offline(self, reason: str, sync_failed: bool = False) -> LogOffline:
        """No reads, no writes until a restart has looked at the disk. Returns the error to raise."""
        if sync_failed:
            try:
                leave_mark(self.environment.disk, self.directory, reason)
            except OSError as error:
                self.environment.report("failed_sync_mark_not_written", {"partition": self.name, "error": str(error)})
        if self.offline_reason is None:
            self.offline_reason = reason
            self.environment.report("log_offline", {"partition": self.name, "reason": reason})
        return LogOffline(self.name, reason)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)
