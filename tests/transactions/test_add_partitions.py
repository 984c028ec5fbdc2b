"""AddPartitionsToTxn and AddOffsetsToTxn: what a transaction is made of."""

from time import process_time
from typing import Any

import pytest

from tests.transactions.harness import TransactionBench
from tidelog.coordinator.hashing import partition_for
from tidelog.transactions.coordinator import InitProducerIdRequest, TransactionPartitions, offsets_partition
from tidelog.transactions.records import TransactionTopic
from tidelog.transactions.transaction import missing_from
from tidelog.wire.end_txn import EndTxnRequest
from tidelog.wire.errors import ErrorCode


def test_the_first_partition_begins_the_transaction_and_others_join() -> None:
    bench = TransactionBench()
    producer = bench.started()
    bench.run_for(5)
    assert bench.add(producer, ("b", 1), ("a", 0)) is ErrorCode.NONE
    began_ms = bench.value().start_timestamp_ms
    assert began_ms == bench.clock.now_ms()
    bench.run_for(5)
    assert bench.add(producer, ("b", 0), ("c", 7), ("b", 1)) is ErrorCode.NONE
    assert bench.value().partitions == (
        TransactionTopic("b", (1, 0)),
        TransactionTopic("a", (0,)),
        TransactionTopic("c", (7,)),
    )
    assert bench.value().start_timestamp_ms == began_ms
    assert bench.value().last_update_timestamp_ms == began_ms + 5


@pytest.mark.parametrize("version", [0, 2])
def test_which_version_the_client_speaks_is_kept(version: int) -> None:
    bench = TransactionBench()
    bench.add(bench.started(), ("t", 0), version=version)
    assert bench.value().client_transaction_version == version


def test_no_partition_begins_a_transaction_too() -> None:
    bench = TransactionBench()
    assert bench.add(bench.started()) is ErrorCode.NONE
    assert bench.state() == "ONGOING"


def test_partitions_that_are_there_cost_no_record() -> None:
    bench = TransactionBench()
    producer = bench.started()
    bench.add(producer, ("t", 0), ("t", 1))
    end_offset = bench.log.end_offset
    assert bench.add(producer, ("t", 1), ("t", 0)) is ErrorCode.NONE
    assert bench.log.end_offset == end_offset


def test_a_second_addition_need_not_wait_for_the_first() -> None:
    bench = TransactionBench()
    producer = bench.started()

    def add(index: int) -> list[Any]:
        return bench.begin(lambda machine: machine.add_partitions(TransactionPartitions("id", *producer, [("t", index)]), 2))

    answers = [add(0), add(1), add(2)]
    answers.append(bench.begin(lambda machine: machine.ends.end(EndTxnRequest("id", *producer, True), 2)))
    assert answers == [[], [], [], []]
    bench.commit()
    assert answers[:3] == [[ErrorCode.NONE]] * 3
    assert answers[3][0].error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert bench.value().partitions == (TransactionTopic("t", (0, 1, 2)),)
    assert bench.end(producer, True).error is ErrorCode.NONE


def test_a_producer_id_that_is_not_committed_can_begin_nothing() -> None:
    bench = TransactionBench()
    started = bench.begin(lambda machine: machine.init_producer_id(InitProducerIdRequest("id", 60_000)))
    added = bench.begin(lambda machine: machine.add_partitions(TransactionPartitions("id", 0, 0, [("t", 0)]), 2))
    bench.commit()
    assert started[0].error is ErrorCode.NONE
    assert (started[0].producer_id, started[0].producer_epoch) == (0, 0)
    assert added == [ErrorCode.CONCURRENT_TRANSACTIONS]


def test_the_offsets_of_a_group_are_a_partition_like_others() -> None:
    bench = TransactionBench()
    producer = bench.started()
    assert (
        bench.call(
            lambda machine: machine.add_partitions(TransactionPartitions("id", *producer, [offsets_partition("billing", 50)]))
        )
        is ErrorCode.NONE
    )
    assert bench.value().partitions == (TransactionTopic("__consumer_offsets", (partition_for("billing", 50),)),)


def test_a_transaction_that_could_not_be_ended_any_more_is_not_made() -> None:
    """A record of the end is a little larger than that of the last partition; both must fit into a batch."""
    bench = TransactionBench()
    producer = bench.started()
    added = 0
    while (error := bench.add(producer, (f"{added:0200}", added))) is ErrorCode.NONE:
        added += 1
    assert error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert added > 5
    bench.put(bench.value()._replace(producer_epoch=2**15 - 2))
    assert bench.end((producer[0], 2**15 - 2), True).error is ErrorCode.NONE
    bench.settle()
    assert bench.state() == "COMPLETE_COMMIT"
    assert bench.events == []


def test_whether_a_query_may_be_answered_at_once() -> None:
    bench = TransactionBench()
    producer = bench.started()
    assert bench.machine.is_committed("id")
    bench.begin(lambda machine: machine.add_partitions(TransactionPartitions("id", *producer, [("t", 0)]), 2))
    assert not bench.machine.is_committed("id")
    assert bench.machine.is_committed("other")
    bench.commit()
    assert bench.machine.is_committed("id")
    bench.begin(lambda machine: machine.add_partitions(TransactionPartitions("id", *producer, [("t", 1)]), 2))
    bench.runtime.flush()
    bench.crash()
    assert not bench.machine.is_committed("id"), "found in the log, but not committed yet"
    bench.run_for(1)
    assert bench.machine.is_committed("id")


def test_asking_for_thousands_again_takes_no_longer_than_their_number() -> None:
    """Looked up one by one in a list it takes seconds, and the broker does nothing else meanwhile."""
    partitions = (TransactionTopic("a", tuple(range(20_000))),)
    asked = [("a", index) for index in reversed(range(20_001))]
    began = process_time()
    assert missing_from(partitions, asked) == [("a", 20_000)]
    assert process_time() - began < 1.0


def test_what_is_missing_is_found_in_few_and_in_many() -> None:
    for count in (3, 300):
        partitions = (TransactionTopic("a", tuple(range(count))), TransactionTopic("b", (0,)))
        assert missing_from(partitions, [("a", 0), ("a", count), ("b", 0), ("b", 1), ("c", 0)]) == [
            ("a", count),
            ("b", 1),
            ("c", 0),
        ]
