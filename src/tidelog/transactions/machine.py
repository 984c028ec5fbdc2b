"""The state machine of one shard of the transaction coordinator.

Operations are decisions for ``Shard.write``; queries are for ``Shard.read``. Each part keeps one concept; this joins them.
"""

from collections.abc import Sequence

from tidelog.coordinator.machine import CoordinatorResult
from tidelog.records.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.records.topic_partition import TopicPartition
from tidelog.transactions.add_partitions import add_offsets, add_partitions, verify_partitions
from tidelog.transactions.decisions import Decisions
from tidelog.transactions.end_transaction import end_transaction
from tidelog.transactions.environment import TransactionEnvironment
from tidelog.transactions.expiry import TransactionalIdExpiry
from tidelog.transactions.init_producer_id import init_producer_id
from tidelog.transactions.listing import (
    DescribedTransaction,
    ListedTransaction,
    TransactionFilter,
    describe_transaction,
    list_transactions,
)
from tidelog.transactions.markers import OnSettled, TransactionMarkers
from tidelog.transactions.records import TransactionRecord
from tidelog.transactions.table import TransactionTable
from tidelog.transactions.time_out import TransactionTimeOuts
from tidelog.wire.errors import ErrorCode


class TransactionMachine:
    __slots__ = ("_decisions", "_expiry", "_is_tail_committed", "_time_outs", "environment", "markers", "table")

    def __init__(self, environment: TransactionEnvironment) -> None:
        self.environment = environment
        self.table = TransactionTable()
        self.markers = TransactionMarkers(environment, self.table)
        self._decisions = Decisions(environment, self.table, self.markers)
        self._time_outs = TransactionTimeOuts(self._decisions)
        self._expiry = TransactionalIdExpiry(self._decisions)
        self._is_tail_committed = False

    # -- the runtime ---------------------------------------------------------------------------------------------------------

    def replay(self, record: TransactionRecord, offset: int, producer_id: int, producer_epoch: int) -> None:  # noqa: ARG002 - a coordinator's own records are in no transaction
        self.table.replay(record)

    def replay_end_transaction(self, producer_id: int, is_commit: bool) -> None:
        """Nobody writes to this topic in a transaction."""

    def on_loaded(self) -> None:
        self.table.is_live = True
        self._time_outs.start()
        self._expiry.start()
        # As a decision, because it then waits until all that was loaded is committed: it may be that it was not.
        self.environment.timers.schedule("resume", 0, lambda: CoordinatorResult(on_committed=self._resume))

    def _resume(self, error: Exception | None) -> None:
        """The transactions that a crash left half ended: all their markers again."""
        if error is not None:
            return
        self._is_tail_committed = True
        for transactional_id in list(self.table.prepared):
            metadata = self.table.find(transactional_id)
            if metadata is not None and not metadata.pending:
                self.markers.begin(transactional_id)

    def on_dropped(self, error: Exception) -> None:
        self.markers.on_dropped(error)

    # -- operations ----------------------------------------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
    ) -> CoordinatorResult:
        return init_producer_id(self._decisions, transactional_id, timeout_ms, producer_id, producer_epoch)

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        transaction_version: int = 0,
    ) -> CoordinatorResult:
        return add_partitions(self._decisions, transactional_id, producer_id, producer_epoch, partitions, transaction_version)

    def add_offsets(
        self, transactional_id: str, producer_id: int, producer_epoch: int, group_id: str, offsets_partitions: int
    ) -> CoordinatorResult:
        return add_offsets(self._decisions, transactional_id, producer_id, producer_epoch, group_id, offsets_partitions)

    def end_transaction(
        self, transactional_id: str, producer_id: int, producer_epoch: int, is_commit: bool, transaction_version: int = 0
    ) -> CoordinatorResult:
        return end_transaction(self._decisions, transactional_id, producer_id, producer_epoch, is_commit, transaction_version)

    # -- queries -------------------------------------------------------------------------------------------------------------

    def verify_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        return verify_partitions(self.table, transactional_id, producer_id, producer_epoch, partitions)

    def is_committed(self, transactional_id: str) -> bool:
        """Whether a query about this id may be answered at once, without the shard's wait for the log."""
        return self._is_tail_committed and not self.is_pending(transactional_id)

    def is_pending(self, transactional_id: str) -> bool:
        """Whether a decision about this id is not committed yet."""
        metadata = self.table.find(transactional_id)
        return metadata is not None and bool(metadata.pending)

    def is_ending(self, transactional_id: str) -> bool:
        return self.markers.is_ending(transactional_id)

    def when_settled(self, transactional_id: str, on_settled: OnSettled) -> bool:
        return self.markers.when_settled(transactional_id, on_settled)

    def stop_waiting(self, transactional_id: str, on_settled: OnSettled) -> None:
        self.markers.stop_waiting(transactional_id, on_settled)

    def list_transactions(self, wanted: TransactionFilter) -> list[ListedTransaction]:
        return list_transactions(self.table, wanted, self.environment.clock.now_ms())

    def describe_transaction(self, transactional_id: str) -> DescribedTransaction | None:
        return describe_transaction(self.table, self.markers, transactional_id)
