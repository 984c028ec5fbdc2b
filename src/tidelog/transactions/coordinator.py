"""One shard of the transaction coordinator: the decisions about its transactional ids, except for their ends.

Operations are decisions for ``Shard.write``: each returns a record and a response, and only the record's replay changes the
state. Queries are for ``Shard.read``. How a transaction ends, which takes several steps, is in ``end_transaction``.

**InitProducerId** gives a producer its id, and an epoch that fences every previous owner of the transactional id. A producer that
sends the id and epoch it has (KIP-360) continues after an error: its epoch is raised once, however often it retries, unless
another producer took over in the meantime. An ongoing transaction is aborted first, and the producer is told to retry.

**AddPartitionsToTxn** comes before the first record is written to a partition (transactions v1: from the client; v2: from the
partition's leader), so every partition with records of the transaction gets a marker. The first partition begins the transaction.
AddOffsetsToTxn adds the partition that holds a group's offsets. ``verify_partitions`` only looks: a leader asks before it accepts
the first records of a v1 transaction.

**Time-outs**: an open transaction blocks the read_committed readers of all its partitions, and its producer may be gone for good.
So a transaction that is open for longer than its producer announced is aborted, and the producer fenced. One timer scans the
ongoing transactions every ``transaction.abort.timed.out.transaction.cleanup.interval.ms``; each is aborted by a decision of its
own, a few at a time.

**Expiry**: a transactional id that was not used for ``transactional.id.expiration.ms`` is forgotten with a tombstone, unless it
has a transaction. Every ``transaction.remove.expired.transaction.cleanup.interval.ms`` all ids are scanned, a slice at a time.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

from tidelog.coordinator.machine import CoordinatorResult
from tidelog.coordinator.runtime import partition_for
from tidelog.metadata.topics import GROUPS_TOPIC
from tidelog.records.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.records.topic_partition import TopicPartition
from tidelog.transactions.end_transaction import TransactionEnds
from tidelog.transactions.environment import TransactionEnvironment
from tidelog.transactions.records import NO_TIMESTAMP_MS, TransactionRecord, TransactionTopic, TransactionValue
from tidelog.transactions.state import (
    COMPLETE_STATES,
    EXPIRABLE_STATES,
    PREPARED_STATES,
    STATE_NAMES,
    STATES_BY_NAME,
    TransactionState,
)
from tidelog.transactions.transaction import (
    TransactionMetadata,
    TransactionTable,
    advance,
    encoded_bytes_max,
    is_epoch_exhausted,
    is_of_next_transaction,
    missing_from,
    with_added,
)
from tidelog.wire.end_txn import EndTxnRequest
from tidelog.wire.errors import ErrorCode

# Each abort costs a record and its markers: about 5 ms in all.
ABORTS_PER_SLICE = 50
# About a millisecond.
IDS_PER_SLICE = 2_000

_TIME_OUTS = "time-outs"
_EXPIRY = "expiry"
_ADDABLE_STATES = (TransactionState.ONGOING, *COMPLETE_STATES)


class InitProducerIdRequest(NamedTuple):
    """The producer id and epoch are those that the producer believes it has; both are -1 for a producer that starts."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class InitProducerIdResult(NamedTuple):
    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class TransactionPartitions(NamedTuple):
    """The partitions that a producer's transaction writes to, or is about to."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[TopicPartition]


class ListedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str


class DescribedTransaction(NamedTuple):
    transactional_id: str
    state: str
    timeout_ms: int
    start_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    partitions: tuple[TransactionTopic, ...]
    """The partitions that still lack their marker, while the transaction is ending."""


class TransactionFilter(NamedTuple):
    """Empty collections and a negative duration match everything."""

    producer_ids: Collection[int] = ()
    states: Collection[str] = ()
    duration_ms: int = -1
    """Only transactions that began longer ago than this."""
    matches: Callable[[str], bool] | None = None
    """Whether a transactional id matches the pattern."""


class TransactionCoordinator:
    __slots__ = ("_environment", "_is_tail_committed", "ends", "table")

    def __init__(self, environment: TransactionEnvironment) -> None:
        self._environment = environment
        self.table = TransactionTable(environment.transaction_version)
        self.ends = TransactionEnds(environment, self.table)
        self._is_tail_committed = False

    # -- the runtime ---------------------------------------------------------------------------------------------------------

    def replay(self, record: TransactionRecord, offset: int, producer_id: int, producer_epoch: int) -> None:  # noqa: ARG002 - a coordinator's own records are in no transaction
        self.table.replay(record)

    def replay_end_transaction(self, producer_id: int, is_commit: bool) -> None:
        """Nobody writes to this topic in a transaction, so there is nothing to do."""

    def on_loaded(self) -> None:
        self.table.go_live()
        self._schedule_time_outs()
        self._schedule_expiry()
        # This is a decision because decisions wait until everything that was loaded is committed, which it may not be yet.
        self._environment.timers.schedule("resume", 0, lambda: CoordinatorResult(on_committed=self._resume))

    def _resume(self, error: Exception | None) -> None:
        if error is None:
            self._is_tail_committed = True
            self.ends.resume()

    def on_dropped(self, error: Exception) -> None:
        self.ends.on_dropped(error)

    # -- InitProducerId ------------------------------------------------------------------------------------------------------

    def init_producer_id(self, request: InitProducerIdRequest) -> CoordinatorResult:
        """The response is an InitProducerIdResult."""
        transactional_id = request.transactional_id
        is_new = request.producer_id == NO_PRODUCER_ID
        if not transactional_id or is_new != (request.producer_epoch == NO_PRODUCER_EPOCH):
            return _refuse(ErrorCode.INVALID_REQUEST)
        if not 0 < request.timeout_ms <= self._environment.settings["transaction.max.timeout.ms"]:
            return _refuse(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        metadata = self.table.find(transactional_id)
        if metadata is None:
            return self._create(request)
        if metadata.pending:
            return _refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        if not is_new and not _is_valid_producer(metadata.value, request):
            return _refuse(ErrorCode.PRODUCER_FENCED)
        state = metadata.value.state
        if state in PREPARED_STATES:
            return _refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        if state is TransactionState.ONGOING:
            # Nobody gets the raised epoch: the producer retries, and gets the one after it.
            return self.ends.fence_and_abort(
                transactional_id,
                metadata,
                InitProducerIdResult(ErrorCode.CONCURRENT_TRANSACTIONS),
                on_no_id=InitProducerIdResult(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
            )
        return self._raise_epoch(request, metadata)

    def _create(self, request: InitProducerIdRequest) -> CoordinatorResult:
        if len(self.table) >= self._environment.settings["tidelog.transactional.ids.max"]:
            return _refuse(ErrorCode.POLICY_VIOLATION)
        producer_id = self._environment.producer_ids.take()
        if producer_id is None:
            return _refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        value = TransactionValue(
            producer_id=producer_id,
            previous_producer_id=producer_id,
            next_producer_id=NO_PRODUCER_ID,
            producer_epoch=0,
            next_producer_epoch=NO_PRODUCER_EPOCH,
            timeout_ms=request.timeout_ms,
            state=TransactionState.EMPTY,
            partitions=(),
            last_update_timestamp_ms=self._environment.clock.now_ms(),
            start_timestamp_ms=NO_TIMESTAMP_MS,
            client_transaction_version=0,
        )
        return self.table.write(request.transactional_id, value, InitProducerIdResult(ErrorCode.NONE, producer_id, 0))

    def _raise_epoch(self, request: InitProducerIdRequest, metadata: TransactionMetadata) -> CoordinatorResult:
        value = metadata.value
        producer_id, producer_epoch = value.producer_id, value.producer_epoch
        is_new = request.producer_id == NO_PRODUCER_ID
        if is_new or request.producer_epoch == producer_epoch:
            last_producer_epoch = NO_PRODUCER_EPOCH if is_new else producer_epoch
            if is_epoch_exhausted(producer_epoch):
                new_id = self._environment.producer_ids.take()
                if new_id is None:
                    return _refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                producer_id, producer_epoch = new_id, 0
            else:
                producer_epoch += 1
        elif request.producer_epoch == metadata.last_producer_epoch:
            # This is a retry. Nobody else took over: that would have cleared the last epoch.
            last_producer_epoch = metadata.last_producer_epoch
        else:
            return _refuse(ErrorCode.PRODUCER_FENCED)
        begun = advance(
            value,
            TransactionState.EMPTY,
            self._environment.clock.now_ms(),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timeout_ms=request.timeout_ms,
            start_timestamp_ms=NO_TIMESTAMP_MS,
        )
        response = InitProducerIdResult(ErrorCode.NONE, producer_id, producer_epoch)
        return self.table.write(request.transactional_id, begun, response, last_producer_epoch)

    # -- AddPartitionsToTxn and AddOffsetsToTxn ------------------------------------------------------------------------------

    def add_partitions(self, request: TransactionPartitions, transaction_version: int = 0) -> CoordinatorResult:
        """The response is one ErrorCode for all partitions. ``transaction_version`` is 2 when a leader adds them for a v2 client,
        else 0."""
        transactional_id, producer_id, producer_epoch, partitions = request
        if not transactional_id:
            return CoordinatorResult(response=ErrorCode.INVALID_REQUEST)
        metadata = self.table.find(transactional_id)
        if metadata is None:
            return CoordinatorResult(response=ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        value = metadata.value
        # More partitions can be added while the last addition is being committed, and a transaction may begin while the end of
        # the last one is being committed: answers keep their order.
        if metadata.pending and value.state not in _ADDABLE_STATES:
            return CoordinatorResult(response=ErrorCode.CONCURRENT_TRANSACTIONS)
        # A producer whose epochs are used up continues with another id, which the log does not hold before the end is complete.
        if is_of_next_transaction(value, producer_id, producer_epoch):
            return CoordinatorResult(response=ErrorCode.CONCURRENT_TRANSACTIONS)
        if value.producer_id != producer_id:
            return CoordinatorResult(response=ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if value.producer_epoch != producer_epoch:
            return CoordinatorResult(response=ErrorCode.PRODUCER_FENCED)
        if value.state in PREPARED_STATES:
            return CoordinatorResult(response=ErrorCode.CONCURRENT_TRANSACTIONS)
        is_ongoing = value.state is TransactionState.ONGOING
        if is_ongoing and not missing_from(value.partitions, partitions):
            return CoordinatorResult(response=ErrorCode.NONE)
        added = with_added(value.partitions, partitions)
        if encoded_bytes_max(transactional_id, added) > self._environment.record_bytes_max():
            # Refuse it here: the record that ends the transaction is a little larger, and it must be possible to write that one.
            return CoordinatorResult(response=ErrorCode.UNKNOWN_SERVER_ERROR)
        now_ms = self._environment.clock.now_ms()
        begun = advance(
            value,
            TransactionState.ONGOING,
            now_ms,
            partitions=added,
            start_timestamp_ms=value.start_timestamp_ms if is_ongoing else now_ms,
            client_transaction_version=transaction_version,
        )
        return self.table.write(transactional_id, begun, ErrorCode.NONE, metadata.last_producer_epoch)

    def verify_partitions(self, request: TransactionPartitions) -> dict[TopicPartition, ErrorCode]:
        """Check whether each partition is part of the producer's ongoing transaction."""
        transactional_id, producer_id, producer_epoch, partitions = request
        error: ErrorCode | None = None
        metadata = self.table.find(transactional_id)
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

    def is_committed(self, transactional_id: str) -> bool:
        """Whether a query about this id can be answered at once, without the shard's wait for the log."""
        return self._is_tail_committed and not self.is_pending(transactional_id)

    def is_pending(self, transactional_id: str) -> bool:
        """Whether a decision about this id is not committed yet."""
        metadata = self.table.find(transactional_id)
        return metadata is not None and bool(metadata.pending)

    # -- EndTxn --------------------------------------------------------------------------------------------------------------

    def end_transaction(self, request: EndTxnRequest, transaction_version: int = 0) -> CoordinatorResult:
        return self.ends.end(request, transaction_version)

    # -- time-outs -----------------------------------------------------------------------------------------------------------

    def _schedule_time_outs(self) -> None:
        interval_ms = self._environment.settings["transaction.abort.timed.out.transaction.cleanup.interval.ms"]
        self._environment.timers.schedule(_TIME_OUTS, interval_ms, self._abort_timed_out)

    def _abort_timed_out(self) -> CoordinatorResult:
        self._schedule_time_outs()
        due = [transactional_id for transactional_id in self.table.ongoing if self._is_timed_out(transactional_id)]
        if due:
            self._environment.report("transactions_timed_out", {"count": len(due), "first": due[0]})
        return self._abort_some(due)

    def _is_timed_out(self, transactional_id: str) -> bool:
        metadata = self.table.find(transactional_id)
        if metadata is None or metadata.pending or metadata.value.state is not TransactionState.ONGOING:
            return False
        value = metadata.value
        return value.start_timestamp_ms + value.timeout_ms < self._environment.clock.now_ms()

    def _abort_some(self, due: list[str]) -> CoordinatorResult:
        timers = self._environment.timers
        for transactional_id in due[:ABORTS_PER_SLICE]:
            timers.schedule(("time out", transactional_id), 0, partial(self._abort, transactional_id))
        if len(due) > ABORTS_PER_SLICE:
            timers.schedule("more time-outs", 0, lambda: self._abort_some(due[ABORTS_PER_SLICE:]))
        return CoordinatorResult()

    def _abort(self, transactional_id: str) -> CoordinatorResult:
        metadata = self.table.find(transactional_id)
        if metadata is None or not self._is_timed_out(transactional_id):
            return CoordinatorResult()  # The transaction has ended in the meantime.
        return self.ends.fence_and_abort(transactional_id, metadata, None, None)

    # -- expiry --------------------------------------------------------------------------------------------------------------

    def _schedule_expiry(self) -> None:
        interval_ms = self._environment.settings["transaction.remove.expired.transaction.cleanup.interval.ms"]
        self._environment.timers.schedule(_EXPIRY, interval_ms, lambda: self._expire_some(list(self.table)))

    def _expire_some(self, unchecked: list[str]) -> CoordinatorResult:
        bytes_left = self._environment.record_bytes_max()
        version = self.table.record_version
        tombstones: list[TransactionRecord] = []
        checked = 0
        for transactional_id in unchecked[:IDS_PER_SLICE]:
            if self._is_expired(transactional_id):
                size = encoded_bytes_max(transactional_id, ())
                if size > bytes_left and tombstones:
                    break  # This one begins the next batch.
                bytes_left -= size
                tombstones.append(TransactionRecord(transactional_id, None, version))
            checked += 1
        if checked < len(unchecked):
            self._environment.timers.schedule(_EXPIRY, 0, lambda: self._expire_some(unchecked[checked:]))
        else:
            self._schedule_expiry()
        return CoordinatorResult(tombstones)

    def _is_expired(self, transactional_id: str) -> bool:
        metadata = self.table.find(transactional_id)
        if metadata is None or metadata.pending or metadata.value.state not in EXPIRABLE_STATES:
            return False
        age_ms = self._environment.clock.now_ms() - metadata.value.last_update_timestamp_ms
        return bool(age_ms >= self._environment.settings["transactional.id.expiration.ms"])

    # -- ListTransactions and DescribeTransactions ---------------------------------------------------------------------------

    def list_transactions(self, criteria: TransactionFilter) -> list[ListedTransaction]:
        """List the transactions in the order in which their ids first appeared."""
        states = {STATES_BY_NAME[name] for name in criteria.states if name in STATES_BY_NAME}
        producer_ids = set(criteria.producer_ids)
        now_ms = self._environment.clock.now_ms()
        found = []
        for transactional_id, metadata in self.table.items():
            value = metadata.value
            if producer_ids and value.producer_id not in producer_ids:
                continue
            if criteria.states and value.state not in states:
                continue
            if criteria.duration_ms >= 0 and now_ms - value.start_timestamp_ms <= criteria.duration_ms:
                continue
            if criteria.matches is not None and not criteria.matches(transactional_id):
                continue
            found.append(ListedTransaction(transactional_id, value.producer_id, STATE_NAMES[value.state]))
        return found

    def describe_transaction(self, transactional_id: str) -> DescribedTransaction | None:
        """Return None for TRANSACTIONAL_ID_NOT_FOUND."""
        metadata = self.table.find(transactional_id)
        if metadata is None:
            return None
        value = metadata.value
        remaining = self.ends.remaining(transactional_id)
        return DescribedTransaction(
            transactional_id,
            STATE_NAMES[value.state],
            value.timeout_ms,
            value.start_timestamp_ms,
            value.producer_id,
            value.producer_epoch,
            value.partitions if remaining is None else remaining,
        )


def offsets_partition(group_id: str, partition_count: int) -> TopicPartition:
    """Return which of ``partition_count`` partitions holds a group's offsets."""
    return GROUPS_TOPIC, partition_for(group_id, partition_count)


def unknown_states(states: Collection[str]) -> list[str]:
    return [name for name in states if name not in STATES_BY_NAME]


def _refuse(error: ErrorCode) -> CoordinatorResult:
    return CoordinatorResult(response=InitProducerIdResult(error))


def _is_valid_producer(value: TransactionValue, request: InitProducerIdRequest) -> bool:
    if request.producer_id == value.producer_id:
        return True  # The epoch is checked when it is raised.
    # The producer may retry because it never learned that its used-up id was replaced.
    return request.producer_id == value.previous_producer_id and is_epoch_exhausted(request.producer_epoch)
