"""The cleaner on the loop: whom it picks, how it rests, how it gives way, and what it makes of failures."""

import errno
from collections.abc import Iterator
from dataclasses import replace

import pytest

from simulation.executor import SimulatedExecutor
from tests.log.compaction.machine import DIRECTORY, KEY, RETENTION_MS, Machine, settings
from tests.log.harness import Store, append
from tidelog.log.compaction.cleaner import CHILD_SECONDS_MIN, Cleaner
from tidelog.log.compaction.key_map import KEY_MAP_FILE
from tidelog.log.partition_log import PartitionLog
from tidelog.log.segments.indexes import AbortedTransaction, TransactionIndex
from tidelog.log.settings import DirectoryOptions
from tidelog.ports.executor import ChildTask, ChildTaskError, Completion, OnDone


def written_machine(segment_count: int = 3) -> Machine:
    """Each segment makes a group of its own."""
    machine = Machine(settings(segment_bytes=1))
    for number in range(segment_count):
        machine.send([(b"a", b"%d" % number), (b"key %d" % number, b"x")])
        machine.roll()
    return machine


def scratch_files(machine: Machine) -> list[str]:
    return [name for name in machine.disk.list_directory(DIRECTORY) if name.endswith((".cleaned", ".swap", ".tmp"))]


def test_statistics_add_up() -> None:
    machine = written_machine()
    bytes_before = sum(segment.size for segment in machine.log.segments.closed)
    machine.clean()
    statistics = machine.cleaner.statistics
    assert (statistics.cleanings, statistics.failures, statistics.abandoned) == (1, 0, 0)
    assert (statistics.records_read, statistics.records_removed, statistics.segments_replaced) == (6, 2, 3)
    # Read for the map and again for the groups.
    assert statistics.bytes_read == 2 * bytes_before
    assert sum(segment.size for segment in machine.log.segments.closed) < statistics.bytes_written < 2 * bytes_before
    assert statistics.last_duration_ms > 0


def test_the_throttle_rests_between_tasks() -> None:
    machine = written_machine()
    machine.bytes_per_second_max = 1000.0
    machine.cleaner = machine.new_cleaner()
    machine.cleaner.tick()
    started_ms = machine.clock.monotonic_ms()
    while machine.cleaner.log_being_cleaned is not None:
        machine.pass_time(10)
        machine.cleaner.tick()
    statistics = machine.cleaner.statistics
    assert statistics.cleanings == 1
    moved_bytes = statistics.bytes_read + statistics.bytes_written
    elapsed_ms = machine.clock.monotonic_ms() - started_ms
    assert moved_bytes <= elapsed_ms < moved_bytes + 500


def test_an_idle_cleaner_rests_before_it_looks_again() -> None:
    machine = written_machine()
    looks = 0

    def logs() -> list[PartitionLog]:
        nonlocal looks
        looks += 1
        return []

    cleaner = Cleaner(replace(machine.ports, logs=logs), {}, 1, 1.0, backoff_ms=500)
    for _ in range(10):
        cleaner.tick()
        machine.pass_time(100)
    assert looks == 2


def test_many_logs_are_looked_at_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """And all of them before one is picked: the last may be the filthiest."""
    monkeypatch.setattr("tidelog.log.compaction.cleaner.SEGMENTS_PER_LOOK", 8)
    store = Store(settings(segment_bytes=1))
    logs = [store.create(partition=partition) for partition in range(6)]
    for log in logs:
        for _ in range(4):
            append(log)
    store.commit()
    # All but the last were cleaned before, so that only a part of them is dirty.
    cleaner = store.directory.cleaner
    cleaner.first_dirty_offsets.update({("orders", partition): 2 for partition in range(5)})
    looked: list[int] = []
    for _ in range(10):
        if cleaner.log_being_cleaned is not None:
            break
        cleaner.tick()
        looked.append(len(cleaner._horizons_ms))
    assert looked == [2, 4, 5, 5]
    assert cleaner.log_being_cleaned is logs[5]


def test_a_log_that_was_deleted_while_the_others_were_looked_at_is_not_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.log.compaction.cleaner.SEGMENTS_PER_LOOK", 1)
    store = Store(settings(segment_bytes=1))
    log = store.create()
    store.create(partition=1)
    for _ in range(4):
        append(log)
    store.commit()
    store.directory.cleaner.tick()
    store.directory.delete(log)
    store.directory.cleaner.tick()
    assert store.directory.cleaner.log_being_cleaned is None


def test_a_recovery_point_that_does_not_move_keeps_segments_from_being_cleaned() -> None:
    machine = written_machine()
    records = machine.records()
    machine._checkpoint_recovery_point = lambda log, on_done: on_done(None)  # type: ignore[method-assign, operator]  # it fails
    machine.cleaner = machine.new_cleaner()
    machine.clean_once()
    assert machine.records() == records
    assert machine.cleaner.log_being_cleaned is None
    assert machine.cleaner.statistics.uncleanable == {KEY: "its recovery point has not moved"}


def test_what_was_appended_after_the_checkpoint_is_not_below_the_recovery_point() -> None:
    machine = written_machine(1)
    machine.cleaner.tick()
    machine.send([(b"a", b"late")])
    machine.roll()
    plan = machine.log.begin_sync(with_recovery_point=True)
    plan.run(machine.disk)
    machine.log.finish_sync(plan, None)
    machine.scheduler.run_until(lambda: machine.cleaner.log_being_cleaned is None)
    assert machine.cleaner.first_dirty_offset(machine.log) == 2


def test_abort_of_an_idle_log_answers_at_once() -> None:
    machine = written_machine()
    answers: list[str] = []
    machine.cleaner.abort(machine.log, lambda: answers.append("idle"))
    assert answers == ["idle"]


def abort_after(events: int, bytes_per_second_max: float) -> bool:
    """Abort a cleaning after so many events, and truncate when it may be done. False when the cleaning had ended before."""
    machine = written_machine()
    machine.bytes_per_second_max = bytes_per_second_max
    machine.cleaner = machine.new_cleaner()
    machine.cleaner.tick()
    for _ in range(events):
        if not machine.scheduler.step():
            machine.pass_time(1000)
            machine.cleaner.tick()
        if machine.cleaner.log_being_cleaned is None:
            return False
    end_offsets: list[int] = []

    def truncate() -> None:
        assert machine.cleaner.log_being_cleaned is None
        assert scratch_files(machine) == []
        machine.cleaner.lower(machine.log, 3)
        machine.log.cut_to(3)
        end_offsets.append(machine.log.log_end_offset)

    machine.cleaner.abort(machine.log, truncate)
    machine.scheduler.run_until(lambda: bool(end_offsets))
    assert end_offsets == [2], "3 lies inside a batch"
    assert machine.log.offline_reason is None
    assert (machine.cleaner.first_dirty_offset(machine.log) or 0) <= 3
    assert machine.records()[-1].offset == 1
    return True


@pytest.mark.parametrize("bytes_per_second_max", [float("inf"), 1000.0])
def test_abort_at_any_event_leaves_nothing_behind_and_the_log_whole(bytes_per_second_max: float) -> None:
    """Without a tick: whoever waits for the abort does not wait for the throttle."""
    events = 0
    while abort_after(events, bytes_per_second_max):
        events += 1
    assert events > 20


def test_a_truncation_in_the_middle_is_noticed_without_abort() -> None:
    machine = written_machine()
    machine.cleaner.tick()
    machine.scheduler.run_until(lambda: any(name.endswith(".log.cleaned") for name in machine.disk.list_directory(DIRECTORY)))
    machine.log.cut_to(2)
    machine.scheduler.run_until(lambda: machine.cleaner.log_being_cleaned is None)
    assert (machine.cleaner.statistics.abandoned, machine.cleaner.statistics.cleanings) == (1, 0)
    assert [record.offset for record in machine.records()] == [0, 1]
    assert scratch_files(machine) == []


def test_a_segment_that_retention_takes_is_no_failure() -> None:
    machine = written_machine()
    machine.cleaner.tick()
    machine.scheduler.run_until(lambda: KEY_MAP_FILE in machine.disk.list_directory(DIRECTORY))
    first = machine.log.segments[0]
    first.rename(".deleted")
    machine.log.segments.replace([first], [])
    machine.scheduler.run_until(lambda: machine.cleaner.log_being_cleaned is None)
    assert (machine.cleaner.statistics.abandoned, machine.cleaner.statistics.failures) == (1, 0)
    machine.clean()
    assert machine.cleaner.statistics.cleanings == 1


def test_lower_and_forget_are_saved() -> None:
    machine = written_machine()
    machine.clean()
    assert machine.first_dirty_on_disk == {KEY: 6}
    machine.cleaner.lower(machine.log, 7)
    assert machine.first_dirty_on_disk == {KEY: 6}
    machine.cleaner.lower(machine.log, 4)
    assert machine.first_dirty_on_disk == {KEY: 4}
    machine.first_dirty_on_disk.clear()
    machine.cleaner.forget((machine.log.topic, machine.log.partition))
    assert machine.first_dirty_on_disk == {}
    assert machine.cleaner.first_dirty_offset(machine.log) is None


def test_a_damaged_batch_stops_the_cleaning_and_is_named() -> None:
    machine = written_machine()
    machine.disk.flip_bit(machine.log.segments[1].path, 80)
    records = machine.log.segments[0].size
    machine.clean_once()
    reason = machine.cleaner.statistics.uncleanable[KEY]
    assert "00000000000000000002.log is corrupt at byte 0" in reason
    assert machine.log.segments[0].size == records
    assert ("log_uncleanable", {"partition": "orders-0", "error": reason}) in machine.reports


def test_a_marker_stays_for_data_in_an_earlier_group() -> None:
    machine = Machine(settings(segment_bytes=200))
    machine.send([(b"a", b"1")], 1, transactional=True)
    machine.roll()
    machine.end_transaction(1, commit=True)
    machine.send([(b"b", b"1")])
    machine.roll()
    machine.log.producers.clear()
    assert len(machine.log.segments) == 3
    assert machine.log.size > 200
    for _ in range(3):
        machine.cleaner.lower(machine.log, 0)
        machine.clean()
        machine.pass_time(2 * RETENTION_MS)
    assert [batch.header.base_offset for batch in machine.batches()] == [0, 1, 2]


def test_a_lost_transaction_index_stops_the_cleaning_before_anything_is_taken_for_committed() -> None:
    machine = Machine()
    machine.send([(b"a", b"kept")])
    machine.send([(b"a", b"aborted")], 1, transactional=True)
    machine.end_transaction(1, commit=False)
    machine.roll()
    machine.disk.remove(machine.log.segments[0].transaction_index.path)
    records = machine.records()
    machine.clean_once()
    assert "aborted a transaction at offset 2, but no index lists it" in machine.cleaner.statistics.uncleanable[KEY]
    assert machine.records() == records


def test_a_log_that_cannot_be_looked_at_keeps_no_other_from_being_cleaned() -> None:
    compacted = settings(segment_bytes=300, min_cleanable_dirty_ratio=0.01, min_compaction_lag_ms=1)
    store = Store(compacted, options=DirectoryOptions(syncfs_files_min=10_000, cleaner_backoff_ms=100))
    for topic in ("broken", "sound"):
        log = store.create(topic)
        for _ in range(12):
            append(log)
    store.commit()
    store.restart()
    store.disk.faults.fail("read", lambda path: "/broken-0/" in path)
    store.settle(3000)
    assert store.directory.cleaner.statistics.cleanings == 1
    assert list(store.directory.cleaner.statistics.uncleanable) == [("broken", 0)]


@pytest.mark.parametrize("reads_before", range(3))
def test_a_transaction_index_that_cannot_be_read_ends_the_cleaning(reads_before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for the cleaning to end, to delete or truncate the log, must not wait for ever."""
    machine = written_machine()
    left = reads_before
    entries = TransactionIndex.entries

    def failing(index: TransactionIndex, from_offset: int = 0) -> Iterator[AbortedTransaction]:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.EIO, "Input/output error", index.path)
        return entries(index, from_offset)

    monkeypatch.setattr(TransactionIndex, "entries", failing)
    machine.clean_once()
    assert machine.cleaner.log_being_cleaned is None
    assert machine.cleaner.statistics.failures == 1
    assert list(machine.cleaner.statistics.uncleanable) == [KEY]


class HangingChild:
    """A child that gives no result until it is killed."""

    def __init__(self, task: ChildTask, on_done: OnDone) -> None:
        self.task = task
        self._on_done = on_done

    def cancel(self) -> None:
        self._on_done(Completion(None, ChildTaskError("killed")))


def test_a_child_that_hangs_is_killed_when_its_topic_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    compacted = settings(segment_bytes=300, min_cleanable_dirty_ratio=0.01, min_compaction_lag_ms=1)
    store = Store(compacted, options=DirectoryOptions(syncfs_files_min=10_000, cleaner_backoff_ms=100))
    children: list[HangingChild] = []

    def submit_child(_: SimulatedExecutor, task: ChildTask, on_done: OnDone) -> HangingChild:
        children.append(HangingChild(task, on_done))
        return children[-1]

    monkeypatch.setattr(SimulatedExecutor, "submit_child", submit_child)
    log = store.create()
    for _ in range(12):
        append(log)
    store.commit()
    store.settle(3000)
    assert len(children) == 1
    timeout_seconds = children[0].task.timeout_seconds
    assert timeout_seconds is not None
    assert timeout_seconds >= CHILD_SECONDS_MIN
    assert store.wait(lambda done: store.directory.delete(log, done)) is None
    assert store.directory.cleaner.log_being_cleaned is None
    store.create()


def test_no_threads_mean_no_compaction() -> None:
    compacted = settings(segment_bytes=300, min_cleanable_dirty_ratio=0.01, min_compaction_lag_ms=1)
    store = Store(compacted, options=DirectoryOptions(cleaner_threads=0, cleaner_backoff_ms=100))
    log = store.create()
    for _ in range(12):
        append(log)
    store.commit()
    store.settle(3000)
    assert store.directory.cleaner.statistics.cleanings == 0
