"""Decide, replay, answer when committed; and the ways in which a shard is lost."""

import pytest

from tests.coordinator.harness import BATCH_BYTES_MAX, Bench, MemoryLog, Word, Words
from tidelog.coordinator.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    DecisionTooLarge,
    NotCoordinator,
)
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.coordinator.shard import (
    FLUSH_BYTES,
    SLICE_BYTES,
    SLICE_RECORDS,
    SUSPENSION_MS_MAX,
    SUSPENSION_MS_MIN,
    ShardState,
)
from tidelog.log.errors import StorageError
from tidelog.records.batch import build_batch
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.records.header import iterate_headers
from tidelog.records.record import Record


def test_an_answer_waits_until_its_records_are_committed() -> None:
    bench = Bench()
    bench.put("a", "1")
    assert bench.machine.words == {"a": "1"}, "replayed at once"
    assert bench.log.end_offset == 0, "written at the end of the burst"
    bench.runtime.flush()
    assert bench.log.end_offset == 1
    assert bench.answers == []
    bench.log.commit()
    assert bench.answers == [("a", None)]


def test_the_decisions_of_a_burst_are_one_batch() -> None:
    bench = Bench()
    for number in range(5):
        bench.put(f"key{number}", "value")
    bench.runtime.flush()
    assert len(bench.log.batches) == 1
    assert [offset for _, offset, _, _ in bench.machine.replayed] == [0, 1, 2, 3, 4]
    bench.log.commit()
    assert [response for response, _ in bench.answers] == [f"key{number}" for number in range(5)]


def test_a_read_waits_for_what_it_saw() -> None:
    bench = Bench()
    bench.read("a")
    assert bench.answers == [(None, None)], "nothing to wait for"
    bench.put("a", "1")
    bench.read("a")
    bench.runtime.flush()
    bench.put("b", "2")
    bench.read("a")
    assert len(bench.answers) == 1
    bench.log.commit()
    assert bench.answers[1:] == [("a", None), ("1", None)], "the second read came after what is not written yet"
    bench.runtime.flush()
    bench.read("b")
    bench.log.commit()
    assert bench.answers[3:] == [("b", None), ("1", None), ("2", None)]


def test_on_committed_comes_with_the_answer() -> None:
    bench = Bench()
    heard: list[Exception | None] = []
    bench.put("a", "1", on_committed=heard.append)
    bench.runtime.flush()
    assert heard == []
    bench.log.commit()
    assert heard == [None]


def test_what_waited_for_a_decision_goes_on_in_the_same_batch() -> None:
    bench = Bench()
    seen: list[dict[str, str]] = []

    def go_on() -> None:
        seen.append(dict(bench.machine.words))
        bench.put("b", "2")

    bench.write(lambda _: CoordinatorResult([Word("a", "1")], "a", on_replayed=go_on))
    assert seen == [{"a": "1"}]
    assert [offset for _, offset, _, _ in bench.machine.replayed] == [0, 1]
    bench.runtime.flush()
    assert len(bench.log.batches) == 1
    assert bench.answers == []
    bench.log.commit()
    assert bench.answers == [("a", None), ("b", None)]


def test_what_waited_for_a_decision_may_fail_without_it() -> None:
    bench = Bench()

    def fail() -> None:
        raise LookupError("no")

    bench.write(lambda _: CoordinatorResult([Word("a", "1")], "a", on_replayed=fail))
    bench.runtime.flush()
    bench.log.commit()
    assert bench.answers == [("a", None)]
    assert [facts["where"] for event, facts in bench.events if event == "unexpected_error"] == [
        f"what followed a decision of {bench.shard.name}"
    ]


def test_nothing_goes_on_after_a_decision_that_was_lost() -> None:
    bench = Bench()
    gone_on: list[str] = []
    too_large = Word("a", "x" * BATCH_BYTES_MAX)
    bench.write(lambda _: CoordinatorResult([too_large], on_replayed=lambda: gone_on.append("too large")))
    bench.write(lambda _: CoordinatorResult([Word("a", "unplayable")], on_replayed=lambda: gone_on.append("dropped")))
    assert gone_on == []
    assert len(bench.answers) == 2


def test_a_refusal_is_answered_at_once_and_writes_nothing() -> None:
    bench = Bench()

    def refuse(machine: Words) -> CoordinatorResult:
        raise LookupError("no")

    bench.put("a", "1")
    bench.write(refuse)
    assert [type(error) for _, error in bench.answers] == [LookupError]
    bench.runtime.flush()
    assert bench.log.end_offset == 1
    assert bench.shard.state is ShardState.ACTIVE


def test_a_decision_too_large_for_a_batch_is_refused() -> None:
    bench = Bench()
    told: list[Exception | None] = []
    bench.put("a", "x" * BATCH_BYTES_MAX, on_committed=told.append)
    assert isinstance(bench.answers[0][1], DecisionTooLarge)
    assert told == [bench.answers[0][1]], "who decided hears that nothing came of it"
    assert bench.machine.words == {}
    bench.put("a", "1")
    bench.runtime.flush()
    bench.log.commit()
    assert bench.answers[1] == ("a", None)


def test_a_burst_larger_than_a_batch_is_written_as_several() -> None:
    bench = Bench()
    count = 3 * BATCH_BYTES_MAX // 1000
    for number in range(count):
        bench.put(f"key{number}", "x" * 1000)
    bench.runtime.flush()
    assert len(bench.log.batches) >= 3
    assert bench.log.end_offset == count
    bench.log.commit()
    assert len(bench.answers) == count
    assert len(bench.log.data) / len(bench.log.batches) < min(FLUSH_BYTES, BATCH_BYTES_MAX)


def test_a_failed_append_drops_the_shard_and_loads_it_again() -> None:
    bench = Bench()
    bench.put("a", "1")
    bench.runtime.flush()
    bench.log.commit()
    heard: list[Exception | None] = []
    bench.put("a", "2", on_committed=heard.append)
    first = bench.machine
    bench.log.append_error = OSError("disk")
    bench.runtime.flush()
    assert bench.shard.state is ShardState.FAILED
    assert isinstance(bench.answers[1][1], NotCoordinator)
    assert isinstance(heard[0], NotCoordinator)
    assert isinstance(first.dropped, NotCoordinator)
    bench.read("a")
    assert isinstance(bench.answers[2][1], CoordinatorNotAvailable)
    bench.log.append_error = None
    bench.load()
    assert bench.machine is not first
    assert bench.machine.words == {"a": "1"}, "what was decided but not written is gone"
    bench.put("a", "3")
    bench.runtime.flush()
    bench.log.commit()
    assert bench.answers[3] == ("a", None)
    assert [event for event, _ in bench.events] == ["coordinator_shard_dropped"]


def test_an_append_without_room_costs_what_was_decided_and_reads_go_on() -> None:
    bench = Bench()
    bench.put("a", "1")
    bench.runtime.flush()
    bench.log.commit()
    first = bench.machine
    bench.log.append_error = StorageError("nothing was written: No space left on device")
    bench.put("a", "2")
    bench.runtime.flush()
    assert isinstance(bench.answers[1][1], NotCoordinator)
    bench.read("a")
    assert len(bench.answers) == 2, "it waits for the reload"
    bench.load()
    assert bench.answers[2] == ("1", None), "what was decided but not written is gone"
    assert bench.machine is not first, "the shard was reloaded, not patched"
    bench.put("a", "3")
    bench.read("a")
    assert isinstance(bench.answers[3][1], NotCoordinator), "refused before it was decided"
    assert bench.answers[4] == ("1", None)
    assert bench.shard.drops == 1
    bench.log.append_error = None
    bench.run_for(SUSPENSION_MS_MIN)
    bench.put("a", "4")
    bench.runtime.flush()
    bench.log.commit()
    assert bench.answers[5] == ("a", None)
    assert [event for event, _ in bench.events] == ["coordinator_shard_dropped"]


def test_while_there_is_no_room_a_shard_tries_less_and_less_often_and_is_read_in_between() -> None:
    bench = Bench()
    bench.put("a", "1")
    bench.runtime.flush()
    bench.log.commit()
    bench.log.append_error = StorageError("No space left on device")
    served = 0
    for _ in range(600):
        bench.put("a", "2")
        bench.runtime.flush()
        bench.answers.clear()
        bench.read("a")
        bench.run_for(100)
        served += bench.answers == [("1", None)]
    assert served == 600
    assert bench.shard.drops < 60_000 / SUSPENSION_MS_MAX + 10
    bench.log.append_error = None
    bench.run_for(SUSPENSION_MS_MAX)
    bench.put("a", "3")
    bench.runtime.flush()
    bench.log.commit()
    bench.answers.clear()
    bench.read("a")
    assert bench.answers == [("3", None)]


def test_time_outs_wait_until_there_may_be_room() -> None:
    bench = Bench()
    bench.log.append_error = StorageError("No space left on device")
    bench.put("a", "1")
    bench.runtime.flush()
    bench.run_for(1)
    bench.machine.timers.schedule("due", 10, lambda: CoordinatorResult([Word("late", "yes")]))
    bench.run_for(SUSPENSION_MS_MIN // 2)
    assert bench.machine.words == {}
    bench.log.append_error = None
    bench.run_for(SUSPENSION_MS_MIN)
    assert bench.machine.words == {"late": "yes"}
    assert [event for event, _ in bench.events] == ["coordinator_shard_dropped"]


def test_a_marker_without_room_is_refused_and_the_transaction_stays_open() -> None:
    bench = Bench()
    bench.log.append_error = StorageError("No space left on device")
    heard: list[Exception | None] = []
    for _ in range(2):
        bench.shard.end_transaction((1, 0), EndTransactionMarker(ControlType.COMMIT, 0), heard.append)
        bench.run_for(1)
    assert [type(error) for error in heard] == [NotCoordinator, NotCoordinator]
    assert bench.machine.ended == []
    assert bench.shard.drops == 1


def test_a_shard_that_is_closed_without_room_leaves_nobody_waiting() -> None:
    bench = Bench()
    bench.log.append_error = StorageError("No space left on device")
    bench.put("a", "1")
    bench.runtime.flush()
    bench.read("a")
    bench.shard.close(NotCoordinator("led elsewhere"))
    assert [type(error) for _, error in bench.answers] == [NotCoordinator, NotCoordinator]
    bench.run_for(SUSPENSION_MS_MAX)
    assert bench.shard.state is ShardState.CLOSED


def test_a_batch_that_can_no_longer_be_committed_drops_the_shard() -> None:
    bench = Bench()
    bench.put("a", "1")
    bench.runtime.flush()
    bench.put("b", "1")
    bench.log.fail_commits(OSError("sync"))
    assert [type(error) for _, error in bench.answers] == [NotCoordinator, NotCoordinator], "also what was not written yet"
    bench.load()
    assert bench.machine.words == {"a": "1"}, "it may be in the log, and then it counts"
    bench.read("a")
    assert len(bench.answers) == 2, "but not before it is committed"
    bench.log.commit()
    assert bench.answers[2] == ("1", None)


def test_a_replay_that_fails_drops_the_shard() -> None:
    bench = Bench()
    bench.put("a", "1")
    bench.put("a", "unplayable")
    assert bench.shard.state is ShardState.FAILED
    assert [type(error) for _, error in bench.answers] == [NotCoordinator, NotCoordinator]
    bench.load()
    assert bench.machine.words == {}
    assert [event for event, _ in bench.events] == ["unexpected_error", "coordinator_shard_dropped"]


def test_a_late_commit_of_before_a_drop_answers_nobody() -> None:
    bench = Bench()
    bench.put("a", "1")
    bench.runtime.flush()
    bench.log.append_error = OSError("disk")
    bench.put("b", "1")
    bench.runtime.flush()
    bench.log.append_error = None
    assert len(bench.answers) == 2
    bench.log.commit()
    assert len(bench.answers) == 2


def test_failures_are_tried_again_less_and_less_often() -> None:
    log = MemoryLog()
    log.read_error = OSError("disk")
    bench = Bench(log)
    assert bench.shard.state is ShardState.FAILED
    bench.run_for(100_000)
    assert 10 < bench.shard.drops < 20
    log.read_error = None
    bench.load()


def test_an_answer_that_fails_does_not_keep_others_from_theirs() -> None:
    bench = Bench()

    def broken(response: object, error: Exception | None) -> None:
        raise ValueError("of the one who asked")

    bench.shard.write(lambda _: CoordinatorResult([Word("a", "1")]), broken)
    bench.put("b", "2")
    bench.runtime.flush()
    bench.log.commit()
    assert bench.answers == [("b", None)]
    assert [event for event, _ in bench.events] == ["unexpected_error"]


def test_a_shard_that_was_given_up_answers_not_coordinator() -> None:
    bench = Bench()
    bench.put("a", "1")
    bench.runtime.release(0, NotCoordinator("led elsewhere"))
    bench.runtime.flush()
    assert bench.log.end_offset == 0
    bench.read("a")
    assert [type(error) for _, error in bench.answers] == [NotCoordinator, NotCoordinator]
    assert bench.runtime.find(0) is None
    bench.run_for(60_000)
    assert bench.shard.state is ShardState.CLOSED


def test_while_it_loads_a_shard_says_so() -> None:
    log = MemoryLog()
    writer = Bench(log)
    writer.put("a", "1")
    writer.runtime.flush()
    log.commit()
    bench = Bench(log)
    bench.read("a")
    assert isinstance(bench.answers[0][1], CoordinatorLoading)
    bench.load()
    bench.read("a")
    assert bench.answers[1] == ("1", None)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_timers_decide_and_end_with_the_shard(is_dropped: bool) -> None:
    bench = Bench()
    bench.machine.timers.schedule("expiry", 500, lambda: CoordinatorResult([Word("a", "expired")]))
    bench.machine.timers.schedule("other", 500, lambda: CoordinatorResult([Word("b", "expired")]))
    bench.machine.timers.cancel("other")
    if is_dropped:
        bench.put("c", "unplayable")
        bench.load()
    bench.run_for(1_000)
    assert bench.machine.words == ({} if is_dropped else {"a": "expired"})
    assert len(bench.machine.timers) == 0


def test_a_timer_scheduled_again_replaces_the_first() -> None:
    bench = Bench()
    timers = bench.machine.timers
    timers.schedule("expiry", 500, lambda: CoordinatorResult([Word("a", "first")]))
    timers.schedule("expiry", 900, lambda: CoordinatorResult([Word("a", "second")]))
    bench.run_for(600)
    assert bench.machine.words == {}
    assert "expiry" in timers
    bench.run_for(400)
    assert bench.machine.words == {"a": "second"}


def test_a_time_out_that_fails_is_reported() -> None:
    bench = Bench()

    def fail() -> CoordinatorResult:
        raise ValueError("a fault")

    bench.machine.timers.schedule("expiry", 1, fail)
    bench.run_for(10)
    assert [event for event, _ in bench.events] == ["unexpected_error"]
    assert bench.shard.state is ShardState.ACTIVE


def test_records_of_a_transaction_have_a_batch_of_their_own() -> None:
    bench = Bench()
    bench.put("a", "1")
    bench.shard.write(lambda _: CoordinatorResult([Word("b", "1")]), producer=(7, 3))
    bench.put("c", "1")
    bench.runtime.flush()
    headers = [header for _, header in iterate_headers(bytes(bench.log.data))]
    assert [(header.producer_id, header.producer_epoch, header.is_transactional) for header in headers] == [
        (-1, -1, False),
        (7, 3, True),
        (-1, -1, False),
    ]
    assert bench.machine.replayed == [(Word("a", "1"), 0, -1, -1), (Word("b", "1"), 1, 7, 3), (Word("c", "1"), 2, -1, -1)]


@pytest.mark.parametrize("control_type", [ControlType.COMMIT, ControlType.ABORT])
def test_a_marker_ends_a_transaction_and_is_answered_when_committed(control_type: ControlType) -> None:
    bench = Bench()
    heard: list[Exception | None] = []
    bench.shard.write(lambda _: CoordinatorResult([Word("b", "1")]), producer=(7, 3))
    bench.shard.end_transaction((7, 3), EndTransactionMarker(control_type, 5), heard.append)
    assert bench.machine.ended == [(7, control_type is ControlType.COMMIT)]
    bench.runtime.flush()
    assert heard == []
    bench.log.commit()
    assert heard == [None]
    again = Bench(bench.log)
    again.load()
    assert again.machine.ended == bench.machine.ended
    assert again.machine.replayed == bench.machine.replayed


def test_a_marker_that_cannot_be_written_drops_the_shard() -> None:
    bench = Bench()
    heard: list[Exception | None] = []
    bench.log.append_error = OSError("disk")
    bench.shard.end_transaction((7, 3), EndTransactionMarker(ControlType.COMMIT, 5), heard.append)
    assert [type(error) for error in heard] == [NotCoordinator]
    assert bench.shard.state is ShardState.FAILED
    bench.shard.end_transaction((7, 3), EndTransactionMarker(ControlType.COMMIT, 5), heard.append)
    assert isinstance(heard[1], CoordinatorNotAvailable)


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
