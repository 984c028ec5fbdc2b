"""A written batch's bookkeeping: aborted transactions go into the index, with the last stable offset of that moment."""

from tests.log.harness import Store, batch, end_transaction
from tidelog.log.partition_log import PartitionLog
from tidelog.log.producer_state import ProducerState
from tidelog.log.transaction_index import AbortedTransaction
from tidelog.log.transactions import marker_of, note_batch_of_producer
from tidelog.records.batch import build_batch
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.records.header import read_header


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
