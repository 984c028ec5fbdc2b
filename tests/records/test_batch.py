"""Batches against bytes that real clients wrote (golden/README.md), as round trips, and against whatever may come in."""

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records.strategies import compressions, record_lists, without_deadline
from tidelog.records.batch import build_batch, build_batch_of_pairs, iterate_keys, read_records
from tidelog.records.compression import CompressionType
from tidelog.records.errors import CorruptBatch, DecompressionLimitExceeded, InvalidBatch, RecordError, UnsupportedCompression
from tidelog.records.header import (
    DELETE_HORIZON_MASK,
    HEADER_SIZE,
    LOG_APPEND_TIME_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    check_header,
    crc_is_valid,
    read_header,
)
from tidelog.records.record import Record
from tidelog.records.varint import SMALL_VARINTS_COUNT

GOLDEN = Path(__file__).parent / "golden"
GOLDEN_NAMES = sorted(path.stem for path in GOLDEN.glob("*.bin"))
GOLDEN_RECORDS = [
    Record(0, 1_700_000_000_000, b"key-0", b"value zero"),
    Record(1, 1_700_000_000_007, None, b"no key", (("trace", b"abc"), ("empty", b""), ("null", None), ("h\u00e9", b"\x00\xff"))),
    Record(2, 1_699_999_999_990, b"tombstone", None),
    Record(3, 1_700_000_070_000, b"", b""),
    Record(4, 1_700_000_000_000, b"key-0", b"x" * 300),
]
GOLDEN_KEYS = [(0, b"key-0", False), (1, None, False), (2, b"tombstone", True), (3, b"", False), (4, b"key-0", False)]
SIZE_MAX = 1024 * 1024
COUNT_MAX = 1000

Reader = Callable[..., Iterator[object]]
READERS: list[Reader] = [read_records, iterate_keys]


def records_of(batch: bytes, position: int = 0) -> list[Record]:
    return list(read_records(batch, position, read_header(batch, position), size_max=SIZE_MAX, count_max=COUNT_MAX))


def keys_of(batch: bytes) -> list[tuple[int, bytes | None, bool]]:
    return list(iterate_keys(batch, 0, read_header(batch), size_max=SIZE_MAX, count_max=COUNT_MAX))


def changed(batch: bytes, position: int, layout: str, value: int) -> bytes:
    copy = bytearray(batch)
    struct.pack_into(layout, copy, position, value)
    return bytes(copy)


def rebuilt(header: BatchHeader, records: list[Record]) -> bytes:
    return build_batch(
        records,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        compression=header.compression,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
    )


def test_all_golden_batches_are_there() -> None:
    by_client = {
        client: [name for name in GOLDEN_NAMES if name.startswith(client)] for client in ("kafka-python", "aiokafka", "librd")
    }
    assert {client: len(names) for client, names in by_client.items()} == {"kafka-python": 3, "aiokafka": 6, "librd": 7}


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_batches_are_read(name: str) -> None:
    batch = (GOLDEN / f"{name}.bin").read_bytes()
    header = read_header(batch)
    check_header(header, len(batch))
    assert crc_is_valid(batch, 0, header)
    assert (header.size, header.record_count, header.last_offset) == (len(batch), 5, 4)
    assert (header.base_timestamp, header.max_timestamp) == (1_700_000_000_000, 1_700_000_070_000)
    assert header.is_transactional is name.endswith("-transactional")
    assert (header.producer_id >= 0) is name.endswith(("-transactional", "-idempotent"))
    known = {kind.name.lower(): kind for kind in CompressionType}
    assert header.compression is known.get(name.rpartition("-")[2], CompressionType.NONE)
    assert records_of(batch) == GOLDEN_RECORDS
    assert keys_of(batch) == GOLDEN_KEYS


@pytest.mark.parametrize("name", [name for name in GOLDEN_NAMES if name.endswith(("-none", "-transactional", "-idempotent"))])
def test_uncompressed_golden_batches_are_written_byte_by_byte(name: str) -> None:
    batch = (GOLDEN / f"{name}.bin").read_bytes()
    assert rebuilt(read_header(batch), GOLDEN_RECORDS) == batch


@pytest.mark.parametrize("name", ["kafka-python-transactional", "aiokafka-transactional"])
def test_the_golden_sequence_wraps(name: str) -> None:
    header = read_header((GOLDEN / f"{name}.bin").read_bytes())
    assert (header.producer_id, header.producer_epoch) == (4711, 3)
    assert (header.base_sequence, header.last_sequence) == (2_147_483_646, 2)


@without_deadline
@given(record_lists(), compressions, st.booleans(), st.booleans())
def test_round_trip(drawn: tuple[int, list[Record]], compression: CompressionType, transactional: bool, control: bool) -> None:
    base_offset, records = drawn
    batch = build_batch(
        records,
        base_offset=base_offset,
        leader_epoch=9,
        compression=compression,
        producer_id=12,
        producer_epoch=3,
        base_sequence=4,
        transactional=transactional,
        control=control,
    )
    header = read_header(batch)
    assert header.size == len(batch)
    assert crc_is_valid(batch, 0, header)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (base_offset, records[-1].offset, 9)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (12, 3, 4)
    assert (header.is_transactional, header.is_control, header.compression) == (transactional, control, compression)
    assert not header.is_log_append_time
    assert not header.has_delete_horizon
    assert header.base_timestamp == records[0].timestamp
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert records_of(b"before" + batch + b"after", 6) == records
    assert keys_of(batch) == [(record.offset - base_offset, record.key, record.value is None) for record in records]


def test_defaults_are_kafka_s_nothing() -> None:
    header = read_header(build_batch([Record(0, 5, None, b"v")]))
    assert (header.leader_epoch, header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1, -1)
    assert (header.base_offset, header.attributes, header.magic, header.record_count) == (0, 0, 2, 1)


def test_log_append_time_counts_for_every_record() -> None:
    batch = build_batch(GOLDEN_RECORDS, log_append_time_ms=42)
    header = read_header(batch)
    assert header.is_log_append_time
    assert header.max_timestamp == 42
    assert records_of(batch) == [record._replace(timestamp=42) for record in GOLDEN_RECORDS]


def test_deltas_count_from_the_delete_horizon() -> None:
    batch = build_batch(GOLDEN_RECORDS, delete_horizon_ms=1_700_000_000_500)
    header = read_header(batch)
    assert header.delete_horizon_ms == header.base_timestamp == 1_700_000_000_500
    assert header.max_timestamp == 1_700_000_070_000
    assert records_of(batch) == GOLDEN_RECORDS


@pytest.mark.parametrize("compression", CompressionType)
def test_a_batch_may_be_empty(compression: CompressionType) -> None:
    batch = build_batch([], base_offset=10, last_offset_delta=4, base_sequence=7, max_timestamp=99, compression=compression)
    header = read_header(batch)
    assert len(batch) == HEADER_SIZE
    assert crc_is_valid(batch, 0, header)
    assert (header.compression, header.base_timestamp, header.max_timestamp) == (CompressionType.NONE, -1, 99)
    assert (header.last_offset, header.last_sequence, header.record_count) == (14, 11, 0)
    assert records_of(batch) == []
    assert keys_of(batch) == []
    # Others may leave the bits of the compression in an empty batch.
    assert records_of(changed(batch, 21, ">h", compression)) == []


def test_the_last_offset_may_lie_after_the_last_record() -> None:
    batch = build_batch(GOLDEN_RECORDS[1:3], last_offset_delta=9)
    assert read_header(batch).next_offset == 10
    assert records_of(batch) == GOLDEN_RECORDS[1:3]


def test_compression_level() -> None:
    records = [Record(index, 0, None, b"the quick brown fox"[index * 7919 % 11 :][: index % 13]) for index in range(1000)]
    sizes = [len(build_batch(records, compression=CompressionType.GZIP, compression_level=level)) for level in (1, 9)]
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"records": []}, "last offset delta -1"),
        ({"records": [], "last_offset_delta": -1}, "last offset delta -1"),
        ({"records": GOLDEN_RECORDS, "last_offset_delta": 3}, "last offset delta 3 in a batch whose last record has delta 4"),
        ({"records": [], "last_offset_delta": 1 << 31}, "does not fit"),
        ({"records": GOLDEN_RECORDS, "max_timestamp": 1 << 63}, "does not fit"),
        ({"records": GOLDEN_RECORDS, "producer_epoch": 1 << 15}, "does not fit"),
        ({"records": GOLDEN_RECORDS, "delete_horizon_ms": -(1 << 63)}, "more than 64 bits"),
    ],
)
def test_what_no_batch_can_hold_is_not_written(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidBatch, match=message):
        build_batch(**arguments)  # type: ignore[arg-type]  # arguments of many types, by name


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("compression", CompressionType)
def test_every_cut_of_a_batch_is_corrupt(read: Reader, compression: CompressionType) -> None:
    batch = build_batch(GOLDEN_RECORDS, compression=compression)
    for cut in range(len(batch)):
        with pytest.raises(CorruptBatch):
            list(read(batch[:cut], 0, read_header(batch[:cut]), size_max=SIZE_MAX, count_max=COUNT_MAX))


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("compression", CompressionType)
def test_every_cut_with_a_fitting_length_is_a_record_error(read: Reader, compression: CompressionType) -> None:
    batch = build_batch(GOLDEN_RECORDS, compression=compression)
    for cut in range(HEADER_SIZE, len(batch)):
        short = changed(batch[:cut], 8, ">i", cut - 12)
        with pytest.raises(RecordError):
            list(read(short, 0, read_header(short), size_max=SIZE_MAX, count_max=COUNT_MAX))


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("count", [-1, -(1 << 31), 6, (1 << 31) - 1])
def test_a_count_out_of_range_raises_at_once(read: Reader, count: int) -> None:
    batch = changed(build_batch(GOLDEN_RECORDS), 57, ">i", count)
    with pytest.raises(InvalidBatch, match=f"the batch has {count} records, but only 0 to 5 are allowed"):
        read(batch, 0, read_header(batch), size_max=SIZE_MAX, count_max=5)


@pytest.mark.parametrize("read", READERS)
def test_as_many_records_as_allowed_are_read(read: Reader) -> None:
    batch = build_batch(GOLDEN_RECORDS)
    assert len(list(read(batch, 0, read_header(batch), size_max=SIZE_MAX, count_max=5))) == 5


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(("count", "message"), [(0, "more follow"), (4, "more follow"), (6, "cut off after")])
def test_a_count_that_does_not_fit_the_records(read: Reader, count: int, message: str) -> None:
    batch = changed(build_batch(GOLDEN_RECORDS), 57, ">i", count)
    with pytest.raises(InvalidBatch, match=message):
        list(read(batch, 0, read_header(batch), size_max=SIZE_MAX, count_max=COUNT_MAX))


@pytest.mark.parametrize("read", READERS)
def test_an_offset_beyond_the_last_is_invalid(read: Reader) -> None:
    batch = changed(build_batch(GOLDEN_RECORDS), 23, ">i", 3)
    with pytest.raises(InvalidBatch, match="record 4 has offset delta 4"):
        list(read(batch, 0, read_header(batch), size_max=SIZE_MAX, count_max=COUNT_MAX))


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("compression", list(CompressionType)[1:])
def test_the_size_is_bounded(read: Reader, compression: CompressionType) -> None:
    batch = build_batch([Record(0, 0, None, bytes(SIZE_MAX))], compression=compression)
    with pytest.raises(DecompressionLimitExceeded):
        read(batch, 0, read_header(batch), size_max=SIZE_MAX, count_max=COUNT_MAX)
    assert len(list(read(batch, 0, read_header(batch), size_max=SIZE_MAX + 100, count_max=COUNT_MAX))) == 1


@pytest.mark.parametrize("read", READERS)
def test_an_unknown_compression(read: Reader) -> None:
    batch = changed(build_batch(GOLDEN_RECORDS), 21, ">h", 6)
    with pytest.raises(UnsupportedCompression, match="6"):
        read(batch, 0, read_header(batch), size_max=SIZE_MAX, count_max=COUNT_MAX)


@without_deadline
@given(st.data(), compressions)
def test_a_damaged_batch_gives_only_record_errors(data: st.DataObject, compression: CompressionType) -> None:
    batch = bytearray(build_batch(GOLDEN_RECORDS, compression=compression))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    for read in READERS:
        with suppress(RecordError):
            list(read(batch, 0, read_header(batch), size_max=10_000, count_max=100))


@without_deadline
@given(st.binary(max_size=200), compressions, st.integers(0, 10))
def test_garbage_records_give_only_record_errors(body: bytes, compression: CompressionType, count: int) -> None:
    header = read_header(build_batch([], last_offset_delta=9))
    header = header._replace(attributes=compression, record_count=count, batch_length=49 + len(body))
    for read in READERS:
        with suppress(RecordError):
            list(read(bytes(HEADER_SIZE) + body, 0, header, size_max=10_000, count_max=100))


@without_deadline
@given(
    st.lists(st.tuples(st.binary(max_size=200), st.none() | st.binary(max_size=200)), min_size=1, max_size=150),
    st.integers(0, 1 << 60),
    st.sampled_from([(-1, -1), (7, 3)]),
)
def test_a_coordinators_batch_is_like_any_other(
    pairs: list[tuple[bytes, bytes | None]], timestamp: int, producer: tuple[int, int]
) -> None:
    producer_id, producer_epoch = producer
    records = [Record(index, timestamp, key, value) for index, (key, value) in enumerate(pairs)]
    expected = build_batch(records, producer_id=producer_id, producer_epoch=producer_epoch, transactional=producer_id >= 0)
    assert build_batch_of_pairs(pairs, timestamp, producer_id, producer_epoch) == expected


def test_a_coordinators_batch_with_long_keys_values_and_many_records() -> None:
    """Lengths and deltas on both sides of the table of small varints."""
    for length in (SMALL_VARINTS_COUNT - 1, SMALL_VARINTS_COUNT, SMALL_VARINTS_COUNT + 1, 70_000):
        pairs = [(b"k" * length, b"v" * length), (b"k", None), (b"k" * length, b"")]
        records = [Record(offset, 5, key, value) for offset, (key, value) in enumerate(pairs)]
        assert records_of(build_batch_of_pairs(pairs, 5, -1, -1)) == records
    many = [(b"%d" % number, b"") for number in range(SMALL_VARINTS_COUNT + 2)]
    batch = build_batch_of_pairs(many, 5, -1, -1)
    records = list(read_records(batch, 0, read_header(batch), size_max=SIZE_MAX, count_max=len(many)))
    assert records == [Record(offset, 5, key, b"") for offset, (key, _) in enumerate(many)]


def test_attributes_of_a_batch_do_not_replace_each_other() -> None:
    kinds: dict[str, Any] = {
        "compression": CompressionType.GZIP,
        "producer_id": 1,
        "producer_epoch": 0,
        "base_sequence": 0,
        "transactional": True,
    }
    records = [Record(0, 5, b"k", b"v")]
    plain = read_header(build_batch(records, **kinds)).attributes
    assert plain == CompressionType.GZIP | TRANSACTIONAL_MASK
    stamped = read_header(build_batch(records, log_append_time_ms=9, **kinds)).attributes
    assert stamped == plain | LOG_APPEND_TIME_MASK
    horizon = read_header(build_batch(records, delete_horizon_ms=9, **kinds)).attributes
    assert horizon == plain | DELETE_HORIZON_MASK


def test_a_record_may_end_with_its_key_or_its_value() -> None:
    """The last byte of the batch belongs to it: a null value, or one without headers behind it."""
    for record in (Record(0, 5, b"the key ends here", None), Record(0, 5, None, b"the value ends here"), Record(0, 5, b"", b"")):
        batch = build_batch([record])
        assert records_of(batch) == [record]
        assert keys_of(batch) == [(0, record.key, record.value is None)]


def test_a_batch_cut_off_behind_another_is_noticed() -> None:
    whole = build_batch([Record(0, 5, b"k", b"v" * 100)])
    with pytest.raises(CorruptBatch):
        records_of(whole + whole[:-1], len(whole))


def test_a_checksum_is_right_for_every_kind_of_buffer() -> None:
    batch = build_batch([Record(0, 5, b"k", b"v")])
    damaged = changed(batch, HEADER_SIZE, ">b", 77)
    for kind in (bytes, bytearray, memoryview):
        assert crc_is_valid(kind(batch), 0, read_header(batch))
        assert not crc_is_valid(kind(damaged), 0, read_header(damaged))
