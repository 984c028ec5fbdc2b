"""Checks whether transactions could have produced a history: all or nothing, exactly once, and nothing too early.

``TransactionHistory`` records what transactional workers did and what read_committed readers saw of it. A transaction takes some
records of one input partition, writes values that nobody else writes, commits its position with them, and ends. Its outcome may
be unknown: the response to a commit may be lost with the worker.

Each check is a function from a history to violations and is listed in ``CHECKS``.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from simulation.checker import Violation
from simulation.history import NEVER, History, PartitionId


class End(Enum):
    OPEN = "never ended"
    """The worker never ended it, so whoever ends it must abort it."""
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
    """The first offset of the input; the transaction takes the records from here to before ``next_offset``."""
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
    """The records that a read_committed fetch showed of one partition, without aborted transactions."""

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
    """The offsets that the group has committed at the end."""
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


Check = Callable[[TransactionHistory], Iterator[Violation]]


def reads_are_of_committed_transactions(history: TransactionHistory) -> Iterator[Violation]:
    owners = _owners(history)
    for poll in history.polls:
        for offset, value in poll.records:
            transaction = owners.get(value)
            where = f"{history.base.name_of(poll.partition)}@{offset}: {value}"
            if transaction is None or transaction.values.get(value, poll.partition) != poll.partition:
                yield Violation("never sent", where)
            elif value in transaction.late:
                yield Violation("late records read", f"{where}, sent when its transaction had {transaction.end.value}")
            elif transaction.end in (End.ABORTED, End.OPEN):
                yield Violation("aborted read", f"{where}, whose transaction is {transaction.end.value}")
            elif poll.ended_at < transaction.commit_sent_at:
                yield Violation("read before the commit", f"{where}, read by {poll.reader}")


def transactions_are_whole(history: TransactionHistory) -> Iterator[Violation]:
    """At the end all of a transaction is there, once, or nothing."""
    final = _final(history)
    for transaction in history.transactions:
        missing = [value for value in transaction.values if not final.get(value)]
        if transaction.end is End.COMMITTED and missing:
            yield Violation("lost write", f"{transaction.name} is committed, without {missing}")
        elif transaction.end is End.UNKNOWN and missing and len(missing) < len(transaction.values):
            yield Violation("half a transaction", f"{transaction.name} is without {missing}")
    for value, offsets in final.items():
        if len(offsets) > 1:
            yield Violation("duplicate write", f"{value} is at {sorted(offsets)}")


def what_was_read_stays(history: TransactionHistory) -> Iterator[Violation]:
    final = _final(history)
    for poll in history.polls:
        for offset, value in poll.records:
            if offset not in final.get(value, ()):
                where = f"{history.base.name_of(poll.partition)}@{offset}"
                yield Violation("vanished", f"{where}: {value}, read by {poll.reader}")


def input_is_taken_exactly_once(history: TransactionHistory) -> Iterator[Violation]:
    """The transactions that count follow one another in each input partition, from its beginning to the committed position."""
    final = _final(history)
    by_source: dict[PartitionId, list[Transaction]] = defaultdict(list)
    for transaction in history.transactions:
        if any(value in final for value in transaction.values):
            by_source[transaction.source].append(transaction)
    for source, position in history.positions.items():
        expected = 0
        name = history.base.name_of(source)
        for transaction in sorted(by_source[source], key=lambda one: (one.first_offset, one.next_offset)):
            if transaction.first_offset != expected:
                kind = "input taken twice" if transaction.first_offset < expected else "input skipped"
                text = f"{name}: {transaction.name} takes {transaction.first_offset} to {transaction.next_offset}"
                yield Violation(kind, f"{text} where {expected} was next")
            expected = max(expected, transaction.next_offset)
        if max(0, position) != expected:
            yield Violation("position is not that of the transactions", f"{name}: {position}, transactions took {expected}")


def last_stable_offset_waits(history: TransactionHistory) -> Iterator[Violation]:
    """The last stable offset is not past a transaction's records from their acknowledgement until the commit was requested."""
    polls: dict[PartitionId, list[tuple[int, int, int]]] = defaultdict(list)
    for poll in history.polls:
        polls[poll.partition].append((poll.sent_at, poll.ended_at, poll.last_stable_offset))
    for entries in polls.values():
        entries.sort()
    for transaction in history.transactions:
        # Any other transaction may have been aborted by a time-out, or by whoever took over.
        if transaction.end is not End.COMMITTED:
            continue
        for partition, offset, written_at in transaction.written:
            entries = polls[partition]
            for sent_at, ended_at, last_stable_offset in entries[bisect_left(entries, (written_at, 0, 0)) :]:
                if sent_at > transaction.commit_sent_at:
                    break
                if ended_at < transaction.commit_sent_at and last_stable_offset > offset:
                    where = f"{history.base.name_of(partition)}@{offset}"
                    text = f"{transaction.name} is open at {where}, last stable offset {last_stable_offset}"
                    yield Violation("last stable offset past an open transaction", text)


def last_stable_offset_never_falls(history: TransactionHistory) -> Iterator[Violation]:
    """This does not hold while a topic has too few replicas: then a new process knows only where the high watermark was when last
    written."""
    known: dict[PartitionId, list[tuple[int, int]]] = defaultdict(list)
    for poll in history.polls:
        known[poll.partition].append((poll.ended_at, poll.last_stable_offset))
    for entries in known.values():
        entries.sort()
        highest = -1
        for number, (moment, offset) in enumerate(entries):
            highest = max(highest, offset)
            entries[number] = moment, highest
    for poll in history.polls:
        entries = known[poll.partition]
        before = bisect_left(entries, (poll.sent_at, -1))
        is_short = history.base.topics[poll.partition.topic_id].may_be_short_within(poll.sent_at, poll.ended_at)
        if before and not is_short and poll.last_stable_offset < entries[before - 1][1]:
            text = f"{history.base.name_of(poll.partition)}: {poll.last_stable_offset} after {entries[before - 1][1]}"
            yield Violation("last stable offset fell", text)


CHECKS: tuple[Check, ...] = (
    reads_are_of_committed_transactions,
    transactions_are_whole,
    what_was_read_stays,
    input_is_taken_exactly_once,
    last_stable_offset_waits,
    last_stable_offset_never_falls,
)


def check_transactions(history: TransactionHistory) -> list[Violation]:
    """Return all violations, each once."""
    return list(dict.fromkeys(violation for one in CHECKS for violation in one(history)))


def _owners(history: TransactionHistory) -> dict[str, Transaction]:
    return {value: one for one in history.transactions for value in (*one.values, *one.late)}


def _final(history: TransactionHistory) -> dict[str, set[int]]:
    """Where each value is at the end."""
    final: dict[str, set[int]] = defaultdict(set)
    for poll in history.polls:
        if poll.is_final:
            for offset, value in poll.records:
                final[value].add(offset)
    return dict(final)
