"""Batches with the offsets and the epoch under which they go into the log, and what the log notes of each once it is written."""

from typing import NamedTuple

from tidelog.log.errors import InvalidRecord
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.log.producer_state import ProducerState
from tidelog.log.segment import RELATIVE_OFFSET_MAX, LogSegment
from tidelog.log.transactions import marker_of, note_batch_of_producer
from tidelog.records.control import EndTransactionMarker
from tidelog.records.header import BatchHeader

# The log end, one above the last offset, must fit into the 63 bits of an offset too.
LAST_OFFSET_MAX = 2**63 - 2


class StampedBatch(NamedTuple):
    """A batch as it goes into the log."""

    header: BatchHeader
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int
    marker: EndTransactionMarker | None


def stamped_by_leader(
    name: str, view: memoryview, batches: list[tuple[int, BatchHeader]], log_end_offset: int
) -> list[StampedBatch]:
    """As a follower gets them: the leader has stamped them. InvalidRecord when they do not follow what is there."""
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


def check_offsets(name: str, stamped: list[StampedBatch]) -> None:
    """Batches that are written together lie in one segment, whose indexes reach only so far. Record counts are the client's word,
    and a few small batches can claim billions."""
    first_offset, last_offset = stamped[0].base_offset, stamped[-1].last_offset
    if last_offset - first_offset > RELATIVE_OFFSET_MAX or last_offset > LAST_OFFSET_MAX:
        raise InvalidRecord(f"{name}: batches with offsets from {first_offset} to {last_offset} cannot be written at once")


def note_written(
    stamped: list[StampedBatch],
    position: int,
    segment: LogSegment,
    index_interval_bytes: int,
    epochs: LeaderEpochs,
    producers: ProducerState,
) -> None:
    """They are in the segment's file from ``position`` on: index them, and follow their epochs and producers."""
    for header, size, base_offset, last_offset, max_timestamp, leader_epoch, marker in stamped:
        segment.note_batch(position, size, last_offset, max_timestamp, index_interval_bytes)
        if leader_epoch > epochs.latest_epoch:
            epochs.assign(leader_epoch, base_offset)
        if header.producer_id >= 0:
            note_batch_of_producer(producers, segment, header, base_offset, marker)
        position += size
