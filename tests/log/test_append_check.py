"""What a batch must satisfy: each refusal is a typed error that says what was wrong, and costs bounded memory."""

import contextlib
import struct
import tracemalloc
from collections.abc import Callable

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.harness import START_MS, batch
from tidelog.log.append_check import AppendOrigin, checked_batches
from tidelog.log.errors import (
    CorruptRecord,
    InvalidRecord,
    InvalidTimestamp,
    LogError,
    MissingKey,
    RecordsRefused,
    RecordTooLarge,
    UnsupportedRecordFormat,
)
from tidelog.log.settings import LogSettings
from tidelog.records.batch import build_batch
from tidelog.records.compression import CompressionType
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.records.header import ATTRIBUTES_POSITION, CRC_POSITION, HEADER_SIZE, BatchHeader, batch_crc
from tidelog.records.record import Record

COMPACTED = LogSettings(compact=True, delete=False)
# Where fields of the header stand.
MAGIC, ATTRIBUTES, LAST_OFFSET_DELTA, RECORD_COUNT = 16, 21, 23, 57


def check(
    data: bytes, settings: LogSettings | None = None, origin: AppendOrigin = AppendOrigin.CLIENT
) -> list[tuple[int, BatchHeader]]:
    return checked_batches(memoryview(data), settings or LogSettings(), origin, START_MS)


def with_field(data: bytes, position: int, layout: str, value: int) -> bytes:
    """The batch with another header field and the CRC that goes with it."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, position, value)
    return with_crc(changed)


def with_crc(data: bytearray) -> bytes:
    struct.pack_into(">I", data, CRC_POSITION, batch_crc(data, 0, len(data)))
    return bytes(data)


def marker() -> bytes:
    ending = EndTransactionMarker(ControlType.COMMIT, 0)
    return build_end_transaction_marker(ending, producer_id=7, producer_epoch=0, timestamp=START_MS)


def test_positions_and_headers_of_several_batches() -> None:
    first, second = batch(3), batch(1, size=500)
    found = check(first + second)
    assert [(position, header.record_count) for position, header in found] == [(0, 3), (len(first), 1)]


@pytest.mark.parametrize("compression", CompressionType)
def test_every_codec_is_taken_on_a_compacted_topic(compression: CompressionType) -> None:
    assert len(check(batch(20, compression=compression), COMPACTED)) == 1


@pytest.mark.parametrize("length", [1, 11, 16, 17, 60])
def test_a_cut_off_header_is_corrupt(length: int) -> None:
    with pytest.raises(CorruptRecord):
        check(batch()[:length])


@pytest.mark.parametrize("cut", [1, 10, 39])
def test_a_cut_off_batch_is_corrupt(cut: int) -> None:
    with pytest.raises(CorruptRecord, match=f"100 bytes, but only {100 - cut} were sent"):
        check(batch(size=100)[:-cut])


@pytest.mark.parametrize("bit", range(ATTRIBUTES_POSITION * 8, 100 * 8, 37))
def test_a_flipped_bit_under_the_crc_is_corrupt(bit: int) -> None:
    damaged = bytearray(batch(size=100))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptRecord, match="CRC"):
        check(bytes(damaged))


def test_damage_in_a_later_batch_is_found() -> None:
    good = batch(size=100)
    damaged = bytearray(good)
    damaged[-1] ^= 1
    with pytest.raises(CorruptRecord, match="position 100"):
        check(good + bytes(damaged))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("size", [34, 200])
def test_old_message_sets_are_named_as_such(magic: int, size: int) -> None:
    old = struct.pack(">qiIb", 0, size - 12, 0, magic).ljust(size, b"\0")
    with pytest.raises(UnsupportedRecordFormat, match=f"format {magic} is not supported"):
        check(old)


@pytest.mark.parametrize("batch_length", [-(2**31), -13, -1, 0, 48, 2**31 - 1])
def test_an_impossible_length_is_corrupt(batch_length: int) -> None:
    changed = bytearray(batch(size=100))
    struct.pack_into(">i", changed, 8, batch_length)
    with pytest.raises(CorruptRecord):
        check(bytes(changed))


def test_nothing_to_append() -> None:
    with pytest.raises(InvalidRecord, match="no record batch"):
        check(b"")


@given(st.binary(max_size=300))
def test_garbage_is_always_a_typed_error(data: bytes) -> None:
    with pytest.raises(LogError):
        check(data)


@given(st.integers(0, 99), st.binary(min_size=1, max_size=30), st.booleans())
def test_a_damaged_batch_is_taken_or_a_typed_error(position: int, damage: bytes, fix_crc: bool) -> None:
    """Whatever a client writes into its batch, and even when it then computes the CRC."""
    changed = bytearray(batch(2, size=100))
    changed[position : position + len(damage)] = damage
    data = with_crc(changed) if fix_crc and len(changed) >= HEADER_SIZE else bytes(changed)
    for settings in (LogSettings(), COMPACTED):
        with contextlib.suppress(LogError):
            check(data, settings)


def test_the_largest_message_that_may_be() -> None:
    settings = LogSettings(message_bytes_max=200)
    assert len(check(batch(size=200), settings)) == 1
    assert len(check(batch(size=200) * 3, settings)) == 3
    with pytest.raises(RecordTooLarge, match=r"201 bytes is larger than max\.message\.bytes=200"):
        check(batch(size=201), settings)


def test_what_the_broker_itself_writes_is_not_bound_by_the_topics_size() -> None:
    settings = LogSettings(message_bytes_max=50)
    assert len(check(marker(), settings, AppendOrigin.COORDINATOR)) == 1
    assert len(check(batch(size=200), settings, AppendOrigin.REPLICATION)) == 1


@pytest.mark.parametrize(("count", "last_offset_delta"), [(0, 0), (-1, 0), (1, 1), (3, 1), (1, 2**31 - 1)])
def test_counts_must_agree(count: int, last_offset_delta: int) -> None:
    data = with_field(batch(), RECORD_COUNT, ">i", count)
    with pytest.raises(InvalidRecord, match="last offset delta"):
        check(with_field(data, LAST_OFFSET_DELTA, ">i", last_offset_delta))


def test_more_records_than_bytes_could_hold_are_refused() -> None:
    smallest = build_batch([Record(number, START_MS, None, None, ()) for number in range(3)])
    assert len(smallest) == HEADER_SIZE + 3 * 7
    assert len(check(smallest)) == 1
    for count in (4, 2**31 - 1):
        data = with_field(smallest, RECORD_COUNT, ">i", count)
        with pytest.raises(InvalidRecord, match=f"claims {count} records in 21 bytes"):
            check(with_field(data, LAST_OFFSET_DELTA, ">i", count - 1))


def test_a_follower_takes_what_compaction_left() -> None:
    """Records are missing, or all of them: the leader's batches are as they are."""
    gaps = build_batch([Record(11, START_MS, b"k", b"v")], base_offset=10, last_offset_delta=5)
    empty = build_batch([], base_offset=16, last_offset_delta=2, producer_id=3, producer_epoch=0, base_sequence=0)
    assert len(check(gaps + empty, COMPACTED, AppendOrigin.REPLICATION)) == 2
    with pytest.raises(InvalidRecord):
        check(gaps)


def test_control_batches_are_for_the_broker() -> None:
    with pytest.raises(InvalidRecord, match="control"):
        check(marker())
    assert len(check(marker(), origin=AppendOrigin.COORDINATOR)) == 1


@pytest.mark.parametrize("code", [5, 6, 7])
def test_an_unknown_codec_is_refused(code: int) -> None:
    with pytest.raises((InvalidRecord, UnsupportedRecordFormat), match=f"{code}"):
        check(with_field(batch(), ATTRIBUTES, ">h", code))


def test_a_producer_needs_a_sequence_and_a_transaction_a_producer() -> None:
    with pytest.raises(InvalidRecord, match="sequence"):
        check(build_batch([Record(0, START_MS, b"k", b"v")], producer_id=5, producer_epoch=0))
    with pytest.raises(InvalidRecord, match="producer id"):
        check(build_batch([Record(0, START_MS, b"k", b"v")], transactional=True))


def test_an_idempotent_producer_sends_one_batch() -> None:
    with pytest.raises(InvalidRecord, match="one batch"):
        check(batch(producer_id=5, sequence=0) + batch(producer_id=5, sequence=1))


@pytest.mark.parametrize(
    ("timestamps", "is_taken"),
    [
        ([START_MS + 1000], True),
        ([START_MS + 1001], False),
        ([START_MS, START_MS + 1001], False),
        ([START_MS - 500], True),
        ([START_MS - 501], False),
        ([-1], True),
    ],
)
def test_timestamps_are_bound_by_the_brokers_clock(timestamps: list[int], is_taken: bool) -> None:
    settings = LogSettings(timestamp_before_max_ms=500, timestamp_after_max_ms=1000)
    data = batch(timestamps=timestamps)
    if is_taken:
        check(data, settings)
    else:
        with pytest.raises(InvalidTimestamp, match=r"message\.timestamp\.(before|after)\.max\.ms"):
            check(data, settings)
    # Under LogAppendTime the producer's time counts for nothing, and a follower takes what the leader took.
    check(data, LogSettings(timestamp_before_max_ms=500, timestamp_after_max_ms=1000, log_append_time=True))
    check(data, settings, AppendOrigin.REPLICATION)


def test_a_producer_cannot_claim_the_brokers_time() -> None:
    claimed = build_batch([Record(0, START_MS, b"k", b"v")], log_append_time_ms=START_MS)
    with pytest.raises(InvalidTimestamp, match="CreateTime"):
        check(claimed)


@pytest.mark.parametrize("compression", CompressionType)
def test_compacted_topics_need_keys(compression: CompressionType) -> None:
    records = [Record(0, START_MS, b"k", b"v"), Record(1, START_MS, None, b"v")]
    data = build_batch(records, compression=compression)
    check(data)
    with pytest.raises(MissingKey, match=r"^record 1 of the batch has no key") as refused:
        check(data, COMPACTED)
    assert [index for index, _ in refused.value.record_errors(2)] == [1]
    check(marker(), COMPACTED, AppendOrigin.COORDINATOR)


@pytest.mark.parametrize("compression", CompressionType)
def test_the_producer_is_told_which_timestamps_were_refused(compression: CompressionType) -> None:
    timestamps = [START_MS, START_MS + 5000, START_MS - 9000, START_MS + 1]
    data = build_batch([Record(offset, time, b"k", b"v") for offset, time in enumerate(timestamps)], compression=compression)
    with pytest.raises(InvalidTimestamp) as refused:
        check(data, LogSettings(timestamp_before_max_ms=8000, timestamp_after_max_ms=1000))
    assert [index for index, _ in refused.value.record_errors(4)] == [1, 2]


def refused_records(data: bytes, settings: LogSettings, records_max: int) -> list[int]:
    with pytest.raises(RecordsRefused) as refused:
        check(data, settings)
    return [index for index, _ in refused.value.record_errors(records_max)]


@pytest.mark.parametrize("settings", [COMPACTED, LogSettings(timestamp_after_max_ms=-1)])
def test_refused_records_are_named_as_far_as_they_may_be_looked_at(settings: LogSettings) -> None:
    data = build_batch([Record(offset, START_MS, None, b"v") for offset in range(3)])
    assert refused_records(data, settings, 3) == [0, 1, 2]
    assert refused_records(data, settings, 2) == []
    # Few records, but of many bytes once they are decompressed.
    data = build_batch([Record(0, START_MS, None, bytes(10_000))], compression=CompressionType.ZSTD)
    assert refused_records(data, settings, 10) == [0]
    assert refused_records(data, settings, 9) == []


def test_records_that_do_not_decode_are_refused_where_they_are_looked_at() -> None:
    data = bytearray(batch(size=200, compression=CompressionType.NONE))
    data[HEADER_SIZE:] = b"\xff" * (200 - HEADER_SIZE)
    with pytest.raises(InvalidRecord, match="cannot be read"):
        check(with_crc(data), COMPACTED)


def bomb(compression: CompressionType, compress: Callable[[bytes], object]) -> bytes:
    """A batch of a few KB whose records would fill gigabytes: compressed zeros, compressed again and again into one stream."""
    part = bytes(compress(bytes(64 << 20)))  # type: ignore[call-overload]  # cramjam's Buffer speaks the buffer protocol
    body = part * (4 << 30 >> 26)
    head = bytearray(batch(compression=compression)[:HEADER_SIZE])
    struct.pack_into(">i", head, 8, HEADER_SIZE - 12 + len(body))
    return with_crc(head + body)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_decompression_bomb_is_a_typed_error_in_bounded_memory(kind: str) -> None:
    compression, compress = {
        "gzip": (CompressionType.GZIP, cramjam.gzip.compress),
        "zstd": (CompressionType.ZSTD, cramjam.zstd.compress),
    }[kind]
    data = bomb(compression, compress)
    settings = LogSettings(compact=True, message_bytes_max=max(1 << 18, len(data)))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRecord, match="cannot be read"):
            check(data, settings)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * 64 * settings.message_bytes_max
