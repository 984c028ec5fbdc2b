"""Transactional ids that nobody uses any more are forgotten; those with a transaction never are."""

from tests.transactions.harness import TransactionBench
from tidelog.transactions.coordinator import IDS_PER_SLICE, InitProducerIdRequest, TransactionPartitions
from tidelog.wire.errors import ErrorCode

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def test_an_id_expires_after_a_week_without_use() -> None:
    bench = TransactionBench()
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


def test_a_transaction_keeps_its_id_alive() -> None:
    bench = TransactionBench()
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
