"""The headers by which records of queue topics are due or expire."""

import pytest

from tidelog.queues.record_times import DeliveryTimes, read_times
from tidelog.records.batch import build_batch
from tidelog.records.compression import CompressionType
from tidelog.records.header import read_header
from tidelog.records.record import Record, RecordHeaders

NO_TTL = -1


def times_of(
    *headers: RecordHeaders, ttl_ms: int = NO_TTL, compression: CompressionType = CompressionType.NONE
) -> list[DeliveryTimes]:
    records = [Record(100 + number, 5_000 + number, None, b"value", each) for number, each in enumerate(headers)]
    data = build_batch(records, base_offset=100, compression=compression)
    found = read_times(b"before" + data, len(b"before"), read_header(data, 0), ttl_ms)
    return [times for times in found if times is not None]


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.ZSTD])
def test_records_with_times_are_found_among_others(compression: CompressionType) -> None:
    found = times_of(
        (),
        (("tidelog.due", b"7000"),),
        (("trace", b"1"), ("tidelog.expires", b"9000")),
        (("tidelog.due", b"1"), ("tidelog.due", b"2"), ("tidelog.expires", b"3")),
        compression=compression,
    )
    assert found == [(101, 7000, 0), (102, 0, 9000), (103, 2, 3)]


def test_without_times_nothing_is_found() -> None:
    assert times_of((), (("trace", b"1"),)) == []


@pytest.mark.parametrize("text", [None, b"", b"soon", b"-5", b"1.5", b" 7", b"1" * 16, "\u0663".encode()])
def test_a_header_that_is_not_a_number_says_nothing(text: bytes | None) -> None:
    assert times_of((("tidelog.due", text), ("tidelog.expires", text))) == []


def test_the_time_to_live_of_the_queue_counts_from_the_timestamp_and_the_earlier_end_holds() -> None:
    ends = (("tidelog.expires", b"5500"),), (("tidelog.expires", b"9000"),)
    assert times_of((), *ends, ttl_ms=1_000) == [(100, 0, 6_000), (101, 0, 5_500), (102, 0, 6_002)]
    assert times_of((("tidelog.due", b"8000"),), ttl_ms=1_000) == [(100, 8_000, 9_000)], "or from when it is due"
