"""Loading: the same state as before, in slices, and clear failures."""

import pytest

from tests.coordinator.harness import Bench, MemoryLog, Word
from tidelog.coordinator.loading import SLICE_BYTES, SLICE_RECORDS
from tidelog.coordinator.shard import ShardState
from tidelog.records.batch import build_batch
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.records.record import Record


def records(*words: tuple[str, str | None]) -> list[Record]:
    return [Record(index, 0, key.encode(), None if value is None else value.encode()) for index, (key, value) in enumerate(words)]


def loaded(log: MemoryLog) -> Bench:
    log.commit()
    bench = Bench(log)
    bench.load()
    return bench


def test_loading_gives_what_deciding_gave() -> None:
    bench = Bench()
    for number in range(50):
        bench.put(f"key{number % 7}", str(number) if number % 3 else None)
        if number % 5 == 0:
            bench.runtime.flush()
    bench.runtime.flush()
    again = loaded(bench.log)
    assert again.machine.replayed == bench.machine.replayed
    assert again.machine.words == bench.machine.words
    assert again.machine.loaded == 1


def test_other_work_gets_its_turn_between_slices() -> None:
    log = MemoryLog()
    for _ in range(4):
        log.append(build_batch(records(*[(f"key{number}", "x") for number in range(SLICE_RECORDS)])))
    log.append(build_batch(records(*[(f"large{number}", "x" * (SLICE_BYTES // 2)) for number in range(8)])))
    log.commit()
    bench = Bench(log)
    machine = bench.machines[0]
    replayed_max = bytes_max = 0
    while bench.shard.state is not ShardState.ACTIVE:
        before = len(machine.replayed)
        bench.scheduler.step()
        slice_ = machine.replayed[before:]
        replayed_max = max(replayed_max, len(slice_))
        bytes_max = max(bytes_max, sum(len(word.value or "") for word, *_ in slice_))
    assert len(machine.replayed) == 4 * SLICE_RECORDS + 8
    assert replayed_max <= SLICE_RECORDS
    assert bytes_max <= 2 * SLICE_BYTES


def test_records_of_a_transaction_come_with_their_producer_and_its_end() -> None:
    log = MemoryLog()
    log.append(build_batch(records(("a", "1")), producer_id=7, producer_epoch=3, base_sequence=0, transactional=True))
    log.append(
        build_end_transaction_marker(EndTransactionMarker(ControlType.COMMIT, 0), producer_id=7, producer_epoch=3, timestamp=0)
    )
    log.append(build_batch(records(("b", "1")), producer_id=8, producer_epoch=0, base_sequence=0))
    machine = loaded(log).machine
    assert machine.replayed == [(Word("a", "1"), 0, 7, 3), (Word("b", "1"), 2, -1, -1)]
    assert machine.ended == [(7, True)]


def test_kinds_of_records_that_are_not_known_are_passed_over() -> None:
    log = MemoryLog()
    log.append(build_batch(records(("a", "1"), ("unknown", "2"), ("b", "3"))))
    assert loaded(log).machine.words == {"a": "1", "b": "3"}


def test_a_record_that_cannot_be_read_makes_the_shard_unusable_and_is_named() -> None:
    log = MemoryLog()
    log.append(build_batch(records(("a", "1"), ("broken", "2"))))
    log.commit()
    bench = Bench(log)
    bench.scheduler.run_until(lambda: bench.shard.state is ShardState.FAILED)
    assert bench.events[0][1]["error"] == "a broken record"


@pytest.mark.parametrize("position", [30, 70])
def test_a_damaged_batch_makes_the_shard_unusable(position: int) -> None:
    log = MemoryLog()
    log.append(build_batch(records(("a", "1" * 100))))
    log.data[position] ^= 1
    log.commit()
    bench = Bench(log)
    bench.scheduler.run_until(lambda: bench.shard.state is ShardState.FAILED)
    assert "checksum" in str(bench.events[0][1]["error"])


def test_a_shard_given_up_while_it_loads_stays_so() -> None:
    log = MemoryLog()
    for _ in range(3):
        log.append(build_batch(records(*[(f"key{number}", "x") for number in range(SLICE_RECORDS)])))
    log.commit()
    bench = Bench(log)
    bench.scheduler.run_until(lambda: len(bench.machines[0].replayed) == SLICE_RECORDS)
    bench.runtime.release(0, OSError("led elsewhere"))
    bench.run_for(1_000)
    assert bench.shard.state is ShardState.CLOSED
    assert bench.machines[0].loaded == 0
