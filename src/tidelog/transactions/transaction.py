"""One transactional id: its state of record, what is on the way to the log, and the steps that its values take.

``value`` is what the log holds, replaced whole by each replayed record and never changed in place. A record is replayed before it
is committed; until then ``pending`` counts it, and ``committed`` is the value before it. Nobody may act on an id in between,
except to add partitions, to a transaction that is ongoing or to a new one when the last one has ended: the answer to that waits
for its record, which is behind the others.
"""

from collections.abc import Container, Iterable, Iterator
from typing import Any

from tidelog.records.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.records.topic_partition import TopicPartition
from tidelog.transactions.records import TopicPartitions, TransactionValue
from tidelog.transactions.state import PREPARED_STATES, VALID_PREVIOUS_STATES, TransactionState

# Kafka's: no producer is given the last epoch, so that whoever has the last but one can still be fenced.
EPOCH_MAX = 2**15 - 1
EXHAUSTED_EPOCH_MIN = EPOCH_MAX - 1

# Clients that raise their epoch with every transaction (KIP-890).
TRANSACTION_VERSION_2 = 2

# So many are looked through faster than a set of them is made.
FEW_PARTITIONS = 16


class TransactionMetadata:
    __slots__ = ("committed", "last_producer_epoch", "pending", "value")

    def __init__(self, value: TransactionValue) -> None:
        self.value = value
        self.last_producer_epoch = NO_PRODUCER_EPOCH
        self.pending = 0
        self.committed: TransactionValue | None = None
        """While something is pending: the value before all of it; None for an id that was not there."""


def is_epoch_exhausted(producer_epoch: int) -> bool:
    return producer_epoch >= EXHAUSTED_EPOCH_MIN


def advance(value: TransactionValue, state: TransactionState, now_ms: int, **changes: Any) -> TransactionValue:
    """The next value. A step that the table of states does not have is a mistake in this package."""
    assert value.state in VALID_PREVIOUS_STATES[state], f"{value.state.name} to {state.name}"
    return value._replace(state=state, previous_producer_id=value.producer_id, last_update_timestamp_ms=now_ms, **changes)


def completed(value: TransactionValue, now_ms: int) -> TransactionValue:
    """All markers are written. The producer id whose epochs are used up gives way to the next one."""
    is_commit = value.state is TransactionState.PREPARE_COMMIT
    producer_id, producer_epoch = _producer_after(value)
    return advance(
        value,
        TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        now_ms,
        next_producer_id=NO_PRODUCER_ID,
        partitions=(),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def _producer_after(value: TransactionValue) -> tuple[int, int]:
    """Id and epoch of whoever has ended this transaction."""
    if value.client_transaction_version >= TRANSACTION_VERSION_2 and value.next_producer_id != NO_PRODUCER_ID:
        return value.next_producer_id, 0
    return value.producer_id, value.producer_epoch


def is_of_next_transaction(value: TransactionValue, producer_id: int, producer_epoch: int) -> bool:
    """Whether a request that comes while a transaction is being ended is about the one after it.

    A version 2 producer knows from the answer to its EndTxn who it is then, and that answer does not wait for the markers."""
    return value.state in PREPARED_STATES and _producer_after(value) == (producer_id, producer_epoch)


def missing_from(partitions: tuple[TopicPartitions, ...], asked: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Those of ``asked`` that are not among ``partitions``. There may be thousands of both."""
    by_topic: dict[str, Container[int]] = {}
    is_few = sum([len(indexes) for _, indexes in partitions]) <= FEW_PARTITIONS
    for topic, indexes in partitions:
        by_topic[topic] = indexes if is_few else frozenset(indexes)
    return [each for each in asked if each[1] not in by_topic.get(each[0], ())]


def with_added(partitions: tuple[TopicPartitions, ...], added: Iterable[TopicPartition]) -> tuple[TopicPartitions, ...]:
    """In the order in which they came, each once, by topic."""
    by_topic = {topic: dict.fromkeys(indexes) for topic, indexes in partitions}
    for topic, partition in added:
        by_topic.setdefault(topic, {})[partition] = None
    return tuple([TopicPartitions(topic, tuple(indexes)) for topic, indexes in by_topic.items()])


def each_partition(partitions: Iterable[TopicPartitions]) -> Iterator[TopicPartition]:
    for topic, indexes in partitions:
        for partition in indexes:
            yield topic, partition


def encoded_bytes_max(transactional_id: str, partitions: tuple[TopicPartitions, ...]) -> int:
    """No record of this id and these partitions is larger, whatever its state and version."""
    # Every fixed and tagged field, key and value, the record's own header, and the lengths of the arrays.
    fixed = 128 + 4 * len(transactional_id)
    return fixed + sum([4 * len(topic) + 12 + 4 * len(indexes) for topic, indexes in partitions])
