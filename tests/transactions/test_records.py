"""Records of ``__transaction_state``: bytes that follow from Kafka's schema, both ways, in both versions."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.coordinator.errors import UnreadableShard
from tidelog.coordinator.records import RecordSchema
from tidelog.transactions.records import RECORD_CODEC, VALUE, TransactionRecord, TransactionTopic, TransactionValue
from tidelog.transactions.state import RECORDED_STATES, TransactionState

ONGOING = TransactionValue(
    producer_id=4000,
    previous_producer_id=4000,
    next_producer_id=-1,
    producer_epoch=3,
    next_producer_epoch=-1,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=(TransactionTopic("t", (0, 7)),),
    last_update_timestamp_ms=2,
    start_timestamp_ms=1,
    client_transaction_version=2,
)
KEY = bytes.fromhex("0000 0002 6964")
FIXED = "0000000000000fa0 0003 0000ea60"
GOLDEN = [
    # Version, value, bytes: producer id, epoch, time-out, state, partitions, update and start time, tagged fields.
    (
        0,
        ONGOING._replace(previous_producer_id=-1, client_transaction_version=0),
        "0000" + FIXED + "01 00000001 0001 74 00000002 00000000 00000007 0000000000000002 0000000000000001",
    ),
    (
        1,
        ONGOING,
        "0001" + FIXED + "01 02 02 74 03 00000000 00000007 00 0000000000000002 0000000000000001"
        " 02 00 08 0000000000000fa0 02 02 0002",
    ),
    (
        1,
        ONGOING._replace(state=TransactionState.PREPARE_COMMIT, next_producer_id=5000, partitions=()),
        "0001" + FIXED + "02 01 0000000000000002 0000000000000001 03 00 08 0000000000000fa0 01 08 0000000000001388 02 02 0002",
    ),
    (
        0,
        ONGOING._replace(
            state=TransactionState.EMPTY,
            partitions=(),
            previous_producer_id=-1,
            client_transaction_version=0,
            start_timestamp_ms=-1,
        ),
        "0000" + FIXED + "00 ffffffff 0000000000000002 ffffffffffffffff",
    ),
    (
        1,
        ONGOING._replace(
            state=TransactionState.EMPTY,
            partitions=(),
            previous_producer_id=-1,
            client_transaction_version=0,
            start_timestamp_ms=-1,
        ),
        "0001" + FIXED + "00 00 0000000000000002 ffffffffffffffff 00",
    ),
]


@pytest.mark.parametrize(("version", "value", "golden"), GOLDEN)
def test_golden_bytes_both_ways(version: int, value: TransactionValue, golden: str) -> None:
    data = bytes.fromhex(golden)
    assert RECORD_CODEC.encode(TransactionRecord("id", value, version)) == (KEY, data)
    assert RECORD_CODEC.decode(KEY, data) == TransactionRecord("id", value)


def test_a_tombstone() -> None:
    assert RECORD_CODEC.encode(TransactionRecord("id", None)) == (KEY, None)
    assert RECORD_CODEC.decode(KEY, None) == TransactionRecord("id", None)


def test_version_0_does_not_keep_what_it_has_no_field_for() -> None:
    key, data = RECORD_CODEC.encode(TransactionRecord("id", ONGOING._replace(next_producer_id=9), 0))
    found = RECORD_CODEC.decode(key, data)
    assert found is not None
    assert found.value == ONGOING._replace(previous_producer_id=-1, client_transaction_version=0)


def test_a_record_of_an_unknown_kind_is_skipped() -> None:
    assert RECORD_CODEC.decode(bytes.fromhex("0001 0002 6964"), b"whatever") is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (b"\0", None, "a key of 1 bytes"),
        (KEY + b"x", None, "cannot be read"),
        (KEY[:-1], None, "cannot be read"),
        (KEY, b"\0\2", "version 2"),
        (KEY, b"\xff\xff", "version -1"),
        (KEY, bytes.fromhex(GOLDEN[0][2])[:-1], "cannot be read"),
        (KEY, bytes.fromhex(GOLDEN[0][2]) + b"x", "cannot be read"),
        (KEY, bytes.fromhex("0000" + FIXED + "06 00000000" + "00" * 16), "state 6"),
        (KEY, bytes.fromhex("0000" + FIXED + "07 00000000" + "00" * 16), "state 7"),
        (KEY, bytes.fromhex("0000" + FIXED + "08 00000000" + "00" * 16), "state 8"),
    ],
)
def test_what_cannot_be_read_is_said(key: bytes, value: bytes | None, message: str) -> None:
    with pytest.raises(UnreadableShard, match=message):
        RECORD_CODEC.decode(key, value)


def test_unknown_tagged_fields_are_skipped() -> None:
    _, data = RECORD_CODEC.encode(
        TransactionRecord("id", ONGOING._replace(previous_producer_id=-1, client_transaction_version=0))
    )
    assert data is not None
    assert data[-1] == 0
    found = RECORD_CODEC.decode(KEY, data[:-1] + bytes.fromhex("01 20 03 616263"))
    assert found == TransactionRecord("id", ONGOING._replace(previous_producer_id=-1, client_transaction_version=0))


_INT64 = st.integers(-(2**63), 2**63 - 1)
_INT16 = st.integers(-(2**15), 2**15 - 1)
_INT32 = st.integers(-(2**31), 2**31 - 1)
_NAMES = st.text(st.characters(codec="utf-8"), max_size=20)
_PARTITIONS = st.lists(st.builds(TransactionTopic, _NAMES, st.lists(_INT32, max_size=5).map(tuple)), max_size=4).map(tuple)
_VALUES = st.builds(
    TransactionValue,
    _INT64,
    _INT64,
    _INT64,
    _INT16,
    _INT16,
    _INT32,
    st.sampled_from(RECORDED_STATES),
    _PARTITIONS,
    _INT64,
    _INT64,
    _INT16,
)


@given(_NAMES, st.none() | _VALUES, st.sampled_from([0, 1]))
def test_what_is_written_is_what_the_schema_says(transactional_id: str, value: TransactionValue | None, version: int) -> None:
    schema = RecordSchema(0, TransactionRecord, VALUE, version_max=1, version_written=version, flexible_since=1)
    expected: Any = value
    if value is not None and value.state is TransactionState.EMPTY:
        expected = (*value[:7], None, *value[8:])
    written = RECORD_CODEC.encode(TransactionRecord(transactional_id, value, version))
    assert written == schema.encode((transactional_id, expected))


@given(_NAMES, st.none() | _VALUES)
def test_round_trip(transactional_id: str, value: TransactionValue | None) -> None:
    if value is not None and value.state is TransactionState.EMPTY:
        value = value._replace(partitions=())
    record = TransactionRecord(transactional_id, value)
    assert RECORD_CODEC.decode(*RECORD_CODEC.encode(record)) == record


@given(st.binary(max_size=80))
def test_whatever_the_bytes_are_only_one_error_comes(data: bytes) -> None:
    with suppress(UnreadableShard):
        RECORD_CODEC.decode(KEY, data)
