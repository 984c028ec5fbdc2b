"""All transactional ids of one shard. Only ``replay`` changes what the log holds."""

from collections.abc import Iterator

from tidelog.transactions.records import TransactionRecord, TransactionValue
from tidelog.transactions.state import PREPARED_STATES, TransactionState
from tidelog.transactions.transaction import TransactionMetadata


class TransactionTable:
    """``ongoing`` and ``prepared`` are the ids in those states: time-outs and markers must not look through all ids."""

    __slots__ = ("_by_id", "is_live", "ongoing", "prepared")

    def __init__(self) -> None:
        self._by_id: dict[str, TransactionMetadata] = {}
        self.ongoing: dict[str, None] = {}
        self.prepared: dict[str, None] = {}
        self.is_live = False
        """Loaded: what is replayed from now on was decided here, and is not committed yet."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def items(self) -> Iterator[tuple[str, TransactionMetadata]]:
        return iter(self._by_id.items())

    def find(self, transactional_id: str) -> TransactionMetadata | None:
        return self._by_id.get(transactional_id)

    def replay(self, record: TransactionRecord) -> None:
        transactional_id, value = record.transactional_id, record.value
        if value is None:
            self._by_id.pop(transactional_id, None)
            self._index(transactional_id, None)
            return
        metadata = self._by_id.get(transactional_id)
        before: TransactionValue | None = None
        if metadata is None:
            metadata = self._by_id[transactional_id] = TransactionMetadata(value)
        else:
            before = metadata.value
            metadata.value = value
        metadata.last_producer_epoch = record.last_producer_epoch
        if self.is_live:
            if not metadata.pending:
                metadata.committed = before
            metadata.pending += 1
        self._index(transactional_id, value.state)

    def _index(self, transactional_id: str, state: TransactionState | None) -> None:
        for index, is_in in ((self.ongoing, state is TransactionState.ONGOING), (self.prepared, state in PREPARED_STATES)):
            if is_in:
                index[transactional_id] = None
            else:
                index.pop(transactional_id, None)

    def settle(self, transactional_id: str) -> None:
        """One more of its records is committed."""
        metadata = self._by_id[transactional_id]
        metadata.pending -= 1
        if not metadata.pending:
            metadata.committed = None
