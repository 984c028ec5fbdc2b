import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records.strategies import without_deadline
from tidelog.records.batch import build_batch
from tidelog.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
    control_key,
    parse_control_key,
    read_control_type,
    read_end_transaction_marker,
)
from tidelog.records.errors import InvalidBatch, RecordError
from tidelog.records.header import crc_is_valid, read_header
from tidelog.records.record import Record

# A commit at offset 9, leader epoch 2, producer 5 in epoch 1, coordinator epoch 7; read as a commit by aiokafka 0.14.
COMMIT_BATCH = bytes.fromhex(
    "0000000000000009 00000042 00000002 02 fbd2ae74 0030 00000000 0000018bcfe56800 0000018bcfe56800 0000000000000005 0001"
    " ffffffff 00000001 20 00 00 00 08 00000001 0c 000000000007 00"
)


def control_batch(key: bytes | None, value: bytes | None, control: bool = True) -> bytes:
    return build_batch([Record(0, 0, key, value)], control=control)


def test_known_bytes_both_ways() -> None:
    marker = EndTransactionMarker(ControlType.COMMIT, 7)
    batch = build_end_transaction_marker(
        marker, producer_id=5, producer_epoch=1, timestamp=1_700_000_000_000, base_offset=9, leader_epoch=2
    )
    assert batch == COMMIT_BATCH
    header = read_header(COMMIT_BATCH)
    assert crc_is_valid(COMMIT_BATCH, 0, header)
    assert read_end_transaction_marker(COMMIT_BATCH, 0, header) == marker


@without_deadline
@given(st.sampled_from([ControlType.ABORT, ControlType.COMMIT]), st.integers(0, (1 << 31) - 1), st.integers(0, 1 << 60))
def test_markers_round_trip(control_type: ControlType, coordinator_epoch: int, base_offset: int) -> None:
    marker = EndTransactionMarker(control_type, coordinator_epoch)
    batch = b"??" + build_end_transaction_marker(marker, producer_id=1, producer_epoch=2, timestamp=3, base_offset=base_offset)
    header = read_header(batch, 2)
    assert header.is_control
    assert header.is_transactional
    assert (header.last_offset, header.producer_id, header.producer_epoch, header.base_sequence) == (base_offset, 1, 2, -1)
    assert read_control_type(batch, 2, header) is control_type
    assert read_end_transaction_marker(batch, 2, header) == marker


@without_deadline
@given(st.binary(min_size=17, max_size=17), st.integers(0, 16), st.integers(0, 255))
def test_a_batch_of_the_same_size_is_read_as_any_other(noise: bytes, at: int, byte: int) -> None:
    """What is told at a glance is what reading the record tells; and nothing else is."""
    for body in (noise, COMMIT_BATCH[61 : 61 + at] + bytes([byte]) + COMMIT_BATCH[62 + at :]):
        batch = COMMIT_BATCH[:61] + body
        header = read_header(batch)
        longer = header._replace(attributes=header.attributes | 0x40)  # Of a later Kafka: not told at a glance.
        try:
            expected = read_end_transaction_marker(batch, 0, longer)
        except RecordError as error:
            with pytest.raises(type(error)):
                read_end_transaction_marker(batch, 0, header)
        else:
            assert read_end_transaction_marker(batch, 0, header) == expected


def test_only_commit_and_abort_end_a_transaction() -> None:
    with pytest.raises(ValueError, match="LEADER_CHANGE does not end"):
        build_end_transaction_marker(
            EndTransactionMarker(ControlType.LEADER_CHANGE, 0), producer_id=1, producer_epoch=1, timestamp=0
        )


def test_types_have_kafka_s_codes() -> None:
    assert [control_key(ControlType(code)).hex() for code in range(7)] == [f"0000{code:04x}" for code in range(7)]
    assert [parse_control_key(bytes([0, 0, 0, code])) for code in range(7)] == [ControlType(code) for code in range(7)]
    names = ["ABORT", "COMMIT", "LEADER_CHANGE", "SNAPSHOT_HEADER", "SNAPSHOT_FOOTER", "KRAFT_VERSION", "KRAFT_VOTERS"]
    assert [ControlType(code).name for code in range(7)] == names


def test_a_later_kafka_s_types_and_versions_are_not_refused() -> None:
    assert parse_control_key(struct.pack(">hh", 0, 7)) is ControlType.UNKNOWN
    assert parse_control_key(struct.pack(">hh", 0, -1)) is ControlType.UNKNOWN
    assert parse_control_key(struct.pack(">hhi", 3, 1, 99)) is ControlType.COMMIT
    batch = control_batch(struct.pack(">hhi", 1, 0, 99), struct.pack(">hib", 1, 5, 0))
    assert read_end_transaction_marker(batch, 0, read_header(batch)) == EndTransactionMarker(ControlType.ABORT, 5)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (None, bytes(6), "a key of 4 bytes, and has none"),
        (bytes(3), bytes(6), "a key of 4 bytes, and has 3"),
        (b"\xff\xff\x00\x00", bytes(6), "key has version -1"),
        (b"\x00\x00\x00\x02", bytes(6), "type LEADER_CHANGE"),
        (b"\x00\x00\x00\x70", bytes(6), "type UNKNOWN"),
        (bytes(4), None, "value has no bytes"),
        (bytes(4), bytes(5), "value has 5 bytes of 6"),
        (bytes(4), b"\xff\xff\x00\x00\x00\x00", "value has version -1"),
    ],
)
def test_what_is_no_marker(key: bytes | None, value: bytes | None, message: str) -> None:
    batch = control_batch(key, value)
    with pytest.raises(InvalidBatch, match=message):
        read_end_transaction_marker(batch, 0, read_header(batch))


def test_a_batch_of_data_is_not_taken_for_a_marker() -> None:
    batch = control_batch(bytes(4), bytes(6), control=False)
    for read in (read_control_type, read_end_transaction_marker):
        with pytest.raises(InvalidBatch, match="not a control batch"):
            read(batch, 0, read_header(batch))


def test_an_empty_control_batch() -> None:
    batch = build_batch([], last_offset_delta=0, control=True)
    with pytest.raises(InvalidBatch, match="without a record"):
        read_control_type(batch, 0, read_header(batch))


@without_deadline
@given(st.binary(max_size=40))
def test_garbage_gives_only_record_errors(body: bytes) -> None:
    header = read_header(COMMIT_BATCH)._replace(batch_length=49 + len(body))
    with suppress(RecordError):
        read_end_transaction_marker(bytes(61) + body, 0, header)
