"""One partition's log: what is appended, what is durable, and what may be read.

The log owns its segments, the state of its producers, its leader epochs, and these offsets, each at or below the next:

    log start <= recovery point <= durable <= log end           last stable <= high watermark <= log end

    log start        the first offset that may be read; retention and DeleteRecords raise it
    recovery point   below it indexes, snapshots and leader epochs are durable too; after a crash the log is checked from here
    durable          below it every byte has survived an fsync; acks=all waits for this
    high watermark   consumers may read below it; replication moves it
    log end          the offset of the next record

Anyone may read them; only this class changes them.

An append is checked completely, written in one gathered write, and only then changes any state: an append that fails leaves the
log as it was. The write goes to the page cache; ``begin_sync`` lists what must be synced and ``finish_sync`` moves ``durable``.
The log never blocks on a sync: group commit runs the plan on the executor.

The recovery point moves together with a sync: the same pass makes durable the indexes, the producer snapshot and the leader
epochs that recovery trusts below it. It moves at least every ``tidelog.recovery.point.interval.bytes``, which limits how much a
start after a crash has to read.

A failed sync proves nothing about the pages that it covered, now or later. The log goes offline and leaves a mark in its
directory; only a restart, which reads from the disk itself, can bring it back.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.log import names
from tidelog.log.append_check import (
    AppendOrigin,
    BatchValidation,
    ValidatedBatch,
    begin_validation,
    checked_batches,
    validate_batch,
    whole_batches_bytes,
)
from tidelog.log.durability.sync_plan import SyncPlan, Unsynced, leave_failed_sync_mark
from tidelog.log.environment import LogEnvironment, OffsetPosition, is_scarcity
from tidelog.log.errors import InvalidRecord, LogOffline, StaleLeaderEpoch, StorageError
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.log.producers.producer_snapshot import (
    load_newest_snapshot,
    marker_of,
    note_batch_of_producer,
    recall_batches,
    remove_snapshots_above,
    replay_producers,
    write_snapshot,
)
from tidelog.log.producers.producer_state import ProducerState
from tidelog.log.segments.batch_scan import LOOKUP_CHUNK_BYTES, scan_headers
from tidelog.log.segments.segment import RELATIVE_OFFSET_MAX, LogSegment, Segments
from tidelog.log.settings import LogSettings
from tidelog.ports.disk import Buffer, DiskFile
from tidelog.records.control import EndTransactionMarker, read_end_transaction_marker
from tidelog.records.header import (
    CONTROL_MASK,
    LOG_OVERHEAD,
    PREFIX_SIZE,
    BatchHeader,
    restamped_prefix,
    with_log_append_time,
)

# The log end, one above the last offset, must fit into the 63 bits of an offset too.
LAST_OFFSET_MAX = 2**63 - 2

# Calls tuple's own constructor: the one that NamedTuple generates is Python code, and appends make two of them.
_new_tuple = tuple.__new__
_CLIENT = AppendOrigin.CLIENT


class AppendResult(NamedTuple):
    first_offset: int
    last_offset: int
    append_time_ms: int
    """The broker's time under LogAppendTime, else -1."""
    is_duplicate: bool


class StampedBatch(NamedTuple):
    """A batch with the offsets and the leader epoch under which it goes into the log."""

    header: BatchHeader
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int
    marker: EndTransactionMarker | None


@dataclass(frozen=True, slots=True)
class LogIdentity:
    topic: str
    partition: int
    topic_id: bytes
    directory: str


@dataclass(frozen=True, slots=True)
class LogContents:
    """The initial contents of a log: what opening its directory found, or nothing."""

    segments: Segments
    producers: ProducerState
    epochs: LeaderEpochs
    log_start_offset: int = 0
    log_end_offset: int = 0
    recovery_point: int = 0
    snapshot_offset: int = -1
    """The offset of the newest producer snapshot on disk; -1 if there is no snapshot."""


class PartitionLog:
    __slots__ = (
        "_is_truncating",
        "_jitter_ms",
        "_snapshot_offset",
        "_unsynced",
        "bytes_since_recovery_point",
        "directory",
        "durability_listeners",
        "durable",
        "environment",
        "epochs",
        "high_watermark",
        "is_dirty",
        "is_retired",
        "log_end_offset",
        "log_start_offset",
        "name",
        "offline_reason",
        "partition",
        "producers",
        "recovery_point",
        "segments",
        "settings",
        "topic",
        "topic_id",
        "truncations",
    )

    def __init__(self, environment: LogEnvironment, identity: LogIdentity, settings: LogSettings, contents: LogContents) -> None:
        self.environment = environment
        self.topic = identity.topic
        self.partition = identity.partition
        self.name = names.partition_directory_name(identity.topic, identity.partition)
        self.topic_id = identity.topic_id
        self.directory = identity.directory
        self.settings = settings
        self.segments = segments = contents.segments
        self.producers = contents.producers
        self.epochs = contents.epochs
        self.log_start_offset = contents.log_start_offset
        self.log_end_offset = contents.log_end_offset
        self.recovery_point = contents.recovery_point
        # Opening ends with a sync of everything that was kept, so it is durable.
        self.durable = OffsetPosition(self.log_end_offset, segments.active.base_offset, segments.active.size)
        self.high_watermark = self.log_start_offset
        self.offline_reason: str | None = None
        self.is_retired = False
        self.is_dirty = False
        self.truncations = 0
        # While the marks on the disk are being lowered for a truncation, no sync may raise them.
        self._is_truncating = False
        self.bytes_since_recovery_point = 0
        self._snapshot_offset = contents.snapshot_offset
        self._unsynced = Unsynced()
        self.durability_listeners: tuple[Callable[[], None], ...] = ()
        self._jitter_ms = self._draw_jitter()

    def __repr__(self) -> str:
        return f"<PartitionLog {self.name} {self.log_start_offset}..{self.log_end_offset} durable {self.durable.offset}>"

    def change_settings(self, settings: LogSettings) -> None:
        """Called when the topic's configuration has changed. The next append is the first to follow it."""
        self.settings = settings
        self.producers.change_expiration(settings.producer_id_expiration_ms)
        self._jitter_ms = self._draw_jitter()

    # -- appending -----------------------------------------------------------------------------------------------------------

    def begin_validation(self, records: memoryview) -> ValidatedBatch | BatchValidation:
        """Validate a client's batch, or begin to, step by step; ``append_as_leader`` takes the result."""
        return begin_validation(records, self.settings, self.environment.clock.now_ms())

    def append_as_leader(
        self, records: Buffer | ValidatedBatch, leader_epoch: int, origin: AppendOrigin = _CLIENT
    ) -> AppendResult:
        """Check ``records`` (whole batches; a client's are one batch), assign offsets and write them. Durable once
        ``durable.offset`` has passed them."""
        if self.offline_reason is not None:
            self.check_online()
        if leader_epoch < self.epochs.latest_epoch:
            raise StaleLeaderEpoch(
                f"{self.name} is led in epoch {self.epochs.latest_epoch}, but the append came with epoch {leader_epoch}"
            )
        settings = self.settings
        now_ms = self.environment.clock.now_ms()
        batches: Sequence[tuple[int, BatchHeader]]
        if type(records) is ValidatedBatch and records.settings is settings:
            view, batches = records.view, ((0, records.header),)
        else:
            view, batches = self._validated(records, origin, now_ms)

        next_offset = self.log_end_offset
        buffers: list[Buffer] = []
        stamped: list[StampedBatch] = []
        for position, header in batches:
            size = header.batch_length + LOG_OVERHEAD
            marker = None
            if header.producer_id >= 0:
                if header.attributes & CONTROL_MASK:
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
                buffers.append(view[position + PREFIX_SIZE : position + size])
            last_offset = next_offset + header.last_offset_delta
            stamped.append(
                _new_tuple(StampedBatch, (header, size, next_offset, last_offset, max_timestamp, leader_epoch, marker))
            )
            next_offset = last_offset + 1
        first_offset = self.log_end_offset
        self._write(buffers, len(view), stamped, now_ms)
        return _new_tuple(AppendResult, (first_offset, next_offset - 1, now_ms if settings.log_append_time else -1, False))

    def _validated(
        self, records: Buffer | ValidatedBatch, origin: AppendOrigin, now_ms: int
    ) -> tuple[memoryview, list[tuple[int, BatchHeader]]]:
        """The bytes to write, and (position, header) of each batch in them."""
        if type(records) is ValidatedBatch:
            # The settings have changed since.
            validated = validate_batch(records.view, self.settings, now_ms)
            return validated.view, [(0, validated.header)]
        assert not isinstance(records, ValidatedBatch)
        view = records if type(records) is memoryview else memoryview(records)
        if origin is _CLIENT:
            validated = validate_batch(view, self.settings, now_ms)
            return validated.view, [(0, validated.header)]
        return view, checked_batches(view, origin)

    def append_as_follower(self, records: Buffer) -> None:
        """Append batches exactly as the leader has them: same offsets, epochs and bytes. An incomplete last batch is left out."""
        self.check_online()
        view = memoryview(records)
        now_ms = self.environment.clock.now_ms()
        view = view[: whole_batches_bytes(view)]
        batches = checked_batches(view, AppendOrigin.REPLICATION)
        stamped = _stamped_by_leader(self.name, view, batches, self.log_end_offset)
        self._write([view], len(view), stamped, now_ms)

    def _write(self, buffers: list[Buffer], size: int, stamped: list[StampedBatch], now_ms: int) -> None:
        first_offset, last_offset = stamped[0][2], stamped[-1][3]
        if last_offset - first_offset > RELATIVE_OFFSET_MAX or last_offset > LAST_OFFSET_MAX:
            # Batches that are written together lie in one segment, whose indexes reach only so far. The client states the record
            # counts, and a few small batches can claim billions.
            raise InvalidRecord(
                f"{self.name}: batches with offsets from {first_offset} to {last_offset} cannot be written at once"
            )
        segment = self.segments.active
        if segment.should_roll(self.settings, self._jitter_ms, size, last_offset, stamped[0][4], now_ms):
            segment = self.roll(first_offset, last_offset)
        try:
            position = segment.write(buffers, size)
        except OSError as error:
            raise self._after_failed_write(segment, error) from error
        try:
            self._note_written(stamped, position, segment)
        except Exception as error:
            # The bytes are in the file, but the log end is still before them: the next append would reuse their offsets.
            raise self.go_offline(f"{segment.path} was written, but could not be indexed: {error!r}") from error
        self.log_end_offset = last_offset + 1
        self.bytes_since_recovery_point += size
        unsynced = self._unsynced.segments
        if not unsynced or unsynced[-1] is not segment:
            unsynced.append(segment)
        if not self.is_dirty:
            self.is_dirty = True
            self.environment.on_dirty(self)

    def _note_written(self, stamped: list[StampedBatch], position: int, segment: LogSegment) -> None:
        """The batches are in the segment's file, starting at ``position``: index them, and record their epochs and producers."""
        index_interval_bytes, epochs = self.settings.index_interval_bytes, self.epochs
        for header, size, base_offset, last_offset, max_timestamp, leader_epoch, marker in stamped:
            segment.note_batch(position, size, last_offset, max_timestamp, index_interval_bytes)
            if leader_epoch > epochs.latest_epoch:
                epochs.assign(leader_epoch, base_offset)
            if header.producer_id >= 0:
                note_batch_of_producer(self.producers, segment, header, base_offset, marker)
            position += size

    def _after_failed_write(self, segment: LogSegment, error: OSError) -> Exception:
        """Remove the partial write. If that fails too, the log cannot continue."""
        try:
            if segment.dirty_file is not None:  # Otherwise the file could not be opened, and nothing was written.
                segment.cut()
        except OSError as second:
            return self.go_offline(f"writing {segment.path} failed ({error}), and so did removing the partial write ({second})")
        if is_scarcity(error):
            return StorageError(f"{self.name}: nothing was written: {error.strerror or error}; try again when there is room")
        return self.go_offline(f"writing {segment.path} failed: {error}")

    # -- rolling -------------------------------------------------------------------------------------------------------------

    def roll(self, first_offset: int = 0, last_offset: int = 0) -> LogSegment:
        """Close the active segment and begin another at the log end; or at ``first_offset`` when ``last_offset`` could not be
        indexed from the log end (a gap that a follower gets from its leader). An empty segment is kept if it fits."""
        self.check_online()
        active = self.segments.active
        is_out_of_reach = last_offset - self.log_end_offset > RELATIVE_OFFSET_MAX
        base_offset = first_offset if is_out_of_reach else self.log_end_offset
        if active.size == 0 and base_offset <= active.base_offset:
            return active
        segment = self._new_segment(base_offset)
        if active.size == 0:
            self.segments.replace([active], [segment])
            self._unsynced.forget_segments([active])
            active.remove()
        else:
            self.segments.append(segment)
            self._close_segment(active)
        self._unsynced.note_directory(self.directory)
        self._jitter_ms = self._draw_jitter()
        return segment

    def _new_segment(self, base_offset: int) -> LogSegment:
        segment = self.environment.segment(self.directory, base_offset)
        try:
            segment.create_file()
        except OSError as error:
            if is_scarcity(error):
                raise StorageError(
                    f"{self.name}: no room for a new segment: {error.strerror}; try again when there is room"
                ) from error
            raise self.go_offline(f"creating {segment.path} failed: {error}") from error
        return segment

    def _close_segment(self, segment: LogSegment) -> None:
        """Write the indexes and a producer snapshot at the boundary. Both can be rebuilt from the log, so a full disk does not
        stop the roll: the recovery point does not pass a segment until they are written."""
        try:
            segment.close_for_appends()
            # Synced with the segment: once the segment is deleted, the snapshot is all that is left of some producers.
            self._unsynced.note_file(self._write_snapshot())
        except OSError as error:
            self.environment.report("segment_close_deferred", {"partition": self.name, "error": str(error)})

    def _write_snapshot(self) -> DiskFile:
        """Write the producers' state at the log end. Neither the file nor its directory entry is durable yet."""
        file = write_snapshot(self.environment.disk, self.directory, self.log_end_offset, self.producers)
        self._snapshot_offset = self.log_end_offset
        self._unsynced.note_directory(self.directory)
        return file

    def _draw_jitter(self) -> int:
        """Draw a random delay, so that segments that began together do not all roll together."""
        jitter_ms_max = min(self.settings.segment_jitter_ms, self.settings.segment_ms)
        return self.environment.randomness.integer(0, jitter_ms_max) if jitter_ms_max > 0 else 0

    # -- durability ----------------------------------------------------------------------------------------------------------

    def begin_sync(self, with_recovery_point: bool = False) -> SyncPlan:
        """List what must be synced for everything appended so far to be durable. The caller runs the plan and then calls
        ``finish_sync``."""
        active, unsynced = self.segments.active, self._unsynced
        plan = SyncPlan(
            end=_new_tuple(OffsetPosition, (self.log_end_offset, active.base_offset, active.size)),
            truncations=self.truncations,
            segments=unsynced.segments,
            files=list(unsynced.files),
            directories=list(unsynced.directories),
            segment_files=[segment.file() for segment in unsynced.segments],
        )
        self._unsynced = Unsynced()
        self.is_dirty = False
        if with_recovery_point:
            self._plan_recovery_point(plan)
        return plan

    def _plan_recovery_point(self, plan: SyncPlan) -> None:
        """Add everything to the plan that recovery will trust below the present log end."""
        files: list[DiskFile] = []
        try:
            for segment in self.segments.from_offset(self.recovery_point):
                segment.write_indexes()
                files += segment.index_files()
            files.append(self._write_snapshot())
        except OSError as error:
            # Most likely the disk is full. The data itself is synced all the same; the recovery point has to wait.
            self.environment.report("recovery_point_deferred", {"partition": self.name, "error": str(error)})
            return
        epochs = self.epochs.begin_flush() if self.epochs.dirty else None
        plan.move_recovery_point(self.log_end_offset, files, epochs, self.directory)
        # The plan covers the snapshot's directory entry too.
        self._unsynced.forget_directories(plan.directories)
        self.bytes_since_recovery_point = 0

    def finish_sync(self, plan: SyncPlan, error: BaseException | None) -> None:
        """The plan has run. After a failed sync nothing that it covered may ever count as durable. A plan that lacked descriptors
        or memory proves nothing either way, and is repeated."""
        if self.is_retired:
            return  # Its directory is gone, and another log may have its name by now.
        if is_scarcity(error):
            if self.offline_reason is None:
                self._take_back(plan)
            return
        if error is not None:
            self.go_offline(f"syncing failed: {error}", sync_failed=True)
            return
        if self.offline_reason is not None:
            return  # An earlier sync of the same pages failed; the kernel called them clean since, so this one wrote nothing.
        for segment in plan.segments:
            if segment not in self._unsynced.segments:
                segment.note_synced()
        if plan.had_no_room:
            self.epochs.note_flush_failed()
        if plan.truncations != self.truncations or self._is_truncating:
            return  # What it made durable has been cut in the meantime; the next sync covers what is there now.
        if plan.end.offset > self.durable.offset:
            self.durable = plan.end
        if plan.recovery_point is not None and plan.recovery_point > self.recovery_point:
            self.recovery_point = plan.recovery_point
            self._prune_snapshots()

    def _take_back(self, plan: SyncPlan) -> None:
        """The plan could not run to its end. Its segments keep their descriptors, so the next plan learns of lost writes."""
        in_log = list(self.segments)
        self._unsynced.restore(plan, [segment for segment in plan.segments if segment in in_log])
        if plan.epochs is not None:
            self.epochs.note_flush_failed()
        if not self.is_dirty:
            self.is_dirty = True
            self.environment.on_dirty(self)

    def _prune_snapshots(self) -> None:
        """Keep the snapshots at the beginning of a segment, as Kafka does, and the newest. A leftover costs only a few bytes."""
        disk = self.environment.disk
        base_offsets = {segment.base_offset for segment in self.segments}
        try:
            for offset in names.base_offsets_of(disk.list_directory(self.directory), names.SNAPSHOT_SUFFIX):
                if offset < self.recovery_point and offset not in base_offsets:
                    disk.remove(names.segment_path(self.directory, offset, names.SNAPSHOT_SUFFIX))
        except OSError as error:
            self.environment.report("snapshots_not_pruned", {"partition": self.name, "error": str(error)})

    def add_durability_listener(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every commit pass that covered this log, also when the pass took the log offline."""
        self.durability_listeners = (*self.durability_listeners, listener)

    def remove_durability_listener(self, listener: Callable[[], None]) -> None:
        self.durability_listeners = tuple(each for each in self.durability_listeners if each != listener)

    def note_directory_change(self, directory: str) -> None:
        """A name in ``directory`` was created, renamed or removed: the next sync covers the directory too."""
        self._unsynced.note_directory(directory)
        if not self.is_dirty:
            self.is_dirty = True
            self.environment.on_dirty(self)

    def note_unsynced(self, segments: list[LogSegment]) -> None:
        """Recovery read these segments from the page cache: none of their bytes count as durable until a sync covers them."""
        first = self.segments[0]
        self.durable = OffsetPosition(first.base_offset, first.base_offset, 0)
        self._unsynced.segments[:] = segments
        self.note_directory_change(self.directory)

    def note_unsynced_file(self, file: DiskFile) -> None:
        """Note a small file next to the segments, which must become durable before any record does."""
        self._unsynced.note_file(file)
        self.note_directory_change(self.directory)

    def _note_cut(self, segment: LogSegment) -> None:
        """The file was shortened: the next sync covers it."""
        if segment not in self._unsynced.segments:
            self._unsynced.segments.append(segment)
        self.note_directory_change(self.directory)

    @property
    def is_saved(self) -> bool:
        """Whether the next process could open the log in this state without reading its segments."""
        # A roll alone leaves the log clean, but with a directory entry that is not durable: the next process would not know.
        is_synced = not self.is_dirty and not self.epochs.dirty and not self._unsynced.directories
        is_whole = self.offline_reason is None and is_synced
        return is_whole and self.recovery_point == self.log_end_offset and self._snapshot_offset == self.log_end_offset

    # -- watermarks ----------------------------------------------------------------------------------------------------------

    def advance_high_watermark(self, offset: int) -> None:
        """Let consumers read below ``offset``. Only a truncation moves it back."""
        if offset > self.log_end_offset:
            offset = self.log_end_offset
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.producers.on_high_watermark(offset)

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is decided; read_committed sees no further."""
        first_unstable = self.producers.first_unstable_offset
        if first_unstable is None or first_unstable > self.high_watermark:
            return self.high_watermark
        # Retention may have deleted the beginning of an open transaction.
        return max(first_unstable, self.log_start_offset)

    # -- deleting from the start ----------------------------------------------------------------------------------------------

    def raise_start(self, offset: int) -> None:
        """Hide the records below ``offset`` from readers. Durable once the log start offsets are checkpointed."""
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.epochs.truncate_from_start(offset)
            self.producers.on_high_watermark(min(offset, self.high_watermark))

    def has_segment_below(self, start_offset: int) -> bool:
        """Whether the first segment lies wholly below ``start_offset``."""
        following = self.segments.base_offset_after(self.segments[0])
        return following is not None and following <= start_offset

    def drop_segments_below(self, start_offset: int, segments_max: int = sys.maxsize) -> list[LogSegment]:
        """Take the segments out of the log that lie wholly below ``start_offset``, the log start that the disk has, and rename
        them to ``.deleted``; the caller removes the files later. At most ``segments_max`` at once: each is four renames. After an
        OSError it may be called again: what was renamed is still in the log."""
        gone: list[LogSegment] = []
        for segment in self.segments.closed:
            end_offset = self.segments.base_offset_after(segment)
            if end_offset is None or end_offset > start_offset or len(gone) == segments_max:
                break
            segment.rename(names.DELETED_SUFFIX)
            self._remove_snapshot(segment.base_offset, end_offset)
            gone.append(segment)
        if gone:
            self.segments.drop_first(len(gone))
            self._unsynced.forget_segments(gone)
            self.recovery_point = max(self.recovery_point, self.segments[0].base_offset)
            self.note_directory_change(self.directory)
            if not self.has_segment_below(start_offset):
                try:
                    self._remove_snapshots_below(self.segments[0].base_offset)
                except OSError as error:
                    # The segments have left the log, and a leftover snapshot costs only a few bytes.
                    self.environment.report("snapshots_not_pruned", {"partition": self.name, "error": str(error)})
        return gone

    def _remove_snapshot(self, offset: int, following_offset: int) -> None:
        """Remove a deleted segment's snapshot if a newer one exists: the newest may be all that is left of a producer whose
        batches are gone."""
        disk = self.environment.disk
        path = names.segment_path(self.directory, offset, names.SNAPSHOT_SUFFIX)
        following_path = names.segment_path(self.directory, following_offset, names.SNAPSHOT_SUFFIX)
        if disk.exists(path) and disk.exists(following_path):
            disk.remove(path)

    def _remove_snapshots_below(self, offset: int) -> None:
        """Remove snapshots that were written between two segments, or whose successor was missing. The newest stays."""
        disk = self.environment.disk
        offsets = names.base_offsets_of(disk.list_directory(self.directory), names.SNAPSHOT_SUFFIX)
        for snapshot_offset in offsets[:-1]:
            if snapshot_offset < offset:
                disk.remove(names.segment_path(self.directory, snapshot_offset, names.SNAPSHOT_SUFFIX))

    def replace_segments(self, old: list[LogSegment], replacement: LogSegment) -> None:
        """Replace ``old`` with ``replacement``, which compaction has written and made durable."""
        self.segments.replace(old, [replacement])
        self._unsynced.forget_segments(old)

    # -- cutting the end ------------------------------------------------------------------------------------------------------

    @property
    def is_truncating(self) -> bool:
        """Whether a truncation is under way: until it ends, nothing may be appended."""
        return self._is_truncating

    def begin_truncation(self) -> None:
        """Keep syncs from moving ``durable`` or the recovery point until ``end_truncation``."""
        self.check_online()
        self._is_truncating = True

    def end_truncation(self) -> None:
        self._is_truncating = False
        # A sync that ended in the meantime did not count, but the next one will.
        self._note_cut(self.segments.active)

    def end_offset_after_cut(self, offset: int) -> int:
        """Where the log would end after ``cut_to(offset)``: at the end of a batch, because that is what recovery would find."""
        if offset < self.segments[0].base_offset or offset >= self.log_end_offset:
            return offset
        return _cut_point(self.segments[self.segments.floor_index(offset)], offset)[1]

    def lower_recovery_point(self, offset: int) -> None:
        self.recovery_point = min(self.recovery_point, offset)

    def lower_start(self, offset: int) -> None:
        """Lower the log start, because a truncation goes below it; the caller checkpoints the new start before it cuts."""
        self.log_start_offset = min(self.log_start_offset, offset)

    def cut_to(self, offset: int) -> None:
        """Drop everything from ``offset`` on; from an earlier batch boundary when ``offset`` lies inside a batch or in a gap.

        Replication never cuts below the high watermark. The caller has already made sure that the durable mark and the recovery
        point on the disk are not above the new end; otherwise a crash in between would look like lost data.
        """
        self.check_online()
        if offset >= self.log_end_offset:
            return
        if offset < self.segments[0].base_offset:
            self.start_over_at(offset)
            return
        segments = self.segments
        keep = segments[segments.floor_index(offset)]
        later = [segment for segment in segments if segment.base_offset > keep.base_offset]
        position, end_offset = _cut_point(keep, offset)
        if position < keep.size:
            keep.truncate_to(position, end_offset)
        if later:
            segments.replace([keep, *later], [keep])
            for segment in later:
                segment.remove()
        self._after_cut(end_offset, keep, later)

    def start_over_at(self, offset: int) -> None:
        """Drop everything: the log is empty and begins at ``offset``."""
        old = list(self.segments)
        for segment in old:
            segment.remove()
        first = self.environment.segment(self.directory, offset)
        first.create_file()
        self.segments.replace(old, [first])
        self.log_start_offset = offset
        self.epochs.clear()
        self._after_cut(offset, first, old)
        # A log without records has none to lose.
        self.durable = OffsetPosition(offset, offset, 0)

    def _after_cut(self, end_offset: int, kept: LogSegment, removed: list[LogSegment]) -> None:
        environment, active = self.environment, self.segments.active
        self.truncations += 1
        self.log_end_offset = end_offset
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.high_watermark = min(self.high_watermark, end_offset)
        self.recovery_point = min(self.recovery_point, end_offset)
        if self.durable.offset >= end_offset:
            # What is kept was durable before the cut, but the cut itself is not yet.
            self.durable = OffsetPosition(end_offset, active.base_offset, active.size)
        self.epochs.truncate_from_end(end_offset)
        remove_snapshots_above(environment.disk, self.directory, end_offset)
        snapshot_offset = load_newest_snapshot(
            environment.disk, self.directory, end_offset, self.producers, environment.report, self.segments[0].base_offset
        )
        recall_batches(self.producers, self.segments, snapshot_offset)
        replay_producers(self.producers, self.segments, snapshot_offset or 0, end_offset)
        self.producers.on_high_watermark(self.high_watermark)
        self._unsynced.forget_segments(removed)
        self._note_cut(kept)

    # -- going offline -------------------------------------------------------------------------------------------------------

    def check_online(self) -> None:
        if self.offline_reason is not None:
            raise LogOffline(self.name, self.offline_reason)

    def go_offline(self, reason: str, sync_failed: bool = False) -> LogOffline:
        """Refuse all reads and writes until a restart has checked the disk. Returns the error to raise."""
        if sync_failed:
            try:
                leave_failed_sync_mark(self.environment.disk, self.directory, reason)
            except OSError as error:
                self.environment.report("failed_sync_mark_not_written", {"partition": self.name, "error": str(error)})
        if self.offline_reason is None:
            self.offline_reason = reason
            self.environment.report("log_offline", {"partition": self.name, "reason": reason})
        return LogOffline(self.name, reason)

    def retire(self) -> None:
        """Called when the partition was deleted: whoever still holds the log is refused, and a sync that is under way no longer
        matters."""
        self.is_retired = True
        self.offline_reason = "the partition was deleted"

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)


def _stamped_by_leader(
    name: str, view: memoryview, batches: list[tuple[int, BatchHeader]], log_end_offset: int
) -> list[StampedBatch]:
    """Yield the batches that a follower fetched, which the leader has stamped. Raises InvalidRecord when they do not continue
    this log."""
    stamped = []
    for position, header in batches:
        if header.base_offset < log_end_offset:
            raise InvalidRecord(
                f"{name}: the leader's batch at offset {header.base_offset} is below our log end {log_end_offset}"
            )
        if header.last_offset_delta < 0:
            raise InvalidRecord(f"{name}: the leader's batch at offset {header.base_offset} ends before it begins")
        marker = marker_of(view, position, header) if header.producer_id >= 0 else None
        last_offset = header.last_offset
        stamped.append(
            StampedBatch(header, header.size, header.base_offset, last_offset, header.max_timestamp, header.leader_epoch, marker)
        )
        log_end_offset = last_offset + 1
    return stamped


def _cut_point(segment: LogSegment, offset: int) -> tuple[int, int]:
    """Return (position, offset) just after the last batch that ends below ``offset``."""
    end_offset = segment.base_offset
    start = segment.offset_index.lookup(offset - 1)[1]
    for position, header in scan_headers(segment.file(), start, segment.size, LOOKUP_CHUNK_BYTES):
        if header.last_offset >= offset:
            return position, end_offset
        end_offset = header.next_offset
    return segment.size, end_offset
