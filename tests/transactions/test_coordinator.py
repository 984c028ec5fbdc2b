"""The decisions of the transaction coordinator: InitProducerId, AddPartitionsToTxn, time-outs, expiry, listing."""

import tracemalloc
from time import process_time
from typing import Any

import pytest

from tests.transactions.harness import TIMEOUT_MS, TransactionBench
from tidelog.coordinator.runtime import partition_for
from tidelog.transactions.coordinator import (
    ABORTS_PER_SLICE,
    IDS_PER_SLICE,
    DescribedTransaction,
    InitProducerIdRequest,
    InitProducerIdResult,
    ListedTransaction,
    TransactionFilter,
    TransactionPartitions,
    offsets_partition,
    unknown_states,
)
from tidelog.transactions.end_transaction import EndTransactionResult
from tidelog.transactions.records import RECORD_CODEC, TransactionRecord, TransactionTopic, TransactionValue
from tidelog.transactions.state import TransactionState
from tidelog.transactions.transaction import TransactionTable, missing_from
from tidelog.wire.end_txn import EndTxnRequest
from tidelog.wire.errors import ErrorCode

# -- InitProducerId ----------------------------------------------------------------------------------------------------------

LAST = 2**15 - 2


def test_a_new_id_gets_a_producer_id_at_epoch_0_and_the_next_owner_a_higher_epoch(bench: TransactionBench) -> None:
    assert bench.init() == InitProducerIdResult(ErrorCode.NONE, 0, 0)
    assert bench.init() == InitProducerIdResult(ErrorCode.NONE, 0, 1)
    assert bench.init("other") == InitProducerIdResult(ErrorCode.NONE, 1, 0)
    bench.crash()
    assert bench.init() == InitProducerIdResult(ErrorCode.NONE, 0, 2)
    assert bench.init("third") == InitProducerIdResult(ErrorCode.NONE, 1000, 0), "ids of the old block are never used"


def test_nobody_hears_of_an_id_before_it_is_committed(bench: TransactionBench) -> None:
    answers = bench.begin(lambda machine: machine.init_producer_id(InitProducerIdRequest("id", 60_000)))
    bench.runtime.flush()
    assert answers == []
    bench.log.commit()
    assert answers == [InitProducerIdResult(ErrorCode.NONE, 0, 0)]


def test_a_zombie_can_do_nothing_after_another_producer_took_over(bench: TransactionBench) -> None:
    zombie = bench.started()
    owner = bench.started()
    assert bench.add(zombie, ("t", 0)) is ErrorCode.PRODUCER_FENCED
    assert bench.end(zombie, True, version=0).error is ErrorCode.PRODUCER_FENCED
    assert bench.end(zombie, True).error is ErrorCode.PRODUCER_FENCED
    assert bench.init(producer=zombie).error is ErrorCode.PRODUCER_FENCED
    assert bench.add(owner, ("t", 0)) is ErrorCode.NONE


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_ongoing_transaction_is_aborted_first_under_an_epoch_that_nobody_gets(version: int) -> None:
    bench = TransactionBench(transaction_version=version)
    zombie = bench.started()
    assert bench.add(zombie, ("t", 0), ("t", 1)) is ErrorCode.NONE
    assert bench.init() == InitProducerIdResult(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert bench.state() == "PREPARE_ABORT"
    assert bench.add(zombie, ("t", 2)) is ErrorCode.PRODUCER_FENCED
    assert bench.init() == InitProducerIdResult(ErrorCode.CONCURRENT_TRANSACTIONS)
    bench.settle()
    assert bench.state() == "COMPLETE_ABORT"
    assert bench.written == {("t", 0): [(0, 1, False)], ("t", 1): [(0, 1, False)]}
    assert bench.init() == InitProducerIdResult(ErrorCode.NONE, 0, 2)


def test_a_producer_that_goes_on_after_an_error_may_ask_twice(bench: TransactionBench, producer: tuple[int, int]) -> None:
    raised = InitProducerIdResult(ErrorCode.NONE, 0, 1)
    assert bench.init(producer=producer) == raised
    assert bench.init(producer=producer) == raised, "it did not hear the first answer"
    assert bench.init(producer=(0, 1)) == InitProducerIdResult(ErrorCode.NONE, 0, 2)
    assert bench.init(producer=producer) == InitProducerIdResult(ErrorCode.PRODUCER_FENCED)


def test_a_repetition_over_a_restart_is_fenced_as_in_kafka(bench: TransactionBench, producer: tuple[int, int]) -> None:
    bench.init(producer=producer)
    bench.crash()
    assert bench.init(producer=producer) == InitProducerIdResult(ErrorCode.PRODUCER_FENCED)


def test_a_new_owner_ends_the_right_to_repeat(bench: TransactionBench, producer: tuple[int, int]) -> None:
    bench.init(producer=producer)
    bench.init()
    assert bench.init(producer=producer) == InitProducerIdResult(ErrorCode.PRODUCER_FENCED)


def test_an_unknown_id_with_a_producer_gets_a_new_producer_id(bench: TransactionBench) -> None:
    assert bench.init(producer=(4711, 3)) == InitProducerIdResult(ErrorCode.NONE, 0, 0)


@pytest.mark.parametrize(
    ("version", "answer"),
    [(0, InitProducerIdResult(ErrorCode.PRODUCER_FENCED)), (2, InitProducerIdResult(ErrorCode.NONE, 0, 1))],
)
def test_with_version_2_a_producer_whose_transaction_timed_out_goes_on(version: int, answer: InitProducerIdResult) -> None:
    bench = TransactionBench(transaction_version=version)
    producer = bench.started()
    bench.add(producer, ("t", 0))
    bench.run_for(80_000)
    bench.settle()
    assert bench.init(producer=producer) == answer


def test_an_owner_begins_without_anything_of_the_transaction_before(bench: TransactionBench, producer: tuple[int, int]) -> None:
    bench.add(producer, ("t", 0))
    bench.end(producer, True)
    bench.settle()
    assert bench.value().start_timestamp_ms > 0
    bench.init()
    assert bench.value().start_timestamp_ms == -1
    assert bench.value().partitions == ()


def test_the_time_out_is_that_of_the_last_owner(bench: TransactionBench) -> None:
    bench.init(timeout_ms=1000)
    bench.init(timeout_ms=2000)
    assert bench.value().timeout_ms == 2000


@pytest.mark.parametrize("is_named", [False, True])
def test_when_the_epochs_are_used_up_a_new_producer_id_follows(bench: TransactionBench, is_named: bool) -> None:
    bench.started()
    bench.put(bench.value()._replace(producer_epoch=LAST - 1))
    assert bench.init(producer=(0, LAST - 1) if is_named else (-1, -1)) == InitProducerIdResult(ErrorCode.NONE, 0, LAST)
    assert bench.init(producer=(0, LAST) if is_named else (-1, -1)) == InitProducerIdResult(ErrorCode.NONE, 1, 0)
    repeated = bench.init(producer=(0, LAST))
    assert repeated == (
        InitProducerIdResult(ErrorCode.NONE, 1, 0) if is_named else InitProducerIdResult(ErrorCode.PRODUCER_FENCED)
    )
    for epoch in (LAST - 1, 0, 1):
        assert bench.init(producer=(0, epoch)) == InitProducerIdResult(ErrorCode.PRODUCER_FENCED)


def test_a_repetition_that_led_to_the_last_epoch_gets_it_again(bench: TransactionBench) -> None:
    bench.started()
    bench.put(bench.value()._replace(producer_epoch=LAST - 1))
    assert bench.init(producer=(0, LAST - 1)) == InitProducerIdResult(ErrorCode.NONE, 0, LAST)
    assert bench.init(producer=(0, LAST - 1)) == InitProducerIdResult(ErrorCode.NONE, 0, LAST)


@pytest.mark.parametrize("version", [0, 2])
def test_a_producer_with_the_last_epoch_can_still_be_fenced(version: int) -> None:
    bench = TransactionBench(transaction_version=version)
    bench.started()
    bench.put(bench.value()._replace(producer_epoch=LAST))
    assert bench.add((0, LAST), ("t", 0)) is ErrorCode.NONE
    assert bench.init() == InitProducerIdResult(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert bench.value().producer_epoch == LAST + 1
    bench.settle()
    assert bench.written == {("t", 0): [(0, LAST + 1, False)]}
    found = bench.init()
    assert found.error is ErrorCode.NONE
    assert found.producer_id == 1


# -- AddPartitionsToTxn and AddOffsetsToTxn ----------------------------------------------------------------------------------


def test_the_first_partition_begins_the_transaction_and_others_join(bench: TransactionBench, producer: tuple[int, int]) -> None:
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
def test_which_version_the_client_speaks_is_kept(bench: TransactionBench, version: int) -> None:
    bench.add(bench.started(), ("t", 0), version=version)
    assert bench.value().client_transaction_version == version


def test_no_partition_begins_a_transaction_too(bench: TransactionBench) -> None:
    assert bench.add(bench.started()) is ErrorCode.NONE
    assert bench.state() == "ONGOING"


def test_partitions_that_are_there_cost_no_record(bench: TransactionBench, producer: tuple[int, int]) -> None:
    bench.add(producer, ("t", 0), ("t", 1))
    end_offset = bench.log.end_offset
    assert bench.add(producer, ("t", 1), ("t", 0)) is ErrorCode.NONE
    assert bench.log.end_offset == end_offset


def test_a_second_addition_need_not_wait_for_the_first(bench: TransactionBench, producer: tuple[int, int]) -> None:

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


def test_a_producer_id_that_is_not_committed_can_begin_nothing(bench: TransactionBench) -> None:
    started = bench.begin(lambda machine: machine.init_producer_id(InitProducerIdRequest("id", 60_000)))
    added = bench.begin(lambda machine: machine.add_partitions(TransactionPartitions("id", 0, 0, [("t", 0)]), 2))
    bench.commit()
    assert started[0].error is ErrorCode.NONE
    assert (started[0].producer_id, started[0].producer_epoch) == (0, 0)
    assert added == [ErrorCode.CONCURRENT_TRANSACTIONS]


def test_the_offsets_of_a_group_are_a_partition_like_others(bench: TransactionBench, producer: tuple[int, int]) -> None:
    assert (
        bench.call(
            lambda machine: machine.add_partitions(TransactionPartitions("id", *producer, [offsets_partition("billing", 50)]))
        )
        is ErrorCode.NONE
    )
    assert bench.value().partitions == (TransactionTopic("__consumer_offsets", (partition_for("billing", 50),)),)


def test_a_transaction_that_could_not_be_ended_any_more_is_not_made(bench: TransactionBench, producer: tuple[int, int]) -> None:
    """A record of the end is a little larger than that of the last partition; both must fit into a batch."""
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


def test_whether_a_query_may_be_answered_at_once(bench: TransactionBench, producer: tuple[int, int]) -> None:
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


# -- time-outs ---------------------------------------------------------------------------------------------------------------

SWEEP_MS = 10_000


@pytest.mark.parametrize("version", [0, 2])
def test_a_transaction_is_aborted_when_its_time_is_up(version: int) -> None:
    bench = TransactionBench(transaction_version=version)
    bench.init(timeout_ms=25_000)
    producer = (0, 0)
    bench.run_for(3_000)
    bench.add(producer, ("t", 0), version=0)
    bench.run_for(24_000)
    assert bench.state() == "ONGOING"
    bench.run_for(SWEEP_MS)
    assert bench.state() == "PREPARE_ABORT"
    bench.settle()
    assert bench.state() == "COMPLETE_ABORT"
    assert bench.written == {("t", 0): [(0, 1, False)]}
    assert bench.end(producer, True, version=0).error is ErrorCode.PRODUCER_FENCED
    assert bench.add(producer, ("t", 0)) is ErrorCode.PRODUCER_FENCED
    assert ("transactions_timed_out", {"count": 1, "first": "id"}) in bench.events


def test_a_client_of_version_2_that_aborts_late_goes_on(bench: TransactionBench, producer: tuple[int, int]) -> None:
    bench.add(producer, ("t", 0))
    bench.run_for(80_000)
    bench.settle()
    assert bench.end(producer, True).error is ErrorCode.INVALID_TXN_STATE
    assert bench.end(producer, False) == EndTransactionResult(ErrorCode.NONE, producer[0], 1)
    assert bench.add((producer[0], 1), ("t", 0)) is ErrorCode.NONE


def test_the_time_counts_from_the_first_partition_also_over_a_restart(bench: TransactionBench, producer: tuple[int, int]) -> None:
    bench.run_for(100_000)
    bench.add(producer, ("t", 0))
    bench.run_for(40_000)
    bench.add(producer, ("t", 1))
    bench.crash()
    bench.run_for(11_000)
    assert bench.state() == "ONGOING"
    bench.run_for(20_000)
    assert bench.state() == "PREPARE_ABORT"


def test_others_are_left_alone(bench: TransactionBench) -> None:
    for name in ("empty", "done", "short", "long"):
        bench.init(name, timeout_ms=20_000 if name != "long" else 200_000)
    for index, name in enumerate(("done", "short", "long"), 1):
        bench.add((index, 0), ("t", index), transactional_id=name)
    bench.end((1, 0), True, "done")
    bench.settle()
    bench.run_for(60_000)
    states = {name: bench.state(name) for name in ("empty", "done", "short", "long")}
    assert states == {"empty": "EMPTY", "done": "COMPLETE_COMMIT", "short": "PREPARE_ABORT", "long": "ONGOING"}


def test_many_at_once_are_aborted_in_parts(bench: TransactionBench) -> None:
    count = 3 * ABORTS_PER_SLICE + 1
    for index in range(count):
        name = f"id-{index}"
        assert bench.init(name, timeout_ms=1000).error is ErrorCode.NONE
        bench.add((index, 0), ("t", index), transactional_id=name)
    bench.run_for(2 * SWEEP_MS)
    bench.settle()
    assert {bench.state(f"id-{index}") for index in range(count)} == {"COMPLETE_ABORT"}
    assert all(markers == [(partition, 1, False)] for (_, partition), markers in bench.written.items())


def test_one_that_has_something_pending_waits_for_the_next_sweep(bench: TransactionBench) -> None:
    bench.init(timeout_ms=1000)
    bench.add((0, 0), ("t", 0))
    bench.scheduler.run_for((SWEEP_MS - 1000) * 1000)
    bench.begin(lambda machine: machine.add_partitions(TransactionPartitions("id", 0, 0, [("t", 1)]), 2))
    bench.scheduler.run_for(2_000_000)
    assert bench.state() == "ONGOING"
    bench.commit()
    bench.run_for(SWEEP_MS)
    assert bench.state() == "PREPARE_ABORT"


def test_the_end_of_the_epochs_does_not_stop_a_time_out(bench: TransactionBench) -> None:
    bench.init()
    bench.put(bench.value()._replace(producer_epoch=2**15 - 2))
    bench.add((0, 2**15 - 2), ("t", 0))
    bench.has_blocks = False
    bench.producer_ids._blocks.clear()
    bench.run_for(80_000)
    assert bench.state() == "ONGOING"
    bench.has_blocks = True
    bench.run_for(SWEEP_MS)
    bench.settle()
    assert bench.state() == "COMPLETE_ABORT"
    assert bench.value().producer_epoch == 0
    assert bench.value().producer_id >= 1000


# -- expiry ------------------------------------------------------------------------------------------------------------------

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def test_an_id_expires_after_a_week_without_use(bench: TransactionBench) -> None:
    bench.init("unused")
    bench.init("used")
    bench.run_for(6 * DAY_MS)
    bench.init("used")
    bench.run_for(DAY_MS + 2 * HOUR_MS)
    assert list(bench.machine.table) == ["used"]
    assert bench.end((0, 0), True, "unused").error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    bench.crash()
    assert list(bench.machine.table) == ["used"]
    assert bench.init("unused").producer_id != 0, "and comes back as somebody new"


def test_a_transaction_keeps_its_id_alive(bench: TransactionBench) -> None:
    for index, name in enumerate(("ongoing", "committing", "committed", "aborted")):
        bench.init(name, timeout_ms=900_000)
        bench.add((index, 0), ("t", index), transactional_id=name)
    bench.end((1, 0), True, "committing")
    bench.end((2, 0), True, "committed")
    bench.end((3, 0), False, "aborted")
    for sending in bench.sendings[1:]:
        sending.deliver()
    bench.run_for(HOUR_MS)
    bench.run_for(8 * DAY_MS)
    # The one that was ongoing was aborted by its time-out, and no marker of that arrives.
    assert list(bench.machine.table) == ["ongoing", "committing"]
    assert bench.state("ongoing") == "PREPARE_ABORT"


def test_many_are_forgotten_in_parts() -> None:
    bench = TransactionBench({"transactional.id.expiration.ms": "1000"})
    bench.log.batch_bytes_max = 2000
    count = IDS_PER_SLICE + 100
    for index in range(count):
        bench.init(f"{index:05}", timeout_ms=1000)
    assert len(bench.machine.table) == count
    bench.run_for(HOUR_MS + 1)
    assert len(bench.machine.table) == 0
    assert bench.events == []
    bench.init()
    bench.run_for(HOUR_MS + 1)
    assert len(bench.machine.table) == 0, "and again an hour later"


def test_an_id_that_is_just_being_used_stays() -> None:
    bench = TransactionBench({"transactional.id.expiration.ms": "1000"})
    bench.init()
    bench.scheduler.run_for((HOUR_MS - 10) * 1000)
    bench.begin(lambda machine: machine.add_partitions(TransactionPartitions("id", 0, 0, [("t", 0)]), 2))
    bench.run_for(20)
    assert bench.state() == "ONGOING"


def test_an_id_whose_record_takes_longer_than_its_life_stays_until_it_is_committed() -> None:
    bench = TransactionBench({"transactional.id.expiration.ms": "1000"})
    bench.scheduler.run_for((HOUR_MS - 5_000) * 1000)
    answers = bench.begin(lambda machine: machine.init_producer_id(InitProducerIdRequest("id", 1000)))
    bench.scheduler.run_for(10_000 * 1000)
    assert list(bench.machine.table) == ["id"]
    bench.commit()
    assert answers[0].error is ErrorCode.NONE
    bench.run_for(HOUR_MS)
    assert list(bench.machine.table) == []


# -- ListTransactions and DescribeTransactions -------------------------------------------------------------------------------


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


# -- memory ------------------------------------------------------------------------------------------------------------------

# As many as fit into the time of a test; what they take grows in proportion.
IDS = 10_000
BYTES_PER_ID_MAX = 1_000


@pytest.mark.parametrize("state", [TransactionState.COMPLETE_COMMIT, TransactionState.ONGOING])
def test_what_an_id_takes(state: TransactionState) -> None:
    is_ongoing = state is TransactionState.ONGOING
    table = TransactionTable(lambda: 2)
    tracemalloc.start()
    try:
        for index in range(IDS):
            partitions = (TransactionTopic("orders", (index % 100,)), TransactionTopic("__consumer_offsets", (index % 50,)))
            value = TransactionValue(
                producer_id=index + 5_000,
                previous_producer_id=index + 5_000,
                next_producer_id=-1,
                producer_epoch=index % 3_000,
                next_producer_epoch=-1,
                timeout_ms=60_000,
                state=state,
                partitions=partitions if is_ongoing else (),
                last_update_timestamp_ms=1_700_000_000_000 + index,
                start_timestamp_ms=1_700_000_000_000 + index,
                client_transaction_version=2,
            )
            found = RECORD_CODEC.decode(*RECORD_CODEC.encode(TransactionRecord(f"payments-worker-{index:08}", value)))
            assert found is not None
            table.replay(found)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / IDS < BYTES_PER_ID_MAX
