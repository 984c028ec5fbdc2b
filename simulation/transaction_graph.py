"""Checks transactions that take records from one partition and write to others, in a cluster that fails over.

A transaction first takes committed records of its source, then writes values that nobody else writes, commits its position with
them, and ends. Its outcome may be unknown: the answer to a commit may be lost. In the end a read_committed reader has read
everything, and the order in which it did is the order of the logs. Then:

- a value that anybody saw belongs to a transaction whose commit was asked for before, and of a transaction all values are there,
  once and in order, or none;
- every reader read a beginning of that order without a gap;
- the transactions that count have taken a beginning of their source, each record once;
- the *dependency graph* has no cycle. ``A reads-from B`` (a write-read edge from B to A) means that A took a value of B, and
  ``A writes-before B`` (write-write) that a value of A stands before one of B in some log. Kafka's transactions are not isolated
  from each other's writes, so two that overlap may write in any order, and a cycle of write-write edges alone means nothing. But
  a transaction here takes before it writes, and takes only what is committed: after ``B writes-before C, A reads-from C`` B began
  to write before A did. So the edges of the graph are write-read edges, alone or after one write-write edge, and along each of
  them the time of the first write rises.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from simulation.checker import Violation
from simulation.history import NEVER, History
from simulation.replica_checker import Place
from simulation.transaction_checker import End

Seen = tuple[int, str]
"""An offset, and the value there."""


@dataclass(slots=True)
class TakingTransaction:
    name: str
    worker: str
    source: Place
    taken: list[Seen]
    values: dict[str, Place] = field(default_factory=dict)
    end: End = End.OPEN
    commit_sent_at: int = NEVER


class Edge(NamedTuple):
    before: str
    after: str
    reason: str


class TransactionGraph:
    def __init__(self, history: History) -> None:
        self._history = history
        self.transactions: list[TakingTransaction] = []
        self._reads: dict[tuple[str, Place], list[Seen]] = defaultdict(list)
        self._owners: dict[str, TakingTransaction] = {}
        self._final: dict[Place, list[Seen]] = {}
        self.committed = 0

    # -- what clients tell ---------------------------------------------------------------------------------------------------

    def begin(self, worker: str, source: Place, taken: list[Seen]) -> TakingTransaction:
        transaction = TakingTransaction(f"{worker}.{len(self.transactions)}", worker, source, taken)
        self.transactions.append(transaction)
        return transaction

    def writes(self, transaction: TakingTransaction, place: Place, count: int) -> list[str]:
        values = [f"{transaction.name}:{len(transaction.values) + number}" for number in range(count)]
        transaction.values.update(dict.fromkeys(values, place))
        self._owners.update(dict.fromkeys(values, transaction))
        return values

    def commit_sent(self, transaction: TakingTransaction) -> None:
        transaction.commit_sent_at = min(transaction.commit_sent_at, self._history.now())
        transaction.end = End.UNKNOWN

    def ended(self, transaction: TakingTransaction, end: End) -> None:
        transaction.end = end
        self.committed += end is End.COMMITTED

    def saw(self, reader: str, place: Place, records: list[Seen]) -> None:
        """A read_committed fetch showed these records."""
        for offset, value in records:
            transaction = self._owners.get(value)
            if transaction is not None and transaction.commit_sent_at == NEVER:
                self._history.problem("read before the commit", f"{reader} saw {value} at {place} {offset}")
        self._reads[reader, place] += records

    def is_complete(self, reader: str, places: list[Place]) -> None:
        """This reader has read everything."""
        self._final = {place: self._reads[reader, place] for place in places}

    # -- in the end ----------------------------------------------------------------------------------------------------------

    def check(self) -> list[Violation]:
        return [*self._check_whole(), *self._check_reads(), *self._check_taken(), *self._check_cycles()]

    def _check_whole(self) -> Iterator[Violation]:
        found: dict[str, list[tuple[Place, int]]] = defaultdict(list)
        for place, records in self._final.items():
            for offset, value in records:
                found[value].append((place, offset))
        for transaction in self.transactions:
            there = [value for value in transaction.values if value in found]
            if there and transaction.end in (End.ABORTED, End.OPEN):
                yield Violation("aborted read", f"{transaction.name}, which {transaction.end.value}, has {there}")
            elif len(there) < len(transaction.values) and (there or transaction.end is End.COMMITTED):
                missing = [value for value in transaction.values if value not in found]
                yield Violation("torn transaction", f"{transaction.name} is without {missing}")
            for value in there:
                if found[value][1:] or found[value][0][0] != transaction.values[value]:
                    yield Violation("duplicate write", f"{value} is at {found[value]}")
            for place in {transaction.values[value] for value in there}:
                order = [offset for value in there if transaction.values[value] == place for _, offset in found[value][:1]]
                if order != sorted(order):
                    yield Violation("writes out of order", f"{transaction.name} in {place}: {order}")

    def _check_reads(self) -> Iterator[Violation]:
        for (reader, place), records in self._reads.items():
            final = self._final.get(place, [])[: len(records)]
            if records != final:
                number = next(number for number, seen in enumerate([*records, None]) if [seen] != final[number : number + 1])
                yield Violation("skipped read", f"{reader} in {place}: {records[number:][:1]} instead of {final[number:][:1]}")

    def _check_taken(self) -> Iterator[Violation]:
        taken: dict[tuple[str, Place], list[Seen]] = defaultdict(list)
        for transaction in sorted(self._counting(), key=lambda each: each.taken[0]):
            taken[transaction.worker, transaction.source] += transaction.taken
        for (worker, source), records in taken.items():
            final = self._final.get(source, [])[: len(records)]
            if records != final:
                wrong = [seen for seen in records if records.count(seen) > 1 or seen not in final]
                yield Violation("input not taken exactly once", f"{worker} of {source}: {wrong[:3]}")

    def _counting(self) -> list[TakingTransaction]:
        """The transactions that took effect."""
        there = {value for records in self._final.values() for _, value in records}
        return [transaction for transaction in self.transactions if any(value in there for value in transaction.values)]

    # -- the graph -----------------------------------------------------------------------------------------------------------

    def _check_cycles(self) -> Iterator[Violation]:
        edges: dict[str, list[Edge]] = defaultdict(list)
        for edge in self._edges():
            edges[edge.before].append(edge)
        cycle = _find_cycle(edges)
        if cycle:
            yield Violation("cycle of transactions", "; ".join(edge.reason for edge in cycle))

    def _edges(self) -> Iterator[Edge]:
        first: dict[Place, dict[str, int]] = {}
        last: dict[Place, dict[str, int]] = {}
        for place, records in self._final.items():
            first[place], last[place] = {}, {}
            for offset, value in records:
                if value in self._owners:
                    name = self._owners[value].name
                    first[place].setdefault(name, offset)
                    last[place][name] = offset
        for reader in self._counting():
            for offset, value in reader.taken:
                writer = self._owners.get(value)
                if writer is None:
                    continue
                reason = f"{reader.name} took {value} of {writer.name} at {reader.source} {offset}"
                yield Edge(writer.name, reader.name, reason)
                for place, ends in last.items():
                    for earlier, begin in first[place].items():
                        if earlier != writer.name and begin < ends.get(writer.name, -1):
                            text = f"{earlier} wrote to {place} {begin}, before {writer.name} at {ends[writer.name]}"
                            yield Edge(earlier, reader.name, f"{text}, and {reason}")


def _find_cycle(edges: dict[str, list[Edge]]) -> list[Edge]:
    """Return the edges of one cycle, if there is one. Depth first, without recursion."""
    finished: set[str] = set()
    for start in list(edges):
        way: list[Edge] = []
        on_way: list[str] = []
        left: list[Iterator[Edge]] = []
        if start not in finished:
            on_way, left = [start], [iter(edges[start])]
        while left:
            edge = next(left[-1], None)
            if edge is None:
                left.pop()
                finished.add(on_way.pop())
                if way:
                    way.pop()
            elif edge.after in on_way:
                return [*way, edge][on_way.index(edge.after) :]
            elif edge.after not in finished:
                way.append(edge)
                on_way.append(edge.after)
                left.append(iter(edges.get(edge.after, ())))
    return []
