"""The quorum's own records are Kafka's, byte for byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metadata.kafka_fixture import read_batches
from tidelog.raft.control_records import (
    QuorumRecord,
    SnapshotFooter,
    SnapshotHeader,
    build_control_batch,
    decode_control_value,
    encode_control_value,
    only_quorum_records,
    read_control_records,
)
from tidelog.raft.errors import CorruptMetadataLog
from tidelog.raft.voters import KRaftVersion, LeaderChange, ReplicaKey, Voter, VoterEndpoint, VotersRecord, voter_set
from tidelog.records.batch import build_batch
from tidelog.records.control import ControlType, control_key
from tidelog.records.header import read_header
from tidelog.records.record import Record

DIRECTORY = bytes(range(16))


def test_a_leader_change_is_what_kafka_wrote() -> None:
    of_kafka = [value for batch in read_batches() if batch.is_control for value in batch.values]
    lone = (ReplicaKey(1),)
    assert of_kafka == [encode_control_value(LeaderChange(1, lone, lone))] * 2


@pytest.mark.parametrize(
    ("record", "value"),
    [
        (
            LeaderChange(2, (ReplicaKey(1), ReplicaKey(2), ReplicaKey(3)), (ReplicaKey(2), ReplicaKey(3))),
            "0000 00000002 04 0000000100 0000000200 0000000300 03 0000000200 0000000300 00",
        ),
        (
            LeaderChange(1, (ReplicaKey(1, DIRECTORY),), ()),
            "0001 00000001 02 00000001 000102030405060708090a0b0c0d0e0f 00 01 00",
        ),
        (KRaftVersion(1), "0000 0001 00"),
        (
            VotersRecord(voter_set([Voter(3, DIRECTORY, (VoterEndpoint("C", "host", 9093),), 0, 1)])),
            "0000 02 00000003 000102030405060708090a0b0c0d0e0f 02 0243 05686f7374 2385 00 0000 0001 00 00 00",
        ),
        (SnapshotHeader(258), "0000 0000000000000102 00"),
        (SnapshotFooter(), "0000 00"),
    ],
)
def test_bytes(record: QuorumRecord, value: str) -> None:
    assert encode_control_value(record).hex() == value.replace(" ", "")


IDS = st.integers(0, 2**31 - 1)
REPLICAS = st.lists(st.builds(ReplicaKey, IDS, st.binary(min_size=16, max_size=16)), max_size=3).map(tuple)
ENDPOINTS = st.lists(st.builds(VoterEndpoint, st.text(max_size=5), st.text(max_size=5), st.integers(0, 65_535)), max_size=2)
VOTER = st.builds(Voter, IDS, st.binary(min_size=16, max_size=16), ENDPOINTS.map(tuple), st.just(0), st.integers(0, 100))
VOTERS = st.lists(VOTER, max_size=3, unique_by=lambda voter: voter[0])
RECORDS = st.one_of(
    st.builds(LeaderChange, IDS, REPLICAS, REPLICAS),
    st.builds(KRaftVersion, st.integers(0, 100)),
    st.builds(VotersRecord, VOTERS.map(voter_set)),
    st.builds(SnapshotHeader, st.integers(-1, 2**63 - 1)),
    st.just(SnapshotFooter()),
)


@given(st.lists(RECORDS, min_size=1, max_size=4), st.integers(0, 1000))
def test_round_trips(records: list[QuorumRecord], offset: int) -> None:
    batch = build_control_batch(records, 1234, offset, leader_epoch=3)
    header = read_header(batch, 0)
    assert (header.is_control, header.leader_epoch, header.max_timestamp) == (True, 3, 1234)
    expected = [(offset + index, record) for index, record in enumerate(records)]
    assert list(read_control_records(batch)) == expected


def test_only_the_quorums_own_records_are_read() -> None:
    decisions = build_batch([Record(0, 0, None, b"value")])
    unknown = build_batch([Record(1, 0, b"\0\0\0\x63", b"later")], control=True, base_offset=1)
    ours = build_control_batch([SnapshotHeader(0), KRaftVersion(1)], 0, 2)
    placed = list(read_control_records(decisions + unknown + ours))
    assert placed == [(2, SnapshotHeader(0)), (3, KRaftVersion(1))]
    assert list(only_quorum_records(placed)) == [(3, KRaftVersion(1))]


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert decode_control_value(ControlType.KRAFT_VERSION, bytes.fromhex("0005 0001 00")) == KRaftVersion(1)


@pytest.mark.parametrize("value", [None, b"", bytes.fromhex("ffff 0001 00"), bytes.fromhex("0000 00")])
def test_what_is_not_a_control_record_is_a_typed_error(value: bytes | None) -> None:
    batch = build_batch([Record(0, 0, control_key(ControlType.KRAFT_VERSION), value)], control=True)
    with pytest.raises(CorruptMetadataLog):
        list(read_control_records(batch))


def test_a_damaged_batch_is_a_typed_error() -> None:
    batch = bytearray(build_control_batch([KRaftVersion(1)], 0))
    batch[-1] ^= 1
    with pytest.raises(CorruptMetadataLog, match="checksum"):
        list(read_control_records(bytes(batch)))
