"""What a read_committed client shows of a fetch."""

from simulation.committed_reader import visible_records
from tidelog.records.batch import build_batch
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.records.header import restamp
from tidelog.records.record import Record
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import FetchedPartition


def data(offset: int, producer_id: int, *values: str) -> bytes:
    records = [Record(offset + number, 0, None, value.encode()) for number, value in enumerate(values)]
    return build_batch(
        records, base_offset=offset, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=producer_id >= 0
    )


def marker(offset: int, producer_id: int, control_type: ControlType) -> bytes:
    end = EndTransactionMarker(control_type, 0)
    batch = bytearray(build_end_transaction_marker(end, producer_id=producer_id, producer_epoch=0, timestamp=0))
    restamp(batch, 0, offset, 0)
    return bytes(batch)


def shown(*batches: bytes, aborted: list[tuple[int, int]], position: int = 0) -> tuple[list[tuple[int, str]], int]:
    records = memoryview(b"".join(batches))
    return visible_records(FetchedPartition(0, ErrorCode.NONE, 99, 99, 0, aborted, records, None, None, -1), position)


def test_aborted_records_are_left_out_up_to_their_marker() -> None:
    batches = (
        data(0, 1, "a"),
        data(1, 2, "b", "c"),
        data(3, -1, "d"),
        marker(4, 1, ControlType.ABORT),
        data(5, 1, "e"),
        marker(6, 2, ControlType.COMMIT),
    )
    assert shown(*batches, aborted=[(1, 0)]) == ([(1, "b"), (2, "c"), (3, "d"), (5, "e")], 7)


def test_one_that_is_aborted_later_is_not_left_out_yet() -> None:
    batches = data(0, 1, "a"), marker(1, 1, ControlType.COMMIT), data(2, 1, "b"), marker(3, 1, ControlType.ABORT)
    assert shown(*batches, aborted=[(1, 2)]) == ([(0, "a")], 4)


def test_from_the_middle_of_a_batch_and_past_control_records() -> None:
    assert shown(data(0, 1, "a", "b", "c"), marker(3, 1, ControlType.COMMIT), aborted=[], position=2) == ([(2, "c")], 4)
    assert shown(aborted=[], position=5) == ([], 5)
