"""AddPartitionsToTxn: a transaction begins with its first partition, and the markers go to those that were added.

A partition is added before its first record is written (transactions v1: by the client; v2: by the partition's leader), so there
is no partition with records of the transaction that would not get a marker. AddOffsetsToTxn adds the partition that holds the
group's offsets. ``verify_partitions`` only looks: a leader asks before it takes the first records of a v1 transaction.
"""

from collections.abc import Sequence

from tidelog.coordinator.hashing import partition_for
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.records.topic_partition import TopicPartition
from tidelog.transactions.decisions import Decisions, answer
from tidelog.transactions.state import COMPLETE_STATES, PREPARED_STATES, TransactionState
from tidelog.transactions.table import TransactionTable
from tidelog.transactions.transaction import advance, encoded_bytes_max, is_of_next_transaction, missing_from, with_added
from tidelog.wire.errors import ErrorCode

OFFSETS_TOPIC = "__consumer_offsets"
_ADDABLE_STATES = (TransactionState.ONGOING, *COMPLETE_STATES)


def add_partitions(
    decisions: Decisions,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Sequence[TopicPartition],
    transaction_version: int,
) -> CoordinatorResult:
    """The response is one ErrorCode for all. ``transaction_version`` is 2 when a leader adds for a v2 client, else 0."""
    if not transactional_id:
        return answer(ErrorCode.INVALID_REQUEST)
    metadata = decisions.table.find(transactional_id)
    if metadata is None:
        return answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    value = metadata.value
    # To a transaction whose last addition is still on its way to the log more can be added at once, and one may begin while the
    # end of the last one is: answers keep their order.
    if metadata.pending and value.state not in _ADDABLE_STATES:
        return answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    # Epochs that are used up go on with another producer id, which is not of record before the end is.
    if is_of_next_transaction(value, producer_id, producer_epoch):
        return answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    if value.producer_id != producer_id:
        return answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if value.producer_epoch != producer_epoch:
        return answer(ErrorCode.PRODUCER_FENCED)
    if value.state in PREPARED_STATES:
        return answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    is_ongoing = value.state is TransactionState.ONGOING
    if is_ongoing and not missing_from(value.partitions, partitions):
        return answer(ErrorCode.NONE)
    added = with_added(value.partitions, partitions)
    if encoded_bytes_max(transactional_id, added) > decisions.environment.record_bytes_max():
        # Refused here, because the record that ends the transaction is a little larger, and it must be possible to write that.
        return answer(ErrorCode.UNKNOWN_SERVER_ERROR)
    now_ms = decisions.now_ms()
    begun = advance(
        value,
        TransactionState.ONGOING,
        now_ms,
        partitions=added,
        start_timestamp_ms=value.start_timestamp_ms if is_ongoing else now_ms,
        client_transaction_version=transaction_version,
    )
    return decisions.decide(transactional_id, begun, ErrorCode.NONE, metadata.last_producer_epoch)


def add_offsets(
    decisions: Decisions,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    group_id: str,
    offsets_partitions: int,
) -> CoordinatorResult:
    """``offsets_partitions`` is how many the topic of offsets has."""
    partition = (OFFSETS_TOPIC, partition_for(group_id, offsets_partitions))
    return add_partitions(decisions, transactional_id, producer_id, producer_epoch, [partition], 0)


def verify_partitions(
    table: TransactionTable,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Sequence[TopicPartition],
) -> dict[TopicPartition, ErrorCode]:
    """Whether each is part of the producer's ongoing transaction."""
    error: ErrorCode | None = None
    metadata = table.find(transactional_id)
    if not transactional_id:
        error = ErrorCode.INVALID_REQUEST
    elif metadata is None or metadata.value.producer_id != producer_id:
        error = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    elif metadata.value.producer_epoch != producer_epoch:
        error = ErrorCode.PRODUCER_FENCED
    elif metadata.value.state in PREPARED_STATES:
        error = ErrorCode.CONCURRENT_TRANSACTIONS
    if error is not None or metadata is None:
        return dict.fromkeys(partitions, error or ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    missing = missing_from(metadata.value.partitions, partitions)
    return {**dict.fromkeys(partitions, ErrorCode.NONE), **dict.fromkeys(missing, ErrorCode.TRANSACTION_ABORTABLE)}
