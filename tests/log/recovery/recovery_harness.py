"""A log of a few segments that tests stop, crash and damage, and the check that it came back whole.

One batch of BATCH_BYTES per offset, so that a test can say by its number where a batch lies.
"""

from tests.log.harness import BATCH_BYTES, PATH, Store, append, log_headers, read_offsets
from tidelog.log.partition_log import PartitionLog
from tidelog.log.segments.batch_scan import scan_headers
from tidelog.log.segments.segment import LogSegment
from tidelog.records.header import BatchHeader

LOG = f"{PATH}/orders-0"
FIRST_SEGMENT = f"{LOG}/00000000000000000000.log"


def filled(store: Store, count: int = 25) -> PartitionLog:
    """One batch of BATCH_BYTES per offset, ten in a segment, all durable; the second half in leader epoch 1."""
    log = store.create()
    for number in range(count):
        append(log, leader_epoch=2 * number // count)
    store.commit(log)
    return log


def check_whole(log: PartitionLog, count: int) -> None:
    assert read_offsets(log) == list(range(count))
    assert [header.base_offset for header in log_headers(log)] == list(range(count))
    for segment in log.segments:
        for index in (segment.offset_index, segment.time_index, segment.transaction_index):
            index.check()
        entries = list(segment.offset_index.entries())
        assert all(segment.find_batch(offset) == next_at(segment, position) for offset, position in entries)
        assert len(entries) >= segment.size // (4 * BATCH_BYTES)


def next_at(segment: LogSegment, position: int) -> tuple[int, BatchHeader]:
    return next(scan_headers(segment.file(), position, segment.size, 4096))
