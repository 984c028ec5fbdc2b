"""Hanging transactions: they are open in a partition, and no coordinator is going to end them.

They arise if records of a transaction are written after its end, by clients and brokers that do not verify them, or if the state
of the coordinator is lost. Readers with read_committed wait forever at the first record of such a transaction, and so does
compaction.

They are found as Kafka's own tool finds them: the last record of an open transaction is older than the longest time-out that a
transaction may have, and no coordinator knows the producer id, or its transaction does not (or no longer) include the partition.
Finally the partitions are asked once more, because a transaction that has ended in between was not hanging.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidelog.client.transactions.admin import (
    BATCH_SIZE_MAX,
    AbortSpecification,
    DescribedProducers,
    ProducerDescription,
    TransactionAdmin,
    TransactionDescription,
)
from tidelog.client.wire.errors import ClientError, UnknownPartition


class OpenTransaction(NamedTuple):
    topic: str
    partition: int
    producer: ProducerDescription

    @property
    def abort(self) -> AbortSpecification:
        producer = self.producer
        return AbortSpecification(
            self.topic, self.partition, producer.producer_id, producer.producer_epoch, producer.coordinator_epoch
        )

    @property
    def identity(self) -> tuple[str, int, int, int]:
        return self.topic, self.partition, self.producer.producer_id, self.producer.transaction_start_offset


class TransactionVerdict(NamedTuple):
    """An open transaction, and what the coordinators say about it."""

    transaction: OpenTransaction
    description: TransactionDescription | None
    """The description of the producer's transactional id; None if no coordinator knows the producer."""

    @property
    def is_hanging(self) -> bool:
        partition = self.transaction.topic, self.transaction.partition
        return self.description is None or partition not in self.description.partitions

    @property
    def reason(self) -> str:
        if self.description is None:
            return "no coordinator knows the producer"
        name, state = self.description.transactional_id, self.description.state
        return f"{name} is {state}" + (", without this partition" if self.is_hanging else "")


class HangingSearch(NamedTuple):
    hanging: list[TransactionVerdict]
    partitions: int
    """The number of partitions that were searched."""
    open_transactions: int
    """The number of transactions that were open in them, whatever their age."""
    failures: dict[tuple[str, int], ClientError]


def find_hanging(
    admin: TransactionAdmin, partitions: Sequence[tuple[str, int]], *, longest_timeout_ms: int, now_ms: int
) -> HangingSearch:
    described = admin.describe_producers(partitions)
    opened = open_transactions(described)
    candidates = [each for each in opened if now_ms - each.producer.last_timestamp_ms > longest_timeout_ms]
    hanging = [verdict for verdict in judge(admin, candidates) if verdict.is_hanging]
    if hanging:
        again = admin.describe_producers((each.transaction.topic, each.transaction.partition) for each in hanging)
        still_open = {each.identity for each in open_transactions(again)}
        hanging = [each for each in hanging if each.transaction.identity in still_open]
    # A topic that was deleted in the meantime has no transactions.
    failures = {place: error for place, error in described.failures.items() if not isinstance(error, UnknownPartition)}
    return HangingSearch(hanging, len(described.producers), len(opened), failures)


def open_transactions(described: DescribedProducers) -> list[OpenTransaction]:
    """The open transactions, sorted by partition and first offset."""
    found = [
        OpenTransaction(topic, partition, producer)
        for (topic, partition), producers in described.producers.items()
        for producer in producers
        if producer.has_open_transaction
    ]
    return sorted(found, key=lambda each: (each.topic, each.partition, each.producer.transaction_start_offset))


def judge(admin: TransactionAdmin, transactions: Sequence[OpenTransaction]) -> list[TransactionVerdict]:
    if not transactions:
        return []
    ids = _transactional_ids(admin, {each.producer.producer_id for each in transactions})
    descriptions = admin.describe_transactions(sorted(set(ids.values())))
    return [TransactionVerdict(each, _description(each.producer.producer_id, ids, descriptions)) for each in transactions]


def _transactional_ids(admin: TransactionAdmin, producer_ids: Iterable[int]) -> dict[int, str]:
    wanted = sorted(producer_ids)
    found: dict[int, str] = {}
    for start in range(0, len(wanted), BATCH_SIZE_MAX):
        for listing in admin.list_transactions(producer_ids=wanted[start : start + BATCH_SIZE_MAX]):
            found[listing.producer_id] = listing.transactional_id
    return found


def _description(
    producer_id: int, ids: Mapping[int, str], descriptions: Mapping[str, TransactionDescription]
) -> TransactionDescription | None:
    """None if the id belongs to another producer by now, because that says nothing about this one."""
    description = descriptions.get(ids.get(producer_id, ""))
    return description if description is not None and description.producer_id == producer_id else None
