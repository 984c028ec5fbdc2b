"""Batches with the offsets and the epoch under which they go into the log."""

from typing import NamedTuple

from tidelog.log.errors import InvalidRecord
from tidelog.log.transactions import marker_of
from tidelog.records.control import EndTransactionMarker
from tidelog.records.header import BatchHeader


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
        marker = marker_of(view, position, header) if header.producer_id >= 0 else None
        last_offset = header.last_offset
        stamped.append(
            StampedBatch(header, header.size, header.base_offset, last_offset, header.max_timestamp, header.leader_epoch, marker)
        )
        log_end_offset = last_offset + 1
    return stamped
