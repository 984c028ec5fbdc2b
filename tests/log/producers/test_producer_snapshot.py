"""Producer snapshots: Kafka's bytes both ways, and no damage goes unnoticed."""

import struct

import pytest
from fastcrc.crc32 import iscsi as crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.log.disks import write_file
from tests.log.harness import BATCH_BYTES, Store, batch, end_transaction
from tidelog.log import names
from tidelog.log.errors import CorruptSnapshot
from tidelog.log.partition_log import PartitionLog
from tidelog.log.producers.producer_snapshot import (
    decode_snapshot,
    encode_snapshot,
    load_newest_snapshot,
    marker_of,
    note_batch_of_producer,
    remove_snapshots_above,
    replay_producers,
    write_snapshot,
)
from tidelog.log.producers.producer_state import BatchMetadata, ProducerEntry, ProducerState
from tidelog.log.segments.indexes import AbortedTransaction
from tidelog.log.settings import LogSettings
from tidelog.records.batch import build_batch
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.records.header import read_header

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
        (struct.pack(">hIi", 1, 5, 0), "a.snapshot states the CRC 0x00000005"),
        (with_crc(struct.pack(">i", 1)), "a.snapshot claims 1 producers in 10 bytes"),
        (with_crc(struct.pack(">i", -1)), "a.snapshot claims -1 producers"),
        (with_crc(struct.pack(">i", 2) + encode_snapshot([ProducerEntry(1)])[10:] * 2), "a.snapshot lists a producer twice"),
    ],
)
def test_errors_say_what_is_wrong(data: bytes, problem: str) -> None:
    with pytest.raises(CorruptSnapshot) as caught:
        decode_snapshot(data, "a.snapshot")
    assert str(caught.value).startswith(problem)


# The newest snapshot that may be trusted, then the log from there on.


SETTINGS = LogSettings(segment_bytes=10 * BATCH_BYTES, index_interval_bytes=2 * BATCH_BYTES)


def lived(store: Store) -> tuple[PartitionLog, list[dict[str, object]]]:
    """A log of two producers' transactions over several segments, and what was known before each offset."""
    log = store.create()
    known = []
    sequences = [0, 0]
    for number in range(30):
        known.append(log.producers.describe())
        if number in (6, 17):
            write_snapshot(
                log.environment.disk, log.directory, log.log_end_offset, log.producers
            )  # in the middle of a segment, as a recovery point does
        producer = number % 2
        if number % 7 >= 5:
            end_transaction(log, producer, ControlType.ABORT if number % 3 else ControlType.COMMIT)
        else:
            data = batch(producer_id=producer, sequence=sequences[producer], transactional=True, size=BATCH_BYTES)
            log.append_as_leader(data, 0)
            sequences[producer] += 1
    known.append(log.producers.describe())
    return log, known


def snapshots(store: Store, log: PartitionLog) -> list[int]:
    return names.base_offsets_of(store.disk.list_directory(log.directory), names.SNAPSHOT_SUFFIX)


def rebuild(store: Store, log: PartitionLog, offset: int) -> tuple[int | None, dict[str, object]]:
    producers = ProducerState(1000)
    loaded = load_newest_snapshot(
        store.disk, log.directory, offset, producers, lambda event, facts: store.events.append((event, facts))
    )
    replay_producers(producers, log.segments, loaded or 0, offset)
    return loaded, producers.describe()


def test_every_offset_can_be_rebuilt_from_the_snapshot_below_it() -> None:
    for offset in range(31):
        store = Store(SETTINGS)
        log, known = lived(store)
        at_rolls = snapshots(store, log)
        assert len(at_rolls) >= 2
        loaded, found = rebuild(store, log, offset)
        assert loaded == max((taken for taken in at_rolls if taken <= offset), default=None)
        assert found == known[offset]


def test_every_offset_can_be_rebuilt_without_any_snapshot() -> None:
    store = Store(SETTINGS)
    log, known = lived(store)
    remove_snapshots_above(store.disk, log.directory, -1)
    assert snapshots(store, log) == []
    for offset in range(31):
        assert rebuild(store, log, offset) == (None, known[offset])


def test_snapshots_above_what_is_trusted_are_removed() -> None:
    store = Store(SETTINGS)
    log, _ = lived(store)
    write_snapshot(log.environment.disk, log.directory, log.log_end_offset, log.producers)
    first = snapshots(store, log)[0]
    rebuild(store, log, first + 1)
    assert snapshots(store, log) == [first]


def test_a_damaged_snapshot_is_reported_removed_and_made_up_for() -> None:
    store = Store(SETTINGS)
    log, known = lived(store)
    newest = snapshots(store, log)[-1]
    write_file(store.disk, names.segment_path(log.directory, newest, names.SNAPSHOT_SUFFIX), b"damaged")
    loaded, found = rebuild(store, log, 30)
    assert loaded is not None
    assert loaded < newest
    assert found == known[30]
    assert store.facts("producer_snapshot_discarded")
    assert newest not in snapshots(store, log)


def test_what_was_in_the_state_before_is_forgotten() -> None:
    store = Store(SETTINGS)
    log, _ = lived(store)
    producers = ProducerState(1000)
    producers.load(log.producers.entries())
    remove_snapshots_above(store.disk, log.directory, -1)
    assert load_newest_snapshot(store.disk, log.directory, 0, producers, lambda event, facts: None) is None
    assert producers.producer_count == 0


# A written batch's bookkeeping: aborted transactions go into the index, with the last stable offset of that moment.


def write(log: PartitionLog, producer_id: int, sequence: int = 0) -> int:
    return log.append_as_leader(batch(producer_id=producer_id, sequence=sequence, transactional=True), 0).first_offset


def aborted(log: PartitionLog) -> list[AbortedTransaction]:
    return list(log.segments.active.transaction_index.entries())


def test_an_abort_is_indexed_and_a_commit_is_not() -> None:
    log = Store().create()
    write(log, 7)
    end_transaction(log, 7, ControlType.COMMIT)
    first = write(log, 7, 1)
    write(log, 7, 2)
    marker = end_transaction(log, 7, ControlType.ABORT)
    assert aborted(log) == [AbortedTransaction(7, first, marker, marker + 1)]


def test_the_last_stable_offset_is_held_by_the_oldest_open_transaction() -> None:
    log = Store().create()
    older = write(log, 7)
    first = write(log, 8)
    marker = end_transaction(log, 8, ControlType.ABORT)
    assert aborted(log) == [AbortedTransaction(8, first, marker, older)]
    last = end_transaction(log, 7, ControlType.ABORT)
    assert aborted(log)[1:] == [AbortedTransaction(7, older, last, last + 1)]


def test_a_marker_without_a_transaction_ends_nothing() -> None:
    log = Store().create()
    end_transaction(log, 7, ControlType.ABORT)
    assert aborted(log) == []
    assert log.producers.first_unstable_offset is None


def test_without_a_segment_only_the_producers_learn() -> None:
    producers = ProducerState(1000)
    data = batch(producer_id=7, sequence=0, transactional=True)
    note_batch_of_producer(producers, None, read_header(data), 40, None)
    assert producers.describe()["open_transactions"] == [(40, 7)]
    marker = EndTransactionMarker(ControlType.ABORT, 3)
    ending = build_end_transaction_marker(marker, producer_id=7, producer_epoch=0, timestamp=0)
    note_batch_of_producer(producers, None, read_header(ending), 41, marker)
    assert producers.describe()["open_transactions"] == []
    entry = producers.entry(7)
    assert entry is not None
    assert entry.coordinator_epoch == 3


def test_a_marker_that_compaction_emptied_says_nothing() -> None:
    """Kafka's cleaner leaves such batches; they are neither records nor the end of anything."""
    empty = build_batch([], producer_id=7, producer_epoch=1, transactional=True, control=True, last_offset_delta=0)
    header = read_header(empty)
    producers = ProducerState(1000)
    assert marker_of(empty, 0, header) is None
    note_batch_of_producer(producers, None, header, 5, None)
    assert producers.describe() == {"producers": [], "open_transactions": []}
    log = Store().create()
    log.append_as_follower(empty)
    assert log.log_end_offset == 1
