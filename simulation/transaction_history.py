"""What transactional workers did, and what read_committed readers saw of it.

A transaction takes some records of one input partition, writes values that belong to nobody else, commits its position with
them, and ends. What became of it is known, or not: the answer to a commit may be lost with the worker.
"""

from dataclasses import dataclass, field
from enum import Enum

from simulation.history import NEVER, History, PartitionId


class End(Enum):
    OPEN = "never ended"
    """By its worker: whoever ends it must abort it."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "commit asked for, and nobody knows"


@dataclass(slots=True)
class Transaction:
    name: str
    transactional_id: str
    is_version_2: bool
    source: PartitionId
    first_offset: int
    """Of the input: from here up to and without ``next_offset``."""
    next_offset: int
    values: dict[str, PartitionId] = field(default_factory=dict)
    written: list[tuple[PartitionId, int, int]] = field(default_factory=list)
    """(partition, base offset, moment of the answer) of what was acknowledged."""
    late: set[str] = field(default_factory=set)
    """Values that were first sent when the transaction had ended."""
    end: End = End.OPEN
    commit_sent_at: int = NEVER
    ended_at: int = NEVER


@dataclass(slots=True)
class CommittedPoll:
    """What a read_committed fetch showed of one partition, aborted transactions left out."""

    reader: str
    partition: PartitionId
    records: list[tuple[int, str]]
    last_stable_offset: int
    high_watermark: int
    sent_at: int
    ended_at: int
    is_final: bool = False


@dataclass(slots=True)
class TransactionHistory:
    base: History
    transactions: list[Transaction] = field(default_factory=list)
    polls: list[CommittedPoll] = field(default_factory=list)
    positions: dict[PartitionId, int] = field(default_factory=dict)
    """What the group has committed in the end."""
    committed: int = 0

    def begin(
        self, worker: str, transactional_id: str, is_version_2: bool, source: PartitionId, first: int, after: int
    ) -> Transaction:
        name = f"{worker}.{len(self.transactions)}"
        transaction = Transaction(name, transactional_id, is_version_2, source, first, after)
        self.transactions.append(transaction)
        return transaction

    def commit_sent(self, transaction: Transaction) -> None:
        transaction.commit_sent_at = min(transaction.commit_sent_at, self.base.now())
        transaction.end = End.UNKNOWN

    def ended(self, transaction: Transaction, end: End) -> None:
        transaction.end = end
        transaction.ended_at = self.base.now()
        self.committed += end is End.COMMITTED
