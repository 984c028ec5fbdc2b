"""Producer snapshots: Kafka's bytes both ways, and no damage goes unnoticed."""

import struct

import pytest
from fastcrc.crc32 import iscsi as crc32c
from hypothesis import given
from hypothesis import strategies as st

from tidelog.log.errors import CorruptSnapshot
from tidelog.log.producer_entry import BatchMetadata, ProducerEntry
from tidelog.log.producer_snapshot import decode_snapshot, encode_snapshot

# Written by Apache Kafka 4.3: two producers, the second with a transaction that is open since offset 12.
KAFKA_BYTES = bytes.fromhex(
    "0001e0c6ce9f0000000200000000000007d3000000000006000000000000000b00000002000001a1e19320210000"
    "0000000000000000000900000000000007d4000000000004000000000000000d00000001000001a1e19320230000"
    "0000000000000000000c"
)

entries = st.builds(
    ProducerEntry,
    producer_id=st.integers(0, 2**63 - 1),
    epoch=st.integers(-1, 2**15 - 1),
    batches=st.lists(
        st.builds(
            BatchMetadata,
            st.integers(0, 2**31 - 1),
            st.integers(0, 2**63 - 1),
            st.integers(0, 2**31 - 1),
            st.integers(-1, 2**63 - 1),
        ),
        max_size=5,
    ),
    coordinator_epoch=st.integers(-1, 2**31 - 1),
    last_timestamp=st.integers(-1, 2**63 - 1),
    current_transaction_first_offset=st.integers(-1, 2**63 - 1),
)
states = st.lists(entries, max_size=5, unique_by=lambda entry: entry.producer_id)


def with_crc(body: bytes, version: int = 1) -> bytes:
    return struct.pack(">hI", version, crc32c(body)) + body


def test_kafkas_bytes_both_ways() -> None:
    found = decode_snapshot(KAFKA_BYTES, "x")
    assert [entry.snapshot_fields() for entry in found] == [
        (2003, 0, 6, 11, 2, 1794785878049, 0, 9),
        (2004, 0, 4, 13, 1, 1794785878051, 0, 12),
    ]
    assert encode_snapshot(found) == KAFKA_BYTES


def test_no_producers() -> None:
    data = encode_snapshot([])
    assert data == with_crc(bytes(4))
    assert decode_snapshot(data, "x") == []


@given(states)
def test_round_trip(state: list[ProducerEntry]) -> None:
    found = decode_snapshot(encode_snapshot(state), "x")
    assert [entry.snapshot_fields() for entry in found] == sorted(entry.snapshot_fields() for entry in state)
    by_id = {entry.producer_id: entry for entry in state}
    for entry in found:
        # The entry's timestamp stands in for its last batch's, as in Kafka.
        expected = [batch._replace(timestamp=entry.last_timestamp) for batch in by_id[entry.producer_id].batches[-1:]]
        assert entry.batches == expected


@given(states)
def test_the_same_state_gives_the_same_bytes(state: list[ProducerEntry]) -> None:
    assert encode_snapshot(state) == encode_snapshot(reversed(state))


@given(states, st.data())
def test_any_damage_is_noticed(state: list[ProducerEntry], data: st.DataObject) -> None:
    snapshot = bytearray(encode_snapshot(state))
    position = data.draw(st.integers(0, len(snapshot) - 1))
    snapshot[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(bytes(snapshot), "x")


@given(states, st.data())
def test_any_cut_is_noticed(state: list[ProducerEntry], data: st.DataObject) -> None:
    snapshot = encode_snapshot(state)
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(snapshot[: data.draw(st.integers(0, len(snapshot) - 1))], "x")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "a.snapshot has 0 bytes"),
        (with_crc(bytes(4), version=2), "a.snapshot has version 2"),
        (struct.pack(">hIi", 1, 5, 0), "a.snapshot says that its CRC is 0x00000005"),
        (with_crc(struct.pack(">i", 1)), "a.snapshot says that it has 1 producers, and has 10 bytes"),
        (with_crc(struct.pack(">i", -1)), "a.snapshot says that it has -1 producers"),
        (with_crc(struct.pack(">i", 2) + encode_snapshot([ProducerEntry(1)])[10:] * 2), "a.snapshot has a producer twice"),
    ],
)
def test_errors_say_what_is_wrong(data: bytes, problem: str) -> None:
    with pytest.raises(CorruptSnapshot) as caught:
        decode_snapshot(data, "a.snapshot")
    assert str(caught.value).startswith(problem)
