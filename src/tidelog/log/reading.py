"""Reading a partition log: by offset, by timestamp, by leader epoch.

A read by offset touches no record: it returns a *slice* (file, position, length) of one segment, for ``sendfile``. The slice
begins at the batch that holds the wanted offset (so it may begin below it, as Kafka's clients expect), ends at the bound that
the reader may see, and always holds at least one whole batch, however large. The open file in the slice keeps the bytes
readable after the segment was deleted.
"""

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import NamedTuple

from tidelog.log.environment import OffsetPosition
from tidelog.log.errors import OffsetOutOfRange
from tidelog.log.leader_epochs import UNDEFINED_EPOCH
from tidelog.log.partition_log import PartitionLog
from tidelog.log.segments.indexes import AbortedTransaction
from tidelog.log.segments.segment import NO_TIMESTAMP, LogSegment, is_range_cached
from tidelog.ports.disk import DiskFile
from tidelog.ports.steps import Steps
from tidelog.records.header import LOG_OVERHEAD

# A lookup by time pauses after this many segments.
SEGMENTS_PER_STEP = 64
# The aborted transactions in one slice. Each costs the reader and the broker half a microsecond.
ABORTED_MAX = 10_000
# A helper thread reads a cold range in pieces of this size.
COLD_CHUNK_BYTES = 256 << 10
# Calls tuple's own constructor: the one that NamedTuple generates is Python code, and every read makes three.
_new_tuple = tuple.__new__


class Isolation(Enum):
    """Selects how far a reader may read."""

    LOG_END = "log end"  # followers
    HIGH_WATERMARK = "high watermark"  # read_uncommitted
    LAST_STABLE = "last stable offset"  # read_committed


class LogSlice(NamedTuple):
    file: DiskFile
    position: int
    length: int


class LogRead(NamedTuple):
    records: LogSlice | None
    """None when there is nothing below the bound yet."""
    bound_offset: int
    aborted: list[AbortedTransaction]
    """Under LAST_STABLE: the aborted transactions that the slice may hold records of."""


class TimestampedOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


def read(log: PartitionLog, offset: int, bytes_max: int, isolation: Isolation, at_least_one: bool = True) -> LogRead:
    log.check_online()
    if offset < log.log_start_offset or offset > log.log_end_offset:
        raise OffsetOutOfRange(offset, log.log_start_offset, log.log_end_offset)
    bound = _bound(log, isolation)
    if offset >= bound.offset:
        return _new_tuple(LogRead, (None, bound.offset, []))
    segments = log.segments
    for index in range(segments.floor_index(offset), len(segments)):
        segment = segments[index]
        if segment.base_offset > bound.segment_base_offset:
            break
        found = segment.find_batch(offset)
        if found is None:
            continue  # Compaction removed the end of this segment: continue with the next one.
        position, header = found
        end = segment.size
        if segment.base_offset == bound.segment_base_offset:
            # Compaction may have shortened the segment since the bound was noted; then all of it is below the bound.
            end = min(end, bound.position)
        size = header.batch_length + LOG_OVERHEAD
        if position + size > end:
            break
        length = min(max(bytes_max, size) if at_least_one else bytes_max, end - position)
        if length < size:
            break
        aborted: list[AbortedTransaction] = []
        if isolation is Isolation.LAST_STABLE:
            aborted, length = _aborted(log, index, offset, position, length, bound)
        records = _new_tuple(LogSlice, (segment.file(), position, length))
        return _new_tuple(LogRead, (records, bound.offset, aborted))
    return LogRead(None, bound.offset, [])


def cold_read(log: PartitionLog, offset: int) -> Callable[[], object] | None:
    """Return a call that loads the index entries and headers which ``read`` at ``offset`` needs, for a helper thread to run. Ask
    again after it. None if everything is in memory. The records themselves are not read."""
    segments = log.segments
    active = segments.active
    if offset >= log.log_end_offset or offset < log.log_start_offset:
        return None
    if offset >= active.base_offset and active.is_recent(offset):
        return None
    return segments[segments.floor_index(offset)].cold_read(offset)


def cold_slice(log: PartitionLog, offset: int, records: LogSlice) -> Callable[[], object] | None:
    """Return a call that loads a slice for a helper thread to run. ``read`` at ``offset`` has returned it. None if all of it is
    in memory, as far as the kernel can tell."""
    active = log.segments.active
    if offset >= active.base_offset and active.is_recent(offset):
        return None
    file, position, length = records
    return None if is_range_cached(file, position, length) else partial(_read_range, records)


def _read_range(records: LogSlice) -> None:
    file, position, length = records
    end = position + length
    while position < end:
        data = file.read(position, min(COLD_CHUNK_BYTES, end - position))
        if not data:
            return
        position += len(data)


def _bound(log: PartitionLog, isolation: Isolation) -> OffsetPosition:
    if isolation is Isolation.LOG_END:
        offset = log.log_end_offset
    elif isolation is Isolation.HIGH_WATERMARK:
        offset = log.high_watermark
    else:
        offset = log.last_stable_offset
    return position_of(log, offset)


def position_of(log: PartitionLog, offset: int) -> OffsetPosition:
    """Where the first batch at or above ``offset`` begins. The offsets that nearly every read asks for need no lookup."""
    active = log.segments.active
    if offset >= log.log_end_offset:
        return _new_tuple(OffsetPosition, (log.log_end_offset, active.base_offset, active.size))
    durable = log.durable
    if offset == durable.offset:
        return durable
    segments = log.segments
    for index in range(segments.floor_index(offset), len(segments)):
        segment = segments[index]
        found = segment.find_batch(offset)
        if found is not None:
            return OffsetPosition(offset, segment.base_offset, found[0])
    return OffsetPosition(log.log_end_offset, active.base_offset, active.size)


def _aborted(
    log: PartitionLog, index: int, offset: int, position: int, length: int, bound: OffsetPosition
) -> tuple[list[AbortedTransaction], int]:
    """The aborted transactions with records in the slice from ``offset`` on, and the length of the slice. If they are too many,
    the slice is shortened: it ends before one of their markers, and the reader comes again for the rest."""
    segment = log.segments[index]
    upper = _offset_at_or_after(log, segment, position + length, bound)
    found = _aborted_in(log, index, offset, upper, ABORTED_MAX)
    if len(found) > ABORTED_MAX:
        marker_offset = found[ABORTED_MAX].last_offset
        marker = segment.find_batch(marker_offset)
        if marker is not None and position < marker[0] < position + length:
            upper, length = marker_offset, marker[0] - position
        # Otherwise they all end behind the slice, so there are as many producers.
        found = _aborted_in(log, index, offset, upper)
    return found, length


def _aborted_in(log: PartitionLog, index: int, offset: int, upper: int, enough: int | None = None) -> list[AbortedTransaction]:
    """The aborted transactions with records in [offset, upper). A transaction is listed in the segment that holds its marker,
    which may be a later one; the search ends at an entry whose last stable offset is past the slice, because nothing later can
    matter. It may end as soon as there are more than ``enough``."""
    segments = log.segments
    found: list[AbortedTransaction] = []
    for later in range(index, len(segments)):
        if segments[later].transaction_index.collect_into(found, offset, upper, enough):
            break
    return found


def _offset_at_or_after(log: PartitionLog, segment: LogSegment, end_position: int, bound: OffsetPosition) -> int:
    """An upper bound of the offsets in the segment before ``end_position``."""
    following = log.segments.base_offset_after(segment)
    upper = bound.offset if following is None else min(following, bound.offset)
    if end_position >= segment.size:
        return upper
    return min(segment.offset_index.first_offset_at(end_position) or upper, upper)


def offset_for_timestamp(log: PartitionLog, timestamp: int) -> Steps[TimestampedOffset | None]:
    """The first record stamped ``timestamp`` or later; None if there is no such record.

    This and the next function may take long, and the log may change while they pause. So they go through a copy of the list of
    segments; a segment that is deleted meanwhile still has its records."""
    log.check_online()
    segments = list(log.segments)
    for index, segment in enumerate(segments):
        following = segments[index + 1].base_offset if index + 1 < len(segments) else None
        if segment.size == 0 or (following is not None and following <= log.log_start_offset):
            continue
        found = yield from segment.find_timestamp(timestamp, log.log_start_offset)
        if found is not None:
            return TimestampedOffset(*found)
        if not index % SEGMENTS_PER_STEP:
            yield
    return None


def offset_of_max_timestamp(log: PartitionLog) -> Steps[TimestampedOffset | None]:
    """The first record that carries the newest timestamp (ListOffsets' MAX_TIMESTAMP)."""
    log.check_online()
    newest: LogSegment | None = None
    newest_timestamp = NO_TIMESTAMP
    for index, segment in enumerate(list(log.segments.from_offset(log.log_start_offset))):
        timestamp = yield from segment.max_timestamp_from(log.log_start_offset)
        if timestamp > newest_timestamp:
            newest, newest_timestamp = segment, timestamp
        if not index % SEGMENTS_PER_STEP:
            yield
    if newest is None:
        return None
    found = yield from newest.find_timestamp(newest_timestamp, log.log_start_offset)
    return TimestampedOffset(*found) if found is not None else None


def end_offset_for_epoch(log: PartitionLog, epoch: int, leader_epoch: int = UNDEFINED_EPOCH) -> tuple[int, int]:
    """Return (epoch, end offset): the largest known epoch not above ``epoch`` and where it ended (OffsetForLeaderEpoch)."""
    log.check_online()
    return log.epochs.end_offset_for(epoch, log.log_end_offset, leader_epoch)
