"""How a transaction ends, from EndTxn to the last marker.

1. ``end`` decides. PrepareCommit or PrepareAbort goes to ``__transaction_state``; once that record is committed the outcome is
   fixed, and the producer gets its answer.
2. ``_write_markers`` then hands a batch of markers, one per partition of the transaction, to the broker's ``MarkerSender``. It
   writes them a slice at a time and retries each until it is committed or its partition is gone.
3. When the last one is committed, ``_complete`` decides CompleteCommit or CompleteAbort. That record need not be written at once:
   whoever begins the next transaction forces it, and then both are one batch; otherwise it follows a few milliseconds later.

Which partitions still lack their marker is kept in memory only. A crash before step 3 finds the Prepare record, and sends all
markers again. A partition that already has its marker accepts it once more without harm, because the producer cannot have begun
anything new. A crash before step 1 is durable leaves the transaction ongoing.

Invariants: no marker is written before its decision is committed; nothing is sent once the shard is dropped, because another
broker may be the coordinator by then, and a late marker could end the producer's next transaction; each id has at most one batch
of markers under way.

Transactions v1: the producer keeps its epoch. A late request cannot be told from one about the next transaction, which is the
problem that KIP-890 solves.

Transactions v2: the decision raises the epoch, so a request's epoch says which transaction it means. The current epoch means the
current transaction; the one below it is a retry about the transaction that is ending or has ended, and gets the same answer.
When the epochs of a producer id are used up, a new producer id follows at epoch 0. An abort is accepted even if no partition was
added, because such a producer cannot know whether one was:

                     abort               commit
                     retry     current   retry     current
    Empty            FENCED    accepted  FENCED    INVALID_TXN_STATE
    CompleteAbort    NONE      accepted  INVALID   INVALID_TXN_STATE
    CompleteCommit   INVALID   accepted  NONE      INVALID_TXN_STATE

While a transaction is ending (Prepare...), a request about the next one is too early and gets CONCURRENT_TRANSACTIONS: a producer
may want to abort the next one before the markers of this one are written.

``fence_and_abort`` ends a transaction because another producer took over the id or because it timed out. It always raises the
epoch, so that the previous producer can do no more.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol

from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import CoordinatorResult, OnCommitted, Scheduler
from tidelog.log.errors import InvalidProducerEpoch, TransactionCoordinatorFenced
from tidelog.log.time_budget import TimeBudget
from tidelog.ports.clock import Clock
from tidelog.records.control import ControlType, EndTransactionMarker
from tidelog.records.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.records.topic_partition import TopicPartition
from tidelog.transactions.environment import TransactionEnvironment
from tidelog.transactions.records import TransactionTopic, TransactionValue
from tidelog.transactions.state import COMPLETE_STATES, PREPARED_STATES, TransactionState
from tidelog.transactions.transaction import (
    EPOCH_MAX,
    EXHAUSTED_EPOCH_MIN,
    TRANSACTION_VERSION_2,
    TransactionMetadata,
    TransactionTable,
    advance,
    completed,
    each_partition,
    is_epoch_exhausted,
    is_of_next_transaction,
    producer_after,
    with_added,
)
from tidelog.wire.end_txn import EndTxnRequest
from tidelog.wire.errors import ErrorCode

# The maximum number of requests that wait for the end of a transaction instead of being told to retry.
WAITERS_MAX = 10_000
# This is longer than a producer takes from the answer to its commit to the next begin, yet short for anyone who watches the
# states.
COMPLETE_MS = 10
# Each one is a record: about a millisecond in all.
COMPLETED_PER_SLICE = 50
# About a millisecond of appends.
MARKERS_PER_SLICE = 32
RETRY_MS_MIN = 50
RETRY_MS_MAX = 5_000

_COMPLETE = "complete"
_PARTITION_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INVALID_TOPIC_EXCEPTION)

OnEnded = Callable[[Exception | None], None]
OnMarkerWritten = Callable[[TopicPartition, Exception | None], None]
"""Called with None when the marker is committed, or with the reason why it is not."""


class EndTransactionResult(NamedTuple):
    """The id and epoch are for the producer's next transaction; -1 for clients that keep their epoch."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class TransactionMarker(NamedTuple):
    """The marker that is written to every partition of a transaction that ends."""

    producer_id: int
    producer_epoch: int
    control: EndTransactionMarker
    transaction_version: int
    """The client's version of transactions. From 2 on the marker's epoch is above that of the transaction's records."""


def transaction_marker(
    producer_id: int, producer_epoch: int, *, is_commit: bool, coordinator_epoch: int, transaction_version: int
) -> TransactionMarker:
    control = EndTransactionMarker(ControlType.COMMIT if is_commit else ControlType.ABORT, coordinator_epoch)
    return TransactionMarker(producer_id, producer_epoch, control, transaction_version)


class MarkersToWrite:
    """One marker, and the partitions that do not have it yet."""

    __slots__ = (
        "_failed",
        "_is_cancelled",
        "_on_written",
        "_untried",
        "is_queued",
        "is_retried",
        "marker",
        "remaining",
    )

    def __init__(
        self,
        marker: TransactionMarker,
        partitions: Iterable[TopicPartition],
        on_written: OnMarkerWritten,
        *,
        is_retried: bool = True,
    ) -> None:
        """``on_written`` is called once for each partition. Without ``is_retried`` every failure is reported to it; otherwise
        only success is, and a partition that no longer exists counts as written."""
        self.marker = marker
        self.remaining = dict.fromkeys(partitions)
        self.is_retried = is_retried
        self.is_queued = False
        self._on_written = on_written
        self._is_cancelled = False
        self._untried = iter(tuple(self.remaining))
        self._failed: deque[_MarkerDelivery] = deque()

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancelled

    def cancel(self) -> None:
        """Stop writing and reporting."""
        self._is_cancelled = True

    def next_delivery(self) -> "_MarkerDelivery | None":
        if self._is_cancelled:
            return None
        if self._failed:
            return self._failed.popleft()
        partition = next(self._untried, None)
        return None if partition is None else _MarkerDelivery(self, partition)

    def retry(self, delivery: "_MarkerDelivery") -> None:
        self._failed.append(delivery)

    def written(self, partition: TopicPartition, error: Exception | None = None) -> None:
        if not self._is_cancelled and partition in self.remaining:
            del self.remaining[partition]
            self._on_written(partition, error)


class _MarkerDelivery:
    """One marker on its way to one partition."""

    __slots__ = ("markers", "partition", "retry_ms")

    def __init__(self, markers: MarkersToWrite, partition: TopicPartition) -> None:
        self.markers = markers
        self.partition = partition
        self.retry_ms = RETRY_MS_MIN


class MarkerWriter(Protocol):
    """Writes markers to the partitions of this broker."""

    def write(self, partition: TopicPartition, marker: TransactionMarker, on_committed: OnCommitted) -> None:
        """Append the marker once. Raises, or calls back with an error, when it cannot be written or committed."""
        ...

    def is_open(self, partition: TopicPartition, producer_id: int) -> bool:
        """Whether the producer has an open transaction in the partition."""
        ...


class MarkerSender:
    """Writes the markers of all transactions that end on this broker.

    They go out at the end of a burst, so that the pass of group commit that follows covers them. They are written one by one even
    though this broker leads every partition: half-marked transactions exist, and are completed, on one broker as in a cluster.
    Batches take turns, so that a transaction over thousands of partitions does not hold up small ones.
    """

    __slots__ = ("_clock", "_is_scheduled", "_queue", "_report", "_scheduler", "_writer", "retries")

    def __init__(
        self, writer: MarkerWriter, clock: Clock, scheduler: Scheduler, report: Callable[[str, dict[str, object]], None]
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._scheduler = scheduler
        self._report = report
        # Each batch is in the queue once, as long as it has markers to write.
        self._queue: deque[MarkersToWrite] = deque()
        self._is_scheduled = False
        self.retries = 0

    def send(self, markers: MarkersToWrite) -> None:
        if not markers.is_queued:
            markers.is_queued = True
            self._queue.append(markers)

    def flush(self) -> None:
        """Write one slice at the end of a burst. The rest waits for ticks, which it shares with others."""
        if self._queue and not self._is_scheduled:
            self._run()

    def _run(self) -> None:
        self._is_scheduled = False
        work = TimeBudget(self._clock, MARKERS_PER_SLICE)
        while self._queue and not work.is_over:
            markers = self._queue.popleft()
            delivery = markers.next_delivery()
            if delivery is None:
                markers.is_queued = False
            else:
                work.spend()
                self._queue.append(markers)
                self._deliver(delivery)
        if self._queue:
            self._is_scheduled = True
            self._scheduler.schedule(0, self._run)

    def _deliver(self, delivery: _MarkerDelivery) -> None:
        try:
            self._writer.write(delivery.partition, delivery.markers.marker, partial(self._delivered, delivery))
        except Exception as error:
            self._delivered(delivery, error)

    def _delivered(self, delivery: _MarkerDelivery, error: Exception | None) -> None:
        markers = delivery.markers
        if markers.is_cancelled:
            return
        if error is None or not markers.is_retried:
            markers.written(delivery.partition, error)
        elif self._is_final(delivery, error):
            if not isinstance(error, ApiError):
                self._tell("transaction_marker_refused", delivery, error)
            markers.written(delivery.partition)
        else:
            self._retry(delivery, error)

    def _is_final(self, delivery: _MarkerDelivery, error: Exception) -> bool:
        """Whether the partition is gone, or the transaction that the marker would end is not open there."""
        if isinstance(error, ApiError):
            return error.code in _PARTITION_GONE
        if isinstance(error, TransactionCoordinatorFenced):
            # A later coordinator wrote there. If it left the transaction open, only a marker with its epoch can end it.
            return not self._writer.is_open(delivery.partition, delivery.markers.marker.producer_id)
        return isinstance(error, InvalidProducerEpoch)

    def _retry(self, delivery: _MarkerDelivery, error: Exception) -> None:
        self.retries += 1
        if delivery.retry_ms == RETRY_MS_MIN:
            self._tell("transaction_marker_delayed", delivery, error)
        delay_ms = delivery.retry_ms
        delivery.retry_ms = min(delay_ms * 2, RETRY_MS_MAX)

        def again() -> None:
            delivery.markers.retry(delivery)
            self.send(delivery.markers)

        self._scheduler.schedule(delay_ms, again)

    def _tell(self, event: str, delivery: _MarkerDelivery, error: Exception) -> None:
        topic, index = delivery.partition
        facts = {"partition": f"{topic}-{index}", "producer_id": delivery.markers.marker.producer_id}
        self._report(event, {**facts, "error": str(error) or repr(error)})


class TransactionEnds:
    """The transactions of one shard that are ending."""

    __slots__ = ("_all_written", "_ending", "_environment", "_is_dropped", "_table", "_waiters", "_waiting")

    def __init__(self, environment: TransactionEnvironment, table: TransactionTable) -> None:
        self._environment = environment
        self._table = table
        self._is_dropped = False
        self._ending: dict[str, MarkersToWrite] = {}
        # Those of the above whose markers are all committed, and whose Complete record is not decided yet.
        self._all_written: dict[str, None] = {}
        self._waiters: dict[str, list[OnEnded]] = {}
        self._waiting = 0

    def __len__(self) -> int:
        """The number of transactions whose markers are being written."""
        return len(self._ending) - len(self._all_written)

    # -- the decision --------------------------------------------------------------------------------------------------------

    def end(self, request: EndTxnRequest, transaction_version: int) -> CoordinatorResult:
        """The response is an EndTransactionResult. ``transaction_version`` is the client's: 2 from EndTxn v5 on, otherwise 0."""
        if not request.transactional_id:
            return _refuse(ErrorCode.INVALID_REQUEST)
        metadata = self._table.find(request.transactional_id)
        if metadata is None:
            return _refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if transaction_version >= TRANSACTION_VERSION_2:
            return self._end_version_2(request, metadata)
        return self._end_version_1(request, metadata)

    def _end_version_1(self, request: EndTxnRequest, metadata: TransactionMetadata) -> CoordinatorResult:
        # Check ownership against the committed value, so that zombies are fenced even while a write is pending.
        value = metadata.committed if metadata.pending else metadata.value
        if value is None or value.producer_id != request.producer_id:
            return _refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if value.producer_epoch != request.producer_epoch:
            return _refuse(ErrorCode.PRODUCER_FENCED)
        if metadata.pending:
            return _refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        if value.state is not TransactionState.ONGOING:
            is_empty = value.state is TransactionState.EMPTY
            return _refuse(ErrorCode.INVALID_TXN_STATE if is_empty else _answer_to_retry(value.state, request.committed))
        ended = advance(
            value,
            _prepared(request.committed),
            self._environment.clock.now_ms(),
            next_producer_id=NO_PRODUCER_ID,
            client_transaction_version=0,
        )
        result = EndTransactionResult(ErrorCode.NONE)
        return self._table.write(
            request.transactional_id, ended, result, metadata.last_producer_epoch, on_committed=self._write_markers
        )

    def _end_version_2(self, request: EndTxnRequest, metadata: TransactionMetadata) -> CoordinatorResult:
        if metadata.pending:
            return _refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        transactional_id, producer_id, producer_epoch, is_commit = request
        value = metadata.value
        if is_of_next_transaction(value, producer_id, producer_epoch):
            return _refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        is_after_overflow = (
            value.previous_producer_id == producer_id and producer_epoch == EXHAUSTED_EPOCH_MIN and value.producer_epoch == 0
        )
        is_retry = is_after_overflow or value.producer_epoch == producer_epoch + 1
        if value.producer_id != producer_id and not is_after_overflow:
            return _refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if not _is_valid_epoch(value, producer_epoch, is_retry):
            return _refuse(ErrorCode.PRODUCER_FENCED)
        if value.state in PREPARED_STATES or (value.state in COMPLETE_STATES and is_retry):
            error = _answer_to_retry(value.state, is_commit)
            if error is ErrorCode.NONE:
                return CoordinatorResult(response=EndTransactionResult(error, value.producer_id, value.producer_epoch))
            return _refuse(error)
        if value.state is not TransactionState.ONGOING and is_commit:
            return _refuse(ErrorCode.INVALID_TXN_STATE)
        ended = self._raise_epoch(value, _prepared(is_commit))
        if ended is None:
            return _refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        result = EndTransactionResult(ErrorCode.NONE, *producer_after(ended))
        return self._table.write(transactional_id, ended, result, value.producer_epoch, on_committed=self._write_markers)

    def _raise_epoch(self, value: TransactionValue, state: TransactionState) -> TransactionValue | None:
        """Return None when a new producer id is needed and none is available yet."""
        next_producer_id: int | None = NO_PRODUCER_ID
        if is_epoch_exhausted(value.producer_epoch):
            next_producer_id = self._environment.producer_ids.take()
            if next_producer_id is None:
                return None
        now_ms = self._environment.clock.now_ms()
        return advance(
            value,
            state,
            now_ms,
            producer_epoch=min(value.producer_epoch + 1, EPOCH_MAX),
            next_producer_id=next_producer_id,
            # A transaction without a partition has no start of its own, but its end needs one.
            start_timestamp_ms=value.start_timestamp_ms if value.state is TransactionState.ONGOING else now_ms,
            client_transaction_version=TRANSACTION_VERSION_2,
        )

    def fence_and_abort(
        self, transactional_id: str, metadata: TransactionMetadata, response: Any, on_no_id: Any
    ) -> CoordinatorResult:
        """Fence the producer of an ongoing transaction, and abort it. ``on_no_id`` is the response when that needs a new producer
        id and none is available yet: then nothing was done."""
        value = metadata.value
        if self._environment.transaction_version() >= TRANSACTION_VERSION_2:
            raised = self._raise_epoch(value, TransactionState.PREPARE_ABORT)
            if raised is None:
                return CoordinatorResult(response=on_no_id)
            fenced, last_producer_epoch = raised, value.producer_epoch
        else:
            fenced = advance(
                value,
                TransactionState.PREPARE_ABORT,
                self._environment.clock.now_ms(),
                producer_epoch=min(value.producer_epoch + 1, EPOCH_MAX),
                next_producer_id=NO_PRODUCER_ID,
                client_transaction_version=0,
            )
            last_producer_epoch = NO_PRODUCER_EPOCH
        return self._table.write(transactional_id, fenced, response, last_producer_epoch, on_committed=self._write_markers)

    # -- the markers ---------------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """After a load, send all markers of the transactions that a crash left half ended."""
        for transactional_id in list(self._table.prepared):
            metadata = self._table.find(transactional_id)
            if metadata is not None and not metadata.pending:
                self._write_markers(transactional_id)

    def _write_markers(self, transactional_id: str) -> None:
        """Write the markers of a decision that is committed."""
        metadata = self._table.find(transactional_id)
        if self._is_dropped or transactional_id in self._ending or metadata is None:
            return
        value = metadata.value
        assert value.state in PREPARED_STATES
        markers = self._ending[transactional_id] = MarkersToWrite(
            transaction_marker(
                value.producer_id,
                value.producer_epoch,
                is_commit=value.state is TransactionState.PREPARE_COMMIT,
                coordinator_epoch=self._environment.coordinator_epoch(transactional_id),
                transaction_version=value.client_transaction_version,
            ),
            each_partition(value.partitions),
            partial(self._written, transactional_id),
        )
        if markers.remaining:
            self._environment.send_markers(markers)
        else:
            self._last_written(transactional_id)

    def _written(self, transactional_id: str, _: TopicPartition, __: Exception | None) -> None:
        markers = self._ending.get(transactional_id)
        if markers is not None and not markers.remaining:
            self._last_written(transactional_id)

    def _last_written(self, transactional_id: str) -> None:
        self._all_written[transactional_id] = None
        timers = self._environment.timers
        if transactional_id in self._waiters:
            timers.run(partial(self._complete, transactional_id))
        elif _COMPLETE not in timers:
            timers.schedule(_COMPLETE, COMPLETE_MS, self._complete_some)

    # -- the end -------------------------------------------------------------------------------------------------------------

    def _complete_some(self) -> CoordinatorResult:
        timers = self._environment.timers
        due = list(self._all_written)
        for transactional_id in due[:COMPLETED_PER_SLICE]:
            timers.schedule((_COMPLETE, transactional_id), 0, partial(self._complete, transactional_id))
        if len(due) > COMPLETED_PER_SLICE:
            timers.schedule(_COMPLETE, 0, self._complete_some)
        return CoordinatorResult()

    def _complete(self, transactional_id: str) -> CoordinatorResult:
        if transactional_id not in self._all_written:
            return CoordinatorResult()  # A waiter has already forced the decision.
        metadata = self._table.find(transactional_id)
        assert metadata is not None
        value = completed(metadata.value, self._environment.clock.now_ms())
        del self._ending[transactional_id]
        del self._all_written[transactional_id]
        if not self._all_written:
            self._environment.timers.cancel(_COMPLETE)
        # A request that waits to begin the next transaction need not wait for the log in between: its own answer does.
        on_replayed = partial(self._wake, transactional_id, None)
        return self._table.write(transactional_id, value, None, metadata.last_producer_epoch)._replace(on_replayed=on_replayed)

    def remaining(self, transactional_id: str) -> tuple[TransactionTopic, ...] | None:
        """The partitions that still lack their marker; None unless the transaction is ending."""
        markers = self._ending.get(transactional_id)
        return None if markers is None else with_added((), markers.remaining)

    # -- requests that wait for the end --------------------------------------------------------------------------------------

    def is_ending(self, transactional_id: str) -> bool:
        """Whether the end is decided, and not complete yet."""
        metadata = self._table.find(transactional_id)
        return metadata is not None and metadata.value.state in PREPARED_STATES

    def when_ended(self, transactional_id: str, on_ended: OnEnded) -> bool:
        """Call back once the transaction that is ending has ended, even if that is not committed yet, or once the shard is
        dropped; perhaps before this returns. Returns False if there is nothing to wait for, or if too many are waiting
        already."""
        if self._waiting >= WAITERS_MAX or not self.is_ending(transactional_id):
            return False
        self._waiters.setdefault(transactional_id, []).append(on_ended)
        self._waiting += 1
        if transactional_id in self._all_written:
            self._environment.timers.run(partial(self._complete, transactional_id))
        return True

    def stop_waiting(self, transactional_id: str, on_ended: OnEnded) -> None:
        """Free the waiter's slot: a transaction may be stuck for as long as a partition is offline."""
        waiters = self._waiters.get(transactional_id, [])
        if on_ended in waiters:
            waiters.remove(on_ended)
            self._waiting -= 1
            if not waiters:
                del self._waiters[transactional_id]

    def _wake(self, transactional_id: str, error: Exception | None) -> None:
        waiters = self._waiters.pop(transactional_id, [])
        self._waiting -= len(waiters)
        for on_ended in waiters:
            on_ended(error)

    def on_dropped(self, error: Exception) -> None:
        self._is_dropped = True
        ending, self._ending, self._all_written = self._ending, {}, {}
        for markers in ending.values():
            markers.cancel()
        for transactional_id in list(self._waiters):
            self._wake(transactional_id, error)


def _refuse(error: ErrorCode) -> CoordinatorResult:
    return CoordinatorResult(response=EndTransactionResult(error))


def _prepared(is_commit: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT


def _answer_to_retry(state: TransactionState, is_commit: bool) -> ErrorCode:
    """Answer a request that is sent again while the first one is being carried out, or after it is done."""
    if state in PREPARED_STATES:
        return ErrorCode.CONCURRENT_TRANSACTIONS if state is _prepared(is_commit) else ErrorCode.INVALID_TXN_STATE
    is_same = state is (TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT)
    return ErrorCode.NONE if is_same else ErrorCode.INVALID_TXN_STATE


def _is_valid_epoch(value: TransactionValue, producer_epoch: int, is_retry: bool) -> bool:
    if value.state in PREPARED_STATES:
        return value.producer_epoch == producer_epoch + 1
    if value.state in COMPLETE_STATES and is_retry:
        return True
    return producer_epoch == value.producer_epoch
