"""From a decision that is durable to the end of the transaction: markers to its partitions, then CompleteCommit or CompleteAbort.

What is kept is which partitions are still without their marker. It is not in the log: after a crash all markers are sent again. A
partition that has its marker takes it once more without harm, because the producer cannot have begun anything new.

Invariants: no marker before its decision is committed; nothing is sent any more once the shard is dropped; one sending per id.
"""

from collections.abc import Callable

from tidelog.coordinator.machine import Cancellable, CoordinatorResult
from tidelog.transactions.environment import MarkersToSend, TransactionEnvironment
from tidelog.transactions.records import TopicPartitions, TransactionRecord
from tidelog.transactions.state import PREPARED_STATES, TransactionState
from tidelog.transactions.table import TransactionTable
from tidelog.transactions.transaction import TopicPartition, completed, each_partition, with_added

# Requests that wait for the end of a transaction instead of being told to come again.
WAITERS_MAX = 10_000

OnSettled = Callable[[Exception | None], None]


class _Sending:
    __slots__ = ("handle", "remaining")

    def __init__(self, remaining: dict[TopicPartition, None]) -> None:
        self.remaining = remaining
        self.handle: Cancellable | None = None


class TransactionMarkers:
    __slots__ = ("_environment", "_is_dropped", "_sending", "_table", "_waiters", "_waiting")

    def __init__(self, environment: TransactionEnvironment, table: TransactionTable) -> None:
        self._environment = environment
        self._table = table
        self._is_dropped = False
        self._sending: dict[str, _Sending] = {}
        self._waiters: dict[str, list[OnSettled]] = {}
        self._waiting = 0

    def __len__(self) -> int:
        """How many transactions have markers on their way."""
        return len(self._sending)

    def begin(self, transactional_id: str) -> None:
        """The decision is committed."""
        metadata = self._table.find(transactional_id)
        if self._is_dropped or transactional_id in self._sending or metadata is None:
            return
        value = metadata.value
        assert value.state in PREPARED_STATES
        sending = self._sending[transactional_id] = _Sending(dict.fromkeys(each_partition(value.partitions)))
        if not sending.remaining:
            # Soon, because the shard is in the middle of telling who waited for the decision.
            self._environment.timers.schedule(("complete", transactional_id), 0, lambda: self._complete(transactional_id))
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
        sending.handle = self._environment.send_markers(
            markers, lambda topic, partition: self._marked(transactional_id, sending, (topic, partition))
        )

    def _marked(self, transactional_id: str, sending: _Sending, partition: TopicPartition) -> None:
        if self._sending.get(transactional_id) is not sending or partition not in sending.remaining:
            return
        del sending.remaining[partition]
        if not sending.remaining:
            self._environment.timers.run(lambda: self._complete(transactional_id))

    def _complete(self, transactional_id: str) -> CoordinatorResult:
        metadata = self._table.find(transactional_id)
        assert metadata is not None
        value = completed(metadata.value, self._environment.clock.now_ms())
        version = min(1, self._environment.transaction_version())
        record = TransactionRecord(transactional_id, value, version, metadata.last_producer_epoch)
        del self._sending[transactional_id]

        def committed(error: Exception | None) -> None:
            if error is None:
                self._table.settle(transactional_id)

        # Who waits to begin the next transaction need not wait for the log in between: its answer does.
        return CoordinatorResult([record], on_committed=committed, on_replayed=lambda: self._wake(transactional_id, None))

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
        gone. False: there is nothing to wait for, or too many wait."""
        if self._waiting >= WAITERS_MAX or not self.is_ending(transactional_id):
            return False
        self._waiters.setdefault(transactional_id, []).append(on_settled)
        self._waiting += 1
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
        sending, self._sending = self._sending, {}
        for each in sending.values():
            if each.handle is not None:
                each.handle.cancel()
        for transactional_id in list(self._waiters):
            self._wake(transactional_id, error)
