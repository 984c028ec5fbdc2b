"""The arguments and results of the calls about transactions."""

from typing import NamedTuple

from tidelog.client.wire.errors import ClientError

# The states of a transaction, as coordinators spell them.
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
    partitions: tuple[tuple[str, int], ...]
    """The partitions that wait for the end of the transaction."""

    @property
    def handle(self) -> "TransactionHandle":
        return TransactionHandle(self.transactional_id, self.producer_id, self.producer_epoch)


class TransactionHandle(NamedTuple):
    """The producer that has a transaction open, and its epoch: what is needed to end the transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class ProducerDescription(NamedTuple):
    """What a partition knows about one producer."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int
    """-1 if the producer has no open transaction in this partition."""

    @property
    def has_open_transaction(self) -> bool:
        return self.transaction_start_offset >= 0


class DescribedProducers(NamedTuple):
    producers: dict[tuple[str, int], list[ProducerDescription]]
    failures: dict[tuple[str, int], ClientError]
    """Partitions that did not answer."""


class AbortSpecification(NamedTuple):
    """The transaction of one producer in one partition, which is to be aborted."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """The epoch in the last marker of the producer in the partition; -1 if there is none."""
