"""The times of the batches at given offsets, without a disk read on the loop.

An offset's batch is found as a fetch finds it: offset index, then headers from there. No record is decoded. What lies far behind
is often not in memory, so whatever reads files runs on the executor, for a slice of offsets at a time:

    1. for a segment that was not looked at lately, its indexes are read through, so that loading them on the loop does not wait
    2. on the loop, the index says where to begin
    3. the headers are walked from there, and from the last index entry on, where the segment's newest timestamp is found

Afterwards ``segment.max_timestamp`` is known, or found in memory. A batch that cannot be had (its segment was deleted meanwhile,
the disk fails) has no times; the next round tries again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from tidelog.groups.lag import UNLIMITED, BatchTimes, RetentionFacts, SegmentFacts, deletion_at_ms
from tidelog.log import names
from tidelog.log.errors import LogError
from tidelog.log.partition_log import PartitionLog
from tidelog.log.segments.batch_scan import LOOKUP_CHUNK_BYTES, scan_headers
from tidelog.log.segments.segment import NO_TIMESTAMP, LogSegment
from tidelog.ports.disk import Disk, DiskFile
from tidelog.ports.executor import Completion, Executor
from tidelog.records.header import BatchHeader

# Between two index entries lie a few batches; a segment whose index was lost has more, and is not walked whole.
HEADERS_MAX = 10_000


class Wanted(NamedTuple):
    log: PartitionLog
    offset: int


class _Range(NamedTuple):
    """Batches of a file, from one of them on."""

    file: DiskFile
    position: int
    end: int


class _Walk(NamedTuple):
    offset: int
    candidates: list[_Range]
    """Where its batch may be: the first that ends at or above the offset is it."""
    tails: list[_Range]
    """Behind the last index entries."""


OnFound = Callable[[list[BatchTimes | None]], None]
Report = Callable[[str, dict[str, object]], None]


class LagLookup:
    __slots__ = ("_disk", "_executor", "_report", "_round", "_warm")

    def __init__(self, disk: Disk, executor: Executor, report: Report) -> None:
        self._disk = disk
        self._executor = executor
        self._report = report
        self._warm: dict[LogSegment, int] = {}
        self._round = 0

    def begin_round(self) -> None:
        """Segments that the last round did not look at are forgotten: what was read of them may have left the page cache."""
        self._warm = {segment: number for segment, number in self._warm.items() if number == self._round}
        self._round += 1

    def is_warm(self, segment: LogSegment) -> bool:
        if segment not in self._warm:
            return False
        self._warm[segment] = self._round
        return True

    def find(self, wanted: Sequence[Wanted], on_found: OnFound) -> None:
        """In the order of ``wanted``; None for one that cannot be had. Never calls back from within."""
        cold = {segment: log for log, offset in wanted for segment in segments_of(log, offset) if segment not in self._warm}
        paths = [
            names.segment_path(log.directory, segment.base_offset, suffix)
            for segment, log in cold.items()
            for suffix in (names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX)
        ]

        def warmed(completion: Completion) -> None:
            self._note_error(completion)
            self._walk(wanted, on_found)

        if paths:
            self._executor.submit(lambda: _read_through(self._disk, paths), warmed)
        else:
            self._walk(wanted, on_found)

    def _walk(self, wanted: Sequence[Wanted], on_found: OnFound) -> None:
        walks = [self._plan(log, offset) for log, offset in wanted]

        def walked(completion: Completion) -> None:
            self._note_error(completion)
            headers: list[BatchHeader | None] = completion.result or [None] * len(wanted)
            # Only now: before, the newest timestamp of a segment would have been read on the loop.
            for (log, offset), header in zip(wanted, headers, strict=True):
                if header is not None:
                    self._warm.update(dict.fromkeys(segments_of(log, offset), self._round))
            on_found([None if header is None else batch_times(header) for header in headers])

        self._executor.submit(lambda: [_walk_headers(walk) for walk in walks], walked)

    def _plan(self, log: PartitionLog, offset: int) -> _Walk:
        segments = log.segments
        index = segments.floor_index(offset)
        try:
            holding = segments[index]
            candidates = [_Range(holding.file(), holding.offset_index.lookup(offset)[1], holding.size)]
            if index + 1 < len(segments):
                # Compaction may have taken the end of the segment; then the next one goes on.
                candidates.append(_Range(segments[index + 1].file(), 0, segments[index + 1].size))
            tails = [
                _Range(segment.file(), segment.offset_index.last_position, segment.size) for segment in segments_of(log, offset)
            ]
        except (LogError, OSError):
            return _Walk(offset, [], [])
        return _Walk(offset, candidates, tails)

    def _note_error(self, completion: Completion) -> None:
        if completion.error is not None:
            self._report("unexpected_error", {"where": "looking up lag", "error": repr(completion.error)})


def segments_of(log: PartitionLog, offset: int) -> list[LogSegment]:
    """The first, which retention deletes before any other, and, if it is another one, that which holds ``offset``."""
    segments = log.segments
    index = segments.floor_index(offset)
    return [segments[0], segments[index]] if index else [segments[0]]


def batch_times(header: BatchHeader) -> BatchTimes:
    # With a delete horizon the field holds that; under LogAppendTime every record has the batch's newest time.
    is_of_first = not header.has_delete_horizon and not header.is_log_append_time
    return BatchTimes(
        header.base_offset,
        header.last_offset,
        header.base_timestamp if is_of_first else NO_TIMESTAMP,
        header.max_timestamp,
        header.delete_horizon_ms,
    )


def log_deletion_at_ms(
    log: PartitionLog, offset: int, batch: BatchTimes, produced_per_second: float | None, now_ms: int
) -> int | None:
    """When retention takes the record at ``offset``, which is in ``batch``, at the earliest. Its segments were looked up."""
    settings = log.settings
    retention = RetentionFacts(settings.delete, settings.retention_ms, settings.retention_bytes)
    log_bytes = 0
    bytes_per_second = None
    if settings.delete and settings.retention_bytes != UNLIMITED:
        log_bytes = log.size
        if produced_per_second is not None:
            bytes_per_second = produced_per_second * log_bytes / max(1, log.log_end_offset - log.log_start_offset)
    try:
        facts = [_segment_facts(log, segment) for segment in segments_of(log, offset)]
    except (LogError, OSError):
        return None
    return deletion_at_ms(now_ms, retention, facts[0], facts[-1], log_bytes, bytes_per_second, batch.delete_horizon_ms)


def _segment_facts(log: PartitionLog, segment: LogSegment) -> SegmentFacts:
    settings, segments = log.settings, log.segments
    newest_ms = segment.max_timestamp
    bytes_through = 0
    if settings.retention_bytes != UNLIMITED:
        bytes_through = sum(segments[index].size for index in range(segments.floor_index(segment.base_offset) + 1))
    if segment is not segments.active:
        return SegmentFacts(newest_ms if newest_ms >= 0 else None, bytes_through)
    return SegmentFacts(
        newest_ms if newest_ms >= 0 else None,
        bytes_through,
        max(1, settings.segment_bytes - segment.size),
        segment.created_ms + settings.segment_ms,
    )


def _read_through(disk: Disk, paths: Sequence[str]) -> None:
    for path in paths:
        # An index without entries has no file.
        with suppress(OSError):
            file = disk.open(path, "read")
            file.read(0, file.size())


def _walk_headers(walk: _Walk) -> BatchHeader | None:
    try:
        for tail in walk.tails:
            for _ in _headers(tail):
                pass
        return next(
            (header for place in walk.candidates for header in _headers(place) if header.last_offset >= walk.offset), None
        )
    except (LogError, OSError):
        return None


def _headers(place: _Range) -> Iterator[BatchHeader]:
    found = scan_headers(place.file, place.position, place.end, LOOKUP_CHUNK_BYTES)
    return (header for _, header in islice(found, HEADERS_MAX))
