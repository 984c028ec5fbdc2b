"""Cut a log back: a follower that parts from its leader's history, or starts over from another offset.

The offsets that the outside knows must be lowered first: whoever calls has made sure that the durable mark and the recovery
point on the disk are not above the new end, else a crash in between would be taken for lost data. Nothing below the high
watermark is ever truncated by replication.
"""

from tidelog.log.batch_scan import LOOKUP_CHUNK_BYTES, scan_headers
from tidelog.log.environment import OffsetPosition
from tidelog.log.partition_log import PartitionLog
from tidelog.log.producer_recovery import load_newest_snapshot, remove_snapshots_above, replay_producers
from tidelog.log.segment import LogSegment


def end_offset_after_cut(log: PartitionLog, offset: int) -> int:
    """Where the log will end when truncated to ``offset``: where a batch ends, for that is what recovery finds. What the outside
    knows is lowered to this."""
    if offset < log.segments[0].base_offset or offset >= log.log_end_offset:
        return offset
    return _cut_point(log.segments[log.segments.floor_index(offset)], offset)[1]


def _cut_point(segment: LogSegment, offset: int) -> tuple[int, int]:
    """(position, offset) behind the last batch that ends below ``offset``."""
    end_offset = segment.base_offset
    start = segment.offset_index.lookup(offset - 1)[1]
    for position, header in scan_headers(segment.file(), start, segment.size, LOOKUP_CHUNK_BYTES):
        if header.last_offset >= offset:
            return position, end_offset
        end_offset = header.next_offset
    return segment.size, end_offset


def truncate_to(log: PartitionLog, offset: int) -> None:
    """The log ends at ``offset`` afterwards; lower, where a batch ends, when ``offset`` lies inside one or in a gap."""
    log.check_online()
    if offset >= log.log_end_offset:
        return
    if offset < log.segments[0].base_offset:
        start_over_at(log, offset)
        return
    segments = log.segments
    keep = segments[segments.floor_index(offset)]
    later = [segment for segment in segments if segment.base_offset > keep.base_offset]
    position, end_offset = _cut_point(keep, offset)
    if position < keep.size:
        keep.truncate_to(position, end_offset)
    if later:
        segments.replace([keep, *later], [keep])
        for segment in later:
            segment.remove()
    _after_cut(log, end_offset, [keep], later)


def start_over_at(log: PartitionLog, offset: int) -> None:
    """Drop everything; the log is empty and begins at ``offset``."""
    old = list(log.segments)
    for segment in old:
        segment.remove()
    environment = log.environment
    first = LogSegment(
        environment.disk, environment.handles, environment.index_cache, log.directory, offset, 0, environment.clock.now_ms()
    )
    first.create_file()
    log.segments.replace(old, [first])
    log.log_start_offset = offset
    log.epochs.clear()
    _after_cut(log, offset, [first], old)


def _after_cut(log: PartitionLog, end_offset: int, kept: list[LogSegment], removed: list[LogSegment]) -> None:
    disk = log.environment.disk
    active = log.segments.active
    log.truncations += 1
    log.log_end_offset = end_offset
    log.log_start_offset = min(log.log_start_offset, end_offset)
    log.high_watermark = min(log.high_watermark, end_offset)
    log.recovery_point = min(log.recovery_point, end_offset)
    if log.durable.offset >= end_offset:
        # What is kept was durable before the cut, but the cut itself is not yet.
        log.durable = OffsetPosition(end_offset, active.base_offset, active.size)
    log.epochs.truncate_from_end(end_offset)
    remove_snapshots_above(disk, log.directory, end_offset)
    snapshot_offset = load_newest_snapshot(
        disk, log.directory, end_offset, log.producers, log.environment.report, log.segments[0].base_offset
    )
    replay_producers(log.producers, log.segments, snapshot_offset or 0, end_offset)
    log.producers.on_high_watermark(log.high_watermark)
    log.unsynced.forget_segments(removed)
    log.note_cut(kept[-1])
