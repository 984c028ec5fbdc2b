"""Records as bytes: each field's place, and each way in which a record can lie about itself."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records.strategies import record_lists, timestamps, without_deadline
from tidelog.records.errors import InvalidBatch, RecordError
from tidelog.records.record import Record, decode_keys, decode_records, encode_records
from tidelog.records.varint import encode_varint

RECORD = Record(7, 1005, b"key", b"value", (("h", b"1"), ("n", None)))
# length 21 | attributes | timestamp delta 5 | offset delta 2 | 3 "key" | 5 "value" | 2 headers: 1 "h" 1 "1", 1 "n" null
RECORD_BYTES = bytes.fromhex("2a 00 0a 04 06 6b6579 0a 76616c7565 04 02 68 02 31 02 6e 01")
OFFSET_DELTA_MAX = (1 << 31) - 1


def records_of(data: bytes, count: int = 1, last_offset_delta: int = OFFSET_DELTA_MAX) -> list[Record]:
    return list(decode_records(data, count, 5, last_offset_delta, 1000, None))


def keys_of(data: bytes, count: int = 1, last_offset_delta: int = OFFSET_DELTA_MAX) -> list[tuple[int, bytes | None, bool]]:
    return list(decode_keys(data, count, last_offset_delta))


DECODERS: list[Callable[..., object]] = [records_of, keys_of]


def record_bytes(body: str) -> bytes:
    """A record of this body, given in hexadecimal, with its right length."""
    data = bytes.fromhex(body)
    return encode_varint(len(data)) + data


def test_known_bytes_both_ways() -> None:
    assert encode_records([RECORD], 5, 1000) == RECORD_BYTES
    assert records_of(RECORD_BYTES) == [RECORD]
    assert keys_of(RECORD_BYTES) == [(2, b"key", False)]


def test_nulls_and_empties_differ() -> None:
    records = [Record(5, 1000, None, b""), Record(6, 1000, b"", None)]
    data = encode_records(records, 5, 1000)
    assert data == record_bytes("00 00 00 01 00 00") + record_bytes("00 00 02 00 01 00")
    assert records_of(data, 2) == records
    assert keys_of(data, 2) == [(0, None, False), (1, b"", True)]


@without_deadline
@given(record_lists(), timestamps)
def test_round_trip(drawn: tuple[int, list[Record]], base_timestamp: int) -> None:
    base_offset, records = drawn
    data = encode_records(records, base_offset, base_timestamp)
    last_delta = records[-1].offset - base_offset
    assert list(decode_records(data, len(records), base_offset, last_delta, base_timestamp, None)) == records
    stamped = [record._replace(timestamp=77) for record in records]
    assert list(decode_records(data, len(records), base_offset, last_delta, base_timestamp, 77)) == stamped
    keys = [(record.offset - base_offset, record.key, record.value is None) for record in records]
    assert list(decode_keys(data, len(records), last_delta)) == keys


@without_deadline
@given(st.binary(max_size=20))
def test_header_keys_that_are_not_utf_8_survive(key: bytes) -> None:
    data = record_bytes("00 00 00 01 01 02" + encode_varint(len(key)).hex() + key.hex() + "01")
    (record,) = records_of(data)
    assert encode_records([record], 5, 1000) == data


@pytest.mark.parametrize("number", [2046, 2047, 2048, 2049])
def test_the_ready_made_varints_end_where_the_others_begin(number: int) -> None:
    records = [Record(5 + number, 1000 + number, b"k" * number, b"v" * number)]
    assert records_of(encode_records(records, 5, 1000)) == records
    body_overhead = len(encode_records([Record(5, 1000, None, b"v" * 2000)], 5, 1000)) - 2002
    data = encode_records([Record(5, 1000, None, b"v" * (number - body_overhead))], 5, 1000)
    assert data[:2] == encode_varint(number)
    assert len(data) == 2 + number


def test_the_largest_offset_delta() -> None:
    record = Record(5 + OFFSET_DELTA_MAX, 1000, None, b"v")
    data = encode_records([record], 5, 1000)
    assert records_of(data) == [record]
    assert keys_of(data) == [(OFFSET_DELTA_MAX, None, False)]


def test_long_numbers_are_read() -> None:
    """Numbers may be written in more bytes than they need."""
    data = record_bytes("00 808000 84808000 868000 6b6579 818000 00")
    assert records_of(data) == [Record(7, 1000, b"key", None)]
    assert keys_of(data) == [(2, b"key", True)]
    data = record_bytes("00 00 00 818000 8200 41 00")
    assert records_of(data) == [Record(5, 1000, None, b"A")]
    assert keys_of(data) == [(0, None, False)]


@pytest.mark.parametrize("decode", DECODERS)
def test_every_cut_is_invalid(decode: Callable[..., object]) -> None:
    data = encode_records([RECORD, RECORD._replace(offset=300, value=b"v" * 100)], 5, 1000)
    for cut in range(len(data)):
        with pytest.raises(InvalidBatch):
            decode(data[:cut], 2)


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("count", [0, 1, 2])
def test_trailing_bytes_are_invalid(decode: Callable[..., object], count: int) -> None:
    data = encode_records([RECORD._replace(offset=5 + index) for index in range(count)], 5, 1000)
    decode(data, count)
    with pytest.raises(InvalidBatch, match=f"take {len(data)} bytes, but 1 more follow"):
        decode(data + b"\x00", count)


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x01", "the record of record 0 claims -1 bytes"),
        (b"\x2f", "the record of record 0 claims -24 bytes"),
        (b"\xff\xff\xff\xff\x0f" + bytes(20), "the record of record 0 claims -2147483648 bytes"),
        (b"\xfe\xff\xff\xff\x0f" + bytes(20), "the record of record 0 claims 2147483647 bytes"),
        (b"\xff\xff\xff\xff\x1f" + bytes(20), "takes more than 32 bits"),
        (b"\x80\x80\x80\x80\x80\x80", "takes more than 32 bits"),
        (record_bytes("00" + "80" * 10 + "00 00 00 00 00"), "takes more than 64 bits"),
        (record_bytes("00 00 8080808080 00"), "takes more than 32 bits"),
        (record_bytes("00 00 00 03 00 00"), "the key of record 0 claims -2 bytes"),
        (record_bytes("00 00 00 08 00 00 00"), "the key of record 0 claims 4 bytes, but only 3 are left"),
        (record_bytes("00 00 00 feffffff0f 00 00 00"), "the key of record 0 claims 2147483647 bytes"),
        (record_bytes("00 00 00 8080808020 00 00"), "takes more than 32 bits"),
        (record_bytes("00 00 00 01 03 00 00"), "the value of record 0 claims -2 bytes"),
        (record_bytes("00 00 00 01 06 00 00"), "the value of record 0 claims 3 bytes, but only 2 are left"),
        (
            record_bytes("00 00 00 01 8001" + "61" * 64),
            "the value of record 0 claims 64 bytes, but only 64 are left|cut off after 72 bytes",
        ),
        (record_bytes("00 00 00 01 ff01 00 00"), "the value of record 0 claims -128 bytes"),
        (record_bytes("00 00 00 01 8080808020 00"), "takes more than 32 bits"),
        (record_bytes("00 00 01 01 01 00"), "record 0 has offset delta -1, which must be above -1 and at most 2147483647"),
    ],
)
def test_a_record_that_lies(decode: Callable[..., object], data: bytes, message: str) -> None:
    with pytest.raises(InvalidBatch, match=message):
        decode(data)


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("length", range(6))
def test_a_record_that_is_too_short_does_not_read_on_into_the_next(decode: Callable[..., object], length: int) -> None:
    data = encode_varint(length) + bytes.fromhex("00 00 00 01 01 00")[:length] + RECORD_BYTES
    with pytest.raises(InvalidBatch):
        decode(data, 2)


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (0, 10)])
def test_offset_deltas_ascend_to_the_last(decode: Callable[..., object], deltas: tuple[int, int]) -> None:
    data = b"".join(record_bytes(f"00 00 {delta * 2:02x} 01 01 00") for delta in deltas)
    with pytest.raises(
        InvalidBatch, match=f"record 1 has offset delta {deltas[1]}, which must be above {deltas[0]} and at most 9"
    ):
        decode(data, 2, 9)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ("01", "claims -1 headers"),
        ("01 0000", "claims -1 headers in 2 bytes"),
        ("02", "claims 1 headers in 0 bytes"),
        ("feffffff0f 0000", "claims 2147483647 headers"),
        ("02 01 01", "a header without a key"),
        ("02 03 01", "the header key of record 0 claims -2 bytes"),
        ("02 06 6b 01", "the header key of record 0 claims 3 bytes, but only 2 are left"),
        ("02 02 6b 04 61", "the header value of record 0 claims 2 bytes, but only 1 are left"),
        ("02 02 6b 03 61", "the header value of record 0 claims -2 bytes"),
        ("02 02 6b 01 00", "record 0 ends at byte 10 of the records, but its length says 11"),
        ("00 00", "record 0 ends at byte 7 of the records, but its length says 8"),
    ],
)
def test_headers_that_lie(headers: str, message: str) -> None:
    with pytest.raises(InvalidBatch, match=message):
        records_of(record_bytes("00 00 00 01 01" + headers))


@without_deadline
@given(st.binary(max_size=100), st.integers(-1, 5), st.integers(-1, 100))
def test_garbage_gives_only_record_errors(data: bytes, count: int, last_offset_delta: int) -> None:
    for decode in DECODERS:
        with suppress(RecordError):
            decode(data, count, last_offset_delta)


@without_deadline
@given(st.data())
def test_a_damaged_record_gives_only_record_errors(data: st.DataObject) -> None:
    damaged = bytearray(RECORD_BYTES)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    for decode in DECODERS:
        with suppress(RecordError):
            decode(bytes(damaged))


@pytest.mark.parametrize("offsets", [(4,), (5, 5), (6, 5), (5, 5 + (1 << 31))])
def test_offsets_that_no_batch_can_hold_are_not_written(offsets: tuple[int, ...]) -> None:
    with pytest.raises(InvalidBatch, match=f"offset {offsets[-1]} cannot follow"):
        encode_records([Record(offset, 0, None, None) for offset in offsets], 5, 0)
