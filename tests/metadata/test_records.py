import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metadata.kafka_fixture import read_batches
from tidelog.metadata import records
from tidelog.metadata.records import (
    SCHEMAS,
    BeginTransactionRecord,
    BrokerEndpoint,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MalformedRecord,
    MetadataError,
    MetadataRecord,
    NoOpRecord,
    PartitionRecord,
    QuotaEntityPart,
    RegisterBrokerRecord,
    SupportedFeature,
    TopicRecord,
    UnsupportedRecord,
    decode_record,
    encode_record,
)
from tidelog.wire import schema
from tidelog.wire.schema import Field, FieldType, Struct

ID = bytes(range(16))
VALUES = [value for batch in read_batches() if not batch.is_control for value in batch.values]


def test_golden_bytes_of_a_record_without_tags() -> None:
    value = bytes.fromhex("01 02 00 07") + b"orders" + ID + b"\0"
    assert encode_record(TopicRecord("orders", ID)) == value
    assert decode_record(value) == (TopicRecord("orders", ID), 0)


def test_golden_bytes_of_tagged_fields() -> None:
    value = bytes.fromhex("01 17 00 01 00 03 03") + b"ab"
    assert encode_record(BeginTransactionRecord("ab")) == value
    assert decode_record(value) == (BeginTransactionRecord("ab"), 0)
    assert encode_record(BeginTransactionRecord()) == bytes.fromhex("01 17 00 00")


def test_golden_bytes_of_a_client_quota() -> None:
    value = (
        bytes.fromhex("01 0e 00 03 0a")
        + b"client-id"
        + b"\2a\0"
        + b"\5user\0\0"
        + b"\2k"
        + bytes.fromhex("40 24" + "00" * 6 + "00 00")
    )
    record = ClientQuotaRecord((QuotaEntityPart("client-id", "a"), QuotaEntityPart("user", None)), "k", 10.0)
    assert encode_record(record) == value
    assert decode_record(value) == (record, 0)


def test_null_and_empty_are_two_things() -> None:
    for value in (None, "", "text"):
        record = ConfigRecord(2, "orders", "retention.ms", value)
        assert decode_record(encode_record(record)) == (record, 0)


def test_a_tag_that_is_not_known_is_skipped() -> None:
    assert decode_record(bytes.fromhex("01 14 00 01 63 02 ff ff")) == (NoOpRecord(), 0)


def test_a_tag_of_a_later_version_is_skipped() -> None:
    record = PartitionRecord(0, ID, (1,), (1,), leader=1, leader_epoch=0, partition_epoch=0, eligible_leader_replicas=(1,))
    value = encode_record(record, 2)
    of_version_1 = value[:2] + b"\1" + value[3:]
    decoded, version = decode_record(of_version_1)
    assert version == 1
    assert isinstance(decoded, PartitionRecord)
    assert decoded.eligible_leader_replicas is None


def test_a_version_refuses_what_it_cannot_say() -> None:
    record = PartitionRecord(0, ID, (1,), (1,), directories=(ID,))
    with pytest.raises(ValueError, match="version 0 has no directories"):
        encode_record(record, 0)
    with pytest.raises(ValueError, match="has no version 3"):
        encode_record(record, 3)
    with pytest.raises(ValueError, match="not 15"):
        encode_record(TopicRecord("orders", ID[:15]))


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("", MalformedRecord),
        ("00 14 00 00", UnsupportedRecord),
        ("02 14 00 00", UnsupportedRecord),
        ("01 63 00 00", UnsupportedRecord),
        ("01 14 01 00", UnsupportedRecord),
        ("01 14 00", MalformedRecord),
        ("01 14 00 00 00", MalformedRecord),
        # A count of elements that the bytes cannot hold.
        ("01 03 00 00000000" + "00" * 16 + "ffffff7f", MalformedRecord),
        # Bytes left over within a tagged field.
        ("01 17 00 01 00 04 03 61 62 00", MalformedRecord),
        # Null where it is not allowed.
        ("01 02 00 00" + "00" * 17, MalformedRecord),
    ],
)
def test_what_cannot_be_read_is_a_typed_error(value: str, error: type[MetadataError]) -> None:
    with pytest.raises(error):
        decode_record(bytes.fromhex(value))


@given(st.sampled_from(VALUES), st.integers(0, 1 << 16), st.binary(min_size=1, max_size=3))
def test_mutated_records_raise_nothing_but_metadata_errors(value: bytes, position: int, replacement: bytes) -> None:
    position %= len(value)
    try:
        record, version = decode_record(value[:position] + replacement + value[position + len(replacement) :])
        encode_record(record, version)
    except MetadataError:
        pass


@given(st.binary(max_size=60))
def test_random_bytes_raise_nothing_but_metadata_errors(data: bytes) -> None:
    with contextlib.suppress(MetadataError):
        decode_record(b"\1" + data)


INT16 = st.integers(-(2**15), 2**15 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
BY_TYPE: dict[FieldType | Struct, st.SearchStrategy[Any]] = {
    schema.BOOL: st.booleans(),
    schema.INT8: st.integers(-128, 127),
    schema.INT16: INT16,
    schema.INT32: st.integers(-(2**31), 2**31 - 1),
    schema.INT64: st.integers(-(2**63), 2**63 - 1),
    schema.FLOAT64: st.floats(allow_nan=False),
    schema.UUID: st.binary(min_size=16, max_size=16),
    schema.STRING: TEXT,
    records._ENDPOINT: st.builds(BrokerEndpoint, TEXT, TEXT, st.integers(0, 65_535), INT16),
    records._FEATURE: st.builds(SupportedFeature, TEXT, INT16, INT16),
    records._QUOTA_ENTITY_PART: st.builds(QuotaEntityPart, TEXT, st.none() | TEXT),
}


def values_of(field: Field) -> st.SearchStrategy[Any]:
    values = BY_TYPE[field.type]
    if field.is_array:
        values = st.lists(values, max_size=4).map(tuple)
    return st.none() | values if field.is_nullable else values


@st.composite
def records_and_versions(draw: st.DrawFn) -> tuple[MetadataRecord, int]:
    kind = draw(st.sampled_from(list(SCHEMAS.values())))
    version = draw(st.integers(0, kind.version_max))
    values = {field.name: draw(values_of(field)) for field in kind.struct.fields if version >= field.since}
    record: MetadataRecord = kind.record_type(**values)
    return record, version


@given(records_and_versions())
def test_every_record_in_every_version_comes_back(case: tuple[MetadataRecord, int]) -> None:
    record, version = case
    assert decode_record(encode_record(record, version)) == (record, version)


def test_the_newest_version_is_written() -> None:
    assert encode_record(RegisterBrokerRecord(1))[:3] == b"\1\0\4"
    assert encode_record(FeatureLevelRecord("metadata.version", 30))[:3] == b"\1\x0c\0"
