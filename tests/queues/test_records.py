"""The bytes are those of Apache Kafka 4.3.0's own serializer."""

import pytest

from tidelog.coordinator.errors import UnreadableShard
from tidelog.queues.records import (
    RECORD_CODEC,
    SharePartitionKey,
    ShareSnapshotRecord,
    ShareSnapshotValue,
    ShareUpdateRecord,
    ShareUpdateValue,
)
from tidelog.queues.states import StateBatch

KEY = SharePartitionKey("jobs", bytes(range(16)), 3)
SNAPSHOT_KEY = "000000046a6f6273000102030405060708090a0b0c0d0e0f00000003"
UPDATE_KEY = "000100046a6f6273000102030405060708090a0b0c0d0e0f00000003"
BATCHES = (StateBatch(10, 11, 2, 1), StateBatch(14, 14, 0, 3))
KAFKA = {
    "snapshot": (
        ShareSnapshotRecord(KEY, ShareSnapshotValue(1, 2, 3, 9, 1000, 2000, BATCHES, 2)),
        SNAPSHOT_KEY,
        "0000000000010000000200000003000000000000000900000000000003e800000000000007d003000000000000000a000000000000000b0200010000"
        "0000000000000e000000000000000e0000030001000400000002",
    ),
    "snapshot of a partition that nobody has read": (
        ShareSnapshotRecord(KEY, ShareSnapshotValue(1, 2, 3, -1, 1000, 2000, ())),
        SNAPSHOT_KEY,
        "0000000000010000000200000003ffffffffffffffff00000000000003e800000000000007d00100",
    ),
    "tombstone": (ShareSnapshotRecord(KEY, None), SNAPSHOT_KEY, None),
    "update": (
        ShareUpdateRecord(KEY, ShareUpdateValue(1, 3, 9, (StateBatch(12, 13, 4, 5),), 4)),
        UPDATE_KEY,
        "00000000000100000003000000000000000902000000000000000c000000000000000d0400050001000400000004",
    ),
}


@pytest.mark.parametrize("name", KAFKA)
def test_bytes_are_kafkas_both_ways(name: str) -> None:
    record, key, value = KAFKA[name]
    encoded = RECORD_CODEC.encode(record)
    assert encoded == (bytes.fromhex(key), None if value is None else bytes.fromhex(value))
    assert RECORD_CODEC.decode(*encoded) == record


def test_unknown_kinds_are_skipped_and_unknown_versions_are_not() -> None:
    assert RECORD_CODEC.decode(bytes.fromhex("0002" + SNAPSHOT_KEY[4:]), b"") is None
    with pytest.raises(UnreadableShard, match="version 1"):
        RECORD_CODEC.decode(bytes.fromhex(SNAPSHOT_KEY), b"\0\1")
    with pytest.raises(UnreadableShard):
        RECORD_CODEC.decode(bytes.fromhex(SNAPSHOT_KEY), b"\0\0\0")
    with pytest.raises(UnreadableShard):
        RECORD_CODEC.decode(b"\0", b"")
