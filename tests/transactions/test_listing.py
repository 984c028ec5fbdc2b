"""ListTransactions and DescribeTransactions."""

import pytest

from tests.transactions.harness import TIMEOUT_MS, TransactionBench
from tidelog.transactions.coordinator import DescribedTransaction, ListedTransaction, TransactionFilter, unknown_states
from tidelog.transactions.records import TransactionTopic


def three() -> TransactionBench:
    bench = TransactionBench()
    for index, name in enumerate(("empty", "ongoing", "committing")):
        bench.init(name)
        if index:
            bench.add((index, 0), ("t", index), ("u", 0), transactional_id=name)
    bench.end((2, 0), True, "committing")
    bench.run_for(100)
    return bench


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (TransactionFilter(), ["empty", "ongoing", "committing"]),
        (TransactionFilter(producer_ids=[1, 7]), ["ongoing"]),
        (TransactionFilter(states=["Ongoing", "PrepareCommit", "Nonsense"]), ["ongoing", "committing"]),
        (TransactionFilter(states=["Nonsense"]), []),
        (TransactionFilter(states=["Dead"]), []),
        (TransactionFilter(duration_ms=99), ["empty", "ongoing", "committing"]),
        # Kafka's way to count: what never began, began before all time.
        (TransactionFilter(duration_ms=100), ["empty"]),
        (TransactionFilter(matches=lambda name: name.endswith("ing")), ["ongoing", "committing"]),
        (TransactionFilter(producer_ids=[1], states=["Empty"]), []),
    ],
)
def test_filters(wanted: TransactionFilter, found: list[str]) -> None:
    assert [each.transactional_id for each in three().machine.list_transactions(wanted)] == found


def test_what_is_listed() -> None:
    assert three().machine.list_transactions(TransactionFilter(producer_ids=[2])) == [
        ListedTransaction("committing", 2, "PrepareCommit")
    ]


def test_states_that_do_not_exist_are_named() -> None:
    assert unknown_states(["Ongoing", "ongoing", "Dead", "Nonsense"]) == ["ongoing", "Nonsense"]


def test_what_is_described() -> None:
    bench = three()
    began_ms = bench.value("ongoing").start_timestamp_ms
    assert bench.machine.describe_transaction("ongoing") == DescribedTransaction(
        "ongoing", "Ongoing", TIMEOUT_MS, began_ms, 1, 0, (TransactionTopic("t", (1,)), TransactionTopic("u", (0,)))
    )
    bench.sendings[0].deliver()
    described = bench.machine.describe_transaction("committing")
    assert described is not None
    assert described.partitions == (TransactionTopic("u", (0,)),)
    assert bench.machine.describe_transaction("unknown") is None
