"""Which data was aborted, and which markers have outlived their data: told batch by batch in the order of the log.

An aborted transaction is entered in the ``.txnindex`` of the segment that holds its marker. Below the first unstable offset
every transaction is decided, so the entries at hand are complete, and a transactional batch is committed when none of them
covers it.

A marker must stay as long as any batch of its transaction does, emptied ones too: without it the transaction would be open
again after a recovery. "Has data" is judged by what is read, not by what is kept, so a marker goes one cleaning after its
data at the earliest, and by then the data is gone for certain.
"""

from bisect import bisect_right
from collections.abc import Iterable

from tidelog.log.errors import CorruptIndex
from tidelog.log.transaction_index import AbortedTransaction
from tidelog.records.control import ControlType, read_control_type
from tidelog.records.header import BatchHeader


class TransactionScan:
    __slots__ = ("_by_marker", "_by_producer", "_taken_for_committed", "producers_with_data")

    def __init__(self, aborted: Iterable[AbortedTransaction], producers_with_data: Iterable[int] = ()) -> None:
        self._by_marker = {transaction.last_offset: transaction for transaction in aborted}
        self._by_producer: dict[int, list[AbortedTransaction]] = {}
        for transaction in sorted(self._by_marker.values(), key=_first_offset):
            self._by_producer.setdefault(transaction.producer_id, []).append(transaction)
        self.producers_with_data = set(producers_with_data)
        self._taken_for_committed: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """For each batch of records."""
        if not header.is_transactional:
            return False
        self.producers_with_data.add(header.producer_id)
        transactions = self._by_producer.get(header.producer_id, [])
        index = bisect_right(transactions, header.base_offset, key=_first_offset) - 1
        if index >= 0 and header.base_offset <= transactions[index].last_offset:
            return True
        if header.record_count:
            self._taken_for_committed.add(header.producer_id)
        return False

    def end_transaction(self, header: BatchHeader, batch: memoryview) -> tuple[bool, AbortedTransaction | None]:
        """For each control batch: (may it go once its horizon has passed?, the index entry that must be kept with it)."""
        if not header.record_count:
            return True, None
        control_type = read_control_type(batch, 0, header)
        if control_type not in (ControlType.ABORT, ControlType.COMMIT):
            return False, None
        if header.producer_id not in self.producers_with_data:
            return True, None
        self.producers_with_data.discard(header.producer_id)
        had_committed_records = header.producer_id in self._taken_for_committed
        self._taken_for_committed.discard(header.producer_id)
        if control_type is ControlType.COMMIT:
            return False, None
        if had_committed_records:
            # Better no compaction than one that prefers aborted records to committed ones.
            raise CorruptIndex(
                f"producer {header.producer_id} aborted a transaction at offset {header.base_offset}, and no index says so"
            )
        return False, self._by_marker.get(header.base_offset)


def _first_offset(transaction: AbortedTransaction) -> int:
    return transaction.first_offset
