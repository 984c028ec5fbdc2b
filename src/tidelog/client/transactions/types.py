"""What the calls give and take."""

from typing import NamedTuple

from tidelog.client.transactions.brokers import TopicPartition
from tidelog.client.transactions.errors import ClientError

# The states that a coordinator may name, as it spells them.
STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)


class TransactionListing(NamedTuple):
    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class TransactionDescription(NamedTuple):
    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int
    """When the transaction began; -1 when none is under way."""
    partitions: tuple[TopicPartition, ...]
    """Those that wait for the end of the transaction."""

    @property
    def handle(self) -> "TransactionHandle":
        return TransactionHandle(self.transactional_id, self.producer_id, self.producer_epoch)


class TransactionHandle(NamedTuple):
    """What it takes to end a transaction: the producer that has it open, and under which epoch."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class ProducerState(NamedTuple):
    """What a partition knows of one producer."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int
    """-1: it has no transaction open here."""

    @property
    def has_open_transaction(self) -> bool:
        return self.transaction_start_offset >= 0


class DescribedProducers(NamedTuple):
    producers: dict[TopicPartition, list[ProducerState]]
    failures: dict[TopicPartition, ClientError]
    """Partitions that could not be asked."""


class AbortSpecification(NamedTuple):
    """The one transaction of a partition that is to end."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """That of the last marker that the producer has in the partition; -1 when it has none."""
