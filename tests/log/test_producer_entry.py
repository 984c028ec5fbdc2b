"""A batch knows where it began, also across the end of the sequence numbers; a producer's last five are kept in little memory."""

import tracemalloc

import pytest

from tidelog.log.producer_entry import BATCHES_KEPT_MAX, BatchMetadata, ProducerEntry

# A hundred thousand producers of one partition take at most 100 MB, of which the dictionary that finds them takes ten.
BYTES_MAX = 900


@pytest.mark.parametrize(
    ("last_sequence", "offset_delta", "first_sequence"),
    [(9, 9, 0), (9, 0, 9), (0, 1, 2**31 - 1), (4, 9, 2**31 - 5), (2**31 - 1, 4, 2**31 - 5)],
)
def test_first_sequence_wraps(last_sequence: int, offset_delta: int, first_sequence: int) -> None:
    assert BatchMetadata(last_sequence, 100, offset_delta, 0).first_sequence == first_sequence


def test_first_offset() -> None:
    assert BatchMetadata(9, 109, 9, 0).first_offset == 100


def test_a_new_entry_has_written_nothing() -> None:
    assert ProducerEntry(7, 3).snapshot_fields() == (7, 3, -1, -1, 0, -1, -1, -1)


def test_the_last_batch_is_what_a_snapshot_keeps() -> None:
    entry = ProducerEntry(7, 3, [BatchMetadata(1, 10, 1, 50), BatchMetadata(4, 13, 2, 60)], 5, 70, 12)
    assert entry.snapshot_fields() == (7, 3, 4, 13, 2, 70, 5, 12)


def test_the_last_five_batches_are_kept_as_they_are() -> None:
    largest = BatchMetadata(2**31 - 1, 2**63 - 1, 2**31 - 1, 2**63 - 1)
    smallest = BatchMetadata(-1, 0, 0, -(2**63))
    batches = [BatchMetadata(number, number + 100, 0, number + 1000) for number in range(5)] + [largest, smallest]
    entry = ProducerEntry(7, 3, batches)
    assert entry.batches == batches[-BATCHES_KEPT_MAX:]
    assert (entry.last_sequence, entry.last_offset, entry.last_offset_delta) == (-1, 0, 0)


def test_an_epoch_begins_without_batches() -> None:
    entry = ProducerEntry(7, 3, [BatchMetadata(4, 13, 2, 60)])
    entry.begin_epoch(4)
    assert (entry.epoch, entry.batches, entry.last_sequence, entry.last_offset, entry.last_offset_delta) == (4, [], -1, -1, 0)


def test_what_a_producer_takes() -> None:
    count = 1000
    tracemalloc.start()
    try:
        entries = [
            ProducerEntry(
                producer_id,
                3,
                (BatchMetadata(1000 + number, 2**33 + number, 999, 2**40 + producer_id + number) for number in range(5)),
                last_timestamp=2**40 + producer_id,
            )
            for producer_id in range(5_000, 5_000 + count)
        ]
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / len(entries) < BYTES_MAX
