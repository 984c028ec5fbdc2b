"""A batch knows where it began, also across the end of the sequence numbers."""

import pytest

from tidelog.log.producer_entry import BatchMetadata, ProducerEntry


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
