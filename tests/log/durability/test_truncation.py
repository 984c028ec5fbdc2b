"""Cutting a log back: what is left, what is restored, and that a crash on the way is never taken for loss."""

import errno

import pytest

from simulation.disk import Crashed
from tests.log.harness import (
    BATCH_BYTES,
    PATH,
    SMALL,
    START_MS,
    Store,
    append,
    batch,
    end_transaction,
    log_headers,
    read_offsets,
)
from tidelog.log import names
from tidelog.log.append_check import AppendOrigin
from tidelog.log.durability.checkpoints import read_offset_checkpoint
from tidelog.log.durability.durable_marks import DurableMarks
from tidelog.log.errors import LogOffline
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import Isolation, end_offset_for_epoch, offset_for_timestamp, read
from tidelog.ports.steps import run_to_end
from tidelog.records.control import ControlType
from tidelog.records.header import HEADER_SIZE


def filled(store: Store, count: int = 35) -> PartitionLog:
    log = store.create()
    for number in range(count):
        append(log, leader_epoch=number // 10)
        store.pass_time(1000)
    store.commit(log)
    return log


def truncate(store: Store, log: PartitionLog, offset: int) -> None:
    assert store.wait(lambda done: store.directory.truncate(log, offset, done)) is None


@pytest.mark.parametrize("offset", [0, 1, 9, 10, 11, 15, 20, 30, 34])
def test_the_log_ends_where_it_was_cut(offset: int) -> None:
    store = Store(SMALL)
    log = filled(store)
    truncate(store, log, offset)
    assert (log.log_end_offset, log.high_watermark) == (offset, offset)
    assert read_offsets(log) == list(range(offset))
    assert len(log_headers(log)) == offset
    assert log.epochs.latest_epoch == ((offset - 1) // 10 if offset else -1)
    assert run_to_end(offset_for_timestamp(log, START_MS + offset * 1000)) is None
    assert offset == 0 or run_to_end(offset_for_timestamp(log, START_MS + (offset - 1) * 1000)) == (
        START_MS + (offset - 1) * 1000,
        offset - 1,
        (offset - 1) // 10,
    )
    for segment in log.segments:
        segment.offset_index.check()
        assert all(indexed < offset for indexed, _ in segment.offset_index.entries())
    # And grows again as if nothing had been.
    for _ in range(15):
        append(log, leader_epoch=9)
    store.commit(log)
    store.crash()
    assert read_offsets(store.log()) == list(range(offset + 15))
    assert end_offset_for_epoch(store.log(), 9) == (9, offset + 15)


def test_the_cut_is_durable_with_the_next_commit() -> None:
    store = Store(SMALL)
    log = filled(store)
    truncate(store, log, 12)
    store.commit(log)
    store.crash()
    assert read_offsets(store.log()) == list(range(12))


def test_an_offset_inside_a_batch_takes_the_whole_batch() -> None:
    store = Store(SMALL)
    log = store.create()
    append(log, 5)
    append(log, 5)
    store.commit(log)
    truncate(store, log, 7)
    assert (log.log_end_offset, read_offsets(log)) == (5, [0, 1, 2, 3, 4])


def test_at_or_above_the_end_nothing_happens() -> None:
    store = Store(SMALL)
    log = filled(store)
    truncations = log.truncations
    truncate(store, log, 35)
    truncate(store, log, 99)
    assert (log.log_end_offset, log.truncations) == (35, truncations)


def test_below_the_first_segment_the_log_starts_over() -> None:
    store = Store(SMALL)
    log = filled(store)
    assert store.wait(lambda done: store.directory.delete_records(log, 25, done)) is None
    assert log.segments[0].base_offset == 20
    truncate(store, log, 7)
    assert (log.log_start_offset, log.log_end_offset, log.size) == (7, 7, 0)
    assert append(log, leader_epoch=9).first_offset == 7
    store.commit(log)
    assert read_offsets(log) == [7]


def test_producers_and_transactions_are_those_of_what_is_left() -> None:
    store = Store(SMALL)
    log = store.create()
    known = {}
    for number in range(30):
        known[log.log_end_offset] = log.producers.describe()
        if number % 4 == 3:
            end_transaction(log, number % 3, ControlType.ABORT)
        else:
            data = batch(producer_id=number % 3, sequence=number, transactional=True, size=BATCH_BYTES)
            log.append_as_leader(data, 0, AppendOrigin.COORDINATOR)  # whose sequences may be any
    store.commit(log)
    for offset in (27, 20, 13, 10, 4, 0):
        truncate(store, log, offset)
        assert log.producers.describe() == known[offset]
        aborted = [entry for segment in log.segments for entry in segment.transaction_index.entries()]
        assert all(entry.last_offset < offset for entry in aborted)


def test_snapshots_above_the_cut_are_gone() -> None:
    store = Store(SMALL)
    log = filled(store)
    truncate(store, log, 15)
    assert names.base_offsets_of(store.disk.list_directory(log.directory), names.SNAPSHOT_SUFFIX)[-1] <= 15


def test_what_the_disk_says_is_lowered_before_a_byte_is_cut() -> None:
    store = Store(SMALL)
    log = filled(store)
    store.checkpoint(log)
    store.settle(1000)
    seen: list[tuple[int, int]] = []

    def note(operation: str, path: str) -> None:
        if operation in ("truncate", "remove") and path.startswith(f"{PATH}/orders-0/") and not path.endswith(".tmp"):
            image = store.disk.crash_image(keep="none")
            mark = DurableMarks.open(image, PATH).mark("orders-0", log.topic_id)
            point = read_offset_checkpoint(image, f"{PATH}/{names.RECOVERY_POINT_CHECKPOINT}")["orders", 0]
            seen.append((mark or 0, point))

    store.disk.on_operation = note
    truncate(store, log, 12)
    assert seen
    assert all(mark <= 12 and point <= 12 for mark, point in seen)


def test_a_crash_at_any_operation_of_a_truncation_is_not_taken_for_loss() -> None:
    operation_number = 0
    while True:
        operation_number += 1
        store = Store(SMALL, seed=operation_number)
        log = filled(store)
        store.checkpoint(log)
        store.settle(1000)
        start = store.disk.operation_count

        def die(operation: str, path: str, store: Store = store, last: int = start + operation_number) -> None:
            if store.disk.operation_count == last:
                raise Crashed

        store.disk.on_operation = die
        try:
            truncate(store, log, 12)
            store.commit(log)
        except Crashed:
            store.disk.on_operation = None
            store.crash("some")
            assert store.directory.offline == {}
            found = read_offsets(store.log())
            assert found == list(range(len(found)))
            assert len(found) >= 12
        else:
            break
    assert operation_number > 8


@pytest.mark.parametrize("pass_delay_us", [0, 1_000_000])
def test_a_pass_under_way_makes_nothing_durable_that_is_being_cut(pass_delay_us: int) -> None:
    """Whether it ends before the truncation or long after."""
    store = Store(SMALL)
    log = filled(store, 20)
    for _ in range(5):
        append(log, leader_epoch=1)
    store.executor.run_delay_us = (pass_delay_us, pass_delay_us)
    store.directory.kick()
    store.executor.run_delay_us = (0, 1000)
    done: list[object] = []
    store.directory.truncate(log, 22, done.append)
    store.scheduler.run_until(lambda: bool(done))
    assert log.log_end_offset == 22
    store.settle(2000)
    assert log.durable.offset == 22
    assert DurableMarks.open(store.disk, PATH).mark("orders-0", log.topic_id) == 22
    store.commit(log)
    store.crash()
    assert read_offsets(store.log()) == list(range(22))


def test_a_broken_disk_takes_the_log_offline() -> None:
    store = Store(SMALL)
    log = filled(store)
    store.disk.faults.fail("write", lambda path: path.endswith("10.log"), errno.EIO)
    error = store.wait(lambda done: store.directory.truncate(log, 12, done))
    assert isinstance(error, LogOffline)
    assert "truncating to offset 12 failed" in str(log.offline_reason)


def test_a_slice_of_what_was_cut_does_not_promise_more_than_there_is() -> None:
    store = Store(SMALL)
    log = filled(store)
    truncate(store, log, 12)
    found = read(log, 11, 10_000, Isolation.LOG_END).records
    assert found is not None
    assert (found.position, found.length) == (BATCH_BYTES, BATCH_BYTES)


def test_a_log_that_is_deleted_meanwhile_keeps_nobody_waiting() -> None:
    store = Store()
    log, other = store.create(), store.create("other")
    append(log)
    append(log)
    store.commit()
    told: list[BaseException | None] = []
    store.directory.truncate(log, 1, told.append)
    store.directory.delete(log)
    store.settle(1000)
    assert isinstance(told[0], LogOffline)
    append(other)
    assert store.wait_durable(other) is None


def test_damage_that_the_cut_meets_is_told() -> None:
    store = Store()
    log = store.create()
    log.append_as_leader(batch(producer_id=5, transactional=True), 0)
    end_transaction(log, 5, ControlType.COMMIT)
    append(log)
    store.commit(log)
    key_of_marker = log_headers(log)[0].size + HEADER_SIZE + 8
    store.disk.flip_bit(log.segments.active.path, key_of_marker, 1)
    assert isinstance(store.wait(lambda done: store.directory.truncate(log, 2, done)), LogOffline)


def test_what_a_failed_truncation_leaves_is_as_durable_as_before() -> None:
    store = Store()
    log = store.create()
    for _ in range(5):
        append(log)
    store.commit(log)
    store.disk.faults.fail("write", lambda path: names.RECOVERY_POINT_CHECKPOINT in path, errno.ENOSPC, times=1)
    assert isinstance(store.wait(lambda done: store.directory.truncate(log, 1, done)), OSError)
    store.settle(2000)
    store.disk.flip_bit(log.segments.active.path, 2 * BATCH_BYTES + 50)
    store.crash()
    assert list(store.directory.offline) == [("orders", 0)]


def test_after_a_crash_an_empty_log_claims_no_epoch_that_it_had_before() -> None:
    store = Store(SMALL)
    log = filled(store)
    truncate(store, log, 30)
    store.commit(log)
    assert store.wait(lambda done: store.directory.checkpoint_recovery_point(log, done)) is None
    assert log.epochs.latest_epoch == 2
    # A snapshot that ends in a later epoch takes the place of the records. The checkpoint of the epochs still has the old ones.
    assert store.wait(lambda done: store.directory.begin_again(log, 100, done)) is None
    store.commit(log)
    store.crash()
    log = store.log()
    assert (log.log_start_offset, log.log_end_offset, log.epochs.latest_epoch) == (100, 100, -1)
