"""The transactional ids of one shard: the state of each, and the steps that it may take.

``TransactionMetadata.value`` is what the log holds. Each replayed record replaces it as a whole; nothing changes it in place. A
record is replayed before it is committed: until then ``pending`` counts it, and ``committed`` keeps the value before it. While a
record is pending, the only requests that may build on it are those that add partitions, either to the ongoing transaction or to
a new one that follows a completed one: their answers wait for their own record, which is behind the others in the log.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from typing import Any

from tidelog.coordinator.machine import CoordinatorResult
from tidelog.records.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.records.topic_partition import TopicPartition
from tidelog.transactions.records import TransactionRecord, TransactionTopic, TransactionValue
from tidelog.transactions.state import PREPARED_STATES, VALID_PREVIOUS_STATES, TransactionState

# Kafka never gives out the last epoch, so that a producer with the last but one can still be fenced.
EPOCH_MAX = 2**15 - 1
EXHAUSTED_EPOCH_MIN = EPOCH_MAX - 1

# Clients that raise their epoch with every transaction (KIP-890).
TRANSACTION_VERSION_2 = 2

# Up to this many partitions, a linear search is faster than building a set.
FEW_PARTITIONS = 16

# A generous bound for all fixed and tagged fields of key and value, the record's own header and the lengths of its arrays.
RECORD_FIXED_BYTES_MAX = 128
TOPIC_FIXED_BYTES_MAX = 12
CHARACTER_BYTES_MAX = 4
PARTITION_BYTES = 4


OnRecordCommitted = Callable[[str], None]


class TransactionMetadata:
    __slots__ = ("committed", "last_producer_epoch", "pending", "value")

    def __init__(self, value: TransactionValue) -> None:
        self.value = value
        self.last_producer_epoch = NO_PRODUCER_EPOCH
        self.pending = 0
        self.committed: TransactionValue | None = None
        """While records are pending: the value before all of them, or None if the id did not exist."""


class TransactionTable:
    """All transactional ids of one shard. Only ``replay`` changes their values.

    ``ongoing`` and ``prepared`` index the ids in those states, so that time-outs and markers need not scan all ids.
    """

    __slots__ = ("_by_id", "_is_live", "_transaction_version", "ongoing", "prepared")

    def __init__(self, transaction_version: Callable[[], int]) -> None:
        """``transaction_version`` gives the finalized level of that feature, which decides how records are encoded."""
        self._transaction_version = transaction_version
        self._by_id: dict[str, TransactionMetadata] = {}
        self.ongoing: dict[str, None] = {}
        self.prepared: dict[str, None] = {}
        self._is_live = False

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def items(self) -> Iterator[tuple[str, TransactionMetadata]]:
        return iter(self._by_id.items())

    def find(self, transactional_id: str) -> TransactionMetadata | None:
        return self._by_id.get(transactional_id)

    def write(
        self,
        transactional_id: str,
        value: TransactionValue,
        response: Any,
        last_producer_epoch: int = NO_PRODUCER_EPOCH,
        on_committed: OnRecordCommitted | None = None,
    ) -> CoordinatorResult:
        """Decide that ``value`` is next. ``on_committed`` gets the id once its record is committed, and not before."""
        record = TransactionRecord(transactional_id, value, self.record_version, last_producer_epoch)
        return CoordinatorResult([record], response, partial(self._committed, transactional_id, on_committed))

    @property
    def record_version(self) -> int:
        return min(1, self._transaction_version())

    def go_live(self) -> None:
        """Called when the log is loaded: records that are replayed from now on were decided here and are not committed yet."""
        self._is_live = True

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
        if self._is_live:
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

    def _committed(self, transactional_id: str, on_committed: OnRecordCommitted | None, error: Exception | None) -> None:
        if error is not None:
            return
        metadata = self._by_id[transactional_id]
        metadata.pending -= 1
        if not metadata.pending:
            metadata.committed = None
        if on_committed is not None:
            on_committed(transactional_id)


# -- the steps of a value ----------------------------------------------------------------------------------------------------


def is_epoch_exhausted(producer_epoch: int) -> bool:
    return producer_epoch >= EXHAUSTED_EPOCH_MIN


def advance(value: TransactionValue, state: TransactionState, now_ms: int, **changes: Any) -> TransactionValue:
    """Return the next value. A transition that the table of states lacks is a bug in this package."""
    assert value.state in VALID_PREVIOUS_STATES[state], f"{value.state.name} to {state.name}"
    return value._replace(state=state, previous_producer_id=value.producer_id, last_update_timestamp_ms=now_ms, **changes)


def completed(value: TransactionValue, now_ms: int) -> TransactionValue:
    """Return the value after all markers are written. A producer id whose epochs are used up is replaced by the next one."""
    is_commit = value.state is TransactionState.PREPARE_COMMIT
    producer_id, producer_epoch = producer_after(value)
    return advance(
        value,
        TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        now_ms,
        next_producer_id=NO_PRODUCER_ID,
        partitions=(),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def producer_after(value: TransactionValue) -> tuple[int, int]:
    """The id and epoch with which the producer continues after this transaction."""
    if value.client_transaction_version >= TRANSACTION_VERSION_2 and value.next_producer_id != NO_PRODUCER_ID:
        return value.next_producer_id, 0
    return value.producer_id, value.producer_epoch


def is_of_next_transaction(value: TransactionValue, producer_id: int, producer_epoch: int) -> bool:
    """Whether a request that arrives while a transaction is ending is about the transaction after it.

    A version 2 producer learns its next id and epoch from the answer to EndTxn, which does not wait for the markers."""
    return value.state in PREPARED_STATES and producer_after(value) == (producer_id, producer_epoch)


# -- the partitions of a transaction -----------------------------------------------------------------------------------------


def missing_from(partitions: tuple[TransactionTopic, ...], requested: Iterable[TopicPartition]) -> list[TopicPartition]:
    """The requested partitions that are not among ``partitions``. There may be thousands of both."""
    by_topic: dict[str, Container[int]] = {}
    is_few = sum([len(indexes) for _, indexes in partitions]) <= FEW_PARTITIONS
    for topic, indexes in partitions:
        by_topic[topic] = indexes if is_few else frozenset(indexes)
    return [each for each in requested if each[1] not in by_topic.get(each[0], ())]


def with_added(partitions: tuple[TransactionTopic, ...], added: Iterable[TopicPartition]) -> tuple[TransactionTopic, ...]:
    """Group the partitions by topic, in the order of their arrival, without duplicates."""
    by_topic = {topic: dict.fromkeys(indexes) for topic, indexes in partitions}
    for topic, partition in added:
        by_topic.setdefault(topic, {})[partition] = None
    return tuple([TransactionTopic(topic, tuple(indexes)) for topic, indexes in by_topic.items()])


def each_partition(partitions: Iterable[TransactionTopic]) -> Iterator[TopicPartition]:
    for topic, indexes in partitions:
        for partition in indexes:
            yield topic, partition


def encoded_bytes_max(transactional_id: str, partitions: tuple[TransactionTopic, ...]) -> int:
    """An upper bound for the size of any record of this id with these partitions, whatever its state and version."""
    return (
        RECORD_FIXED_BYTES_MAX
        + CHARACTER_BYTES_MAX * len(transactional_id)
        + sum(
            [
                CHARACTER_BYTES_MAX * len(topic) + TOPIC_FIXED_BYTES_MAX + PARTITION_BYTES * len(indexes)
                for topic, indexes in partitions
            ]
        )
    )
