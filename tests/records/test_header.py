import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records.strategies import without_deadline
from tidelog.ports.disk import Buffer
from tidelog.records.batch import build_batch
from tidelog.records.compression import CompressionType
from tidelog.records.errors import CorruptBatch, RecordError, UnsupportedCompression, UnsupportedMagic
from tidelog.records.header import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    batch_crc,
    check_header,
    crc_is_valid,
    iterate_headers,
    read_header,
    restamp,
    restamped_prefix,
    with_log_append_time,
)
from tidelog.records.record import Record

# Written down field by field, in wire order.
FIELDS = BatchHeader(
    base_offset=0x0102030405060708,
    batch_length=0x11121314,
    leader_epoch=0x21222324,
    magic=2,
    crc=0xF1F2F3F4,
    attributes=0x0031,
    last_offset_delta=0x41424344,
    base_timestamp=0x5152535455565758,
    max_timestamp=-2,
    producer_id=0x7172737475767778,
    producer_epoch=-3,
    base_sequence=0x6162636,
    record_count=0x0A0B0C0D,
)
FIELD_BYTES = bytes.fromhex(
    "0102030405060708 11121314 21222324 02 f1f2f3f4 0031 41424344 5152535455565758 fffffffffffffffe 7172737475767778 fffd"
    " 06162636 0a0b0c0d"
)
RECORDS = [Record(0, 1000, b"key", b"value"), Record(1, 900, None, b"other")]
BATCH = build_batch(RECORDS, producer_id=7, producer_epoch=1, base_sequence=5)
HEADER = read_header(BATCH)
EMPTY = build_batch([], last_offset_delta=4)


def changed(batch: bytes, position: int, layout: str, value: int) -> bytes:
    copy = bytearray(batch)
    struct.pack_into(layout, copy, position, value)
    return bytes(copy)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_fields_are_read_where_they_stand(wrap: type[Buffer]) -> None:
    assert len(FIELD_BYTES) == HEADER_SIZE
    header = read_header(wrap(b"before" + FIELD_BYTES + b"after"), 6)
    assert header == FIELDS
    assert type(header) is BatchHeader


def test_what_follows_from_the_fields() -> None:
    header = FIELDS._replace(base_offset=100, last_offset_delta=9, batch_length=500)
    assert (header.size, header.last_offset, header.next_offset) == (512, 109, 110)


@pytest.mark.parametrize(
    ("bit", "name"),
    [(0x08, "is_log_append_time"), (0x10, "is_transactional"), (0x20, "is_control"), (0x40, "has_delete_horizon")],
)
def test_each_attribute_is_one_bit(bit: int, name: str) -> None:
    assert getattr(FIELDS._replace(attributes=bit), name) is True
    assert getattr(FIELDS._replace(attributes=~bit), name) is False


def test_the_delete_horizon_is_the_base_timestamp() -> None:
    assert FIELDS._replace(attributes=0x40, base_timestamp=5).delete_horizon_ms == 5
    assert FIELDS._replace(attributes=0, base_timestamp=5).delete_horizon_ms is None


@pytest.mark.parametrize(
    ("base", "delta", "last"),
    [(0, 0, 0), (5, 4, 9), (2**31 - 2, 1, 2**31 - 1), (2**31 - 2, 2, 0), (2**31 - 1, 4, 3), (-1, 4, -1)],
)
def test_the_last_sequence_wraps(base: int, delta: int, last: int) -> None:
    assert FIELDS._replace(base_sequence=base, last_offset_delta=delta).last_sequence == last


def test_compression_is_three_bits_of_which_five_values_are_known() -> None:
    assert [FIELDS._replace(attributes=0x78 | code).compression for code in range(5)] == list(CompressionType)
    for code in (5, 6, 7):
        with pytest.raises(UnsupportedCompression, match=f"type {code} "):
            _ = FIELDS._replace(attributes=code).compression


@pytest.mark.parametrize("length", range(HEADER_SIZE))
def test_a_cut_off_header_is_corrupt(length: int) -> None:
    with pytest.raises(CorruptBatch, match=f"{length} are left at position 2"):
        read_header(b"??" + BATCH[:length], 2)


def test_a_position_past_the_end_is_corrupt() -> None:
    with pytest.raises(CorruptBatch, match="0 are left at position 1000"):
        read_header(BATCH, 1000)


@without_deadline
@given(st.binary(max_size=150), st.integers(0, 200))
def test_garbage_headers_give_only_record_errors(data: bytes, position: int) -> None:
    with suppress(RecordError):
        header = read_header(data, position)
        crc_is_valid(data, position, header)
        check_header(header, len(data) - position)
        _ = header.compression


def test_check_header_lets_a_whole_batch_pass() -> None:
    check_header(HEADER, len(BATCH))
    check_header(read_header(EMPTY), HEADER_SIZE)


def test_check_header_refuses_a_batch_that_is_cut_off() -> None:
    with pytest.raises(CorruptBatch, match=f"takes {len(BATCH)} bytes, but only {len(BATCH) - 1} are left"):
        check_header(HEADER, len(BATCH) - 1)


@pytest.mark.parametrize(
    ("magic", "batch_length", "error"),
    [
        (0, 14, UnsupportedMagic),
        (1, 100, UnsupportedMagic),
        (3, 100, UnsupportedMagic),
        (-1, 100, UnsupportedMagic),
        (0, 0, CorruptBatch),
        (0, 13, CorruptBatch),
        (2, 48, CorruptBatch),
        (2, -1, CorruptBatch),
        (77, 48, CorruptBatch),
    ],
)
def test_impossible_magic_and_length(magic: int, batch_length: int, error: type[RecordError]) -> None:
    header = HEADER._replace(magic=magic, batch_length=batch_length)
    with pytest.raises(error, match=str(magic if error is UnsupportedMagic else batch_length)):
        check_header(header, 1000)
    data = changed(changed(BATCH, 16, ">b", magic), 8, ">i", batch_length) + bytes(200)
    with pytest.raises(error, match="the batch at position 61 "):
        list(iterate_headers(EMPTY + data))


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_headers_of_many_batches(wrap: type[Buffer]) -> None:
    data = wrap(BATCH + EMPTY + BATCH)
    second, third = len(BATCH), len(BATCH) + len(EMPTY)
    expected = [(0, HEADER), (second, read_header(EMPTY)), (third, HEADER)]
    assert list(iterate_headers(data)) == expected
    assert list(iterate_headers(data, second)) == expected[1:]
    assert list(iterate_headers(data, second, third)) == expected[1:2]
    assert list(iterate_headers(data, 0, len(data) + 1000)) == expected
    assert list(iterate_headers(data, len(data))) == []
    assert all(type(header) is BatchHeader for _, header in iterate_headers(data))


@pytest.mark.parametrize("length", range(len(BATCH)))
def test_headers_end_before_a_batch_that_is_cut_off(length: int) -> None:
    expected = [(0, read_header(EMPTY))]
    assert list(iterate_headers(EMPTY + BATCH[:length])) == expected
    assert list(iterate_headers(EMPTY + BATCH, 0, len(EMPTY) + length)) == expected
    assert list(iterate_headers(EMPTY + EMPTY[: min(length, len(EMPTY) - 1)])) == expected


def test_a_short_message_of_the_old_format_does_not_pass_for_a_cut_off_batch() -> None:
    old_message = struct.pack(">qiIbbii", 5, 14, 0, 0, 0, -1, -1)
    with pytest.raises(UnsupportedMagic, match="at position 61 has magic 0"):
        list(iterate_headers(EMPTY + old_message))


def test_a_tail_too_short_for_a_header_is_still_judged_by_its_length_and_magic() -> None:
    with pytest.raises(UnsupportedMagic, match="at position 61 has magic 1"):
        list(iterate_headers(EMPTY + changed(BATCH, 16, ">b", 1)[:30]))
    with pytest.raises(CorruptBatch, match="at position 61 has length 48"):
        list(iterate_headers(EMPTY + changed(BATCH, 8, ">i", 48)[:30]))


def test_zeros_are_corrupt_not_old() -> None:
    for length in (17, 60, 61, 4096):
        with pytest.raises(CorruptBatch, match="length 0"):
            list(iterate_headers(EMPTY + bytes(length)))


@without_deadline
@given(st.binary(max_size=300), st.integers(0, 100), st.none() | st.integers(0, 400))
def test_garbage_gives_headers_within_bounds_or_record_errors(data: bytes, start: int, end: int | None) -> None:
    with suppress(RecordError):
        for position, header in iterate_headers(data, start, end):
            assert start <= position
            assert position + header.size <= len(data)


def test_crc() -> None:
    data = b"xx" + BATCH + b"yy"
    assert batch_crc(data, 2, len(BATCH)) == HEADER.crc
    assert crc_is_valid(data, 2, HEADER)
    assert crc_is_valid(memoryview(data), 2, HEADER)
    assert crc_is_valid(EMPTY, 0, read_header(EMPTY))
    assert not crc_is_valid(data, 1, HEADER)
    assert not crc_is_valid(BATCH[:-1], 0, HEADER)


def test_crc_is_kafka_s_polynomial() -> None:
    assert batch_crc(bytes(21) + b"123456789", 0, 30) == 0xE3069283


@pytest.mark.parametrize("position", range(17, len(BATCH)))
def test_every_flipped_bit_is_caught_by_the_crc(position: int) -> None:
    for bit in range(8):
        data = bytearray(BATCH)
        data[position] ^= 1 << bit
        assert not crc_is_valid(data, 0, read_header(data))


@pytest.mark.parametrize("writable", [bytearray, lambda data: memoryview(bytearray(data))])
def test_restamp_changes_offset_and_epoch_and_nothing_else(writable: type[bytearray]) -> None:
    data = writable(b"abc" + BATCH)
    restamp(data, 3, 1 << 40, 17)
    header = read_header(data, 3)
    assert header == HEADER._replace(base_offset=1 << 40, leader_epoch=17)
    assert crc_is_valid(data, 3, header)
    assert bytes(data[:3]) + bytes(data[19:]) == b"abc" + BATCH[16:]


def test_a_restamped_prefix_joins_the_rest() -> None:
    expected = bytearray(BATCH)
    restamp(expected, 0, 99, 3)
    assert restamped_prefix(HEADER, 99, 3) + BATCH[16:] == expected


def test_log_append_time() -> None:
    buffers = with_log_append_time(memoryview(BATCH), HEADER, 50, 4, 123_456)
    data = b"".join(buffers)
    header = read_header(data)
    expected = HEADER._replace(base_offset=50, leader_epoch=4, attributes=HEADER.attributes | 0x08, max_timestamp=123_456)
    assert header == expected._replace(crc=header.crc)
    assert crc_is_valid(data, 0, header)
    assert data[HEADER_SIZE:] == BATCH[HEADER_SIZE:]


def test_log_append_time_does_not_copy_the_body() -> None:
    view = memoryview(BATCH)
    body = with_log_append_time(view, HEADER, 0, 0, 0)[1]
    assert isinstance(body, memoryview)
    assert body.obj is BATCH


def test_the_header_s_size_constants_agree() -> None:
    assert HEADER.size == HEADER.batch_length + LOG_OVERHEAD == len(BATCH)
    assert not hasattr(HEADER, "__dict__")
