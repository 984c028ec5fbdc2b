"""The offsets that batches go into the log under: how far one write may reach, and what a leader's batches must look like."""

import pytest
from fastcrc.crc32 import iscsi as crc32c

from tests.log.harness import START_MS, Store, append, batch, log_headers
from tidelog.log.errors import InvalidRecord, LogOffline
from tidelog.log.partition_log import LAST_OFFSET_MAX
from tidelog.log.segment import RELATIVE_OFFSET_MAX
from tidelog.log.settings import LogSettings
from tidelog.records.compression import CompressionType
from tidelog.records.header import BATCH_LENGTH_MIN, CHECKSUMMED_HEADER, MAGIC, PREFIX_MAGIC_CRC

COUNT_MAX = 2**31 - 1


def claiming(record_count: int, base_offset: int = 0, last_offset_delta: int | None = None) -> bytes:
    """A few bytes that say that they are so many records, compressed, so that nobody looks; the checksum is right."""
    delta = record_count - 1 if last_offset_delta is None else last_offset_delta
    body = bytes(10)
    checksummed = CHECKSUMMED_HEADER.pack(CompressionType.GZIP, delta, START_MS, START_MS, -1, -1, -1, record_count)
    crc = crc32c(body, crc32c(checksummed))
    return PREFIX_MAGIC_CRC.pack(base_offset, BATCH_LENGTH_MIN + len(body), 0, MAGIC, crc) + checksummed + body


def test_one_batch_may_claim_all_that_a_segment_can_index() -> None:
    log = Store().create()
    append(log)
    assert log.append_as_leader(claiming(COUNT_MAX), 0).last_offset == COUNT_MAX
    append(log)
    assert all(
        header.last_offset - segment.base_offset <= RELATIVE_OFFSET_MAX
        for segment, header in zip(log.segments, log_headers(log), strict=False)
    )


@pytest.mark.parametrize("count", [3, 80])
def test_batches_that_no_index_can_span_are_refused_before_a_byte_is_written(count: int) -> None:
    """Written and then not indexed, their offsets were given out again, and the next start found two batches of one offset."""
    store = Store()
    log = store.create()
    append(log)
    with pytest.raises(InvalidRecord):
        log.append_as_leader(claiming(COUNT_MAX) * count, 0)
    assert append(log).first_offset == 1
    store.commit(log)
    store.crash()
    assert [header.base_offset for header in log_headers(store.log())] == [0, 1]


def test_offsets_end_before_they_no_longer_fit() -> None:
    log = Store().create()
    log.append_as_follower(batch(base_offset=LAST_OFFSET_MAX - 1))
    with pytest.raises(InvalidRecord):
        log.append_as_leader(claiming(2), 0)
    assert append(log).last_offset == LAST_OFFSET_MAX
    with pytest.raises(InvalidRecord):
        append(log)


def test_a_leaders_batch_that_ends_before_it_begins_is_refused() -> None:
    log = Store().create()
    with pytest.raises(InvalidRecord):
        log.append_as_follower(claiming(1, 5, last_offset_delta=-3))


def test_a_batch_that_was_written_but_cannot_be_noted_takes_the_log_offline() -> None:
    """Its offset must not be given out again: two batches of one offset are what a restart takes for corruption."""
    store = Store(LogSettings(index_interval_bytes=100))
    log = store.create()
    for _ in range(10):
        append(log)
    store.commit(log)
    assert store.wait(lambda done: store.directory.truncate(log, 5, done)) is None
    store.commit(log)
    store.disk.faults.fail("read", lambda path: path.endswith(".log"), times=1)
    for _ in range(2):
        with pytest.raises(LogOffline):
            append(log)
    store.crash("all")
    assert [header.base_offset for header in log_headers(store.log())] == [0, 1, 2, 3, 4, 5]
