"""The same bookkeeping at append and at recovery: what a written batch does to the producers' state and the transaction index."""

from tidelog.log.producer_state import ProducerState
from tidelog.log.segment import LogSegment
from tidelog.log.transaction_index import AbortedTransaction
from tidelog.ports.disk import Buffer
from tidelog.records.control import EndTransactionMarker, read_end_transaction_marker
from tidelog.records.header import CONTROL_MASK, BatchHeader


def marker_of(buffer: Buffer, position: int, header: BatchHeader) -> EndTransactionMarker | None:
    """The content of a transaction marker; None for records, and for a marker that Kafka's compaction has emptied."""
    if not header.attributes & CONTROL_MASK or not header.record_count:
        return None
    return read_end_transaction_marker(buffer, position, header)


def note_batch_of_producer(
    producers: ProducerState,
    segment: LogSegment | None,
    header: BatchHeader,
    base_offset: int,
    marker: EndTransactionMarker | None,
) -> None:
    """``header`` was written at ``base_offset``; ``marker`` is its content when it is a control batch. Without a segment the
    transaction index is left alone: it already knows."""
    if marker is None:
        if header.attributes & CONTROL_MASK:
            return  # An emptied marker: its transaction is long over.
        producers.update(header, base_offset)
        return
    completed = producers.update_marker(header.producer_id, header.producer_epoch, marker, base_offset, header.max_timestamp)
    if completed is None:
        return
    if completed.is_aborted and segment is not None:
        last_stable_offset = producers.last_stable_offset_for(completed)
        segment.transaction_index.append(
            AbortedTransaction(completed.producer_id, completed.first_offset, completed.last_offset, last_stable_offset)
        )
    producers.complete(completed)
