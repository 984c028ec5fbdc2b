"""The checker of transactions in a cluster sees torn and aborted transactions, gaps, input taken twice, and cycles."""

from collections.abc import Callable

import pytest

from simulation.history import History
from simulation.replica_checker import Place
from simulation.transaction_checker import End
from simulation.transaction_graph import TakingTransaction, TransactionGraph

A, B, C = Place("orders", 0), Place("orders", 1), Place("events", 0)
PLACES = [A, B, C]


class Written:
    """Transactions that are put into the logs by hand."""

    def __init__(self) -> None:
        self.history = History()
        self.graph = TransactionGraph(self.history)
        self.logs: dict[Place, list[tuple[int, str]]] = {place: [] for place in PLACES}
        self.count = 0

    def put(self, place: Place, value: str) -> tuple[int, str]:
        self.count += 1
        self.logs[place].append((self.count, value))
        return self.logs[place][-1]

    def plain(self, place: Place) -> tuple[int, str]:
        return self.put(place, f"plain:{self.count}")

    def write(self, transaction: TakingTransaction, *places: Place) -> list[tuple[int, str]]:
        return [self.put(place, self.graph.writes(transaction, place, 1)[0]) for place in places]

    def commit(self, transaction: TakingTransaction) -> None:
        self.graph.commit_sent(transaction)
        self.graph.ended(transaction, End.COMMITTED)

    def check(self) -> list[str]:
        for place, records in self.logs.items():
            self.graph.saw("final", place, records)
        self.graph.is_complete("final", PLACES)
        return [violation.kind for violation in self.graph.check()] + [problem.kind for problem in self.history.problems]


def a_chain(logs: Written) -> None:
    """Each takes what the one before it wrote."""
    seen = logs.plain(A)
    for source, target in ((A, B), (B, C)):
        transaction = logs.graph.begin(f"worker of {source}", source, [seen])
        (seen,) = logs.write(transaction, target)
        logs.commit(transaction)


def two_that_overlap(logs: Written) -> None:
    """They write in different orders, which Kafka does not prevent."""
    one, other = (logs.graph.begin(name, place, [logs.plain(place)]) for name, place in (("one", A), ("other", B)))
    logs.write(one, A)
    logs.write(other, A, B)
    logs.write(one, B)
    logs.commit(one)
    logs.commit(other)


def torn(logs: Written) -> None:
    transaction = logs.graph.begin("worker", A, [logs.plain(A)])
    logs.write(transaction, B)
    logs.graph.writes(transaction, C, 1)
    logs.commit(transaction)


def torn_with_unknown_end(logs: Written) -> None:
    torn(logs)
    logs.graph.transactions[0].end = End.UNKNOWN


def aborted(logs: Written) -> None:
    transaction = logs.graph.begin("worker", A, [logs.plain(A)])
    logs.write(transaction, B)
    logs.graph.commit_sent(transaction)
    logs.graph.ended(transaction, End.ABORTED)


def too_early(logs: Written) -> None:
    transaction = logs.graph.begin("worker", A, [logs.plain(A)])
    logs.graph.saw("reader", B, logs.write(transaction, B))
    logs.commit(transaction)


def written_twice(logs: Written) -> None:
    transaction = logs.graph.begin("worker", A, [logs.plain(A)])
    ((_, value),) = logs.write(transaction, B)
    logs.put(B, value)
    logs.commit(transaction)


def out_of_order(logs: Written) -> None:
    transaction = logs.graph.begin("worker", A, [logs.plain(A)])
    for value in reversed(logs.graph.writes(transaction, B, 2)):
        logs.put(B, value)
    logs.commit(transaction)


def a_gap(logs: Written) -> None:
    records = [logs.plain(A) for _ in range(3)]
    logs.graph.saw("reader", A, [records[0], records[2]])


def taken_twice(logs: Written) -> None:
    seen = logs.plain(A)
    for _ in range(2):
        transaction = logs.graph.begin("worker", A, [seen])
        logs.write(transaction, B)
        logs.commit(transaction)


def each_takes_from_the_other(logs: Written) -> None:
    one, other = logs.graph.begin("one", A, []), logs.graph.begin("other", B, [])
    other.taken += logs.write(one, B)
    one.taken += logs.write(other, A)
    logs.commit(one)
    logs.commit(other)


def takes_from_one_that_wrote_after_it(logs: Written) -> None:
    """The first one writes to C before the second one does, and takes what that committed."""
    one, other = logs.graph.begin("one", A, []), logs.graph.begin("other", B, [logs.plain(B)])
    logs.write(one, C)
    logs.write(other, C)
    one.taken += logs.write(other, A)
    logs.commit(other)
    logs.commit(one)


@pytest.mark.parametrize("plant", [a_chain, two_that_overlap])
def test_what_may_be_is_not_reported(plant: Callable[[Written], None]) -> None:
    logs = Written()
    plant(logs)
    assert logs.check() == []


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (torn, "torn transaction"),
        (torn_with_unknown_end, "torn transaction"),
        (aborted, "aborted read"),
        (too_early, "read before the commit"),
        (written_twice, "duplicate write"),
        (out_of_order, "writes out of order"),
        (a_gap, "skipped read"),
        (taken_twice, "input not taken exactly once"),
        (each_takes_from_the_other, "cycle of transactions"),
        (takes_from_one_that_wrote_after_it, "cycle of transactions"),
    ],
)
def test_what_is_planted_is_seen(plant: Callable[[Written], None], kind: str) -> None:
    logs = Written()
    plant(logs)
    assert logs.check() == [kind]


def test_a_cycle_is_reported_with_the_operations_on_it() -> None:
    logs = Written()
    each_takes_from_the_other(logs)
    logs.check()
    (violation,) = logs.graph.check()
    operations = violation.text.split("; ")
    assert sorted(operations) == [f"one.0 took other.1:0 of other.1 at {A} 2", f"other.1 took one.0:0 of one.0 at {B} 1"]
