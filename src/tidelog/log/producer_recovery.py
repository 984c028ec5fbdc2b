"""The producers' state of a log that is opened or truncated: the newest snapshot that may be trusted, then the log from there on.

Replaying needs only headers, and the content of transaction markers. Snapshots above the offset that is trusted are removed:
after a crash they may describe batches that were lost, and a later log could reach their offset again with other batches.
"""

from tidelog.log import names
from tidelog.log.batch_scan import SCAN_CHUNK_BYTES, scan_headers
from tidelog.log.environment import Report
from tidelog.log.errors import CorruptSnapshot
from tidelog.log.producer_snapshot import decode_snapshot
from tidelog.log.producer_state import ProducerState
from tidelog.log.segment import LogSegment
from tidelog.log.segments import Segments
from tidelog.log.transactions import marker_of, note_batch_of_producer
from tidelog.ports.disk import Disk


def load_newest_snapshot(
    disk: Disk, directory: str, trusted_below: int, producers: ProducerState, report: Report, replayable_from: int = 0
) -> int | None:
    """Load the newest snapshot taken at or below ``trusted_below``; returns its offset, None when there is none. Others go.

    ``replayable_from`` is where the log's first segment begins: an older snapshot lacks batches that are gone, and to know
    nothing of a producer is better than to hold it to a sequence that it has long passed.
    """
    offsets = names.base_offsets_of(disk.list_directory(directory), names.SNAPSHOT_SUFFIX)
    for offset in reversed(offsets):
        path = names.segment_path(directory, offset, names.SNAPSHOT_SUFFIX)
        if not replayable_from <= offset <= trusted_below:
            disk.remove(path)
            continue
        try:
            file = disk.open(path, "read")
            producers.load(decode_snapshot(file.read(0, file.size()), path))
        except CorruptSnapshot as error:
            report("producer_snapshot_discarded", {"path": path, "error": str(error)})
            disk.remove(path)
            continue
        return offset
    producers.clear()
    return None


def replay_producers(producers: ProducerState, segments: Segments, from_offset: int, to_offset: int) -> None:
    """Bring the state from ``from_offset`` to ``to_offset`` by the headers between. The transaction index knows them."""
    if from_offset >= to_offset:
        return
    for segment in segments.from_offset(from_offset):
        if segment.base_offset >= to_offset:
            return
        _replay_segment(producers, segment, from_offset, to_offset)


def _replay_segment(producers: ProducerState, segment: LogSegment, from_offset: int, to_offset: int) -> None:
    start = segment.offset_index.lookup(from_offset)[1] if from_offset > segment.base_offset else 0
    file = segment.file()
    for position, header in scan_headers(file, start, segment.size, SCAN_CHUNK_BYTES):
        base_offset = header.base_offset
        if base_offset >= to_offset:
            return
        if header.producer_id >= 0 and base_offset >= from_offset:
            marker = None
            if header.is_control:
                marker = marker_of(file.read(position, header.size), 0, header)
            note_batch_of_producer(producers, None, header, base_offset, marker)
        if header.next_offset >= to_offset:
            return  # What follows is not checked yet, and may be torn.


def remove_snapshots_above(disk: Disk, directory: str, offset: int) -> None:
    for snapshot_offset in names.base_offsets_of(disk.list_directory(directory), names.SNAPSHOT_SUFFIX):
        if snapshot_offset > offset:
            disk.remove(names.segment_path(directory, snapshot_offset, names.SNAPSHOT_SUFFIX))
