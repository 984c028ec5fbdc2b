"""From a decision that is durable to the end of the transaction: markers to its partitions, then CompleteCommit or CompleteAbort.

The end need not be of record at once. Whoever begins the next transaction needs it, and both are then one batch; other ends
follow after a few milliseconds. A crash in between is like one before the last marker: all are sent again.

What is kept is which partitions are still without their marker. It is not in the log: after a crash all markers are sent again. A
partition that has its marker takes it once more without harm, because the producer cannot have begun anything new.

Invariants: no marker before its decision is committed; nothing is sent any more once the shard is dropped; one sending per id.
"""

from collections.abc import Callable
from functools import partial

from tidelog.coordinator.machine import Cancellable, CoordinatorResult
from tidelog.records.topic_partition import TopicPartition
from tidelog.transactions.environment import MarkersToSend, TransactionEnvironment
from tidelog.transactions.records import TopicPartitions, TransactionRecord
from tidelog.transactions.state import PREPARED_STATES, TransactionState
from tidelog.transactions.table import TransactionTable
from tidelog.transactions.transaction import completed, each_partition, with_added

# Requests that wait for the end of a transaction instead of being told to come again.
WAITERS_MAX = 10_000
# Longer than a producer takes from the answer to its commit to the next begin, and short for whoever looks at the states.
COMPLETE_MS = 10
# Each is a record: about a millisecond.
COMPLETED_PER_SLICE = 50

_COMPLETE = "complete"

OnSettled = Callable[[Exception | None], None]


class _Sending:
    __slots__ = ("handle", "remaining")

    def __init__(self, remaining: dict[TopicPartition, None]) -> None:
        self.remaining = remaining
        self.handle: Cancellable | None = None


class TransactionMarkers:
    __slots__ = ("_environment", "_is_dropped", "_marked", "_sending", "_table", "_waiters", "_waiting")

    def __init__(self, environment: TransactionEnvironment, table: TransactionTable) -> None:
        self._environment = environment
        self._table = table
        self._is_dropped = False
        self._sending: dict[str, _Sending] = {}
        # Of those: all their markers are committed, and their end is not of record yet.
        self._marked: dict[str, None] = {}
        self._waiters: dict[str, list[OnSettled]] = {}
        self._waiting = 0

    def __len__(self) -> int:
        """How many transactions have markers on their way."""
        return len(self._sending) - len(self._marked)

    def begin(self, transactional_id: str) -> None:
        """The decision is committed."""
        metadata = self._table.find(transactional_id)
        if self._is_dropped or transactional_id in self._sending or metadata is None:
            return
        value = metadata.value
        assert value.state in PREPARED_STATES
        sending = self._sending[transactional_id] = _Sending(dict.fromkeys(each_partition(value.partitions)))
        if not sending.remaining:
            self._all_marked(transactional_id)
            return
        markers = MarkersToSend(
            transactional_id,
            value.producer_id,
            value.producer_epoch,
            self._environment.coordinator_epoch(transactional_id),
            value.state is TransactionState.PREPARE_COMMIT,
            value.partitions,
            value.client_transaction_version,
        )
        sending.handle = self._environment.send_markers(markers, partial(self._on_marked, transactional_id, sending))

    def _on_marked(self, transactional_id: str, sending: _Sending, topic: str, index: int) -> None:
        partition = topic, index
        if self._sending.get(transactional_id) is not sending or partition not in sending.remaining:
            return
        del sending.remaining[partition]
        if not sending.remaining:
            # It knows this sending: without this the two would wait for the cycle collector.
            sending.handle = None
            self._all_marked(transactional_id)

    def _all_marked(self, transactional_id: str) -> None:
        self._marked[transactional_id] = None
        timers = self._environment.timers
        if transactional_id in self._waiters:
            timers.run(partial(self._complete, transactional_id))
        elif _COMPLETE not in timers:
            timers.schedule(_COMPLETE, COMPLETE_MS, self._complete_some)

    def _complete_some(self) -> CoordinatorResult:
        timers = self._environment.timers
        marked = list(self._marked)
        for transactional_id in marked[:COMPLETED_PER_SLICE]:
            timers.schedule((_COMPLETE, transactional_id), 0, partial(self._complete, transactional_id))
        if len(marked) > COMPLETED_PER_SLICE:
            timers.schedule(_COMPLETE, 0, self._complete_some)
        return CoordinatorResult()

    def _complete(self, transactional_id: str) -> CoordinatorResult:
        if transactional_id not in self._marked:
            return CoordinatorResult()  # Somebody could not wait for that.
        metadata = self._table.find(transactional_id)
        assert metadata is not None
        value = completed(metadata.value, self._environment.clock.now_ms())
        version = min(1, self._environment.transaction_version())
        record = TransactionRecord(transactional_id, value, version, metadata.last_producer_epoch)
        del self._sending[transactional_id]
        del self._marked[transactional_id]
        if not self._marked:
            self._environment.timers.cancel(_COMPLETE)
        # Who waits to begin the next transaction need not wait for the log in between: its answer does.
        return CoordinatorResult(
            [record],
            on_committed=partial(self._completed, transactional_id),
            on_replayed=partial(self._wake, transactional_id, None),
        )

    def _completed(self, transactional_id: str, error: Exception | None) -> None:
        if error is None:
            self._table.settle(transactional_id)

    def remaining(self, transactional_id: str) -> tuple[TopicPartitions, ...] | None:
        """The partitions that are still without their marker; None when none is being sent."""
        sending = self._sending.get(transactional_id)
        return None if sending is None else with_added((), sending.remaining)

    # -- who waits -----------------------------------------------------------------------------------------------------------

    def is_ending(self, transactional_id: str) -> bool:
        """Whether a decided end is not complete yet."""
        metadata = self._table.find(transactional_id)
        return metadata is not None and metadata.value.state in PREPARED_STATES

    def when_settled(self, transactional_id: str, on_settled: OnSettled) -> bool:
        """Call back once the transaction that is being ended has ended, though that may not be committed yet, or the shard is
        gone; perhaps at once. False: there is nothing to wait for, or too many wait."""
        if self._waiting >= WAITERS_MAX or not self.is_ending(transactional_id):
            return False
        self._waiters.setdefault(transactional_id, []).append(on_settled)
        self._waiting += 1
        if transactional_id in self._marked:
            self._environment.timers.run(partial(self._complete, transactional_id))
        return True

    def stop_waiting(self, transactional_id: str, on_settled: OnSettled) -> None:
        """Who waits no longer must not keep others from it: a transaction may be stuck for as long as a partition is offline."""
        waiters = self._waiters.get(transactional_id, [])
        if on_settled in waiters:
            waiters.remove(on_settled)
            self._waiting -= 1
            if not waiters:
                del self._waiters[transactional_id]

    def _wake(self, transactional_id: str, error: Exception | None) -> None:
        waiters = self._waiters.pop(transactional_id, [])
        self._waiting -= len(waiters)
        for on_settled in waiters:
            on_settled(error)

    def on_dropped(self, error: Exception) -> None:
        self._is_dropped = True
        sending, self._sending, self._marked = self._sending, {}, {}
        for each in sending.values():
            if each.handle is not None:
                each.handle.cancel()
        for transactional_id in list(self._waiters):
            self._wake(transactional_id, error)
